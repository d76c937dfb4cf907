"""What every `Link` must do: one class of tests, run against each implementation.

A test is a program that every rank of a world runs with its own link; `play` runs it on all of
them, as threads or as MPI processes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from hpcdi.comm.codec import INLINE_BYTES
from hpcdi.comm.link import Link
from hpcdi.comm.messages import CollectSetting, LearnResult, Message, PolicyUpdate
from hpcdi.errors import CommError
from hpcdi.types import Array

Program: TypeAlias = Callable[[Link], None]
Play: TypeAlias = Callable[[Program], None]

RANKS = 4
LIMIT_S = 40.0  # nothing here takes long; a wait that lasts so long has failed
FOREVER_S = 3600.0  # a wait that must be ended by something else
LARGE = 8 << 20
MIXED_SIZES = (
    0, LARGE, 1, INLINE_BYTES, INLINE_BYTES + 1, 7, 1 << 20, 0, 3 * INLINE_BYTES, 5, 2 << 20, 64,
)  # fmt: skip


def pattern(rank: int, number: int, size: int) -> Array:
    """Bytes that only this message of this rank holds."""
    return np.random.default_rng((rank, number)).integers(0, 256, size, dtype=np.uint8)


def take(link: Link, count: int) -> list[tuple[int, Message]]:
    """The next `count` messages; fails where they do not come."""
    deadline = time.monotonic() + LIMIT_S
    taken: list[tuple[int, Message]] = []
    while len(taken) < count:
        assert time.monotonic() < deadline, (
            f"rank {link.rank}: {len(taken)} of {count} messages came within {LIMIT_S} s"
        )
        taken += link.receive(0.5)
    assert len(taken) == count, f"rank {link.rank}: {len(taken)} messages came, not {count}"
    return taken


def take_policy(link: Link) -> tuple[int, PolicyUpdate]:
    """The next message, which must be a policy."""
    [(sender, message)] = take(link, 1)
    assert isinstance(message, PolicyUpdate)
    return sender, message


def flush(link: Link) -> None:
    """Wait until what was posted has left."""
    deadline = time.monotonic() + LIMIT_S
    while link.unsent():
        assert time.monotonic() < deadline, f"rank {link.rank}: a message never left"
        link.receive(0.0)


class LinkContract:
    """Tests of the contract; a subclass says what `play` is."""

    @pytest.fixture
    def play(self) -> Play:
        """Runs a program on every rank of a new world of `RANKS`, and waits for its end."""
        raise NotImplementedError

    def test_rank_and_size(self, play: Play) -> None:
        def program(link: Link) -> None:
            assert link.size == RANKS
            assert link.rank in range(RANKS)

        play(program)

    def test_a_sender_s_messages_keep_their_order(self, play: Play) -> None:
        """Small ones must not overtake large ones, whose bytes travel apart."""

        def program(link: Link) -> None:
            if link.rank:
                for number, size in enumerate(MIXED_SIZES):
                    link.send(0, PolicyUpdate(number, pattern(link.rank, number, size)))
                flush(link)
                return
            came: dict[int, int] = defaultdict(int)
            for sender, message in take(link, len(MIXED_SIZES) * (RANKS - 1)):
                assert isinstance(message, PolicyUpdate)
                number = came[sender]
                assert message.version == number, f"rank {sender}'s messages changed places"
                expected = pattern(sender, number, MIXED_SIZES[number])
                assert np.array_equal(message.data, expected)
                came[sender] += 1
            assert came == dict.fromkeys(range(1, RANKS), len(MIXED_SIZES))

        play(program)

    def test_many_messages_from_everybody_to_everybody(self, play: Play) -> None:
        """None is lost, none comes twice."""
        count = 200

        def program(link: Link) -> None:
            others = [rank for rank in range(RANKS) if rank != link.rank]
            for number in range(count):
                for rank in others:
                    link.send(rank, LearnResult(f"{link.rank} to {rank}", number))
            came = defaultdict(list)
            for sender, message in take(link, count * len(others)):
                assert isinstance(message, LearnResult)
                assert message.task_id == f"{sender} to {link.rank}"
                came[sender].append(message.train_iter)
            assert came == {rank: list(range(count)) for rank in others}
            flush(link)

        play(program)

    def test_sends_never_wait_for_the_receiver(self, play: Play) -> None:
        """Two ranks send each other more than any buffer holds before either receives."""

        def program(link: Link) -> None:
            other = link.rank ^ 1
            link.send(other, PolicyUpdate(0, pattern(link.rank, 0, LARGE)))
            link.send(other, PolicyUpdate(1, pattern(link.rank, 1, LARGE)))
            for number, (sender, message) in enumerate(take(link, 2)):
                assert isinstance(message, PolicyUpdate)
                assert (sender, message.version) == (other, number)
                assert np.array_equal(message.data, pattern(other, number, LARGE))
            flush(link)

        play(program)

    def test_receive_gives_up_after_its_time(self, play: Play) -> None:
        def program(link: Link) -> None:
            began = time.monotonic()
            assert link.receive(0.0) == []
            assert link.receive(0.05) == []
            assert time.monotonic() - began >= 0.05

        play(program)

    def test_wake_ends_a_wait_once(self, play: Play) -> None:
        def program(link: Link) -> None:
            link.wake.set()
            assert link.receive(FOREVER_S) == []
            assert not link.wake.is_set()
            began = time.monotonic()
            assert link.receive(0.05) == []
            assert time.monotonic() - began >= 0.05

        play(program)

    def test_another_thread_may_wake(self, play: Play) -> None:
        def program(link: Link) -> None:
            timer = threading.Timer(0.02, link.wake.set)
            timer.start()
            assert link.receive(FOREVER_S) == []
            timer.join()

        play(program)

    @pytest.mark.parametrize("size", [0, LARGE])
    def test_a_message_ends_a_wait(self, play: Play, size: int) -> None:
        """Also one that comes long after the wait began, and one whose bytes follow it."""

        def program(link: Link) -> None:
            if link.rank:
                time.sleep(0.05)  # rank 0 naps at its longest by then
                link.send(0, PolicyUpdate(0, pattern(link.rank, 0, size)))
                flush(link)
                return
            senders: list[int] = []
            while len(senders) < RANKS - 1:
                senders += [sender for sender, _ in link.receive(FOREVER_S)]
            assert sorted(senders) == [1, 2, 3]

        play(program)

    @pytest.mark.parametrize("size", [1, INLINE_BYTES + 1, LARGE])
    def test_what_arrives_is_the_receiver_s_own(self, play: Play, size: int) -> None:
        """It shares no memory with what was sent, and may be written to."""

        def program(link: Link) -> None:
            sent = pattern(link.rank, 0, size)
            link.send(link.rank, PolicyUpdate(0, sent))
            sender, message = take_policy(link)
            assert sender == link.rank
            assert not np.shares_memory(message.data, sent)
            message.data[...] = 0
            assert np.array_equal(sent, pattern(link.rank, 0, size))
            flush(link)

        play(program)

    def test_nothing_is_unsent_when_everything_has_left(self, play: Play) -> None:
        def program(link: Link) -> None:
            assert link.unsent() == []
            link.send(link.rank ^ 1, PolicyUpdate(0, pattern(link.rank, 0, LARGE)))
            take(link, 1)
            flush(link)
            assert link.unsent() == []

        play(program)

    def test_a_rank_that_is_not_there_is_refused(self, play: Play) -> None:
        def program(link: Link) -> None:
            for rank in (-1, RANKS):
                with pytest.raises(ValueError, match=rf"no rank {rank} in a world of {RANKS}"):
                    link.send(rank, LearnResult("t", 0))
            assert link.unsent() == []

        play(program)

    def test_what_cannot_be_sent_is_refused_and_does_no_harm(self, play: Play) -> None:
        def program(link: Link) -> None:
            other = link.rank ^ 1
            with pytest.raises(CommError, match="CollectSetting"):
                link.send(other, CollectSetting("t", {"eps": lambda: 0.1}))
            link.send(other, LearnResult("t", 7))
            assert take(link, 1) == [(other, LearnResult("t", 7))]
            flush(link)

        play(program)
