"""One update of a policy, and what is called around it.

`Training.update` is one train iteration. Its caller, a learner rank (`role`) or a program of yours,
gets batches from somewhere and sends policies somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hpcdi.config.roles import LearnerConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import PolicyError
from hpcdi.policy.base import LearnMode, Policy, owner_of
from hpcdi.roles.learner import checkpointing
from hpcdi.types import Array
from hpcdi.utils.metrics import CurveWriter, ScalarMonitor

Log: TypeAlias = Mapping[str, Any]
"""What a policy returns of an update: numbers and arrays, see `ScalarMonitor`, and ``priority``."""


@dataclass(slots=True)
class Batch:
    """What one update learns from.

    Attributes:
        columns: what the policy's forward takes: name -> tensor [batch, ...], ``weight`` among
            them; of a policy of dicts, a list of samples.
        unique_ids: ids of the items, [batch]. Empty: nobody wants their priorities.
        env_steps: environment steps of the run when it was drawn; -1: not known.
        feedback: takes the items' new priorities, float64 [batch].
        began_at: `env_steps` when the policy began anew; its schedules are by the steps since then.
    """

    columns: Any
    unique_ids: Array | Sequence[Any]
    env_steps: int
    feedback: Callable[[Array], None]
    began_at: int = 0


class TrainingCallback:
    """What is called around the updates of a training: subclasses have the methods that they need.

    Attributes:
        priority: of two callbacks, the one with the lower number is called first.
        needs_monitor: it reads the training's monitor, on every learner of a group.
        loads: its `on_start` loads what the policy begins with.
    """

    priority: float = 100
    needs_monitor: bool = False
    loads: bool = False

    def problem(self) -> str:
        """Returns why it cannot do what it is to do, before anything begins; empty where it can."""
        return ""

    def on_start(self, training: Training) -> None:
        """Act before the first update."""

    def on_batch(self, training: Training) -> None:
        """Act before each update."""

    def on_update(self, training: Training, log: Log) -> None:
        """Act after each iteration, which has been counted; `log` is what the policy returned."""

    def on_end(self, training: Training) -> None:
        """Act after the last update; not where an error ended the training."""

    def on_snapshot(self, training: Training) -> None:
        """Act before a part of a snapshot is written."""

    def state_dict(self) -> dict[str, Any]:
        """Returns its state for snapshots and checkpoints; empty: it has none."""
        return {}

    def load_state_dict(self, training: Training, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""

    def close(self) -> None:
        """Release resources. Idempotent."""


class Training:
    """Updates a policy from batches.

    Args:
        cfg: settings.
        policy: its learn mode.
        callbacks: called around updates, by their priority.
        group: rank in the group of learners, and its size.
        ckpt_dir: folder of checkpoints.
        name: prefix of the curves' tags.
        curves: where curves are drawn; None: nowhere.

    Attributes:
        policy, ckpt_dir, name, curves: see above.
        rank, world_size: its place in the group of learners.
        train_iter: iterations that are done.
        env_steps: environment steps of the run, as far as this learner knows.
        monitor: scalars since the last look; None on a learner that keeps no log.
        scalars: latest averaged scalars by name.
    """

    MEAN_SUFFIX: ClassVar[str] = ""
    """Suffix of the tags of scalars' curves."""

    def __init__(
        self,
        cfg: LearnerConfig,
        policy: LearnMode,
        *,
        callbacks: Iterable[TrainingCallback] = (),
        group: tuple[int, int] = (0, 1),
        ckpt_dir: Path,
        name: str = "learner",
        curves: CurveWriter | None = None,
    ) -> None:
        self.policy, self.ckpt_dir, self.name, self.curves = policy, ckpt_dir, name, curves
        self.train_iter = self.env_steps = 0
        self.scalars: dict[str, float] = {}
        self.monitor: ScalarMonitor | None = None
        self._cfg = cfg
        self._callbacks: list[TrainingCallback] = []
        self.take_place(*group)
        for callback in callbacks:
            self.add(callback)

    def add(self, callback: TrainingCallback) -> None:
        """Add a callback, after those of the same priority."""
        self._place(callback)
        if callback.needs_monitor and self.monitor is None:
            self.monitor = ScalarMonitor()

    def _place(self, callback: TrainingCallback) -> None:
        self._callbacks.append(callback)
        self._callbacks.sort(key=lambda added: added.priority)

    def _all_callbacks(self) -> list[TrainingCallback]:
        """Returns all callbacks."""
        return self._callbacks

    def load_named(self) -> None:
        """Load the checkpoint that the run begins with, if one is named, unless that is done."""
        for callback in self._all_callbacks():
            if callback.loads:
                callback.on_start(self)

    def begin(self) -> None:
        """Call what comes before the first update."""
        for callback in self._callbacks:
            callback.on_start(self)

    def update(self, batch: Batch, **forward: Any) -> list[Log]:
        """Update the policy with a batch; each pass over the batch counts as one iteration.

        Args:
            batch: what to learn from.
            **forward: further arguments of the policy's forward.

        Returns:
            What the policy returned for each pass.

        Raises:
            PolicyError: the loss is not finite any more, or priorities do not fit the batch.
        """
        self.prepare(batch.env_steps, batch.began_at)
        output = self.policy.forward(batch.columns, **forward)
        logs: list[Log] = output if isinstance(output, list) else [output]
        for number, log in enumerate(logs, self.train_iter + 1):
            self.check(log, number)
            self.return_priorities(log, batch)
        for log in logs:
            self.count(log)
        return logs

    def check(self, log: Log, train_iter: int, task: str = "") -> None:
        """Check that the loss is finite.

        Args:
            log: what the policy returned.
            train_iter: the iteration, counted from 1.
            task: name of the task whose loss it is, if the policy learns several; else empty.

        Raises:
            NoLogError: it is no mapping. PolicyError: the loss is not finite.
        """
        if not isinstance(log, Mapping):
            raise NoLogError(
                "the policy's forward must return a dict of scalars, or a list of such, not a "
                f"{type(log).__name__}"
            )
        loss = log.get("total_loss", 0.0)
        if not math.isfinite(loss):
            where = f" of {task}" if task else ""
            raise PolicyError(
                f"total_loss{where} is {loss} in train iteration {train_iter}: the network has "
                "diverged and would not recover. Begin anew with a lower policy.learn."
                "learning_rate, with policy.learn.grad_clip_norm or with policy.normalize"
            )

    def return_priorities(self, log: Log, batch: Batch) -> None:
        """Return the priorities in a log, if there are any, to where the batch came from.

        Raises:
            PolicyError: they are not one for each item.
        """
        priority, size = log.get("priority"), len(batch.unique_ids)
        if priority is None or not size:
            return
        priority = np.asarray(priority, dtype=np.float64)
        if priority.shape != (size,):
            raise PolicyError(
                f"the policy returned priorities of shape {priority.shape} for a batch of {size}"
            )
        batch.feedback(priority)

    def prepare(self, env_steps: int, began_at: int = 0) -> None:
        """Do what comes before an update.

        Args:
            env_steps: environment steps of the run so far; -1: not known.
            began_at: those when the policy began anew.
        """
        if env_steps >= 0:
            self.env_steps = env_steps
            owner = owner_of(self.policy)
            if isinstance(owner, Policy):
                owner.set_attribute("env_steps", env_steps - began_at)  # for schedules
        self._before_update()

    def count(self, log: Log) -> None:
        """Count an iteration that is done."""
        self._note(log)
        self.train_iter += 1
        self._after_update(log)

    def _note(self, log: Log) -> None:
        """Note the scalars of an iteration in the monitor."""
        if self.monitor is not None:
            self.monitor.add(log)

    def _before_update(self) -> None:
        for callback in self._callbacks:
            callback.on_batch(self)

    def _after_update(self, log: Log) -> None:
        for callback in self._callbacks:
            callback.on_update(self, log)

    def end(self) -> None:
        """Call what comes after the last update."""
        for callback in self._callbacks:
            callback.on_end(self)

    def close(self) -> None:
        """Close the callbacks. Idempotent."""
        for callback in self._all_callbacks():
            callback.close()

    # ------------------------------------------------------------------- checkpoints and the group

    def save_checkpoint(self, ckpt_name: str | None = None) -> None:
        """Write a checkpoint; of a group, the first learner does.

        A full disk is a warning, and does not end the run.

        Args:
            ckpt_name: e.g. ``ckpt_best.pth.tar``, whose ending is dropped; None: by the iteration.

        Raises:
            ValueError: the name is no plain one.
        """
        folder = checkpointing.checkpoint_name(ckpt_name, self.train_iter)
        if self.rank == 0:
            checkpointing.save_learner(self, folder, self._cfg.keep_checkpoints)

    def load_checkpoint(
        self, path: Path, *, load_last_iter: bool | None = None, agent: int = 0
    ) -> None:
        """Load a checkpoint or a policy; see `checkpointing.load_learner`."""
        checkpointing.load_learner(self, path, load_last_iter=load_last_iter, agent=agent)

    def callback_state(self) -> dict[str, Any]:
        """Returns the states of the callbacks: by class those of each, in order, if any has one."""
        states = dict[str, list[dict[str, Any]]]()
        for callback in self._all_callbacks():
            states.setdefault(type(callback).__name__, []).append(callback.state_dict())
        return {name: of_class for name, of_class in states.items() if any(of_class)}

    def load_callback_state(self, states: Mapping[str, Any]) -> None:
        """Restore a `callback_state`; callbacks that are new since then begin anew."""
        left = {name: list(of_class) for name, of_class in states.items()}
        for callback in self._all_callbacks():
            of_class = left.get(type(callback).__name__)
            if of_class and (state := of_class.pop(0)):
                callback.load_state_dict(self, state)

    def snapshot(self) -> None:
        """Call what comes before a snapshot."""
        for callback in self._all_callbacks():
            callback.on_snapshot(self)

    def shared_state(self) -> dict[str, Any]:
        """Returns weights, optimizer and counters for the other learners of its group."""
        return {
            "policy": checkpointing.shared_part(self.policy.state_dict()),
            "train_iter": self.train_iter,
            "env_steps": self.env_steps,
        }

    def take_shared_state(self, state: Mapping[str, Any]) -> None:
        """Load another learner's `shared_state`; random numbers stay its own."""
        self.policy.load_state_dict(state["policy"])
        self.train_iter, self.env_steps = state["train_iter"], state["env_steps"]

    def take_place(self, rank: int, world_size: int) -> None:
        """Take a place in the group of learners."""
        self.rank, self.world_size = rank, world_size
        if self.shows_log and self.monitor is None:
            self.monitor = ScalarMonitor()

    @property
    def shows_log(self) -> bool:
        """True if it writes a log: of a group only the first learner does, unless configured."""
        return self.rank == 0 or not self._cfg.only_monitor_rank0


class NoLogError(PolicyError, TypeError):
    """What a policy's forward returned is no log."""
