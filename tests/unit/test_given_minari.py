"""Datasets of Minari as data that a run is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes.serial_runs import DQN, LIMIT, ROOT, config_of, serial
from hpcdi.commands.export import main
from hpcdi.data import read_episodes
from hpcdi.errors import ConfigError
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
