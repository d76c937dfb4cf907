"""`hpcdi.train` over ranks, from a script: its environment and callbacks reach them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from jobs import tensorboard

from fakes.patience import stretched

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import gymnasium, numpy as np, hpcdi

class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-5, 5, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    level = 1
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((32, 32, 3), 100 + 10 * self.at, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = start(self)
        return np.array([self.at], np.float32), {}

    def step(self, action):
        self.at += 2 * int(action) - 1
        is_over = abs(self.at) == 5
        return np.array([self.at], np.float32), float(self.at == 5) - 0.01, is_over, False, {}

def start(env):
    return int(env.np_random.integers(-1, 2))

class Levels(hpcdi.Callback):
    def on_evaluation(self, context, result):
        context.set_env(level=2)

    def on_episode(self, context, info):
        context.log("level", info["schedule/level"])

class Ends(hpcdi.Callback):
    runs_on = "learner"

    def on_update(self, context, scalars):
        context.set("policy.learn.learning_rate", 5e-4)
        if context.train_iter == 40:
            context.stop("it is late")

class Seen(hpcdi.Callback):
    runs_on = "collector"

    def on_episode(self, context, info):
        context.log("seen", context.rank)

run = hpcdi.train(
    env=Line, policy="ppo", ranks=3, stop_value=9,
    callbacks=[Levels, Ends, Seen, {"type": "video", "every": 99}],
    settings={
        "env.schedule": {"level": {"values": [1, 2], "when": "callback"}},
        "env.collector_env_num": 2, "policy.collect.n_sample": 32, "policy.learn.batch_size": 32,
        "policy.eval.every": "640 env_steps",
    },
)
print(run.reason, run.curve("detail/callbacks/level")[1][-1], run.policy.act(np.zeros(1)))
"""


@pytest.mark.job
def test_a_script_trains_over_ranks(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True,
        timeout=stretched(), env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert "3 ranks: 1 coordinator, 1 learner, 1 collector" in done.stdout, done.stderr
    said = done.stdout.splitlines()[-1]
    run = tmp_path / "runs"
    assert [*run.glob("*/*/videos/*.*")], done.stderr  # of its end
    assert [*run.glob("*/*/tb/callbacks_rank2")]
    folders = {str(file.parent.relative_to(run)) for file in run.glob("*/[0-9]*/**/*tfevents*")}
    assert runs_in_tensorboard(run) == sorted(folders), "each once: `latest` has no curves"
    assert said in ("stopped by Ends: it is late 2.0 0", "stopped by Ends: it is late 2.0 1")


def runs_in_tensorboard(folder: Path) -> list[str]:
    """Names of the runs that a real TensorBoard lists, by its API."""
    with tensorboard(folder) as url:
        deadline, runs, since = time.monotonic() + stretched(60.0), [], math.inf
        while time.monotonic() < min(deadline, since + 2.0):  # for 2 s the same
            with urllib.request.urlopen(f"{url}data/runs") as answer:
                now = json.load(answer)
            since, runs = since if now == runs else time.monotonic(), now
    return sorted(runs)
