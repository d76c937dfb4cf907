"""Offline learning beside d3rlpy's: the same data, networks, steps and episodes of evaluation.

Data are those of an earlier run, or of a run of `configs/pendulum_sac.yaml` that is made here: all
that it collected until it could do the task, most of it bad. Each algorithm learns from them alone;
then its last policy, not its best one, plays 100 episodes that it has not seen. d3rlpy is in an
environment of its own, since it pins gymnasium:

    python -m venv d3 && d3/bin/pip install torch==2.13.0 d3rlpy
    python tools/bench_offline.py --peer d3/bin/python --seeds 3
    python tools/bench_offline.py --quick                     one seed, hpcdi alone
    python tools/bench_offline.py --run runs/x/latest --algorithms bc,iql

The table has the mean return of each, over seeds, and the spread between seeds; of the data, that
of its episodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, pstdev

import numpy as np
import yaml
from figures import Row, parsed, parser, show

import hpcdi
from hpcdi.data import read_episodes

CONFIGS = Path(__file__).parent.parent / "configs"
HIDDEN, BATCH, RATE, EPISODES, HELD_OUT = [64, 64], 256, 1e-3, 100, 1000
DATA_STEPS = 5000
PEER = """
import json, sys
import d3rlpy, gymnasium, numpy as np, torch
from d3rlpy.algos import BCConfig, CQLConfig, IQLConfig
from d3rlpy.models import VectorEncoderFactory
torch.set_num_threads(1)
data, kind, seed, steps, env_id, hidden, batch, rate, episodes, held_out = json.loads(sys.argv[1])
d3rlpy.seed(seed)
stored = np.load(data)
dataset = d3rlpy.dataset.MDPDataset(
    stored["observation"], stored["action"], stored["reward"][:, None],
    stored["terminated"].astype(np.float32), stored["timeouts"].astype(np.float32),
)
net = VectorEncoderFactory(hidden_units=hidden)
low, high = json.loads(sys.argv[2])
scaler = d3rlpy.preprocessing.MinMaxActionScaler(low, high)
shared = {"batch_size": batch, "action_scaler": scaler}
critic = {"actor_encoder_factory": net, "critic_encoder_factory": net, "actor_learning_rate": rate,
          "critic_learning_rate": rate, **shared}
algo = {
    "bc": lambda: BCConfig(encoder_factory=net, learning_rate=rate, **shared),
    "iql": lambda: IQLConfig(value_encoder_factory=net, **critic),
    "cql": lambda: CQLConfig(temp_learning_rate=rate, alpha_learning_rate=0.0, **critic),
}[kind]().create()
algo.fit(dataset, n_steps=steps, n_steps_per_epoch=steps, show_progress=False,
         logger_adapter=d3rlpy.logging.NoopAdapterFactory())
env, returns = gymnasium.make(env_id), []
for episode in range(episodes):
    seen, _ = env.reset(seed=held_out + episode)
    total, over = 0.0, False
    while not over:
        seen, reward, terminated, truncated, _ = env.step(algo.predict(seen[None])[0])
        total, over = total + reward, terminated or truncated
    returns.append(total)
print("RETURN", np.mean(returns))
"""
"""Of d3rlpy: its defaults, but for networks, batches, step sizes, and the fixed weight of CQL."""


def main() -> int:
    """Run the benchmark; returns the exit code."""
    options = parser(__doc__ or "")
    options.add_argument("--run", help="an earlier run, of a Box of actions; else one is made")
    options.add_argument("--peer", help="a python that has d3rlpy")
    options.add_argument("--algorithms", default="bc,cql,iql")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--steps", type=int, default=5000, help="updates of each")
    given = parsed(options, seeds=1)
    seeds = range(given.seeds)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run = Path(given.run or made(home / "data"))
        episodes = list(read_episodes(run))
        returns = [episode.total for episode in episodes]
        name = f"data: {len(episodes)} episodes, {min(returns):.0f} to {max(returns):.0f}"
        show([Row(name, mean(returns), "return")], given.json)
        stored = as_arrays(home / "data.npz", episodes)
        experiment = yaml.safe_load((run / "config.yaml").read_text())
        for kind in given.algorithms.split(","):
            own = [ours(home, experiment, run, kind, seed, given.steps) for seed in seeds]
            show([of_seeds(f"{kind}, hpcdi", own)], given.json)
            if given.peer:
                env_id = experiment["env"]["env_id"]
                peers = [theirs(given.peer, stored, env_id, kind, s, given.steps) for s in seeds]
                show([of_seeds(f"{kind}, d3rlpy", peers)], given.json)
    return 0


def of_seeds(name: str, returns: list[float]) -> Row:
    """The mean of seeds, with each of them."""
    each = ", ".join(f"{one:.0f}" for one in returns)
    return Row(name, mean(returns), "return", peer=f"± {pstdev(returns):.0f}: {each}")


def made(folder: Path) -> Path:
    """Returns a run's folder: SAC on Pendulum, up to where it can."""
    command("serial", CONFIGS / "pendulum_sac.yaml", "env.stop_value=1e9", "--run-dir", folder,
            f"policy.other.commander.max_env_step={DATA_STEPS}")  # fmt: skip
    return folder


def ours(
    home: Path, experiment: dict[str, object], run: Path, kind: str, seed: int, steps: int
) -> float:
    """Returns the mean return of hpcdi's last policy."""
    learn = {"batch_size": BATCH, "learning_rate": RATE}
    model = {"encoder_hidden_size_list": HIDDEN}
    other = {"replay_buffer": {"replay_buffer_size": 1_000_000},
             "commander": {"max_train_iter": steps}}  # fmt: skip
    env = {**experiment["env"], "stop_value": 1e9}  # type: ignore[dict-item]
    config = {
        "exp_name": kind, "seed": seed, "env": env, "data": [str(run)],
        "policy": {"type": kind, "model": model, "learn": learn, "other": other,
                   "eval": {"every": f"{steps} iterations"}},
    }  # fmt: skip
    file, folder = home / "experiment.yaml", home / f"{kind}{seed}"
    file.write_text(yaml.safe_dump(config))
    command("serial", file, "--run-dir", folder)
    policy = hpcdi.load(folder, which="latest")
    return float(policy.evaluate(episodes=EPISODES, seed=HELD_OUT + seed).mean)


def theirs(python: str, stored: Path, env_id: str, kind: str, seed: int, steps: int) -> float:
    """Returns the mean return of d3rlpy's last policy."""
    import gymnasium

    box = gymnasium.make(env_id).action_space
    settings = [str(stored), kind, seed, steps, env_id, HIDDEN, BATCH, RATE, EPISODES, HELD_OUT]
    bounds = [np.asarray(end).tolist() for end in (box.low, box.high)]  # type: ignore[attr-defined]
    said = subprocess.run(
        [python, "-c", PEER, json.dumps(settings), json.dumps(bounds)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    line = next((line for line in said.stdout.splitlines() if line.startswith("RETURN")), None)
    if line is None:
        sys.exit(f"bench_offline: d3rlpy failed:\n{said.stderr[-2000:]}")
    return float(line.split()[1])


def as_arrays(file: Path, episodes: list[hpcdi.data.Episode]) -> Path:
    """Write episodes one after the other."""
    columns = {name: np.concatenate([e.columns[name] for e in episodes])
               for name in ("action", "reward", "terminated", "truncated")}  # fmt: skip
    seen = np.concatenate([episode.observation[:-1] for episode in episodes])
    timeouts = columns.pop("truncated") & ~columns["terminated"]
    np.savez(file, observation=seen, timeouts=timeouts, **columns)
    return file


def command(*words: object) -> None:
    """Run a command of hpcdi."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "hpcdi", *map(str, words)], check=True,
                   env=environment, stdout=subprocess.DEVNULL)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
