"""Settings of the training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdi.config.fields import ComponentConfig, section, setting
from hpcdi.errors import Problem

DEFAULT_HOOKS: dict[str, Any] = {
    "load_ckpt_before_run": "",
    "log_show_after_iter": 100,
    "save_ckpt_after_iter": 10000,
    "save_ckpt_after_run": True,
}


@dataclass(frozen=True)
class DataloaderConfig:
    """How batches of loading functions become batches of samples."""

    num_workers: int = setting(0, "threads that load samples; 0: the learner's own", minimum=0)

    @classmethod
    def renewed(cls, mapping: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """The mapping without ``chunk_size``, which the predecessor knows, and a note on it."""
        kept = {key: value for key, value in mapping.items() if key != "chunk_size"}
        ignored = len(kept) < len(mapping)
        return kept, "chunk_size is ignored: samples are loaded one by one" if ignored else ""


@dataclass(frozen=True)
class LearnerConfig(ComponentConfig):
    """Settings of the training loop."""

    type: str = "base"
    learner_num: int = setting(1, "learner ranks", minimum=1)
    train_iterations: int = setting(int(1e9), "iterations until the run ends", minimum=1)
    dataloader: DataloaderConfig = section(DataloaderConfig, "samples that are still to be loaded")
    pin_memory: bool = setting(
        True, "copy batches to the GPU ahead of time through page-locked memory; no effect on CPUs"
    )
    log_policy: bool = setting(True, "log the policy's description at the start")
    only_monitor_rank0: bool = setting(
        True, "of a group of learners only the first keeps and shows a log"
    )
    is_multitask_pipeline: bool = setting(
        False, "a batch is a list with one entry a task and the policy returns one log a task; "
        "scalars are named task0/..., by a log's task_id or else by its place",
    )  # fmt: skip
    ckpt_format: str = setting(
        "folder", "'pth.tar': beside each checkpoint, a file that torch.load reads, as DI-engine's",
        choices=("folder", "pth.tar"),
    )  # fmt: skip
    send_policy_freq: int = setting(
        1, "iterations between offers of the policy to collectors", minimum=1
    )
    keep_checkpoints: int = setting(
        5, "newest checkpoints that are kept, of those by iteration; ckpt_best and ckpt_final stay",
        minimum=1,
    )  # fmt: skip
    hook: dict[str, Any] = setting(DEFAULT_HOOKS, "hooks over these ones; 0, false or '' is none")

    def __post_init__(self) -> None:
        """Merges the given hooks over the defaults; a hook that is off keeps its key's type."""
        given = {
            key: value or type(DEFAULT_HOOKS[key])() if key in DEFAULT_HOOKS else value
            for key, value in self.hook.items()
        }
        object.__setattr__(self, "hook", {**DEFAULT_HOOKS, **given})

    def problems(self) -> Iterator[Problem]:
        """Yields what is wrong with the hooks."""
        from hpcdi.roles.learner.callbacks import hook_problems

        return iter(hook_problems(self.hook))
