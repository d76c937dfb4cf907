"""The typed model of an experiment, and the rules over several of its parts.

Components (environment, policy, replay buffer ...) declare their settings, and the rules over them,
in other modules; see `hpcdi.config.fields`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hpcdi.config.env import EnvConfig, OverlappingConfig
from hpcdi.config.fields import ComponentConfig, component, section, sections, setting
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.config.policy import PolicyConfig, ReplayPolicyConfig
from hpcdi.config.replay import AdvancedBufferConfig
from hpcdi.config.roles import InteractionEvaluatorConfig, SoloCommanderConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.types import Interval
from hpcdi.utils.registry import (
    BUFFER_REGISTRY,
    COMM_COLLECTOR_REGISTRY,
    COMM_LEARNER_REGISTRY,
    ENV_REGISTRY,
    POLICY_REGISTRY,
    SERIAL_COLLECTOR_REGISTRY,
    SERIAL_EVALUATOR_REGISTRY,
    load_object,
)

MINARI = "minari:"
"""What an entry of `data` begins with that is the name of a dataset of Minari."""
_ON_FAULT = ("continue", "abort")
ALLOW_FAULTS = "HPCDI_ALLOW_FAULTS"
"""Environment variable: if it is set, the section `fault` is accepted."""
FAULT_KINDS = ("kill", "hang", "raise", "env_hang", "torn_shard", "enospc", "exit")
FAULT_ROLES = ("coordinator", "learner", "collector", "serial")


@dataclass(frozen=True)
class CoordinatorConfig:
    """Time-outs and intervals of rank 0."""

    collector_task_timeout: float = setting(
        30.0,
        "seconds a collector may take to end a task that rank 0 has closed; then another is asked",
        above=0,
    )
    learner_task_timeout: float = setting(
        600.0, "seconds a learner may take from its task to its first demand for data", above=0
    )
    start_timeout_s: float = setting(
        300.0,
        "seconds that ranks may take to start MPI, and then to their first message; after that "
        "the missing ones are named and the job ends (exit code 85)",
        above=0,
    )
    stop_timeout_s: float = setting(
        20.0, "seconds that ranks may take to shut down before the job is aborted", above=0
    )
    progress_interval: float = setting(
        10.0,
        "seconds between progress lines in a log (a terminal has one moving line)",
        above=0,
    )


@dataclass(frozen=True)
class SurvivalConfig:
    """Faults that a run survives, if the MPI library allows it (Open MPI 5: see `hpcdi doctor`)."""

    on_collector_death: str = setting(
        "continue", "when a collector dies: continue with the others, or abort", choices=_ON_FAULT
    )
    on_learner_death: str = setting(
        "continue",
        "when a learner dies: continue with the others (not on GPUs), or abort",
        choices=_ON_FAULT,
    )
    worker_timeout_s: float = setting(
        900.0,
        "seconds that a rank may make no progress (one environment step, one update); then its "
        "stacks are printed and it is killed; one that is frozen is killed by others 15 s later",
        minimum=5.0,
    )
    on_worker_error: str = setting(
        "abort",
        "when a collector or learner raises an error: abort; or continue, as after a death",
        choices=_ON_FAULT,
    )


@dataclass(frozen=True)
class StorageConfig:
    """Settings of shards: the path of collected data to the shared file system."""

    block_bytes: int = setting(
        1 << 22, "a block is sealed when its rows reach this size", minimum=4096
    )
    seal_seconds: float = setting(
        0.75,
        "a block is sealed at this age even if it is not full",
        above=0,
    )
    file_bytes: int = setting(
        1 << 26,
        "a collector appends its blocks to one shard until that has this size, or for an hour",
        minimum=4096,
    )
    fsync: bool = setting(True, "force blocks to disk before they are announced")
    keep_data: bool = setting(
        True,
        "keep every shard; false: remove those whose blocks the replay buffer has dropped and a "
        "snapshot has counted; what is lent by memory and learnt from once (on-policy) is not "
        "written at all",
    )
    disk_patience_s: float = setting(
        300.0,
        "seconds that collectors wait for space on a full disk before the run ends",
        minimum=0,
    )
    policy_file_s: float = setting(
        30.0, "seconds between policy files (late joiners, evaluation, resume)", above=0
    )


@dataclass(frozen=True)
class TensorBoardConfig:
    """What TensorBoard shows of a run."""

    tags: str = setting(
        "plain",
        "names of curves; plain: about ten first, each once, over environment steps; ding: "
        "DI-engine's, each over train iterations and over environment steps",
        choices=("plain", "ding"),
    )


@dataclass(frozen=True)
class GuestsConfig:
    """Collectors that `hpcdi join` lends to a running run: they are no ranks of its job."""

    max_policy_lag: int | None = setting(
        None,
        "iterations that a guest's policy may be behind the learner: blocks with older steps "
        "count, but are not learnt from; empty: any",
        minimum=0,
    )
    policy_s: float = setting(
        5.0,
        "seconds between policy files while guests are there, which act by them; without guests "
        "it is system.storage.policy_file_s",
        above=0,
    )
    timeout_s: float = setting(
        30.0, "seconds without a heart-beat after which a guest is lost", minimum=5.0
    )


@dataclass(frozen=True)
class SystemConfig:
    """Settings of the machine; none of them changes what is learnt, but `deterministic`."""

    coordinator: CoordinatorConfig = section(CoordinatorConfig, "rank 0")
    storage: StorageConfig = section(StorageConfig, "shards and policy files")
    survival: SurvivalConfig = section(SurvivalConfig, "faults of ranks")
    tensorboard: TensorBoardConfig = section(TensorBoardConfig, "curves")
    loggers: tuple[str, ...] = setting(
        ("tensorboard",),
        "where curves go while the run goes on: tensorboard and csv (always: tb/ and curves.csv, "
        "which other commands read), and any of wandb (offline unless WANDB_MODE is set) and "
        "mlflow (or to MLFLOW_TRACKING_URI), into loggers/",
    )
    guests: GuestsConfig = section(GuestsConfig, "collectors of other jobs, see hpcdi join")
    transport: str = setting(
        "memory",
        "how blocks reach the learners: by shared memory, where all ranks are on one node, and "
        "shards are written behind (on several nodes: as files); by MPI, also across nodes, and "
        "shards are written behind; files, shards on the shared file system, as all deterministic "
        "runs",
        choices=("memory", "mpi", "files"),
    )
    relay_policies_above: int = setting(
        64,
        "collectors above which one of each host asks the learners for policies, and hands them to "
        "the others there",
        minimum=1,
    )
    snapshot_s: float = setting(
        60.0, "seconds between snapshots of the run, from which --resume continues", above=0
    )
    auto_resume: bool | None = setting(
        None,
        "continue the run that --run-dir holds instead of refusing it; null: only inside Slurm",
    )
    max_restarts_without_progress: int = setting(
        3, "restarts in a row that may end without a newer snapshot", minimum=0
    )
    keep_snapshots: int = setting(2, "newest snapshots to keep", minimum=1)
    deterministic: bool = setting(
        False, "reproduce the same numbers: work in rounds, each step waits for the one before it"
    )
    snapshot_rounds: int = setting(
        100,
        "deterministic runs: rounds between snapshots (episodes start anew at each)",
        minimum=1,
    )
    import_path: tuple[str, ...] = setting(
        (), "folders that modules of yours are imported from; that of the YAML file is added"
    )
    prefetch: int = setting(16, "batches kept ready at a learner", minimum=1, maximum=1024)
    comm_learner: ComponentConfig = component(
        COMM_LEARNER_REGISTRY, "mpi_fs", "how a learner communicates"
    )
    comm_collector: ComponentConfig = component(
        COMM_COLLECTOR_REGISTRY, "mpi_fs", "how a collector communicates"
    )


@dataclass(frozen=True)
class SlurmConfig:
    """Resources and set-up of the batch job of `hpcdi submit`; other commands do not read it."""

    partition: str = setting("", "partition, or several: a,b; empty: the site's default")
    account: str = setting("", "account that pays; empty: the user's default")
    qos: str = setting("", "quality of service; empty: the default")
    constraint: str = setting("", "features that nodes must have, such as a100|h100")
    time: str = setting("01:00:00", "time limit of one job; in YAML write it in quotes")
    nodes: int = setting(1, "nodes", minimum=1)
    ntasks_per_node: int = setting(
        0, "ranks per node; 0: the experiment's ranks divided by the nodes", minimum=0
    )
    cpus_per_task: int = setting(1, "cores per rank", minimum=1)
    gpus_per_node: int = setting(0, "GPUs per node, one for each learner", minimum=0)
    mem: str = setting("", "memory per node, such as 64G; empty: the site's default")
    launcher: str = setting("srun", "what starts the ranks in the job", choices=("srun", "mpirun"))
    mpi: str = setting(
        "", "PMI plugin of srun; empty: pmi2 where this Python has MPICH's wheel, else pmix"
    )
    signal_delay_s: int = setting(
        120,
        "seconds before the time limit at which the batch system signals the ranks, which then "
        "take a snapshot; more if the last snapshot of a resumed run took longer",
        minimum=30,
    )
    modules: tuple[str, ...] = setting((), "modules to load before Python starts")
    setup: tuple[str, ...] = setting((), "lines of bash to run before Python starts")
    container: str = setting(
        "", "prefix of the Python command, such as: apptainer exec --nv hpcdi.sif"
    )
    options: tuple[str, ...] = setting((), "more options of sbatch, such as --exclusive")


@dataclass(frozen=True)
class FaultConfig:
    """A fault injected on purpose, for tests; see `hpcdi/roles/fault.py`."""

    kind: str = setting(
        "kill",
        "kill: SIGKILL to the rank; raise: an error; hang: its computing thread blocks; "
        "env_hang: one of its environments blocks; torn_shard: the next block loses its second "
        "half; enospc: its writes fail as on a full disk; exit: it calls _exit(3) in C",
        choices=FAULT_KINDS,
    )
    rank: int | None = setting(None, "where: one rank, or", minimum=0)
    role: str | None = setting(None, "every rank of a role", choices=(None, *FAULT_ROLES))
    at_step: int | None = setting(
        None,
        "when: at this number of a collector's env steps, a learner's train iterations, the "
        "coordinator's seconds, a serial run's env steps; or",
        minimum=0,
    )
    after_s: float | None = setting(None, "this many seconds after the rank started", minimum=0)
    every: float | None = setting(None, "repeat after this many more of them", above=0)
    seconds: float | None = setting(
        None, "duration of a hang or of a full disk; null: for ever", above=0
    )
    restart: int = setting(
        0, "in which part of the run: 0 the first, 1 after the first --resume, and so on", minimum=0
    )

    def problems(self) -> Iterator[Problem]:
        """Check that rank or role, and the time, are given once, and fit the kind."""
        if (self.rank is None) == (self.role is None):
            yield Problem("rank", "name either a rank or a role")
        if (self.at_step is None) == (self.after_s is None):
            yield Problem("at_step", "name either at_step or after_s")
        of_collectors = self.kind in ("env_hang", "torn_shard")
        if of_collectors and self.role not in (None, "collector"):
            yield Problem("role", f"{self.kind!r} is for collectors, not for a {self.role}")


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment: the checked, frozen form of its YAML file."""

    exp_name: str = setting("default_experiment", "names the folder runs/<exp_name>")
    seed: int = setting(0, "seed of every random number in the run", minimum=0, maximum=2**63 - 1)
    env: EnvConfig = component(ENV_REGISTRY, "gymnasium", "the environment")
    policy: PolicyConfig = component(
        POLICY_REGISTRY, "dqn", "the algorithm, its data and its buffers"
    )
    data: tuple[str, ...] = setting(
        (),
        "what fills the replay buffer before learning begins: folders of earlier runs, and "
        "datasets of Minari as minari:NAME; policy.other.commander.offline_iterations says when "
        "the run collects, too",
    )
    callbacks: tuple[dict[str, Any], ...] = setting(
        (),
        "what a run calls: {type: early_stop | histograms | 'my_module:Class', arguments ...}; see "
        "hpcdi/roles/callbacks.py",
    )
    system: SystemConfig = section(SystemConfig, "the machine")
    slurm: SlurmConfig = section(SlurmConfig, "the batch job of `hpcdi submit`")
    fault: tuple[FaultConfig, ...] = sections(
        FaultConfig, "injected faults; need CI or HPCDI_ALLOW_FAULTS to be set"
    )


_LOGGERS = ("tensorboard", "wandb", "mlflow", "csv")
_COMMANDER, _BUFFER = "policy.other.commander", "policy.other.replay_buffer"


def check(config: ExperimentConfig) -> list[Problem]:
    """Check the rules of every run; returns the problems."""
    policy = config.policy
    problems = []
    if not config.exp_name or "/" in config.exp_name or config.exp_name.startswith("."):
        message = f"must be a plain folder name, not {config.exp_name!r}"
        problems.append(Problem("exp_name", message))
    buffer = policy.other.replay_buffer
    if not isinstance(buffer, AdvancedBufferConfig):
        message = (
            f"training needs an 'advanced' buffer, not {buffer.type!r}; policy.priority: false "
            "makes it sample uniformly"
        )
        problems.append(Problem(f"{_BUFFER}.type", message))
    unknown = [name for name in config.system.loggers if name not in _LOGGERS]
    if unknown:
        message = f"must be some of {', '.join(_LOGGERS)}, not {', '.join(map(repr, unknown))}"
        problems.append(Problem("system.loggers", message))
    if not config.env.manager.auto_reset:
        message = "a run's environments begin their next episode by themselves; leave it out"
        problems.append(Problem("env.manager.auto_reset", message))
    problems += _check_data(config)
    if config.callbacks:
        problems += load_object("hpcdi.roles.callbacks:problems_of")(config.callbacks)
    if policy.on_policy and policy.random_collect_size:
        message = "fills a replay buffer; an on-policy run learns only from its own policy"
        problems.append(Problem("policy.random_collect_size", message))
    return [*problems, *_check_buffer(policy)]


def _check_buffer(policy: PolicyConfig, learners: int = 1) -> Iterator[Problem]:
    """Check that a learner's share of the replay buffer holds a batch, and some blocks.

    Args:
        policy: its settings.
        learners: that share the buffer.
    """
    if policy.on_policy:  # it is made as large as rollouts need
        return
    buffer, batch, ratio = policy.other.replay_buffer, policy.learn.batch_size, 1.0
    if isinstance(buffer, AdvancedBufferConfig):
        ratio = max(ratio, buffer.thruput_controller.sample_min_limit_ratio)
    size, are_several = buffer.replay_buffer_size, learners > 1
    share = size // learners
    if batch * ratio > share:
        items = f" x {ratio:g} (sample_min_limit_ratio)" * (ratio > 1)
        shared = f" that {learners} learners share" * are_several
        message = (
            f"a batch of {batch}{items} cannot be sampled from a replay buffer of {size}{shared} "
            f"({_BUFFER}.replay_buffer_size)"
        )
        yield Problem("policy.learn.batch_size", message)
    least = 4 * (policy.collect.n_sample + 1 + policy.stack_len)
    if share < least:
        rows = "policy.collect.n_sample + 1" + " + model.memory_len" * bool(policy.stack_len)
        each = f" for each of {learners} learners" * are_several
        message = f"must be at least {learners * least}, 4 x ({rows}){each}, not {size}"
        yield Problem(f"{_BUFFER}.replay_buffer_size", message)


def offline_iterations(config: ExperimentConfig) -> float:
    """Returns the train iterations that a run learns from given data alone; 0: none."""
    commander = config.policy.other.commander
    if not config.data or not isinstance(commander, SoloCommanderConfig):
        return 0
    return commander.offline_iterations


def check_parts(policy: PolicyConfig) -> Iterator[Problem]:
    """Refuses, in a run, parts of the user's own code in the place of which it has its own."""
    for path, part, registry in (
        ("other.replay_buffer", policy.other.replay_buffer, BUFFER_REGISTRY),
        ("collect.serial_collector", policy.collect.serial_collector, SERIAL_COLLECTOR_REGISTRY),
        ("eval.evaluator", policy.eval.evaluator, SERIAL_EVALUATOR_REGISTRY),
    ):
        if not registry.is_built_in(part.type):
            yield Problem(
                f"policy.{path}.type",
                f"{part.type!r} would never be made: a run has its own {registry.kind}; use it in "
                "a program of your own, with hpcdi.worker",
            )


def _check_data(config: ExperimentConfig) -> list[Problem]:
    """Check that an experiment can learn from the data that it is given, or needs none."""
    policy, commander = config.policy, config.policy.other.commander
    if not config.data:
        problems = []
        if policy.IMITATES:
            why = f"{policy.type} learns from data alone: name runs, or datasets as minari:NAME"
            problems.append(Problem("data", why))
        if math.isfinite(getattr(commander, "offline_iterations", math.inf)):
            why = "is for `data`, and there are none"
            problems.append(Problem(f"{_COMMANDER}.offline_iterations", why))
        return problems
    if policy.on_policy:
        return [Problem("data", f"{policy.type} learns from its present policy's data alone")]
    if not isinstance(policy, ReplayPolicyConfig) or policy.samples_sequences:
        return [Problem("data", f"{policy.type} needs more than transitions, or knows no columns")]
    if not isinstance(commander, SoloCommanderConfig):
        return [Problem("data", "a league learns from its own games")]
    return [*_check_offline(policy, commander), *_check_keeps_data(policy)]


def _check_offline(policy: ReplayPolicyConfig, commander: SoloCommanderConfig) -> Iterator[Problem]:
    """Check that a run which learns offline ends, and is evaluated by what goes on."""
    every = Interval.of(policy.eval.every)
    if math.isfinite(commander.offline_iterations):
        if policy.IMITATES:
            why = f"{policy.type} never learns from what it collects; leave this out"
            yield Problem(f"{_COMMANDER}.offline_iterations", why)
        return
    if math.isinf(commander.max_train_iter):
        why = "must be set: a run that collects nothing ends after so many iterations"
        yield Problem(f"{_COMMANDER}.max_train_iter", why)
    if every is not None and every.unit == "env_steps":
        why = f"is {policy.eval.every}, and this run makes none: say '500 iterations'"
        yield Problem("policy.eval.every", why)


def _check_keeps_data(policy: ReplayPolicyConfig) -> Iterator[Problem]:
    """Check that no setting would drop given data, or wait for others."""
    buffer = policy.other.replay_buffer
    if isinstance(buffer, AdvancedBufferConfig):
        if math.isfinite(buffer.max_staleness):
            yield Problem(f"{_BUFFER}.max_staleness", "would drop `data`, which are older")
        if buffer.thruput_controller.push_sample_rate_limit.is_set:
            why = "is for data that come little by little; beside `data` use learn.replay_ratio"
            yield Problem(f"{_BUFFER}.thruput_controller.push_sample_rate_limit", why)
    if policy.normalize.reward:
        why = "is by returns that are followed while collecting, and `data` do not have them"
        yield Problem("policy.normalize.reward", why)


def check_faults(config: ExperimentConfig, variables: Mapping[str, str]) -> list[Problem]:
    """Check that the environment's `variables` allow faults to be injected."""
    if not config.fault or variables.get("CI") or variables.get(ALLOW_FAULTS):
        return []
    message = (
        "kills or disturbs ranks on purpose, for tests; set the environment variable "
        f"{ALLOW_FAULTS}=1 to allow it, or say fault=[]"
    )
    return [Problem("fault", message)]


def learners_of(config: ExperimentConfig) -> dict[str, int]:
    """Returns the number of ranks of each group of learners: the first is the main one.

    A league may have several, one for each player that learns; every other run has the main one.
    """
    policy = config.policy
    return policy.other.commander.share_learners(policy.learn.learner.learner_num)


def blocks_are_stored(config: ExperimentConfig) -> bool:
    """Returns whether a block that is lent by memory or messages is written to a shard, too.

    It is, to be kept, or to be drawn again by a resumed run. On-policy blocks are read once.
    """
    return config.system.storage.keep_data or not config.policy.on_policy


def communicator_of(group: str) -> str:
    """Returns the name of the communicator of a group of learners."""
    return f"learners of {group}"


def why_no_guests(config: ExperimentConfig) -> str:
    """Returns why a run over ranks takes no guests; empty: it takes them."""
    policy = config.policy
    if policy.on_policy:
        return (
            f"{policy.type} learns on-policy, from rollouts of its newest policy alone; those of a "
            "guest are older"
        )
    if config.system.deterministic:
        return "it is deterministic, and guests come and go at any time"
    if isinstance(config.env, MpiEnvConfig):
        return "its environments are ranks of its job, and a guest has none"
    return ""


def check_over_ranks(config: ExperimentConfig) -> list[Problem]:
    """Check the rules of a run over several ranks (`hpcdi train`); returns the problems."""
    problems = [
        Problem("fault.role", "a run over several ranks has no rank 'serial'")
        for fault in config.fault
        if fault.role == "serial"
    ]
    count, groups = config.policy.learn.learner.learner_num, learners_of(config)
    if count != sum(groups.values()) or not all(groups.values()):
        shared = ", ".join(f"{name} {learners}" for name, learners in groups.items())
        needed = sum(max(learners, 1) for learners in groups.values())
        message = (
            f"is {count}, but the players that learn need {needed}: each has learners of its own "
            f"({shared}; see policy.other.commander.league)"
        )
        problems.append(Problem("policy.learn.learner.learner_num", message))
    problems += _check_buffer(config.policy, max(groups.values()))
    return problems + _check_repeats(config)


def _check_repeats(config: ExperimentConfig) -> list[Problem]:
    """Check that a deterministic run can repeat itself."""
    problems: list[Problem] = []
    if config.system.deterministic:
        problems += _check_deterministic(config.policy)
        if len(learners_of(config)) > 1:
            why = "a deterministic run trains one player (system.deterministic)"
            problems.append(Problem(f"{_COMMANDER}.league.players", why))
        manager = config.env.manager
        if isinstance(manager, OverlappingConfig) and manager.wait_num is not None:
            why = "which environments are waited for depends on the clock (system.deterministic)"
            problems.append(Problem("env.manager.wait_num", why))
    return problems


def _check_deterministic(policy: PolicyConfig) -> list[Problem]:
    """Check that a deterministic run uses nothing that depends on the clock."""
    limit = policy.buffer.thruput_controller.push_sample_rate_limit
    every = Interval.of(policy.eval.every)
    collectors = policy.collect.collector.collector_num
    space = policy.other.commander.collector_task_space
    rules = (
        (policy.on_policy, "policy.on_policy", "on-policy learning cannot be deterministic yet"),
        (
            policy.collect.collector.collector_max is not None,
            "policy.collect.collector.collector_max",
            "a deterministic run has a fixed number of collectors",
        ),
        (
            not isinstance(policy.other.commander, SoloCommanderConfig),
            f"{_COMMANDER}.type",
            "a deterministic run needs 'solo', or a commander that has its settings",
        ),
        (
            space is not None and space < collectors,
            f"{_COMMANDER}.collector_task_space",
            f"is {space}, and in a deterministic run all {collectors} collectors work at a time; "
            "leave it empty",
        ),
        (
            limit.is_set,
            f"{_BUFFER}.thruput_controller.push_sample_rate_limit",
            "depends on the clock; a deterministic run uses policy.learn.update_per_collect",
        ),
        (
            every is not None and every.unit == "seconds",
            "policy.eval.every",
            "a deterministic run evaluates every so many env_steps or iterations",
        ),
    )
    return [Problem(path, f"{why} (system.deterministic)") for broken, path, why in rules if broken]


def check_serial(config: ExperimentConfig) -> list[Problem]:
    """Check the rules of a run in one process (`hpcdi serial`); returns the problems."""
    problems = [
        Problem("fault", f"a run in one process is rank 0, role 'serial', without {fault.kind!r}")
        for fault in config.fault
        if fault.role not in (None, "serial")
        or fault.rank not in (None, 0)
        or fault.kind in ("env_hang", "torn_shard")
    ]
    if isinstance(config.env, MpiEnvConfig):
        problems.append(Problem("env.type", "an MPI program needs ranks of its own: `hpcdi train`"))
    collector, evaluator = config.policy.collect.serial_collector, config.policy.eval.evaluator
    for path, part, supported in (
        ("collect.serial_collector", collector, "'sample' or 'sample_1v1'"),
        ("eval.evaluator", evaluator, "'interaction' or 'battle_interaction'"),
    ):
        if part.type in ("episode", "episode_1v1", "metric"):
            message = f"`hpcdi serial` supports {supported}; {part.type!r} is for your own code"
            problems.append(Problem(f"policy.{path}.type", message))
    if isinstance(evaluator, InteractionEvaluatorConfig) and evaluator.render.render_freq > 0:
        message = "a run films no evaluations; hpcdi eval RUN --video films its policy"
        problems.append(Problem("policy.eval.evaluator.render.render_freq", message))
    return problems + _check_repeats(config)
