"""A model of a run: what its parts cost, and so how fast it is with more ranks, and what holds it.

Each environment step takes `Costs.step_s` of a collector, each train iteration `Costs.update_s` of
every learner. Collectors share the steps, ranks share the host's cores. By what ties steps to
iterations there are three kinds of runs: each bound (collectors, learner, cores) is a line below.
"""

from __future__ import annotations

from hpcdi.config.schema import ExperimentConfig
from hpcdi.dataclass import dataclass
from hpcdi.run.sizes import blocks_per_s_of

_BLOCK_S, _REPORT_S = 60e-6, 50e-6
"""CPU seconds of rank 0 for a block and for a rank's report, see ``tools/bench_coordinator.py``."""
_REPORTS_PER_S = 1.0
_CROWDED = 0.03
"""Share of its time by which each further busy rank on its core slows a rank."""
_APART, _APART_IN_TURNS = 1.4, 1.2
"""Times as long as in one process a train iteration takes a learner: it hears of blocks, takes them
in and hands out policies meanwhile, and waits at times. The second where collectors wait meanwhile.
These three are measured with 3 to 24 ranks on 2 cores, see ``tools/bench_forecast.py``."""
_BUSY = 0.9
"""Share of a core from which on rank 0 is what holds a run."""


@dataclass(frozen=True)
class Costs:
    """What a run's parts cost, each on a core of its own.

    Attributes:
        step_s: seconds of a collector for an environment step: environment, acting, recording.
        step_cpu_s: those of them in which it computes; it sleeps while an environment does.
        update_s: seconds of a learner for a train iteration, with drawing the batch, and taking in
            the steps of that time.
        updates_per_step: train iterations for each environment step, where that is set.
    """

    step_s: float
    step_cpu_s: float
    update_s: float
    updates_per_step: float


@dataclass(frozen=True)
class Forecast:
    """How fast a run is.

    Attributes:
        steps_per_s: environment steps a second, of all collectors.
        updates_per_s: train iterations a second.
        coordinator: share of a core that rank 0 needs.
        held_by: what would have to be faster: "collectors", "the learner", "the cores", "rank 0",
            or, on-policy, "both in turns".
    """

    steps_per_s: float
    updates_per_s: float
    coordinator: float
    held_by: str


def forecast(
    config: ExperimentConfig,
    costs: Costs,
    row_bytes: int,
    *,
    collectors: int,
    learners: int,
    cores: float,
) -> Forecast:
    """Returns how fast a run is.

    Args:
        config: the experiment.
        costs: of its parts.
        row_bytes: of a stored transition.
        collectors: ranks that collect.
        learners: ranks that learn.
        cores: that all ranks have together; infinite: each has its own.
    """
    policy = config.policy
    in_turns = policy.on_policy and not policy.CORRECTS_STALENESS
    slower = 1 + _CROWDED * max(0.0, (1 + learners + collectors) / cores - 1)
    step_cpu_s = costs.step_cpu_s * slower
    step_s = costs.step_s - costs.step_cpu_s + step_cpu_s  # sleep takes as long as ever
    update_s = costs.update_s * (_APART_IN_TURNS if in_turns else _APART * slower)
    # what is learnt from, for a step, is shared out among the learners; updates of a round are not
    is_shared = policy.on_policy or policy.replay_ratio is not None
    updates_per_step = costs.updates_per_step / (learners if is_shared else 1)
    learning_s = updates_per_step * update_s  # of each learner, for a step
    cpu_s = step_cpu_s + learning_s * learners
    if in_turns:  # an iteration learns from what all collectors have made, and takes longer
        updates_per_step = costs.updates_per_step / collectors
        collecting_s = max(step_s / collectors, step_cpu_s / cores)
        seconds = {"both in turns": collecting_s + max(learning_s, learning_s * learners / cores)}
    elif policy.on_policy or policy.replay_ratio is not None or config.system.deterministic:
        seconds = {
            "collectors": step_s / collectors,
            "the learner": learning_s,
            "the cores": cpu_s / cores,
        }
    else:  # learners draw as fast as they can, and collectors have what cores they leave
        left = max(cores - learners, 0.05 * cores)
        seconds = {
            "collectors": step_s / collectors,
            "the cores": step_cpu_s / left,
        }
    held_by = max(seconds, key=lambda name: seconds[name])
    steps_per_s = 1.0 / max(seconds[held_by], 1e-12)
    is_free = "the learner" not in seconds and not in_turns
    updates_per_s = 1.0 / update_s if is_free else steps_per_s * updates_per_step
    busy = _coordinator(config, steps_per_s, row_bytes, collectors, learners)
    if busy > _BUSY:
        steps_per_s, held_by = steps_per_s * _BUSY / busy, "rank 0"
        updates_per_s *= 1.0 if is_free else _BUSY / busy
    return Forecast(steps_per_s, updates_per_s, min(busy, 1.0), held_by)


def _coordinator(
    config: ExperimentConfig, steps_per_s: float, row_bytes: int, collectors: int, learners: int
) -> float:
    """Share of a core that rank 0 needs."""
    blocks_per_s = collectors * blocks_per_s_of(config, steps_per_s / collectors, row_bytes)
    reports_per_s = _REPORTS_PER_S * (collectors + learners)
    return blocks_per_s * _BLOCK_S + reports_per_s * _REPORT_S
