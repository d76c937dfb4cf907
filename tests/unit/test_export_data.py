"""`hpcdi export RUN --to minari|parquet`: episodes as other tools read them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec

from fakes.serial_runs import DQN, ROOT, serial
from hpcdi.commands import export_data
from hpcdi.commands.export import main
from hpcdi.config.env import GymnasiumConfig
from hpcdi.data import Episode, read_episodes
from hpcdi.env.gymnasium import registered_spec
from hpcdi.errors import LaunchError
from hpcdi.roles.fault import tear
from hpcdi.store.shards import survey
from hpcdi.types import Array

CONFIG = str(ROOT / "configs" / "cartpole_dqn.yaml")
STEPS = "policy.other.commander.max_env_step=300"
TOLD = ("env.wrappers=[RecordEpisodeStatistics]", "env.keep_infos=[episode/r, episode/l]")
BLACKJACK = ("env.env_id=Blackjack-v1",)
"""A Tuple of three numbers."""


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cartpole") / "run"
    small = "system.storage.block_bytes=4096"
    assert serial(CONFIG, (*DQN, STEPS, small, *TOLD), str(folder)) == 0
    return folder


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def pairs(dataset: Any, run: Path) -> Iterator[tuple[Any, Episode]]:
    return zip(dataset, read_episodes(run), strict=True)


def test_minari_reads_each_episode_as_it_was(
    cartpole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(cartpole), "--to", "minari", "cartpole/dqn-v0"]) == 0
    dataset = minari.load_dataset("cartpole/dqn-v0")
    for read, episode in pairs(dataset, cartpole):
        np.testing.assert_array_equal(read.observations, episode.observation)
        np.testing.assert_array_equal(read.actions, episode.action)
        np.testing.assert_array_equal(read.rewards, episode.reward)
        assert read.terminations.tolist() == episode.columns["terminated"].tolist()
        assert read.truncations.tolist() == episode.columns["truncated"].tolist()
        assert dataset.observation_space.contains(read.observations[0])
        assert dataset.action_space.contains(read.actions[0])
        assert read.infos["episode"].keys() == {"r", "l"}
        np.testing.assert_array_equal(read.infos["episode"]["r"], episode.infos["episode/r"])
        assert read.infos["episode"]["l"][-1] == len(episode)
    episodes = list(read_episodes(cartpole))
    assert (dataset.total_episodes, dataset.total_steps) == (len(episodes), sum(map(len, episodes)))
    assert f"{len(episodes)} of {len(episodes)}" in capsys.readouterr().out
    names = ("collector", "env", "generator_seed", "generator_resets")
    metadata = list(dataset.storage.get_episode_metadata(range(len(episodes))))
    assert [tuple(m[name] for name in names) for m in metadata] == [
        (e.collector, e.env, e.seed, e.resets) for e in episodes
    ]
    own = {m["seed"]: m["generator_resets"] for m in metadata if "seed" in m}
    assert set(own.values()) == {0}
    assert len(own) == 4, "the first of each environment"
    assert ", seed " in dataset.storage.metadata["description"]


def test_a_dataset_has_the_environment_s_own_form(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert serial(CONFIG, (*DQN, STEPS, *BLACKJACK), str(run)) == 0
    main([str(run), "--to", "minari", "cards/dqn-v0"])
    dataset = minari.load_dataset("cards/dqn-v0")
    for read, episode in pairs(dataset, run):
        for part, own in zip(read.observations, episode.observation.values(), strict=True):
            np.testing.assert_array_equal(part, own)
        assert dataset.observation_space.contains(tuple(part[0] for part in read.observations))
    assert dataset.recover_environment().spec.id == "Blackjack-v1"


def test_some_of_the_episodes(cartpole: Path) -> None:
    totals = sorted(episode.total for episode in read_episodes(cartpole))
    least = totals[len(totals) // 2]
    main([str(cartpole), "--to", "minari", "cartpole/good-v0", f"--returns={least}:"])
    dataset = minari.load_dataset("cartpole/good-v0")
    wanted = [total for total in totals if total >= least]
    assert sorted(episode.rewards.sum() for episode in dataset) == wanted


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["minari", "bad name"], "is no name of Minari's"),
        (["minari", "one-v0", "two-v0"], "one name"),
        (["minari", "-o", "one.hdf5"], "--to minari NAME"),
        (["minari", "far/none-v0", "--returns=1000000:"], "none is wanted"),
        (["minari", "far/none-v0", "--player=bot"], "0 whole episodes of bot"),
        (["parquet", "steps"], "'steps' has no meaning here"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(
    cartpole: Path, datasets: Path, arguments: list[str], said: str
) -> None:
    with pytest.raises(LaunchError, match=said):
        main([str(cartpole), "--to", *arguments])
    assert not list(datasets.rglob("main_data.hdf5"))


def test_a_dataset_is_never_overwritten(cartpole: Path) -> None:
    main([str(cartpole), "--to", "minari", "cartpole/once-v0"])
    with pytest.raises(LaunchError, match="once-v1"):
        main([str(cartpole), "--to", "minari", "cartpole/once-v0"])


def test_parquet_has_a_row_a_step(cartpole: Path, tmp_path: Path) -> None:
    assert main([str(cartpole), "-o", str(tmp_path / "steps.parquet")]) == 0
    table = pq.read_table(tmp_path / "steps.parquet")
    episodes = list(read_episodes(cartpole))
    assert table["reward"].to_numpy().mean() == 1.0
    for number, episode in enumerate(episodes):
        rows = table.filter(np.equal(table["episode"].to_numpy(), number))
        np.testing.assert_array_equal(
            np.stack(rows["next_observation"].to_numpy()), episode.observation[1:]
        )
        np.testing.assert_array_equal(rows["action"].to_numpy(), episode.action)
        np.testing.assert_array_equal(rows["info/episode/r"].to_numpy(), episode.infos["episode/r"])
        assert set(rows["seed"].to_pylist()) == {episode.seed}
        assert set(rows["player"].to_pylist()) == {"main"}


def test_damage_is_said(cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = shutil.copytree(cartpole, tmp_path / "torn")
    (shard,) = torn.glob("data/*/*/*.h5")
    ref, _ = survey(shard, shard.relative_to(torn).as_posix()).blocks[-1]
    tear(shard, ref)
    assert main([str(torn), "-o", str(tmp_path / "steps.parquet")]) == 0
    assert "  left out     1 damaged block\n" in capsys.readouterr().out


def episode_of(steps: int, **columns: Array) -> Episode:
    seen = {"observation": np.ones((steps + 1, 2), np.float32)}
    return Episode(seen, {"reward": np.ones(steps), **columns}, "rank00002", 0, 7, 0, True)


@pytest.mark.parametrize("rows_at_a_time", [1, 1000])
def test_parquet_has_all_columns_of_a_run_that_was_resumed_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_a_time: int
) -> None:
    monkeypatch.setattr(export_data, "_ROWS_AT_A_TIME", rows_at_a_time)
    file = tmp_path / "steps.parquet"
    some, others = {"info/x": np.ones(2)}, {"info/force": np.ones((1, 3))}
    episodes = [episode_of(1), episode_of(2, **some), episode_of(1, **others), episode_of(2)]
    export_data._write_parquet(file, episodes)
    table = pq.read_table(file)
    assert table["episode"].to_pylist() == [0, 1, 1, 2, 3, 3]
    assert table["info/x"].to_pylist() == [None, 1.0, 1.0, None, None, None]
    assert table["info/force"].to_pylist() == [None, None, None, [1.0] * 3, None, None]
    assert table["observation"].to_pylist() == [[1.0, 1.0]] * 6
    assert list(tmp_path.iterdir()) == [file]


def test_rows_of_short_episodes_are_counted_once() -> None:
    counted = list[int]()

    class Table(list[int]):
        def __len__(self) -> int:
            counted.append(1)
            return super().__len__()

    tables = [Table([7]) for _ in range(300)]
    assert [len(group) for group in export_data._groups(tables)] == [300]
    assert len(counted) == 300


class OfVectors(CartPoleVectorEnv):
    """Has no single environments."""


@pytest.mark.parametrize(
    ("env_id", "kwargs", "limit", "others"),
    [
        ("CartPole-v1", {"max_episode_steps": 20}, 20, {}),
        ("CartPole-v1", {"max_episode_steps": -1}, None, {}),
        ("Pendulum-v1", {"g": "{index + 9}"}, 200, {"g": 9}),
        ("FrozenLake-v1", {"is_slippery": False}, 100, {"is_slippery": False, "map_name": "4x4"}),
    ],
)
def test_a_dataset_says_how_its_environment_is_made(
    env_id: str, kwargs: dict[str, Any], limit: int | None, others: dict[str, Any]
) -> None:
    spec = registered_spec(GymnasiumConfig(env_id=env_id, kwargs=kwargs))
    assert (spec.id, spec.max_episode_steps, spec.kwargs) == (env_id, limit, others)
    assert spec is not gymnasium.spec(env_id)


@pytest.mark.parametrize(
    "made_by",
    [{"vector_entry_point": f"{__name__}:OfVectors"}, {"entry_point": lambda: CartPoleEnv()}],
)
def test_a_dataset_names_no_environment_that_is_not_made_by_its_id(
    made_by: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gymnasium.registry, "Own-v0", EnvSpec("Own-v0", **made_by))
    assert registered_spec(GymnasiumConfig(env_id="Own-v0")) is None
    assert registered_spec(GymnasiumConfig(env_id="CartPole-v1", wrappers=("SignReward",))) is None


class Narrow(gymnasium.Env[Any, Any]):
    """Returns bounds that float32 rounds to beyond them, and an origin in float64, too."""

    observation_space = gymnasium.spaces.Box(-0.1, 0.1, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 3
        return np.array([0.1, -0.1]), {}

    def step(self, action: object) -> Any:
        self.left -= 1
        return np.array([0.1, self.np_random.uniform(-0.1, 0.1)]), 1.0, not self.left, False, {}


@pytest.mark.parametrize("origin", ["null", "{observation: 3.3}"])
def test_rounding_puts_no_value_beyond_its_space(tmp_path: Path, origin: str) -> None:
    narrow = (
        *DQN,
        "policy.other.commander.max_env_step=48",
        f"env.env_id={__name__}:Narrow",
        f"env.origin={origin}",
    )
    assert serial(CONFIG, narrow, str(tmp_path / "run")) == 0
    assert main([str(tmp_path / "run"), "--to", "minari", "narrow/run-v0"]) == 0
    dataset = minari.load_dataset("narrow/run-v0")
    for read, episode in pairs(dataset, tmp_path / "run"):
        assert all(map(dataset.observation_space.contains, read.observations))
        np.testing.assert_allclose(read.observations, episode.observation, rtol=1e-6, atol=1e-6)


def test_what_a_run_has_subtracted_is_added_again(tmp_path: Path) -> None:
    far = (*DQN, "policy.other.commander.max_env_step=64", "env.origin={observation: 1024.0}")
    assert serial(CONFIG, far, str(tmp_path / "run")) == 0
    assert main([str(tmp_path / "run"), "--to", "minari", "far/run-v0"]) == 0
    assert main([str(tmp_path / "run"), "-o", str(tmp_path / "far.parquet")]) == 0
    for read, episode in pairs(minari.load_dataset("far/run-v0"), tmp_path / "run"):
        assert episode.observation.dtype == np.float64
        assert np.abs(episode.observation).max() < 5, "as CartPole's are"
        np.testing.assert_array_equal(read.observations, episode.observation)
    rows = np.stack(pq.read_table(tmp_path / "far.parquet")["observation"].to_numpy())
    first = [episode.observation[:-1] for episode in read_episodes(tmp_path / "run")]
    np.testing.assert_array_equal(rows, np.concatenate(first))


class Hollow(gymnasium.Env[Any, Any]):
    """Observations with a part of no numbers."""

    observation_space = gymnasium.spaces.Dict(
        at=gymnasium.spaces.Box(-1, 1, (2,)), none=gymnasium.spaces.Box(0, 1, (0,))
    )
    action_space = gymnasium.spaces.Discrete(2)


def test_parts_of_no_numbers_are_exported_as_such(tmp_path: Path) -> None:
    at, none = np.full((4, 2), 0.5, np.float32), np.zeros((4, 0), np.float32)
    episode = dataclasses.replace(
        episode_of(3), observations={"observation/at": at, "observation/none": none}
    )
    export_data._write_parquet(tmp_path / "steps.parquet", [episode])
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table["next_observation/none"].to_pylist() == [[], [], []]
    assert table["observation/at"].to_pylist() == [[0.5, 0.5]] * 3
    rounded = export_data._Rounded(GymnasiumConfig(env_id=f"{__name__}:Hollow"))
    values = rounded.observations(episode.observations)
    np.testing.assert_array_equal(values["at"], at)
    assert values["none"].shape == none.shape


def test_a_folder_of_minari_that_cannot_be_made_is_said(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "datasets"))
    with pytest.raises(LaunchError, match=r"any/dqn-v0, .* Minari's cannot be written: Not a dir"):
        main([str(cartpole), "--to", "minari", "any/dqn-v0"])
