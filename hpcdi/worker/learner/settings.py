"""Settings of the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcdi.config.fields import ComponentConfig, section, setting
from hpcdi.errors import Problem
from hpcdi.worker.learner import (  # noqa: F401  (they register the built-in hooks)
    ckpt_hooks,
    hooks,
    profiling,
)
from hpcdi.worker.learner.learner_hook import hook_problems

DEFAULT_HOOKS: dict[str, Any] = {
    "load_ckpt_before_run": "",
    "log_show_after_iter": 100,
    "save_ckpt_after_iter": 10000,
    "save_ckpt_after_run": True,
}


@dataclass(frozen=True)
class DataloaderConfig:
    """How samples that are still to be loaded (functions, that is) become samples."""

    num_workers: int = setting(0, "threads that load samples; 0: the learner's own", minimum=0)


@dataclass(frozen=True)
class LearnerConfig(ComponentConfig):
    """Settings of the training loop."""

    type: str = "base"
    learner_num: int = setting(1, "learner ranks", minimum=1)
    train_iterations: int = setting(int(1e9), "iterations until the run ends", minimum=1)
    dataloader: DataloaderConfig = section(DataloaderConfig, "samples that are to be loaded")
    pin_memory: bool = setting(
        True, "copy batches to the GPU ahead of time, by page-locked memory; without one: nothing"
    )
    log_policy: bool = setting(True, "log what the policy says of itself, at the start")
    only_monitor_rank0: bool = setting(
        True, "of a group of learners only the first keeps and shows a log"
    )
    is_multitask_pipeline: bool = setting(
        False, "a batch is a list, one of each task, and the policy gives a log for each: their "
        "scalars are kept apart as task0/..., by a log's task_id or else by its place",
    )  # fmt: skip
    send_policy_freq: int = setting(
        1, "iterations between offers of the policy to collectors", minimum=1
    )
    keep_checkpoints: int = setting(
        5, "newest checkpoints that are kept, of those by iteration; ckpt_best and ckpt_final stay",
        minimum=1,
    )  # fmt: skip
    hook: dict[str, Any] = setting(
        DEFAULT_HOOKS, "hooks over these ones, see learner_hook.py; 0, false or '' is none"
    )

    def __post_init__(self) -> None:
        """Put what is given over the defaults; what is switched off has its key's own type."""
        given = {
            key: value or type(DEFAULT_HOOKS[key])() if key in DEFAULT_HOOKS else value
            for key, value in self.hook.items()
        }
        object.__setattr__(self, "hook", {**DEFAULT_HOOKS, **given})

    def problems(self) -> Iterator[Problem]:
        """What is wrong with the hooks."""
        return iter(hook_problems(self.hook))
