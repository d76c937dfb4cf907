"""Datasets of Minari as data that a run is given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from fakes.serial_runs import DQN, LIMIT, ROOT, config_of, serial
from hpcdi.commands.export import main
from hpcdi.data import read_episodes
from hpcdi.errors import ConfigError, StoreError
from hpcdi.run import given
from hpcdi.run.serial import LocalRun
from hpcdi.store.layout import RunLayout
from hpcdi.store.rows import transitions
from hpcdi.store.shards import read_blocks

pytest.importorskip("minari", reason="data: [minari:NAME] is untested: pip install 'hpcdi[minari]'")
pytestmark = pytest.mark.usefixtures("one_torch_thread")

SMALL = (*DQN, f"{LIMIT}.max_env_step=64")
OFFLINE = (*DQN, f"{LIMIT}.max_train_iter=3", "policy.eval.every=100 iterations")
OTHER = {"CartPole-v1": "Acrobot-v1", "Blackjack-v1": "CliffWalking-v1"}
"""Environments of other spaces."""


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


@pytest.mark.parametrize("env", OTHER)
def test_a_run_learns_from_the_episodes_of_a_dataset(tmp_path: Path, env: str) -> None:
    source, run_dir, of_env = tmp_path / "source", tmp_path / "run", f"env.env_id={env}"
    assert serial(str(ROOT / "configs" / "cartpole_dqn.yaml"), (*SMALL, of_env), str(source)) == 0
    main([str(source), "--to", "minari", "tests/given-v0"])
    config, spaces = config_of("cartpole_dqn", *OFFLINE, of_env, "data=['minari:tests/given-v0']")
    given.check(config, spaces)
    given.fill(config, RunLayout(run_dir))
    episodes = list(read_episodes(source))
    blocks = [b for path in sorted(run_dir.glob("data/*/*/*.h5")) for b in read_blocks(path)]
    parts = [transitions(block) for block in blocks]  # type: ignore[arg-type]
    for name in {*episodes[0].observations, "action", "reward", "terminated", "truncated"}:
        told = [{**e.columns, **{n: o[:-1] for n, o in e.observations.items()}} for e in episodes]
        expected = np.concatenate([columns[name] for columns in told])
        found = np.concatenate([columns[name] for columns in parts])
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, err_msg=name)
    with LocalRun(config, RunLayout(run_dir)) as run:
        assert run.play().state == "done"
        assert run.coordinator.groups.main.replay.count() == sum(map(len, episodes))
    other = (f"env.env_id={OTHER[env]}", "data=['minari:tests/given-v0']")
    config, spaces = config_of("cartpole_dqn", *OFFLINE, *other)
    with pytest.raises(ConfigError, match=r"(?s)is of other observations: .* is of other actions"):
        given.check(config, spaces)


ODD = ("data=['minari:tests/odd-v0']", "policy.learn.batch_size=4", f"{LIMIT}.max_train_iter=3")


def write_odd(steps: int, changed: dict[str, tuple[int | slice, float]]) -> None:
    """Writes a dataset of one episode of zeros, but for some columns' values at some steps."""
    import minari
    from gymnasium.envs.classic_control import PendulumEnv
    from minari.data_collector.episode_buffer import EpisodeBuffer

    env = PendulumEnv()
    parts = {
        "observations": np.zeros((steps + 1, 3), np.float32),
        "actions": np.zeros((steps, 1), np.float32),
        "rewards": np.zeros(steps),
        "terminations": np.arange(steps) == steps - 1,
        "truncations": np.zeros(steps, bool),
    }
    for column, (at, value) in changed.items():
        parts[column][at] = value
    minari.create_dataset_from_buffers(
        "tests/odd-v0",
        [EpisodeBuffer(id=0, **parts)],
        observation_space=env.observation_space,
        action_space=env.action_space,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("observations", np.nan, r"observation \[nan nan nan\] in episode 0 .* step 2 of 6"),
        ("rewards", np.inf, "the reward inf in episode 0 .* step 2 of 6"),
        ("truncations", True, "is truncated at step 2 of 6 of episode 0, and goes on"),
        ("actions", 9.0, "6 transitions, 1 episode .*; 1 actions beyond the environment's bounds"),
        ("terminations", True, "6 transitions, 2 episodes"),
    ],
)
def test_what_is_odd_in_a_dataset_is_said(
    tmp_path: Path, column: str, value: float, said: str
) -> None:
    write_odd(6, {column: (2, value)})
    config, spaces = config_of("pendulum_iql", *ODD)
    given.check(config, spaces)
    try:
        line = given.fill(config, RunLayout(tmp_path / "run"))
    except StoreError as error:
        line = str(error)
    assert re.search(said, line), line
    if column == "terminations":
        (block,) = read_blocks(next(tmp_path.glob("run/data/*/*/*.h5")))
        assert block.items["item_len"].tolist() == [3, 3]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore")
def test_more_rows_than_a_buffer_holds_are_refused_not_dropped(tmp_path: Path) -> None:
    write_odd(400, {"terminations": (slice(None), True)})
    room = "policy.other.replay_buffer.replay_buffer_size=451"  # of an episode of 400 steps
    config, spaces = config_of("pendulum_iql", *ODD, room)
    given.check(config, spaces)
    with pytest.raises(StoreError, match=r"400 transitions in 800 rows, .*_size to 800"):
        given.fill(config, RunLayout(tmp_path / "run"))


class Seen(gymnasium.Env[Any, Any]):
    """Shows an array of a Dict, whose text is left out."""

    observation_space = spaces.Dict(cells=spaces.Box(0, 9, (2,), np.float32))
    action_space = spaces.Discrete(2)


@pytest.mark.filterwarnings("ignore")
def test_parts_of_a_dataset_that_are_no_arrays_are_left_out(tmp_path: Path) -> None:
    """MiniGrid's have the mission's text, which no run takes: they were refused."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    cells = np.arange(8, dtype=np.float32).reshape(4, 2)
    episode = EpisodeBuffer(
        id=0,
        observations={"cells": cells, "mission": ["go"] * 4},
        actions=np.array([0, 1, 1]),
        rewards=np.zeros(3),
        terminations=np.array([False, False, True]),
        truncations=np.zeros(3, bool),
    )
    minari.create_dataset_from_buffers(
        "tests/text-v0",
        [episode],
        observation_space=spaces.Dict({**Seen.observation_space, "mission": spaces.Text(4)}),
        action_space=Seen.action_space,
    )
    chosen = (f"env.env_id={__name__}:Seen", "data=['minari:tests/text-v0']")
    few = ("policy.learn.batch_size=2", "policy.other.replay_buffer.min_fill=2")
    config, of_env = config_of("cartpole_dqn", *OFFLINE, *few, *chosen)
    given.check(config, of_env)
    given.fill(config, RunLayout(tmp_path / "run"))
    (block,) = read_blocks(next(tmp_path.glob("run/data/*/*/*.h5")))
    columns = transitions(block)  # type: ignore[arg-type]
    np.testing.assert_array_equal(columns["observation/cells"], cells[:-1])
    assert columns["action"].tolist() == [0, 1, 1]
