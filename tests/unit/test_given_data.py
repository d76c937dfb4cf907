"""Data that a run is given: earlier runs and datasets of Minari, and learning from them offline."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.serial_runs import (
    DQN,
    LIMIT,
    PPO,
    ROOT,
    SMALL,
    config_of,
    resume,
    serial,
    serial_run,
    train,
)
from hpcdi.comm.messages import StopRequest
from hpcdi.config.fields import replaced
from hpcdi.data import read_episodes
from hpcdi.errors import EXIT_INTERRUPTED, ConfigError, StoreError
from hpcdi.replay.ratio import ReplayRatio
from hpcdi.roles.fault import tear
from hpcdi.run import given
from hpcdi.run import resume as resume_run
from hpcdi.run.given import (
    Pieces,
    Size,
    _check_values,
    _room_for,
    _smallest_share,
    _within_bounds,
)
from hpcdi.run.serial import LocalRun
from hpcdi.run.sizes import full_block, row_size
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.store.rows import transitions
from hpcdi.store.shards import Appender, read_block, survey
from hpcdi.types import ITEM_DTYPE, RESTART_NUMBERS, Leaf

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BC = "cartpole_bc"
SMALLER = (*SMALL, "policy.learn.batch_size=16", "env.evaluator_env_num=1",
           f"{LIMIT}.max_train_iter=6", "policy.eval.every=3 iterations")  # fmt: skip
OFFLINE = (*DQN, f"{LIMIT}.max_train_iter=6", f"{LIMIT}.offline_iterations=4",
           "policy.eval.every=100 iterations")  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of some 650 steps, in blocks of 4 KB."""
    folder = tmp_path_factory.mktemp("source") / "run"
    limits = (f"{LIMIT}.max_env_step=600", "system.storage.block_bytes=4096")
    assert serial(str(ROOT / "configs" / "cartpole_dqn.yaml"), (*DQN, *limits), str(folder)) == 0
    return folder


def prepared(folder: Path, source: Path, name: str, *overrides: str) -> tuple[Any, str]:
    config, spaces = config_of(name, f"data=[{source}]", *overrides)
    given.check(config, spaces)
    return config, given.fill(config, RunLayout(folder))


def blocks_in(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("data/*/*/*.h5")):
        for ref, _ in survey(path, str(path)).blocks:
            yield read_block(ref.path)


def column_of(folder: Path, name: str) -> Any:
    return np.concatenate([transitions(block)[name] for block in blocks_in(folder)])


def by_episode(folder: Path, name: str) -> Any:
    """Returns a column, the steps of each environment's episodes one after the other."""
    blocks = [*blocks_in(folder)]
    items = np.concatenate([block.items for block in blocks])
    steps = np.repeat(items[["env_id", "episode_id"]], items["item_len"])
    order = np.lexsort((steps["episode_id"], steps["env_id"]))
    return np.concatenate([transitions(block)[name] for block in blocks])[order]


def steps_of(folder: Path) -> int:
    return len(column_of(folder, "reward"))


def test_all_transitions_of_a_run_are_learnt_from_and_none_is_counted(
    tmp_path: Path, source: Path
) -> None:
    config, line = prepared(tmp_path, source, BC, *SMALLER)
    assert line.startswith(f"{steps_of(source)} transitions, ")
    with LocalRun(config, RunLayout(tmp_path)) as run:
        assert train(run).startswith("max_train_iter")
        main = run.coordinator.groups.main
        assert (main.env_steps, main.episodes, main.train_iter) == (0, 0, 6)
        assert main.replay.count() == steps_of(source)
        assert len(main.evaluations) == 2
    for name in ("observation", "action", "reward", "terminated"):
        assert np.array_equal(by_episode(tmp_path, name), by_episode(source, name)), name
    with pytest.raises(StoreError, match="that it has collected"):
        list(read_episodes(tmp_path))


def test_given_data_have_the_returns_of_the_policy_that_learns_from_them(
    tmp_path: Path, source: Path
) -> None:
    """Over whole episodes, wherever the source's collector had cut them."""
    prepared(tmp_path, source, "cartpole_dqn", *OFFLINE)
    expected: dict[str, list[Any]] = {
        "n_step_return": [], "bootstrap_discount": [], "next_observation": []
    }  # fmt: skip
    episodes = sorted(read_episodes(source, unfinished=True), key=lambda each: each.env)
    for episode in episodes:
        for step in range(len(episode)):
            until = min(step + 5, (step // 16 + 1) * 16, len(episode))
            rewards = episode.reward[step:until]
            goes_on = not episode.columns["terminated"][step:until].any()
            expected["n_step_return"].append(rewards @ 0.99 ** np.arange(until - step))
            expected["bootstrap_discount"].append(goes_on * 0.99 ** (until - step))
            expected["next_observation"].append(episode.observation[until])
    for name, column in expected.items():
        np.testing.assert_allclose(by_episode(tmp_path, name), column, rtol=1e-6, err_msg=name)


def test_an_algorithm_of_ones_own_learns_from_given_data(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class is asked for columns before there is a network."""
    code = "from hpcdi.policy.dqn import DQNPolicy\n\n\nclass Own(DQNPolicy):\n    pass\n"
    (tmp_path / "given_to_own.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    folders, types = (tmp_path / "built_in", tmp_path / "own"), ("dqn", "given_to_own:Own")
    for folder, policy in zip(folders, types, strict=True):
        prepared(folder, source, "cartpole_dqn", *OFFLINE, f"policy.type={policy}")
    for name in ("n_step_return", "bootstrap_discount", "next_observation"):
        built_in, own = (by_episode(folder, name) for folder in folders)
        assert np.array_equal(own, built_in), name


def write_items(
    run: Path, start: int, number: int, *seen: tuple[int, int], player: str = "main"
) -> None:
    """Writes a block of items of one step: environment, and the number that is seen before it.

    The number after a step is the next one; with 9 the episode has terminated.
    """
    items = np.zeros(len(seen), ITEM_DTYPE)
    items["item_start"], items["item_len"] = 2 * np.arange(len(seen)), 1
    items["env_id"] = [env for env, _ in seen]
    observation = np.array([[before, before + 1] for _, before in seen])
    ends = np.repeat(observation[:, 1] == 9, 2)
    columns = {
        "observation": observation.ravel(),
        "action": np.zeros(len(ends), np.int64),
        "reward": np.ones(len(ends), np.float32),
        "terminated": ends,
        "truncated": np.zeros_like(ends),
    }
    unique = start * RESTART_NUMBERS + number
    facts = {"task_id": "t", "block_id": (2 << 40) + unique, "sealed_at": 0.0, "player": player}
    layout = RunLayout(run)
    block = Block(columns, items, facts, (), 1)
    Appender(layout, 0, fsync=False).write(layout.shard_path(2, unique, 0.0), block)


def test_items_that_follow_one_another_in_an_episode_are_joined(tmp_path: Path) -> None:
    def lengths() -> list[list[int]]:
        """Returns those of all pieces; each holds what its environment has shown."""
        run, steps, rows, found = given._Run(tmp_path, {}, 3), 0, 0, []
        for pieces in run.pieces():
            assert isinstance(pieces, Pieces)
            ends = np.cumsum(pieces.length)
            for end, length, after in zip(
                ends, pieces.length, pieces.after["observation"], strict=True
            ):
                seen = [*pieces.columns["observation"][end - length : end], after]
                assert seen == [*range(seen[0], seen[0] + length + 1)]
            steps, rows = steps + sum(pieces.length), rows + sum(pieces.length + 1)
            found += [pieces.length.tolist()] if len(ends) else []
        assert run.size() == Size(steps, rows)
        return sorted(found)

    write_items(tmp_path, 0, 1, (0, 0), (1, 5), (0, 1))
    write_items(tmp_path, 0, 2, (0, 2), (1, 6), (0, 3))
    assert lengths() == [[1, 2], [3]], "cut after three steps; the last ones are open"
    write_items(tmp_path, 0, 4, (0, 4))
    assert lengths() == [[1], [1, 2], [3]], "a block is missing before it"
    write_items(tmp_path, 0, 3, (1, 7), (1, 8))
    assert lengths() == [[2], [3], [3, 1]], "it is there"
    write_items(tmp_path, 0, 5, (0, 5), player="other")
    assert lengths() == [[1], [2], [3], [3, 1]], "it is another player's"
    write_items(tmp_path, 1, 1, (0, 5))
    assert lengths() == [[1], [1], [2], [3], [3, 1]], "a later start begins anew"


def test_of_episodes_that_have_ended_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run's size is looked up: else that takes hours for millions of episodes."""
    then, held = Pieces.then, list[int]()

    def counted(self: Pieces, later: Pieces) -> Pieces:
        held.append(len(self.length))
        return then(self, later)

    monkeypatch.setattr(Pieces, "then", counted)
    for number in (1, 2, 3):
        write_items(tmp_path, 0, number, (0, 7), (0, 8), (1, 8))
    run = given._Run(tmp_path, {}, 4)
    pieces = [p.length.tolist() for p in run.pieces() if isinstance(p, Pieces) and len(p.length)]
    assert pieces == [[2, 1]] * 3
    assert run.size() == Size(9, 15)
    assert held == [0, 0] * 2


def test_items_of_episodes_with_one_number_are_not_joined(tmp_path: Path) -> None:
    """Early versions gave environments that share a generator numbers twice."""
    write_items(tmp_path, 0, 1, (0, 1), (0, 5), (0, 6))
    (*_, pieces) = given._Run(tmp_path, {}, 3).pieces()
    assert isinstance(pieces, Pieces)
    assert pieces.length.tolist() == [1, 2]


def test_a_run_of_a_box_learns_from_what_another_algorithm_has_collected(tmp_path: Path) -> None:
    limits = (*PPO, f"{LIMIT}.max_train_iter=1")
    with serial_run(tmp_path / "ppo", "pendulum_ppo", *limits) as run:
        train(run)
    config, _ = prepared(tmp_path / "run", tmp_path / "ppo", "pendulum_iql", *SMALLER)
    with LocalRun(config, RunLayout(tmp_path / "run")) as run:
        train(run)
        assert run.coordinator.groups.main.replay.count() == steps_of(tmp_path / "ppo")
    action = by_episode(tmp_path / "run", "action")
    np.testing.assert_array_equal(action, by_episode(tmp_path / "ppo", "action"))


def test_pieces_are_cut_with_the_observation_after_each() -> None:
    seen = np.arange(100, 107)
    after, length = np.array([905, 907]), np.array([5, 2], np.int32)
    facts = {"env_id": np.array([1, 2])}
    pieces = Pieces({"observation": seen}, length, {"observation": after}, facts)
    cut = pieces.cut(2)
    assert cut.length.tolist() == [2, 2, 1, 2]
    assert cut.after["observation"].tolist() == [102, 104, 905, 907]
    assert cut.facts["env_id"].tolist() == [1, 1, 1, 2]
    assert pieces.cut(5) is pieces


@pytest.mark.parametrize("ratio", ["null", "4"])
def test_a_run_goes_online_after_its_offline_iterations(
    tmp_path: Path, source: Path, ratio: str
) -> None:
    config, _ = prepared(
        tmp_path, source, "cartpole_dqn", *OFFLINE, f"policy.learn.replay_ratio={ratio}"
    )
    with LocalRun(config, RunLayout(tmp_path)) as run:
        main, began = run.coordinator.groups.main, list[int]()
        count = main.count

        def counted(ready: Any) -> None:
            if ready.env_steps:
                began.append(main.train_iter)
            count(ready)

        main.count = counted  # type: ignore[method-assign]
        train(run)
        assert began[:1] == [4], "it collects when the offline iterations are over"
        assert main.train_iter >= 6
        assert main.replay.count() == steps_of(source) + main.env_steps


def test_a_run_that_is_resumed_has_its_data_and_reads_no_source_again(
    tmp_path: Path, source: Path
) -> None:
    config, _ = prepared(tmp_path, source, BC, *SMALLER)
    with LocalRun(config, RunLayout(tmp_path)) as run:
        run.coordinator.begin()  # and dies
    with serial_run(tmp_path, BC, *SMALLER, "data=[/gone]", restarts=1) as run:
        resume(run, tmp_path)
        train(run)
        assert run.coordinator.groups.main.replay.count() == steps_of(source)
    again = (*SMALLER, f"{LIMIT}.max_train_iter=9", "data=[/gone]")
    with serial_run(tmp_path, BC, *again, restarts=2) as run:
        resume(run, tmp_path)
        train(run)
        main = run.coordinator.groups.main
        assert (main.replay.count(), main.train_iter, main.env_steps) == (steps_of(source), 9, 0)


def test_what_leaves_a_resumed_run_nothing_to_draw_is_refused(tmp_path: Path, source: Path) -> None:
    config, _ = prepared(tmp_path, source, BC, *SMALLER)
    with LocalRun(config, RunLayout(tmp_path)) as run:
        train(run)
    blocks = [*blocks_in(tmp_path)]
    learners = len(blocks) + 1

    def check(**changes: Any) -> None:
        changed = {name.replace("__", "."): value for name, value in changes.items()}
        now = replaced(config, {f"{LIMIT}.max_train_iter": 99, **changed})
        resume_run.take_up(now, RunLayout(tmp_path))

    check()
    with pytest.raises(StoreError, match=f"batch_size is 9,999, and `data` are {steps_of(source)}"):
        check(policy__learn__batch_size=9999)
    with pytest.raises(StoreError, match=f"one of {learners} learners gets 0: without"):
        check(policy__learn__learner__learner_num=learners)
    with pytest.raises(StoreError, match=r"replay_buffer_size is 64, and .* is given \d+ trans"):
        check(policy__other__replay_buffer__replay_buffer_size=64)
    given.check_resumed(
        replaced(config, {"policy.learn.batch_size": 9999, f"{LIMIT}.offline_iterations": 6}), [], 6
    )  # it collects


def test_a_torn_block_is_left_out_and_said(tmp_path: Path, source: Path) -> None:
    torn = tmp_path / "torn"
    for path in source.glob("data/*/*/*.h5"):
        copy = torn / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    ref, block = survey(copy, copy.relative_to(torn).as_posix()).blocks[0]
    tear(copy, ref)
    _, line = prepared(tmp_path / "run", torn, BC, *SMALLER)
    left = steps_of(source) - int(block.items["item_len"].sum())
    assert line.startswith(f"{left} transitions")
    assert line.endswith("1 damaged block left out")


def test_a_copy_of_a_shard_is_no_more_data(tmp_path: Path, source: Path) -> None:
    twice = shutil.copytree(source, tmp_path / "twice")
    (shard,) = twice.glob("data/*/*/*.h5")
    shutil.copytree(shard.parent, shard.parent.with_name("20000101T00"))
    run = given._Run(twice, {}, 16)
    steps = [int(p.length.sum()) for p in run.pieces() if isinstance(p, Pieces)]
    assert sum(steps) == run.size().transitions == steps_of(source)


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("data=[/nowhere]", "/nowhere: is no folder of a run"),
        (f"data=[{__file__}]", "is a file; data are a run's folder, or .* minari:NAME"),
        ("data=['minari:no/such-v0']", "minari:no/such-v0: (is not on this|needs the package)"),
        ("env.env_id=Acrobot-v1", r"observation is float32 \[4\], the environment's float32 \[6\]"),
        ("env.env_id=Acrobot-v1", "action_shape 2, here 3"),
        ("policy.other.replay_buffer.replay_buffer_size=200", r"6\d\d transitions in \d+ rows"),
        ("policy.learn.batch_size=1500", r"batch_size: is 1,500, and `data` are 6\d\d transitions"),
        ("policy.other.replay_buffer.min_fill=1500", r"min_fill: is 1,500, and `data` are 6"),
        (f"{LIMIT}.offline_iterations=3", "bc never learns from what it collects"),
        (f"{LIMIT}.max_train_iter=.inf", "must be set"),
        ("policy.eval.every=100 env_steps", "this run makes none"),
        ("policy.other.replay_buffer.max_staleness=9", "would drop `data`"),
        ("data=[]", "bc learns from data alone"),
    ],
)
def test_what_a_run_cannot_learn_from_is_refused_by_name(
    tmp_path: Path, source: Path, override: str, why: str
) -> None:
    config = str(ROOT / "configs" / f"{BC}.yaml")
    with pytest.raises(ConfigError, match=why):
        serial(config, (*SMALLER, f"data=[{source}]", override), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("blocks", [9, 11, 24])
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_learners_that_share_whole_blocks_have_room_for_all(blocks: int, learners: int) -> None:
    config, spaces = config_of(BC, f"policy.learn.learner.learner_num={learners}")

    def of(room: int) -> Any:
        sizes = {
            "policy.other.replay_buffer.replay_buffer_size": room,
            "system.storage.block_bytes": 10_000 // blocks * row_size(config, spaces),
        }
        return replaced(config, sizes)

    data = Size(10_000, 10_000)
    room = _room_for(data, of(10_000), spaces)
    assert _room_for(data, of(room), spaces) <= room
    capacity = room // learners
    block = full_block(of(room), row_size(config, spaces))
    loads = [0] * learners
    for left in range(10_000, 0, -block):
        loads[loads.index(min(loads))] += min(block, left)
    assert max(loads) <= capacity
    assert (learners == 1) is (room == 10_000)


@pytest.mark.parametrize("name", ["cartpole_ppo", "cartpole_impala", "memory_len_r2d2"])
def test_algorithms_that_need_their_own_data_refuse_others(source: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="data: "):
        config_of(name, f"data=[{source}]")


def test_a_team_refuses_data_before_it_starts(source: Path) -> None:
    with pytest.raises(ConfigError, match="data: a team needs its players' steps together"):
        given.check(*config_of("twostep_qmix", f"data=[{source}]", *OFFLINE[-3:]))


@pytest.mark.parametrize(
    ("shape", "origin", "before", "dtype"),
    [
        ((), 2.0, 5.0, np.float32),
        ((3,), [2.0, 0.0, 1.0], 0.0, np.float32),
        ((2, 3), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [6.0] * 6, np.float32),
        ((3, 1), [1.0, 2.0, 3.0], None, np.float32),
        ((2, 3), [2.0**40] * 6, [2.0**53 + 2, 0.0, 0.0, 0.0, 0.0, 0.0], np.int64),
    ],
)
def test_observations_less_one_origin_become_those_less_another(
    shape: tuple[int, ...], origin: Any, before: Any, dtype: Any
) -> None:
    old, new = (np.broadcast_to(np.ravel(by or 0), (max(1, math.prod(shape)),)).reshape(shape)
                for by in (before, origin))  # fmt: skip
    seen = np.arange(4 * math.prod(shape)).reshape(4, *shape)
    columns = {"observation": (seen - old).astype(dtype), "reward": np.ones(4)}
    subtracted = {} if before is None else {"observation": before}
    moved = given._of_origin(columns, {"observation": origin}, subtracted)["observation"]
    assert moved.dtype == dtype
    np.testing.assert_array_equal(moved, seen.astype(np.int64) - new.astype(np.int64))


def test_the_replay_ratio_begins_after_the_offline_samples() -> None:
    free = ReplayRatio(4.0, slack=100.0, offline=64)
    assert free.batches(0, 0, 16) == 4
    assert not free.collectors_wait
    assert not free.is_offline(64)
    assert free.batches(0, 64, 16) == 0
    assert free.batches(8, 64, 16) == 2
    rounds = ReplayRatio(None, updates=lambda _transitions: 0, offline=float("inf"))
    rounds.begin_round(0)
    assert rounds.batches(0, 10**9, 16) == 1


def test_learners_that_share_few_blocks_have_a_batch_each_or_are_refused() -> None:
    size = {"policy.learn.learner.learner_num": 2, "system.storage.block_bytes": 1 << 30}
    config, spaces = config_of(BC, *SMALLER)
    config = replaced(config, size)
    block = full_block(config, row_size(config, spaces))
    assert _smallest_share([Size(block - 9, block)], config, spaces) == 0, "one block, two learners"
    sizes = [Size(90, 100), Size(40, 50), Size(30, 40)]
    assert _smallest_share(sizes, config, spaces) == 70
    share = _smallest_share([Size(15, 16)], config, spaces)
    (problem,) = given._too_few(share, 15, config)
    assert "of which one of 2 learners gets 0" in str(problem)


def test_a_run_that_can_draw_nothing_hears_what_asks_for_its_end(
    tmp_path: Path, source: Path
) -> None:
    config, _ = config_of(BC, f"data=[{source}]", *SMALLER, "policy.learn.batch_size=1500")
    given.fill(config, RunLayout(tmp_path))
    asked = iter([None] * 20)
    stop = StopRequest("asked", EXIT_INTERRUPTED)
    with LocalRun(config, RunLayout(tmp_path), 0, lambda: next(asked, stop)) as run:
        assert run.play().state == "stopped"


def test_discrete_observations_of_another_environment_are_refused(tmp_path: Path) -> None:
    lake, folder = "env.env_id=FrozenLake-v1", tmp_path / "lake"
    limits = (*DQN, lake, f"{LIMIT}.max_env_step=64")
    assert serial(str(ROOT / "configs" / "cartpole_dqn.yaml"), limits, str(folder)) == 0
    of_lake = (*OFFLINE, f"data=[{folder}]")
    given.check(*config_of("cartpole_dqn", *of_lake, lake))
    with pytest.raises(ConfigError, match=r"observation is Discrete\(16\), .* Discrete\(64\)"):
        given.check(*config_of("cartpole_dqn", *of_lake, "env.env_id=FrozenLake8x8-v1"))


@pytest.mark.parametrize(
    ("column", "row", "number", "why"),
    [
        ("reward", 3, np.inf, "the reward inf in episode 8 of environment 1, step 1 of 2 there"),
        ("observation/at", 1, np.nan, r"observation/at \[nan\] in episode 7 .* step 1 of 2"),
        ("observation/room", 2, 7, r"room 7 in episode 8 .* step 0 .* Discrete\(3\) from 4"),
        ("observation/room", 0, 0, r"room 0 in episode 7 .* Discrete\(3\) from 4"),
        ("action", 0, 2, r"the action 2 in episode 7 .* Discrete\(2\)"),
        ("after", 1, np.nan, r"observation/at \[nan\] in episode 8 .* step 2 of 2"),
    ],
)
def test_numbers_that_are_none_are_named(column: str, row: int, number: float, why: str) -> None:
    columns = {
        "reward": np.zeros(4, np.float32),
        "observation/at": np.zeros((4, 1), np.float32),
        "observation/room": np.full(4, 4),
        "action": np.zeros(4, np.int64),
    }
    after = {"observation/at": np.zeros((2, 1), np.float32), "observation/room": np.full(2, 6)}
    facts = {"env_id": np.array([0, 1]), "episode_id": np.array([7, 8])}
    pieces = Pieces(columns, np.array([2, 2], np.int32), after, facts)
    leaves = {
        "observation/room": Leaf("room", (), "int64", (3,), (4,)),
        "action": Leaf("", (), "int64", (2,)),
    }
    _check_values(pieces, "source", leaves)
    if column == "after":
        after["observation/at"][row] = number
    else:
        columns[column][row] = number
    with pytest.raises(StoreError, match=f"source: has .*{why}"):
        _check_values(pieces, "source", leaves)


def test_actions_beyond_their_bounds_are_clipped_and_counted_without_rounding() -> None:
    action = np.array([[0.5, 3.0], [-1.0000001, 0.0], [9.0, -9.0]], np.float32)
    pieces = Pieces({"action": action, "reward": np.zeros(3)}, np.array([3]), {}, {})
    leaf = Leaf("", (2,), low=(-1.0, -2.0), high=(1.0, 2.0))
    clipped, count = _within_bounds(pieces, {"action": leaf})
    assert clipped.columns["action"].tolist() == [[0.5, 2.0], [-1.0, 0.0], [1.0, -2.0]]
    assert count == 2


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_actions_are_stored_as_those_that_a_policy_has_taken(dtype: str) -> None:
    """As the environment gets them: within its bounds also in its own precision."""
    action = np.array([[0.0], [0.80001], [2.0]])
    pieces = Pieces({"action": action, "reward": np.zeros(3)}, np.array([3]), {}, {})
    low, high = (float(np.array(number, dtype)) for number in (0.7, 1.1))
    leaf = Leaf("", (1,), dtype, low=(low,), high=(high,))
    clipped, count = _within_bounds(pieces, {"action": leaf})
    stored = clipped.columns["action"]
    assert (stored.dtype, count) == (np.float32, 2)
    assert low <= stored.astype(np.float64).min() < stored.astype(np.float64).max() <= high
    assert stored[1, 0] == np.float32(np.array(0.80001, np.float16 if dtype == "float16" else "f4"))
