"""Advice: what a run says of itself where something planted holds it back, and where nothing does.

Each run learns for `--seconds`, is then stopped, and its run.json says what it advised. Of each
kind the table has the share of runs that named what was planted, alone; of healthy runs those that
said nothing. A slow disk is `slow_disk.c`, in front of the C library's calls. Rank 0's messages are
not planted: a laptop's few collectors keep it busy for a tenth of its time, with the smallest
blocks, too; a unit test judges its figures.

    python tools/bench_advice.py               10 seeds of each kind: some 90 minutes
    python tools/bench_advice.py --quick       one seed of each kind
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import at_least, parser, show

from hpcdi.store.atomic import read_json

TOOLS = Path(__file__).parent
CONFIGS = TOOLS.parent / "configs"
ENDLESS = ("env.stop_value=1e9", "policy.eval.every=20seconds")
SLOW = (
    "env.env_id=hpcdi/SlowCartPole-v0", "env.import_names=[slow_env]", "env.vectorization=sync",
)  # fmt: skip
_LONGEST_START_S = 120.0
PLANTED: dict[str, tuple[str, ...]] = {
    "learner_waits": ("cartpole_ppo", *SLOW, "env.kwargs={step_s: 0.002}"),
    "overtrains": (
        "cartpole_dqn", *SLOW, "env.kwargs={step_s: 0.01}",
        "policy.eval.every=600seconds",  # which are slow, too: they would be named first
    ),
    "collectors_wait": (
        "cartpole_dqn", *SLOW, "env.kwargs={step_s: 0.001}", "policy.learn.replay_ratio=64",
        "policy.learn.update_per_collect=null",
        "policy.model.encoder_hidden_size_list=[512,512,512]",
    ),
    "evaluation": (
        "cartpole_dqn", *SLOW, "env.kwargs={step_s: 0.002}", "policy.eval.every=200env_steps",
        "env.evaluator_episode_num=3", "policy.learn.replay_ratio=16",
    ),
    "disk": ("cartpole_dqn", "system.transport=files", "system.storage.block_bytes=4096"),
    "slow_environment": (
        "cartpole_dqn", "env.env_id=hpcdi/SlowCartPole-v0", "env.import_names=[slow_env]",
        "env.manager.type=subprocess", "env.kwargs={step_s: 0.01, first: FOLDER/first}",
        "policy.eval.every=600seconds",
    ),
    "oversubscribed": ("cartpole_dqn", "-n", "9"),
    "exploration_ends_early": (
        "cartpole_dqn", *SLOW, "env.kwargs={step_s: 0.001}", "policy.other.eps.decay=200",
        "policy.other.replay_buffer.min_fill=4000",
    ),
    "loss_explodes": (
        "cartpole_dqn", "policy.learn.learning_rate=3.0", "policy.discount_factor=1.0",
        "policy.learn.target_update_freq=1",
    ),
    "healthy": ("cartpole_dqn",),
    "healthy_ppo": ("cartpole_ppo",),
    "healthy_sac": ("pendulum_sac",),
}  # fmt: skip


def advised(kind: str, seed: int, seconds: float) -> list[str]:
    """Run an experiment for a while; returns the kinds of advice that it gave."""
    config, *overrides = PLANTED[kind]
    ranks = [] if "-n" in overrides else ["-n", "4"]
    paths = filter(None, [str(TOOLS), os.environ.get("PYTHONPATH")])
    with tempfile.TemporaryDirectory() as folder:
        overrides = [each.replace("FOLDER", folder) for each in overrides]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if kind == "disk":
            disk = f"{folder}/slow_disk.so"
            subprocess.run(
                ["cc", "-shared", "-fPIC", TOOLS / "slow_disk.c", "-o", disk], check=True
            )
            environment["LD_PRELOAD"] = disk
        command = [
            sys.executable, "-m", "hpcdi", "train", str(CONFIGS / f"{config}.yaml"), *ENDLESS,
            *overrides, *ranks, f"seed={seed}", "--run-dir", f"{folder}/run",
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment,
        ) as process:  # fmt: skip
            said = output_of(process, Path(folder) / "run" / "status.json", seconds)
        file = Path(folder) / "run" / "run.json"
        facts = json.loads(file.read_text()) if file.exists() else {}
    if "advice" not in facts.get("figures", facts):
        raise SystemExit(f"{' '.join(command)} gave no figures; it said:\n{said}")
    return list(facts.get("figures", facts)["advice"])


def output_of(process: subprocess.Popen[str], status: Path, seconds: float) -> str:
    """Stop a run some seconds after it has begun to learn; returns what it said.

    What else the machine does may delay the beginning, and advice judges what comes after it.
    """
    started, began = time.monotonic(), math.inf
    while True:
        try:
            return process.communicate(timeout=0.5)[0]
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if began == math.inf and read_json(status).get("train_iter"):
                began = now
            if now - began >= seconds or now - started >= seconds + _LONGEST_START_S:
                process.send_signal(signal.SIGINT)
                return process.communicate()[0]


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=40.0, help="of each run")
    options.add_argument(
        "--kinds", nargs="*", choices=PLANTED, default=list(PLANTED), metavar="KIND",
        help=f"some of {', '.join(PLANTED)}",
    )  # fmt: skip
    chosen = options.parse_args()
    seeds = range(1 if chosen.quick else 10)
    for kind in chosen.kinds:
        is_healthy = kind.startswith("healthy")
        wanted = [] if is_healthy else [kind]
        found = [advised(kind, seed, chosen.seconds) for seed in seeds]
        right = sum(said == wanted for said in found) / len(found)
        others = sorted({name for said in found for name in said} - set(wanted))
        name = f"a {kind.replace('_', ' ')} run: silence" if is_healthy else f"advice: {kind}"
        show([at_least(name, right, "of runs", 0.9, peer=", ".join(others))], chosen.json)


if __name__ == "__main__":
    main()
