"""Child processes of environments: nothing is left behind, however their parent ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.env_managers import COUNT, running, steps_of
from fakes.environments import EnvironEnv
from hpcdi.env.child_process import _launcher_variables
from hpcdi.env.create import make_env_manager
from hpcdi.env.toy import CountEnv
from hpcdi.errors import EnvError
from hpcdi.worker.dict_envs import DictManager

pytestmark = pytest.mark.usefixtures("env_helpers")


def memories() -> int:
    """Pieces of shared memory that this process holds, but for what awaits the collector."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("memfd:hpcdi-env")
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return maps + sum("memfd:hpcdi-env" in link for link in links)


def pids_of(manager: Any) -> list[int]:
    pids: list[int] = manager.child_pids
    return pids


def is_gone(pid: int, within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_close_leaves_nothing() -> None:
    with running("forkserver", [COUNT] * 2) as manager:
        pids = pids_of(manager)
        steps_of(manager, 2)
        assert memories() > 0
    assert all(map(is_gone, pids))
    assert memories() == 0


def test_an_error_leaves_nothing() -> None:
    pids = []

    def fail() -> None:
        with running("forkserver", [COUNT] * 2) as manager:
            pids.extend(pids_of(manager))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert all(map(is_gone, pids))
    assert memories() == 0


def test_a_hung_environment_is_closed_too() -> None:
    with running("forkserver", [partial(CountEnv, hang_at=1)]) as manager:
        pids = pids_of(manager)
        manager._backend.workers[0].ask(("step", 0, None, True, False))  # type: ignore[attr-defined]
    assert all(map(is_gone, pids))


PARENT = """
import os, sys, time
import numpy as np
from functools import partial
from hpcdi.env.create import make_env_manager
from hpcdi.env.toy import CountEnv

if __name__ == "__main__":
    fns = [CountEnv, partial(CountEnv, hang_at=1)]
    manager = make_env_manager({"type": "subprocess", "start_method": sys.argv[1]}, fns)
    manager.launch()
    print(*manager.child_pids, flush=True)
    if sys.argv[2] == "exit":
        sys.exit(0)
    manager.step({"action": np.zeros(2, dtype=int)})
"""


@pytest.mark.parametrize(
    ("method", "end"), [("forkserver", "kill"), ("spawn", "kill"), ("spawn", "exit")]
)
def test_children_go_when_their_parent_is_killed_or_forgets_them(
    tmp_path: Path, method: str, end: str
) -> None:
    """One of them hangs in a step, and so cannot see that its pipe is closed."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), method, end], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.stdout.close()
    assert len(pids) == 2
    if end == "kill":
        assert not is_gone(pids[1], within_s=0.2)
        parent.kill()
    assert parent.wait(30.0) == (-signal.SIGKILL if end == "kill" else 0)
    assert all(map(is_gone, pids))


@pytest.mark.parametrize("form", ["spawn"])
def test_a_child_does_not_know_of_the_launcher(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("PMIX_RANK", "3")
    monkeypatch.setenv("KEPT_BY_TEST", "1")
    with running(form, [EnvironEnv]) as manager:
        info = DictManager(manager).step({0: 0})[0].info
    assert info["variables"] == []
    assert info["kept"] == "1"
    assert not info["heavy"], "a child must not import what only ranks need"
    assert {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"} <= set(_launcher_variables())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_is_the_parents_business(number: int) -> None:
    with running("forkserver", [COUNT]) as manager:
        os.kill(pids_of(manager)[0], number)
        steps_of(manager, 3)
        assert manager.failures == 0


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_cannot_be_sent_to_a_child_says_so(method: str) -> None:
    manager = make_env_manager(
        {"type": "subprocess", "start_method": method}, [lambda: CountEnv()], seed=0
    )
    with pytest.raises(EnvError, match=r"cannot be sent to a child process.*functools.partial"):
        manager.launch()
    assert np.all(memories() == 0)
