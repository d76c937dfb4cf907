"""What a rank is given: its random numbers, and what stands in its context by default."""

from __future__ import annotations

import itertools

import numpy as np

from hpcdi.comm.messages import CollectTask
from hpcdi.roles.context import ROLES, role_seed, seed_at_start, task_seed
from hpcdi.types import Lockstep


def words(sequence: np.random.SeedSequence) -> tuple[int, ...]:
    return tuple(map(int, sequence.generate_state(4)))


def test_the_same_rank_of_the_same_run_gets_the_same_numbers() -> None:
    assert words(role_seed(3, "collector", 2)) == words(role_seed(3, "collector", 2, restart=0))


def test_no_two_ranks_nor_restarts_nor_environments_share_numbers() -> None:
    places = itertools.product((0, 1, 2**70), ROLES, range(4), range(3))
    parents = [role_seed(*place) for place in places]
    children = [child for parent in parents for child in parent.spawn(3)]
    states = [words(sequence) for sequence in [*parents, *children]]
    assert len(set(states)) == len(states)


def test_a_rank_of_a_resumed_run_knows_the_seeds_of_the_start() -> None:
    first, third = (role_seed(3, "learner", 2, restart) for restart in (0, 2))
    assert words(seed_at_start(third)) == words(seed_at_start(first)) == words(first)


def task(round_: int, *, evaluates: bool = False, start: int = 0) -> CollectTask:
    lockstep = Lockstep(round_, 0, begins_anew=True, start=start)
    return CollectTask("task", eval_flag=evaluates, setting={}, lockstep=lockstep)


def test_in_lockstep_numbers_follow_from_rank_round_and_kind_alone() -> None:
    ranks = [role_seed(3, "collector", rank) for rank in (2, 3)]
    tasks = [task(0), task(7), task(7, evaluates=True), task(8, evaluates=True)]
    first = [[words(task_seed(rank, each)) for each in tasks] for rank in ranks]
    again = [[words(task_seed(rank, each)) for each in tasks] for rank in ranks]
    assert first == again
    (one, other) = first
    assert one[2:] == other[2:], "whoever evaluates"
    assert len({*one, *other}) == 6
    starts = [words(task_seed(rank, task(7, start=start))) for rank in ranks for start in range(3)]
    assert len({*starts, *one, *other}) == 6 + 2 * 2, "a start that repeats no other has its own"


def test_else_each_collector_that_is_made_gets_others() -> None:
    rank = role_seed(3, "collector", 2)
    plain = CollectTask("task", eval_flag=False, setting={})
    assert words(task_seed(rank, plain)) != words(task_seed(rank, plain))
