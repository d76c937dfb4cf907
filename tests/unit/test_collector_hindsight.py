"""Hindsight: each copy is a piece of what was collected, as its goal would have had it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from fakes.env_managers import running, vector_manager
from fakes.serial_runs import LIMIT, config_of, serial_run, train
from fakes.spaces import simple_spaces
from hpcdi.data import read_episodes
from hpcdi.env.create import make_env_manager
from hpcdi.env.toy import BitFlipEnv, CountEnv
from hpcdi.errors import ConfigError, EnvError, EnvValueError, PolicyError
from hpcdi.policy.create import create_policy
from hpcdi.policy.dqn import DQNPolicy
from hpcdi.policy.returns import n_step_columns
from hpcdi.policy.spaces import with_spaces
from hpcdi.policy.td3 import TD3Policy
from hpcdi.roles.collector.base_parallel_collector import CollectorTask, ZerglingParallelCollector
from hpcdi.roles.collector.hindsight import ACHIEVED, DESIRED, Hindsight
from hpcdi.roles.collector.loop import policy_loop
from hpcdi.run.given import Pieces, source_of
from hpcdi.store.segment import Segment
from hpcdi.types import RELABELLED
from hpcdi.worker import SampleSerialCollector

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BITS, GOALS, ENVS, STEPS = 4, 6, 3, 9


class OneByOne(BitFlipEnv):
    """Judges one goal at a time, as some of gymnasium-robotics' environments do."""

    def compute_terminated(self, achieved: Any, desired: Any, _info: Any) -> Any:
        return bool((achieved == desired).all())

    def compute_reward(self, achieved: Any, desired: Any, _info: Any) -> Any:
        return float((achieved == desired).all())


class OneAlone(OneByOne):
    """Fails where it is given several."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        if (achieved == desired).all():  # of one goal: else whether all have been reached
            return 1.0
        return 0.0 if achieved[0] in (0, 1) else 1.0  # an array is in nothing


class AtRandom:
    """Flips any bit, and adds the columns of DQN."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def act(self, observation: Any, setting: Any, rows: Any = None) -> Any:
        return {"action": self._rng.integers(0, BITS, len(observation[ACHIEVED]))}

    def train_columns(self, transitions: Mapping[str, Any], item_len: Any, last: Any) -> Any:
        assert set(last) == {ACHIEVED, DESIRED, "observation/observation"}
        return n_step_columns(transitions, item_len, 0.9, 2)


def columns_of(achieved: Any, desired: Any) -> dict[str, Any]:
    """An episode in which nothing was paid and nothing has ended."""
    count = len(achieved)
    return {
        ACHIEVED: achieved, DESIRED: desired, "reward": np.zeros(count, np.float32),
        "terminated": np.zeros(count, bool), "truncated": np.zeros(count, bool),
    }  # fmt: skip


def segment_of(env: Any) -> Segment:
    with make_env_manager({"type": "base"}, [partial(env, BITS)] * ENVS, seed=0) as envs:
        envs.launch()
        loop = policy_loop(
            envs, AtRandom(), STEPS, Hindsight(envs, GOALS, np.random.default_rng(1))
        )
        while not loop.must_cut:
            loop.once({})
        segment = loop.cut(3)
        assert segment is not None
        return segment.copy()


@pytest.mark.parametrize("env", [BitFlipEnv, OneByOne, OneAlone])
def test_copies_are_what_their_goals_would_have_made(env: Any) -> None:
    segment = segment_of(env)
    items, columns = segment.items, segment.columns
    copies = items["episode_id"] == RELABELLED
    played = items[~copies]
    assert copies.sum() == GOALS * len(played)
    assert segment.env_steps is not None
    assert segment.ended is not None
    assert segment.env_steps.tolist() == [*played["item_len"], *[0] * copies.sum()]
    assert not segment.ended[copies].any()
    assert (items["policy_version"] == 3).all()

    def rows(item: Any, name: str, tail: int = 0) -> Any:
        return columns[name][item["item_start"] : item["item_start"] + item["item_len"] + tail]

    for copy in items[copies]:
        (goal,) = np.unique(rows(copy, DESIRED, 1), axis=0)  # one goal, also in what follows
        reached = (rows(copy, ACHIEVED, 1)[1:] == goal).all(axis=1)
        assert reached.tolist() == [False] * (copy["item_len"] - 1) + [True]
        assert rows(copy, "reward").tolist() == reached.tolist()
        assert rows(copy, "terminated").tolist() == reached.tolist()
        assert not rows(copy, "truncated").any()
        expected = np.zeros(copy["item_len"])
        expected[-2:] = [0.9, 1.0][-copy["item_len"] :]
        np.testing.assert_allclose(rows(copy, "n_step_return"), expected, rtol=1e-6)
        assert (rows(copy, "bootstrap_discount")[-2:] == 0).all()
        same = (ACHIEVED, "observation/observation", "action")
        assert any(
            all((rows(item, n)[: copy["item_len"]] == rows(copy, n)).all() for n in same)
            for item in played[played["env_id"] == copy["env_id"]]
            if item["item_len"] >= copy["item_len"]
        )


def test_goals_are_uniform_over_what_was_reached_later() -> None:
    class Line:
        """A goal is a place; the reward is the distance, and nothing terminates."""

        env_num, ready = 1, np.ones(1, bool)

        def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
            assert env == 0
            reached, goal, info = args
            assert info == {}
            return name == "compute_reward", -np.abs(reached - goal)[:, 0]

    count, copies = 5, 4000
    place = np.arange(count + 1, dtype=np.float32)[:, None]
    columns = columns_of(place[:-1], np.full((count, 1), 9, np.float32))
    columns["terminated"][-1] = True
    after = {ACHIEVED: place[-1:], DESIRED: columns[DESIRED][-1:]}
    hindsight = Hindsight(Line(), copies, np.random.default_rng(0))
    made = hindsight.extended(columns, np.arange(count), np.array([count], np.int32), after)
    assert made.length[0] == count
    assert made.columns["reward"].dtype == np.float32
    at, goal = (made.columns[n][count:, 0].astype(int) for n in (ACHIEVED, DESIRED))
    assert made.columns["reward"][count:].tolist() == (-abs(at + 1 - goal)).tolist()
    assert (made.columns["terminated"][count:] == (at == count - 1)).all()  # as it was
    for place_at in range(count):
        goals = np.bincount(goal[at == place_at], minlength=count + 1)
        assert (goals[: place_at + 1] == 0).all(), "never one that was reached before"
        later = goals[place_at + 1 :]
        np.testing.assert_allclose(later / copies, 1 / count, atol=0.03)
    assert made.after[ACHIEVED][1:, 0].tolist() == made.after[DESIRED][1:, 0].tolist()


def test_the_environment_judges_goals_with_what_was_subtracted_from_them() -> None:
    class Map:
        """Places are near 1,000,000; a goal is reached within 0.6."""

        env_num, ready = 1, np.ones(1, bool)

        def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
            reached, goal, _ = args
            assert (reached > 999_990).all()
            assert (goal > 999_990).all()
            return True, np.abs(reached - goal)[:, 0] < 0.6

    place = np.arange(4, dtype=np.float32)[:, None]
    columns = columns_of(place[:-1], np.full((3, 1), 9, np.float32))
    after = {ACHIEVED: place[-1:], DESIRED: columns[DESIRED][-1:]}
    origins = {ACHIEVED: (1_000_000.0,), DESIRED: (999_995.0,)}
    hindsight = Hindsight(Map(), 5, np.random.default_rng(0), origins)
    made = hindsight.extended(columns, np.arange(3), np.array([3], np.int32), after)
    ends = np.cumsum(made.length)[1:] - 1
    assert made.columns["reward"][ends].tolist() == [1] * 5
    goals = made.columns[DESIRED][ends, 0]
    assert goals.tolist() == (made.columns[ACHIEVED][ends, 0] + 1 + 5).tolist()
    assert made.after[DESIRED][1:, 0].tolist() == goals.tolist()


def test_a_reward_of_one_goal_that_looks_like_one_of_rows_is_not_taken_for_it() -> None:
    class Farthest:
        env_num, ready = 1, np.ones(1, bool)

        def call(self, env: int, name: str, achieved: Any, desired: Any, info: Any) -> Any:
            del env, info
            return name == "compute_reward", -np.abs(achieved - desired).max(axis=0)

    rng = np.random.default_rng(2)  # which copies all three rows, of goals of three numbers
    place = rng.uniform(size=(4, 3)).astype(np.float32)
    columns = columns_of(place[:-1], place[:-1])
    after = {ACHIEVED: place[-1:], DESIRED: place[-1:]}
    made = Hindsight(Farthest(), 1, rng).extended(
        columns, np.arange(3), np.array([3], np.int32), after
    )
    assert made.length.tolist() == [3, 3]
    expected = -np.abs(place[1:] - place[3]).max(axis=1)
    assert made.columns["reward"][3:].tolist() == expected.tolist()


def test_an_environment_without_goals_is_refused() -> None:
    cfg = TD3Policy.parse_config({"type": "td3", "hindsight": {"goals": 4}})
    _, problems = with_spaces(cfg, simple_spaces((3,), "float32", None, (1,), (-1.0,), (1.0,)))
    assert [str(problem).split(" as ")[0] for problem in problems] == [
        "hindsight.goals: needs observations with achieved_goal and desired_goal,"
    ]
    with make_env_manager({"type": "base"}, [CountEnv], seed=0) as envs:
        envs.launch()
        hindsight = Hindsight(envs, 1, np.random.default_rng(0))
        column = np.zeros((1, 2), np.float32)
        columns = {ACHIEVED: column, DESIRED: column, "terminated": np.zeros(1, bool)}
        after = {ACHIEVED: column, DESIRED: column}
        with pytest.raises(EnvError, match=r"no compute_reward\(achieved_goal, "):
            hindsight.extended(columns, np.zeros(1, np.int64), np.ones(1, np.int32), after)


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_collector_in_one_process_adds_no_copies_and_says_so(by_columns: bool) -> None:
    settings = {"type": "dqn", "hindsight": {"goals": 4}, "collect": {"n_sample": 6}}
    with make_env_manager({"type": "base"}, [partial(BitFlipEnv, BITS)], seed=0) as envs:
        envs.launch()
        cfg, problems = with_spaces(DQNPolicy.parse_config(settings), envs.spaces)
        assert not problems
        mode = create_policy(cfg, ["learn", "collect"]).collect_mode
        with SampleSerialCollector({}, envs, mode) as made:
            collect: Any = made.collect_columns if by_columns else made.collect
            with pytest.raises(PolicyError, match=r"policy\.hindsight: collect.* adds no copies"):
                collect(policy_kwargs={"eps": 1.0})


class WithoutAJudge(BitFlipEnv):
    compute_reward = None  # type: ignore[assignment]


def test_a_run_in_which_nothing_judges_goals_is_refused() -> None:
    """It failed while it collected, when the first copies were made."""
    mine = "env.kwargs={bits: 4}", f"env.env_id={__name__}:WithoutAJudge"
    with pytest.raises(ConfigError, match=r"policy.hindsight.goals: needs compute_reward\(.*EnvPo"):
        config_of("bitflip_dqn_her", *mine)
    config_of("bitflip_dqn_her", *mine, "policy.hindsight.goals=0")


def test_a_run_learns_from_copies_and_counts_what_was_played(tmp_path: Path) -> None:
    few = ("env.collector_env_num=2", "env.evaluator_env_num=1", "policy.learn.batch_size=16")
    small = ("env.kwargs.bits=4", "policy.collect.n_sample=4", "policy.priority=true")
    learning = ("policy.nstep=2", "policy.learn.replay_ratio=4")
    learning += ("policy.other.replay_buffer.min_fill=60",)
    with serial_run(
        tmp_path, "bitflip_dqn_her", *few, *small, *learning, f"{LIMIT}.max_env_step=100"
    ) as run:
        train(run)
        main = run.coordinator.groups.main
        assert 100 <= main.env_steps < 110
        assert main.replay.items_admitted > 2 * main.env_steps
        assert main.train_iter > 0
    episodes = list(read_episodes(tmp_path, unfinished=True))
    assert sum(map(len, episodes)) == main.env_steps
    assert all(episode.total == episode.columns["terminated"][-1] for episode in episodes)
    for goals, there in ((0, main.env_steps), (1, None)):
        overrides = ("env.kwargs.bits=4", f"policy.hindsight.goals={goals}")
        config, _ = config_of("bitflip_dqn_her", *overrides)
        source = source_of(str(tmp_path), config)
        pieces = [each for each in source.pieces() if isinstance(each, Pieces)]
        made = sum(len(each.columns["reward"]) for each in pieces)
        assert made == sum(int(each.length.sum()) for each in pieces)
        assert source.size().transitions == made
        assert made == there or made > 1.5 * main.env_steps
        assert all(len(each.after[DESIRED]) == len(each.length) for each in pieces)


class Scaled(gymnasium.RewardWrapper[Any, Any]):
    """A tenth of each reward."""

    def reward(self, reward: Any) -> Any:
        """A tenth."""
        return 0.1 * reward


def test_rewards_of_copies_are_those_of_the_wrapped_environment() -> None:
    goals = np.zeros((2, 3), np.int8), np.array([[0, 0, 0], [1, 0, 0]], np.int8)
    with running("pool", [lambda: Scaled(BitFlipEnv(3))]) as envs:
        _, said = envs.call(0, "compute_reward", *goals, {})
    assert np.asarray(said) == pytest.approx(0.1 * BitFlipEnv(3).compute_reward(*goals, {}))


class Reach(gymnasium.Env[Any, Any]):
    """Judges by the distance, which it computes in the arrays that it is given."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_given: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def compute_reward(self, achieved: Any, desired: Any, _info: Any) -> Any:
        achieved -= desired
        return -np.linalg.norm(achieved, axis=-1)


@pytest.mark.parametrize("form", ["pool", "sync"])
def test_what_is_judged_may_be_computed_in_place(form: str) -> None:
    rng = np.random.default_rng(0)
    columns = columns_of(rng.normal(size=(4, 2)), np.zeros((4, 2))) | {"reward": np.zeros(4)}
    after = {name: rng.normal(size=(1, 2)) for name in (ACHIEVED, DESIRED)}
    rows, lengths = np.arange(4), np.array([4], np.int32)
    managers = {
        "pool": lambda: make_env_manager({"type": "base"}, [Reach]),
        "sync": lambda: vector_manager(lambda: gymnasium.vector.SyncVectorEnv([Reach]), 1),
    }
    with managers[form]() as envs:
        envs.launch()
        hindsight = Hindsight(envs, 2, np.random.default_rng(1))
        made = hindsight.extended(columns, rows, lengths, after).columns
    begun = [columns[ACHIEVED].tolist().index(each) for each in made[ACHIEVED][4:].tolist()]
    reached = np.concatenate([columns[ACHIEVED][1:], after[ACHIEVED]])[begun]
    distance = np.linalg.norm(reached - made[DESIRED][4:], axis=1)
    np.testing.assert_allclose(made["reward"][4:], -distance)


@pytest.mark.parametrize(("ready", "asked"), [([0, 0, 1], 2), ([0, 0, 0], 1)])
def test_an_environment_that_is_in_no_step_is_asked(ready: list[int], asked: int) -> None:
    """The last one waits for an action (`env.manager.wait_num`); or those that live are done."""

    class Busy:
        env_num, lives = 3, np.array([False, True, True])

        def __init__(self) -> None:
            self.ready = np.array(ready, bool)

        def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
            assert env == asked
            return name == "compute_reward", np.zeros(len(args[0]))

    columns = columns_of(np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32))
    after = {name: columns[name] for name in (ACHIEVED, DESIRED)}
    hindsight = Hindsight(Busy(), 1, np.random.default_rng(0))
    assert len(hindsight.extended(columns, np.arange(1), np.ones(1, np.int32), after).length) == 2


def test_rewards_of_other_goals_are_not_normalised() -> None:
    """Nobody has followed their returns: the setting is refused."""
    with pytest.raises(ConfigError, match="knows no returns of other goals"):
        config_of("bitflip_dqn_her", "policy.normalize.reward=true")


# ------------------------------------------------------------------------ collected, and copied


class Near:
    """Judges by the distance along a line."""

    env_num, ready = 1, np.ones(1, bool)

    def call(self, _env: int, name: str, *args: Any) -> tuple[bool, Any]:
        reached, goal, _ = args
        return name == "compute_reward", -np.abs(reached - goal)[:, 0]


class AtGoal(Near):
    """Judges whether a goal is reached."""

    def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
        has_judged, said = super().call(env, name, *args)
        return has_judged, (said == 0).astype(np.float32)


class Late(AtGoal):
    """No goal before the 200th place is worth anything."""

    def call(self, env: int, name: str, *args: Any) -> tuple[bool, Any]:
        has_judged, said = super().call(env, name, *args)
        return has_judged, said * (args[1][:, 0] > 200)


def extends(envs: Any, change: Any, *, calls: int = 1, count: int = 40) -> None:
    """Makes copies of what was collected on a line, of whose transitions a tenth reaches its goal.

    Args:
        envs: judge.
        change: changes the columns, which are as the judge says.
        calls: cuts of so many transitions, each an item.
        count: see there.
    """
    hindsight = Hindsight(envs, 1, np.random.default_rng(0))
    for call in range(calls):
        place = np.arange(count + 1, dtype=np.float32)[:, None] + call
        goals = np.where(np.arange(count)[:, None] % 10 == 0, place[1:], place[1:] + 3)
        columns = columns_of(place[:-1], goals)
        columns["reward"] = np.asarray(envs.call(0, "compute_reward", place[1:], goals, {})[1])
        after = {ACHIEVED: place[1:], DESIRED: goals.copy()}
        change(columns)
        hindsight.extended(columns, np.arange(count), np.ones(count, np.int32), after)


def times(number: float) -> Any:
    def change(columns: Any) -> None:
        columns["reward"] *= number

    return change


def minus_a_step(columns: Any) -> None:
    columns["reward"] -= 0.1


def rounded(columns: Any) -> None:
    columns["reward"] += np.float32(1e-5)


def failing_at_the_end(columns: Any) -> None:
    columns["reward"][9::10] -= 5
    columns["terminated"][9::10] = True


def failing_where_nothing_is_paid(columns: Any) -> None:
    columns["reward"][5::10] = -1  # nothing was reached there; these are half of all rewards
    columns["terminated"][5::10] = True


def across_a_threshold(columns: Any) -> None:
    columns["reward"][3:6] -= 1


@pytest.mark.parametrize(
    ("envs", "change"),
    [(Near, times(4)), (Near, times(0.1)), (Near, minus_a_step), (AtGoal, minus_a_step),
     (Near, times(0))],
)  # fmt: skip
def test_rewards_on_another_scale_than_those_of_copies_are_refused(envs: Any, change: Any) -> None:
    with pytest.raises(EnvValueError, match=r"(\d+) of \1 rewards that .*hindsight.goals=0$"):
        extends(envs(), change)


class Breaks(BitFlipEnv):
    """Fails from its 31st step on."""

    _steps = 0

    def step(self, action: Any) -> Any:
        """Flip a bit, or fail."""
        self._steps += 1
        if self._steps > 30:
            raise RuntimeError("broken")
        return super().step(action)


@pytest.mark.usefixtures("env_helpers")
@pytest.mark.parametrize("kind", ["base", "subprocess"])
def test_the_failure_of_the_last_environment_is_what_is_said(kind: str) -> None:
    """Not that of making copies, which asks it for rewards."""
    config, *_ = config_of(
        "bitflip_dqn_her", f"env.env_id={__name__}:Breaks", "env.kwargs={}", "env.import_names=[]",
        f"env.manager={{type: {kind}, max_retry: 0}}", "env.collector_env_num=1",
        "policy.collect.n_sample=1000",
    )  # fmt: skip
    cfg = {"env": config.env, "policy": config.policy, "eval_flag": False, "type": "zergling"}
    with ZerglingParallelCollector(cfg) as made:
        made.begin(CollectorTask("task"))
        with pytest.raises(EnvError, match=r"all 1 environments are retired.*broken"):
            all(iter(made.turn, False))


def test_rewards_that_are_rare_are_compared_however_late_they_come() -> None:
    """Four of each cut are paid, from the 200th on."""

    def late(columns: Any) -> None:
        columns["reward"] *= 10 * (columns[ACHIEVED][0] >= 200)

    extends(Late(), late, calls=203)
    said = r"16 of 16 rewards .*one is 10, and is said to be 1\)"
    with pytest.raises(EnvError, match=said):
        extends(Late(), late, calls=204)


@pytest.mark.parametrize(
    ("envs", "change"),
    [(Near, times(1)), (AtGoal, times(1)), (Near, rounded), (Near, failing_at_the_end),
     (AtGoal, failing_where_nothing_is_paid), (Near, across_a_threshold)],
)  # fmt: skip
def test_rewards_that_the_judge_tells_are_taken(envs: Any, change: Any) -> None:
    extends(envs(), change, calls=20)


def test_a_goal_that_changes_in_a_step_tells_nothing() -> None:
    def changes(columns: Any) -> None:
        columns["reward"] *= 4
        columns[DESIRED] += 50

    extends(Near(), changes, calls=4)


class Skips(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes each action four times, and adds rewards up."""

    def step(self, action: Any) -> Any:
        """Four times."""
        total = 0.0
        for _ in range(4):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class Again(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rewards by the judge, whatever was in between."""

    def step(self, action: Any) -> Any:
        """Judged."""
        seen, _, terminated, truncated, info = self.env.step(action)
        judge: Any = self.unwrapped
        reward = judge.compute_reward(seen["achieved_goal"], seen["desired_goal"], info)
        return seen, float(reward), terminated, truncated, info


def wrappers(*names: str) -> str:
    return f"env.wrappers=[{', '.join(names)}]"


FOUR = "{type: RepeatAction, times: 4}"


@pytest.mark.parametrize(
    "names", [[f"{__name__}:Skips"], [f"{__name__}:Skips", f"{__name__}:Scaled"], []]
)
def test_a_run_whose_wrapper_adds_rewards_up_ends(tmp_path: Path, names: list[str]) -> None:
    small = ("env.collector_env_num=4", "env.evaluator_env_num=1", "env.kwargs.dimensions=3")
    limits = (f"{LIMIT}.max_env_step=120", "policy.other.replay_buffer.min_fill=1000")
    words = (*small, *limits, wrappers(*names))
    with serial_run(tmp_path, "reach_sac_her", *words) as run:
        if names:
            with pytest.raises(EnvError, match="on another scale: a wrapper that changes"):
                train(run)
        else:
            train(run)


@pytest.mark.parametrize(
    "outside", [[], ["{type: ScaleReward, scale: 2}"], ["RecordEpisodeStatistics"]]
)
def test_repeated_actions_and_hindsight_are_refused_together(outside: list[str]) -> None:
    bits = "env.kwargs={bits: 4}"
    with pytest.raises(ConfigError, match=r"policy.hindsight.goals: cannot go with .*RepeatAction"):
        config_of("bitflip_dqn_her", bits, wrappers(FOUR, *outside))
    config_of("bitflip_dqn_her", bits, wrappers(FOUR), "policy.hindsight.goals=0")
    config_of("bitflip_dqn_her", bits, wrappers("{type: RepeatAction, times: 1}", *outside))
    config_of("bitflip_dqn_her", bits, wrappers(FOUR, f"{__name__}:Again", *outside))
