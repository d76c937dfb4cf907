"""How the communication thread ends: by its errors, and when it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hpcdi.comm.local_link import LocalWorld
from hpcdi.comm.messages import CloseTask, LearnResult, Leave, Message, Stop, WorkerFailed
from hpcdi.comm.pump import LinkPump
from hpcdi.errors import EXIT_FAILED, CommError

LIMIT_S = 30.0


def failing(_sender: int, message: Message) -> None:
    raise CommError(f"no use for {message}")


@pytest.fixture
def world() -> LocalWorld:
    return LocalWorld(2)


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
    world: LocalWorld, call: Callable[[LinkPump], object]
) -> None:
    with LinkPump(world.link(1), {CloseTask: failing}) as pump:
        world.link(0).send(1, CloseTask("t"))
        wait_for_end(pump)
        with pytest.raises(CommError, match="no use for CloseTask"):
            call(pump)
        pump.check()
        assert pump.receive(0.0) == []


def test_an_error_ends_a_wait_that_has_begun(world: LocalWorld) -> None:
    """The main thread waits for a message that cannot come any more."""
    with LinkPump(world.link(1), {CloseTask: failing}) as pump:
        timer = threading.Timer(0.02, lambda: world.link(0).send(1, CloseTask("t")))
        timer.start()
        with pytest.raises(CommError):
            pump.receive(3600.0)
        timer.join()


def test_flush_raises_what_ended_the_thread(world: LocalWorld) -> None:
    with LinkPump(world.link(1), {CloseTask: failing}) as pump:
        world.link(0).send(1, CloseTask("t"))
        wait_for_end(pump)
        pump.send(0, Stop("never leaves"))
        with pytest.raises(CommError):
            pump.flush(LIMIT_S)


def test_an_error_of_ask_ends_the_thread(world: LocalWorld) -> None:
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
    world: LocalWorld, rank: int, message: Message, error: type[Exception]
) -> None:
    with LinkPump(world.link(1)) as pump:
        pump.send(rank, message)
        with pytest.raises(error):
            pump.receive(LIMIT_S)


def test_a_new_pump_may_take_over_the_link(world: LocalWorld) -> None:
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


def test_close_ends_the_thread_and_may_be_called_again(world: LocalWorld) -> None:
    pump = LinkPump(world.link(1))
    assert pump.is_alive
    pump.close()
    assert not pump.is_alive
    pump.close()
    pump.check()
    world.link(0).send(1, Stop("nobody takes it"))
    assert pump.receive(0.0) == []


def test_messages_that_came_before_the_end_can_still_be_received(world: LocalWorld) -> None:
    with LinkPump(world.link(1)) as pump:
        world.link(0).send(1, LearnResult("t", 1))
        world.link(0).send(1, Leave(0))
        assert pump.wait_for(LearnResult, LIMIT_S) == LearnResult("t", 1)
    pump.close()


def test_a_handler_may_close_the_pump(world: LocalWorld) -> None:
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
    world = LocalWorld(2)
    with LinkPump(world.link(1)) as pump:
        world.kill(0)
        assert pump.wait_for(Leave, 10.0) == Leave(EXIT_FAILED)
