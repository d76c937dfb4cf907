"""Runs of a sweep as child processes: which are started again, and how they are ended."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fakes.serial_runs import ROOT
from hpcdi import cli
from hpcdi.commands.sweep import here
from hpcdi.commands.sweep.here import Adopted, LocalRuns, Rounds, _Started
from hpcdi.commands.sweep.runs import Sweep, keep, look, make, read
from hpcdi.run import job_end, run_folder, run_lock
from hpcdi.run.job_end import EndTime
from hpcdi.run.shares import Share

SHELL = shutil.which("sh") or ""
CONFIG = str(ROOT / "configs" / "cartpole_dqn.yaml")


@pytest.fixture(scope="module")
def made() -> tuple[Sweep, list[dict[str, object]]]:
    return make(CONFIG, ["seed=0,1"], None, 0, serial=True)


@pytest.fixture
def root(made: tuple[Sweep, list[dict[str, object]]], tmp_path: Path) -> Path:
    sweep, experiments = made
    keep(Sweep(**{**vars(sweep), "root": tmp_path / "s"}), experiments)
    return tmp_path / "s"


def plant(monkeypatch: pytest.MonkeyPatch, script: Callable[[Path], str]) -> None:
    """Lets a script of the shell be each run, by its folder."""
    monkeypatch.setattr(
        here, "command_of", lambda sweep, index: [SHELL, "-c", script(sweep.run_dir(index))]
    )


class Process(Adopted):
    """A process that keeps the signals that it gets."""

    def __init__(self) -> None:
        self.signals = list[int]()

    def send_signal(self, sig: int, /) -> None:
        self.signals.append(sig)


@pytest.mark.parametrize(
    ("place", "number", "expected"),
    [
        (None, signal.SIGTERM, [signal.SIGTERM, signal.SIGTERM]),
        (Share(0, 2), signal.SIGINT, [signal.SIGINT, signal.SIGINT]),
        # srun kills by these: its step gets one that is passed on, and is killed the second time
        (Share(0, 1, "n1"), signal.SIGTERM, [signal.SIGUSR2, signal.SIGTERM]),
        (Share(0, 1, "n1"), signal.SIGINT, [signal.SIGUSR2, signal.SIGTERM]),
        (Share(0, 1, "n1"), signal.SIGHUP, [signal.SIGUSR2, signal.SIGTERM]),
        (Share(0, 2), signal.SIGHUP, [signal.SIGHUP, signal.SIGHUP]),
        (Share(0, 1, "n1"), signal.SIGUSR2, [signal.SIGUSR2, signal.SIGUSR2]),
    ],
)
def test_a_run_ends_in_order_by_the_signal_that_reaches_it(
    place: Share | None, number: int, expected: list[int]
) -> None:
    process = Process()
    started = _Started(process, 0.0, place, b"")
    started.end(number)
    started.end(number, is_first=False)
    assert process.signals == expected


class Asked(Rounds):
    """A searcher that thinks about its second trial while a signal comes."""

    def more(self, running: Sequence[int]) -> Sequence[int]:
        """See `Supply.more`."""
        if not running:
            return super().more(running)
        signal.raise_signal(signal.SIGTERM)
        return [1]


def test_a_signal_while_the_next_run_is_asked_for_starts_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, lambda _run: "exec sleep 9")
    assert LocalRuns(root, Asked(iter([[0]])), [None, None]).run() == 143
    assert read(root).output(0).exists()
    assert not read(root).output(1).exists()


def test_a_signal_while_a_run_is_started_reaches_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = here.open_to_append

    def signalled(path: Path) -> int:
        signal.raise_signal(signal.SIGTERM)
        return opened(path)

    monkeypatch.setattr(here, "open_to_append", signalled)
    plant(monkeypatch, lambda _run: "exec sleep 60")
    assert LocalRuns(root, Rounds(iter([[0]])), [None]).run() == 143


def test_a_signal_that_srun_loses_while_it_makes_a_step_comes_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = root / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(
        "#!/bin/sh\ntrap '' USR2; sleep 0.3; trap 'exit 85' USR2\n"
        "for _ in $(seq 50); do sleep 0.1; done\n"
    )
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(srun.parent), prepend=os.pathsep)
    opened = here.open_to_append

    def signalled(path: Path) -> int:
        signal.raise_signal(signal.SIGINT)
        return opened(path)

    monkeypatch.setattr(here, "open_to_append", signalled)
    began = time.monotonic()
    assert LocalRuns(root, Rounds(iter([[0]])), [Share(0, 1, "n1")]).run() == 130
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("begins", "starts"),
    [(True, 7), (False, 4)],
    ids=["as often as it begins", "four times that it does not"],
)
def test_a_run_is_started_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, begins: bool, starts: int
) -> None:
    """It dies six times, and is done at the seventh."""

    def script(run: Path) -> str:
        change = f"echo >> {run}/run.json;" * begins
        count = f"echo >> {root}/starts; [ $(wc -l < {root}/starts) = 7 ] || exit 85"
        return f"mkdir -p {run}; {change} {count}"

    plant(monkeypatch, script)
    monkeypatch.setattr(here, "IN_VAIN_S", 0.0)
    code = LocalRuns(root, Rounds(iter([[0]])), [None]).run()
    assert (root / "starts").read_text().count("\n") == starts
    assert begins or code == 85, "what the machine has failed is to be resumed"


@pytest.mark.parametrize(
    ("end", "starts"),
    [
        ("kill -9 $$", 2),
        ("exit 137", 2),  # srun says so of its step
        ("exit 0", 2),  # and so where it has lost the host
        ("echo '{\"exit_code\": 0}' > RUN/run.json; exit 0", 1),
        ("echo '{\"exit_code\": 85}' > RUN/run.json; kill -9 $$", 2),
        ("echo '{\"exit_code\": 1}' > RUN/run.json; kill -9 $$", 1),
        ("kill -TERM $$", 1),  # somebody wants it
        ("exit 143", 1),
    ],
)
def test_a_run_that_was_killed_is_started_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, end: str, starts: int
) -> None:
    """Unless it has left a verdict of its own."""

    def script(run: Path) -> str:
        begins = f'mkdir -p {run}; echo \'{{"state": "running"}}\' > {run}/run.json'
        last = f"echo >> {root}/starts; [ $(wc -l < {root}/starts) = 1 ] || exit 1"
        return f"{begins}; {last}; {end.replace('RUN', str(run))}"

    plant(monkeypatch, script)
    LocalRuns(root, Rounds(iter([[0]])), [None]).run()
    assert (root / "starts").read_text().count("\n") == starts


def test_a_run_that_was_killed_on_another_host_starts_once_its_lock_is_old(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "SILENT_S", 0.8)
    monkeypatch.setattr(here, "IN_VAIN_S", 0.0)

    def script(run: Path) -> str:
        begins = f"cp -r {root}/held {run}; date +%s.%N >> {root}/starts"
        return f"{begins}; [ $(wc -l < {root}/starts) = 1 ] || exit 0; kill -9 $$"

    hold(root / "held")
    plant(monkeypatch, script)
    LocalRuns(root, Rounds(iter([[0]])), [None]).run()
    first, second = map(float, (root / "starts").read_text().split())
    assert second - first > 0.8


def test_a_terminal_that_closes_ends_the_runs_and_then_the_sweep(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGHUP, lambda *_: None)  # the tests may run under nohup
    try:
        plant(
            monkeypatch,
            lambda _run: (
                f"trap 'touch {root}/heard; exit 85' HUP; kill -HUP $PPID; "
                "for _ in $(seq 30); do sleep 0.1; done"
            ),
        )
        assert LocalRuns(root, Rounds(iter([[0]])), [None]).run() == 85
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (root / "heard").exists()


def test_a_start_in_vain_is_waited_for_and_keeps_nobody_else(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "IN_VAIN_S", 0.5)
    plant(
        monkeypatch,
        lambda run: f"date +{run.name}:%s.%N >> {root}/starts; [ {run.name} = 001 ] || exit 85",
    )
    assert LocalRuns(root, Rounds(iter([[0, 1]])), [None]).run() == 85
    starts = [line.split(":") for line in (root / "starts").read_text().splitlines()]
    assert [name for name, _ in starts] == ["000", "001", "000", "000", "000"]
    assert float(starts[-1][1]) - float(starts[0][1]) > 1.5


def hold(run: Path) -> None:
    """Lets a run be on for a host that was lost: its lock is fresh."""
    layout = run_folder.claim(run, {"exp_name": "x"}, [], mpi="none")
    holder = dataclasses.replace(run_lock.this_process(), host="node9")
    layout.lock_file.write_text(json.dumps(dataclasses.asdict(holder)))
    facts = {**json.loads(layout.run_file.read_text()), "host": "node9"}
    layout.run_file.write_text(json.dumps(facts))


def test_a_run_whose_folder_is_in_use_is_not_done(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep is resumed, and nobody compared."""
    hold(root / "000")
    monkeypatch.setattr(here, "IN_VAIN_S", 0.0)
    plant(monkeypatch, lambda _run: f"echo >> {root}/starts; exit 2")
    assert LocalRuns(root, Rounds(iter([[0], [1]])), [None]).run() == 85
    assert (root / "starts").read_text().count("\n") == 4
    assert not read(root).output(1).exists()


def test_a_sweep_whose_job_ends_while_it_waits_for_a_folder_is_not_done(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("000", "001"):
        hold(root / run)
    plant(monkeypatch, lambda _run: "exit 2")
    runs = LocalRuns(root, Rounds(iter([[0]])), [None])
    may_start = property(lambda me: not (me._waiting and me._in_vain[0]))  # not once it pauses
    monkeypatch.setattr(LocalRuns, "_may_start", may_start)
    assert runs.run() == 85
    assert "run 0 is not done" in capsys.readouterr().err


def test_a_run_that_is_refused_at_its_start_is_no_waiting_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, lambda run: f"exit {2 * (run.name == '001')}")
    assert LocalRuns(root, Rounds(iter([[0, 1]])), [None]).run() == 1
    assert cli.main(["sweep", "status", str(root)]) == 1
    said = capsys.readouterr().out
    assert "2 runs, 1 waiting, 1 refused" in said
    assert f"refused      see {root}/output/001.out" in said
    run_folder.claim(root / "001", {"exp_name": "x"}, [], mpi="none")
    assert look(read(root))[0].elements[1].state == "dead", "it has begun since"


@pytest.mark.parametrize(("host", "starts"), [("n1", 2), ("", 1)])
def test_a_step_that_srun_cannot_start_is_started_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, host: str, starts: int
) -> None:
    """Its own exit code is 1, as that of a run: which has begun, or is no step."""
    srun = root / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(
        f"#!/bin/sh\necho >> {root}/starts; [ $(wc -l < {root}/starts) = 2 ] || exit 1\n"
    )
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(srun.parent), prepend=os.pathsep)
    monkeypatch.setattr(here, "IN_VAIN_S", 0.0)
    plant(monkeypatch, lambda _run: "srun")
    assert LocalRuns(root, Rounds(iter([[0]])), [Share(0, 1, host)]).run() == 1
    assert (root / "starts").read_text().count("\n") == starts


def test_a_run_on_a_share_is_told_the_end_of_the_job_as_it_is_now(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "900")
    ends = int(time.time()) + 5000
    monkeypatch.setattr(here, "job_end", lambda _variables, _now: EndTime(ends, may_move=True))
    plant(monkeypatch, lambda _run: f"echo $SLURM_JOB_END_TIME > {root}/end")
    LocalRuns(root, Rounds(iter([[0]])), [Share(0, 1)]).run()
    assert abs(int((root / "end").read_text()) - ends) <= 1


def test_what_the_end_of_the_job_has_ended_is_not_started_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue, which is asked whether that end still holds, has answered before the run ends."""

    def asked(_variables: object, now: float) -> float:
        time.sleep(0.3)
        return now

    monkeypatch.setattr(here, "job_end", lambda _variables, now: EndTime(now + 1.5, may_move=True))
    monkeypatch.setattr(job_end, "asked_end", asked)
    monkeypatch.setattr(job_end, "_ASK_S", 0.1)
    monkeypatch.setattr(here, "LEAST_TIME_LEFT_S", 1.0)
    plant(monkeypatch, lambda _run: f"echo >> {root}/starts; sleep 1.2; exit 85")
    assert LocalRuns(root, Rounds(iter([[0]])), [None]).run() == 85
    assert (root / "starts").read_text() == "\n"
