"""Where members of a process group find each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from link_contract import RANKS

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks share few cores

import torch
import torch.distributed
from mpi4py import MPI

from hpcdi.comm import rendezvous
from hpcdi.comm.dist import allreduce, dist_finalize, dist_init

pytestmark = pytest.mark.mpi(RANKS)

LIMIT_S = 50.0


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "to be restored")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.delenv(rendezvous.ADDRESS_VARIABLE, raising=False)
    yield
    dist_finalize()


def kind_of_store(comm: MPI.Intracomm) -> str:
    """Form a group, use it, leave it; gives the class of its store."""
    dist_init("gloo", timeout=LIMIT_S, group=comm)
    store = torch.distributed.distributed_c10d._get_default_store()
    while isinstance(store, torch.distributed.PrefixStore):
        store = store.underlying_store
    second = torch.distributed.new_group()  # which meets in the same store
    x = torch.tensor([float(comm.Get_rank())])
    allreduce(x, group=second)
    assert x.item() == (comm.Get_size() - 1) / 2
    kind = type(store).__name__
    del store, second
    dist_finalize()
    return kind


def test_members_on_one_host_ask_nobody_for_names(comm: MPI.Intracomm) -> None:
    """A TCPStore asks DNS, and waits for seconds where that does not answer."""
    assert kind_of_store(comm) == "FileStore"


def test_groups_one_after_the_other_leave_one_open_file(comm: MPI.Intracomm) -> None:
    kind_of_store(comm)
    before = _open_files()
    for _ in range(3):
        assert kind_of_store(comm) == "FileStore"
    assert _open_files() == before
    assert before.count("/memfd:hpcdi-group (deleted)") == 1


@pytest.mark.parametrize("blind", [0, RANKS - 1])
def test_where_a_member_cannot_open_the_file_all_take_an_address(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, blind: int
) -> None:
    """In a container of its own it sees other processes, or the same number of another one."""
    if comm.Get_rank() == blind:
        opened = rendezvous._opened
        monkeypatch.setattr(
            rendezvous, "_opened", lambda place: opened((f"/proc/{os.getpid()}/fd/0", place[1]))
        )
    before = _open_files()
    assert kind_of_store(comm) == "TCPStore"
    assert _open_files() == before


def test_an_address_that_one_member_is_given_counts_for_all(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.Get_rank() == 0:
        monkeypatch.setenv(rendezvous.ADDRESS_VARIABLE, "127.0.0.1")
    assert kind_of_store(comm) == "TCPStore"


def _open_files() -> list[str]:
    """What this process has open, without sockets, pipes and the like, which libraries keep."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        if entry.exists() or entry.is_symlink():
            found.append(str(entry.readlink()))
    return sorted(name for name in found if name.startswith("/") and "/proc/" not in name)
