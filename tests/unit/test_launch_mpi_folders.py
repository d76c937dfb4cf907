"""Folders for MPI's own files: each of one job, gone after it, swept where that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpcdi.errors import LaunchError
from hpcdi.launch import mpi_folders as module
from hpcdi.launch.mpi_folders import mpi_folders

HOLDER = """
import sys
from hpcdi.launch.mpi_folders import mpi_folders
with mpi_folders(one_host=True) as folders:
    print(*folders.values(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Stand for /tmp and /dev/shm."""
    temporary, memory = tmp_path / "tmp", tmp_path / "shm"
    temporary.mkdir()
    memory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(module, "_MEMORY", memory)
    monkeypatch.setenv("TMPDIR", str(temporary))
    return temporary, memory


def test_each_job_has_its_own_and_leaves_nothing(places: tuple[Path, Path]) -> None:
    temporary, memory = places
    with mpi_folders(one_host=True) as first, mpi_folders(one_host=True) as second:
        assert list(first) == [
            "PRTE_MCA_prte_local_tmpdir_base", "OMPI_MCA_btl_sm_backing_directory",
        ]  # fmt: skip
        folders = [Path(path) for path in (*first.values(), *second.values())]
        assert [path.parent for path in folders] == [temporary, memory] * 2
        assert len(set(folders)) == 4
        assert all(path.stat().st_mode & 0o777 == 0o700 for path in folders)
        (folders[0] / "ompi.1").mkdir()
        (folders[0] / "ompi.1" / "pmix.vm.tool").touch()
    assert not [*temporary.iterdir(), *memory.iterdir()]


def test_other_hosts_would_not_have_the_folder_for_shared_memory(
    places: tuple[Path, Path],
) -> None:
    with mpi_folders(one_host=False) as variables:
        assert list(variables) == ["PRTE_MCA_prte_local_tmpdir_base"]
        assert not list(places[1].iterdir())


def test_only_what_a_killed_launcher_left_is_swept(places: tuple[Path, Path]) -> None:
    temporary, _memory = places
    (temporary / "ompi.7").mkdir()  # of an mpirun that hpcdi has not started
    with (
        mpi_folders(one_host=True) as living,
        subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other,
    ):
        assert other.stdout is not None
        held = [Path(path) for path in other.stdout.readline().decode().split()]
        with mpi_folders(one_host=True):
            assert all(path.exists() for path in held)
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        assert held[0].exists()
        with mpi_folders(one_host=True):
            assert not held[0].exists()
        assert all(Path(path).exists() for path in living.values())
    assert [path.name for path in temporary.iterdir()] == ["ompi.7"]


def test_no_room_for_them_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with (
        pytest.raises(LaunchError, match=r"No such file.*Name another folder by TMPDIR"),
        mpi_folders(one_host=True),
    ):
        pass
