"""No door stands open: listening sockets, guessable names, code that somebody else names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as torch_dist

from fakes.sockets import listening
from hpcdi.cli import main
from hpcdi.comm import group
from hpcdi.comm.group import Meeting, dist_finalize, dist_init
from hpcdi.config.load import read_mapping
from hpcdi.config.modules import named_code
from hpcdi.config.words import dump
from hpcdi.errors import CommError
from hpcdi.run import loopback
from hpcdi.run.environment import all_ranks_are_here
from hpcdi.run.loopback import keep_to_loopback
from hpcdi.run.private_folder import own_folder, own_temporary_folder
from hpcdi.store.atomic import clock_of, published, stay_in, write_text
from hpcdi.store.checkpoints import write_files

# ------------------------------------------------------------------------------------- the network


@pytest.fixture
def _no_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", group.ADDRESS_VARIABLE):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    yield
    dist_finalize()


def meet(hosts: list[str]) -> tuple[str, int, str]:
    """Forms a group of one; returns the address that it shares."""
    shared: list[tuple[str, int, str]] = []

    def share(address: tuple[str, int, str] | None) -> tuple[str, int, str]:
        assert address is not None
        shared.append(address)
        return address

    dist_init("gloo", group=Meeting(0, hosts, share))
    (address,) = shared
    return address


@pytest.mark.usefixtures("_no_group")
def test_on_one_host_the_group_listens_on_loopback_alone() -> None:
    before = set(listening(os.getpid()))
    host, port, key = meet(["here"])
    opened = set(listening(os.getpid())) - before
    assert (host, port) in opened
    assert {address for address, _ in opened} == {"127.0.0.1"}
    assert len(key) == 32
    dist_finalize()
    assert "NCCL_SOCKET_IFNAME" not in os.environ
    assert meet(["here"])[2] != key, "drawn anew"


@pytest.mark.usefixtures("_no_group")
def test_its_keys_have_the_prefix() -> None:
    host, port, key = meet(["here"])
    client = torch_dist.TCPStore(host, port, None, False, timedelta(seconds=5))
    torch_dist.PrefixStore(key, client).set("mine", "1")
    assert client.get(f"{key}/mine") == b"1"
    assert not client.check(["mine"])


@pytest.mark.usefixtures("_no_group")
@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", group.ADDRESS_VARIABLE, ""])
def test_over_hosts_it_listens_on_the_network_between_them(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    address = "127.0.0.1"
    if variable:
        monkeypatch.setenv(variable, "lo" if "IFNAME" in variable else "localhost")
    else:  # to the other host it is this way
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("198.51.100.7", 9))  # a documentation address: nothing is sent
            except OSError:
                pytest.skip("NOT TESTED: this host has no network")
            address = probe.getsockname()[0]
    before = set(listening(os.getpid()))
    store = group._serve(group._own_address(["here", "198.51.100.7"]), 0, 1, timedelta(seconds=5))
    assert store[1] == address
    assert set(listening(os.getpid())) - before == {(address, store[2])}


@pytest.mark.usefixtures("_no_group")
def test_an_address_that_is_not_this_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(group.ADDRESS_VARIABLE, "198.51.100.7")
    with pytest.raises(CommError, match=r"198\.51\.100\.7 port 0: .*HPCDI_MASTER_ADDR"):
        meet(["here", "there"])


LISTENER = """
import socket, sys
doors = [socket.socket(), socket.socket(socket.AF_INET6)]
for door, address in zip(doors, ("0.0.0.0", "::")):
    door.bind((address, 0))
    door.listen()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listener() -> Iterator[int]:
    """The number of a process whose doors are open."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child.pid
        child.stdin.close()


def test_sockets_of_a_child_are_bound_to_loopback(listener: int) -> None:
    """As mpirun's: no setting of it does that."""
    assert {address for address, _ in listening(listener)} == {"0.0.0.0", "::"}
    thread = threading.Thread(target=keep_to_loopback, args=(listener,))
    thread.start()
    thread.join(60)
    doors = listening(listener)
    assert {address for address, _ in doors} == {"0.0.0.0%lo", "::%lo"}
    for address, port in doors:
        with socket.socket() as knock:
            assert knock.connect_ex(("127.0.0.1", port)) == 0, address


SEES_ITSELF = """
import os, socket, sys
doors = [socket.socket(), socket.socket(socket.AF_INET6)]
for door, address in zip(doors, ("0.0.0.0", "::")):
    door.bind((address, 0))
    door.listen()
    print(door.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16), flush=True)
os.fork() or os._exit(0)
sys.exit(7)
"""


def test_a_child_that_is_traced_is_never_open() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SEES_ITSELF], stdout=subprocess.PIPE, text=True,
        preexec_fn=loopback.let_parent_trace,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        loopback.begin(child.pid)
        assert child.stdout.read() == "b'lo\\x00'\n" * 2
    assert child.returncode == 7


def test_who_does_not_want_it_says_so(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loopback.SWITCH, "0")
    loopback.begin(listener)
    assert not [thread for thread in threading.enumerate() if thread.name == "loopback"]
    assert {address for address, _ in listening(listener)} == {"0.0.0.0", "::"}


def test_the_search_for_doors_ends_with_the_process() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        keep_to_loopback(child.pid)


@pytest.mark.parametrize(
    ("variables", "answer"),
    [
        ({}, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
        ({"SLURM_STEP_NUM_NODES": "1"}, True),
        ({"SLURM_STEP_NUM_NODES": "2"}, False),
        ({"SLURM_STEP_NUM_NODES": "1", "SLURM_HET_SIZE": "2"}, False),
    ],
)
def test_who_needs_no_network(variables: dict[str, str], answer: bool) -> None:
    assert all_ranks_are_here(variables) is answer


# ------------------------------------------------------------------------------------- names, links


def planted(folder: Path, name: str) -> tuple[Path, Path]:
    """A link at the name that a file will have while it is written, and what it leads to."""
    victim = folder / "victim"
    victim.write_text("precious")
    with published(folder / name) as file:
        aside = Path(file.name)
    aside.symlink_to(victim)
    (folder / name).unlink()
    return aside, victim


def test_a_link_at_a_temporary_name_is_not_followed(tmp_path: Path) -> None:
    aside, victim = planted(tmp_path, "x.bin")
    write_text(tmp_path / "x.bin", "mine")
    assert victim.read_text() == "precious"
    assert (tmp_path / "x.bin").read_text() == "mine"
    assert not (tmp_path / "x.bin").is_symlink()
    assert not aside.exists()
    aside, _ = planted(tmp_path, "clock")
    before = victim.stat().st_mtime_ns
    clock_of(tmp_path)
    assert victim.stat().st_mtime_ns == before


def test_a_folder_that_is_a_link_gets_no_files(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "aside").symlink_to(tmp_path / "victim")
    with pytest.raises(Exception, match="is a link"):
        write_files(tmp_path / "aside", {"x": lambda path: path.write_text("1") and None})
    assert not list((tmp_path / "victim").iterdir())


def test_only_ones_own_folders_are_swept(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "kept").mkdir(parents=True)
    base = tmp_path / "base"
    base.mkdir()
    with own_folder(base) as own:
        prefix = own.name[: len("hpcdi-job-")]
        (base / f"{prefix}link").symlink_to(victim)
        (base / f"{prefix}dead").mkdir()
        with own_folder(base):
            assert own.is_dir(), "it is in use"
            assert not (base / f"{prefix}dead").exists()
    assert (victim / "kept").is_dir()
    assert [path.name for path in base.iterdir()] == [f"{prefix}link"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_another_users_folder_is_not_swept(tmp_path: Path) -> None:
    theirs = tmp_path / "hpcdi-job-theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with own_folder(tmp_path):
        assert theirs.is_dir()


def test_temporary_files_go_with_their_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with own_temporary_folder():
        inside = Path(tempfile.mkdtemp())
        assert inside.parent.parent == tmp_path
        assert inside.parent.stat().st_mode & 0o777 == 0o700
        with own_temporary_folder():  # of a rank whose launcher has made one
            assert Path(tempfile.mkdtemp()).parent == inside.parent
    assert not list(tmp_path.iterdir())
    assert os.environ["TMPDIR"] == str(tmp_path)


def test_temporary_files_of_multiprocessing_go_when_the_process_ends(tmp_path: Path) -> None:
    """Its servers have their sockets there until then, and it complains if the folder is gone."""
    script = (
        "from multiprocessing.util import get_temp_dir\n"
        "from hpcdi.run.private_folder import own_temporary_folder\n"
        "with own_temporary_folder():\n    print(get_temp_dir())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert Path(ran.stdout).parent.parent == tmp_path
    assert not ran.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_folder_that_is_gone_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdi.store.atomic._HOME", {})
    (tmp_path / "disk").mkdir()
    (tmp_path / "scratch").symlink_to("disk")  # as sites have them
    run = tmp_path / "scratch" / "run"
    run.mkdir()
    stay_in(run)
    write_text(run / "data" / "a" / "x", "1")
    run.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="has been moved or removed while the run was on"):
        write_text(run / "data" / "a" / "y", "1")
    with pytest.raises(FileNotFoundError, match="has been moved or removed"):
        write_text(run.resolve() / "data" / "a" / "y", "1")
    assert not run.exists()
    write_text(tmp_path / "elsewhere" / "y", "1")


# ------------------------------------------------------------------------------- code of others

MODULE = "raise RuntimeError('it was imported')"


@pytest.fixture
def foreign(kept: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of somebody else, who names a module to import."""
    import shutil

    (tmp_path / "evil_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = Path(shutil.copytree(kept("dqn"), tmp_path / "run"))
    config = read_mapping(run / "config.yaml")
    config["env"]["import_names"] = ["evil_module"]
    (run / "config.yaml").write_text(dump(config))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    return run


@pytest.mark.parametrize("command", ["eval", "export"])
def test_a_foreign_run_imports_nothing(
    foreign: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if foreign.stat().st_uid == 0:  # root may do anything anyway, so that its files are trusted
        for path in (foreign, foreign / "config.yaml"):
            os.chown(path, 54321, -1)
    assert main([command, str(foreign)]) == 2
    said = capsys.readouterr().err
    assert "may have been written by its owner, user" in said
    assert "evil_module" in said
    assert "--trust" in said
    assert "evil_module" not in sys.modules
    with pytest.raises(RuntimeError, match="it was imported"):
        main([command, str(foreign), "--trust"])


@pytest.mark.parametrize("how", ["import_path", "beside it"])
def test_a_foreign_run_adds_no_folder_to_those_that_are_searched(
    foreign: Path, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """There, an optional package that is not installed would be found."""
    monkeypatch.chdir(tmp_path)
    config = read_mapping(foreign / "config.yaml")
    config["env"]["import_names"] = []
    folder = foreign
    if how == "import_path":
        folder = tmp_path / "planted"
        config["system"]["import_path"] = [str(folder)]
    else:
        (foreign / "numba.py").write_text(MODULE)
    (foreign / "config.yaml").write_text(dump(config))
    for path in (foreign, foreign / "config.yaml"):
        path.chmod(path.stat().st_mode | 0o002)  # whoever its owner is
    assert main(["eval", str(foreign)]) == 2
    said = capsys.readouterr().err
    assert "is writable by all" in said
    assert str(folder.relative_to(tmp_path)) in said
    assert str(folder) not in sys.path


@pytest.mark.parametrize("command", ["status", "tail", "inspect"])
def test_who_only_looks_imports_nothing(foreign: Path, command: str) -> None:
    assert main([command, str(foreign)]) in (0, 1)
    assert "evil_module" not in sys.modules


def test_ones_own_run_needs_no_flag(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = (foreign / "config.yaml").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    with pytest.raises(RuntimeError, match="it was imported"):
        main(["eval", str(foreign)])
    (foreign / "config.yaml").chmod(0o666)  # anybody may have written it
    assert main(["eval", str(foreign)]) == 2


def test_all_ways_to_name_code_are_known() -> None:
    tree = {
        "env": {"env_id": "evil.module:Env-v0", "import_names": ["a", "b.c"]},
        "policy": {"model": {"type": "mine:make", "device": "cuda:0", "url": "http://x/y"}},
        "note": "a: b", "time": "12:00:00",
    }  # fmt: skip
    assert sorted(named_code(tree)) == ["a", "b.c", "evil.module:Env-v0", "mine:make"]
    program = {"env": {"type": "mpi", "env_id": "./solver.c", "manager": {"type": "mpi"}}}
    assert list(named_code(program)) == ["./solver.c"]


def test_a_module_of_somebody_else_in_the_present_folder_is_asked_for(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The run is one's own, and names a module that is not installed."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    monkeypatch.setattr(os, "geteuid", lambda: foreign.stat().st_uid)
    present = tmp_path / "present"
    present.mkdir()
    (present / "evil_module.py").write_text(MODULE)
    (present / "evil_module.py").chmod(0o666)
    monkeypatch.chdir(present)
    assert main(["eval", str(foreign)]) == 2
    said = capsys.readouterr().err
    assert "evil_module.py" in said
    assert "may have been written by" in said
    with pytest.raises(RuntimeError, match="it was imported"):
        main(["eval", str(foreign), "--trust"])


def test_a_foreign_run_names_its_module_in_front_of_a_namespace(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    config = read_mapping(foreign / "config.yaml")
    config["env"] |= {"import_names": [], "env_id": "evil_module:ns/X-v0"}
    (foreign / "config.yaml").write_text(dump(config))
    for path in (foreign, foreign / "config.yaml"):
        path.chmod(path.stat().st_mode | 0o002)
    assert main(["eval", str(foreign)]) == 2
    assert "evil_module:ns/X-v0" in capsys.readouterr().err
    assert "evil_module" not in sys.modules
