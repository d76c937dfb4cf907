"""How long until an experiment is solved: from the command to its exit, over several seeds.

Each seed is a real `hpcdi train`, or `hpcdi serial`. Beside it, on request, the same goal is given
to a hand-written DQN in one process (`plain`); bench_tasks.py has Stable-Baselines3 beside several
tasks.

    python tools/bench_solve.py                                    CartPole to 195, ten seeds
    python tools/bench_solve.py --config configs/cartpole_dqn_475.yaml --goal-s 180 --solved 0.8
    python tools/bench_solve.py --command serial --config configs/pendulum_ppo.yaml --seeds 3
    python tools/bench_solve.py --quick --peer plain               two seeds, and a peer
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from figures import Row, at_least, at_most, parsed, parser, show

ROOT = Path(__file__).parent.parent
FIRST_STEP_GOAL_S = 8.0


@dataclass(frozen=True)
class Solved:
    """One run: whether it reached its goal, and the seconds from its command."""

    seed: int
    is_solved: bool
    to_exit_s: float
    to_first_step_s: float | None
    env_steps: int
    train_iter: int
    best: float


def main() -> None:
    """Run, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--config", default=str(ROOT / "configs" / "cartpole_dqn.yaml"))
    command_line.add_argument("--command", default="train", choices=("train", "serial"))
    command_line.add_argument("--seeds", type=int, default=10, help="number of seeds")
    command_line.add_argument("--first-seed", type=int, default=0)
    command_line.add_argument("--goal-s", type=float, default=30.0, help="seconds to solve it in")
    command_line.add_argument("--solved", type=float, default=0.9, help="share of seeds that must")
    command_line.add_argument("--peer", action="append", default=[], choices=sorted(PEERS))
    command_line.add_argument("override", nargs="*", help="settings, key=value")
    given = parsed(command_line, seeds=2)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    runs = []
    for seed in seeds:
        run = solve([given.command, given.config], seed, given.override, 4 * given.goal_s)
        runs.append(run)
        if not given.json:
            print(
                f"  seed {seed}: {'solved' if run.is_solved else 'NOT solved'} after "
                f"{run.to_exit_s:.1f} s ({first_step(run)}"
                f"{run.env_steps} env steps, {run.train_iter} iterations, best {run.best:.1f})"
            )
    show(rows(runs, given.goal_s, given.solved), given.json)
    ours = median([run.to_exit_s for run in runs])
    for peer in given.peer:
        seconds = [PEERS[peer](stop_value(given.config), seed, 4 * given.goal_s) for seed in seeds]
        theirs = median(seconds)
        row = Row(
            f"{peer}: command to goal, median", theirs, "s", ratio=theirs / ours, peer="hpcdi"
        )
        show([row], given.json)


def rows(runs: list[Solved], goal_s: float, share: float) -> list[Row]:
    """The table of all seeds."""
    in_time = [run for run in runs if run.is_solved and run.to_exit_s <= goal_s]
    times = [run.to_exit_s for run in runs if run.is_solved]
    first = [run.to_first_step_s for run in runs if run.to_first_step_s is not None]
    made = [
        at_least(f"seeds solved in {goal_s:g} s (of {len(runs)})", len(in_time), "",
                 share * len(runs)),
        Row("command to exit, median of solved", median(times), "s"),
        Row("command to exit, slowest of solved", max(times, default=float("nan")), "s"),
    ]  # fmt: skip
    if first:
        name = "command to first gradient step, slowest"
        made.append(at_most(name, max(first), "s", FIRST_STEP_GOAL_S))
    return made


def first_step(run: Solved) -> str:
    """When learning began, for people; nothing where the run does not say."""
    if run.to_first_step_s is None:
        return ""
    return f"first gradient step {run.to_first_step_s:.1f} s, "


def solve(words: list[str], seed: int, overrides: list[str], limit_s: float) -> Solved:
    """One run; ended from outside when it takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [
            sys.executable, "-m", "hpcdi", *words, f"seed={seed}", *overrides,
            "--run-dir", str(path),
        ]  # fmt: skip
        started, clock = time.time(), time.perf_counter()
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            job.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.communicate(timeout=60)
        lasted_s = time.perf_counter() - clock
        facts = json.loads((path / "run.json").read_text())
    figures = facts["figures"]
    since = figures.get("learning_since")
    best = max((e["mean"] for e in figures["evaluations"]), default=float("nan"))
    return Solved(
        seed, facts["state"] == "done" and "stop value" in facts["reason"], lasted_s,
        None if "serial" in words else since[0] - started if since else float("inf"),
        figures["env_steps"], figures["train_iter"], best,
    )  # fmt: skip


def stop_value(config: str) -> float:
    """Goal of an experiment."""
    from hpcdi.config.load import read_mapping

    return float(read_mapping(config)["env"]["stop_value"])


def median(values: list[float]) -> float:
    """Median; nan where there is nothing."""
    return sorted(values)[len(values) // 2] if values else float("nan")


def _script(code: str) -> Callable[[float, int, float], float]:
    def run(goal: float, seed: int, limit_s: float) -> float:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", code, str(goal), str(seed), str(limit_s)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return time.perf_counter() - start

    return run


_EVALUATE = """
def evaluate(act):
    import gymnasium, numpy
    env = gymnasium.make_vec("CartPole-v1", num_envs=20)
    seen, _ = env.reset(seed=SEED)
    total, alive = numpy.zeros(20), numpy.ones(20, bool)
    while alive.any():
        seen, reward, terminated, truncated, _ = env.step(act(seen))
        total += reward * alive
        alive &= ~(terminated | truncated)
    return total.mean()
"""

_PLAIN = f"""
import sys, time, random, collections
import gymnasium, numpy, torch
from torch import nn
GOAL, SEED, LIMIT = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
{_EVALUATE}
torch.manual_seed(SEED); rng = numpy.random.default_rng(SEED)
def net(): return nn.Sequential(
    nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
online, target = net(), net(); target.load_state_dict(online.state_dict())
opt = torch.optim.Adam(online.parameters(), 1e-3)
env = gymnasium.make("CartPole-v1"); seen, _ = env.reset(seed=SEED)
store = numpy.zeros((50000, 11), numpy.float32); used = step = 0
begun = looked = time.time()
while time.time() - begun < LIMIT:
    eps = max(0.05, 1 - step / 5000)
    with torch.no_grad(): best = int(online(torch.from_numpy(seen)).argmax())
    action = int(rng.integers(2)) if rng.random() < eps else best
    after, reward, terminated, truncated, _ = env.step(action)
    store[step % 50000] = [*seen, action, reward, *after, terminated]
    step += 1; used = min(step, 50000); seen = after
    if terminated or truncated: seen, _ = env.reset()
    if step > 1000 and step % 2 == 0:
        batch = torch.from_numpy(store[rng.integers(0, used, 64)])
        with torch.no_grad():
            goal = batch[:, 5] + 0.99 * (1 - batch[:, 10]) * target(batch[:, 6:10]).max(1).values
        q = online(batch[:, :4]).gather(1, batch[:, 4:5].long()).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, goal)
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 500 == 0: target.load_state_dict(online.state_dict())
    if time.time() - looked > 2:
        looked = time.time()
        with torch.no_grad():
            score = evaluate(lambda o: online(torch.from_numpy(o)).argmax(1).numpy())
        if score >= GOAL: break
"""

PEERS = {"plain": _script(_PLAIN)}


if __name__ == "__main__":
    main()
