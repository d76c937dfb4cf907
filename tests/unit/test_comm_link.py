"""The link between threads of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fakes.link_contract import RANKS, LinkContract, Play, Program
from hpcdi.comm.link import LocalWorld
from hpcdi.comm.messages import LearnResult, PolicyUpdate


class TestLocalLink(LinkContract):
    @pytest.fixture
    def play(self) -> Play:
        def run(program: Program) -> None:
            world = LocalWorld(RANKS)
            with ThreadPoolExecutor(RANKS) as pool:
                list(pool.map(program, map(world.link, range(RANKS))))

        return run


def test_a_rank_has_one_link() -> None:
    world = LocalWorld(2)
    assert world.link(1) is world.link(1)
    assert [world.link(rank).rank for rank in range(2)] == [0, 1]


def test_everything_that_waits_is_received_at_once() -> None:
    world = LocalWorld(2)
    sender, receiver = world.link(0), world.link(1)
    messages = [LearnResult("t", number) for number in range(5)]
    for message in messages:
        sender.send(1, message)
    assert receiver.receive(0.0) == [(0, message) for message in messages]
    assert receiver.receive(0.0) == []


def test_what_was_sent_may_be_changed_afterwards() -> None:
    """Delivery is immediate, as `unsent` says."""
    world = LocalWorld(2)
    data = np.zeros(100_000, dtype=np.uint8)
    world.link(0).send(1, PolicyUpdate(0, data))
    assert world.link(0).unsent() == []
    data[...] = 1
    [(_, message)] = world.link(1).receive(0.0)
    assert isinstance(message, PolicyUpdate)
    assert not message.data.any()


def test_a_world_that_does_not_encode_hands_messages_over() -> None:
    world = LocalWorld(2, encodes=False)
    messages = [PolicyUpdate(version, np.zeros(8, dtype=np.uint8)) for version in range(3)]
    for message in messages:
        world.link(0).send(1, message)
    arrived = world.link(1).receive(0.0)
    assert [sender for sender, _ in arrived] == [0] * 3
    assert all(came is sent for (_, came), sent in zip(arrived, messages, strict=True))
