"""The communication thread, over a link between threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.mortal_world import MortalWorld
from hpcdi.comm import pump as pump_module
from hpcdi.comm.link import Link
from hpcdi.comm.messages import (
    CloseTask,
    Goodbye,
    Heartbeat,
    LearnResult,
    Leave,
    Message,
    Stop,
    StopRequest,
    WorkerFailed,
)
from hpcdi.comm.pump import LinkPump, LocalPump, Quiet
from hpcdi.errors import EXIT_REQUEUE, CommError

LIMIT_S = 30.0
FAILED = WorkerFailed("collector", "host", "ValueError", "Traceback", 1)


@pytest.fixture
def world() -> MortalWorld:
    return MortalWorld(2)


@pytest.fixture
def start(world: MortalWorld) -> Iterator[Callable[..., LinkPump]]:
    """Starts rank 1's pump, and ends it after the test."""
    pumps: list[LinkPump] = []

    def begin(*args: Any, **kwargs: Any) -> LinkPump:
        pumps.append(LinkPump(world.link(1), *args, **kwargs))
        return pumps[-1]

    yield begin
    for pump in pumps:
        pump.close()


def take(link: Link, count: int) -> list[Message]:
    """The next `count` messages of a link."""
    deadline = time.monotonic() + LIMIT_S
    taken: list[Message] = []
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} messages came"
        taken += [message for _, message in link.receive(0.5)]
    return taken


def results(count: int) -> list[Message]:
    return [LearnResult("t", number) for number in range(count)]


# ----------------------------------------------------------------------------------------- arriving


def test_handlers_run_on_the_pump_s_thread_in_the_order_of_arrival(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    seen: list[tuple[str, int, Message]] = []
    all_seen = threading.Event()

    def handle(sender: int, message: Message) -> None:
        seen.append((threading.current_thread().name, sender, message))
        if isinstance(message, CloseTask):
            all_seen.set()

    start({LearnResult: handle, CloseTask: handle})
    messages = [*results(100), CloseTask("t")]
    for message in messages:
        world.link(0).send(1, message)
    assert all_seen.wait(LIMIT_S)
    assert seen == [("link-pump", 0, message) for message in messages]


def test_messages_without_a_handler_wait_for_receive_in_order(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    handled: list[Message] = []
    pump = start({LearnResult: lambda _rank, message: handled.append(message)})
    for number in range(5):
        world.link(0).send(1, CloseTask(f"task {number}"))
        world.link(0).send(1, LearnResult("t", number))
    received: list[tuple[int, Message]] = []
    while len(received) < 5:
        arrived = pump.receive(LIMIT_S)
        assert arrived
        received += arrived
    assert received == [(0, CloseTask(f"task {number}")) for number in range(5)]
    world.link(0).send(1, Stop("so that the last result was handled before it"))
    assert pump.receive(LIMIT_S)
    assert handled == results(5)


def test_a_handler_is_for_its_very_class(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    pump = start({Message: lambda _rank, _message: pytest.fail("not for subclasses")})
    world.link(0).send(1, Stop("end"))
    assert pump.receive(LIMIT_S) == [(0, Stop("end"))]


def test_receive_gives_up_after_its_time(start: Callable[..., LinkPump]) -> None:
    pump = start()
    began = time.monotonic()
    assert pump.receive(0.02) == []
    assert time.monotonic() - began >= 0.02


def test_wait_ends_with_a_message_even_one_that_a_handler_has_taken(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    handled: list[Message] = []
    pump = start({LearnResult: lambda _rank, message: handled.append(message)})
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pump.wait, 10 * LIMIT_S)
        world.link(0).send(1, LearnResult("t", 0))
        waiting.result(LIMIT_S)
    assert handled == results(1)
    began = time.monotonic()
    pump.wait(0.02)  # the next one is for the next message
    assert time.monotonic() - began >= 0.02


def test_wait_ends_where_the_thread_has_failed(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    pump = start({LearnResult: lambda _rank, _message: 1 / 0})
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pump.wait, 10 * LIMIT_S)
        world.link(0).send(1, LearnResult("t", 0))
        waiting.result(LIMIT_S)
    with pytest.raises(ZeroDivisionError):
        pump.check()


def test_a_pump_makes_no_calls_in_quiet_and_goes_on_where_that_never_ends(
    world: MortalWorld, start: Callable[..., LinkPump], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI loses messages of a communicator that is made beside them."""
    quiet = Quiet(0.5)
    monkeypatch.setattr(pump_module, "QUIET", quiet)
    pump = start()
    for end_s, is_heard in ((0.1, False), (30.0, True)):
        with quiet.kept():
            world.link(0).send(1, Stop("end"))
            assert bool(pump.receive(end_s)) == is_heard
        assert is_heard or pump.receive(LIMIT_S)


def test_quiet_that_begins_as_a_turn_does_comes_first() -> None:
    quiet, has_begun, may_end = Quiet(30.0), threading.Event(), threading.Event()
    lock: Any = quiet._calls

    def acquire(blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking and not has_begun.is_set():
            thread.start()
            assert has_begun.wait(LIMIT_S)
            threading.Timer(0.1, may_end.set).start()
        return bool(lock.acquire(blocking, timeout))

    def keep() -> None:
        with quiet.kept():
            has_begun.set()
            may_end.wait(LIMIT_S)

    thread = threading.Thread(target=keep)
    quiet._calls = cast("Any", SimpleNamespace(acquire=acquire, release=lock.release))
    with quiet.left():
        assert may_end.is_set()
    thread.join()


def test_wait_for_drops_what_comes_before(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    pump = start()
    for message in (Stop("end"), CloseTask("t"), Leave(3)):
        world.link(0).send(1, message)
    assert pump.wait_for(Leave, LIMIT_S) == Leave(3)
    assert pump.wait_for(Leave, 0.02) is None


# ------------------------------------------------------------------------------------------ sending


def test_messages_of_several_threads_each_keep_their_order(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    pump = start()
    threads = [
        threading.Thread(
            target=lambda name=name: [  # type: ignore[misc]
                pump.send(0, LearnResult(name, number)) for number in range(200)
            ]
        )
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    messages = take(world.link(0), 800)
    for thread in threads:
        thread.join()
    for name in "abcd":
        own = [m.train_iter for m in messages if isinstance(m, LearnResult) and m.task_id == name]
        assert own == list(range(200))


def test_a_posted_message_and_the_end_do_not_wait_for_the_turn(
    monkeypatch: pytest.MonkeyPatch, world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    """The thread waits for messages, for ever if need be; posting one wakes it."""
    monkeypatch.setattr(pump_module, "_TURN_S", 3600.0)
    pump = start()
    for number in range(20):
        pump.send(0, LearnResult("t", number))
        assert take(world.link(0), 1) == [LearnResult("t", number)]
    pump.close()
    assert not pump.is_alive


def test_flush_waits_until_everything_has_left(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    pump = start()
    pump.flush(LIMIT_S)
    for message in results(50):
        pump.send(0, message)
    pump.flush(LIMIT_S)
    assert world.link(0).receive(0.0) == [(1, message) for message in results(50)]


class DeafLink:
    """A link whose messages never leave; fails where two threads use it."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.sent: list[tuple[int, Message]] = []
        self._user: threading.Thread | None = None

    def send(self, rank: int, message: Message) -> None:
        self._check_user()
        assert 0 <= rank < self.size
        self.sent.append((rank, message))

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:
        self._check_user()
        self.wake.wait(timeout_s)
        self.wake.clear()
        return []

    def unsent(self) -> list[int]:
        self._check_user()
        return sorted({rank for rank, _ in self.sent})

    def _check_user(self) -> None:
        self._user = self._user or threading.current_thread()
        assert self._user is threading.current_thread(), "two threads use one link"


def test_flush_says_that_a_message_does_not_leave() -> None:
    link = DeafLink()
    with LinkPump(link) as pump:
        pump.flush(LIMIT_S)
        pump.send(1, Stop("end"))
        with pytest.raises(CommError, match=r"ranks \[1\] could not be delivered within 0 s"):
            pump.flush(0.05)
    assert link.sent == [(1, Stop("end"))]


# ------------------------------------------------------------------------------- asking, reporting


def test_what_ask_gives_goes_to_rank_0(world: MortalWorld, start: Callable[..., LinkPump]) -> None:
    """It is asked at every turn, and need not answer."""
    answers: list[Message | None] = [None, None, StopRequest("received SIGTERM", 85)]
    pump = start(None, lambda: answers.pop(0) if answers else None)
    assert take(world.link(0), 1) == [StopRequest("received SIGTERM", 85)]
    pump.send(0, Goodbye())
    assert take(world.link(0), 1) == [Goodbye()]


def test_a_failure_is_reported_and_answered(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    pump = start()
    with ThreadPoolExecutor(1) as pool:
        leave = pool.submit(pump.report_failure, FAILED, LIMIT_S)
        assert take(world.link(0), 1) == [FAILED]
        for answer in (Stop("a rank has failed"), Leave(1)):
            world.link(0).send(1, answer)
        assert leave.result() == Leave(1)
    assert not pump.is_alive


def test_a_failure_that_nobody_answers(world: MortalWorld, start: Callable[..., LinkPump]) -> None:
    pump = start()
    assert pump.report_failure(FAILED, 0.05) is None
    assert world.link(0).receive(0.0) == [(1, FAILED)]
    assert not pump.is_alive


# ------------------------------------------------------------------------------------------ the end


def failing(_sender: int, message: Message) -> None:
    raise CommError(f"no use for {message}")


def wait_for_end(pump: LinkPump) -> None:
    """Join the thread without asking for its error."""
    pump._thread.join()
    assert not pump.is_alive


@pytest.mark.parametrize(
    "call",
    [
        lambda pump: pump.receive(LIMIT_S),
        lambda pump: pump.check(),
        lambda pump: pump.wait_for(Leave, LIMIT_S),
    ],
    ids=["receive", "check", "wait_for"],
)
def test_a_handler_s_error_is_raised_on_the_caller_s_thread_once(
    world: MortalWorld, call: Callable[[LinkPump], object]
) -> None:
    with LinkPump(world.link(1), {CloseTask: failing}) as pump:
        world.link(0).send(1, CloseTask("t"))
        wait_for_end(pump)
        with pytest.raises(CommError, match="no use for CloseTask"):
            call(pump)
        pump.check()
        assert pump.receive(0.0) == []


def test_an_error_ends_a_wait_that_has_begun(world: MortalWorld) -> None:
    """The main thread waits for a message that cannot come any more."""
    with LinkPump(world.link(1), {CloseTask: failing}) as pump:
        timer = threading.Timer(0.02, lambda: world.link(0).send(1, CloseTask("t")))
        timer.start()
        with pytest.raises(CommError):
            pump.receive(3600.0)
        timer.join()


def test_flush_raises_what_ended_the_thread(world: MortalWorld) -> None:
    with LinkPump(world.link(1), {CloseTask: failing}) as pump:
        world.link(0).send(1, CloseTask("t"))
        wait_for_end(pump)
        pump.send(0, Stop("never leaves"))
        with pytest.raises(CommError):
            pump.flush(LIMIT_S)


def test_an_error_of_ask_ends_the_thread(world: MortalWorld) -> None:
    def ask() -> Message | None:
        raise KeyError("signal")

    with LinkPump(world.link(1), None, ask) as pump, pytest.raises(KeyError):
        pump.receive(LIMIT_S)


@pytest.mark.parametrize(
    ("rank", "message", "error"),
    [
        (5, Stop("end"), ValueError),
        (0, WorkerFailed("r", "h", "e", threading.Lock()), CommError),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_cannot_be_sent_ends_the_thread(
    world: MortalWorld, rank: int, message: Message, error: type[Exception]
) -> None:
    with LinkPump(world.link(1)) as pump:
        pump.send(rank, message)
        with pytest.raises(error):
            pump.receive(LIMIT_S)


def test_a_new_pump_may_take_over_the_link(world: MortalWorld) -> None:
    """So a rank whose pump has failed can still say so."""
    with LinkPump(world.link(1), {CloseTask: failing}) as pump:
        world.link(0).send(1, CloseTask("t"))
        with pytest.raises(CommError):
            pump.receive(LIMIT_S)
    with LinkPump(world.link(1)) as successor:
        successor.send(0, Stop("still here"))
        successor.flush(LIMIT_S)
        assert world.link(0).receive(0.0) == [(1, Stop("still here"))]
        world.link(0).send(1, CloseTask("no handler now"))
        assert successor.receive(LIMIT_S) == [(0, CloseTask("no handler now"))]


def test_close_ends_the_thread_and_may_be_called_again(world: MortalWorld) -> None:
    pump = LinkPump(world.link(1))
    assert pump.is_alive
    pump.close()
    assert not pump.is_alive
    pump.close()
    pump.check()
    world.link(0).send(1, Stop("nobody takes it"))
    assert pump.receive(0.0) == []


def test_messages_that_came_before_the_end_can_still_be_received(world: MortalWorld) -> None:
    with LinkPump(world.link(1)) as pump:
        world.link(0).send(1, LearnResult("t", 1))
        world.link(0).send(1, Leave(0))
        assert pump.wait_for(LearnResult, LIMIT_S) == LearnResult("t", 1)
    pump.close()


def test_a_handler_may_close_the_pump(world: MortalWorld) -> None:
    """From its own thread there is nothing to join."""
    closed = threading.Event()

    def handle(_sender: int, _message: Message) -> None:
        pump.close()
        closed.set()

    pump = LinkPump(world.link(1), {Leave: handle})
    world.link(0).send(1, Leave(0))
    assert closed.wait(LIMIT_S)
    wait_for_end(pump)
    pump.check()


def test_nobody_waits_for_leave_from_a_rank_0_that_is_dead() -> None:
    world = MortalWorld(2)
    with LinkPump(world.link(1)) as pump:
        world.kill(0)
        assert pump.wait_for(Leave, 10.0) == Leave(EXIT_REQUEUE)


# ----------------------------------------------------------------------- ranks of one process


def test_handlers_of_a_local_pump_run_in_its_owner_s_turns(world: MortalWorld) -> None:
    handled: list[tuple[int, Message]] = []
    answers: list[Message | None] = [None, Goodbye()]
    with LocalPump(
        world.link(1),
        {LearnResult: lambda *arrived: handled.append(arrived)},
        lambda: answers.pop(0) if answers else None,
    ) as pump:
        for message in (*results(2), Heartbeat(), CloseTask("t")):
            world.link(0).send(1, message)
        assert handled == []
        pump.check()
        assert handled == [(0, message) for message in results(2)]
        assert world.link(0).receive(0.0) == []
        began = time.monotonic()
        assert pump.receive(LIMIT_S) == [(0, CloseTask("t"))]
        assert pump.receive(LIMIT_S) == []
        assert time.monotonic() - began < LIMIT_S, "it never waits"
        pump.send(0, Stop("end"))
        pump.flush(LIMIT_S)
        assert world.link(0).receive(0.0) == [(1, Goodbye()), (1, Stop("end"))]
        world.kill(0)
        assert (0, Leave(EXIT_REQUEUE)) in pump.receive(0.0)


# ------------------------------------------------------------------------------- rank 0's silence


def test_silence_of_rank_0_ends_with_its_heartbeat_which_nobody_else_sees(
    world: MortalWorld, start: Callable[..., LinkPump]
) -> None:
    silences: list[float] = []
    pump = start(silence=silences.append)
    deadline = time.monotonic() + LIMIT_S
    while not silences or silences[-1] < 0.3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    world.link(0).send(1, Heartbeat())
    world.link(0).send(1, CloseTask("after it"))
    assert pump.receive(LIMIT_S) == [(0, CloseTask("after it"))]
    pump.close()
    assert 0.0 in silences


def test_the_pause_of_a_whole_job_is_no_silence(
    start: Callable[..., LinkPump], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scontrol suspend` stops all ranks for an hour; the clock goes on meanwhile."""
    turns = iter([0.0, 0.5, 3600.5, 3601.0])
    silences: list[float] = []
    ended = threading.Event()

    def silence(silence_s: float) -> None:
        silences.append(silence_s)
        if len(silences) == 3:
            ended.set()

    monkeypatch.setattr(pump_module, "time", SimpleNamespace(monotonic=lambda: next(turns, 3601.0)))
    start(silence=silence)
    assert ended.wait(LIMIT_S)
    assert silences[:3] == [0.5, 1.5, 2.0]


def test_nobody_is_called_before_it_is_whole(world: MortalWorld) -> None:
    heard: list[Message] = []
    world.link(0).send(1, CloseTask("a"))
    with LinkPump(
        world.link(1), {CloseTask: lambda _rank, message: heard.append(message)}, begins=False
    ) as pump:
        time.sleep(3 * pump_module._TURN_S)
        assert not heard
        pump.begin()
        began = time.monotonic()
        while not heard:
            assert time.monotonic() < began + LIMIT_S
            time.sleep(0.01)
