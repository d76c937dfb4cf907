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
from hpcdi.comm.probe import reduce_together, start_mpi
from hpcdi.comm.world import World, gather_and_answer, open_world
from hpcdi.commands.doctor import examine as examination
from hpcdi.commands.doctor.checks import FAIL, OK, Finding, named_ranks
from hpcdi.commands.doctor.examine import Watch, examine
from hpcdi.commands.doctor.facts import Facts
from hpcdi.errors import StoreError
from hpcdi.run.environment import detect

pytestmark = pytest.mark.mpi(RANKS)
LIMIT_S = 30.0


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


# ------------------------------------------------------------------------------------------- gather


def test_rank_0_answers_all_with_what_it_makes_of_all(comm: MPI.Intracomm) -> None:
    own = comm.Dup()
    for turn in range(3):
        waited: list[list[int]] = []
        given = gather_and_answer(
            own, (comm.rank, turn), lambda all_of_them: [*all_of_them, "answer"], waited.append
        )
        assert given == [*((rank, turn) for rank in range(comm.size)), "answer"]
        assert waited[0] == (list(range(1, comm.size)) if comm.rank == 0 else [0])


def test_who_does_not_come_is_named_and_then_the_step_is_ended(
    comm: MPI.Intracomm, shared_path: Path
) -> None:
    """The last rank comes only when rank 0 has given it up."""
    said: list[str] = []

    def end(*step: str) -> None:
        (shared_path / "ended").write_text(" ".join(step))

    last = comm.size - 1
    watch = Watch(said.append, end, notice_s=0.3, at_least_s=LIMIT_S if comm.rank else 0.0)
    own = comm.Dup()
    if comm.rank == 0:  # its time begins when all the others have come
        until(lambda: all(own.Iprobe(rank) for rank in range(1, last)))
    watch.begin("cores", 1.0, is_quiet=comm.rank > 0)
    if comm.rank == last:
        until((shared_path / "ended").exists)
    gather_and_answer(own, None, len, lambda ranks: watch.wait_for(named_ranks(ranks)))
    watch.close()
    comm.Barrier()
    assert (shared_path / "ended").read_text() == f"cores rank {last}"
    if comm.rank == 0:
        assert [line.split("waiting")[1] for line in said] == [f" for rank {last}"]
    elif comm.rank < last:  # rank 0 does the talking
        assert said == []


# ------------------------------------------------------------------------------------------- probes


def test_a_library_that_has_been_started_tells_no_transports() -> None:
    start_s, transports = start_mpi()
    assert start_s < LIMIT_S
    assert transports == {}
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


# -------------------------------------------------------------------------------------- examination


def go(world: World, target: Path, report: Any) -> int:
    own = Facts(world.host, library="Open MPI v5", thread_level="MULTIPLE")
    return examine(
        world, own, detect(os.environ), target, dict(os.environ), report, end=fails
    )  # fmt: skip


def test_all_checks_find_this_machine_and_leave_nothing(world: World, shared_path: Path) -> None:
    report = Rows()
    assert go(world, shared_path / "runs", report) == 7  # rank 0's, on all
    assert list(shared_path.iterdir()) == []
    if world.rank:
        assert report.rows == {}
        return
    assert list(report.rows) == [
        "launcher", "mpi", "slurm", "software", "rank death", "transport", "messages", "gloo",
        "nccl", "folder", "hdf5 locks", "disk", "sharing", "cores", "threads", "memory", "shm",
        "limits", "clocks", "gpus", "packages",
    ]  # fmt: skip
    errors = {name: row for name, row in report.rows.items() if "could not be judged" in row.found}
    assert not errors
    for name in ("launcher", "mpi", "software", "sharing", "clocks", "packages"):
        assert report.rows[name].status == OK, report.rows[name]
    assert f"mpirun: {world.size} ranks on {world.host}" in report.rows["launcher"].found
    assert "ranks 0-1: formed in" in report.rows["gloo"].found
    assert str(shared_path) in report.rows["folder"].found


def test_a_probe_that_fails_on_some_ranks_is_a_row(
    world: World, shared_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.rank in (1, 2):
        monkeypatch.setattr(examination.facts, "memory", fails)
    report = Rows()
    assert go(world, shared_path, report) == 7
    if world.rank == 0:
        assert report.rows["memory"] == Finding(
            FAIL, f"ranks 1-2 ({world.host}): /scratch: is gone"
        )
        assert "shm" not in report.rows
        assert report.rows["limits"].status


def test_a_rank_that_hangs_is_named_and_the_job_is_ended(
    world: World, shared_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rank hangs until rank 0 has given it up; here that does not end the test."""
    last, given_up = world.size - 1, shared_path / "given up"
    if world.rank == last:

        def hang() -> dict[str, int]:
            until(given_up.exists)
            return {}

        monkeypatch.setattr(examination.facts, "memory", hang)
    monkeypatch.setattr(examination, "_GATHER_LIMIT_S", 3.0)
    own = Facts(world.host, library="Open MPI v5", thread_level="MULTIPLE")
    report = Later()
    code = examine(
        world, own, detect(os.environ), shared_path, dict(os.environ), report,
        end=lambda code: given_up.write_text(str(code)),
    )  # fmt: skip
    assert code == 7
    assert given_up.read_text() == "1"
    if world.rank == 0:
        assert report.rows["facts"].status == FAIL
        assert f"waiting for rank {last} ({world.host})" in report.rows["facts"].found


class Later(Rows):
    """A report that goes on after its end: a real job is gone then."""

    def add(self, name: str, finding: Finding) -> None:
        self.rows.setdefault(name, finding)
