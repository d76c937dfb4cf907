"""Settings of the roles of a run: who sets tasks, who collects, who learns, who evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcdi.config.compat import ConfigDict
from hpcdi.config.fields import ComponentConfig, section, setting
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.types import MAIN
from hpcdi.utils.registry import load_object

DEFAULT_HOOKS: dict[str, Any] = {
    "load_ckpt_before_run": "",
    "log_show_after_iter": 100,
    "save_ckpt_after_iter": 10000,
    "save_ckpt_after_run": True,
}

# ---------------------------------------------------------------------------- who sets the tasks


@dataclass(frozen=True)
class CommanderConfig(ComponentConfig):
    """Settings that every commander has."""

    collector_task_space: int | None = setting(
        None, "collect and evaluation tasks at a time; empty: one for each collector", minimum=1
    )
    learner_task_space: int = setting(1, "learner tasks at a time", minimum=1, maximum=1)

    def share_learners(self, count: int) -> dict[str, int]:
        """Shares learner ranks among the players that learn; returns their numbers by name."""
        return {MAIN: count}


@dataclass(frozen=True)
class NaiveCommanderConfig(CommanderConfig):
    """Settings of the naive commander."""

    type: str = "naive"
    collector_task_space: int | None = setting(2, "collect tasks at a time", minimum=1)
    collector_task_count: int = setting(
        2, "collect tasks until the run has reached its goal", minimum=1
    )


@dataclass(frozen=True)
class SoloCommanderConfig(CommanderConfig):
    """Settings of the solo commander."""

    type: str = "solo"
    eval_interval: float = setting(
        60.0, "seconds between evaluations, where policy.eval.every is empty", above=0
    )
    max_env_step: float = setting(
        float("inf"), "environment steps after which the run ends", minimum=1
    )
    max_train_iter: float = setting(
        float("inf"), "train iterations after which the run ends", minimum=1
    )
    offline_iterations: float = setting(
        float("inf"),
        "with `data`: train iterations from these alone, after which the run collects, too; "
        "infinite: it never does; 0: from the start",
        minimum=0,
    )


# ------------------------------------------------------------------------------ who collects


@dataclass(frozen=True)
class ParallelCollectorConfig(ComponentConfig):
    """Settings that every parallel collector has."""

    collector_num: int = setting(2, "collectors that `hpcdi train` starts", minimum=1)
    collector_max: int | None = setting(
        None,
        "collector ranks to start; collector_num of them work at first, the others wait until "
        "one is lost or `hpcdi scale` asks for more; empty: collector_num",
        minimum=1,
    )
    update_policy_second: float = setting(
        3.0, "seconds between updates of the acting policy", minimum=0
    )

    def problems(self) -> Iterator[Problem]:
        """`collector_max` must not be below `collector_num`."""
        if self.collector_max is not None and self.collector_max < self.collector_num:
            message = f"must be at least collector_num, {self.collector_num}, or empty"
            yield Problem("collector_max", f"{message}, not {self.collector_max}")


@dataclass(frozen=True)
class ZerglingCollectorConfig(ParallelCollectorConfig):
    """Settings of the collector of a run over ranks."""

    type: str = "zergling"
    opponent_bytes: int = setting(
        1 << 28, "in battles: frozen policies that a collector keeps in memory", minimum=1
    )
    opponents_explore: bool = setting(
        True, "in battles: other players than the learner act as it does; false: as in evaluations"
    )


@dataclass(frozen=True)
class MarineCollectorConfig(ZerglingCollectorConfig):
    """The same, for environments of several players."""

    type: str = "marine"


@dataclass(frozen=True)
class CommConfig(ComponentConfig):
    """Settings of how a collector or a learner communicates: there are none."""

    type: str = "mpi_fs"


# ------------------------------------------------------------------------------- who learns


@dataclass(frozen=True)
class DataloaderConfig:
    """Settings of the threads that load samples, where batches hold functions that load them."""

    num_workers: int = setting(0, "threads that load samples; 0: the learner's own", minimum=0)


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
        False,
        "a batch is a list with one entry a task and the policy returns one log a task; "
        "scalars are named task0/..., by a log's task_id or else by its place",
    )
    ckpt_format: str = setting(
        "folder",
        "'pth.tar': beside each checkpoint, a file that torch.load reads, as DI-engine's",
        choices=("folder", "pth.tar"),
    )
    send_policy_freq: int = setting(
        1, "iterations between offers of the policy to collectors", minimum=1
    )
    keep_checkpoints: int = setting(
        5,
        "newest checkpoints that are kept, of those by iteration; ckpt_best and ckpt_final stay",
        minimum=1,
    )
    hook: dict[str, Any] = setting(
        DEFAULT_HOOKS,
        "hooks over these ones; 0, false or '' is none",
        merges=True,
    )

    def __post_init__(self) -> None:
        """Let a learner of DI-engine's form read its hooks' settings as attributes."""
        object.__setattr__(self, "hook", ConfigDict(self.hook))

    def problems(self) -> Iterator[Problem]:
        """Yields what is wrong with the hooks, which only their classes know."""
        changed = {k: value for k, value in self.hook.items() if value != DEFAULT_HOOKS.get(k)}
        if changed:
            yield from load_object("hpcdi.roles.learner.callbacks:hook_problems")(changed)


# -------------------------------------------------------------- who collects and evaluates alone


@dataclass(frozen=True)
class SerialCollectorConfig(ComponentConfig):
    """Settings that all serial collectors share."""

    deepcopy_obs: bool = setting(
        False, "copy observations, for environments that write each over the one before"
    )
    transform_obs: bool = setting(False, "give the policy float32 tensors, not arrays")
    collect_print_freq: int = setting(
        100, "train iterations between two reports of collecting", minimum=1
    )


@dataclass(frozen=True)
class SampleCollectorConfig(SerialCollectorConfig):
    """Settings of the collector of samples."""

    type: str = "sample"


@dataclass(frozen=True)
class BattleSampleCollectorConfig(SerialCollectorConfig):
    """Settings of the collector of a battle's samples."""

    type: str = "sample_1v1"


@dataclass(frozen=True)
class EvaluatorConfig(ComponentConfig):
    """Settings that all serial evaluators share."""

    eval_freq: int = setting(50, "train iterations from one evaluation to the next", minimum=1)
    stop_value: Any = setting(
        float("inf"), "a result that ends the run, as IMetric.gt takes it; infinite: none does"
    )


@dataclass(frozen=True)
class ReturnEvaluatorConfig(EvaluatorConfig):
    """Settings of evaluators by returns."""

    n_episode: int | None = setting(
        None, "episodes of an evaluation; empty: each call says how many", minimum=1
    )
    stop_value: float = setting(float("inf"), "mean return that ends the run")


@dataclass(frozen=True)
class RenderConfig:
    """Settings of films of evaluations."""

    render_freq: int = setting(
        -1, "train iterations, or environment steps, from one film to the next; -1: none"
    )
    mode: str = setting("train_iter", "what render_freq counts", choices=("train_iter", "envstep"))
    fps: int = setting(20, "frames a second, were every step kept", minimum=1, maximum=50)
    max_size: int = setting(320, "pixels; larger pictures are scaled down", minimum=1)
    memory_mb: int = setting(
        256, "MiB of pictures; beyond that, every second one is dropped", minimum=1
    )


@dataclass(frozen=True)
class InteractionEvaluatorConfig(ReturnEvaluatorConfig):
    """Settings of an evaluation by interaction."""

    type: str = "interaction"
    eval_freq: int = setting(1000, "train iterations from one evaluation to the next", minimum=1)
    render: RenderConfig = section(RenderConfig, "when it is filmed, and how")
    figure_path: str | None = setting(
        None, "folder for films; empty: the experiment's, where there is a TensorBoard writer"
    )


@dataclass(frozen=True)
class BattleEvaluatorConfig(ReturnEvaluatorConfig):
    """Settings of an evaluation by battle."""

    type: str = "battle_interaction"
