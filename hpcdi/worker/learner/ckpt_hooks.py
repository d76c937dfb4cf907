"""Hooks that write a learner's checkpoints, and take one up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from hpcdi.worker.learner.builtin_hook import BuiltinHook, PeriodicHook, every
from hpcdi.worker.learner.checkpointing import FINAL, load_learner, path_problem
from hpcdi.worker.learner.learner_hook import (
    LearnerHook,
    register_learner_hook,
    simplified_hook_mapping,
)


class LoadCkptHook(BuiltinHook):
    """Takes up a checkpoint, or a policy; see `checkpointing.load_learner`.

    A learner that has iterations behind it is left as it is: a run that was gone on with has come
    further than what it began with.

    Args:
        name: for people.
        priority: the lower, the earlier.
        position: before the run.
        ext_args: ``load_path``; ``load_last_iter: false`` takes weights alone.

    Raises:
        ValueError: there is nothing to load at that path.
    """

    usual_name = "load_ckpt"
    usual_priority = 20
    usual_position = "before_run"
    positions: ClassVar[list[str]] = ["before_run"]
    args = ("load_path", "load_last_iter")

    def __init__(
        self,
        name: str | None = None,
        priority: float | None = None,
        *,
        position: str | None = None,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position=position, ext_args=ext_args)
        given = dict(ext_args or {})
        path, self._load_last_iter = given.get("load_path"), given.get("load_last_iter")
        if not isinstance(path, str | Path) or not str(path):
            raise TypeError(f"load_path must be the path of a checkpoint, not {path!r}")
        if self._load_last_iter not in (None, True, False):
            raise TypeError(f"load_last_iter is true or false, not {self._load_last_iter!r}")
        self._path = Path(path).expanduser()
        problem = path_problem(self._path)
        if problem:
            raise ValueError(problem)

    def __call__(self, engine: Any) -> None:
        """Load, unless the learner has begun."""
        if engine.train_iter == 0:
            load_learner(engine, self._path, load_last_iter=self._load_last_iter)
            engine.info(f"loaded {self._path}, train iteration {engine.train_iter}")


class SaveCkptHook(PeriodicHook):
    """Writes a checkpoint: by the iteration, or at the end one that says so."""

    usual_name = "save_ckpt"
    usual_priority = 20
    usual_freq = 10_000
    positions: ClassVar[list[str]] = ["after_iter", "after_run"]

    def act(self, engine: Any) -> None:
        """Write it; of a group, the first learner does."""
        engine.save_checkpoint(FINAL if self.position == "after_run" else None)


def _at_the_end(value: Any) -> LearnerHook | None:
    if value not in (True, False, None, "", 0, 1):
        raise TypeError(f"must be true or false, not {value!r}")
    return SaveCkptHook(position="after_run") if value else None


for _hook in (LoadCkptHook, SaveCkptHook):
    register_learner_hook(_hook.usual_name, _hook)
simplified_hook_mapping["load_ckpt_before_run"] = lambda path: (
    LoadCkptHook(ext_args={"load_path": path}) if path else None
)
simplified_hook_mapping["save_ckpt_after_iter"] = lambda freq: every(SaveCkptHook, freq)
simplified_hook_mapping["save_ckpt_after_run"] = _at_the_end
