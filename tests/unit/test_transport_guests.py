"""Messages of guests in files, the links at both ends, and what rank 0 makes of a guest."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fakes.failing_files import FailingFiles
from hpcdi.comm.link import LocalWorld
from hpcdi.comm.messages import (
    CloseTask,
    CollectPause,
    Goodbye,
    Heartbeat,
    LearnResult,
    Leave,
    Message,
    PolicyRequest,
    PolicyUpdate,
    RankLost,
    Stop,
    StopRequest,
    WorkerReady,
)
from hpcdi.errors import EXIT_REQUEUE, CommError
from hpcdi.store.atomic import pretend_full
from hpcdi.store.layout import RunLayout
from hpcdi.transport import guests, mailbox
from hpcdi.transport.guests import GuestHost, GuestLink, send_away
from hpcdi.transport.mailbox import Inbox, Outbox
from hpcdi.types import FIRST_GUEST

GUEST = FIRST_GUEST + 1
READY = WorkerReady("collector", "elsewhere", 7)
TIMEOUT_S = 5.0

# ------------------------------------------------------------------------------------------ mailbox


def sent(folder: Path, *messages: Message) -> Outbox:
    outbox = Outbox(folder, "box")
    for message in messages:
        outbox.post(message)
    assert outbox.flush()
    return outbox


def test_messages_come_whole_once_and_in_order(tmp_path: Path) -> None:
    inbox, messages = Inbox(tmp_path, "box"), [LearnResult("t", n) for n in range(4)]
    assert inbox.take() == []
    outbox = sent(tmp_path, *messages[:3])
    assert inbox.take() == messages[:3]
    outbox.post(messages[3])
    assert outbox.flush()
    assert [inbox.take(), inbox.take()] == [messages[3:], []]


def test_a_message_that_is_cut_is_waited_for(tmp_path: Path) -> None:
    sent(tmp_path, LearnResult("t", 1), LearnResult("t", 2))
    file = tmp_path / "box.000001"
    whole = file.read_bytes()
    taken: list[Message] = []
    inbox = Inbox(tmp_path, "box")
    for size in (5, 40, len(whole) - 1, len(whole)):
        file.write_bytes(whole[:size])
        taken += inbox.take()
        assert len(taken) == 2 * (size == len(whole)) or len(taken) == 1
    assert taken == [LearnResult("t", 1), LearnResult("t", 2)]


def test_zeros_in_the_place_of_a_message_are_waited_for(tmp_path: Path) -> None:
    """NFS may show how long a file is before what is in it: that was taken for the file's end."""
    outbox, inbox = sent(tmp_path, LearnResult("t", 1)), Inbox(tmp_path, "box")
    file = tmp_path / "box.000001"
    before = file.read_bytes()
    outbox.post(LearnResult("t", 2))
    assert outbox.flush()
    whole = file.read_bytes()
    file.write_bytes(before.ljust(len(whole), b"\0"))
    assert inbox.take() == [LearnResult("t", 1)]
    file.write_bytes(before + bytes(8) + whole[len(before) + 8 :])  # of its size alone
    assert inbox.take() == []
    file.write_bytes(whole)
    assert inbox.take() == [LearnResult("t", 2)]


@pytest.mark.parametrize("place", [0, 9, -1])
def test_a_flipped_bit_is_damage(tmp_path: Path, place: int) -> None:
    sent(tmp_path, LearnResult("t", 1))
    file = tmp_path / "box.000001"
    content = bytearray(file.read_bytes())
    content[7 if place == 0 else place] ^= 0x40  # the size's highest byte, the checksum, the end
    file.write_bytes(content)
    with pytest.raises(CommError, match=r"damaged|checksum is wrong"):
        Inbox(tmp_path, "box").take()


def test_a_pipe_in_its_place_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "box.000001")
    assert Inbox(tmp_path, "box").take() == []
    outbox = Outbox(tmp_path, "box")
    outbox.post(Heartbeat())
    assert not outbox.flush()


def test_large_files_are_changed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_FILE_BYTES", 200)
    messages = [LearnResult("t", n) for n in range(20)]
    sent(tmp_path, *messages)
    assert len(list(tmp_path.iterdir())) > 3
    assert Inbox(tmp_path, "box").take() == messages
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_delays_a_message(tmp_path: Path) -> None:
    outbox = sent(tmp_path, LearnResult("t", 1))
    pretend_full(60.0)
    try:
        outbox.post(LearnResult("t", 2))
        assert not outbox.flush()
    finally:
        pretend_full(0.0)
    assert outbox.flush()
    assert Inbox(tmp_path, "box").take() == [LearnResult("t", 1), LearnResult("t", 2)]


@pytest.mark.parametrize(("file_bytes", "fails"), [(1 << 20, 1), (1, 1), (1, 2)])
def test_what_a_file_system_says_to_have_lost_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int, fails: int
) -> None:
    """NFS says so as a file is closed, also where all of it is there: a block counted twice."""
    monkeypatch.setattr(mailbox, "_FILE_BYTES", file_bytes)
    close, calls = os.close, list[int]()

    def closed(descriptor: int) -> None:
        close(descriptor)
        calls.append(descriptor)
        if len(calls) == fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    outbox, inbox, taken = Outbox(tmp_path, "box"), Inbox(tmp_path, "box"), list[Message]()
    for number in range(3):
        calls.clear()
        outbox.post(LearnResult("t", number))
        with monkeypatch.context() as failing:
            failing.setattr(os, "close", closed)
            assert not outbox.flush()
        taken += inbox.take()
        while not outbox.flush():
            pass
        taken += inbox.take()
    assert taken == [LearnResult("t", number) for number in range(3)]


# -------------------------------------------------------------------------------------------- links


class Ends:
    """Both ends; time at rank 0's is the test's own."""

    def __init__(self, layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout, self.policies = layout, list[PolicyUpdate]()
        self.host = GuestHost(LocalWorld(3).link(0), layout, TIMEOUT_S)
        self.guest = GuestLink(layout, GUEST, 3, self._answer)
        self.now = time.monotonic()
        monkeypatch.setattr(guests.time, "monotonic", lambda: self.now)

    def _answer(self, rank: int, request: PolicyRequest) -> PolicyUpdate | None:
        assert rank == 1
        newer = [policy for policy in self.policies if policy.version > request.have_version]
        return newer[-1] if newer else None

    def later(self, seconds: float = 1.5) -> None:
        self.now += seconds

    def at_host(self) -> list[tuple[int, Message]]:
        self.later()
        return self.host.receive(0.0)

    def at_guest(self) -> list[tuple[int, Message]]:
        self.later()
        return self.guest.receive(0.0)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


@pytest.fixture
def ends(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    both = Ends(layout, monkeypatch)
    yield both
    both.host.close()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes with which a guest has ended itself at once."""
    codes: list[int] = []
    monkeypatch.setattr(guests, "abort_job", codes.append)
    return codes


def test_a_guest_and_rank_0_talk(ends: Ends) -> None:
    ends.guest.send(0, Heartbeat())  # nobody hears it before it is ready
    ends.guest.send(0, READY)
    assert ends.at_host() == [(GUEST, READY)]
    ends.host.send(GUEST, CollectPause(waits=True))
    ends.host.send(GUEST, CloseTask("t"))
    assert ends.at_guest() == [(0, CollectPause(waits=True)), (0, CloseTask("t"))]
    ends.guest.send(0, Goodbye())
    assert ends.at_guest() == [(0, Leave(0))]
    assert ends.at_host() == [(GUEST, Goodbye())]
    assert not list(ends.layout.guests_dir.glob("*rank*")), "its messages are gone with it"
    ends.host.send(GUEST, Heartbeat())  # to nobody


def test_policies_come_from_files(ends: Ends) -> None:
    ends.guest.send(1, PolicyRequest(3))
    ends.policies.append(PolicyUpdate(3, np.zeros(1, np.uint8)))
    assert ends.at_guest() == []
    ends.policies.append(PolicyUpdate(4, np.zeros(1, np.uint8)))
    [(sender, update)] = ends.at_guest()
    assert (sender, update) == (1, ends.policies[-1])
    ends.policies.append(PolicyUpdate(5, np.zeros(1, np.uint8)))
    assert ends.at_guest() == [], "one answer to a request"


def test_a_signal_ends_the_guest_and_not_the_run(ends: Ends) -> None:
    ends.guest.send(0, StopRequest("received SIGTERM", EXIT_REQUEUE))
    ends.guest.send(0, StopRequest("received SIGTERM", EXIT_REQUEUE))
    assert ends.at_guest() == [(0, Stop("received SIGTERM"))]
    assert ends.at_host() == []
    assert ends.guest.exit_code == EXIT_REQUEUE


def test_a_guest_without_a_heart_beat_is_lost_after_all_it_has_sent(
    ends: Ends, left: list[int]
) -> None:
    ends.guest.send(0, READY)
    for _ in range(5):
        ends.at_guest()
        assert ends.at_host() in ([(GUEST, READY)], [])
    ends.later(TIMEOUT_S - 2.0)
    assert ends.at_host() == []
    ends.guest._outbox.post(LearnResult("t", 1))
    ends.guest._outbox.flush()
    ends.later(TIMEOUT_S)
    assert ends.at_host() == [(GUEST, LearnResult("t", 1)), (GUEST, RankLost())]
    ends.guest.check_place()  # it was only frozen
    assert left == [EXIT_REQUEUE], "it writes no more"


def test_a_guest_that_never_was_ready_is_forgotten(ends: Ends) -> None:
    ends.at_host()
    ends.later(TIMEOUT_S)
    assert ends.at_host() == []
    assert not list(ends.layout.guests_dir.glob("*rank*"))


@pytest.mark.parametrize("name", ["rank²", "rank", "ranks", "rank7"])
def test_a_folder_that_is_no_guests_is_passed_over(ends: Ends, name: str) -> None:
    (ends.layout.guests_dir / name).mkdir()
    ends.guest.send(0, READY)
    assert ends.at_host() == [(GUEST, READY)]


def test_a_file_system_that_fails_costs_rank_0_nothing(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for guests each second, also in runs that have none, and ended with its run."""
    ends.guest.send(0, READY)
    failing = FailingFiles(monkeypatch, "guests", times=1)
    assert ends.at_host() == []
    assert failing.left == 0
    assert ends.at_host() == [(GUEST, READY)]


@pytest.fixture
def one_rename_fails(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The next rename fails, once, which is noted here."""
    rename, failed = Path.rename, list[Path]()

    def renamed(path: Path, target: Path) -> Path:
        if not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    return failed


def test_a_guest_whose_folder_cannot_be_removed_comes_once(
    ends: Ends, one_rename_fails: list[Path]
) -> None:
    """All that it had ever sent was read once more, and counted."""
    sent = [READY, LearnResult("t", 1), Goodbye()]
    for message in sent:
        ends.guest.send(0, message)
    assert ends.at_host() == [(GUEST, message) for message in sent]
    assert one_rename_fails
    assert [ends.at_host(), ends.at_host()] == [[], []]


def test_a_guest_is_not_lost_before_it_can_write_no_more(
    ends: Ends, one_rename_fails: list[Path], left: list[int]
) -> None:
    """What it had sent last was not read, and it went on writing."""
    ends.guest.send(0, READY)
    ends.at_host()
    ends.guest.send(0, LearnResult("t", 1))
    ends.host.send(GUEST, Leave(0))
    assert one_rename_fails
    assert ends.host.receive(0.0) == []
    ends.later(TIMEOUT_S)
    assert ends.at_host() == [(GUEST, LearnResult("t", 1)), (GUEST, RankLost())]
    ends.guest.check_place()
    assert left == [EXIT_REQUEUE]


def test_a_guest_that_cannot_be_sent_away_is_told_of_once(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line at each look filled rank 0's log while a file system was away."""

    def fails(path: Path, target: Path) -> Path:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    ends.guest.send(0, READY)
    ends.at_host()
    file = ends.layout.guests_dir / f"rank{GUEST}" / "to_run.000001"
    file.write_bytes(file.read_bytes() + b"x" * 100)
    with monkeypatch.context() as away:
        away.setattr(Path, "rename", fails)
        for _ in range(3):
            assert ends.at_host() == []
    assert ends.at_host() == [(GUEST, RankLost())]
    assert caplog.text.count("is sent away") == 1


def test_a_guest_that_ends_is_waited_for_no_longer_than_it_lives(ends: Ends) -> None:
    ends.guest.send(0, READY)
    ends.host._timeout_s = 1e3
    ends.at_host()
    ends.host.send(GUEST, Stop("the run ends"))
    ends.later(6.0)
    assert ends.at_host() == [(GUEST, RankLost())]


def test_nobody_is_welcome_at_the_end(ends: Ends) -> None:
    ends.layout.welcome_file.touch()
    ends.host.send(1, Stop("the run ends"))
    assert not ends.layout.welcome_file.exists()


def test_a_guest_that_is_left_behind_is_lost_before_the_run_ends(ends: Ends) -> None:
    ends.guest.send(0, READY)
    ends.at_host()
    ends.guest.send(0, LearnResult("t", 1))
    ends.host.send(GUEST, Leave(0))
    assert ends.host.receive(0.0) == [(GUEST, LearnResult("t", 1)), (GUEST, RankLost())]


def test_a_start_sends_the_guests_of_the_one_before_away(ends: Ends, left: list[int]) -> None:
    ends.guest.send(0, READY)
    send_away(ends.layout)
    ends.at_guest()
    assert set(left) == {EXIT_REQUEUE}


def test_damaged_messages_cost_their_guest_alone(ends: Ends) -> None:
    ends.guest.send(0, READY)
    assert ends.at_host() == [(GUEST, READY)]
    file = ends.layout.guests_dir / f"rank{GUEST}" / "to_run.000001"
    file.write_bytes(file.read_bytes() + b"x" * 100)
    assert ends.at_host() == [(GUEST, RankLost())]


def test_a_silent_run_ends_its_guests(ends: Ends) -> None:
    ends.later(guests.RUN_SILENT_S)
    assert ends.at_guest() == [(0, Stop("the run is silent"))]
    assert ends.guest.exit_code is None


def test_no_two_guests_have_one_rank(layout: RunLayout) -> None:
    (layout.data_dir / "rank00002").mkdir(parents=True)
    assert [layout.take_guest_rank() for _ in range(3)] == [GUEST, GUEST + 1, GUEST + 2]
    assert layout.shard_path(GUEST, 1, now=0.0) == f"data/rank{GUEST}/19700101T00/000001.h5"
