"""Real runs with one learner and with two, for `bench_learners`: how fast, and how well they learn.

Speed: CartPole DQN with a network that takes milliseconds a step, each learner with the same batch.
Where there are fewer cores than ranks, two learners share with the others what one had alone.
Learning: CartPole DQN with two learners of 32 samples against one of 64, several seeds each; all
else is equal, the new data an update too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from figures import Row, at_most
from timed_policy import FOLDER_VARIABLE, ROW

HERE = Path(__file__).parent
CONFIG = HERE.parent / "configs" / "cartpole_dqn.yaml"
RUN_LIMIT_S = 600
UNTIL_ITERATIONS = (
    "env.stop_value=1e9", "policy.eval.every=1e9 seconds",
    "policy.other.commander.max_env_step=inf", "policy.collect.collector.collector_num=1",
)  # fmt: skip

# ------------------------------------------------------------------------------------------- speed

HIDDEN, BATCH = (1024, 1024), 256
TIMED = (
    "policy.type=timed_dqn", "policy.import_names=[timed_policy]",
    f"policy.model.encoder_hidden_size_list={list(HIDDEN)}", f"policy.learn.batch_size={BATCH}",
)  # fmt: skip
WARM = 0.2  # share of the updates that come before data flow evenly


@dataclass(frozen=True)
class Updates:
    """What the learners of a run did while data flowed; arrays [learners, updates].

    Attributes:
        lasted: seconds of each update.
        together: seconds thereof at the mean gradient: it waits for the other one, and is sent.
        waiting: seconds before each update without a batch.
        wall_s: from the first update's beginning to the last one's end.
        wait: share of a learner's time, as run.json has it; the larger one.
    """

    lasted: np.ndarray
    together: np.ndarray
    waiting: np.ndarray
    wall_s: float
    wait: float

    @property
    def per_s(self) -> float:
        """Iterations a second."""
        return self.lasted.shape[1] / self.wall_s

    @property
    def idle(self) -> float:
        """Share of the time without a batch, of the learner with the most."""
        return self.waiting[:, 1:].sum(1).max() / self.wall_s

    @property
    def busy(self) -> float:
        """Share of the time in updates, of the learner with the least."""
        return self.lasted.sum(1).min() / self.wall_s


def speed_rows(given: argparse.Namespace) -> list[Row]:
    """Iterations a second of one learner and of two, and what the second one costs."""
    iterations = 120 if given.quick else 600
    alone, both = (timed_run(learners, iterations) for learners in (1, 2))
    title = f"run, MLP {'-'.join(map(str, HIDDEN))} x {BATCH}: "
    rows = []
    for name, run in (("1 learner", alone), ("2 learners", both)):
        versus = {} if run is alone else {"ratio": run.per_s / alone.per_s, "peer": "1 learner"}
        step_ms, rest = 1e3 * run.lasted.mean(), 1 - run.busy - run.idle
        rows += [
            Row(f"{title}{name}", run.per_s, "it/s", **versus),
            Row(f"{title}{name}: an update", step_ms, "ms"),
            at_most(f"{title}{name}: idle while data flow", 100 * run.idle, "%", 5),
            Row(f"{title}{name}: neither idle nor in an update", 100 * rest, "%"),
            Row(f"{title}{name}: wait in run.json, start included", 100 * run.wait, "%"),
        ]
    gain = 2 * both.per_s / alone.per_s
    rows.append(Row(f"{title}2 learners: samples a second", gain, "x", peer="of 1 learner"))
    # who comes last to a mean waits for nobody: what it takes then is the message
    message = both.together.min(0).sum() / both.lasted.mean(0).sum()
    waiting = both.together.mean(0).sum() / both.lasted.mean(0).sum() - message
    rows.append(Row(f"{title}2 learners: messages' share of an update", 100 * message, "%"))
    rows.append(Row(f"{title}2 learners: share that waits for the other", 100 * waiting, "%"))
    return rows


def timed_run(learners: int, iterations: int) -> Updates:
    """A run whose updates are timed, from when data flow evenly on."""
    settings = (*TIMED, *UNTIL_ITERATIONS)
    with train(learners, iterations, settings) as (path, facts):
        given = [(path.parent / f"learner{n}").read_bytes() for n in range(learners)]
    rows = np.array([list(ROW.iter_unpack(each)) for each in given])[:, int(WARM * iterations) :]
    began, ended, together, waiting = rows.transpose(2, 0, 1)
    ranks = [facts["figures"]["ranks"][str(1 + n)] for n in range(learners)]
    return Updates(
        ended - began, together, waiting, ended.max() - began.min(),
        max(rank["shares"].get("wait", 0.0) for rank in ranks),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- learning

POINTS, EVERY, EPISODES, GOAL = (250, 500, 1000, 2000, 3000), 250, 40, 195
ARMS = {"1 learner x 64": (1, 64), "2 learners x 32": (2, 32)}
LIMIT = "policy.other.replay_buffer.thruput_controller.push_sample_rate_limit"
LEARNING = (
    # both sides see as much new data an update, whatever the machine makes of them
    f"{LIMIT}.min=0.9", f"{LIMIT}.max=1", "system.storage.seal_seconds=0.1",
    "policy.other.eps.type=linear", "policy.other.eps.start=0.1", "policy.other.eps.end=0.1",
    "policy.learn.learner.keep_checkpoints=1000",
    f"policy.learn.learner.hook.save_ckpt_after_iter={EVERY}",
)  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """Mean returns of one run's policies by train iteration, and its env steps until then."""

    returns: dict[int, float]
    env_steps: dict[int, int]

    @property
    def solved_at(self) -> int:
        """First iteration with the goal's return; the last one where there is none."""
        reached = [number for number, value in self.returns.items() if value >= GOAL]
        return reached[0] if reached else max(self.returns)

    @property
    def is_solved(self) -> bool:
        """Whether the goal was reached."""
        return self.returns[self.solved_at] >= GOAL

    @property
    def mean(self) -> float:
        """Over the whole curve."""
        return statistics.fmean(self.returns.values())


def learning_rows(given: argparse.Namespace) -> list[Row]:
    """Returns at fixed iterations. Within noise: the means differ by 2 standard errors at most."""
    seeds = range(1 if given.quick else given.seeds)
    points = POINTS[:3] if given.quick else POINTS
    curves: dict[str, list[Curve]] = {arm: [] for arm in ARMS}
    for seed in seeds:  # side by side: an hour of a shared machine is not like the next
        for arm, (learners, batch) in ARMS.items():
            curves[arm].append(learning_run(learners, batch, seed, points[-1]))
    title = f"CartPole, {len(seeds)} seeds: "
    rows = [
        compared(f"{title}return at iteration {point}", curves, lambda c, at=point: c.returns[at])
        for point in points
    ]
    rows += [
        compared(f"{title}mean return of the whole curve", curves, lambda c: c.mean),
        compared(f"{title}iterations to {GOAL}", curves, lambda c: c.solved_at),
        compared(f"{title}env steps to {GOAL}", curves, lambda c: c.env_steps[c.solved_at]),
        compared(f"{title}env steps of all", curves, lambda c: max(c.env_steps.values())),
    ]
    for arm, runs in curves.items():
        solved = sum(run.is_solved for run in runs)
        rows.append(Row(f"{title}{arm} reached {GOAL}", solved, f"of {len(runs)}"))
    return rows


def learning_run(learners: int, batch: int, seed: int, iterations: int) -> Curve:
    """A run that ends after some iterations, and what its checkpoints are worth."""
    settings = (*LEARNING, *UNTIL_ITERATIONS, f"policy.learn.batch_size={batch}", f"seed={seed}")
    with train(learners, iterations, settings) as (path, _):
        kept = sorted((path / "checkpoints").glob("iteration_*"))
        facts = [json.loads((folder / "manifest.json").read_text())["facts"] for folder in kept]
        returns = {
            fact["train_iter"]: worth(folder) for fact, folder in zip(facts, kept, strict=True)
        }
    return Curve(returns, {fact["train_iter"]: fact["collector_envstep"] for fact in facts})


def worth(checkpoint: Path) -> float:
    """Mean return of a checkpoint's policy, in environments that no run has seen."""
    from hpcdi.commands.eval import main

    asked = [str(checkpoint), "--episodes", str(EPISODES), "--seed", "10000", "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        main(asked)
    return float(json.loads(said.getvalue())["return_mean"])


def compared(name: str, curves: Mapping[str, list[Curve]], of: Callable[[Curve], float]) -> Row:
    """Two learners against one, by a figure of each run."""
    alone, ours = ([float(of(run)) for run in runs] for runs in curves.values())
    mean, peer = statistics.fmean(ours), statistics.fmean(alone)
    if len(ours) == 1:
        return Row(name, mean, "", ratio=mean / peer, peer="1 learner")
    spread, peer_spread = statistics.stdev(ours), statistics.stdev(alone)
    noise = 2 * math.hypot(spread, peer_spread) / math.sqrt(len(ours))
    return Row(
        name, mean, f"± {spread:,.4g}", f"± {noise:,.4g}", abs(mean - peer) <= noise, mean / peer,
        f"1 learner's {peer:,.4g} ± {peer_spread:,.4g}",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------- runs


@contextlib.contextmanager
def train(
    learners: int, iterations: int, settings: tuple[str, ...]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run that has done so many iterations: its folder, which goes then, and its run.json."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [
            sys.executable, "-m", "hpcdi", "train", str(CONFIG), *settings,
            f"policy.learn.learner.learner_num={learners}",
            f"policy.learn.learner.train_iterations={iterations}", "--run-dir", str(path),
        ]  # fmt: skip
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths),
            FOLDER_VARIABLE: folder,
        }  # fmt: skip
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S,
            check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"the run failed:\n{done.stderr}")
        yield path, json.loads((path / "run.json").read_text())
