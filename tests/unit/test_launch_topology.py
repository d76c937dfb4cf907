"""How many ranks an experiment needs, and how they share a host: pure functions."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.experiments import experiment
from hpcdi import worker as _worker  # noqa: F401  (registers the built-in components)
from hpcdi.errors import EXIT_USAGE, LaunchError
from hpcdi.launch.entry import _share_of_host
from hpcdi.launch.topology import (
    COLLECTOR_NICENESS,
    check_world,
    default_world_size,
    learner_count,
    niceness_of,
    thread_variables,
    threads_of,
)
from hpcdi.policy import create as _policies  # noqa: F401  (registers)


@pytest.mark.parametrize(
    ("world", "learners", "missing", "needed"),
    [(2, 1, 1, 3), (1, 1, 2, 3), (0, 1, 3, 3), (-4, 1, 7, 3), (3, 2, 1, 4), (1, 3, 4, 5)],
)
def test_a_world_too_small_says_what_is_missing(
    world: int, learners: int, missing: int, needed: int
) -> None:
    config = experiment(learners, collectors=6)
    with pytest.raises(LaunchError) as caught:
        check_world(world, config)
    message = str(caught.value)
    assert f"a world of {world} rank{'s' if world != 1 else ''} is too small" in message
    assert f"{missing} missing" in message
    assert f"start it with -n {needed} or more (it asks for {1 + learners + 6})" in message
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("learners", "collectors", "size"), [(1, 1, 3), (1, 2, 4), (2, 6, 9), (4, 64, 69)]
)
def test_an_experiment_asks_for_a_rank_each(learners: int, collectors: int, size: int) -> None:
    config = experiment(learners, collectors)
    assert default_world_size(config) == size
    assert learner_count(config) == learners


@pytest.mark.parametrize(
    ("role", "cores", "others", "learners", "is_bound", "threads"),
    [
        ("learner", 16, 3, 1, False, 13),  # 3 cores for the 3 others
        ("learner", 16, 3, 1, True, 16),
        ("learner", 16, 4, 3, False, 4),  # three learners divide what is left
        ("learner", 4, 0, 1, False, 4),
        ("learner", 4, 3, 1, False, 1),
        ("learner", 2, 8, 1, False, 1),
        ("learner", 1, 0, 1, True, 1),
        ("coordinator", 16, 3, 1, True, 1),
        ("collector", 16, 3, 1, False, 1),
    ],
)
def test_threads(
    role: str, cores: int, others: int, learners: int, is_bound: bool, threads: int
) -> None:
    assert threads_of(role, cores, others, learners, is_bound=is_bound) == threads


@pytest.mark.parametrize(
    ("role", "cores", "others", "learners", "is_bound", "steps_back"),
    [
        ("collector", 2, 3, 1, False, True),
        ("learner", 2, 3, 1, False, False),
        ("coordinator", 2, 3, 1, False, False),
        ("collector", 2, 3, 1, True, False),  # cores of its own
        ("collector", 3, 3, 1, False, False),  # rank 0 needs little
        ("collector", 2, 8, 0, False, False),  # nobody here learns
    ],
)
def test_collectors_step_back_where_it_is_crowded(
    role: str, cores: int, others: int, learners: int, is_bound: bool, steps_back: bool
) -> None:
    niceness = niceness_of(role, cores, others, learners, is_bound=is_bound)
    assert niceness == (COLLECTOR_NICENESS if steps_back else 0)


def test_threads_are_told_to_every_library() -> None:
    assert thread_variables(3) == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
        "NUMEXPR_NUM_THREADS": "3",
    }


def place(role: str, host: str, *cores: int) -> dict[str, Any]:
    return {"role": role, "host": host, "cores": list(cores)}


@pytest.mark.parametrize(
    ("placement", "threads"),
    [
        # all share the cores of one host: the learner takes what the others leave
        ([("coordinator", "a", *range(8)), ("learner", "a", *range(8))], 7),
        # each bound to cores of its own
        ([("coordinator", "a", 0), ("learner", "a", 1, 2, 3), ("collector", "a", 4)], 3),
        # one neighbour overlaps: the cores are not the learner's alone
        ([("coordinator", "a", 0, 1), ("learner", "a", 1, 2, 3), ("collector", "a", 4)], 1),
        # the others are on another host: same numbers, other cores
        ([("coordinator", "a", 0, 1), ("learner", "b", 0, 1), ("collector", "a", 0, 1)], 2),
    ],
)
def test_a_learner_computes_with_the_cores_that_are_left(
    placement: list[tuple[Any, ...]], threads: int
) -> None:
    places = [place(*who) for who in placement]

    def told(p: dict[str, Any]) -> int:
        return threads_of(p["role"], **_share_of_host(p, places))

    assert [told(p) for p in places if p["role"] == "learner"] == [threads]
    assert all(told(p) == 1 for p in places if p["role"] != "learner")
