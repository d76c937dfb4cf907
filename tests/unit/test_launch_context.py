"""What a rank is given: its random numbers, and what stands in its context by default."""

from __future__ import annotations

import itertools

import numpy as np

from hpcdi.worker.context import ROLES, role_seed


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
