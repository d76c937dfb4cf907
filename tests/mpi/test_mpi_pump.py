"""The communication thread over MPI: messages move while their rank computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from mpi4py import MPI

from fakes.link_contract import LARGE, LIMIT_S, RANKS, pattern
from hpcdi.comm.messages import Goodbye, LearnResult, Message, PolicyRequest, PolicyUpdate, Stop
from hpcdi.comm.mpi_link import MpiLink
from hpcdi.comm.pump import LinkPump
from hpcdi.errors import CommError

pytestmark = pytest.mark.mpi(RANKS)


@pytest.fixture
def start(comm: MPI.Intracomm) -> Iterator[Callable[..., LinkPump]]:
    """Starts this rank's pump; ends it when all ranks are done."""
    pumps: list[LinkPump] = []

    def begin(*args: object) -> LinkPump:
        pumps.append(LinkPump(MpiLink(comm), *args))  # type: ignore[arg-type]
        return pumps[-1]

    yield begin
    for pump in pumps:
        pump.close()
    comm.Barrier()


def take(pump: LinkPump, count: int) -> list[tuple[int, Message]]:
    """The next `count` messages that no handler takes."""
    deadline = time.monotonic() + LIMIT_S
    taken: list[tuple[int, Message]] = []
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} messages came"
        taken += pump.receive(0.5)
    return taken


def test_requests_are_answered_while_the_main_thread_waits_for_nothing(
    start: Callable[..., LinkPump],
) -> None:
    """A handler answers on the pump's thread, with more than MPI would buffer."""
    rounds = 5
    is_open = threading.Event()
    answered = threading.Semaphore(0)
    threads = set()

    def answer(sender: int, request: PolicyRequest) -> None:
        assert is_open.wait(LIMIT_S)  # `pump` has its name
        threads.add(threading.current_thread().name)
        version = request.have_version + 1
        pump.send(sender, PolicyUpdate(version, pattern(0, version, LARGE // 4)))
        answered.release()

    if MPI.COMM_WORLD.rank == 0:
        pump = start({PolicyRequest: answer})
        is_open.set()
        for _ in range(rounds * (RANKS - 1)):
            assert answered.acquire(timeout=LIMIT_S)
        assert threads == {"link-pump"}
        pump.flush(LIMIT_S)
    elif MPI.COMM_WORLD.rank < RANKS:
        pump = start()
        for version in range(rounds):
            pump.send(0, PolicyRequest(version - 1))
            [(_, update)] = take(pump, 1)
            assert isinstance(update, PolicyUpdate)
            assert update.version == version
            assert np.array_equal(update.data, pattern(0, version, LARGE // 4))
        pump.flush(LIMIT_S)


def test_several_threads_post_at_once(start: Callable[..., LinkPump]) -> None:
    """Only the pump's thread calls MPI, whoever posts."""
    pump = start()
    rank = MPI.COMM_WORLD.rank
    if rank == 0:
        messages = take(pump, 4 * 50 * (MPI.COMM_WORLD.size - 1))
        for sender in range(1, MPI.COMM_WORLD.size):
            for name in "abcd":
                own = [m for s, m in messages if s == sender and getattr(m, "task_id", "") == name]
                assert own == [LearnResult(name, number) for number in range(50)]
        return

    def post(name: str) -> None:
        for number in range(50):
            pump.send(0, LearnResult(name, number))

    threads = [threading.Thread(target=post, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pump.flush(LIMIT_S)


def test_flush_waits_until_the_receiver_has_taken_it(
    start: Callable[..., LinkPump], comm: MPI.Intracomm
) -> None:
    rank = MPI.COMM_WORLD.rank
    if rank == 0:
        pump = start()
        pump.send(1, PolicyUpdate(0, pattern(0, 0, LARGE)))
        pump.send(1, Goodbye())
        pump.flush(LIMIT_S)
    elif rank == 1:
        pump = start()
        (_, update), (_, goodbye) = take(pump, 2)
        assert isinstance(update, PolicyUpdate)
        assert np.array_equal(update.data, pattern(0, 0, LARGE))
        assert goodbye == Goodbye()


def test_an_error_on_the_thread_comes_to_the_main_thread(start: Callable[..., LinkPump]) -> None:
    def fail(sender: int, message: Stop) -> None:
        raise CommError(f"{message.reason} from rank {sender}")

    pump = start({Stop: fail})
    if MPI.COMM_WORLD.rank == 1:
        pump.send(0, Stop("planted"))
        pump.flush(LIMIT_S)
    if MPI.COMM_WORLD.rank == 0:
        with pytest.raises(CommError, match="planted from rank 1"):
            pump.receive(LIMIT_S)
        assert not pump.is_alive
