"""A learner's policies on their way out: the table of requests, and the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcdi.comm.messages import PolicyRequest, PolicyUpdate
from hpcdi.roles.learner import publisher
from hpcdi.roles.learner.publisher import PolicyFile, PolicyPublisher
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, read_policy

NEVER_S = float("inf")


class World:
    """An outlet, and the collectors that it answers."""

    def __init__(self, root: Path, every_s: float = NEVER_S) -> None:
        self.layout = RunLayout(root)
        self.answers: list[tuple[int, PolicyUpdate]] = []
        self.file = PolicyFile(self.layout.latest_policy, every_s)
        self.publisher = PolicyPublisher(lambda *answer: self.answers.append(answer), self.file)
        self.file._written = (-1, 0.0) if every_s == NEVER_S else self.file._written

    def publish(self, version: int) -> None:
        self.publisher.publish({"weight": torch.full((2, 3), float(version))}, version)

    def ask(self, rank: int, have: int, *, at_once: bool = False) -> None:
        self.publisher.request(rank, PolicyRequest(have, at_once))

    def take(self) -> list[tuple[int, int, bool]]:
        """Rank, version and whether it holds a policy, of each answer since the last call."""
        taken, self.answers = self.answers, []
        for _, update in taken:
            if update.data.size:
                tensors = PolicyImage(update.version, update.data.tobytes()).state_dict()
                assert tensors["weight"].tolist() == [[update.version] * 3] * 2
        return [(rank, update.version, bool(update.data.size)) for rank, update in taken]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("at_once", [False, True])
def test_before_the_first_policy_every_request_waits_for_it(world: World, at_once: bool) -> None:
    world.ask(2, -1, at_once=at_once)
    world.ask(3, -1)
    assert world.take() == []
    world.publish(0)
    assert sorted(world.take()) == [(2, 0, True), (3, 0, True)]
    world.publish(1)
    assert world.take() == [], "one request, one answer"


@pytest.mark.parametrize(
    ("published", "train_iter", "have", "at_once", "answer"),
    [
        (5, 5, 3, False, (5, True)),  # a newer one is here
        (5, 9, 3, False, (5, True)),  # newer than the asker's is enough
        (5, 5, 5, False, None),  # waits for the next one
        (5, 9, 5, False, None),
        (5, 5, 3, True, (5, True)),  # the present one is here
        (5, 9, 3, True, None),  # the one here is not the present one any more
        (5, 5, 5, True, (5, False)),  # the asker has the present one: an empty answer
        (5, 9, 5, True, None),  # the present one has not been taken yet
        (5, 5, 6, True, (5, False)),  # the asker has a newer one from elsewhere
    ],
)
def test_what_a_request_gets(
    world: World, published: int, train_iter: int, have: int, at_once: bool,
    answer: tuple[int, bool] | None,
) -> None:  # fmt: skip
    world.publish(published)
    world.publisher.is_wanted(train_iter)
    world.ask(2, have, at_once=at_once)
    assert world.take() == ([] if answer is None else [(2, *answer)])
    world.publish(10)
    assert world.take() == ([(2, 10, True)] if answer is None else [])


def test_a_request_at_once_takes_the_place_of_one_that_waits(world: World) -> None:
    world.publish(5)
    world.ask(2, 5)
    world.ask(2, 5, at_once=True)
    assert world.take() == [(2, 5, False)]
    world.publish(6)
    assert world.take() == []


def test_two_requests_of_one_rank_that_wait_get_one_answer(world: World) -> None:
    world.publish(5)
    world.publisher.is_wanted(7)
    world.ask(2, 5)
    world.ask(2, 5, at_once=True)
    world.publish(7)
    assert world.take() == [(2, 7, True)]


def test_a_policy_is_wanted_where_it_is_newer_and_somebody_waits(world: World) -> None:
    assert not world.publisher.is_wanted(0)
    world.ask(2, -1)
    assert world.publisher.is_wanted(0)
    world.publish(0)
    assert not world.publisher.is_wanted(1)
    world.ask(2, 0)
    assert not world.publisher.is_wanted(0), "it is the one that was published"
    assert world.publisher.is_wanted(1)


def test_what_is_published_does_not_change_with_the_network(world: World) -> None:
    weight = torch.zeros(2, 3)
    world.publisher.publish({"weight": weight}, 0)
    weight += 1
    world.ask(2, -1)
    ((_, update),) = world.answers
    image = PolicyImage(0, update.data.tobytes())
    assert image.state_dict()["weight"].tolist() == [[0.0] * 3] * 2
    assert (world.publisher.published, update.data.dtype) == (1, np.uint8)


# --------------------------------------------------------------------------------------- the file


class Clock:
    """Stands where it is put."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(publisher, "time", made)
    return made


def test_the_file_is_written_when_due(tmp_path: Path, clock: Clock) -> None:
    world = World(tmp_path, every_s=30.0)
    assert world.publisher.is_wanted(0), "nobody waits, but there is no file yet"
    world.publish(0)
    assert read_policy(world.layout.latest_policy).version == 0
    clock.now += 29.0
    assert not world.publisher.is_wanted(5)
    world.publish(5)
    assert read_policy(world.layout.latest_policy).version == 0
    clock.now += 1.0
    assert world.publisher.is_wanted(6)
    world.publish(6)
    assert read_policy(world.layout.latest_policy).version == 6


def test_one_version_is_written_once(tmp_path: Path, clock: Clock) -> None:
    layout = RunLayout(tmp_path)
    file = PolicyFile(layout.latest_policy, 30.0)
    image = PolicyImage.of({"weight": torch.zeros(1)}, 3)
    file.write(image)
    layout.latest_policy.unlink()
    clock.now += 100.0
    file.write(image)
    file.write(None)
    assert not layout.latest_policy.exists()
    file.write(PolicyImage.of({"weight": torch.zeros(1)}, 4))
    assert read_policy(layout.latest_policy).version == 4


def test_the_end_of_the_run_writes_the_last_policy(tmp_path: Path, clock: Clock) -> None:
    world = World(tmp_path, every_s=30.0)
    world.publisher.write_file()
    assert not world.layout.latest_policy.exists(), "there is none yet"
    world.publish(0)
    world.publish(1)
    world.publisher.write_file()
    assert read_policy(world.layout.latest_policy).version == 1
