"""Whole episodes of a run, for scripts."""

from __future__ import annotations

import dataclasses
import shutil
import weakref
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from fakes.serial_runs import resume, serial_run, train
from fakes.store import write_shard
from hpcdi import data
from hpcdi.commands.inspect import episodes_of
from hpcdi.data import read_episodes
from hpcdi.errors import LaunchError, ShardError, StoreError
from hpcdi.roles.fault import tear
from hpcdi.store import rows
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.types import ITEM_DTYPE, NO_SEED, Array, Columns

STEPS = "policy.other.commander.max_env_step=600"


def test_episodes_are_those_that_the_run_has_counted(tmp_path: Path) -> None:
    with serial_run(tmp_path, "cartpole_dqn", STEPS, "env.collector_env_num=3") as run:
        train(run)
        main = run.coordinator.groups.main
        counted, steps = main.episodes, main.env_steps
        returns = sorted(main.returns)
    episodes = list(read_episodes(tmp_path))
    assert sorted(e.total for e in episodes) == returns
    assert len(episodes) == counted > 10
    (line,) = episodes_of(RunLayout(tmp_path))
    assert f"episodes: {counted} whole ones of {sum(map(len, episodes))} transitions" in line
    assert f"return {np.mean(returns):.6g} ± " in line
    few = list(read_episodes(tmp_path, columns="action"))
    assert [e.facts for e in few] == [e.facts for e in episodes]
    assert all(np.array_equal(a.action, b.action) for a, b in zip(few, episodes, strict=True))
    assert few[0].columns.keys() == {
        "action",
        "policy_version",
        *("reward", "terminated", "truncated"),
    }
    with pytest.raises(StoreError, match="has no column nonsense; there are action, "):
        next(read_episodes(tmp_path, columns=["action", "nonsense", "info", "policy_version"]))
    with pytest.raises(LaunchError, match=r"has 0 whole episodes of bot: its data are .* of main"):
        next(read_episodes(tmp_path, player="bot"))
    every = list(read_episodes(tmp_path, unfinished=True, player="main"))
    assert sum(map(len, every)) == steps
    assert len(every) - len(episodes) == sum(not e.is_whole for e in every) <= 3
    assert {e.seed for e in episodes} == {None}, "a vector's environments share a generator"
    for episode in episodes:
        assert episode.observation.shape == (len(episode) + 1, 4)
        assert episode.action.shape == (len(episode),)
        assert episode.total == len(episode)
        assert np.abs(np.diff(episode.observation[:, 0])).max() < 0.2, "one step follows another"
        ended = episode.columns["terminated"] | episode.columns["truncated"]
        assert ended.tolist() == [False] * (len(episode) - 1) + [True]
        assert episode.facts["return"] == episode.total
        assert not {"bootstrap_offset", "next_observation"} & episode.columns.keys()


@pytest.mark.parametrize(
    "told",
    [
        ("env.collector_episode_num=1", "policy.collect.n_sample=6"),
        ("system.deterministic=true", "system.snapshot_rounds=1", "policy.collect.n_sample=14"),
    ],
    ids=["number of episodes", "environments made anew"],
)
def test_episodes_that_were_abandoned_are_no_part_of_others(
    tmp_path: Path, told: tuple[str, ...]
) -> None:
    with serial_run(tmp_path, "cartpole_dqn", STEPS, *told) as run:
        train(run)
        main = run.coordinator.groups.main
    episodes = list(read_episodes(tmp_path))
    assert sorted(e.total for e in episodes) == sorted(main.returns)
    for x, v, *_ in (episode.observation.T.astype(np.float64) for episode in episodes):
        np.testing.assert_allclose(x[1:], x[:-1] + 0.02 * v[:-1], atol=1e-4)  # CartPole's physics


def test_seeds_and_what_is_kept_of_infos_are_those_of_each_episode_also_of_a_resumed_run(
    tmp_path: Path,
) -> None:
    told = (
        "env.wrappers=[RecordEpisodeStatistics]", "env.keep_infos=[episode/r, no/such]",
        "system.storage.block_bytes=8192", "system.storage.file_bytes=32768",
    )  # fmt: skip
    with serial_run(tmp_path, "cartpole_dqn", STEPS, *told) as run:
        train(run)
    more = "policy.other.commander.max_env_step=1500"
    with serial_run(tmp_path, "cartpole_dqn", more, *told, restarts=1) as run:
        resume(run, tmp_path)
        train(run)
        counted = run.coordinator.groups.main.episodes
    assert len(list(RunLayout(tmp_path).data_dir.glob("*/*/*.h5"))) > 2
    episodes = list(read_episodes(tmp_path))
    assert len(episodes) == counted, (
        "also those that lie in two shards, and the first of each start"
    )
    some = list(read_episodes(tmp_path, columns=["info", "action"]))
    assert [e.infos.keys() for e in some] == [e.infos.keys() for e in episodes], "all parts"
    seeds = {episode.seed for episode in episodes}
    assert len(seeds) > 8, "each environment has one, and those of the resumed run are others"
    for episode in episodes:
        assert np.isnan(episode.infos["no/such"]).all()
        assert np.isnan(episode.infos["episode/r"][:-1]).all()
        assert episode.infos["episode/r"][-1] == episode.total
        env = gymnasium.make("CartPole-v1")
        first, _ = env.reset(seed=episode.seed)
        for _ in range(episode.resets):
            first, _ = env.reset()
        np.testing.assert_array_equal(first, episode.observation[0])
    assert {"seed", "resets"} <= episodes[0].facts.keys()


def test_where_a_shard_is_gone_only_what_is_whole_is_returned(tmp_path: Path) -> None:
    small = ("system.storage.file_bytes=4096", "system.storage.block_bytes=4096")
    with serial_run(tmp_path, "cartpole_dqn", STEPS, *small, "env.collector_env_num=3") as run:
        train(run)
    before = {(e.env, e.observation.tobytes()) for e in read_episodes(tmp_path)}
    shards = sorted((RunLayout(tmp_path).data_dir).glob("*/*/*.h5"))
    assert len(shards) > 4
    shards[0].unlink()
    shards[len(shards) // 2].unlink()
    left = {(e.env, e.observation.tobytes()) for e in read_episodes(tmp_path)}
    assert 0 < len(left) < len(before)
    assert left <= before


@pytest.mark.parametrize("folder", ["20000101T00", "29990101T00"])
def test_a_copy_of_a_shard_doubles_no_episode(tmp_path: Path, folder: str) -> None:
    layout = RunLayout(tmp_path)
    name = layout.shard_path(2, 1)
    write_shard(layout, name, block_of(1, [(0, 0, True), (1, 1, True)]), fsync=False)
    copy = layout.root / "data" / "rank00002" / folder / "000001.h5"
    copy.parent.mkdir()
    shutil.copy(layout.root / name, copy)
    assert [len(episode) for episode in read_episodes(tmp_path, unfinished=True)] == [2, 2]


def block_of(number: int, items: list[tuple[int, int, bool]], seed: int = 7) -> Block:
    """Of one environment: items of two steps; episode, resets, and whether the episode ends."""
    table = np.zeros(len(items), ITEM_DTYPE)
    table["item_start"], table["item_len"] = 3 * np.arange(len(items)), 2
    table["episode_id"], table["episode_resets"] = [i[0] for i in items], [i[1] for i in items]
    table["episode_seed"] = seed
    rows = np.arange(3 * len(items))
    ends = np.array([i[2] for i in items]).repeat(3) & (rows % 3 == 1)
    columns = {
        "observation": rows.astype(np.float32), "reward": np.ones(len(rows), np.float32),
        "terminated": ends, "truncated": np.zeros(len(rows), bool),
    }  # fmt: skip
    return Block(columns, table, {"block_id": number}, (), 1)


def whole(monkeypatch: pytest.MonkeyPatch, *blocks: Block) -> list[int]:
    """Resets of the episodes that are whole."""
    monkeypatch.setattr(data, "_blocks", lambda *_: iter(blocks))
    monkeypatch.setattr(data, "_facts_in", lambda _: [block.facts for block in blocks])
    return [e.resets for e in data._episodes_of([Path("x")], "0", None, unfinished=False)]


def test_behind_a_gap_episodes_that_begin_in_the_same_block_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = block_of(1, [(0, 0, True), (1, 1, False)])
    last = block_of(3, [(5, 5, False), (5, 5, True), (6, 6, True), (7, 7, False), (7, 7, True)])
    assert whole(monkeypatch, first, last) == [0, 6, 7]


@pytest.mark.parametrize("seed", [7, NO_SEED])
def test_behind_a_gap_a_player_that_has_ended_says_nothing_of_another(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = block_of(1, [(0, 0, True), (2, 1, False), (1, 0, True), (3, 1, False)], seed)
    behind = [(10, 5, True), (12, 6, False), (11, 5, True), (13, 6, False)]
    more = [(12, 6, True), (14, 7, False), (13, 6, True), (15, 7, False)]
    last = [block_of(3, behind, seed), block_of(4, more, seed)]
    resets = whole(monkeypatch, first, *last, block_of(5, [(14, 7, True), (15, 7, True)], seed))
    assert 5 not in resets
    assert resets[:2] == [0, 0]


def test_of_several_players_episodes_without_seeds_may_lie_over_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = [
        block_of(1, [(0, 0, False), (1, 0, False)], NO_SEED),
        block_of(2, [(0, 0, True), (1, 0, True)], NO_SEED),
    ]
    monkeypatch.setattr(data, "_blocks", lambda *_: iter(blocks))
    read = data._episodes_of([Path("x")], "0", None, unfinished=True)
    assert [len(episode) for episode in read] == [4, 4]


def of(player: str, number: int, items: list[tuple[int, int, bool]]) -> Block:
    block = block_of(number, items)
    return dataclasses.replace(block, facts={**block.facts, "player": player})


def test_of_several_players_a_block_that_was_begun_earlier_may_be_stored_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = [
        of("a", 1, [(0, 0, True), (2, 1, False)]),
        of("b", 3, [(1, 0, True), (3, 1, False)]),
        of("a", 2, [(2, 1, True), (4, 2, False)]),
        of("b", 4, [(3, 1, True)]),
        of("a", 5, [(4, 2, True)]),
    ]
    assert whole(monkeypatch, *blocks) == [0, 0, 1, 1, 2]
    assert whole(monkeypatch, *blocks[:2], *blocks[3:]) == [0, 1]


def test_each_episode_says_which_player_learns_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        block_of(1, [(0, 0, True)]),
        of("bot", 2, [(1, 1, True), (2, 2, False)]),
        block_of(3, [(3, 3, True)]),
        of("bot", 4, [(2, 2, True)]),
    ]
    monkeypatch.setattr(data, "_blocks", lambda *_: iter(blocks))

    def episodes(player: str | None) -> list[tuple[str, int]]:
        given = {"unfinished": False, "player": player}
        read = data._episodes_of([Path("x")], "0", None, **given)  # type: ignore[arg-type]
        return [(e.facts["player"], e.resets) for e in read]

    assert episodes(None) == [("main", 0), ("bot", 1), ("main", 3), ("bot", 2)]
    assert episodes("bot") == [("bot", 1), ("bot", 2)]
    assert episodes("main") == [("main", 0), ("main", 3)]


def test_behind_a_gap_an_episode_that_has_ended_says_nothing_of_another_player_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = [of("a", 3, [(10, 5, True)]), of("b", 4, [(11, 5, True)])]
    assert whole(monkeypatch, of("a", 1, [(0, 0, True)]), *behind) == [0]


def test_an_episode_that_was_abandoned_keeps_no_more_than_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A whole block stayed in memory for each: those of a run that abandons many filled it."""
    rewards = list[weakref.ref[Array]]()

    def transitions(block: Block) -> Columns:
        columns = rows.transitions(block)
        rewards.append(weakref.ref(columns["reward"]))
        return columns

    monkeypatch.setattr(data, "transitions", transitions)
    blocks = [block_of(n, [(2 * n, 0, False), (2 * n + 1, 1, True)]) for n in range(1, 9)]
    monkeypatch.setattr(data, "_blocks", lambda *_: iter(blocks))
    episodes = data._episodes_of([Path("x")], "0", None, unfinished=True)
    assert [next(episodes).resets for _ in blocks] == [1] * 8
    assert [reward() is None for reward in rewards] == [True] * 7 + [False], "the one it reads"
    assert [(len(episode), episode.is_whole) for episode in episodes] == [(2, False)] * 8


def test_a_damaged_block_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        block_of(1, [(0, 0, False)]),
        block_of(2, [(0, 0, False)]),
        block_of(3, [(0, 0, True)]),
    ]
    monkeypatch.setattr(data, "_facts_in", lambda _: [block.facts for block in blocks])
    read = [blocks[0], ShardError("x", "is torn"), blocks[2]]
    monkeypatch.setattr(data, "_blocks", lambda *_: iter(read))
    assert not list(data._episodes_of([Path("x")], "0", None, unfinished=False))


def test_behind_a_damaged_block_an_episode_without_a_seed_is_not_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of a vector environment; the one before it has ended in the block before."""
    blocks = [block_of(number, [(number, number, True)], NO_SEED) for number in (1, 2, 3)]
    monkeypatch.setattr(data, "_facts_in", lambda _: [block.facts for block in blocks])
    read = [blocks[0], ShardError("x", "is torn"), blocks[2]]
    monkeypatch.setattr(data, "_blocks", lambda *_: iter(read))
    episodes = list(data._episodes_of([Path("x")], "0", None, unfinished=False))
    assert [episode.resets for episode in episodes] == [1]


def written(root: Path) -> list[Path]:
    """Three shards with an episode each, of two steps; the first block of the second is torn."""
    layout, shards = RunLayout(root), []
    for number in (1, 2, 3):
        name = layout.shard_path(2, number, 0.0)
        ref = write_shard(layout, name, block_of(number, [(number, number, True)]), fsync=False)
        shards.append(layout.root / name)
        if number == 2:
            tear(shards[-1], ref)
    return shards


def test_what_is_damaged_is_left_out_with_a_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = written(tmp_path)
    shards[2].write_bytes(b"no shard")
    torn = f"{shards[1]}: checksum of block 0 is wrong: the file is torn"
    assert [e.resets for e in read_episodes(tmp_path)] == [1]
    first, second = caplog.messages
    assert first == f"{torn}; it is left out"
    assert second.startswith(f"{shards[2]}: ")
    assert second.endswith("; it is left out")
    caplog.clear()
    errors: list[ShardError] = []
    assert len(list(read_episodes(tmp_path, left_out=errors.append))) == 1
    assert [str(error) for error in errors] == [torn, second.removesuffix("; it is left out")]
    (line,) = episodes_of(RunLayout(tmp_path))
    assert "1 whole one of 2 transitions" in line
    assert not caplog.messages
    shards[0].unlink()
    for player in (None, "main"):
        with pytest.raises(StoreError, match=r"has 2 shards, and none can be read: .*000002\.h5"):
            list(read_episodes(tmp_path, player=player))
    shards[1].write_bytes(b"no shard")
    for player in (None, "main"):
        with pytest.raises(StoreError, match="has 2 shards, and none can be read"):
            list(read_episodes(tmp_path, columns=["reward"], player=player))


def test_a_shard_that_a_run_removes_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shards = written(tmp_path)
    read = data.read_blocks

    def removed(path: Path, **given: Any) -> Any:
        if path == shards[1]:
            path.unlink()
        return read(path, **given)

    monkeypatch.setattr(data, "read_blocks", removed)
    assert [e.resets for e in read_episodes(tmp_path)] == [1], "behind a gap nothing is whole yet"
    assert not caplog.messages


def test_frames_that_are_stored_once_come_back_as_stacks(tmp_path: Path) -> None:
    stacked = (
        "env.wrappers=[{type: FrameStackObservation, stack_size: 3}]",
        "policy.other.replay_buffer.frames=[observation]",
    )
    with serial_run(tmp_path, "cartpole_dqn", STEPS, *stacked) as run:
        train(run)
        counted = run.coordinator.groups.main.episodes
    episodes = list(read_episodes(tmp_path))
    assert len(episodes) == counted
    for episode in episodes:
        stacks = episode.observation
        assert stacks.shape == (len(episode) + 1, 3, 4)
        assert np.array_equal(stacks[1:, :-1], stacks[:-1, 1:])
        assert not {name for name in episode.columns if name.startswith("observation")}
    alone = read_episodes(tmp_path, columns=["observation"])
    assert all(
        np.array_equal(one.observation, other.observation)
        for one, other in zip(alone, episodes, strict=True)
    )


def test_battles_have_an_episode_for_each_player_that_learns(tmp_path: Path) -> None:
    with serial_run(tmp_path, "tictactoe_league", "policy.other.commander.max_env_step=300") as run:
        train(run)
        counted = run.coordinator.groups.main.episodes
    episodes = list(read_episodes(tmp_path))
    assert len(episodes) == counted
    assert {e.total for e in episodes} <= {-1.0, 0.0, 1.0}
    assert all(1 <= len(e) <= 5 for e in episodes)
    assert "action_mask" in episodes[0].columns
    assert all(e.seed is not None for e in episodes)


def test_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no data"):
        next(read_episodes(tmp_path))
