"""Child processes of environments: nothing is left behind, however their parent ends."""

from __future__ import annotations

import gc
import logging
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

from fakes.env_managers import COUNT, made, running, steps_of
from fakes.environments import EnvironEnv
from fakes.simulators import Leaves, Pooled, Simulated, programs_of
from fakes.slow_forks import Terminating
from hpcdi.env import child_process, in_process
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


def test_a_hung_environment_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "CLOSE_S", 0.2)
    monkeypatch.setattr(in_process, "_GIVEN_UP", set())
    with running("forkserver", [partial(CountEnv, hang_at=1)]) as manager:
        pids = pids_of(manager)
        manager._backend.workers[0].ask(("step", 0, None, True, False))  # type: ignore[attr-defined]
    assert all(map(is_gone, pids))


# ------------------------------------------------------------------------- what it starts


@pytest.mark.parametrize("form", ["forkserver", "spawn", "pool"])
@pytest.mark.parametrize(
    ("faults", "settings"),
    [({}, {"renew_after": "1 episodes"}), ({"fail_at": 2}, {"retry_type": "renew"})],
)
def test_one_that_answers_is_closed_before_it_is_made_anew(
    form: str, faults: dict[str, int], settings: dict[str, str], tmp_path: Path
) -> None:
    with running(form, [partial(Simulated, str(tmp_path), **faults)] * 2, **settings) as manager:
        steps_of(manager, 7)
        assert list(programs_of(tmp_path).values()).count(False) == 2
    programs = programs_of(tmp_path)
    assert len(programs) >= 6
    assert all(programs.values())
    assert all(map(is_gone, programs))


def test_one_that_is_retired_is_closed(tmp_path: Path) -> None:
    fns = [partial(Simulated, str(tmp_path), fail_at=at) for at in (2, 0)]
    manager = made("forkserver", fns, max_retry=0)
    manager.retires = True
    with manager:
        manager.launch()
        steps_of(manager, 3)
        assert sorted(programs_of(tmp_path).values()) == [False, True]


@pytest.mark.parametrize("form", ["forkserver", "spawn"])
@pytest.mark.parametrize(
    ("fault", "is_apart"), [("hang_at", False), ("hang_at", True), ("exit_at", False)]
)
def test_what_one_has_started_that_hangs_or_dies_is_killed(
    form: str, fault: str, is_apart: bool, tmp_path: Path
) -> None:
    make = partial(Simulated, str(tmp_path), is_apart=is_apart, **{fault: 2})
    with running(form, [make], step_timeout=1.0) as manager:
        (first,) = programs_of(tmp_path)
        steps_of(manager, 2)
        assert manager.failures == 1
        assert is_gone(first)


def test_close_comes_to_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fns = [partial(Simulated, str(tmp_path), closing_s=3)] * 2
    with caplog.at_level(logging.WARNING, "hpcdi"), running("forkserver", fns) as manager:
        began = time.monotonic()
        manager.close()
    assert time.monotonic() - began < 5.5, "they close at the same time"
    assert list(programs_of(tmp_path).values()) == [True, True]
    assert caplog.text == ""


def test_a_close_that_hangs_is_given_up_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(in_process, "CLOSE_S", 2.0)
    monkeypatch.setattr(in_process, "CLOSE_AGAIN_S", 1.0)
    monkeypatch.setattr(in_process, "_GIVEN_UP", set())
    fns = [partial(Simulated, str(tmp_path), closing_s=closing_s) for closing_s in (99, 0)]
    with caplog.at_level(logging.WARNING, "hpcdi"):
        for limit_s in (2.0, 1.0):
            with running("forkserver", fns):
                caplog.clear()
            assert f"given up of 1 of 2 environments, which took longer than {limit_s:g} s" in (
                caplog.text
            )
    assert sorted(programs_of(tmp_path).values()) == [False, False, True, True]
    assert all(map(is_gone, programs_of(tmp_path)))


def test_a_close_that_ends_the_process_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = partial(Simulated, str(tmp_path), closing_s=-1)
    with caplog.at_level(logging.WARNING, "hpcdi"), running("forkserver", [make]) as manager:
        manager.close()
    assert "close() of an environment failed (its process exited with code 3)" in caplog.text
    assert all(map(is_gone, programs_of(tmp_path)))


@pytest.mark.parametrize(
    ("form", "method"),
    [("forkserver", "fork"), ("spawn", "fork"), ("forkserver", "spawn"), ("spawn", "forkserver")],
)
def test_one_may_have_processes_of_multiprocessing(
    form: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(form, [partial(Pooled, method)]) as manager:
        taken = steps_of(manager, 2)
        assert [step.reward[0] for _, step in taken] == [2.0, 4.0]
        pids = _processes_of_group(pids_of(manager)[0])
        assert len(pids) >= 3
    assert all(map(is_gone, pids))
    assert "given up" not in caplog.text


def test_a_process_that_is_terminated_as_it_is_forked_ends(tmp_path: Path) -> None:
    with running("spawn", [partial(Terminating, str(tmp_path / "code"))]):
        assert (tmp_path / "code").read_text() == str(-signal.SIGTERM)


def test_programs_that_stay_are_waited_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_EXIT_S", 2.0)
    with running("spawn", [partial(Leaves, str(tmp_path))] * 4) as manager:
        began = time.monotonic()
        manager.close()
        assert time.monotonic() - began < 6.0
    assert all(map(is_gone, programs_of(tmp_path)))


COPY = """
import os, sys
import numpy as np
from hpcdi.env.create import make_env_manager
from hpcdi.env.toy import CountEnv

if __name__ == "__main__":
    envs = make_env_manager({"type": "subprocess", "start_method": "spawn"}, [CountEnv])
    envs.launch()
    if not (pid := os.fork()):
        sys.exit(0)
    os.waitpid(pid, 0)
    envs.step({"action": np.zeros(1, np.int64)})
    print(envs.failures)
    envs.close()
"""


def test_a_copy_of_the_process_that_ends_ends_no_environment() -> None:
    done = subprocess.run([sys.executable, "-c", COPY], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n"


@pytest.mark.parametrize("form", ["forkserver", "spawn"])
def test_its_death_is_seen_where_processes_that_it_forked_live_on(form: str) -> None:
    with running(form, [partial(Pooled, "fork", exit_at=2)]) as manager:
        pids = _processes_of_group(pids_of(manager)[0])
        steps_of(manager, 2)
        assert manager.failures == 1
        assert all(map(is_gone, pids))


def _processes_of_group(leader: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if _group_of(pid) == leader]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


# ------------------------------------------------------------------------------ its parent's end

PARENT = """
import os, sys, time
import numpy as np
from functools import partial
from hpcdi.env.create import make_env_manager
from hpcdi.env.toy import CountEnv
from fakes.simulators import Simulated

if __name__ == "__main__":
    fns = [CountEnv, partial(Simulated, sys.argv[3], hang_at=1)]
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
    script, folder, root = tmp_path / "parent.py", tmp_path / "programs", Path(__file__).parents[2]
    folder.mkdir()
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), method, end, str(folder)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"},
    )  # fmt: skip
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.stdout.close()
    assert len(pids) == 2
    if end == "kill":
        assert not is_gone(pids[1], within_s=0.2)
        parent.kill()
    assert parent.wait(30.0) == (-signal.SIGKILL if end == "kill" else 0)
    assert all(map(is_gone, [*pids, *programs_of(folder)]))


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
