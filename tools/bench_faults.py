"""What a run bears: seeds x kinds of faults, each at a random moment of a real `mpirun -n 5`.

Rank 0 coordinates, ranks 1 and 2 learn, 3 and 4 collect; where a solver is struck (an environment
that is an MPI program, hpcdi/env/MPI.md) rank 1 learns, 2 and 3 collect, each by a group of two
ranks beside a spare one. A run that ends by its fault is started
again until it is done, as a batch script does. Of each kind the table says how often the run went
on by itself and how often it was resumed, after how many seconds the fault was noticed (a warning,
or the end of the job), how many environment steps had to be done again, how many published blocks
were lost (0 is the only good number), by how many steps the counter of a run that is done differs
from the steps that lie in its shards (0, too), and exit codes other than those of the contract in
slurm/README.md: 0 and 85, where the fault is not the user's (a launcher that was killed itself has
none to give). Fails (exit code 1) if a run hangs
(`--patience` s without progress), ends with such a code, is not brought to its end, loses data or
miscounts. What a trial shows is printed as it ends, so that one need not wait for the table.

    python tools/bench_faults.py                       every kind, 10 seeds each: hours
    python tools/bench_faults.py --quick               four kinds, one seed each
    python tools/bench_faults.py --kinds kill_learner --seeds 3 --json
    python tools/bench_faults.py --guests 50           guests (hpcdi join), killed 50 times
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from figures import Row, at_most, parsed, show
from playground import SmallDisk, enter_playground

from hpcdi.errors import StoreError
from hpcdi.league.league import Payoff
from hpcdi.roles.coordinator.snapshots import resume_from
from hpcdi.run.resume import newest_snapshot
from hpcdi.store.games import parse_games
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import read_block, survey

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "cartpole_dqn.yaml"
SOLVERS = ROOT / "tests" / "fakes" / "python_solvers.yaml"
RANKS = {"coordinator": [0], "learner": [1, 2], "collector": [3, 4], "any": [0, 1, 2, 3, 4]}
ITERATIONS, PATIENCE_S, RESUMES = 600, 90.0, 4
START_FAULTS = Path(__file__).parent / "start_faults"
SETTINGS = (
    "policy.learn.learner.learner_num=2", "policy.collect.collector.collector_num=2",
    "env.stop_value=1e9", "policy.other.commander.max_env_step=1e9",
    f"policy.other.commander.max_train_iter={ITERATIONS}",
    "policy.eval.every=20 seconds", "system.snapshot_s=2",
    "system.survival.worker_timeout_s=20", "system.auto_resume=true",
    "system.coordinator.start_timeout_s=200",
)  # fmt: skip


class Trial:
    """One run, as far as it has come.

    Args:
        folder: for the run and what it prints.
        overrides: settings of its own.
        dice: random numbers of this trial.
        start_fault: of `tools/start_faults`, once; empty: none.
        patience_s: without progress, after which the run hangs.
        prefix: before the command, that says where it runs.
        variables: of its environment.
        config: the experiment.
        ranks: of the job.
    """

    def __init__(
        self,
        folder: Path,
        overrides: Iterable[str],
        dice: random.Random,
        start_fault: str = "",
        patience_s: float = PATIENCE_S,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        config: Path = CONFIG,
        ranks: int = 5,
    ) -> None:
        self.run, self.dice, self.codes = folder / "run", dice, list[int]()
        self.hung, self._patience_s = False, patience_s
        self.launchers_killed = 0  # by `kill_all`: such an end is no exit code of a run
        self.printed, self._prefix = folder / "printed", prefix
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._arguments = [
            str(config), "-n", str(ranks), "--run-dir", str(self.run), *SETTINGS, *overrides
        ]  # fmt: skip
        paths = filter(None, [str(START_FAULTS), os.environ.get("PYTHONPATH")])
        self._variables = {
            "HPCDI_ALLOW_FAULTS": "1", "START_FAULT": start_fault,
            "START_FAULT_ONCE": str(folder / "start_fault"), "PYTHONPATH": os.pathsep.join(paths),
            **(variables or {}),
        }  # fmt: skip
        self.start()

    def start(self, *instead: str) -> None:
        """Start `hpcdi train`, or start it again, by the same command or with other arguments."""
        with self.printed.open("ab") as out:
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "hpcdi", "train",
                 *(instead or self._arguments)],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **self._variables},
            )  # fmt: skip

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The launcher."""
        assert self._process is not None
        return self._process

    def status(self) -> dict[str, Any]:
        """What the run says of itself; empty before it says anything."""
        with contextlib.suppress(OSError, json.JSONDecodeError):
            return dict(json.loads((self.run / "status.json").read_text()))
        return {}

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until something holds or the job has ended; one that makes no progress is killed."""
        seen, since = self._progress(), time.monotonic()
        while self.process.poll() is None and not until():
            time.sleep(0.02)
            if self._progress() != seen:
                seen, since = self._progress(), time.monotonic()
            if time.monotonic() - since > self._patience_s:
                self.hung = True
                self.kill_all()

    def _progress(self) -> tuple[int, int]:
        status = self.status()
        printed = self.printed.stat().st_size if self.printed.exists() else 0
        return int(status.get("train_iter", -1)), printed if not status else 0

    def pids(self) -> list[int]:
        """Of the ranks' processes."""
        facts = json.loads((self.run / "run.json").read_text())
        return [int(place["pid"]) for place in facts["placement"]]

    def solver_pids(self) -> list[int]:
        """Of the ranks of solvers that are no spare ones: they work in folders of the run."""
        found, folders = [], [self.run / "solvers" / f"env{number:05}" for number in range(2)]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if process.joinpath("cwd").readlink() in folders:
                    found.append(int(process.name))
        return sorted(found)

    def signal(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Send a rank a signal; gives when (seconds since the epoch)."""
        self._send(self.pids()[rank], number)
        return time.time()

    def _send(self, pid: int, number: int) -> None:
        """Send a signal to a process, unless it is somebody else's by now."""
        with contextlib.suppress(OSError):
            if os.fsencode(self.run) in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, number)

    def kill_all(self) -> float:
        """As if the node had gone."""
        pids = self.pids() if (self.run / "run.json").exists() else []
        for pid in [*pids, self.process.pid]:
            self._send(pid, signal.SIGKILL)
        struck = time.time()
        self.launchers_killed += self.process.wait() == -signal.SIGKILL
        time.sleep(1.0)  # mpirun sees that its parent is gone
        return struck

    def warned(self, words: str = "", after: float = 0.0) -> float:
        """When a rank has warned, or rank 0 of something else than the fault's own words."""
        for path in sorted((self.run / "log").glob("rank*.jsonl")):
            for line in path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    said = json.loads(line)
                    is_own = "injected fault" in said["message"]
                    fits = words in said["message"] if words else not is_own
                    if said["level"] == "WARNING" and fits and said["time"] >= after:
                        return float(said["time"])
        return 0.0

    def steps_off(self) -> int:
        """By how many env steps rank 0's counter differs from those that lie in shards."""
        run = json.loads((self.run / "run.json").read_text())
        shards = (self.run / "data").rglob("*.h5")
        stored = sum(block.transitions for path in shards for _, block in survey(path, "").blocks)
        return abs(int(run["figures"]["env_steps"]) - stored)

    def games_off(self) -> int:
        """By how many results a league's payoff differs from the games that lie in shards."""
        stored, league = Payoff(), Payoff()
        for path in (self.run / "data").rglob("*.h5"):
            for _, block in survey(path, "").blocks:
                for game in parse_games(str(block.facts["games"])):
                    stored.add(*game)
        league.load_state_dict(json.loads((self.run / "league.json").read_text())["payoff"])
        pairs = {*stored.pairs(), *league.pairs()}
        return sum(
            abs(one - other)
            for pair in pairs
            for one, other in zip(stored.games(*pair), league.games(*pair), strict=True)
        )

    def blocks(self) -> dict[str, float]:
        """What is published: names of blocks, and when each was sealed (seconds, of the epoch)."""
        return {
            ref.path: float(block.facts["sealed_at"])
            for path in RunLayout(self.run).shard_numbers()
            for ref, block in survey(self.run / path, path).blocks
        }


Strike = Callable[[Trial], float]
"""Makes the fault; gives when it struck (seconds since the epoch)."""


def kill_of(*roles: str, number: int = signal.SIGKILL) -> Strike:
    """Send a signal to a random rank of each of these roles, at once."""
    return lambda trial: max(trial.signal(trial.dice.choice(RANKS[r]), number) for r in roles)


def strike_solver(number: int) -> Strike:
    """Send a signal to a random rank of a random solver."""

    def strike(trial: Trial) -> float:
        if pids := trial.solver_pids():
            os.kill(trial.dice.choice(pids), number)
        return time.time()

    return strike


def solver_by_itself(trial: Trial) -> float:
    """A solver goes wrong by itself, at a step that its settings name."""
    once = trial.run.parent / "once"
    trial.wait(once.exists)
    return once.stat().st_mtime if once.exists() else time.time()


def kill_in_snapshot(trial: Trial) -> float:
    """Everything dies while a snapshot is being written."""
    aside = trial.run / "snapshots"
    trial.wait(lambda: any(p.name.startswith(".") for p in aside.glob(".*")))
    return trial.kill_all()


def before_the_first_snapshot(trial: Trial) -> float:
    """A rank dies when the run has begun, and has no snapshot yet."""
    trial.wait(lambda: (trial.run / "log").exists() and bool(trial.pids()))
    return trial.signal(trial.dice.randrange(5))


def full_disk_at_the_end(trial: Trial) -> float:
    """A real one: no room for the last files, for 20 s."""
    disk = SmallDisk(trial.run.parent)
    trial.wait(lambda: int(trial.status().get("train_iter", 0)) >= ITERATIONS - 250)
    disk.fill()
    struck = time.time()
    trial.wait(lambda: time.time() >= struck + 20.0)
    disk.free()
    return struck


def in_the_start(_trial: Trial) -> float:
    """The fault has come by itself, before anything else."""
    return 0.0


def by_itself(trial: Trial) -> float:
    """The run has its fault from its configuration; it may have ended before anybody looks."""
    words = "injected fault"
    trial.wait(lambda: trial.warned(words) > 0)
    return trial.warned(words)


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        strike: makes it.
        fault: of the configuration's `fault`; the step is drawn.
        role: whose fault that is.
        steps: from and to which step of that role.
        settings: of its runs.
        may_lose: blocks that are damaged on purpose.
        start_fault: of `tools/start_faults`, on a rank of `role`.
        disk: size of a file system of its own; empty: it has none.
        waits: whether the fault comes only when the run learns.
        codes: exit codes that are right.
        solver: how an environment that is an MPI program goes wrong; empty: not by itself.
        config: the experiment.
        ranks: of the job.
    """

    strike: Strike = by_itself
    fault: str = ""
    role: str = ""
    steps: tuple[int, int] = ()
    settings: tuple[str, ...] = ()
    may_lose: int = 0
    start_fault: str = ""
    disk: str = ""
    waits: bool = True
    codes: tuple[int, ...] = (0, 85)
    solver: str = ""
    config: Path = CONFIG
    ranks: int = 5

    def overrides(self, dice: random.Random, folder: Path) -> list[str]:
        """Settings of one trial."""
        if self.solver:
            wrong = {
                "how": self.solver, "at": dice.randint(1, 99), "only": dice.randrange(2),
                "culprit": dice.randrange(2), "once": str(folder / "once"),
                "after": dice.randint(0, 3),
            }  # fmt: skip
            return [
                *self.settings,
                *(f"env.kwargs.{name}={value}" for name, value in wrong.items()),
            ]
        if not self.fault:
            return list(self.settings)
        rank = dice.choice(RANKS[self.role])
        steps = {"collector": (1000, 6000), "learner": (20, 400), "coordinator": (1, 4)}
        step = dice.randint(*(self.steps or steps[self.role]))
        return [*self.settings, f"fault={{kind: {self.fault}, rank: {rank}, at_step: {step}}}"]


LONG = ("policy.other.commander.max_train_iter=12000",)  # else it is over before it is noticed
SURVIVE = ("system.survival.on_worker_error=continue",)
USERS = (0, 1)
ON_SOLVERS = (
    "policy.learn.learner.learner_num=1", "env.collector_env_num=1", "env.spares=1",
    "policy.eval.every=500 env_steps", "policy.other.commander.max_env_step=1500",
    "policy.other.commander.max_train_iter=1e9", "env.kwargs.how=", "env.manager.step_timeout=5",
)  # fmt: skip


def of_solver(strike: Strike = solver_by_itself, solver: str = "") -> Kind:
    """A fault of an environment that is an MPI program; a spare group waits at each collector."""
    return Kind(strike, settings=ON_SOLVERS, solver=solver, config=SOLVERS, ranks=8 + 2 * 2)


CHILDREN = ("env.manager.type=subprocess", "env.manager.step_timeout=3")
KINDS = {
    "kill_collector": Kind(kill_of("collector")),
    "kill_learner": Kind(kill_of("learner")),
    "kill_coordinator": Kind(kill_of("coordinator")),
    "kill_collector_and_learner": Kind(kill_of("collector", "learner")),
    "kill_everything": Kind(Trial.kill_all),
    "kill_in_snapshot": Kind(kill_in_snapshot),
    "raise_in_collector": Kind(fault="raise", role="collector", settings=SURVIVE),
    "raise_in_learner": Kind(fault="raise", role="learner", settings=SURVIVE),
    "raise_ends_the_run": Kind(fault="raise", role="collector", codes=USERS),
    "hang_in_collector": Kind(fault="hang", role="collector"),
    "hang_in_learner": Kind(fault="hang", role="learner"),
    "hang_in_coordinator": Kind(fault="hang", role="coordinator"),
    "frozen_collector": Kind(kill_of("collector", number=signal.SIGSTOP), settings=LONG),
    "frozen_learner": Kind(kill_of("learner", number=signal.SIGSTOP)),
    "frozen_coordinator": Kind(kill_of("coordinator", number=signal.SIGSTOP)),
    "killed_in_mpi_init": Kind(in_the_start, role="any", start_fault="killed_in_init", waits=False),
    "import_error_on_one_rank": Kind(
        in_the_start, role="any", start_fault="import_error", waits=False
    ),
    "killed_while_the_group_forms": Kind(
        in_the_start, role="learner", start_fault="killed_in_group", waits=False
    ),
    "killed_before_the_first_snapshot": Kind(before_the_first_snapshot, waits=False),
    "full_disk_at_the_end": Kind(full_disk_at_the_end, disk="64m"),
    "environment_hangs": Kind(fault="env_hang", role="collector", settings=CHILDREN),
    "torn_shard": Kind(fault="torn_shard", role="collector", may_lose=1),
    "no_room_for_3_s": Kind(fault="enospc, seconds: 3", role="collector"),
    "preempted_by_usr2": Kind(kill_of("collector", number=signal.SIGUSR2)),
    "terminated": Kind(kill_of("coordinator", number=signal.SIGTERM)),
    "solver_killed": of_solver(strike_solver(signal.SIGKILL)),
    "solver_stopped": of_solver(strike_solver(signal.SIGSTOP)),
    "solver_segmentation_fault": of_solver(strike_solver(signal.SIGSEGV)),
    "solver_aborts": of_solver(solver="abort"),
    "solver_nan": of_solver(solver="nan"),
}
QUICK = ("kill_collector", "kill_learner", "kill_everything", "terminated")


@dataclass
class Result:
    """What came of a kind's trials, a value for each."""

    survived: int = 0
    resumed: int = 0
    failed: int = 0
    hung: int = 0
    noticed_s: list[float] = field(default_factory=list)
    steps_again: list[int] = field(default_factory=list)
    blocks_lost: int = 0
    steps_off: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    wrong_codes: int = 0


def try_once(
    kind: Kind, seed: int, folder: Path, result: Result, patience_s: float = PATIENCE_S
) -> str:
    """One run with one fault, to its end; returns a line on it."""
    if kind.disk:
        SmallDisk(folder).mount(kind.disk)
    dice = random.Random(seed)
    start_fault = f"{kind.start_fault}:{dice.choice(RANKS[kind.role])}" if kind.start_fault else ""
    paths = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    trial = Trial(
        folder, [f"seed={seed}", *kind.overrides(dice, folder)], dice, start_fault, patience_s,
        config=kind.config, ranks=kind.ranks,
        variables={"PYTHONPATH": paths} if kind.config == SOLVERS else None,
    )  # fmt: skip
    if kind.waits:
        trial.wait(lambda: int(trial.status().get("train_iter", 0)) > 0)
    if kind.waits and kind.strike is not by_itself:
        moment = time.monotonic() + dice.uniform(0.0, 2.0)
        trial.wait(lambda: time.monotonic() >= moment)
    published, struck = set(trial.blocks()), kind.strike(trial)
    published |= {name for name, sealed_at in trial.blocks().items() if sealed_at < struck}
    steps_again = 0
    for _ in range(RESUMES):
        trial.wait()
        trial.codes.append(trial.process.returncode)
        ended = time.time()
        if len(trial.codes) == 1 and struck:
            noticed = trial.warned(after=struck) or ended
            result.noticed_s.append(max(0.0, min(noticed, ended) - struck))
        if trial.codes[-1] == 0 or trial.hung:
            break
        steps_again += steps_to_do_again(trial)
        trial.start()
    is_done = trial.codes[-1] == 0
    lost = lost_blocks(trial.run, published, kind.may_lose)
    steps_off = trial.steps_off() if is_done else 0
    result.steps_again.append(steps_again)
    result.blocks_lost += lost
    result.steps_off += steps_off
    result.codes.update(trial.codes)
    wrong_codes = sum(code not in kind.codes for code in trial.codes)
    result.wrong_codes += wrong_codes - trial.launchers_killed
    result.hung += trial.hung
    result.survived += is_done and len(trial.codes) == 1
    result.resumed += is_done and len(trial.codes) > 1
    result.failed += not is_done
    hung = ", HUNG" * trial.hung
    return f"exit codes {trial.codes}, {lost} blocks lost, counter off by {steps_off} steps{hung}"


GUESTS = 2
ONE_OF_EACH = (
    "policy.learn.learner.learner_num=1", "policy.collect.collector.collector_num=1",
    "policy.other.commander.max_train_iter=1e9", "system.guests.timeout_s=10",
)  # fmt: skip


class Guests:
    """Two guests of a run, each started again whenever it is killed.

    Args:
        trial: the run.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial, self._count = trial, 0
        self.processes = [self._start() for _ in range(GUESTS)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._count += 1
        out = self._trial.run.parent / f"guest{self._count}"
        with out.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "hpcdi", "join", str(self._trial.run)],
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def kill_one(self, *, starts: bool = True) -> None:
        """Kill one of them with -9, and start another in its place."""
        number = self._trial.dice.randrange(len(self.processes))
        self.processes[number].kill()
        self.processes.pop(number).wait()
        if starts:
            self.processes.append(self._start())

    def kill_all(self) -> None:
        """Kill all of them."""
        while self.processes:
            self.kill_one(starts=False)


def try_guests(kills: int, seed: int, folder: Path, patience_s: float) -> list[Row]:
    """A run of a learner and a collector, whose two guests are killed at random moments.

    At the end all are dead, and the run goes on; SIGTERM ends it. Its counter and its shards must
    agree, and no item may be there twice.
    """
    trial = Trial(folder, [f"seed={seed}", *ONE_OF_EACH], random.Random(seed),
                  patience_s=patience_s, ranks=3)  # fmt: skip
    trial.wait(lambda: int(trial.status().get("train_iter", 0)) > 0)
    guests, killed, began = Guests(trial), 0, time.monotonic()
    try:
        trial.wait(lambda: len(trial.status().get("guests", {}).get("here", {})) == GUESTS)
        start_s = time.monotonic() - began
        while killed < kills and trial.process.poll() is None:
            # some are killed in their start
            moment = time.monotonic() + trial.dice.uniform(0.0, 1.5 * start_s)
            trial.wait(lambda moment=moment: time.monotonic() >= moment)
            guests.kill_one()
            killed += 1
            said = trial.status().get("guests", {})
            sys.stderr.write(f"guest {killed} of {kills} is killed; the run says {said}\n")
    finally:
        guests.kill_all()
    reached = int(trial.status().get("train_iter", 0))
    trial.wait(lambda: int(trial.status()["train_iter"]) >= reached + 100)
    goes_on = trial.process.poll() is None
    trial.process.send_signal(signal.SIGTERM)
    trial.wait()
    by_guests = trial.status().get("guests", {})
    return [
        at_most("guests: env steps counted more or less than are stored", trial.steps_off(),
                "steps", 0, peer=f"of {trial.status().get('env_steps')}"),
        at_most("guests: items that are there twice", items_twice(trial.run), "items", 0),
        at_most("guests: hangs", int(trial.hung), "runs", 0),
        at_most("guests: runs that did not go on without them", int(not goes_on), "runs", 0,
                peer=f"exit code {trial.process.returncode}"),
        Row("guests: env steps that they made", by_guests.get("env_steps", 0), "steps",
            peer=f"{by_guests.get('gone', 0)} guests; {killed} kills"),
    ]  # fmt: skip


def items_twice(run: Path) -> int:
    """Items whose number lies in a run's shards more than once."""
    count = Counter[int]()
    for path in RunLayout(run).shard_numbers():
        for _, block in survey(run / path, path).blocks:
            count.update(block.items["item_id"].tolist())
    return sum(number > 1 for number in count.values())


def steps_to_do_again(trial: Trial) -> int:
    """Environment steps that the run had counted and that a resumed one has not."""
    layout = RunLayout(trial.run)
    try:
        resumed = resume_from(layout, newest_snapshot(layout))
    except StoreError:
        return 0  # no snapshot yet: told as a failure
    return max(0, int(trial.status()["env_steps"]) - resumed.facts["env_steps"] - resumed.later)


def lost_blocks(run: Path, published: set[str], may_lose: int) -> int:
    """Blocks that were published and cannot be read any more, every checksum verified."""
    damaged = 0
    for name in published:
        try:
            read_block(run / name)
        except StoreError:
            damaged += 1
    return max(0, damaged - may_lose)


def rows_of(name: str, result: Result) -> list[Row]:
    """The figures of a kind."""
    codes = ", ".join(f"{code} x {count}" for code, count in sorted(result.codes.items()))
    noticed, again = result.noticed_s or [float("nan")], result.steps_again or [0]
    went_on = f"{result.survived} went on, {result.resumed} resumed; exit codes {codes}"
    return [
        at_most(f"{name}: runs that were not brought to their end", result.failed, "runs", 0,
                peer=went_on),
        at_most(f"{name}: published blocks lost", result.blocks_lost, "blocks", 0),
        at_most(f"{name}: env steps counted more or less than are stored", result.steps_off,
                "steps", 0),
        Row(f"{name}: noticed after (median)", median(noticed), "s",
            peer=f"max {max(noticed):.2f}"),
        Row(f"{name}: env steps done again (median)", median(again), "steps",
            peer=f"max {max(again)}"),
        at_most(f"{name}: hangs", result.hung, "runs", 0),
        at_most(f"{name}: exit codes against the contract", result.wrong_codes, "codes", 0),
    ]  # fmt: skip


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--seeds", type=int, default=10, help="trials of each kind")
    parser.add_argument("--quick", action="store_true", help="four kinds, one seed each")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the runs there")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        metavar="S",
        help="without progress, after which a run hangs; more on a busy machine",
    )
    parser.add_argument("--guests", type=int, metavar="N", help="kill N guests of one run instead")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parsed(parser, kinds=QUICK, seeds=1)
    if given.guests is not None:
        base = Path(given.keep or tempfile.mkdtemp(prefix="hpcdi-faults-"))
        rows = try_guests(given.guests, 0, base / "guests", given.patience)
        show(rows, given.json)
        return int(any(row.ok is False for row in rows))
    if any(KINDS[name].disk for name in given.kinds):
        enter_playground()
    results = {name: Result() for name in given.kinds}
    for seed in range(given.seeds):
        for name, result in results.items():
            base = given.keep or tempfile.mkdtemp(prefix="hpcdi-faults-")
            folder, began = Path(base) / f"{name}-{seed}", time.monotonic()
            said = try_once(KINDS[name], seed, folder, result, given.patience)
            took_s = time.monotonic() - began
            sys.stderr.write(f"{name}, seed {seed}: {said}; {took_s:.0f} s ({folder})\n")
    rows = [row for name, result in results.items() for row in rows_of(name, result)]
    show(rows, given.json)
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
