"""DI-engine beside hpcdi, in the same run: its CartPole DQN, in one process and over ranks.

In one process it is DI-engine's own entry, as it is and with one changed import, where its policy
takes four fifths of the time of both (so that row has no goal: with all else free, it would be 1.3
x); and `hpcdi serial` with hpcdi's DQN, which has the same network and batches, and as many updates
for each step. Its parallel mode does not start any more (DI-engine 0.5.3); what it made when it was
measured, by hand and once, is quoted. Needs the environment of `make ding`:

    .venv-ding/bin/python tools/bench_ding.py            some minutes
    .venv-ding/bin/python tools/bench_ding.py --quick
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from figures import Row, parser, show

ROOT = Path(__file__).parent.parent
UPSTREAM = ROOT / "tests" / "upstream"
CONFIG = "classic_control.cartpole.config.cartpole_dqn_config"
AS_THEIRS = (
    "env.collector_env_num=8", "env.evaluator_env_num=5", "env.stop_value=1e9",
    "policy.model={encoder_hidden_size_list: [128, 128, 64], dueling: true}", "policy.nstep=1",
    "policy.discount_factor=0.97", "policy.learn.batch_size=64", "policy.learn.replay_ratio=null",
    "policy.learn.update_per_collect=5",
    "policy.collect.n_sample=1",  # of each environment
    "policy.other.eps={type: exp, start: 0.95, end: 0.1, decay: 10000}",
    "policy.other.replay_buffer={replay_buffer_size: 20000, min_fill: 64}",
    "policy.eval.every=1e9 env_steps",
)  # fmt: skip
"""hpcdi's DQN as their configuration has it."""
THEIRS_PARALLEL = 90.0
"""Transitions/s of its parallel mode on two cores: 30 to 90, with a learner and two collectors."""


def main() -> None:
    """Measure, and print."""
    given = parser(__doc__ or "").parse_args()
    if importlib.util.find_spec("dizoo") is None:
        print("DI-engine is not here; see --help")
        return
    show(serial(4_000 if given.quick else 12_000), given.json)
    show(over_ranks(80_000 if given.quick else 400_000), given.json)


def serial(env_steps: int) -> list[Row]:
    """Its entry by its workers and by ours, and our entry with our policy, in turns."""
    measures = {
        "DI-engine": partial(rate_of, "ding"),
        "with one changed import": partial(rate_of, "hpcdi"),
        "`hpcdi serial`, hpcdi's DQN": rate_of_own,
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in measures}
    for _ in range(2):
        for name, measure in measures.items():
            rates[name].append(measure(env_steps))
    theirs, *ours = (
        (name, tuple(map(max, zip(*found, strict=True)))) for name, found in rates.items()
    )
    return [
        beside(
            f"CartPole DQN, {name}: {what}", best[place], unit, theirs[1][place], goal, theirs[0]
        )
        for (name, best), goal in zip(ours, (None, 1.5), strict=True)
        for place, (what, unit) in enumerate(
            (("environment", "steps/s"), ("learner", "iterations/s"))
        )
    ]


def rate_of(package: str, env_steps: int) -> tuple[float, float]:
    """Steps and iterations a second of CPU time between the first evaluation and the last one."""
    done = subprocess.run(
        [
            sys.executable, UPSTREAM / "entry.py", package, "serial", CONFIG, str(env_steps),
            str(env_steps // 8 * 5 - 100), "--own-draws", "0",
        ],
        env=variables(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, *_, last = json.loads(done.stdout.splitlines()[-1])
    seconds = last["from_s"] - first["to_s"]
    return last["envstep"] / seconds, last["train_iter"] / seconds


def rate_of_own(env_steps: int) -> tuple[float, float]:
    """Steps and iterations a second of CPU time that a longer run of ours takes more."""
    (cpu_s, short), (more_cpu_s, long) = (own(steps) for steps in (env_steps // 4, env_steps))
    seconds = more_cpu_s - cpu_s
    return tuple((long[what] - short[what]) / seconds for what in ("env_steps", "train_iter"))  # type: ignore[return-value]


def own(env_steps: int) -> tuple[float, dict[str, float]]:
    """CPU seconds and figures of `hpcdi serial`."""
    began = cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable, "-m", "hpcdi", "serial", ROOT / "configs" / "cartpole_dqn.yaml",
                "--run-dir", f"{folder}/run", *AS_THEIRS,
                f"policy.other.commander.max_env_step={env_steps}",
            ],
            env={**variables(), "OMP_NUM_THREADS": "1"}, cwd=folder, capture_output=True,
            check=True,
        )  # fmt: skip
        facts: dict[str, Any] = json.loads(Path(folder, "run", "run.json").read_text())
    return cpu_s() - began, facts["figures"]


def cpu_s() -> float:
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def over_ranks(env_steps: int) -> list[Row]:
    """`hpcdi train` of its configuration, and of ours, with four ranks."""
    theirs = Path(str(importlib.util.find_spec(f"dizoo.{CONFIG}").origin))  # type: ignore[union-attr]
    rows = []
    for name, config, steps in (
        ("its configuration, its policy and environment", theirs, env_steps // 4),
        ("hpcdi's own", ROOT / "configs" / "cartpole_dqn.yaml", env_steps),
    ):
        made = train(config, steps)
        rows.append(
            beside(
                f"4 ranks, CartPole DQN, {name}", made, "steps/s",
                THEIRS_PARALLEL, 100, "DI-engine's parallel mode, quoted",
            )
        )  # fmt: skip
    return rows


def beside(
    name: str, value: float, unit: str, theirs: float, times: float | None, peer: str
) -> Row:
    """A figure that should be `times` as large as another; None: as large as it is."""
    ratio = value / theirs
    if times is None:
        return Row(name, value, unit, ratio=ratio, peer=peer)
    return Row(name, value, unit, f">= {times:g} x", ratio >= times, ratio=ratio, peer=peer)


def train(config: Path, env_steps: int) -> float:
    """Environment steps a second of a run since its first train iteration."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable, "-m", "hpcdi", "train", config, "-n", "4", "--run-dir",
                f"{folder}/run", "env.stop_value=1e9",
                f"policy.other.commander.max_env_step={env_steps}",
            ],
            env=variables(), cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        facts: dict[str, Any] = json.loads(Path(folder, "run", "run.json").read_text())
    figures = facts["figures"]
    since, steps_then = figures["learning_since"]
    return float((figures["env_steps"] - steps_then) / (figures["ended_at"] - since))


def variables() -> dict[str, str]:
    """Environment of a process that finds DI-engine's stubs."""
    return {**os.environ, "PYTHONPATH": f"{UPSTREAM}:{ROOT}", "PYTHONWARNINGS": "ignore"}


if __name__ == "__main__":
    main()
