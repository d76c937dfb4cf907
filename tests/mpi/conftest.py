"""Collective tests: every rank of mpirun runs the same test, and they vote.

One rank that fails fails the test on all, and names itself; otherwise the others would wait for it
in their next collective call for ever. Without mpirun there is nothing here to collect, and MPI is
not started: see ``tests/run_mpi.py``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpcdi.run.environment import detect

if TYPE_CHECKING:
    from mpi4py import MPI

IS_WORLD = detect(os.environ).is_world
collect_ignore_glob = [] if IS_WORLD else ["test_*.py"]
if IS_WORLD:
    from mpi4py import MPI

    WORLD = MPI.COMM_WORLD


def pytest_configure() -> None:
    """Rank 0 reports; the others say only what they have to say of failures, on stderr."""
    if IS_WORLD and WORLD.rank:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (the reporter takes it)


def _voted(item: pytest.Item, when: str) -> Generator[None, Any, Any]:
    """Run a part of a test, then see whether it passed on every rank."""
    error: BaseException | None = None
    result: object = None
    try:
        result = yield
    except BaseException as caught:
        error = caught
        if not isinstance(caught, pytest.skip.Exception):
            report = item.repr_failure(pytest.ExceptionInfo.from_exception(caught))
            sys.stderr.write(f"\n--- rank {WORLD.rank}, {item.nodeid} ({when})\n{report}\n")
    has_failed = error is not None and not isinstance(error, pytest.skip.Exception)
    failed = [rank for rank, vote in enumerate(WORLD.allgather(has_failed)) if vote]
    if error is not None:
        raise error
    if failed:
        pytest.fail(f"failed on rank {failed[0]} (of {failed}); its error is above", pytrace=False)
    return result


# Fixtures vote too: a rank that fails in one would miss the collective calls of the test's body.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fixtures' first half."""
    return (yield from _voted(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """The test itself."""
    return (yield from _voted(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fixtures' second half."""
    return (yield from _voted(item, "teardown"))


@pytest.fixture(autouse=True)
def _world_size(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("mpi")
    needed = marker.args[0] if marker is not None and marker.args else 2
    if WORLD.size < needed:
        pytest.skip(f"needs {needed} ranks: mpirun -n {needed}, this world has {WORLD.size}")


@pytest.fixture
def comm() -> Iterator[MPI.Intracomm]:
    """A communicator of the test's own."""
    private = WORLD.Dup()
    yield private
    private.Free()


@pytest.fixture
def shared_path() -> Iterator[Path]:
    """One folder, the same on every rank."""
    with tempfile.TemporaryDirectory() if WORLD.rank == 0 else _Nothing() as name:
        yield Path(WORLD.bcast(name, root=0))
        WORLD.Barrier()


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_error: object) -> None:
        return None
