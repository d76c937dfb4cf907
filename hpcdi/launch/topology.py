"""How many ranks an experiment needs, and how a host is shared: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.errors import LaunchError

COLLECTOR_NICENESS = 5
"""A third of the learner's weight, to the Linux scheduler."""


def learner_count(config: Any) -> int:
    """Learner ranks of an experiment."""
    return int(config.policy.learn.learner.learner_num)


def default_world_size(config: Any) -> int:
    """Ranks that an experiment asks for: the coordinator, its learners, its collectors."""
    collector = config.policy.collect.collector
    return 1 + learner_count(config) + int(collector.collector_max or collector.collector_num)


def working_collectors(world: int, config: Any) -> int:
    """Collectors that work at first; the others of a world wait until they are wanted."""
    collector, there = config.policy.collect.collector, world - 1 - learner_count(config)
    return there if collector.collector_max is None else min(there, int(collector.collector_num))


def check_world(world: int, config: Any) -> None:
    """See that a world is large enough.

    Raises:
        LaunchError: it has no rank left for a collector; or, on-policy, for one to each learner:
            a batch is a piece of every collector, and each learner must have one.
    """
    learners = learner_count(config)
    collectors = learners if config.policy.on_policy else 1
    working = working_collectors(world, config)
    if working < collectors <= world - 1 - learners:
        raise LaunchError(
            f"of {world - 1 - learners} collectors {working} would work at first "
            f"(policy.collect.collector.collector_num), but on-policy each of {learners} learners "
            "needs one"
        )
    needed = 1 + learners + collectors
    if world < needed:
        missing = needed - world
        raise LaunchError(
            f"a world of {world} rank{'s' if world != 1 else ''} is too small: {missing} missing. "
            f"This experiment needs 1 coordinator, {learners} learner{'s' * (learners > 1)} and at "
            f"least {collectors} collector{'s' * (collectors > 1)}"
            f"{', one to each learner on-policy' * (collectors > 1)}; start it with -n {needed} "
            f"or more (it asks for {default_world_size(config)})"
        )


def threads_of(
    role: str, cores: int, others: int = 0, learners: int = 1, *, is_bound: bool = False
) -> int:
    """Threads that a rank may compute with.

    A rank that is bound to cores of its own uses them all if it learns. On a shared host the
    learners divide what the other ranks leave, one core for each of them. Coordinators and
    collectors need one.

    Args:
        role: the rank's role.
        cores: cores that the rank may run on.
        others: ranks of this job on the host that do not learn.
        learners: ranks of this job on the host that learn.
        is_bound: whether those cores are this rank's alone.
    """
    if role != "learner":
        return 1
    return max(1, cores if is_bound else (cores - others) // learners)


def niceness_of(
    role: str, cores: int, others: int = 0, learners: int = 1, *, is_bound: bool = False
) -> int:
    """How far a rank steps back (Unix niceness) where the ranks of a host outnumber its cores.

    There the collectors take what the learners leave: new data are of use only as fast as they are
    learnt from. The arguments are those of `threads_of`.
    """
    is_crowded = learners > 0 and learners + others > cores + 1  # rank 0 needs little
    return COLLECTOR_NICENESS if role == "collector" and is_crowded and not is_bound else 0


def thread_variables(threads: int) -> Mapping[str, str]:
    """Environment variables that bound the threads of numerical libraries."""
    names = (
        "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    )  # fmt: skip
    return dict.fromkeys(names, str(threads))
