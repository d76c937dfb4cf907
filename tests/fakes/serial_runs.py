"""Small serial runs of the shipped experiments, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hpcdi.comm.messages import StopRequest
from hpcdi.config.compiled import repeats_as
from hpcdi.policy.create import create_policy
from hpcdi.run.experiment import load_experiment
from hpcdi.run.request import RunRequest
from hpcdi.run.resume import read_newest
from hpcdi.run.serial import LocalRun
from hpcdi.run.start import start
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy

ROOT = Path(__file__).parent.parent.parent
SMALL = (
    "env.collector_env_num=4", "env.evaluator_env_num=2", "env.stop_value=1e9",
    "policy.model.encoder_hidden_size_list=[8]",
)  # fmt: skip
DQN = (
    *SMALL, "policy.learn.batch_size=16", "policy.collect.n_sample=16",
    "policy.other.replay_buffer.min_fill=32", "policy.other.replay_buffer.replay_buffer_size=2000",
)  # fmt: skip
PPO = (
    *SMALL, "policy.learn.batch_size=32", "policy.collect.n_sample=16",
    "policy.learn.epoch_per_collect=2",
)  # fmt: skip
LIMIT = "policy.other.commander"
FOREIGN = str(ROOT / "tests" / "fakes" / "foreign_policy.yaml")
LEAGUE = "tictactoe_exploiter", (*DQN, "policy.learn.replay_ratio=null")
BATTLE = "tictactoe_dqn", (*DQN, "policy.nstep=1", "policy.learn.update_per_collect=2")


def config_of(name: str, *overrides: str) -> tuple[Any, Any]:
    path = name if name.endswith(".yaml") else str(ROOT / "configs" / f"{name}.yaml")
    compiled, spaces = load_experiment(path, overrides, over_ranks=False)
    return compiled.config, spaces


def serial(
    config: str | None = None,
    overrides: tuple[str, ...] = (),
    run_dir: str | None = None,
    resume: str | None = None,
) -> int:
    """Trains by the command's function; returns the exit code."""
    return start(RunRequest(config, overrides, run_dir, resume), over_ranks=False).exit_code


@contextmanager
def serial_run(
    root: Path,
    name: str,
    *overrides: str,
    restarts: int = 0,
    take_stop: Callable[[], StopRequest | None] = lambda: None,
) -> Iterator[LocalRun]:
    config, _ = config_of(name, *overrides)
    with LocalRun(config, RunLayout(root), restarts, take_stop) as run:
        yield run


def train(run: LocalRun) -> str:
    """Train to the end; returns the reason."""
    outcome = run.play()
    assert (outcome.state, outcome.exit_code) == ("done", 0)
    return outcome.reason


def resume(run: LocalRun, root: Path, *, repeats: bool = False) -> str:
    """Go on from the newest snapshot; returns what is said of it."""
    same = repeats_as(run.config, 1) if repeats else ""
    resumed = read_newest(RunLayout(root), same=same)
    assert resumed is not None
    run.coordinator.resume(resumed)
    return str(resumed)


RUNS = {
    "dqn": ("cartpole_dqn", (*DQN, f"{LIMIT}.max_train_iter=4")),
    "ppo": ("cartpole_ppo", (*PPO, f"{LIMIT}.max_train_iter=2")),
    "pendulum": ("pendulum_ppo", (*PPO, f"{LIMIT}.max_train_iter=2")),
    "battle": (BATTLE[0], (*BATTLE[1], f"{LIMIT}.max_train_iter=4")),
}
COUNT = ("env.env_id=hpcdi/Count-v0", "env.import_names=[hpcdi.env.toy]", *DQN)
"""Episodes of 5 steps and a return of 15, whatever is done."""


def policy_file(
    folder: Path,
    config: str,
    *overrides: str,
    change: Callable[[Mapping[str, torch.Tensor]], None] = lambda parameters: None,
) -> Path:
    """A policy of an experiment, changed by hand, with its configuration beside it."""
    compiled, _ = load_experiment(str(ROOT / "configs" / f"{config}.yaml"), overrides)
    model = create_policy(compiled.config.policy, ["eval"]).eval_mode.state_dict()["model"]
    with torch.no_grad():
        change(model)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [(ROOT / "configs" / f"{config}.yaml").read_text()]
    (folder / "config.yaml").write_text("".join(lines))
    publish_policy(folder / "policy.safetensors", PolicyImage.of(model, 7))
    return folder / "policy.safetensors"


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that a folder holds: when it was written, and what it is."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
