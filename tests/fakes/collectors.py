"""A policy that says in every row how it acted, and a collector's port that checks what it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcdi.comm.messages import CollectProgress, Message
from hpcdi.config.policy import PolicyConfig
from hpcdi.policy.base import CollectMode, EvalMode, TrainColumns
from hpcdi.roles.collector.base_parallel_collector import CollectorTask
from hpcdi.store.segment import Segment
from hpcdi.types import Array, Columns, Settings
from hpcdi.utils.nested import column_rows
from hpcdi.utils.registry import POLICY_REGISTRY
from hpcdi.utils.timer import RoleMeter
from hpcdi.worker import create_parallel_collector

LENGTH = 5  # of an episode
ENVS = 3


class ProbePolicy:
    """Says in every row by which version and with which `eps` it acted; learns nothing."""

    columnar = False

    @dataclass(frozen=True)
    class Config(PolicyConfig):
        """Nothing of its own."""

    def __init__(self, cfg: Any, enable_field: Any, *, seed: np.random.SeedSequence) -> None:
        self._cfg, self._version = cfg, -1
        self.resets = 0

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        count = column_rows(observation)
        return {
            "action": np.zeros(count, dtype=np.int64),
            "acted_by": np.full(count, self._version),
            "eps": np.full(count, setting.get("eps", 0.0)),
        }

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        return TrainColumns({})

    def forward(self, data: dict[int, Any], **kwargs: Any) -> dict[int, dict[str, Any]]:
        columns = self.act({"observation": np.stack(list(data.values()))}, kwargs)
        return {env: {k: v[n] for k, v in columns.items()} for n, env in enumerate(data)}

    def process_transition(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        return {"observation": obs, "reward": np.float32(timestep.reward), **output}

    def get_train_sample(self, transitions: list[Any]) -> list[Any]:
        return transitions

    def reset(self, data_id: list[int] | None = None) -> None:
        self.resets += data_id is None

    def get_attribute(self, name: str) -> Any:
        if name == "cfg":
            return self._cfg
        if name == "columnar" and self.columnar:
            return self
        raise NotImplementedError(name)

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"version": torch.tensor(self._version)}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._version = int(state_dict["model"]["version"])

    @property
    def collect_mode(self) -> CollectMode:
        return CollectMode(
            self.forward, self.process_transition, self.get_train_sample, self.reset,
            self.get_attribute, setattr, self.state_dict, self.load_state_dict,
        )  # fmt: skip

    @property
    def eval_mode(self) -> EvalMode:
        return EvalMode(
            self.forward, self.reset, self.get_attribute, setattr, self.state_dict,
            self.load_state_dict,
        )  # fmt: skip


class ColumnarProbe(ProbePolicy):
    """The same policy, by columns."""

    columnar = True


@contextmanager
def registered_probes() -> Iterator[None]:
    """The types "test_columnar" and "test_foreign", for as long as a test module runs."""
    POLICY_REGISTRY.register("test_foreign")(ProbePolicy)
    POLICY_REGISTRY.register("test_columnar")(ColumnarProbe)
    yield
    for name in ("test_foreign", "test_columnar"):
        POLICY_REGISTRY._classes.pop(name)


class Port:
    """Gives policies by a plan; checks and keeps what the collector sends."""

    def __init__(self, versions: list[int | None] | None = None) -> None:
        self.meter = RoleMeter("collector")
        self.versions = [0] if versions is None else versions
        self.given = -1
        self.asked_newest: list[bool] = []
        self.task_id = ""
        self.segments: list[Segment] = []
        self.progress: list[CollectProgress] = []
        self.after_segment: Callable[[], None] = lambda: None
        self.is_paused = False

    def awaits_policy(self, path: str) -> bool:
        return False

    def get_policy_update_info(
        self, path: str, have_version: int = -1, *, newest: bool = False
    ) -> dict[str, Any] | None:
        assert have_version == self.given, "it asks for what is newer than the last one"
        self.asked_newest.append(newest)
        version = self.versions.pop(0) if self.versions else None
        if version is None:
            return None
        assert version > self.given
        self.given = version
        return {"model": {"version": torch.tensor(version)}, "iter": version}

    def send_stepdata(self, path: str, stepdata: Segment) -> None:
        assert path == self.task_id
        assert set(stepdata.items["policy_version"]) == {self.given}
        self.segments.append(stepdata.copy())
        self.after_segment()

    def send_metadata(self, metadata: Message) -> None:
        assert isinstance(metadata, CollectProgress)
        assert metadata.task_id == self.task_id
        assert len(metadata.episode_returns) == len(metadata.episode_lengths)
        assert metadata.policy_version == self.given
        self.progress.append(metadata)


def collector(
    policy: str,
    port: Port | None,
    *,
    evaluate: bool = False,
    number: tuple[int, int] = (0, 1),
    **env: Any,
) -> Any:
    cfg = {
        "type": "gymnasium", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0",
        "kwargs": {"length": LENGTH}, "collector_env_num": ENVS, "evaluator_env_num": 2, **env,
    }  # fmt: skip
    frozen = POLICY_REGISTRY.get(policy).Config(type=policy)
    return create_parallel_collector(
        {
            "type": "zergling", "env": cfg, "policy": frozen, "eval_flag": evaluate,
            "number": number,
        },
        port,
    )  # fmt: skip


def do(made: Any, port: Port, task_id: str, **setting: Any) -> Any:
    port.task_id = task_id
    made.begin(CollectorTask(task_id, setting))
    made.start()
    return made.result()


def column_of(port: Port, env: int, name: str) -> list[Any]:
    """A column's transitions of one environment, in the order in which they were sent."""
    values: list[Any] = []
    for segment in port.segments:
        for item in segment.items[segment.items["env_id"] == env]:
            first = item["item_start"]
            values += segment.columns[name][first : first + item["item_len"]].tolist()
    return values
