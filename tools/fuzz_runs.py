"""Short runs of experiments that are drawn by chance, compared with the bare truth.

An experiment is drawn by its number (`fuzz_draw`): an odd environment (`odd_envs`), alone, with
goals, as a team or a league, an algorithm that takes its spaces, and settings. It runs for some
hundred steps in one process or over ranks, perhaps until a signal ends it or one of its ranks; then
it is resumed, perhaps in the other mode, evaluated in several ways, inspected and exported. What
ends in another way than well, or by a refusal of the configuration by name (exit code 2), is
printed with what it said; so is all that `fuzz_truth` finds in the run folder, evaluations and
deterministic runs that differ from their twins, and what is left behind. The folder is kept then.

    python tools/fuzz_runs.py                          ten minutes, from number 0
    python tools/fuzz_runs.py --first 500 --minutes 60
    python tools/fuzz_runs.py --only 137               this one, once more
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import fcntl
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import yaml
from fuzz_draw import STEPS_LATER, TRIED, Settings, experiment
from fuzz_truth import Run, objections

import hpcdi
from hpcdi import cli
from hpcdi.errors import ConfigError
from hpcdi.store.atomic import read_json
from hpcdi.store.policies import read_policy

LIMIT_S = 60.0
"""Of a command; no experiment needs as long."""
_MARK = "FUZZ_RUNS_EXPERIMENT"
"""Environment variable of an experiment's processes: its folder."""
_LEFT_S = 10.0
"""Seconds that its last processes may take to end."""
_SHARED = Path("/dev/shm")
_TOOLS = Path(__file__).parent
_UNSEEN = {"env.eval_kwargs.journal": ""}
"""Evaluations that no journal knows of."""


REFUSED = [0]
"""How many experiments were refused by name."""


class End(NamedTuple):
    """How a command ended, and what ended it, if anything did."""

    code: int
    said: str
    by: str = ""


def main() -> None:
    """Draw, run, and print what fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number to begin with")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long new ones begin (10)")
    parser.add_argument("--only", type=int, metavar="N", help="run one experiment, and say all")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="fuzz_runs_"))
    until, number, failed = time.monotonic() + 60 * given.minutes, given.first, 0
    if given.only is not None:
        failed += not passes(given.only, folder, says_all=True)
    else:
        while time.monotonic() < until:
            failed += not passes(number, folder)
            number += 1
        print(
            f"{number - given.first} experiments, {failed} failed, {REFUSED[0]} refused; ", end=""
        )
        print(f"{len(TRIED)} values of settings by turns")
    if failed:
        sys.exit(f"what has failed lies in {folder}")
    shutil.rmtree(folder)


def passes(number: int, folder: Path, *, says_all: bool = False) -> bool:
    """Run an experiment; returns whether nothing is wrong with it."""
    here = folder / str(number)
    here.mkdir()
    faulthandler.dump_traceback_later(10 * LIMIT_S, exit=True)
    trial, began = Trial(number, here, says_all=says_all), time.monotonic()
    wrong = [*trial.played()]
    REFUSED[0] += trial.ways[-1] == "REFUSED"
    for said in wrong:
        print(f"{number}: {said}", flush=True)
    if says_all or wrong:
        print(f"{number}: {time.monotonic() - began:.0f} s, {trial.ways}", flush=True)
    if not wrong:
        shutil.rmtree(here)
    return not wrong


class Trial:
    """An experiment, and what is made of it.

    Args:
        number: of the experiment.
        here: its folder.
        says_all: print what commands say.

    Attributes:
        ways: commands, and what ended them.
    """

    def __init__(self, number: int, here: Path, *, says_all: bool) -> None:
        self._rng, self._here, self._says_all = random.Random(f"trial {number}"), here, says_all
        self._run, self.ways = here / "run", list[str]()
        for name in ("tmp", "places"):
            (here / name).mkdir()
        self._drawn = experiment(number, here, self._given)
        self._config = here / "experiment.yaml"
        self._config.write_text(yaml.safe_dump(self._drawn, sort_keys=False))
        self._was_killed = False

    def played(self) -> Iterator[str]:
        """Runs all commands; yields what is wrong."""
        rng, shared = self._rng, {*_SHARED.iterdir()}
        learners = self._drawn["policy"]["learn"].get("learner", {}).get("learner_num", 1)
        ranks = ["-n", str(1 + learners + max(learners, rng.choice([1, 1, 2, 3, 4])))]
        modes = {"serial": ["serial"], "train": ["train", *ranks]}
        mode = rng.choice([*modes])
        words = [str(self._config), "--run-dir", str(self._run)]
        end = self._ended(modes[mode], *words, by=_ender(rng))
        if end.code == 2 and "Traceback" not in end.said:
            self.ways.append("REFUSED")
            return
        yield from self._of_end(end)
        yield from self._judged()
        if read_json(self._run / "run.json").get("state") in (None, "failed"):
            yield from self._left(shared)
            return
        if end.by or rng.random() < 0.6:
            repeats = "deterministic" in self._drawn.get("system", {}) and rng.random() < 0.6
            other, is_longer = rng.choice([*modes]), rng.random() < 0.7 and not repeats
            yield from self._resumed(modes[mode if repeats else other], is_longer=is_longer)
        yield from self._twin(modes[mode])
        yield from self._evaluated()
        yield from self._of_end(self._here_ended("inspect", str(self._run)))
        yield from self._after(rng)
        yield from self._left(shared)

    def _resumed(self, mode: Sequence[str], *, is_longer: bool) -> Iterator[str]:
        before, best = Run(self._run).status or {}, _best_of(self._run)
        changes = [f"policy.other.commander.max_env_step={STEPS_LATER}"] * is_longer
        changes += ["policy.other.commander.max_train_iter=200"] * bool(self._drawn.get("data"))
        end = self._ended([mode[0], "--resume", str(self._run), *mode[1:]], *changes)
        if end.code == 2 and "Traceback" not in end.said:
            return
        yield from self._of_end(end)
        yield from self._judged()
        after = Run(self._run).status or {}
        for name in ("env_steps", "train_iter", "episodes"):
            if after.get(name, 0) < before.get(name, 0) and not self._was_killed:
                yield f"resumed: {name} {before[name]} before, {after[name]} after"
        if _best_of(self._run) < best:
            yield f"resumed: the best evaluation was {best}, and is {_best_of(self._run)}"

    def _judged(self) -> Iterator[str]:
        if not (self._run / "config.yaml").is_file():
            return
        given = [e for f in self._drawn.get("data", ()) for e in hpcdi.data.read_episodes(f)]
        try:
            found = objections(Run(self._run, was_killed=self._was_killed), given)
        except Exception as error:
            if self._says_all:
                raise
            found = [f"cannot be judged: {error!r}"]
        yield from (f"{self.ways[-1]}: {said}" for said in found)

    def _twin(self, mode: Sequence[str]) -> Iterator[str]:
        """A deterministic run has the same weights again, also one that was interrupted."""
        is_repeatable = self._drawn.get("system", {}).get("deterministic")
        if not is_repeatable or Run(self._run).figures.get("env_steps", 0) >= STEPS_LATER:
            return
        if len({way.split()[0] for way in self.ways}) > 1:
            return
        twin = self._here / "twin" / "run"
        twin.parent.mkdir()
        end = self._ended(mode, str(self._config), "--run-dir", str(twin))
        yield from self._of_end(end)
        one, other = (read_policy(run / "policies/latest.safetensors") for run in (self._run, twin))
        weights, others = (image.state_dict(as_arrays=True) for image in (one, other))
        differ = [name for name in weights if not np.array_equal(weights[name], others[name])]
        if one.version != other.version or differ:
            yield f"the twin differs: iterations {one.version}, {other.version}; {differ}"
        steps, again = (sum(map(len, Run(run).episodes)) for run in (self._run, twin))
        if steps != again and (len(self.ways) == 2 or self._was_killed):
            yield f"the twin has {again} steps, not {steps}"

    def _evaluated(self) -> Iterator[str]:
        """Evaluations of one policy on the same seeds are the same, whichever way they are made."""
        env, policy = self._drawn["env"], self._drawn["policy"]
        if env["type"] == "pettingzoo" or not (self._run / "policies/latest.safetensors").is_file():
            return
        own = self._drawn["env"].get("vectorization", "auto")
        mixed = "Vector" in env["env_id"] or own != "auto" or env["type"] == "team"
        ways: list[Settings] = [{"env.evaluator_env_num": 3}]
        if own == "auto":
            ways.append({**ways[0], "env.manager.type": "subprocess"})
        if not mixed:
            ways.append({**ways[0], "env.manager.type": "base", "env.vectorization": "sync"})
        scenes: list[Settings] = []
        if own == "auto" and not policy["eval"].get("sample"):
            scenes = [{"env.eval_seeds": "3..8", "env.evaluator_env_num": size} for size in (1, 4)]
        told = dict[str, list[float]]()
        for group in (ways, scenes):
            yield from self._alike(group, told)
        words = [f"{path}={value}" for path, value in {**_UNSEEN, **ways[0]}.items()]
        options = ["--policy", "latest", "--episodes", "6", "--seed", "5", "--json"]
        end = self._here_ended("eval", str(self._run), *options, *words)
        yield from self._of_end(end)
        lines = [line for line in end.said.splitlines() if line.startswith("{")]
        returns = yaml.safe_load(lines[-1])["returns"] if lines else []
        if told and not np.allclose(sorted(returns), sorted(next(iter(told.values()))), atol=1e-3):
            yield f"hpcdi eval: {returns}, and hpcdi.load: {told}"

    def _alike(self, ways: Sequence[Settings], told: dict[str, list[float]]) -> Iterator[str]:
        """Evaluates in several ways; yields which differ from the first of them."""
        first: tuple[Settings, list[float]] | None = None
        for way in ways:
            try:
                loaded = hpcdi.load(self._run, which="latest", settings={**_UNSEEN, **way})
                returns = loaded.evaluate(episodes=6, seed=5).returns
            except ConfigError:  # the experiment's other settings refuse it
                continue
            except Exception as error:
                yield f"evaluate with {way}: {error!r}"
                continue
            told[str(way)] = returns
            first = first or (way, returns)
            if not np.allclose(sorted(returns), sorted(first[1]), rtol=1e-3, atol=1e-3):
                yield f"evaluated with {way}: {returns}, and with {first[0]}: {first[1]}"

    def _after(self, rng: random.Random) -> Iterator[str]:
        """Other commands that read the run."""
        is_league, chance = self._drawn["env"]["type"] == "pettingzoo", rng.random()
        run = str(self._run)
        if is_league and chance < 0.3:
            words = ["eval", run, "--episodes", "2", "--player", "main", "--against", "random"]
        elif is_league and chance < 0.6:
            words = ["league", run, *rng.choice([[], ["--cross-play", "--games", "2"]])]
        elif chance > 0.9:
            words = ["export", run, "-o", str(self._run / "policy.pt2")]
        else:
            words = ["curves", run]
        yield from self._of_end(self._here_ended(*words))

    def _left(self, shared: set[Path]) -> Iterator[str]:
        """Nothing is left of a run: no process, shared memory or temporary file."""
        until = time.monotonic() + _LEFT_S
        while (left := self._processes()) and time.monotonic() < until:
            time.sleep(0.2)
        for pid in left:
            yield f"process {pid} is left: {_read(pid, 'cmdline').replace(chr(0), ' ')[:200]}"
            os.kill(pid, signal.SIGKILL)
        new = [path for path in {*_SHARED.iterdir()} - shared if path.name.startswith("hpcdi")]
        free = [path for path in new if not _is_held(path)]
        time.sleep(1 if free else 0)  # other people's runs begin and end
        yield from (f"{path} is left" for path in free if not _is_held(path))
        names = [path.name for path in (self._here / "tmp").iterdir()]
        if left_there := [name for name in names if not name.startswith("torchinductor")]:
            yield f"temporary files are left: {left_there}"

    # ------------------------------------------------------------------------------- commands

    def _given(self, acts: str) -> Path:
        """Makes a run that has data, once; returns its folder."""
        run = self._here.parent / f"given_{acts}" / "run"
        if not run.exists():
            run.parent.mkdir()
            env = {"type": "gymnasium", "env_id": "odd_envs:Odd"}
            env |= {"kwargs": {"seen": "vector", "acts": acts, "longest": 20}}
            env |= {"keep_infos": ["key", "step", "scale"]}
            limit = {"commander": {"max_env_step": 400}}
            learn, policy = {"batch_size": 64}, {"type": "ppo", "other": limit}
            file = run.parent / "experiment.yaml"
            file.write_text(yaml.safe_dump({"env": env, "policy": policy | {"learn": learn}}))
            self._ended(["serial"], str(file), "--run-dir", str(run))
            self.ways.clear()
        return run

    def _ended(self, command: Sequence[str], *words: str, by: str = "") -> End:
        """Run a command, end it by a signal (`by`) after some moments; returns how it has ended."""
        self.ways.append(" ".join([*command[:1], *command[-2:][: len(command) - 1], by]).strip())
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        user = {**os.environ, **root, _MARK: str(self._here)}
        user["PYTHONPATH"] = os.pathsep.join([str(_TOOLS), os.getenv("PYTHONPATH", "")])
        user["TMPDIR"] = str(self._here / "tmp")
        said = self._here / "said"
        with said.open("w+") as out:
            job = subprocess.Popen(
                [sys.executable, "-m", "hpcdi", *command, *words], stdout=out,
                stderr=subprocess.STDOUT, env=user, cwd=self._here, start_new_session=True,
            )  # fmt: skip
            struck = self._strike(job, by) if by else ""
            try:
                code = job.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                job.terminate()
                code = 124
                try:
                    job.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()
            out.seek(0)
            end = End(code, out.read(), struck)
        if self._says_all:
            print(f"hpcdi {' '.join([*command, *words])} {struck}: exit {code}\n{end.said[-3000:]}")
        return end

    def _here_ended(self, *words: str) -> End:
        """Run a command in this process; returns how it has ended."""
        self.ways.append(words[0])
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = cli.main(words)
            except SystemExit as end:
                code = int(end.code or 0)
            except Exception:
                said.write(traceback.format_exc())
                code = 1
        if self._says_all:
            print(f"hpcdi {' '.join(words)}: exit {code}\n{said.getvalue()[-3000:]}")
        return End(code, said.getvalue())

    def _strike(self, job: subprocess.Popen[bytes], by: str) -> str:
        """Send a signal, a moment after the run has begun; returns what was done."""
        until = time.monotonic() + 30
        while not (self._run / "status.json").is_file() and job.poll() is None:
            if time.monotonic() > until:
                return ""
            time.sleep(0.02)
        time.sleep(self._rng.uniform(0, 1.5))
        if job.poll() is not None:
            return ""
        if by != "SIGKILL":
            job.send_signal(getattr(signal, by))
            return by
        ranks = [p for p in self._processes() if "OMPI_COMM_WORLD_RANK" in _read(p, "environ")]
        victim = self._rng.choice(sorted(ranks) or [job.pid])
        self._was_killed = True
        os.kill(victim, signal.SIGKILL)
        return f"{by} of {_rank_of(victim) or 'the process'}"

    def _processes(self) -> list[int]:
        """Returns the processes of the experiment that live."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        mark = f"{_MARK}={self._here}\0"
        return [pid for pid in pids if pid != os.getpid() and mark in _read(pid, "environ")]

    def _of_end(self, end: End) -> Iterator[str]:
        """Yields what is wrong with how a command ended."""
        codes = {"": (0,), "SIGINT": (0, 130), "SIGTERM": (0, 85, 143)}.get(end.by, (0, 85, 1, -9))
        codes += (-15, -2) * ("\ndone: " in end.said)  # it came when all was over
        if end.code not in codes or ("Traceback" in end.said and "SIGKILL" not in end.by):
            yield f"{self.ways[-1]} {end.by}: exit {end.code}\n{end.said[-3000:]}"


def _ender(rng: random.Random) -> str:
    """Draws which signal ends a run; "": none."""
    return rng.choice(["", "", "", "SIGINT", "SIGTERM", "SIGKILL", "SIGKILL"])


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _is_held(folder: Path) -> bool:
    """Returns whether a process has locked a folder: the run of somebody else."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _rank_of(pid: int) -> str:
    variables = _read(pid, "environ").split("\0")
    return next((v for v in variables if v.startswith("OMPI_COMM_WORLD_RANK=")), "")


def _best_of(run: Path) -> float:
    best: Any = read_json(run / "status.json").get("best_evaluation")
    return float(best["mean"]) if best else -np.inf


if __name__ == "__main__":
    main()
