"""Tic-tac-toe for marine collectors: a policy that takes the first legal action, and its script.

Of two such players the one who begins wins in the seventh move: 0, 2, 4, 6 against 1, 3, 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fakes.collectors import ColumnarProbe, Port
from hpcdi.policy.base import TrainColumns
from hpcdi.types import Array, Columns, Settings
from hpcdi.utils.registry import POLICY_REGISTRY
from hpcdi.worker.collector.base_parallel_collector import create_parallel_collector


class FirstLegal(ColumnarProbe):
    """Takes the first legal action; says by which version."""

    def act(self, observation: Array, setting: Settings) -> Columns:
        version = np.full(len(observation), self._version)
        return {"action": setting["action_mask"].argmax(axis=1), "acted_by": version}

    def train_columns(self, transitions: Columns, item_len: Array, last: Array) -> TrainColumns:
        assert len(last) == len(item_len)
        assert set(transitions["acted_by"]) <= {self._version}
        return TrainColumns({})


def first_legal(observation: Any, _rng: np.random.Generator) -> int:
    """The same as a script."""
    return int(observation["action_mask"].argmax())


def marine(port: Port | None, folder: str = ".", *, evaluate: bool = False, **env: Any) -> Any:
    """A marine collector of tic-tac-toe in 2 environments."""
    cfg = {
        "type": "pettingzoo", "env_id": "classic.tictactoe_v3", "collector_env_num": 2,
        "evaluator_env_num": 2, **env,
    }  # fmt: skip
    config = POLICY_REGISTRY.get("test_first_legal").Config(type="test_first_legal")
    return create_parallel_collector(
        {
            "type": "marine", "env": cfg, "policy": config, "eval_flag": evaluate,
            "policy_update_path": folder, "seed": np.random.SeedSequence(1),
        },
        port,
    )  # fmt: skip
