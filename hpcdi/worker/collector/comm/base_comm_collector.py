"""DI-engine's base class of what stands between a collector and whoever takes its data."""

from __future__ import annotations

import itertools
import math
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from hpcdi.comm.messages import Message
from hpcdi.config.compat import ConfigDict
from hpcdi.config.fields import to_mapping
from hpcdi.config.roles import ParallelCollectorConfig
from hpcdi.errors import ConfigError, Problem
from hpcdi.policy.base import attribute_of
from hpcdi.policy.create import create_policy
from hpcdi.roles.collector.base_parallel_collector import (
    BaseParallelCollector,
    CollectorPort,
    CollectorTask,
)
from hpcdi.roles.collector.mpi_fs_collector import MPIFileSystemCollector
from hpcdi.roles.context import WorkerContext, get_task_uid
from hpcdi.store.segment import Segment
from hpcdi.types import Array
from hpcdi.utils.nested import share_tensors
from hpcdi.utils.registry import COMM_COLLECTOR_REGISTRY
from hpcdi.utils.timer import RoleMeter
from hpcdi.worker.collector.parallel_collectors import create_parallel_collector
from hpcdi.worker.dict_policy import PolicyOfDicts
from hpcdi.worker.dict_samples import samples_of
from hpcdi.worker.slave import CommSide, ConfigForPrograms, comm_side


class _ForPrograms(ConfigForPrograms):
    OF_RUNS = "MPIFileSystemCollector"


class BaseCommCollector(CommSide):
    """Stands between a collector and whoever gives it policies and takes its data.

    It is for programs of a user's own, which call it; a rank of a run is a
    `MPIFileSystemCollector`.

    Args:
        cfg: settings, which are also attributes; any keys.
    """

    Config: ClassVar[type] = _ForPrograms
    LENT = ("send_metadata", "send_stepdata", "get_policy_update_info")

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._collector_uid = get_task_uid()

    @abstractmethod
    def get_policy_update_info(self, path: str) -> Any:
        """Returns ``{"model": name -> tensor, "iter": its train iteration}``; None: there is none.

        Args:
            path: of the policy, the task's ``policy_update_path``.
        """

    @abstractmethod
    def send_metadata(self, metadata: Any) -> None:
        """Announce a sample, or the end of the task.

        Args:
            metadata: of a sample ``data_id`` (the path of its step data), ``unroll_split_begin``
                (its number there), ``unroll_len, policy_iter, env_id, priority, get_data_time`` and
                ``compressor``, which is "none"; of the end ``collector_done, get_info_time``; of
                both ``eval_flag`` and ``cur_episode, cur_sample, cur_step``, numbers so far. Of a
                sample also ``object_ref``, where `send_stepdata` returned something.
        """

    @abstractmethod
    def send_stepdata(self, path: str, stepdata: Any) -> Any:
        """Store the samples of a trajectory.

        Returns what is to be announced with each of them as ``object_ref``, e.g. their place in a
        store of objects; None: nothing.

        Args:
            path: where, for whoever reads them.
            stepdata: a list of dicts, as the policy's ``get_train_sample`` made them, of tensors.
        """

    @property
    def collector_uid(self) -> str:
        """Name of this collector, unique on its host."""
        return self._collector_uid

    def _create_collector(self, task_info: Mapping[str, Any]) -> BaseParallelCollector:
        """Returns the collector of a task: with its policy, and the methods of this.

        The collector's ``send_metadata, send_stepdata`` and ``get_policy_update_info`` are those of
        this object, and what it calls.

        Args:
            task_info: ``collector_cfg``, of which ``type, env, collect_setting, eval_flag`` and
                ``policy_update_path`` are read beside the collector's own settings; ``policy``
                (default: that in ``collector_cfg``).

        Raises:
            UnknownTypeError: there is no such collector or policy. ConfigError: a setting is wrong.
        """
        cfg = to_mapping(task_info["collector_cfg"])
        policy = task_info.get("policy", cfg.get("policy"))
        missing = [name for name, one in (("env", cfg.get("env")), ("policy", policy)) if not one]
        if missing:
            problems = [Problem(name, "is required") for name in missing]
            raise ConfigError(problems, "the collector's task")
        port = DictPort(str(cfg.get("policy_update_path", "")))
        settings = {"type": "zergling", **cfg, "policy": policy, "make_policy": _of_dicts}
        collector = create_parallel_collector(ConfigDict(settings), port)
        self._lend_methods(collector)
        port.collector = collector
        if not attribute_of(collector.policy, "on_policy", False):  # else each rollout needs it
            usual = ParallelCollectorConfig.update_policy_second
            port.every_s = float(cfg.get("update_policy_second", usual))
        start = collector.start

        def start_and_finish() -> None:
            start()
            port.finish()

        setattr(collector, "start", start_and_finish)  # noqa: B010 (as the others)
        setting = {} if cfg.get("eval_flag") else cfg.get("collect_setting", {})
        collector.begin(CollectorTask(str(task_info.get("task_id", "")), setting))
        return collector


def _of_dicts(*args: Any, **kwargs: Any) -> PolicyOfDicts:
    """Makes a policy whose data are DI-engine's samples, dicts."""
    return PolicyOfDicts(create_policy(*args, **kwargs))


class DictPort(CollectorPort):
    """A parallel collector's port that calls DI-engine's methods on the collector itself.

    Args:
        policy_path: of the policy, see `BaseCommCollector.get_policy_update_info`.

    Attributes:
        collector: has ``send_metadata, send_stepdata, get_policy_update_info``.
        every_s: seconds from one look for a newer policy to the next, unless the newest is wanted.
        meter: see `CollectorPort`.
    """

    collector: Any
    every_s = 0.0

    def __init__(self, policy_path: str) -> None:
        self.meter = RoleMeter("collector")
        self._policy_path, self._looked_at = policy_path, -math.inf
        self._token, self._numbers = uuid.uuid4().hex[:12], itertools.count()
        self._counts = {"cur_episode": 0, "cur_sample": 0, "cur_step": 0}

    @property
    def is_paused(self) -> bool:
        """See `CollectorPort.is_paused`."""
        is_full: Callable[[], bool] | None = getattr(self.collector, "is_full", None)
        return is_full is not None and is_full()

    def get_policy_update_info(
        self,
        path: str,  # noqa: ARG002 (a player's name; these tasks have one)
        have_version: int = -1,
        *,
        newest: bool = False,
        as_arrays: bool = False,  # noqa: ARG002 (its policies do not ask)
    ) -> dict[str, Any] | None:
        """See `CollectorPort.get_policy_update_info`; where there is none, the collector's own."""
        now, is_needed = time.monotonic(), newest or have_version < 0
        if not is_needed and now - self._looked_at < self.every_s:
            return None
        self._looked_at = now
        info = self.collector.get_policy_update_info(self._policy_path)
        if info is None and have_version < 0:
            return {"model": self.collector.policy.state_dict()["model"], "iter": 0}
        if info is None or int(info["iter"]) <= have_version:
            return None
        return {"model": info["model"], "iter": int(info["iter"])}

    def send_stepdata(self, path: str, stepdata: Segment) -> None:
        """Send the samples of each trajectory, then the metadata of each sample."""
        samples = samples_of(share_tensors(dict(stepdata.columns)))
        steps = stepdata.env_steps
        for number, item in enumerate(stepdata.items):
            first, length = int(item["item_start"]), int(item["item_len"])
            # tasks may have one name, and other collectors may write there
            place = f"env_{int(item['env_id'])}_{self._token}_{next(self._numbers)}"
            data_id = f"{path or 'task'}_{place}"
            trajectory = samples[first : first + length]
            self._counts["cur_step"] += length if steps is None else int(steps[number])
            if stepdata.ended is not None:
                self._counts["cur_episode"] += int(stepdata.ended[number])
            reference = self.collector.send_stepdata(data_id, trajectory)
            more = {} if reference is None else {"object_ref": reference}
            for sample in range(length):
                self._counts["cur_sample"] += 1
                self._announce(data_id, sample, item, trajectory, more)

    def send_metadata(self, metadata: Message) -> None:
        """Nothing is sent: what a collector reports is in its samples' metadata, see `finish`."""

    def finish(self) -> None:
        """Announce the end of the task, unless it was stopped before."""
        collector, task = self.collector, self.collector.task
        if collector.env_manager is None or not collector.env_manager.done:
            return
        if collector.evaluates:
            self._counts |= {"cur_episode": task.episodes, "cur_step": task.env_steps}
        done = {"collector_done": True, "eval_flag": collector.evaluates}
        self.collector.send_metadata({**done, "get_info_time": time.time(), **self._counts})

    def _announce(
        self,
        data_id: str,
        place: int,
        item: Array,
        trajectory: Sequence[Mapping[str, Any]],
        more: Mapping[str, Any],
    ) -> None:
        self.collector.send_metadata(
            {
                "data_id": data_id,
                "unroll_split_begin": place,
                "unroll_len": 1,
                "env_id": int(item["env_id"]),
                "policy_iter": int(item["policy_version"]),
                "compressor": "none",
                "get_data_time": time.time(),
                "priority": float(trajectory[place].get("priority", 1.0)),
                "eval_flag": False,
                "collector_done": False,
                **self._counts,
                **more,
            }
        )


BaseCommCollector.register(MPIFileSystemCollector)


def create_comm_collector(cfg: Any, context: WorkerContext | None = None) -> Any:
    """Returns the message side that ``cfg.type`` names.

    Args:
        cfg: ``type``, modules to import first in ``import_names``, and its settings.
        context: a rank's place in a run; None: it is for a program of the caller's own.

    Raises:
        UnknownTypeError: no comm collector has that type (it is a KeyError).
        CommError: it is made without a place in a run, and needs one.
    """
    from hpcdi.worker.collector.comm.flask_fs_collector import FlaskFileSystemCollector

    of_runs = MPIFileSystemCollector
    return comm_side(COMM_COLLECTOR_REGISTRY, cfg, context, of_runs, FlaskFileSystemCollector)
