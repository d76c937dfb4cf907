"""`hpcdi doctor` over real ranks: who is missing, what MPI can do, all checks together."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from fakes.link_contract import RANKS
from hpcdi.comm import probe
from hpcdi.comm.muster import Muster
from hpcdi.comm.probe_dist import reduce_together
from hpcdi.comm.probe_facts import Begun
from hpcdi.comm.probe_start import begin_mpi
from hpcdi.comm.world import World, open_world
from hpcdi.commands.doctor.checks import CHECKS, Check
from hpcdi.commands.doctor.report import FAIL, OK, WARN, Finding, ranks_text
from hpcdi.commands.doctor.rounds import Rounds
from hpcdi.errors import StoreError
from hpcdi.launch.environment import detect
from hpcdi.utils.watch import Patience, Watch

pytestmark = pytest.mark.mpi(RANKS)
LIMIT_S = 30.0
BEGUN = Begun("Open MPI v5", "MULTIPLE")


class Rows:
    """A report that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: dict[str, Finding] = {}

    def add(self, name: str, finding: Finding) -> None:
        assert name not in self.rows
        self.rows[name] = finding

    def finish(self) -> int:
        return 7


@pytest.fixture
def world() -> Iterator[World]:
    """The world, in which no message of ours is left when the test ends."""
    world = open_world()
    yield world
    world.comm.Barrier()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fails(*_given: object) -> Any:
    raise StoreError("/scratch", "is gone")


# ------------------------------------------------------------------------------------------- muster


def test_rank_0_answers_all_with_what_it_makes_of_all(comm: MPI.Intracomm) -> None:
    watch = Watch(Patience(), fails, fails)
    muster = Muster(comm, watch, ranks_text)
    for turn in range(3):
        watch.begin("turn", LIMIT_S)
        given = muster.gather((comm.rank, turn), lambda all_of_them: [*all_of_them, "answer"])
        assert given == [*((rank, turn) for rank in range(comm.size)), "answer"]
    watch.close()


def test_who_does_not_come_is_named_and_then_the_step_is_ended(
    comm: MPI.Intracomm, shared_path: Path
) -> None:
    """The last rank comes only when rank 0 has given it up."""
    said: list[str] = []

    def end(*step: str) -> None:
        (shared_path / "ended").write_text(" ".join(step))

    last = comm.size - 1
    patience = Patience(notice_s=0.3, grace_s=LIMIT_S)
    watch = Watch(patience, said.append, end, is_patient=comm.rank > 0)
    muster = Muster(comm, watch, ranks_text)
    if comm.rank == 0:  # its time begins when all the others have come
        until(lambda: all(muster._comm.Iprobe(rank) for rank in range(1, last)))
    watch.begin("cores", 1.0)
    if comm.rank == last:
        until((shared_path / "ended").exists)
    muster.gather(None, len)
    watch.close()
    comm.Barrier()
    assert (shared_path / "ended").read_text() == f"cores rank {last}"
    if comm.rank == 0:
        assert [line.split("waiting")[1] for line in said] == [f" for rank {last}"]
    elif comm.rank < last:  # rank 0 does the talking
        assert said == []


# ------------------------------------------------------------------------------------------- probes


def test_what_the_library_says_of_itself() -> None:
    begun = begin_mpi()  # again: nothing is printed any more
    assert begun.library in MPI.Get_library_version()
    assert begun.thread_level in ("SERIALIZED", "MULTIPLE")
    assert begun.transports == {}
    assert "OMPI_MCA_ompi_display_comm" not in os.environ


@pytest.mark.skipif(MPI.get_vendor()[0] != "Open MPI", reason="variables of Open MPI")
def test_fault_tolerance_is_as_mpirun_was_told() -> None:
    is_active = os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 (Open MPI's name)
    assert probe.fault_tolerance() == ("active" if is_active else "inactive")
    assert probe.control_variable("mpi_yield_when_idle") == 1  # `rank_environment` says so
    assert probe.control_variable("no_such_variable") is None


def test_asking_for_a_variable_leaves_the_thread_level(world: World) -> None:
    level = MPI.Query_thread()
    probe.control_variable("mpi_ft_enable")
    assert MPI.Query_thread() == level


def test_a_pair_is_measured_while_the_others_do_nothing(comm: MPI.Intracomm) -> None:
    if comm.rank not in (1, 3):
        return
    link = probe.measure_link(comm, 4 - comm.rank)
    assert link.rank == 3
    assert 0 < link.latency_s < LIMIT_S
    assert 0 < link.bytes_per_s < math.inf
    assert abs(probe.clock_offset(comm, 4 - comm.rank)) < LIMIT_S  # one host, one clock


def test_two_ranks_reduce_together_and_again(comm: MPI.Intracomm) -> None:
    said: list[str] = []
    for ranks in ((0, 2), (0, 1)):
        if comm.rank in ranks:
            reduced = reduce_together(comm, ranks, "gloo", LIMIT_S, said.append)
            assert reduced.ranks == ranks
            assert reduced.form_s > 0
            assert said[-1] == f"an all-reduce over gloo of ranks {list(ranks)}"


# ------------------------------------------------------------------------------------------- rounds


def go(world: World, target: Path, checks: tuple[Check, ...], **options: Any) -> tuple[int, Rows]:
    rows = Rows()
    rounds = Rounds(world, BEGUN, rows, end=fails)
    code = rounds.run(
        detect(os.environ), target, options.get("cuda", False), dict(os.environ), checks
    )
    return code, rows


def test_all_checks_find_this_machine_and_leave_nothing(world: World, shared_path: Path) -> None:
    code, rows = go(world, shared_path / "runs", CHECKS)
    assert code == 7  # rank 0's, on all
    assert list(shared_path.iterdir()) == []
    if world.rank:
        assert rows.rows == {}
        return
    names = [name for check in CHECKS for name in check.judges]
    assert list(rows.rows) == ["launcher", *names]
    assert len(set(names)) == len(names)
    errors = {name: row for name, row in rows.rows.items() if "could not be judged" in row.found}
    assert not errors
    for name in ("launcher", "mpi", "software", "sharing", "clocks", "packages"):
        assert rows.rows[name].status == OK, rows.rows[name]
    assert f"mpirun: {world.size} ranks on {world.host}" in rows.rows["launcher"].found
    assert "ranks 0-1: formed in" in rows.rows["gloo"].found
    assert str(shared_path) in rows.rows["folder"].found


def test_checks_need_earlier_ones() -> None:
    for i, check in enumerate(CHECKS):
        assert not check.needs or check.needs in [earlier.name for earlier in CHECKS[:i]]


def test_facts_that_cannot_be_had_fail_with_the_ranks_that_lack_them(
    world: World, shared_path: Path
) -> None:
    def collect(ground: Any) -> int:
        return fails() if ground.world.rank in (1, 2) else ground.world.rank

    code, rows = go(
        world,
        shared_path,
        (
            Check(collect, {"files": fails, "more": fails}, "mount it"),
            Check(fails, {"after": fails}, needs="files"),
            Check(fails, {"after that": fails}, needs="after"),
            Check(lambda g: g.world.rank, {"sum": lambda f, _g: Finding(WARN, f"{sum(f)}")}),
            Check(lambda _g: 1, {"judge": lambda _f, _g: Finding(OK, f"{1 // 0}")}),
        ),
    )
    assert code == 7
    if world.rank == 0:
        del rows.rows["launcher"]
        assert rows.rows == {
            "files": Finding(
                FAIL, f"ranks 1-2 ({world.host}): /scratch: is gone", "mount it"
            ),
            "sum": Finding(WARN, f"{sum(range(world.size))}"),
            "judge": Finding(
                FAIL,
                "could not be judged: ZeroDivisionError: integer division or modulo by zero",
            ),
        }  # fmt: skip
