"""What `hpcdi plan --measure` forecasts, beside runs: their steps and train iterations a second.

Environments take a millisecond a step, most of it asleep as a simulator on cores of its own would,
so that more ranks than cores are no lie; and CartPole itself, for which cores are what is scarce.

    python tools/bench_forecast.py             some 15 minutes
    python tools/bench_forecast.py --quick     4 ranks alone
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

from figures import Row, parsed, parser, show

from hpcdi.run.experiment import load_experiment
from hpcdi.run.forecast import forecast
from hpcdi.run.measure import measure
from hpcdi.run.sizes import row_size
from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import read_curves

TOOLS = Path(__file__).parent
CONFIGS = TOOLS.parent / "configs"
ENDLESS = ("env.stop_value=1e9", "policy.eval.every=9999seconds")
SLOW = (
    "env.env_id=hpcdi/SlowCartPole-v0", "env.import_names=[slow_env]", "env.vectorization=sync",
    "env.kwargs={step_s: 0.001}",
)  # fmt: skip
RATIO = ("policy.learn.replay_ratio=8", "policy.learn.update_per_collect=null")
RUNS = {
    "dqn, slow steps": ("cartpole_dqn", *SLOW, *RATIO),
    "ppo, slow steps": ("cartpole_ppo", *SLOW),
    "dqn": ("cartpole_dqn", *RATIO),
    "ppo": ("cartpole_ppo",),
}
_LONGEST_START_S = 120.0


def speeds(settings: tuple[str, ...], ranks: int, seconds: float) -> tuple[float, float]:
    """Steps and train iterations a second of a run over ranks, in the second half of its time."""
    name, *overrides = settings
    with tempfile.TemporaryDirectory() as folder:
        layout = RunLayout(Path(folder) / "run")
        command = [
            sys.executable, "-m", "hpcdi", "train", str(CONFIGS / f"{name}.yaml"), *ENDLESS,
            *overrides, "-n", str(ranks), "--run-dir", str(layout.root),
        ]  # fmt: skip
        paths = filter(None, [str(TOOLS), os.environ.get("PYTHONPATH")])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as run:
            began, until = time.monotonic(), math.inf
            while time.monotonic() < min(until, began + _LONGEST_START_S) and run.poll() is None:
                time.sleep(0.5)
                if until == math.inf and read_curves([layout.curves_file]).get("curves/loss"):
                    until = time.monotonic() + seconds
            run.send_signal(signal.SIGINT)
            said = run.communicate()[0]
        curves = read_curves([layout.curves_file])
    try:
        last = [curves[f"curves/{name}"] for name in ("steps_per_s", "iterations_per_s")]
    except KeyError:
        raise SystemExit(f"{' '.join(command)} made no curves; it said:\n{said}") from None
    steps, iterations = (fmean(p.value for p in points[len(points) // 2 :]) for points in last)
    return steps, iterations


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=25.0, help="of each run")
    options.add_argument("--runs", nargs="*", default=list(RUNS), help="some of them")
    options.add_argument("--ranks", nargs="*", type=int, default=[3, 4, 8, 16, 24])
    chosen = parsed(options, ranks=[4])
    sys.path.insert(0, str(TOOLS))  # for `slow_env`
    cores = len(os.sched_getaffinity(0))
    for run in chosen.runs:
        name, *overrides = RUNS[run]
        compiled, spaces = load_experiment(str(CONFIGS / f"{name}.yaml"), [*overrides, *ENDLESS])
        costs = measure(compiled.config, spaces, 5.0)
        for ranks in chosen.ranks:
            shown = forecast(
                compiled.config, costs, row_size(compiled.config, spaces),
                collectors=ranks - 2, learners=1, cores=cores,
            )  # fmt: skip
            steps, iterations = speeds(RUNS[run], ranks, chosen.seconds)
            title = f"{run}, {ranks} ranks: "
            rows = (
                ("steps", steps, shown.steps_per_s),
                ("iterations", iterations, shown.updates_per_s),
            )
            show(
                (
                    Row(title + what, measured, "/s", "within 20%", abs(measured / said - 1) <= 0.2,
                        measured / said, f"the forecast (held by {shown.held_by})")
                    for what, measured, said in rows
                ),
                chosen.json,
            )  # fmt: skip


if __name__ == "__main__":
    main()
