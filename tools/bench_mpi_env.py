"""What the coupling of an environment that is an MPI program costs a step, against it alone.

A small solver in C, as `hpcdi new env NAME --mpi c` writes it, on groups of two ranks: time of a
step from the collector's order to its answer, while steps follow each other, and after pauses of
20 ms, as a policy makes them; and how much of their cores the ranks use in such pauses. Beside it
the same solver through a socket and through files, as other frameworks couple theirs: its ranks
wait in a broadcast there, at the price of their cores (mpi_env_glue.c).

    python tools/bench_mpi_env.py               about half a minute
    python tools/bench_mpi_env.py --quick       some seconds
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Row, at_most, parser, show

from hpcdi.comm.solver_protocol import Sizes, SolverPlace
from hpcdi.commands.new import TEMPLATES
from hpcdi.env.mpi.build import NATIVE, compiled, mpicc
from hpcdi.env.mpi.launch import Program, become_solver
from hpcdi.run.environment import rank_of
from hpcdi.run.local import mpi_folders, mpirun_command, rank_environment
from hpcdi.utils.backoff import wait_s

RANKS, PAUSE_S = 2, 20e-3
PEERS = ("a socket", "files")
CHILD = "HPCDI_BENCH_MPI_ENV"


def main() -> None:
    """Start the jobs, and show their figures."""
    options = parser(__doc__ or "").parse_args()
    steps, pauses = (500, 50) if options.quick else (5000, 500)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "heat.c"
        source.write_text((TEMPLATES / "solver.c").read_text().replace("NAME", "heat"))
        program = str(compiled([source]))
        alone_us = 1e6 * (_alone(program, steps) - _alone(program, 0)) / steps
        rows.append(Row("a step of the solver alone, 2 ranks", alone_us, "us"))
        peers = {how: _peer(source, Path(folder), how, steps, pauses) for how in PEERS}
        rows += [
            Row(f"a step{after} through {how}, 1 group of 2: p50", figures[key], "ms")
            for how, figures in peers.items()
            for after, key in (("", "p50_ms"), (" after 20 ms", "paused_ms"))
        ]
        for groups in (1, 2):
            spec = {"folder": folder, "program": program, "groups": groups}
            found = _job({**spec, "steps": steps, "pauses": pauses}, 1 + RANKS * groups)
            name = f"{groups} group{'s' * (groups > 1)} of 2"
            beside: dict[str, Any] = {}
            if groups == 1:
                ratio = found["p50_ms"] / peers["a socket"]["p50_ms"]
                beside = {"ratio": ratio, "peer": "a socket"}
            rows += [
                at_most(f"a step, {name}: p50", found["p50_ms"], "ms", 0.1, **beside),
                Row(f"a step, {name}: p99", found["p99_ms"], "ms"),
                at_most(f"a step after 20 ms, {name}: p50", found["paused_ms"], "ms", 0.4),
                at_most(f"cores of ranks that wait, {name}", found["core_percent"], "%", 3.0),
            ]  # fmt: skip
    show(rows, options.json)


def _peer(source: Path, folder: Path, how: str, steps: int, pauses: int) -> dict[str, float]:
    """Returns figures of the solver that is coupled by a socket or by files."""
    program = folder / "glued"
    glue = Path(__file__).with_name("mpi_env_glue.c")
    command = [mpicc(), "-O2", f"-I{NATIVE}", source, glue, "-o", program, "-lm"]
    subprocess.run([str(word) for word in command], check=True)
    couple = _by_socket if how == "a socket" else _by_files
    with mpi_folders(True) as folders, couple(folder) as (address, exchange):
        variables = rank_environment({**os.environ, **folders, "HPCDI_GLUE": address})
        solver = subprocess.Popen(
            [*mpirun_command(RANKS), str(program)],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def step(kind: int = 1) -> float:
            began = time.perf_counter()
            exchange(struct.pack("2d", kind, 0.0), 0 if kind == 0 else 3 * 8)
            return 1e3 * (time.perf_counter() - began)

        step(2)
        figures = _times(step, steps, pauses, [])
        step(0)
        solver.wait()
    return figures


Exchange = Callable[[bytes, int], bytes]
"""Sends an order, and returns its answer of so many bytes."""


@contextlib.contextmanager
def _by_socket(_folder: Path) -> Iterator[tuple[str, Exchange]]:
    links: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def exchange(order: bytes, size: int) -> bytes:
            if not links:
                links.append(server.accept()[0])
                links[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            links[0].sendall(order)
            return links[0].recv(size, socket.MSG_WAITALL) if size else b""

        yield f"localhost:{server.getsockname()[1]}", exchange
    for link in links:
        link.close()


@contextlib.contextmanager
def _by_files(folder: Path) -> Iterator[tuple[str, Exchange]]:
    numbers = itertools.count()

    def exchange(order: bytes, size: int) -> bytes:
        number, aside = next(numbers), folder / "order"
        aside.write_bytes(order)
        aside.rename(folder / f"order{number}")
        answer = folder / f"answer{number}"
        while size and not answer.exists():
            time.sleep(1e-3)
        return answer.read_bytes() if size else b""

    yield str(folder), exchange


def _alone(program: str, steps: int) -> float:
    """Returns the seconds of the solver by itself, its start included."""
    began = time.monotonic()
    with mpi_folders(True) as folders:
        variables = {**os.environ, **folders, "HPCDI_ALONE_STEPS": str(steps)}
        subprocess.run(
            [*mpirun_command(RANKS), program], env=rank_environment(variables), check=True,
            capture_output=True,
        )  # fmt: skip
    return time.monotonic() - began


def _job(spec: dict[str, Any], ranks: int) -> dict[str, float]:
    with mpi_folders(True) as folders:
        variables = {**os.environ, **folders, CHILD: json.dumps(spec)}
        subprocess.run(
            [*mpirun_command(ranks), sys.executable, __file__], env=rank_environment(variables),
            check=True, capture_output=True,
        )  # fmt: skip
    found: dict[str, float] = json.loads((Path(spec["folder"]) / "result.json").read_text())
    return found


def _rank(spec: dict[str, Any]) -> int:
    """Be a rank of a job: the collector, or a solver's."""
    rank, folder = int(rank_of(os.environ)), Path(spec["folder"])
    places = [
        SolverPlace(number, tuple(range(1 + RANKS * number, 1 + RANKS * (number + 1))))
        for number in range(spec["groups"])
    ]
    for place in places:
        if rank in place.ranks:
            own = folder / f"env{place.environment}"
            return become_solver(place, Program((spec["program"],)), own, rank)
    (folder / "result.json").write_text(json.dumps(_measure(spec, places)))
    from hpcdi.comm.failure import leave_job

    return leave_job(0)


def _measure(spec: dict[str, Any], places: list[SolverPlace]) -> dict[str, float]:
    import numpy as np

    from hpcdi.comm.doorbell import Doorbell
    from hpcdi.comm.solver_group import SolverGroup
    from hpcdi.env.mpi.solvers import Solver, SolverLimits, wait

    bell, action = Doorbell(), np.zeros(1)
    groups = [SolverGroup(place, Sizes(2, 1), bell) for place in places]
    solvers = [Solver(group, SolverLimits(), bell=bell) for group in groups]
    for solver in solvers:
        solver.ask_reset(0)
    for solver in solvers:
        solver.answer()

    def step() -> float:
        began = time.perf_counter()
        for solver in solvers:
            solver.ask_step(action, 0)
        wait(solvers, len(solvers), bell)
        for solver in solvers:
            solver.answer()
        return 1e3 * (time.perf_counter() - began)

    pids = [peer.pid for group in groups for peer in group.peers.values()]
    figures = _times(step, spec["steps"], spec["pauses"], pids)
    for solver in solvers:
        solver.group.release()
    return figures


def _times(step: Callable[[], float], steps: int, pauses: int, pids: list[int]) -> dict[str, float]:
    """Take steps that follow each other, then some after pauses.

    Args:
        step: takes one; returns its milliseconds.
        steps: how many follow each other.
        pauses: how many do not.
        pids: processes whose time in pauses is counted.
    """
    times = sorted(step() for _ in range(steps))
    paused, cpu_s, paused_s = [], 0.0, 0.0
    for _ in range(pauses):
        before, began = _cpu_s(pids), time.monotonic()
        wait_s(PAUSE_S)
        cpu_s, paused_s = cpu_s + _cpu_s(pids) - before, paused_s + time.monotonic() - began
        paused.append(step())
    return {
        "p50_ms": statistics.median(times),
        "p99_ms": times[int(0.99 * len(times))],
        "paused_ms": statistics.median(paused),
        "core_percent": 100 * cpu_s / paused_s / max(1, len(pids)),
    }


def _cpu_s(pids: list[int]) -> float:
    """Returns the seconds that processes have computed, from the scheduler's own count."""
    runs = [Path(f"/proc/{pid}/schedstat").read_text().split()[0] for pid in pids]
    return sum(map(int, runs)) / 1e9


if __name__ == "__main__":
    if CHILD in os.environ:
        sys.exit(_rank(json.loads(os.environ[CHILD])))
    main()
