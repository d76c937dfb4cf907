"""The training loop: a batch in, one update of the policy, hooks around it.

`BaseLearner.train` is one iteration, `BaseLearner.start` all of them. Where batches come from and
where policies go is the `LearnerPort`; in a library's use there is none and the caller has batches.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcdi.config.compat import Configurable, component_class
from hpcdi.config.roles import LearnerConfig
from hpcdi.errors import GroupBrokenError, PolicyError
from hpcdi.policy.base import Policy
from hpcdi.roles.learner.checkpointing import (
    NOT_SHARED,
    checkpoint_name,
    save_as_file,
    save_learner,
)
from hpcdi.roles.learner.data_feed import SampleLoader
from hpcdi.roles.learner.learner_hook import (
    POSITIONS,
    LearnerHook,
    LogPolicyHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
)
from hpcdi.types import Array
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import CHART, HISTOGRAM, CountVar, ScalarMonitor
from hpcdi.utils.registry import LEARNER_REGISTRY


class LearnerPort(Protocol):
    """A learner's requests to the ranks around it."""

    @abstractmethod
    def get_data(self, batch_size: int) -> Any:
        """Returns the next batch, None at the end of the run."""
        ...

    def regroup(self, broken: GroupBrokenError) -> bool:
        """Forms the learners' group without a dead member.

        Args:
            broken: raised in the batch that the death interrupted.

        Returns:
            Whether to do the batch again; otherwise the other learners have done it.

        Raises:
            GroupBrokenError: the run cannot go on.
        """
        ...

    @abstractmethod
    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publishes a policy; ``state_dict["model"]`` holds its parameters."""
        ...

    def wants_policy(self, train_iter: int) -> bool:
        """Returns whether a policy of this iteration should be published."""
        ...

    @abstractmethod
    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Reports progress to the coordinator."""
        ...


class BaseLearner(Configurable):
    """Updates a policy from batches and calls hooks around each update.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        policy: a learn mode; may be set later.
        tb_logger: TensorBoard writer; in a parallel run rank 0 has it, not the learner.
        dist_info: rank in the learners' group, and its size.
        exp_name: name of the experiment.
        instance_name: prefix of TensorBoard tags.
        port: to the other ranks; needed by `start`.
        ckpt_dir: folder of the checkpoints; None: ``<exp_name>/ckpt``, followed by the instance's
            name where that is not "learner".

    Attributes:
        policy: the learn mode.
        monitor: scalars since the last look; None on a learner that keeps no log.
        log_buffer: latest averaged scalars; a chart's are called chart/curve. Under the keys
            scalar, scalars and histogram, what the last update returned of each kind.
        priority_info: ids and priorities of the last batch, as a replay buffer's `update` takes
            them; empty where the policy returned none; with several tasks one mapping a task.
        collector_envstep: environment steps of the run, as far as this learner knows.
        ckpt_name: name of checkpoints that are given none; None: by the iteration.
        ckpt_dir: folder of its checkpoints.
        last_iter: iterations that are done, as a shared counter.
        rank: in the learners' group.
        world_size: of the learners' group.
    """

    Config = LearnerConfig
    _cfg: LearnerConfig

    policy: Any
    priority_info: dict[str, Any]
    log_buffer: dict[str, Any]
    ckpt_name: str | None
    collector_envstep: int
    last_iter: CountVar
    monitor: ScalarMonitor | None
    rank: int
    world_size: int
    exp_name: str
    instance_name: str
    logger: Any
    tb_logger: Any

    def __init__(
        self,
        cfg: Any = None,
        policy: Any = None,
        tb_logger: Any = None,
        dist_info: Sequence[int] | None = None,
        exp_name: str = "default_experiment",
        instance_name: str = "learner",
        *,
        port: LearnerPort | None = None,
        ckpt_dir: Path | None = None,
    ) -> None:
        self._cfg = self.parse_config(cfg)
        self.policy, self.tb_logger, self.logger = policy, tb_logger, LOGGER
        self.exp_name, self.instance_name = exp_name, instance_name
        self.rank, self.world_size = dist_info if dist_info is not None else (0, 1)
        suffix = "" if instance_name == "learner" else f"_{instance_name}"
        self.ckpt_dir = Path(ckpt_dir if ckpt_dir is not None else f"{exp_name}/ckpt{suffix}")
        self.ckpt_name = None
        self.last_iter = CountVar()
        self.collector_envstep = 0
        self.monitor = ScalarMonitor() if self.shows_log else None
        self._latest: Sequence[UpdateLog] = ()
        self.log_buffer = LogBuffer(lambda: self._latest)
        self.priority_info = {}
        self._port = port
        self._loader: SampleLoader | None = None
        self._hooks = build_learner_hook_by_cfg(self._cfg.hook)
        for hook in itertools.chain.from_iterable(self._hooks.values()):
            self._monitor_for(hook)
        if self._cfg.log_policy:
            self.register_hook(LogPolicyHook())

    def start(self) -> None:
        """Trains until all iterations are done or the data end, then closes."""
        if self._loader is None:
            self.setup_dataloader()
        try:
            self.call_hook("before_run")
            left = max(0, self._cfg.train_iterations - self.train_iter)
            for data in itertools.islice(self._loader or (), left):
                while not self._train_in_group(data):
                    pass
            self.call_hook("after_run")
        finally:
            self.close()

    def train(
        self, data: Any, envstep: int = -1, policy_kwargs: Mapping[str, Any] | None = None
    ) -> list[Mapping[str, Any]]:
        """Does one iteration; of several passes over a batch each log counts as one.

        Args:
            data: a batch as the policy takes it; its attribute ``unique_ids``, if it has one, names
                the samples for their priorities. With several tasks, a list of batches.
            envstep: environment steps of the run so far; -1: not known.
            policy_kwargs: for the policy's forward.

        Returns:
            The policy's logs: one, one for each of several passes, or one a task.

        Raises:
            PolicyError: there is no policy, the loss is not finite any more, or the policy's
                outputs do not fit the batch.
        """
        policy, is_multitask = self._the_policy(), self._cfg.is_multitask_pipeline
        if envstep >= 0:
            self.collector_envstep = envstep
            owner = getattr(getattr(policy, "set_attribute", None), "__self__", None)
            if isinstance(owner, Policy):
                policy.set_attribute("env_steps", envstep)  # for schedules
        self.call_hook("before_iter")
        outputs = policy.forward(
            _for_forward(data, is_multitask=is_multitask), **(policy_kwargs or {})
        )
        logs = read_logs(outputs, data, is_multitask=is_multitask)
        for number, log in enumerate(logs, self.train_iter + 1):
            log.check(self.train_iter + 1 if is_multitask else number)
        self.priority_info = return_priorities(logs)
        for passes in [logs] if is_multitask else [[log] for log in logs]:
            if self.monitor is not None:
                for log in passes:
                    self.monitor.add(log.scalars())
            self._latest = passes
            self.last_iter.add(1)
            self.call_hook("after_iter")
        return [log.values for log in logs]

    def _train_in_group(self, data: Any) -> bool:
        """Does one iteration; returns False where a learner died and the batch is to be redone."""
        try:
            self.train(data, getattr(data, "env_steps", -1))
        except GroupBrokenError as broken:
            if self._port is None:
                raise
            return not self._port.regroup(broken)
        return True

    def setup_dataloader(self) -> None:
        """Takes batches from now on: from its own ``get_data(batch_size)``, or from the port."""
        get_data = getattr(self, "get_data", None) or getattr(self._port, "get_data", None)
        if get_data is None:
            raise PolicyError(
                "a learner without a port and without a method get_data(batch_size) has no data to "
                "start with; use train()"
            )
        size = int(self._the_policy().get_attribute("batch_size"))
        self._loader = SampleLoader(lambda: get_data(size), self._cfg.dataloader.num_workers)

    def close(self) -> None:
        """Closes the loader and the hooks. Idempotent."""
        if self._loader is not None:
            self._loader.close()
        for hook in itertools.chain.from_iterable(self._hooks.values()):
            hook.close()

    # ------------------------------------------------------------------------------------- hooks

    def call_hook(self, name: str) -> None:
        """Calls the hooks of a position."""
        for hook in self._hooks[name]:
            hook(self)

    def register_hook(self, hook: LearnerHook) -> None:
        """Adds a hook."""
        add_learner_hook(self._hooks, hook)
        self._monitor_for(hook)

    def _monitor_for(self, hook: LearnerHook) -> None:
        """Keeps scalars for a hook that needs them on every learner of a group."""
        if getattr(hook, "needs_monitor", False) and self.monitor is None:
            self.monitor = ScalarMonitor()

    def offer_policy(self, *, force: bool) -> None:
        """Publishes the policy if a collector waits for it, or in any case with `force`."""
        if self._port is not None and (force or self._port.wants_policy(self.train_iter)):
            self._port.send_policy(self.policy.state_dict())

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Reports progress to the coordinator."""
        if self._port is not None:
            self._port.send_learn_info(learn_info)

    # ------------------------------------------------------------------- checkpoints and the group

    def save_checkpoint(self, ckpt_name: str | None = None) -> None:
        """Writes a checkpoint; of a group, the first learner does.

        A full disk is a warning, and does not end the run.

        Args:
            ckpt_name: its name, e.g. ``ckpt_best.pth.tar``, whose ending is dropped; None: that of
                `ckpt_name`, or else by the iteration.

        Raises:
            ValueError: the name is no plain one.
        """
        given = ckpt_name if ckpt_name is not None else self.ckpt_name
        name = checkpoint_name(given, self.train_iter)
        self._the_policy()
        if self.rank == 0:
            save_learner(self, name, self._cfg.keep_checkpoints)
            if self._cfg.ckpt_format == "pth.tar":
                save_as_file(self, name)

    def state_to_share(self) -> dict[str, Any]:
        """Returns weights, optimizer and counters for the other learners of its group."""
        own = self.policy.state_dict()
        return {
            "policy": {key: value for key, value in own.items() if key not in NOT_SHARED},
            "train_iter": self.train_iter,
            "collector_envstep": self.collector_envstep,
        }

    def take_shared_state(self, state: Mapping[str, Any]) -> None:
        """Loads another learner's `state_to_share`; random numbers stay its own."""
        self.policy.load_state_dict(state["policy"])
        self.last_iter.update(state["train_iter"])
        self.collector_envstep = state["collector_envstep"]

    def move(self, rank: int, world_size: int) -> None:
        """Takes another rank in the learners' group."""
        self.rank, self.world_size = rank, world_size
        if self.shows_log and self.monitor is None:
            self.monitor = ScalarMonitor()

    # ------------------------------------------------------------------------------ what is known

    @property
    def train_iter(self) -> int:
        """Iterations that are done."""
        return self.last_iter.val

    @property
    def shows_log(self) -> bool:
        """True if it writes a log: of a group only the first learner does, unless configured."""
        return self.rank == 0 or not self._cfg.only_monitor_rank0

    @property
    def learn_info(self) -> dict[str, Any]:
        """``learner_step, priority_info, learner_done`` and the latest averaged scalars."""
        return {
            "learner_step": self.train_iter,
            "priority_info": self.priority_info,
            "learner_done": self.train_iter >= self._cfg.train_iterations,
            "scalars": dict(self.log_buffer),
        }

    def info(self, s: str) -> None:
        """Logs a line."""
        LOGGER.info(s)

    def debug(self, s: str) -> None:
        """Logs a line for developers."""
        LOGGER.debug(s)

    def _the_policy(self) -> Any:
        if self.policy is None:
            raise PolicyError("the learner has no policy; set `learner.policy` before training")
        return self.policy

    def __repr__(self) -> str:
        counts = {position: len(self._hooks[position]) for position in POSITIONS}
        return f"{type(self).__name__}(iterations={self.train_iter}, hooks={counts})"


class LogBuffer(dict[str, Any]):
    """Averaged scalars by name; and what the last update returned, by kind.

    Kinds are read as the predecessor's hooks do: ``log_buffer["scalar"]["total_loss"]``.
    """

    def __init__(self, latest: Callable[[], Sequence[UpdateLog]]) -> None:
        super().__init__()
        self._latest = latest

    def __missing__(self, kind: str) -> dict[str, Any]:
        mark = {"scalar": "", "scalars": CHART, "histogram": HISTOGRAM}[kind]
        named = [item for log in self._latest() for item in log.scalars().items()]
        if not mark:
            return {
                n: v for n, v in named if not n.startswith((CHART, HISTOGRAM)) and n != "priority"
            }
        return {n.removeprefix(mark): v for n, v in named if n.startswith(mark)}


class TickMonitor:
    """Means of the last values of a learner's variables, as DI-engine's hooks read them.

    A number that is set is a variable's newest value; ``avg[name]()`` and ``val[name]()`` are the
    mean and the sum of the values that are kept.

    Args:
        time_: not used: every value that is set counts.
        expire: values of each variable that are kept.
    """

    _kept: dict[str, deque[float]]
    _expire: int

    def __init__(self, time_: Any = None, expire: float = 10) -> None:  # noqa: ARG002
        kept: dict[str, deque[float]] = {}
        object.__setattr__(self, "_kept", kept)
        object.__setattr__(self, "_expire", int(expire))
        object.__setattr__(self, "avg", _Of(kept, lambda held: sum(held) / max(len(held), 1)))
        object.__setattr__(self, "val", _Of(kept, sum))

    def __setattr__(self, name: str, value: float) -> None:
        self._kept.setdefault(name, deque(maxlen=self._expire)).append(float(value))


class _Of(dict[str, Callable[[], float]]):
    """Name -> function that returns a figure of a variable's values."""

    def __init__(self, kept: Mapping[str, Any], of: Callable[[Any], float]) -> None:
        super().__init__()
        self._kept, self._of = kept, of

    def __missing__(self, name: str) -> Callable[[], float]:
        return lambda: self._of(self._kept.get(name, ()))


def get_simple_monitor_type(properties: Sequence[str] = ()) -> type[TickMonitor]:  # noqa: ARG001
    """The class of monitors; variables need not be declared."""
    return TickMonitor


def create_learner(cfg: Any, **kwargs: Any) -> BaseLearner:
    """Returns the learner that ``cfg.type`` names; other arguments go to its constructor.

    Raises:
        UnknownTypeError: no learner has that type (it is a KeyError).
    """
    learner: BaseLearner = component_class(LEARNER_REGISTRY, cfg)(cfg, **kwargs)
    return learner


# ------------------------------------------------------------------------------- a policy's outputs


@dataclass(frozen=True)
class UpdateLog:
    """One log that a policy returned of an update.

    Attributes:
        values: the log.
        data: the batch that it describes.
        task: "task0" or the like where there are several; else empty.
    """

    values: Mapping[str, Any]
    data: Any
    task: str = ""

    def check(self, train_iter: int) -> None:
        """Checks that the loss is finite.

        Args:
            train_iter: the present train iteration, counted from 1.

        Raises:
            PolicyError: it is not.
        """
        loss = self.values.get("total_loss", 0.0)
        if not math.isfinite(loss):
            where = f" of {self.task}" if self.task else ""
            raise PolicyError(
                f"total_loss{where} is {loss} in train iteration {train_iter}: the network has "
                "diverged and would not recover. Begin anew with a lower policy.learn."
                "learning_rate, with policy.learn.grad_clip_norm or with policy.normalize"
            )

    def scalars(self) -> Mapping[str, Any]:
        """Returns the values, those of a task under names of its own."""
        if not self.task:
            return self.values
        return {_task_name(name, self.task): value for name, value in self.values.items()}


def read_logs(outputs: Any, data: Any, *, is_multitask: bool) -> list[UpdateLog]:
    """Returns the logs in a policy's outputs: one, one for each of several passes, or one a task.

    Args:
        outputs: of the policy's forward.
        data: the batch; with several tasks a list, one of each.
        is_multitask: the logs are of one task each, named by their ``task_id`` or their place.
    """
    logs = outputs if isinstance(outputs, list) else [outputs]
    if not is_multitask:
        return [UpdateLog(values, data) for values in logs]
    if not isinstance(data, list | tuple) or len(data) != len(logs):
        count = len(data) if isinstance(data, list | tuple) else 1
        raise PolicyError(
            f"is_multitask_pipeline: the policy returned {len(logs)} logs of {count} batches; it "
            "must return a log for each task, in the order of the batches"
        )
    return [
        UpdateLog(values, part, f"task{values.get('task_id', place)}")
        for place, (values, part) in enumerate(zip(logs, data, strict=True))
    ]


def return_priorities(logs: Sequence[UpdateLog]) -> dict[str, Any]:
    """Returns priorities to the batches that take them (`feedback`), and to the caller.

    Returns:
        Ids and priorities as a replay buffer's `update` takes them: of several passes over a batch
        one after the other, so that the last one stays. With several tasks one mapping a task.

    Raises:
        PolicyError: the priorities are not one for each sample.
    """
    found: dict[str, dict[str, Any]] = {}
    for log in logs:
        ids, priority = _sample_ids(log.data), log.values.get("priority")
        if priority is None or not ids:
            continue
        priority = np.asarray(priority, dtype=np.float64)
        size = len(next(iter(ids.values())))
        if priority.shape != (size,):
            raise PolicyError(
                f"the policy returned priorities of shape {priority.shape} for a batch of {size}"
            )
        feedback = getattr(log.data, "feedback", None)
        if feedback is not None:
            feedback(priority)
        info = {**ids, "priority": priority if feedback is not None else priority.tolist()}
        before = found.get(log.task)
        found[log.task] = info if before is None else {k: _joined(before[k], info[k]) for k in info}
    return found.pop("", None) or found


def _for_forward(data: Any, *, is_multitask: bool) -> Any:
    """Returns a batch as the policy's forward takes it."""
    if is_multitask and isinstance(data, list | tuple):
        return [getattr(part, "columns", part) for part in data]
    return getattr(data, "columns", data)


def _task_name(name: str, task: str) -> str:
    mark = next((mark for mark in (CHART, HISTOGRAM) if name.startswith(mark)), "")
    return f"{mark}{task}/{name.removeprefix(mark)}"


def _sample_ids(data: Any) -> dict[str, Any]:
    """Returns the ids of a batch's samples; empty where they have none."""
    ids = getattr(data, "unique_ids", None)
    if ids is not None:
        return {"unique_ids": ids}
    if isinstance(data, list) and data and isinstance(data[0], Mapping):
        names = ("replay_unique_id", "replay_buffer_idx")
        if all(name in data[0] for name in names):
            return {name: [item[name] for item in data] for name in names}
    return {}


def _joined(one: Any, other: Any) -> Array | list[Any]:
    return np.concatenate([one, other]) if isinstance(one, np.ndarray) else [*one, *other]
