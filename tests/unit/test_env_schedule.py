"""A curriculum (`env.schedule`): what it says, who decides, what environments are played with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from hpcdi.comm.messages import CollectProgress
from hpcdi.config.schedule import courses_of
from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.manager import EnvManager
from hpcdi.env.probe import look_at
from hpcdi.errors import ConfigError, EnvValueError
from hpcdi.roles.coordinator.curriculum import Curriculum

pytestmark = pytest.mark.usefixtures("env_helpers")


class Windy(gymnasium.Env[Any, Any]):
    """Observes its argument and its attributes; two steps an episode, those of `late` more."""

    action_space = spaces.Discrete(2)

    def __init__(self, level: int = 0, size: int = 3) -> None:
        self.observation_space = spaces.Box(-9, 9, (size + (level == 9),), np.float32)
        self.level, self.wind, self.model = level, 0.0, type("Model", (), {"gravity": 1.0})()

    def _seen(self) -> Any:
        return np.array([self.level, self.wind, self.model.gravity], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._left = 2
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._seen(), 0.0, not self._left, False, {"wind": 7.0}


class WindyPair(ParallelEnv[str, Any, Any]):
    """The same of two players."""

    metadata = {"name": "windy_v0"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, level: int = 0, render_mode: Any = None) -> None:
        self._one, self.wind = Windy(level), 0.0

    def observation_space(self, agent: str) -> Any:
        return self._one.observation_space

    def action_space(self, agent: str) -> Any:
        return self._one.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._one.wind = ["a", "b"], self.wind
        seen, _ = self._one.reset()
        return dict.fromkeys("ab", seen), {"a": {}, "b": {}}

    def step(self, actions: Any) -> Any:
        seen, reward, over, _, _ = self._one.step(0)
        self.agents = [] if over else ["a", "b"]
        ends = dict.fromkeys("ab", over), dict.fromkeys("ab", False)
        return dict.fromkeys("ab", seen), dict.fromkeys("ab", reward), *ends, {"a": {}, "b": {}}


def windy_pair(**kwargs: Any) -> WindyPair:
    return WindyPair(**kwargs)


KINDS: dict[str, dict[str, Any]] = {
    "single": {},
    "child": {"manager": {"type": "subprocess"}},
    "several steps": {"manager": {"type": "subprocess", "wait_num": 1}},
    "wrapped": {"wrappers": ["FlattenObservation"]},
    "players": {"type": "pettingzoo", "env_id": f"{__name__}:windy_pair"},
}
COURSES = {"kwargs.level": {"values": [0, 1], "when": "wind >= 1"}, "wind": {"env_steps": {0: 1}}}


@pytest.fixture(params=KINDS)
def envs(request: pytest.FixtureRequest) -> Iterator[EnvManager]:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:Windy", "collector_env_num": 2,
        "schedule": COURSES, **KINDS[request.param],
    }  # fmt: skip
    seed = np.random.SeedSequence(0)
    scheduled: Any = {"wind": (2.0, 2.0), "kwargs.level": (1, 1.0)}
    with create_env_manager(cfg, evaluate=False, scheduled=scheduled, seed=seed) as made:
        yield made


def played(envs: EnvManager, steps: int) -> tuple[list[list[float]], list[dict[str, float]]]:
    """What is observed in some steps, of row 0, and the infos of episodes that end."""
    seen, action = [], {"action": np.zeros(envs.rows, np.int64)}
    for _ in range(steps):
        done = 0
        while done < envs.env_num:  # several steps where some are not waited for
            envs.step(action)
            done += envs.stepped
        seen.append(envs.observation["observation"][0].tolist())
    return seen, [dict(info) for info in envs.take_episodes().infos]


def test_values_hold_from_the_first_episode_and_change_with_the_next(envs: EnvManager) -> None:
    envs.launch()
    assert envs.observation["observation"][:, :2].tolist() == [[1, 2]] * envs.rows
    envs.schedule({"wind": (3.0, 3.0), "kwargs.level": (5, 5.0)})
    assert envs.observation["observation"][0, :2].tolist() == [1, 2]  # the running episode's
    _, infos = played(envs, 2)
    assert infos[0]["schedule/wind"] == 2.0
    assert infos[0]["schedule/kwargs.level"] == 1.0
    if envs.wait_num is None:  # else some are further
        assert envs.observation["observation"][:, :2].tolist() == [[5, 3]] * envs.rows
    latest, action = {0: 1.0, 1: 1.0}, {"action": np.zeros(envs.rows, np.int64)}
    for _ in range(10_000):  # one that is not waited for may end an episode of before late
        envs.step(action)
        ended = envs.take_episodes()
        for row, info in zip(ended.rows.tolist(), ended.infos, strict=True):
            latest[row % envs.env_num] = dict(info)["schedule/kwargs.level"]
        if set(latest.values()) == {5.0}:
            break
    assert set(latest.values()) == {5.0}
    envs.close()
    envs.launch()  # what is made anew has the present values
    assert envs.observation["observation"][:, :2].tolist() == [[5, 3]] * envs.rows


class Dice(gymnasium.Env[Any, Any]):
    """Observes a number that it draws; one step an episode."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float64), spaces.Discrete(2)

    def __init__(self, level: int = 0) -> None: ...

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(1), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1), 0.0, True, False, {}


@pytest.mark.parametrize("kind", ["single", "child"])
def test_what_is_made_anew_draws_by_a_seed_of_the_experiment(kind: str) -> None:
    """Its numbers were the operating system's, and its seed was said to be the one before."""

    def first_numbers() -> tuple[list[list[float]], list[int]]:
        cfg = {"type": "gymnasium", "env_id": f"{__name__}:Dice", "schedule": COURSES}
        seed = np.random.SeedSequence(0)
        more = {"collector_env_num": 2, **KINDS[kind]}
        with create_env_manager({**cfg, **more}, evaluate=False, seed=seed) as envs:
            envs.launch()
            seen, _ = played(envs, 2)
            envs.schedule({"kwargs.level": (2, 2.0)})
            seen += played(envs, 3)[0]
            seeds = envs.step({"action": np.zeros(2, np.int64)}).seeds
        assert seeds is not None
        return seen, seeds[:, 1].tolist()

    seen, resets = first_numbers()
    assert (seen, resets) == first_numbers()
    assert resets == [2, 2], "of the third episode since it was made anew"


def one(schedule: Any, scheduled: Any, **settings: Any) -> EnvManager:
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:Windy", "schedule": schedule, **settings}
    seed = np.random.SeedSequence(0)
    return create_env_manager(cfg, evaluate=False, scheduled=scheduled, seed=seed)


def test_attributes_may_lie_deeper_and_must_be_there() -> None:
    with one({"model.gravity": {"env_steps": {0: 4.0}}}, {"model.gravity": (4.0, 4.0)}) as envs:
        envs.launch()
        assert envs.observation["observation"][0, 2] == 4.0
    with (
        one({"wnd": {"env_steps": {0: 4.0}}}, {"wnd": (4.0, 4.0)}) as envs,
        pytest.raises(EnvValueError, match=r"has no attribute 'wnd'.*kwargs.wnd"),
    ):
        envs.launch()


def test_an_argument_must_not_change_the_spaces() -> None:
    with one(COURSES, {"kwargs.level": (1, 1.0)}, collector_env_num=1) as envs:
        envs.launch()
        envs.schedule({"kwargs.level": (9, 9.0)})
        with pytest.raises(EnvValueError, match="has other spaces"):
            played(envs, 3)


def test_evaluations_are_played_as_the_settings_say() -> None:
    cfg = {"type": "gymnasium", "env_id": f"{__name__}:Windy", "schedule": COURSES}
    seed = np.random.SeedSequence(0)
    with create_env_manager(cfg, evaluate=True, scheduled={"wind": (3.0, 3.0)}, seed=seed) as envs:
        envs.launch()
        assert envs.observation["observation"][0, :2].tolist() == [0, 0]


# ---------------------------------------------------------------------------------- what it says


@pytest.mark.parametrize(
    ("course", "at"),
    [
        ({0: 0.0, 100: 5.0}, {0: 0.0, 50: 2.5, 100: 5.0, 10**9: 5.0}),
        ({0: 1, 100: 2}, {0: 1, 99: 1, 100: 2}),
        ({10: "easy", 20: "hard"}, {0: "easy", 19: "easy", 20: "hard"}),
        ({0: False, 100: True}, {99: False, 100: True}),
        ({"1_000": 1, 0: 0.5}, {500: 0.75}),  # a whole number among floats is one
    ],
)
def test_values_by_steps(course: Any, at: dict[int, Any]) -> None:
    (read,) = courses_of({"wind": {"env_steps": course}})
    assert {step: read.at(step)[0] for step in at} == at


@pytest.mark.parametrize(
    ("name", "course", "said"),
    [
        ("wind", 3.0, "is {env_steps"),
        ("wind", {"env_steps": {}}, "is {env_steps"),
        ("wind", {"env_steps": {"soon": 1.0}}, "is {env_steps"),
        ("wind", {"env_steps": {0: [1]}}, "numbers, truths or texts"),
        ("wind", {"env_steps": {-5: 1.0, 5: 2.0}}, "from 0 on, not at -5"),
        ("wind", {"env_steps": {"nan": 1.0, 5: 2.0}}, "from 0 on, not at nan"),
        ("wind", {"env_steps": {0: 1.0, "0": 2.0}}, "two values from 0 steps"),
        ("wind", {"env_steps": {0: 1.0, 5: float("inf")}}, "between values that are finite"),
        ("wind", {"values": [float("nan"), 2.0], "when": "return >= 1"}, "numbers, truths or"),
        ("wind", {"values": [0.5, 10**400], "when": "return >= 1"}, "numbers, truths or texts"),
        ("wind", {"values": [1, 2], "when": "return >= 1e"}, "such as"),
        ("wind", {"values": [1, 2], "when": "return >= -"}, "such as"),
        ("wind", {"values": [1, 2]}, "is {env_steps"),
        ("wind", {"values": [], "when": "return >= 1"}, "numbers, truths or texts"),
        ("wind", {"values": [1, 2], "when": "return > 1"}, "such as"),
        ("wind", {"values": [1, 1], "when": "return >= 1"}, "twice in a row"),
        ("wind", {"values": [1, 2], "when": "return >= 1", "episodes": 0}, "from 1"),
        ("kwargs", {"env_steps": {0: 1}}, "kwargs.NAME"),
        ("kwargs.a.b", {"env_steps": {0: 1}}, "kwargs.NAME"),
        ("a b", {"env_steps": {0: 1}}, "attribute's name"),
    ],
)
def test_what_is_no_schedule_is_refused(name: str, course: Any, said: str) -> None:
    cfg = {"type": "gymnasium", "env_id": "CartPole-v1", "schedule": {name: course}}
    with pytest.raises(ConfigError, match=said):
        get_env_cls(cfg).parse_config(cfg)


def test_vector_environments_have_no_schedule() -> None:
    cfg = {"type": "gymnasium", "env_id": "CartPole-v1", "schedule": COURSES}
    with pytest.raises(ConfigError, match=r"must be 'auto' where there are .* a schedule"):
        get_env_cls(cfg).parse_config({**cfg, "vectorization": "sync"})


# ------------------------------------------------------------------------------------ who decides


def progress(returns: list[float], **figures: list[float]) -> CollectProgress:
    columns = {name.replace("_", "/"): np.array(values) for name, values in figures.items()}
    lengths = np.full(len(returns), 5)
    return CollectProgress("t", np.array(returns), lengths, 0, {}, episode_figures=columns)


def curriculum(when: str, episodes: int = 2) -> Curriculum:
    course = {"values": [1, 2, 3], "when": when, "episodes": episodes}
    return Curriculum(courses_of({"gap": course}))


def gap(made: Curriculum) -> Any:
    return made.values(0)["gap"][0]


def test_the_next_value_follows_what_is_reached_with_the_present_one() -> None:
    made = curriculum("return >= 1")
    made.hear(progress([5.0], schedule_gap=[1.0]))
    assert gap(made) == 1  # one of two episodes
    made.hear(progress([-4.0, 9.0, np.nan], schedule_gap=[1.0, 3.0, 1.0]))
    assert gap(made) == 1  # the mean is 0.5; an episode of another value does not count
    made.hear(progress([6.0], schedule_gap=[1.0]))
    assert gap(made) == 2
    made.hear(progress([6.0, 6.0], schedule_gap=[1.0, 2.0]))
    assert gap(made) == 2  # the first was begun before
    made.hear(progress([6.0], schedule_gap=[2.0]))
    assert gap(made) == 3
    made.hear(progress([6.0] * 9, schedule_gap=[3.0] * 9))
    assert gap(made) == 3  # the last one


@pytest.mark.parametrize("at_once", [5, 40, 100, 1000])
@pytest.mark.parametrize("sign", [">=", "<="])
def test_the_mean_is_of_what_was_reached_not_of_the_best(sign: str, at_once: int) -> None:
    """Of those that came together the best counted: 10 of 100 that won were taken for all."""
    won = np.zeros(1000)
    won[::10] = 1.0
    won = won if sign == ">=" else 1.0 - won
    made = curriculum(f"won {sign} {0.2 if sign == '>=' else 0.8}", 100)
    for part in won.reshape(-1, at_once):
        made.hear(progress([0.0] * at_once, schedule_gap=[1.0] * at_once, won=part.tolist()))
        assert gap(made) == 1
    made.hear(progress([0.0] * 100, schedule_gap=[1.0] * 100, won=[float(sign == ">=")] * 100))
    assert gap(made) == 2


def test_the_order_in_which_collectors_report_changes_nothing() -> None:
    reports = [progress(returns, schedule_gap=[1.0] * len(returns)) for returns in (
        [0.1, 0.7, 0.3], [0.2], [1e9, -1e9],
    )]  # fmt: skip
    states = []
    for order in ((0, 1, 2), (2, 0, 1)):
        made = curriculum("return >= 9", 4)
        made.hear(reports[order[0]])
        made.hear(reports[order[1]])
        made.hear(reports[order[2]])
        before = made.state_dict()
        assert gap(made) == 1
        resumed = curriculum("return >= 9", 4)
        resumed.load_state_dict(before)
        assert gap(resumed) == 1
        assert resumed.state_dict() == made.state_dict()
        states += [before, made.state_dict()]
    assert states[:2] == states[2:]


def test_metrics_of_infos_of_lengths_and_of_evaluations() -> None:
    made = curriculum("is/success >= 0.5", 1)
    made.hear(progress([0.0], schedule_gap=[1.0]))
    assert gap(made) == 1
    made.hear(progress([0.0], schedule_gap=[1.0], is_success=[1.0]))
    assert gap(made) == 2
    made = curriculum("length <= 5", 1)
    made.hear(progress([0.0], schedule_gap=[1.0]))
    assert gap(made) == 2
    made = curriculum("evaluation >= 3", 7)
    made.evaluated(2.0)
    assert gap(made) == 1
    made.evaluated(3.0)
    assert gap(made) == 2


def test_a_resumed_run_goes_on_where_it_was_whatever_came_first() -> None:
    first, second = curriculum("return >= 1", 3), curriculum("return >= 1", 3)
    for made, order in ((first, (0.1, 0.2, 0.9)), (second, (0.9, 0.1, 0.2))):
        made.hear(progress(list(order), schedule_gap=[1.0] * 3))
        made.values(0)
    assert first.state_dict() == second.state_dict()
    resumed = curriculum("return >= 1", 3)
    resumed.load_state_dict(first.state_dict())
    for made in (first, resumed):
        made.hear(progress([3.0], schedule_gap=[1.0]))
    assert gap(first) == gap(resumed) == 2
    assert first.state_dict() == resumed.state_dict()


def test_a_resumed_run_has_its_value_and_forgets_what_was_noted_of_another_metric() -> None:
    made = curriculum("opened <= 0.5", 3)
    for value in (1.0, 2.0):
        made.hear(progress([0.0] * 3, schedule_gap=[value] * 3, opened=[0.0, 0.0, value - 1.0]))
        made.values(0)
    assert gap(made) == 3
    made = curriculum("opened >= 0.5", 3)
    made.hear(progress([0.0] * 3, schedule_gap=[1.0] * 3, opened=[1.0] * 3))
    assert gap(made) == 2
    made.hear(progress([0.0] * 3, schedule_gap=[2.0] * 3, opened=[0.0] * 3))
    other = curriculum("length <= 0.5", 3)
    other.load_state_dict(made.state_dict())
    assert gap(other) == 2, "three episodes of 5 steps, none of which opened it"
    course = {"values": [0, 1, 2, 3], "when": "opened <= 0.5", "episodes": 3}
    more = Curriculum(courses_of({"gap": course}))
    more.load_state_dict(made.state_dict())
    assert more.state_dict()["gap"]["number"] == 2, "the value goes before its place"


@pytest.mark.parametrize("limit", ["1", "-1.5", "+.5", "1_000", "1e-3", "2.", "1_0.5E+2"])
def test_limits_are_numbers_as_python_writes_them(limit: str) -> None:
    (course,) = courses_of({"gap": {"values": [1, 2], "when": f"return >= {limit}"}})
    assert course.limit == float(limit)


class Licensed(Windy):
    """Of its level 1 the first that is made fails."""

    refused: ClassVar[list[int]] = []

    def __init__(self, level: int = 0) -> None:
        if level and not Licensed.refused:
            Licensed.refused.append(level)
            raise RuntimeError("no licence is free")
        super().__init__(level)


def test_one_that_cannot_be_made_anew_once_is_made_at_the_next_try() -> None:
    cfg = {
        "type": "gymnasium", "env_id": f"{__name__}:Licensed", "collector_env_num": 1,
        "manager": {"retry_waiting_time": 0.0},
        "schedule": {"kwargs.level": COURSES["kwargs.level"]},
    }  # fmt: skip
    Licensed.refused.clear()
    seed, scheduled = np.random.SeedSequence(0), {"kwargs.level": (0, 0.0)}
    with create_env_manager(cfg, evaluate=False, scheduled=scheduled, seed=seed) as envs:
        envs.launch()
        envs.schedule({"kwargs.level": (1, 1.0)})
        seen, infos = played(envs, 4)
        assert [level for level, *_ in seen] == [0, 1, 1, 1]
        assert envs.failures == 1
        assert [info["schedule/kwargs.level"] for info in infos] == [0.0, 1.0]


def test_an_argument_that_environments_do_not_have_is_refused() -> None:
    """A curve said that they were played with it."""
    ding = {"type": "fakes.ding_form:Env", "length": 3}
    cfg = {
        "type": "ding", "ding": ding, "schedule": {"kwargs.length": COURSES["kwargs.level"]},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"env.schedule.kwargs.length: environments of type 'di"):
        look_at(get_env_cls(cfg).parse_config(cfg), trains=True)
