"""Policies that one collector of each host hands on to the others there."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
import torch

from hpcdi.comm.messages import PolicyRequest, PolicyUpdate
from hpcdi.config.compiled import compile_config
from hpcdi.roles.collector import channels
from hpcdi.roles.collector.channels import PolicyRelay, PolicySubscriber
from hpcdi.roles.learner.publisher import PolicyPublisher
from hpcdi.run.placement import RankPlace, relay_for
from hpcdi.types import MAIN

LEARNER = 1


def places(hosts: dict[str, int]) -> list[RankPlace]:
    """Rank 0 and a learner on the first host, and so many collectors on each."""
    first = next(iter(hosts))
    found = [RankPlace(first, rank=0, role="coordinator"), RankPlace(first, rank=1, role="learner")]
    for host, count in hosts.items():
        ranks = range(len(found), len(found) + count)
        found += [RankPlace(host, rank=rank, role="collector") for rank in ranks]
    return found


def config_of(above: int, **system: Any) -> Any:
    return compile_config(
        {
            "env": {"env_id": "CartPole-v1"},
            "system": {"relay_policies_above": above, **system},
        }
    ).config


class World:
    """A learner and collectors of some hosts, with the messages between them."""

    def __init__(self, hosts: dict[str, int]) -> None:
        self.messages: deque[tuple[int, int, PolicyRequest | PolicyUpdate]] = deque()
        self.learner = PolicyPublisher(self._sender(LEARNER), None)
        placement = places(hosts)
        self.asked = Counter[int]()
        self.dead: set[int] = set()
        self.collectors: dict[int, PolicySubscriber] = {}
        self.relays: dict[int, PolicyRelay] = {}
        for place in placement[2:]:
            send = self._sender(place.rank)
            relay = relay_for(place.rank, placement, config_of(1))
            one = PolicySubscriber(send, [LEARNER], 0.0, relay=relay)
            self.collectors[place.rank] = one
            self.relays[place.rank] = PolicyRelay(one, send, MAIN)

    def _sender(self, sender: int) -> Any:
        def send(rank: int, message: PolicyRequest | PolicyUpdate) -> None:
            self.messages.append((sender, rank, message))

        return send

    def publish(self, version: int) -> None:
        self.learner.publish({"w": torch.full((3,), float(version))}, version)
        self.deliver()

    def ask(self, *ranks: int) -> None:
        """These collectors look for a newer policy."""
        for rank in ranks or [rank for rank in self.collectors if rank not in self.dead]:
            self.collectors[rank].newer_than(self.version(rank))
        self.deliver()

    def version(self, rank: int) -> int:
        image = self.collectors[rank].image
        return -1 if image is None else image.version

    def versions(self) -> set[int]:
        return {self.version(rank) for rank in self.collectors if rank not in self.dead}

    def deliver(self) -> None:
        while self.messages:
            sender, rank, message = self.messages.popleft()
            if rank in self.dead:
                continue
            match message:
                case PolicyRequest() if rank == LEARNER:
                    self.asked[sender] += 1
                    self.learner.request(sender, message)
                case PolicyRequest():
                    self.relays[rank].request(sender, message)
                case PolicyUpdate():
                    self.collectors[rank].take(sender, message)
                    self.relays[rank].look()

    def kill(self, rank: int) -> None:
        self.dead.add(rank)
        self.learner.forget(rank)
        for other in self.collectors.keys() - self.dead:
            self.collectors[other].lose(rank)
            self.relays[other].forget(rank)
        self.deliver()


def test_the_first_collector_of_a_host_is_its_relay_where_there_are_many() -> None:
    placement = places({"a": 2, "b": 3})
    few, many = config_of(5), config_of(4)
    assert [relay_for(place.rank, placement, few) for place in placement] == [None] * 7
    found = [relay_for(place.rank, placement, many) for place in placement]
    assert found == [None, None, None, 2, None, 4, 4]
    in_rounds = config_of(4, deterministic=True)
    assert [relay_for(place.rank, placement, in_rounds) for place in placement] == [None] * 7


def test_a_learner_answers_once_for_each_host() -> None:
    world = World({"a": 4, "b": 4, "c": 1})
    for version in (1, 2, 3):
        world.ask()
        world.publish(version)
        assert world.versions() == {version}
    assert world.asked.keys() == {2, 6, 10}
    assert max(world.asked.values()) <= 4


def test_a_relay_asks_for_the_others_while_it_needs_nothing_itself() -> None:
    world = World({"a": 3, "b": 1})
    world.ask(3, 4)
    world.publish(1)
    assert [world.version(rank) for rank in (2, 3, 4)] == [1, 1, 1]
    world.ask(4)  # which has the relay's
    world.publish(2)
    assert [world.version(rank) for rank in (2, 3, 4)] == [2, 1, 2]
    world.ask(3)  # the relay has it
    assert world.version(3) == 2


def test_the_others_of_a_host_whose_relay_dies_ask_the_learner() -> None:
    world = World({"a": 3, "b": 2})
    world.ask()
    world.kill(2)
    world.publish(1)
    assert world.versions() == {1}
    assert world.asked.keys() == {2, 3, 4, 5}
    world.kill(4)
    world.ask()
    world.publish(2)
    assert world.versions() == {2}


def test_the_learner_is_asked_in_the_place_of_a_relay_that_is_silent_until_it_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have died unnoticed."""
    world = World({"a": 2, "b": 1})
    world.dead.add(2)
    world.ask(3)
    world.ask(3)
    assert world.asked[3] == 0
    monkeypatch.setattr(channels, "_RELAY_PATIENCE_S", 0.0)
    world.ask(3)
    world.publish(1)
    assert (world.version(3), world.asked[3]) == (1, 1)
    monkeypatch.undo()
    world.ask(3)
    assert world.asked[3] == 2, "at once"
    world.collectors[3].take(2, PolicyUpdate(3, image_bytes(b"x")))
    assert world.version(3) == 3
    world.publish(4)
    world.ask(3)
    assert world.asked[3] == 2, "the relay again"


def test_who_needs_the_newest_asks_the_learner_and_takes_no_other_answer_for_it() -> None:
    world = World({"a": 2, "b": 1})
    world.publish(1)
    world.ask()
    world.ask(3)  # waits at the relay
    assert world.collectors[3].newest() is None  # asked the learner
    asked = world.messages.pop()
    assert asked == (3, LEARNER, PolicyRequest(1, at_once=True))
    world.learner.publish({"w": torch.zeros(3)}, 2)
    world.deliver()
    assert world.version(3) == 2, "by the relay"
    assert world.collectors[3].newest() is None, "which may not have the newest"
    world.learner.publish({"w": torch.zeros(3)}, 3)
    world.messages.append(asked)
    world.deliver()
    image = world.collectors[3].newest()
    assert image is not None
    assert image.version == 3
    world.collectors[3].take(2, PolicyUpdate(2, image_bytes(image.data)))
    assert world.version(3) == 3, "an old one that comes late is no step back"


def test_a_relay_that_needs_the_newest_waits_for_no_answer_to_what_it_asks_for_the_others() -> None:
    """Runs on-policy ended at their last evaluation, which waited for it for ever."""
    world = World({"a": 3})
    world.ask()
    world.publish(1)
    world.ask(3, 4)  # wait at the relay for a version that never comes
    relay = world.collectors[2]
    assert relay.newest() is None
    world.deliver()  # the learner has no newer one
    image = relay.newest()
    assert image is not None
    assert image.version == 1
    world.relays[2].look()  # as the relay does now and then
    world.deliver()
    world.publish(2)
    assert world.versions() == {2}, "the others were not forgotten"


def image_bytes(data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("player", ["main", "challenger"])
def test_policies_of_each_group_are_told_apart(player: str) -> None:
    sent: list[tuple[int, Any]] = []
    policies = PolicySubscriber(
        lambda rank, message: sent.append((rank, message)), [LEARNER], 0.0, relay=2, player=player
    )
    policies.newer_than(-1)
    assert sent == [(2, PolicyRequest(-1, player=player))]
    relay = PolicyRelay(policies, lambda rank, update: sent.append((rank, update)), player)
    policies.take(2, PolicyUpdate(4, image_bytes(b"x")))
    relay.request(3, PolicyRequest(0, player=player))
    (rank, update) = sent[-1]
    assert (rank, update.version, update.player) == (3, 4, player)
