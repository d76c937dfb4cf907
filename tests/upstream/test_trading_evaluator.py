"""dizoo's `TradingSerialEvaluator`, which has an `eval` of its own, derived from our evaluator."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import tempfile
from types import SimpleNamespace
from typing import Any

import pytest
from beside import answer_of

pytestmark = [
    pytest.mark.ding,
    pytest.mark.skipif(
        importlib.util.find_spec("dizoo") is None, reason="DI-engine is not here: make ding"
    ),
]


def evaluated() -> dict[str, Any]:
    """What an evaluation of two episodes leads to."""
    import numpy as np

    module = importlib.import_module("dizoo.gym_anytrading.worker.trading_serial_evaluator")
    envs = importlib.import_module("ding.envs")

    class Env:
        def reset(self) -> Any:
            self.steps = 0
            return np.zeros(2, np.float32)

        def step(self, action: Any) -> Any:
            self.steps += 1
            info = {"eval_episode_return": np.float32(3.0), "max_possible_profit": 2.0}
            seen, done = np.ones(2, np.float32), self.steps == 2
            return envs.BaseEnvTimestep(seen, np.ones(1), done, info if done else {})

        def seed(self, *_seeds: Any) -> None: ...

        def close(self) -> None: ...

        observation_space = action_space = reward_space = None

    def forward(data: Any) -> Any:
        return {env: {"action": np.zeros(1, np.int64)} for env in data}

    tags: list[str] = []
    writer = SimpleNamespace(add_scalar=lambda tag, *_: tags.append(tag), flush=list, close=list)
    cls = module.TradingSerialEvaluator
    cfg = cls.default_config()
    cfg.update(n_episode=2, stop_value=2.5)
    manager = envs.BaseEnvManager([Env, Env], envs.BaseEnvManager.default_config())
    policy = SimpleNamespace(forward=forward, reset=lambda ids=None: None)
    evaluator = cls(cfg, manager, policy, writer, "exp", "mine")
    saved: list[str] = []
    stop, info = evaluator.eval(saved.append, 1, 7)
    again, _ = evaluator.eval(saved.append, 0, 8)
    evaluator.close()
    return {
        "ours": type(evaluator).__mro__[1].__module__,
        "stops": [bool(stop), bool(again)],
        "returns": info["eval_episode_return"],
        "saved": saved,
        "profit": "mine_iter/max_possible_profit_mean" in tags,
    }


def test_it_evaluates() -> None:
    assert answer_of(__file__) == {
        "ours": "hpcdi.worker.collector.evaluation",
        "stops": [True, False],
        "returns": [3.0, 3.0],
        "saved": ["ckpt_best.pth.tar"],
        "profit": True,
    }


if __name__ == "__main__":
    importlib.import_module("alias")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(json.dumps(evaluated()))
        os.chdir("/")
