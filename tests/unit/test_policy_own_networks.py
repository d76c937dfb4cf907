"""A network of one's own, of 15 lines, learns with every algorithm; so does an encoder alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.serial_runs import LIMIT, serial_run, train

pytestmark = pytest.mark.usefixtures("one_torch_thread")
OWN = """
import math
from torch import nn
from hpcdi.policy.spaces import as_shape

class Own(nn.Module):
    def __init__(self, model, width=16):
        super().__init__()
        self.body = nn.Linear(math.prod(as_shape(model.obs_shape)), width)
        self.outputs = nn.Linear(width, math.prod(as_shape(model.action_shape)))
        self.value = nn.Linear(width, 1) if hasattr(model, "share_encoder") else None

    def forward(self, observation, state):
        features = self.body(observation.float().flatten(1)).tanh()
        outputs = self.outputs(features)
        return (outputs, self.value(features).squeeze(1)) if self.value else outputs, state

class Encoder(nn.Sequential):
    def __init__(self, model):
        size = math.prod(as_shape(model.obs_shape))
        super().__init__(nn.Flatten(), nn.Linear(size, 16), nn.ELU())
        self.out_features = 16
"""
REPLAY = ("policy.other.replay_buffer.min_fill=64",)
RUNS = {
    "dqn": ("cartpole_dqn", *REPLAY),
    "c51": ("cartpole_c51", *REPLAY),
    "rainbow": ("cartpole_rainbow", *REPLAY),
    "qrdqn": ("cartpole_dqn", "policy.type=qrdqn", *REPLAY),
    "ppo": ("cartpole_ppo",),
    "impala": ("cartpole_impala",),
    "sac": ("pendulum_sac", "policy.random_collect_size=64"),
    "td3": ("pendulum_td3", "policy.random_collect_size=64"),
    "r2d2": ("memory_len_r2d2", *REPLAY),
}


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_networks", None)


@pytest.mark.parametrize("name", RUNS)
def test_a_network_of_ones_own(tmp_path: Path, name: str) -> None:
    """R2D2's must remember: there it is the encoder that is one's own."""
    config, *settings = RUNS[name]
    slot = "encoder=own_networks:Encoder" if name == "r2d2" else "type=own_networks:Own"
    few = ("env.collector_env_num=2", "env.evaluator_env_num=1", "policy.learn.batch_size=16")
    with serial_run(
        tmp_path, config, *few, *settings, f"policy.model.{slot}", f"{LIMIT}.max_train_iter=2"
    ) as run:
        train(run)
        (agent,) = run.pipeline.parts.agents
        kinds = {type(module).__name__ for module in agent.policy.get_attribute("model").modules()}
        assert kinds & {"Own", "Encoder"}
        assert run.pipeline.evaluations
