"""Serial collectors: the contract of all four, samples, episodes, battles."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.battle_envs import RockPaperScissors
from fakes.environments import HeldEnv
from fakes.scripted_env import manager
from fakes.serial_parts import (
    Actor,
    Battle,
    ColumnarActor,
    Manager,
    check,
    return_of,
    reward_of,
    steps_of,
    story,
)
from hpcdi.config.compat import ConfigDict
from hpcdi.config.env import ManagerConfig
from hpcdi.env.base import BackendStep, EnvFacts, EnvFailure, EpisodeStart
from hpcdi.env.create import create_env_manager, make_env_manager
from hpcdi.env.manager import EnvManager
from hpcdi.env.toy import CountEnv
from hpcdi.errors import ConfigError, EnvError, PolicyError
from hpcdi.policy.create import create_policy
from hpcdi.types import NO_SEED, Array, Columns, Settings, Transition
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.utils.nested import column_rows
from hpcdi.utils.registry import SERIAL_COLLECTOR_REGISTRY
from hpcdi.worker import (
    BattleEpisodeSerialCollector,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    SampleSerialCollector,
    create_serial_collector,
    get_serial_collector_cls,
)
from hpcdi.worker.collector.base_serial_collector import CollectReport
from hpcdi.worker.dict_envs import by_dicts, infos_of
from hpcdi.worker.dict_policy import TrajectoryRecorder
from hpcdi.worker.errors import NoPolicyError

# ------------------------------------------ the contract of serial collectors, for all four of them


CLASSES = {
    "sample": SampleSerialCollector,
    "episode": EpisodeSerialCollector,
    "sample_1v1": BattleSampleSerialCollector,
    "episode_1v1": BattleEpisodeSerialCollector,
}
COMMON = {
    "import_names": [], "deepcopy_obs": False, "transform_obs": False, "collect_print_freq": 100,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "sample": {},
    "episode": {"get_train_sample": False, "reward_shaping": False},
    "sample_1v1": {},
    "episode_1v1": {"get_train_sample": False},
}
LENGTHS = (3, 2)


class Kind:
    """How one kind of collector is asked, and what it gives, in one form for all kinds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_battle, self.by_episodes = name.endswith("1v1"), name.startswith("episode")
        self.target = "n_episode" if self.by_episodes else "n_sample"

    def manager(self, lengths: Sequence[int] = LENGTHS, **kwargs: Any) -> Any:
        return Battle(lengths, **kwargs) if self.is_battle else Manager(lengths, **kwargs)

    def actors(self, **attributes: Any) -> list[Actor]:
        return [Actor(player, **attributes) for player in range(2 if self.is_battle else 1)]

    def policy(self, actors: list[Actor], *, foreign: bool = False) -> Any:
        modes = [actor.foreign if foreign else actor.mode for actor in actors]
        return modes if self.is_battle else modes[0]

    def make(self, env: Any, policy: Any, tb_logger: Any = None, **cfg: Any) -> Any:
        return create_serial_collector(
            {"type": self.name, **cfg}, env=env, policy=policy, tb_logger=tb_logger
        )

    def collect(self, made: Any, target: int | None, **kwargs: Any) -> list[list[Transition]]:
        """Transitions of each player."""
        data = made.collect(**{self.target: target, **kwargs})
        of_players = data[0] if self.is_battle else [data]
        if not self.by_episodes:
            return list(of_players)
        return [[one for episode in own for one in episode] for own in of_players]


@pytest.fixture(params=list(CLASSES))
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


class TestSerialCollector:
    def test_settings(self, kind: Kind) -> None:
        cls = CLASSES[kind.name]
        assert get_serial_collector_cls({"type": kind.name}) is cls
        assert SERIAL_COLLECTOR_REGISTRY.get(kind.name) is cls
        default = cls.default_config()
        assert default == {
            "type": kind.name, "cfg_type": f"{cls.__name__}Dict", **COMMON, **OWN[kind.name],
        }  # fmt: skip
        assert type(create_serial_collector(default)) is cls
        with pytest.raises(ConfigError, match="did you mean 'deepcopy_obs'"):
            cls({"deepcopy_ob": True})
        with pytest.raises(ConfigError, match="at least 1"):
            cls({"collect_print_freq": 0})

    def test_curves_are_of_the_episodes_that_ended(
        self, kind: Kind, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Of the steps and samples of an episode none is another's, whenever it ends."""
        lengths, shown, ended, steps = (2, 3, 7), [], 0, 0
        env = kind.manager(lengths)
        made = kind.make(env, kind.policy(kind.actors()), collect_print_freq=1)
        with caplog.at_level(logging.INFO, "hpcdi"), made:
            for train_iter in range(1, 9):
                kind.collect(made, 3, train_iter=train_iter)
                counts = [life // length for life, length in zip(env.life, lengths, strict=True)]
                now = sum(c * length for c, length in zip(counts, lengths, strict=True))
                if sum(counts) > ended:
                    shown.append((now - steps) / (sum(counts) - ended))
                    ended, steps = sum(counts), now
        records = [vars(record)["scalars"] for record in caplog.records]
        for figure in ("avg_envstep_per_episode", "avg_sample_per_episode"):
            assert [scalars[figure] for scalars in records] == pytest.approx(shown), figure
        assert sum(scalars["envstep_count"] for scalars in records) == steps
        assert sum(scalars["train_sample_count"] for scalars in records) == steps

    def test_environments_close_with_their_collector(self, kind: Kind) -> None:
        env = kind.manager()
        made = kind.make(env, kind.policy(kind.actors()))
        kind.collect(made, 2)
        gc.disable()
        try:
            del made
            assert env.closed
        finally:
            gc.enable()

    def test_every_number_and_no_step_lost(self, kind: Kind) -> None:
        """Episodes that are under way go on from one call to the next."""
        actors, env = kind.actors(), kind.manager()
        got: list[list[Transition]] = [[] for _ in actors]
        with kind.make(env, kind.policy(actors)) as made:
            for call in range(5):
                kwargs = {} if kind.by_episodes else {"drop_extra": False}
                for own, new in zip(got, kind.collect(made, 4, **kwargs), strict=True):
                    assert new, f"call {call} gave nothing"
                    own += new
            assert made.envstep == sum(env.life)
        for player, own in enumerate(got):
            check(own, LENGTHS, player)
            for number, length in enumerate(LENGTHS):
                mine = steps_of(own, number)
                assert mine == story(len(mine), length)
                assert len(mine) > env.life[number] - max(4, length + 1), "what is open is short"

    def test_as_many_as_were_asked_for(self, kind: Kind) -> None:
        for target in (2, 3, 5):
            with kind.make(kind.manager(), kind.policy(kind.actors())) as made:
                for own in kind.collect(made, target):
                    ended = sum(one["done"] for one in own)
                    assert (ended if kind.by_episodes else len(own)) == target

    def test_the_policy_says_how_many(self, kind: Kind) -> None:
        actors = kind.actors(**{kind.target: 4})
        with kind.make(kind.manager(), kind.policy(actors)) as made:
            for own in kind.collect(made, None):
                assert (sum(o["done"] for o in own) if kind.by_episodes else len(own)) == 4

    @pytest.mark.parametrize("foreign", [True, False])
    def test_nobody_says_how_many(self, kind: Kind, foreign: bool) -> None:
        policy = kind.policy(kind.actors(), foreign=foreign)
        words = f"{kind.target}: is neither given nor an attribute"
        with kind.make(kind.manager(), policy) as made, pytest.raises(ConfigError, match=words):
            made.collect()

    @pytest.mark.parametrize("amount", [0, -1])
    def test_nothing_is_asked_for(self, kind: Kind, amount: int) -> None:
        with kind.make(kind.manager(), kind.policy(kind.actors())) as made:
            if kind.by_episodes:  # one of each environment is the least
                with pytest.raises(AssertionError, match=f"number of environments.* not {amount}"):
                    made.collect(amount)
            else:
                assert made.collect(amount) == (([[], []],) * 2 if kind.is_battle else [])
            assert made.envstep == 0

    def test_foreign_policies(self, kind: Kind) -> None:
        """Bare tuples of functions, no `get_attribute`; actions are tensors."""
        actors = kind.actors()
        with kind.make(kind.manager(), kind.policy(actors, foreign=True)) as made:
            for player, own in enumerate(kind.collect(made, 4)):
                check(own, LENGTHS, player)
                assert own

    def test_samples_say_when_and_how_they_were_made(self, kind: Kind) -> None:
        actors = kind.actors()
        with kind.make(kind.manager(), kind.policy(actors)) as made:
            for own in kind.collect(made, 2, train_iter=7, policy_kwargs={"eps": 0.5}):
                assert {one["collect_iter"] for one in own} == {7}
        for actor in actors:
            assert actor.settings == [{"eps": 0.5}] * actor.calls

    def test_outputs_are_those_that_led_to_the_step(self, kind: Kind) -> None:
        """Also where environments answer later than others: an action belongs to its own step."""
        actors, env = kind.actors(), kind.manager((3, 2, 4), together=1)
        with kind.make(env, kind.policy(actors)) as made:
            got = kind.collect(made, 9)
            assert made.envstep == sum(env.life)
        for player, own in enumerate(got):
            check(own, (3, 2, 4), player)
            asked = {
                tuple(map(int, obs)): call
                for call, data in enumerate(actors[player].seen, 1)
                for obs in data.values()
            }
            assert [one["action"] for one in own] == [asked[tuple(map(int, o["obs"]))] for o in own]
            for number, length in enumerate((3, 2, 4)):
                mine = steps_of(own, number)
                assert mine == story(len(mine), length)

    def test_the_policy_is_reset_at_each_end(self, kind: Kind) -> None:
        actors, env = kind.actors(), kind.manager()
        with kind.make(env, kind.policy(actors)) as made:
            kind.collect(made, 4)
        for actor in actors:
            assert actor.resets[0] is None, "as it begins"
            for number in range(env.env_num):
                assert actor.resets[1:].count([number]) == env.episode[number]
            assert len(actor.resets) == 1 + sum(env.episode)

    @pytest.mark.parametrize("tensors", [False, True])
    def test_observations_that_are_overwritten(self, kind: Kind, tensors: bool) -> None:
        actors, cfg = kind.actors(), {"deepcopy_obs": True, "transform_obs": tensors}
        with kind.make(kind.manager(in_place=True), kind.policy(actors), **cfg) as made:
            for player, own in enumerate(kind.collect(made, 4)):
                check(own, LENGTHS, player)
        env = kind.manager(in_place=True)
        with kind.make(env, kind.policy(kind.actors())) as made:
            own = kind.collect(made, 4)[0]
        with pytest.raises(AssertionError):  # no copies unless asked for
            check(own, LENGTHS)

    def test_tensors_for_the_policy(self, kind: Kind) -> None:
        actors = kind.actors()
        with kind.make(kind.manager(), kind.policy(actors), transform_obs=True) as made:
            for player, own in enumerate(kind.collect(made, 4)):
                check(own, LENGTHS, player)
        for actor in actors:
            given = [obs for data in actor.seen for obs in data.values()]
            assert {value.dtype for value in given} == {torch.float32}
            assert all(isinstance(step.done, bool) for step in actor.timesteps)
            kept = [*actor.obs, *(step.obs for step in actor.timesteps)]
            assert {value.dtype for value in kept} == {np.dtype(np.float64)}, "the environment's"
            assert {type(step.reward) for step in actor.timesteps} <= {float, np.float64}

    def test_arrays_for_the_policy(self, kind: Kind) -> None:
        actors = kind.actors()
        with kind.make(kind.manager(), kind.policy(actors)) as made:
            kind.collect(made, 4)
        given = [obs for actor in actors for data in actor.seen for obs in data.values()]
        assert {value.dtype for value in given} == {np.dtype(np.float64)}, "as they are"

    @pytest.mark.parametrize("renews", [True, False])
    def test_environments_that_fail(self, kind: Kind, renews: bool) -> None:
        """Unfinished episodes are dropped; managers of ours renew environments themselves."""
        failing = {0: [1, 5], 1: [4]}
        actors, env = kind.actors(), kind.manager((3, 4), failing=failing, renews=renews)
        with kind.make(env, kind.policy(actors)) as made:
            got = kind.collect(made, 6 if kind.by_episodes else 24)
            assert made.envstep == sum(env.life) - 3, "failures are no steps"
            assert made._report.totals["episode"] >= sum(o["done"] for o in got[0])
        assert env.renewed == ([] if renews else [0, 1, 0])
        for actor in actors:
            assert actor.resets.count([0]) + actor.resets.count([1]) == sum(env.episode)
        for player, own in enumerate(got):
            check(own, (3, 4), player)
            first = {episode for episode, _ in steps_of(own, 0)}
            assert {1, 3} <= first, "episodes 0 and 2 failed"
            assert 0 not in first
            if kind.by_episodes:
                assert 2 not in first
                assert 0 not in {episode for episode, _ in steps_of(own, 1)}
                for number, length in enumerate((3, 4)):
                    assert len(steps_of(own, number)) % length == 0, "whole episodes"

    def test_it_is_closed_twice(self, kind: Kind) -> None:
        env = kind.manager()
        made = kind.make(env, kind.policy(kind.actors()))
        kind.collect(made, 2)
        made.close()
        made.close()
        assert env.closes == 1
        with pytest.raises(EnvError, match="reset_env"):
            made.collect(2)
        made.reset_env(env)
        assert (env.launches, env.closed) == (2, False)
        assert kind.collect(made, 2)
        made.close()

    def test_what_is_missing(self, kind: Kind) -> None:
        with kind.make(None, None) as made:
            with pytest.raises(EnvError, match=r"no environments.*reset_env"):
                made.collect(2)
            assert made.envstep == 0
            made.reset_env(kind.manager())
            with pytest.raises(PolicyError, match=r"no policy.*reset_policy"):
                made.collect(2)
            made.reset_policy(kind.policy(kind.actors()))
            assert kind.collect(made, 2)

    def test_a_policy_of_the_wrong_kind(self, kind: Kind) -> None:
        modes = [actor.mode for actor in (Actor(0), Actor(1))]
        wrong: list[Any] = [modes[0], [modes[0]]] if kind.is_battle else [modes, tuple(modes)]
        for policy in wrong:
            with pytest.raises(PolicyError, match="list"):
                kind.make(None, policy)

    def test_other_environments_and_policies(self, kind: Kind) -> None:
        actors, env = kind.actors(), kind.manager()
        with kind.make(env, kind.policy(actors)) as made:
            assert (env.launches, env.resets) == (1, 0)
            kind.collect(made, 3)
            made.reset_env()
            assert env.resets == 1
            begun = list(env.episode)
            for own in kind.collect(made, 2):
                for number in range(env.env_num):
                    mine = steps_of(own, number)
                    assert mine == story(len(mine), LENGTHS[number], begun[number]), "all anew"
            running = kind.manager((4, 4))
            running.launch()
            made.reset_env(running)
            assert (running.launches, running.resets) == (1, 1), "it ran already"
            others = kind.actors()
            made.reset_policy(kind.policy(others))
            assert others[0].resets == [None]
            calls = actors[0].calls
            for player, own in enumerate(kind.collect(made, 2)):
                check(own, (4, 4), player)
            assert (actors[0].calls, others[0].calls) == (calls, others[-1].calls)
            assert others[0].calls > 0
            running.close()
            env.close()

    def test_reset_forgets_all(self, kind: Kind) -> None:
        actors, env = kind.actors(), kind.manager()
        with kind.make(env, kind.policy(actors)) as made:
            kind.collect(made, 3)
            made.reset()
            assert made.envstep == 0
            assert env.resets == 1
            assert actors[0].resets[-1] is None
            begun = list(env.episode)
            for own in kind.collect(made, 2):
                for number in range(env.env_num):
                    assert all(episode >= begun[number] for episode, _ in steps_of(own, number))

    def test_env_steps_can_be_set(self, kind: Kind) -> None:
        env = kind.manager()
        with kind.make(env, kind.policy(kind.actors())) as made:
            made.envstep = 1000
            kind.collect(made, 2)
            assert made.envstep == 1000 + sum(env.life)

    def test_environments_that_have_done_their_episodes(self, kind: Kind) -> None:
        """Every wait ends: a manager with a number of episodes gives no more."""
        env = kind.manager(episode_num=2)
        with (
            kind.make(env, kind.policy(kind.actors())) as made,
            pytest.raises(EnvError, match="episode_num"),
        ):
            kind.collect(made, 100)

    def test_an_end_without_a_return(self, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
        env = kind.manager()
        bare: Any = [{}, {}] if kind.is_battle else {}
        monkeypatch.setattr(env, "info", lambda _env, _done: bare)
        with (
            kind.make(env, kind.policy(kind.actors())) as made,
            pytest.raises(EnvError, match="eval_episode_return"),
        ):
            kind.collect(made, 100)

    def test_returns_are_those_that_infos_tell_of(self, kind: Kind) -> None:
        """Managers of ours count too, by what rewards have become; that is not left there."""
        actors, env = kind.actors(), kind.manager((2, 2))
        counted = [7.0]
        env.take_episodes = lambda: (np.array(counted), np.array([counted.clear() or 1]))
        with kind.make(env, kind.policy(actors)) as made:
            kind.collect(made, 2 if kind.by_episodes else 4)
            assert not counted
            assert made._report.totals["episode"] == 2
            made._loop.envs.begin_only(None)
            for _ in range(2):
                made._loop.once({})
            ended = made._loop.take_episodes()
        of_first = ended.of(ended.rows < 2)
        assert of_first.returns.tolist() == [return_of(1, 2)] * 2
        assert of_first.lengths.tolist() == [2, 2]

    def test_curves(self, kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        writer = TensorBoardWriter(tmp_path)
        env = kind.manager((2, 2))
        made = kind.make(env, kind.policy(kind.actors()), writer, collect_print_freq=10)
        told, target = [], 2 if kind.by_episodes else 4
        with caplog.at_level(logging.INFO, "hpcdi"):
            for train_iter in (5, 14, 15):  # the second is too early
                kind.collect(made, target, train_iter=train_iter)
                told.append(made.envstep)
        assert told == [4, 8, 12]
        made.close()
        records = [record for record in caplog.records if record.message == "collect"]
        assert [vars(record)["train_iter"] for record in records] == [5, 15]
        events = EventAccumulator(str(tmp_path)).Reload()
        both = {tag.split("/")[0] for tag in events.Tags()["scalars"]}
        assert both == {"collector_iter", "collector_step"}

        def curve(name: str, axis: str) -> list[tuple[int, float]]:
            return [(e.step, e.value) for e in events.Scalars(f"collector_{axis}/{name}")]

        first, *later = [return_of(episode, 2) for episode in range(3)]
        expected = {
            "envstep_count": [4, 8], "train_sample_count": [4, 8], "episode_count": [2, 4],
            "total_envstep_count": [4, 12], "total_train_sample_count": [4, 12],
            "total_episode_count": [2, 6], "avg_envstep_per_episode": [2, 2],
            "reward_mean": [first, np.mean(later)], "reward_std": [0.0, np.std(later)],
            "reward_max": [first, max(later)], "reward_min": [first, min(later)],
            "avg_sample_per_episode": [2, 2],
        }  # fmt: skip
        for name, values in expected.items():
            values = [float(np.float32(value)) for value in values]
            assert curve(name, "iter") == list(zip((5, 15), values, strict=True)), name
            assert curve(name, "step") == list(zip((4, 12), values, strict=True)), name
            assert vars(records[1])["scalars"][name] == pytest.approx(values[1])
        per_s = [f"avg_{name}_per_sec" for name in ("envstep", "train_sample", "episode")]
        times = ["collect_time", "total_duration"]
        assert curve(times[0], "iter")[0] == curve(times[1], "iter")[0]
        assert curve(times[0], "iter")[1][1] < curve(times[1], "iter")[1][1]
        names = {*expected, *per_s, *times}
        if kind.is_battle:
            figures = ("mean", "std", "max", "min")
            assert curve("reward0_max", "iter") == curve("reward_max", "iter")
            names |= {f"reward{player}_{figure}" for player in range(2) for figure in figures}
        assert {tag.split("/")[1] for tag in events.Tags()["scalars"]} == names
        speeds = [dict(curve(name, "iter"))[5] for name in per_s]
        assert speeds == pytest.approx([speeds[0], speeds[0], speeds[0] / 2])

    def test_nothing_is_drawn_before_an_episode_ends(self, kind: Kind, tmp_path: Path) -> None:
        if kind.by_episodes:
            return  # one always does
        made = kind.make(
            kind.manager((50, 50)), kind.policy(kind.actors()), TensorBoardWriter(tmp_path)
        )
        kind.collect(made, 10, train_iter=1)
        made.close()
        assert EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"] == []


def test_the_type_is_sample_unless_it_is_said() -> None:
    assert get_serial_collector_cls({}) is SampleSerialCollector
    with pytest.raises(KeyError, match="sampel"):
        create_serial_collector({"type": "sampel"})


# ----------------- collecting training samples: pieces, on-policy cuts, random steps, whole columns


def collector(env: Any, actor: Actor, **cfg: Any) -> SampleSerialCollector:
    return SampleSerialCollector(cfg, env, actor.mode)


def pieces(samples: Sequence[Transition]) -> list[int]:
    return [one["piece"] for one in samples]


# ------------------------------------------------------------------------------------------ pieces


def test_a_piece_is_an_environments_share() -> None:
    with collector(Manager((50, 50, 50)), Actor()) as made:
        assert pieces(made.collect(12)) == [4] * 12
        assert pieces(made.collect(7)) == [3] * 7
        assert pieces(made.collect(1)) == [1]


def test_a_piece_is_as_long_as_it_must_be_to_unroll() -> None:
    with collector(Manager((50, 50)), Actor(unroll_len=6)) as made:
        assert pieces(made.collect(4)) == [6] * 4
        assert pieces(made.collect(4, drop_extra=False)) == [6] * 12


def test_pieces_are_whole_episodes_where_the_settings_say_so() -> None:
    actor = Actor(cfg=SimpleNamespace(traj_len_inf=True))
    with collector(Manager((5, 7)), actor) as made:
        got = made.collect(6, drop_extra=False)
        assert pieces(got) == [5] * 5 + [7] * 7
        assert made.envstep == 14


@pytest.mark.parametrize(("amount", "length"), [(None, 5), (40, 5), (128, 16)])
def test_pieces_of_a_policy_of_ours_have_room_for_n_step_returns(
    amount: int | None, length: int
) -> None:
    """Its ``n_sample``, 32, is of each environment: no share of it is 5 steps long."""
    env = make_env_manager(None, [partial(CountEnv, 50)] * 8)
    cfg = {"type": "dqn", "nstep": 5, "model": {"obs_shape": 2, "action_shape": 2}}
    with SampleSerialCollector({}, env, create_policy(cfg, ["collect"]).collect_mode) as made:
        got = made.collect(amount, drop_extra=False)
    steps = [min(5, length - k) for k in range(length)] * 8
    assert [one["value_gamma"] for one in got] == [np.float32(0.97**n) for n in steps]


def test_a_shorter_target_ends_longer_pieces() -> None:
    with collector(Manager((50,)), Actor(unroll_len=1)) as made:
        made.collect(3)
        (recorder,) = made._records.of
        recorder.length = 10  # as if a longer one had been asked for
        recorder.add(0, {"obs": np.zeros(4)}, ended=False)
        assert pieces(made.collect(1)) == [2]


def test_what_is_more_than_enough_is_dropped_or_given() -> None:
    for drop_extra, count in ((True, 5), (False, 6)):
        with collector(Manager((50, 50)), Actor()) as made:
            assert len(made.collect(5, drop_extra=drop_extra)) == count
            assert made._report.totals["train_sample"] == 6
    with collector(Manager((50, 50)), Actor()) as made:
        assert len(made.collect(5)) == 5


def test_level_seeds() -> None:
    with collector(Manager((3, 3)), Actor()) as made:
        got = made.collect(6, train_iter=2, level_seeds={0: 40, 1: 41})
    assert [one["seed"] for one in got] == [40 + int(one["obs"][0]) for one in got]
    assert {one["collect_iter"] for one in got} == {2}
    assert all("seed" not in one for one in collector(Manager((3,)), Actor()).collect(3))


def test_a_policy_gets_tensors_and_marks_of_each_transition() -> None:
    """Of a trajectory that spans two calls, too; what samples carry is the policy's affair."""
    got: list[list[Transition]] = []
    actor = Actor(n_sample=4)
    actor.sample = lambda piece: got.append(piece) or piece  # type: ignore[func-returns-value]
    with collector(Manager((50,)), actor) as made:
        made.collect(1, train_iter=3, drop_extra=False)
        made._loop.once({})  # the first step of a trajectory that goes on
        (sample, *_) = made.collect(1, train_iter=7)
    assert [[one["collect_iter"] for one in piece] for piece in got] == [[3] * 4, [3, 7, 7, 7]]
    assert all(isinstance(one["obs"], torch.Tensor) for piece in got for one in piece)
    assert got[0][0]["next_obs"] is got[0][1]["obs"], "each observation is held once"
    assert sample["collect_iter"] == 3
    actor.sample = lambda piece: [{"n": 1} for _ in piece]
    with collector(Manager((50,)), actor) as made:
        assert made.collect(1, train_iter=5)[0]["collect_iter"] == 5, "marked where it dropped it"


def test_samples_stay_of_their_class() -> None:
    actor = Actor()
    own = [ConfigDict(number=0), ConfigDict(number=1)]
    actor.get_train_sample = lambda _: own  # type: ignore[method-assign, assignment, return-value]
    samples = collector(Manager((2,)), actor).collect(2, 7)
    assert [type(sample) for sample in samples] == [ConfigDict] * 2
    assert [(one.number, one.collect_iter) for one in samples] == [(0, 7), (1, 7)]
    assert "collect_iter" not in own[0], "the policy's own"


def test_a_policy_of_columns_gets_what_environments_gave() -> None:
    with collector(Manager((3,)), ColumnarActor()) as made:
        assert type(made.collect(3)[0]["obs"]) is np.ndarray


def test_another_policy_goes_on_with_the_trajectories() -> None:
    """As after random collecting; only `reset` drops them."""
    first, second = Actor(n_sample=4), Actor(n_sample=4)
    with collector(Manager((50, 50)), first) as made:
        made.collect(1)
        made._loop.once({})
        made.reset_policy(second.mode)
        got = made.collect(2, drop_extra=False)
        assert steps_of(got, 0) == [(0, 2), (0, 3)]
        assert (first.calls, second.calls) == (3, 1)
        made.collect(1)
        made.reset()
        assert steps_of(made.collect(2, drop_extra=False), 0)[0] == (1, 0)


# --------------------------------------------------------------------------------------- on-policy


def test_on_policy_what_is_unfinished_is_dropped() -> None:
    """Every piece is as long as it should be, or ends its episode; each is of one policy."""
    actor = Actor(on_policy=True, n_sample=9)
    with collector(Manager((4, 7, 9)), actor) as made:
        for version in range(6):
            actor.version = version
            got = made.collect(drop_extra=False)
            assert len(got) >= 9
            assert {one["by"] for one in got} == {version}
            assert all(one["piece"] == 3 or one["next_obs"][2] in (4, 7, 9) or not one["done"]
                       for one in got)  # fmt: skip
            assert made._records.of[0].open_transitions == 0


def test_on_policy_where_environments_answer_later() -> None:
    """A step that was begun under the policy before is the only one of it."""
    actor, env = Actor(on_policy=True), Manager((4, 7, 9), together=2)
    with collector(env, actor) as made:
        for version in range(6):
            actor.version = version
            new = made.collect(8, train_iter=version, drop_extra=False)
            assert {one["by"] for one in new} <= {version, version - 1}
            assert made._records.of[0].open_transitions == 0


def test_off_policy_pieces_go_on() -> None:
    actor = Actor(on_policy=False)
    with collector(Manager((3, 50)), actor) as made:
        assert len(made.collect(8, drop_extra=False)) == 10
        assert made._records.of[0].open_transitions == 2
        actor.version = 1
        got = made.collect(8, drop_extra=False)
    long = [one for one in got if one["obs"][0] == 1]
    assert [one["by"] for one in long[:4]] == [0, 0, 1, 1]
    assert steps_of(got, 1)[0] == (0, 4)


def test_on_policy_sequences_are_as_many_as_were_asked_for() -> None:
    """A sample may be a sequence of several transitions."""
    actor = Actor(on_policy=True, unroll_len=4)
    actor.get_train_sample = (
        lambda piece: [  # type: ignore[method-assign]
            {"steps": piece[k : k + 4]} for k in range(0, len(piece) - 3, 4)
        ]
    )
    with collector(Manager((50, 50)), actor) as made:
        for _ in range(2):
            got = made.collect(6, drop_extra=False)
            assert len(got) >= 6
            assert {len(one["steps"]) for one in got} == {4}
        assert made.envstep == 48


def test_on_policy_pieces_that_give_fewer_samples_than_they_have_steps() -> None:
    actor = Actor(on_policy=True)
    actor.sample = lambda piece: piece[:-2]
    for together in (None, 1):
        with collector(Manager((50, 50, 50), together=together), actor) as made:
            for _ in range(3):
                assert len(made.collect(8)) == 8
                left = made._records.of[0]
                assert left.finished == left.open_transitions == 0, "nothing for the next policy"


# ------------------------------------------------------------------------------------------ random


def test_random_steps_ask_the_policy() -> None:
    """It is a random one then: who collects at random says by which policy."""
    actor, env = Actor(), Manager((3, 3))
    with collector(env, actor) as made:
        check(made.collect(6, random_collect=True), env.lengths)
        assert actor.calls == 3
        assert made._report.totals == {"envstep": 6, "train_sample": 6, "episode": 2}


def test_random_steps_without_a_policy_are_the_environments_choice() -> None:
    env = Manager((3, 3))
    with SampleSerialCollector({}, env) as made:
        got = made.collect(6, random_collect=True)
        check(got, env.lengths)
        assert [one["action"] for one in got] == [900 + int(one["obs"][0]) for one in got]
        with pytest.raises(NoPolicyError, match="has no policy"):
            made.collect(4)
        made.collect(2, random_collect=True)
        made.reset_policy(Actor().mode)
        assert {one["action"] for one in made.collect(4)} == {1, 2}


@pytest.mark.parametrize("form", [lambda env: env, by_dicts])
def test_random_steps_go_on_where_the_call_before_has_ended(form: Any) -> None:
    """No call draws what the one before drew; by the environments' seed alone."""
    drawn: list[list[int]] = []
    with SampleSerialCollector({}) as made:
        for seed in (0, 1, 0):
            made.reset_env(form(make_env_manager(None, [partial(CountEnv, 50)] * 2, seed=seed)))
            for _ in range(2):
                got = made.collect(40, random_collect=True)
                drawn.append([int(one["action"]) for one in got])
    assert drawn[:2] == drawn[4:]
    assert len({tuple(one) for one in drawn}) == 4


@pytest.mark.parametrize("form", [lambda env: env, by_dicts])
def test_random_steps_of_a_policy_are_of_the_environments_seed_and_of_torch(form: Any) -> None:
    """So ranks, which share the latter, differ; and episodes that begin anew repeat nothing."""
    drawn: dict[Any, list[list[int]]] = {}
    for torch_seed, seed, again in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)):
        torch.manual_seed(torch_seed)
        env = form(make_env_manager(None, [partial(CountEnv, 50)] * 2, seed=seed))
        of_one = drawn[torch_seed, seed, again] = []
        with SampleSerialCollector({}, env, ColumnarActor().mode) as made:
            for _ in range(2):
                got = made.collect(40, random_collect=True, policy_kwargs={"random": True})
                of_one.append([int(one["action"]) for one in got])
                made.reset_env()
    assert drawn[0, 0, 0] == drawn[0, 0, 1]
    assert len({tuple(one) for of_one in drawn.values() for one in of_one}) == 6


def test_random_steps_of_a_policy_where_no_spaces_are_known() -> None:
    with (
        collector(Manager((3, 3)), Actor()) as made,
        pytest.raises(EnvError, match=r"random actions .* need one of hpcdi's managers"),
    ):
        made.collect(6, random_collect=True, policy_kwargs={"random": True})


def test_random_steps_that_are_not_reported_count() -> None:
    with collector(Manager((3, 3)), Actor()) as made:
        assert len(made.collect(6, random_collect=True, record_random_collect=False)) == 6
        assert made._report.totals == {"envstep": 6, "train_sample": 6, "episode": 2}
        made.collect(6, record_random_collect=False)
        assert made._report.totals == {"envstep": 12, "train_sample": 12, "episode": 4}


def test_random_steps_where_environments_answer_later() -> None:
    env = Manager((3, 2, 4), together=1)
    with collector(env, Actor()) as made:
        got = made.collect(9, random_collect=True)
    check(got, env.lengths)


# ------------------------------------------------------------------------ managers that count, too


def test_episodes_of_a_manager_that_counts_are_its_own() -> None:
    """It is not left to keep every episode of a long run."""
    cfg = {
        "type": "gymnasium", "import_names": ["hpcdi.env.toy"], "env_id": "hpcdi/Count-v0",
        "kwargs": {"length": 5}, "collector_env_num": 2,
    }  # fmt: skip
    env = create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0))
    with SampleSerialCollector({}, env, Actor().mode) as made:
        got = made.collect(20)
        assert made._report.totals == {"envstep": 20, "train_sample": 20, "episode": 4}
        assert len(env.take_episodes().rows) == 0
    for number in range(2):
        mine = [one for k, one in enumerate(got) if k // 10 == number]
        assert len(mine) == 10
    assert sorted(tuple(map(int, one["obs"])) for one in got) == sorted(
        (step, episode) for episode in range(2) for step in range(5) for _ in range(2)
    )


# ----------------------------------------------------------------------------------------- columns

MODES = list(AutoresetMode)
SCRIPTS = [[(3, True, False), (2, False, True)], [(5, False, True)], [(1, True, False)]]


def samples_and_columns(mode: AutoresetMode, n: int) -> tuple[list[Transition], Columns]:
    results: list[Any] = []
    for by_columns in (False, True):
        env, actor = manager(SCRIPTS, mode), ColumnarActor(n_sample=1)  # each step is a piece
        with SampleSerialCollector({}, env, actor.mode) as made:
            results.append(
                made.collect_columns(n, 3) if by_columns else made.collect(n, 3, drop_extra=False)
            )
            assert made.envstep == made._report.totals["train_sample"]
            results[-1] = (results[-1], dict(made._report.totals))
    (samples, counted), (columns, counted_too) = results
    assert counted == counted_too
    return samples, columns


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 10, 50])
def test_columns_hold_the_same_transitions_as_samples(mode: AutoresetMode, n: int) -> None:
    samples, columns = samples_and_columns(mode, n)
    assert len(columns["reward"]) == len(samples) >= n
    rows = zip(
        columns["observation"].tolist(), columns["action"].tolist(), columns["reward"].tolist(),
        (columns["terminated"] | columns["truncated"]).tolist(), strict=True,
    )  # fmt: skip
    expected = [
        (list(map(float, one["obs"])), one["action"], float(one["reward"]), one["done"])
        for one in samples
    ]
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize("mode", MODES)
def test_columns_go_on_from_call_to_call(mode: AutoresetMode) -> None:
    env, actor = manager(SCRIPTS, mode), ColumnarActor(n_sample=6)
    rows: list[list[float]] = []
    with SampleSerialCollector({}, env, actor.mode) as made:
        for _ in range(4):
            got = made.collect_columns(policy_kwargs={"eps": 0.1})
            assert 6 <= len(got["reward"]) <= 8, "as many, or a few more"
            rows += got["observation"].tolist()
        assert made.envstep == len(rows)
    assert actor.settings == [{"eps": 0.1}] * actor.calls
    assert len(set(map(tuple, rows))) == len(rows)
    for number, script in enumerate(SCRIPTS):
        mine = sorted((row[1], row[2]) for row in rows if row[0] == number)
        lengths = [script[int(k) % len(script)][0] for k in range(40)]
        story_of = [(float(e), float(k)) for e, length in enumerate(lengths) for k in range(length)]
        assert mine == story_of[: len(mine)]


def test_columns_acted_by_somebody_else() -> None:
    def act(observation: Columns, setting: Settings) -> Columns:
        return {"action": np.full(column_rows(observation), 77)}

    actor = ColumnarActor()
    with SampleSerialCollector({}, manager(SCRIPTS, MODES[0]), actor.mode) as made:
        assert set(made.collect_columns(6, act=act)["action"]) == {77}
    assert actor.calls == 0


def test_columns_of_a_policy_that_knows_none() -> None:
    with (
        SampleSerialCollector({}, manager(SCRIPTS, MODES[0]), Actor().mode) as made,
        pytest.raises(PolicyError, match=r"knows no columns: its attribute 'columnar'"),
    ):
        made.collect_columns(6)


def test_columns_have_no_copies_with_other_goals() -> None:
    hindsight = SimpleNamespace(goals=4)
    actor = ColumnarActor(cfg=SimpleNamespace(hindsight=hindsight))
    with SampleSerialCollector({}, manager(SCRIPTS, MODES[0]), actor.mode) as made:
        with pytest.raises(PolicyError, match=r"policy\.hindsight: collect_columns\(\) adds no"):
            made.collect_columns(6)
        hindsight.goals = 0
        assert len(made.collect_columns(6)["reward"]) >= 6


def test_columns_between_samples_leave_no_gap_in_a_piece() -> None:
    """Steps that were given as columns are not in samples: no piece goes on across them."""
    scripts = [[(3, True, False)], [(50, True, False)]]
    with SampleSerialCollector({}, manager(scripts, MODES[1]), ColumnarActor().mode) as made:
        made.collect(8)
        assert made._records.of[0].open_transitions == 2
        columns = made.collect_columns(4)
        long = columns["observation"][:, 0] == 1
        steps = columns["observation"][long, 2].tolist()
        assert steps == [steps[0], steps[0] + 1]
        got = made.collect(8)
    at = [int(one["obs"][2]) for one in got if one["obs"][0] == 1]
    assert at == list(range(int(steps[1]) + 1, int(steps[1]) + 1 + len(at)))
    assert at, "it has gone on"


@pytest.mark.usefixtures("env_helpers")
@pytest.mark.parametrize("columns_first", [False, True])
def test_a_step_under_way_belongs_to_the_kind_of_call_that_began_it(
    tmp_path: Path, columns_first: bool
) -> None:
    """With ``wait_num``: the other kind would not know its observation; all begin anew."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fns = [partial(HeldEnv, str(pipe), 1), CountEnv]
    env = make_env_manager({"type": "subprocess", "wait_num": 1}, fns, seed=0)
    seen = []
    with SampleSerialCollector({}, env, ColumnarActor().mode) as made:
        for by_columns in (columns_first, not columns_first):
            if by_columns:
                seen.append(made.collect_columns(6)["observation"].tolist())
            else:
                seen.append([one["obs"].tolist() for one in made.collect(6)])
            if len(seen) == 1:
                assert not env.ready.all()
                pipe.write_text("go on")
    before = max(episode for _, episode in seen[0])
    assert min(episode for _, episode in seen[1]) >= 1, "both environments were reset"
    assert [0.0, before + 1] in seen[1], "from its beginning"


@pytest.mark.parametrize("which", [None, {0: None}])
@pytest.mark.parametrize("by_columns", [False, True])
def test_environments_that_the_program_resets_end_their_trajectories(
    which: Any, by_columns: bool
) -> None:
    env = make_env_manager({}, [partial(CountEnv, 3), partial(CountEnv, 50)], seed=0)
    actor, pieces = ColumnarActor(n_sample=8), []

    def sample(piece: list[Transition]) -> list[Transition]:
        pieces.append({int(one["obs"][1]) for one in piece})
        return piece

    actor.sample = sample
    with SampleSerialCollector({}, env, actor.mode) as made:
        call = made.collect_columns if by_columns else made.collect
        call(7)
        actor.resets.clear()
        env.reset(which)
        call(8)
    told = [int(row) for rows in actor.resets if rows is not None for row in rows]
    begun = [0, 1] if which is None else [0]
    assert told[: len(begun)] == begun
    assert all(len(episodes) == 1 for episodes in pieces)


class FailingVector:
    """A back-end of environments of `length` steps; all fail in the steps that `failing` names."""

    fails_as_one = keeps_infos = False
    wait_num = None
    facts = EnvFacts(Box(0, np.inf, (3,), np.float32), Discrete(1000))
    origin: dict[str, tuple[float, ...]] = {}  # noqa: RUF012

    def __init__(self, env_num: int, length: int, failing: dict[int, list[int]]) -> None:
        self.env_num, self.length, self.failing = env_num, length, failing
        self.steps, self.infos = 0, {}  # type: ignore[var-annotated]
        self.episode, self.at = np.full(env_num, -1), np.zeros(env_num, dtype=int)
        self.acts = np.ones(env_num, dtype=bool)

    def start(self, starts: dict[int, EpisodeStart]) -> dict[int, EnvFailure]:
        if self.steps == 0:  # those that failed have begun by themselves
            self._begin(self.acts)
        self.observation = self._observe()
        return {}

    def step(self, action: Columns, began: Array, seeds: Any, goes_on: Any) -> BackendStep:
        self.steps += 1
        self.at += 1
        failed = {env: EnvFailure("planted") for env in self.failing.get(self.steps, [])}
        ended = self.at == self.length
        successor = self._observe()
        reward = np.asarray(100 * self.episode + self.at, dtype=np.float32)
        over = np.array([env not in failed for env in range(self.env_num)])
        ends = {env: [{}] for env in np.flatnonzero(ended & over).tolist()}
        self._begin(ended | ~over)
        self.observation = self._observe()
        # what a failed environment says means nothing; this one says that its episode has ended
        done = ended | ~over
        never = np.zeros(self.env_num, dtype=bool)
        return BackendStep(successor, reward * over, done, never, done, over, ends, failed)

    def seed_taken(self, env: int, seed: int | None, *, is_later: bool) -> int | None:
        return NO_SEED

    def close(self) -> None: ...

    def _begin(self, where: Array) -> None:
        self.episode[where] += 1
        self.at[where] = 0

    def _observe(self) -> Columns:
        columns = [np.arange(self.env_num), self.episode, self.at]
        return {"observation": np.stack(columns, axis=1).astype(np.float32)}


@pytest.mark.parametrize("n", [1, 5, 12, 40])
def test_columns_are_enough_though_environments_fail(n: int) -> None:
    """What is dropped is collected again; only whole beginnings of episodes are there."""
    failing = {2: [0], 3: [0, 1, 2], 6: [1], 9: [0, 2], 10: [0]}
    env = FailingVector(3, 6, failing)
    patient = ManagerConfig(max_retry=100, retry_waiting_time=0.0)
    envs = EnvManager(env, patient, seed=np.random.SeedSequence(0))
    with SampleSerialCollector({}, envs, ColumnarActor().mode) as made:
        got = made.collect_columns(n)
        assert n <= len(got["reward"]) < n + 3 * math.ceil(n / 3) + 3
        again = made.collect_columns(n)
        assert len(again["reward"]) >= n
        assert made._report.totals["train_sample"] == len(got["reward"]) + len(again["reward"])
        failures = sum(len(failed) for step, failed in failing.items() if step <= env.steps)
        assert made.envstep == 3 * env.steps - failures
    rows = list(map(tuple, got["observation"].tolist()))
    assert len(set(rows)) == len(rows)
    for env_id in range(3):
        mine = [row for row in rows if row[0] == env_id]
        for episode in {row[1] for row in mine}:
            steps = [row[2] for row in mine if row[1] == episode]
            assert steps == list(range(int(steps[0]), int(steps[0]) + len(steps)))


def test_lengths_of_episodes_after_a_failure() -> None:
    """Steps of an episode that failed are not the next one's."""
    with collector(Manager((3, 4), failing={0: [2], 1: [3]}), Actor()) as made:
        call = made._begin({}, 0)
        for _ in zip(range(12), call.steps(), strict=False):
            pass
        _, returns, lengths, _ = call.loop.take_episodes()
    assert sorted(lengths.tolist()) == [3, 3, 3, 4, 4]
    assert sorted(returns.tolist()) == sorted(
        [return_of(k, 3) for k in (1, 2, 3)] + [return_of(k, 4) for k in (1, 2)]
    )


# ------------------------------------------------------------------------------- our own managers


@pytest.mark.parametrize("by_columns", [False, True])
def test_environments_of_a_pool_that_fail(by_columns: bool) -> None:
    """CountEnv: the observation is the step and the episode; the reward of step k is k."""
    env_fns = [partial(CountEnv, length=3, fail_at=5), partial(CountEnv, length=4)]
    env = make_env_manager(None, env_fns)
    with SampleSerialCollector({}, env, ColumnarActor(n_sample=16).mode) as made:
        if by_columns:
            columns = made.collect_columns(16)
            got = list(zip(columns["observation"].tolist(), columns["reward"], strict=True))
        else:
            samples = made.collect(16, drop_extra=False)
            got = [(one["obs"].tolist(), one["reward"]) for one in samples]
        assert env.failures == 1
        assert made._report.totals["train_sample"] == len(got) >= 16
    assert all(reward == step + 1 for (step, _), reward in got)
    firsts = [episode for (step, episode), _ in got if step == 0]
    lasts = [episode for (step, episode), _ in got if step == 3]
    assert 1.0 in lasts, "the other one goes on"
    assert firsts.count(1.0) == 1, "episode 1 of the first environment failed in its second step"


def test_random_actions_of_a_pool() -> None:
    env = make_env_manager(None, [partial(CountEnv, length=3)] * 2)
    with SampleSerialCollector({}, env) as made:
        got = made.collect(6, random_collect=True)
    assert {one["action"] for one in got} <= {0, 1}
    assert sorted(int(one["reward"]) for one in got) == [1, 1, 2, 2, 3, 3]


def test_nothing_is_remembered_of_episodes_that_the_collector_has_ended() -> None:
    env = make_env_manager(None, [partial(CountEnv, 50)] * 2)
    cfg = {"type": "r2d2", "model": {"obs_shape": 2, "action_shape": 2}}
    with SampleSerialCollector({}, env, create_policy(cfg, ["collect"]).collect_mode) as made:
        for _ in range(2):
            columns = made.collect_columns(8)
            is_first = columns["observation"][:, 0] == 0
            assert is_first.sum() == 2
            assert (columns["state/hidden"] != 0).any(axis=1).tolist() == (~is_first).tolist()
            made.reset_env()


# ------------------------------------------------------------------------ collecting whole episodes


def episodes_of(env: Any, actor: Actor, **cfg: Any) -> EpisodeSerialCollector:
    return EpisodeSerialCollector(cfg, env, actor.mode)


def names(episodes: list[list[Transition]]) -> list[tuple[int, int]]:
    """Environment and number of each episode; checks that it is whole."""
    for episode in episodes:
        assert [int(one["obs"][2]) for one in episode] == list(range(len(episode)))
        assert [one["done"] for one in episode] == [False] * (len(episode) - 1) + [True]
    return [(int(episode[0]["obs"][0]), int(episode[0]["obs"][1])) for episode in episodes]


def test_episodes_are_lists_of_transitions_in_the_order_of_their_ends() -> None:
    with episodes_of(Manager((3, 2)), Actor()) as made:
        got = made.collect(4, train_iter=3)
        assert names(got) == [(1, 0), (0, 0), (1, 1), (0, 1)]
        assert all(one["collect_iter"] == 3 for episode in got for one in episode)
        assert "piece" not in got[0][0], "no samples are made of them"
        assert made._report.totals == {"envstep": 10, "train_sample": 10, "episode": 4}


def test_only_as_many_episodes_begin_as_are_returned() -> None:
    """As in DI-engine: an environment without one rests, so no step is in vain."""
    env = Manager((2, 2, 2, 2))
    with episodes_of(env, Actor()) as made:
        assert names(made.collect(6)) == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]
        assert made.envstep == 12
        assert names(made.collect(4)) == [(0, 2), (1, 2), (2, 1), (3, 1)]
        assert made.envstep == sum(env.life) == 20
        assert all(not own for own in made._traj_buffer.values())


def test_short_episodes_are_not_preferred() -> None:
    """Over many calls every environment gives all its episodes, however long they are."""
    env = Manager((1, 10))
    got: list[list[Transition]] = []
    with episodes_of(env, Actor()) as made:
        for _ in range(20):
            got += made.collect(2)
    assert names(got).count((1, 0)) == 1
    whole = [one for episode in got for one in episode]
    check(whole, env.lengths)
    for number, length in enumerate(env.lengths):
        mine = steps_of(whole, number)
        assert mine == story(len(mine), length)
        assert len(mine) >= env.life[number] - length


def test_on_policy_episodes_are_of_one_policy() -> None:
    actor, env = Actor(on_policy=True), Manager((1, 4))
    with episodes_of(env, actor) as made:
        for version in range(3):
            actor.version = version
            got = made.collect(5)
            assert {one["by"] for episode in got for one in episode} == {version}
            assert sorted(number for number, _ in names(got)) == [0, 0, 0, 0, 1]
        assert (env.resets, made.envstep) == (0, 3 * 8)


def test_on_policy_each_environment_of_ours_gives_its_share() -> None:
    """Two short ones would have been enough to fill what is not a multiple."""
    actor = Actor(on_policy=True)
    env = make_env_manager(None, [partial(CountEnv, length) for length in (2, 2, 2, 30)])
    with episodes_of(env, actor) as made:
        for version in range(2):
            actor.version = version
            got = made.collect(6)
            assert [len(episode) for episode in got] == [2, 2, 2, 2, 2, 30]
            assert {one["by"] for episode in got for one in episode} == {version}


@pytest.mark.parametrize("on_policy", [False, True])
def test_fewer_episodes_than_environments_are_refused(on_policy: bool) -> None:
    """The shortest ones would be chosen."""
    actor = Actor(on_policy=on_policy, n_episode=2)
    with episodes_of(Manager((3, 3, 3)), actor) as made:
        for target in (2, None):
            with pytest.raises(
                ConfigError, match=r"n_episode: .* number of environments, 3, not 2"
            ):
                made.collect(target)
        assert made.envstep == 0
        assert len(made.collect(3)) == 3


def test_training_samples_of_all_episodes() -> None:
    actor = Actor()
    actor.sample = lambda piece: piece[:-1]
    with episodes_of(Manager((3, 2)), actor, get_train_sample=True) as made:
        got: list[Any] = made.collect(3, train_iter=1)
    assert [one["piece"] for one in got] == [2, 3, 3, 2]
    assert [(int(one["obs"][0]), int(one["obs"][2])) for one in got] == [
        (1, 0),
        (0, 0),
        (0, 1),
        (1, 0),
    ]
    assert {one["collect_iter"] for one in got} == {1}


@pytest.mark.parametrize("get_train_sample", [False, True])
def test_rewards_are_shaped_by_the_manager(get_train_sample: bool) -> None:
    """Before samples are made, as these may add rewards up."""
    actor, env = Actor(), Manager((3, 2))
    seen: list[float] = []
    actor.sample = lambda piece: [seen.append(one["reward"]) or one for one in piece]  # type: ignore[func-returns-value]
    cfg = {"reward_shaping": True, "get_train_sample": get_train_sample}
    with episodes_of(env, actor, **cfg) as made:
        got: list[Any] = made.collect(2)
    assert env.shaped == [1, 0]
    flat = got if get_train_sample else [one for episode in got for one in episode]
    assert [one["reward"] for one in flat] == [-1.0, -2.0, -1.0, -2.0, -3.0]
    assert seen == ([-1.0, -2.0, -1.0, -2.0, -3.0] if get_train_sample else [])


def test_an_asynchronous_manager_of_episodes() -> None:
    """Environments that are slow are waited for."""
    actor, env = Actor(on_policy=True), Manager((1, 9, 3), together=1)
    with episodes_of(env, actor) as made:
        got = made.collect(6)
    assert sorted(env_id for env_id, _ in names(got)) == [0, 0, 0, 0, 1, 2]


# ------------------------------------------------ battles: who acts when, and whose a transition is


BOTH = [BattleSampleSerialCollector, BattleEpisodeSerialCollector]
TABLES = [(BattleSampleSerialCollector, 2), (BattleSampleSerialCollector, 3),
          (BattleEpisodeSerialCollector, 2)]  # fmt: skip


def collect(cls: Any, env: Any, actors: list[Actor], n: int, **kwargs: Any) -> Any:
    """Data of each player as transitions in one list, and infos."""
    cfg = kwargs.pop("cfg", {})
    with cls(cfg, env, [actor.mode for actor in actors]) as made:
        data, info = made.collect(n, **kwargs)
    if cls is BattleEpisodeSerialCollector and not cfg.get("get_train_sample"):
        data = [[one for episode in own for one in episode] for own in data]
    return data, info


def actors_of(players: int, **attributes: Any) -> list[Actor]:
    return [Actor(player, **attributes) for player in range(players)]


@pytest.mark.parametrize(("cls", "players"), TABLES)
@pytest.mark.parametrize("one_info", [True, False])
def test_all_act_at_once(cls: Any, players: int, one_info: bool) -> None:
    env = Battle((3, 2), players=players, one_info=one_info)
    data, info = collect(cls, env, actors_of(players), 4, train_iter=2)
    assert len(data) == len(info) == players
    for player in range(players):
        check(data[player], env.lengths, player)
        assert {one["collect_iter"] for one in data[player]} == {2}
        ended = [(k, e) for s in range(env.life[0]) for k, e in ends_at(env, s + 1)]
        if cls is BattleEpisodeSerialCollector:
            ended = ended[:4]
        assert info[player] == [
            {"eval_episode_return": return_of(e, env.lengths[k], player)} for k, e in ended
        ]


def ends_at(env: Battle, step: int) -> list[tuple[int, int]]:
    return [(k, step // n - 1) for k, n in enumerate(env.lengths) if step % n == 0]


def own_turns(length: int, players: int, player: int) -> list[tuple[int, int]]:
    """Steps of each of a player's transitions in an episode: from one, to another (excluded)."""
    begins = list(range(player, length, players))
    return list(zip(begins, [*begins[1:], length], strict=True))


@pytest.mark.parametrize(("cls", "players"), TABLES)
@pytest.mark.parametrize("together", [None, 1])
def test_in_turns_a_transition_spans_from_turn_to_turn(
    cls: Any, players: int, together: int | None
) -> None:
    lengths = (7, 5)
    env = Battle(lengths, players=players, turns=True, together=together)
    data, _ = collect(cls, env, actors_of(players), 16)
    for player in range(players):
        for number, length in enumerate(lengths):
            turns = own_turns(length, players, player)
            mine = [one for one in data[player] if one["obs"][0] == number]
            assert len(mine) > len(turns), "more than an episode"
            for k, one in enumerate(mine):
                episode, (begin, end) = k // len(turns), turns[k % len(turns)]
                assert one["obs"].tolist() == [number, episode, begin, player]
                assert one["next_obs"].tolist() == [number, episode, end, player]
                rewards = [reward_of(episode, step, player) for step in range(begin + 1, end + 1)]
                assert one["reward"] == sum(rewards)
                assert one["done"] == (end == length)
    assert all(sum(one is not None for one in action) == 1 for action in env.actions)


@pytest.mark.parametrize("cls", BOTH)
def test_in_turns_only_those_who_act_are_asked(cls: Any) -> None:
    env, actors = Battle((4, 3), turns=True), actors_of(2)
    collect(cls, env, actors, 6)
    for actor in actors:
        for data in actor.seen:
            assert all(int(obs[2]) % 2 == int(obs[3]) == actor.player for obs in data.values())


@pytest.mark.parametrize("cls", BOTH)
def test_in_turns_an_environment_fails_between_two_turns(cls: Any) -> None:
    """No reward of a failed episode is in the next one's transitions."""
    env = Battle((6,), turns=True, failing={0: [2, 5]})
    data, info = collect(cls, env, actors_of(2), 4)
    assert all(info)
    for player, own in enumerate(data):
        assert all(one["obs"][1] == one["next_obs"][1] for one in own), "of one episode"
        last = [one for one in own if one["obs"][1] == 2]
        assert [one["reward"] for one in last][:2] == [
            reward_of(2, begin + 1, player) + reward_of(2, begin + 2, player)
            for begin in (player, player + 2)
        ]
    assert env.renewed == [0, 0]


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("form", [np.float64, lambda x: np.array([x]), lambda x: torch.tensor([x])])
def test_in_turns_rewards_stay_what_the_environment_gives(cls: Any, form: Any) -> None:
    class Formed(Battle):
        def reward(self, env: int) -> Any:
            return [form(reward) for reward in super().reward(env)]

    actors = actors_of(2)
    data, _ = collect(cls, Formed((4,), turns=True), actors, 2, cfg={"transform_obs": True})
    assert {one[name].dtype for own in data for one in own for name in ("obs", "next_obs")} == {
        torch.float32
    }
    given = {(type(step.reward), step.reward.dtype) for one in actors for step in one.timesteps}
    gives = form(np.float64(0))
    assert given == {(type(gives), gives.dtype)}


def test_reports_follow_train_iterations_not_the_clock(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = itertools.count(0.0, 60.0)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    report = CollectReport(None, "collector", 10)
    with caplog.at_level(logging.INFO, "hpcdi"):
        for train_iter in (3, 4, 12, 13, 22, 23):
            ended = {"envstep": 1, "train_sample": 1}
            report.add({**ended, "episode": 1}, 0.1, [np.ones(1)], of_ended=ended)
            report.show(train_iter)
    shown = [vars(record)["train_iter"] for record in caplog.records]
    assert shown == [3, 13, 23]


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("players", [1, 3])
def test_there_must_be_a_policy_for_each_player(cls: Any, players: int) -> None:
    with pytest.raises(EnvError, match=f"for {players} players, and there are 2 policies"):
        collect(cls, Battle((3,), players=players), actors_of(2), 4)


@pytest.mark.parametrize("cls", BOTH)
def test_each_policy_has_its_own_setting(cls: Any) -> None:
    actors = actors_of(2)
    collect(cls, Battle((3,)), actors, 2, policy_kwargs=[{"eps": 0.1}, {"eps": 0.2}])
    assert [actor.settings[0] for actor in actors] == [{"eps": 0.1}, {"eps": 0.2}]


class LongStep(NamedTuple):
    """A timestep of a class of the environment's own."""

    obs: Any
    reward: Any
    done: bool
    info: Any
    legal: Any
    is_legal: bool = True


def test_each_player_gets_its_part_of_a_timestep_of_another_class() -> None:
    class Envs(Battle):
        def _step(self, env: int) -> Any:
            step = super()._step(env)
            return LongStep(step.obs, [3, -3], step.done, step.info, ["left", "right"])

    given: list[Any] = []
    actors = [Actor(player) for player in range(2)]
    for actor in actors:
        made = actor.process_transition
        actor.process_transition = lambda obs, output, step, made=made: (  # type: ignore[method-assign, misc]
            given.append(step) or made(obs, output, step)  # type: ignore[func-returns-value]
        )
    modes = [actor.mode for actor in actors]
    BattleSampleSerialCollector({}, Envs((2, 2)), modes).collect(2)
    assert {type(step) for step in given} == {LongStep}
    assert [(step.reward, step.legal, step.is_legal) for step in given] == [
        (3, "left", True), (-3, "right", True),
    ] * 2  # fmt: skip
    assert {type(step.reward) for step in given} == {int}


def test_a_policy_whose_data_are_not_collected_plays() -> None:
    actors = [Actor(0), Actor(1, collect_data=False)]
    data, info = collect(BattleSampleSerialCollector, Battle((3, 2)), actors, 6)
    assert [len(own) for own in data] == [6, 0]
    assert len(info[0]) == len(info[1]) > 0
    assert actors[1].calls == actors[0].calls
    assert not actors[1].timesteps
    assert actors[1].resets.count([0]) > 0, "it is told of ends"


def test_pieces_of_each_player_are_as_its_policy_unrolls() -> None:
    actors = [Actor(0, unroll_len=4), Actor(1)]
    data, _ = collect(BattleSampleSerialCollector, Battle((50, 50)), actors, 4)
    assert [[one["piece"] for one in own] for own in data] == [[4] * 4, [2] * 4]


@pytest.mark.parametrize(("usual", "amount", "pieces"), [(4, 12, [2] * 12), (None, 4, [5] * 4)])
def test_pieces_of_a_battle_are_shares_of_the_usual_number(
    usual: int | None, amount: int, pieces: list[int]
) -> None:
    """However many a call collects; whole episodes where the policy has no usual number."""
    actors = [Actor(player, n_sample=usual) for player in range(2)]
    lengths: list[int] = []
    for actor in actors:
        actor.get_train_sample = lambda piece: [lengths.append(len(piece)), piece][1]  # type: ignore[method-assign, func-returns-value]
    env = Battle((5, 5) if usual is None else (20, 20))
    data, _ = BattleSampleSerialCollector({}, env, [actor.mode for actor in actors]).collect(amount)
    assert [len(of_player) for of_player in data] == [amount, amount]
    assert lengths == pieces


@pytest.mark.parametrize("cls", BOTH)
def test_settings_say_how_much_of_a_battle_is_collected(cls: Any) -> None:
    """DI-engine's battles ask for no attribute but ``cfg``; nothing was known, and pieces were of
    another length."""
    cfg = ConfigDict(collect={"n_sample": 8, "n_episode": 3}, on_policy=True)
    actors = actors_of(2, cfg=cfg)
    with cls({}, Battle((9, 9)), [actor.mode for actor in actors]) as made:
        data, _ = made.collect()
        if cls is BattleEpisodeSerialCollector:
            assert [len(own) for own in data] == [3, 3]
            return
        assert [[one["piece"] for one in own] for own in data] == [[4] * 8] * 2
        made.collect(2)
        assert not made._records.of[0].open_transitions, "on-policy"


def test_samples_of_the_slower_player_are_waited_for() -> None:
    """Of an episode of three steps the first player has two transitions, the other one."""
    env = Battle((3,), turns=True)
    with BattleSampleSerialCollector({}, env, [a.mode for a in actors_of(2)]) as made:
        data, _ = made.collect(4, drop_extra=False)
        assert [len(own) for own in data] == [8, 4]
        assert made._report.totals["train_sample"] == 8
        data, _ = made.collect(4)
        assert [len(own) for own in data] == [4, 4]


def test_on_policy_samples_are_of_one_policy() -> None:
    actors = actors_of(2, on_policy=True)
    env = Battle((3, 50))
    with BattleSampleSerialCollector({}, env, [actor.mode for actor in actors]) as made:
        for version in range(3):
            for actor in actors:
                actor.version = version
            data, _ = made.collect(8, drop_extra=False)
            for own in data:
                assert {one["by"] for one in own} == {version}


def test_training_samples_of_episodes() -> None:
    env = Battle((3, 2))
    cls, actors = BattleEpisodeSerialCollector, actors_of(2)
    data, _ = collect(cls, env, actors, 2, cfg={"get_train_sample": True})
    assert [[one["piece"] for one in own] for own in data] == [[2, 2, 3, 3, 3]] * 2


def test_no_episode_of_a_battle_is_lost() -> None:
    env = Battle((2, 2))
    got: list[Transition] = []
    with BattleEpisodeSerialCollector({}, env, [actor.mode for actor in actors_of(2)]) as made:
        for target in (3, 3, 2):
            data, _ = made.collect(target)
            assert [len(own) for own in data] == [target, target]
            got += [one for episode in data[1] for one in episode]
        assert made.envstep == 16
    for number in range(2):
        steps = steps_of(got, number)
        assert steps == story(len(steps), 2)


class Rounds(RockPaperScissors):
    """So many of them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def reset(self, seed: int | None = None) -> list[Any]:
        self._left = self._count
        return super().reset(seed)

    def step(self, actions: Any) -> Any:
        self._left -= 1
        observed, reward, _, info = super().step(actions)
        return observed, reward, self._left == 0, info if self._left == 0 else [{}, {}]


def test_on_policy_episodes_of_a_battle_are_of_one_policy() -> None:
    """Of both players, also where one alone is on-policy; each environment gives its share."""
    env = make_env_manager(None, [partial(Rounds, count) for count in (2, 9)], battle=True)
    actors = [Actor(0), Actor(1, on_policy=True)]
    with BattleEpisodeSerialCollector({}, env, [actor.mode for actor in actors]) as made:
        for version in range(3):
            for actor in actors:
                actor.version = version
            data, infos = made.collect(3)
            for own in data:
                assert [len(episode) for episode in own] == [2, 2, 9]
                assert {one["by"] for episode in own for one in episode} == {version}
            assert [len(of_player) for of_player in infos] == [3, 3]


def test_infos_of_a_battle_are_those_of_its_episodes() -> None:
    """Also where more episodes end at once than are asked for: they come with the next call."""
    number = itertools.count(1)

    class Numbered(RockPaperScissors):
        def step(self, actions: Any) -> Any:
            observed, _, over, _ = super().step(actions)
            won = float(next(number))
            return observed, np.array([won, -won]), over, [{"won": won}, {}]

    env = make_env_manager(None, [Numbered] * 2, battle=True)
    with BattleEpisodeSerialCollector({}, env, [actor.mode for actor in actors_of(2)]) as made:
        for _ in range(3):
            data, infos = made.collect(3)
            won = [float(episode[0]["reward"]) for episode in data[0]]
            assert [info["won"] for info in infos[0]] == won
            assert [info["eval_episode_return"] for info in infos[0]] == won
            assert [info["eval_episode_return"] for info in infos[1]] == [-one for one in won]


class Opening(Rounds):
    """In turns; one move may end it."""

    def reset(self, seed: int | None = None) -> list[Any]:
        return [super().reset(seed)[0], None]

    def step(self, actions: Any) -> Any:
        observed, reward, over, info = super().step([one or 0 for one in actions])
        if not over:
            observed = [None if one is not None else 0 for one in actions]
        return observed, reward, over, info


@pytest.mark.parametrize(
    "make",
    [
        lambda: Battle((1, 3), turns=True),
        lambda: make_env_manager(None, [partial(Opening, 1), partial(Opening, 3)], battle=True),
    ],
)
def test_an_episode_in_which_a_player_never_acted_is_one_of_its_episodes(make: Any) -> None:
    """It has no transitions, and the player's return."""
    with BattleEpisodeSerialCollector({}, make(), [actor.mode for actor in actors_of(2)]) as made:
        for _ in range(3):
            data, infos = made.collect(3)
            assert [len(own) for own in data] == [len(own) for own in infos] == [3, 3]
            moves = [[len(game) for game in own] for own in data]
            assert all(move in [(1, 0), (2, 1)] for move in zip(*moves, strict=True))
            assert (1, 0) in zip(*moves, strict=True)
            assert all("eval_episode_return" in info for own in infos for info in own)


@pytest.mark.parametrize("quota", [None, [1]])
def test_a_rollout_of_whole_episodes_counts_those_without_a_turn(quota: Any) -> None:
    taken = TrajectoryRecorder(1, math.inf, list, quota=quota)
    for number in range(2):
        taken.note(0, {"won": number})
    notes = [(one.episode, one.samples, one.is_whole, one.info) for one in taken.take()]
    assert notes == [(n, [], True, {"won": n}) for n in range(1 if quota else 2)]


@pytest.mark.parametrize("kind", ["episode", "episode_1v1"], indirect=True)
def test_a_call_begins_with_all_environments_though_one_is_slow(kind: Kind) -> None:
    """Its manager resets it in the background: else others would have more of the episodes."""

    class Slow(Battle if kind.is_battle else Manager):  # type: ignore[misc]
        looks = 0

        @property
        def ready_obs(self) -> dict[int, Any]:
            self.looks -= 1
            seen = super().ready_obs
            return seen if self.looks < 0 else {env: seen[env] for env in seen if env != 1}

        def _begin(self, env: int) -> None:
            super()._begin(env)
            self.looks = 20 if env == 1 and self.episode[1] else self.looks

    with kind.make(Slow((2, 2)), kind.policy(kind.actors())) as made:
        for _ in range(3):
            (got, *_) = kind.collect(made, 2)
            assert {int(one["obs"][0]) for one in got} == {0, 1}


@pytest.mark.parametrize("renews", [True, False])
def test_environments_of_others_that_always_fail_are_given_up(kind: Kind, renews: bool) -> None:
    """They never end an episode, and never rest."""
    env = kind.manager(failing={0: range(10**6), 1: range(10**6)}, renews=renews)
    with (
        kind.make(env, kind.policy(kind.actors())) as made,
        pytest.raises(EnvError, match="failed 201 times in a row, environment 1 last"),
    ):
        kind.collect(made, 2)


@pytest.mark.parametrize("cls", BOTH)
def test_infos_of_a_battle_stay_though_a_call_raises(cls: Any) -> None:
    """Out of memory once, or Ctrl-C in a notebook: their episodes are those of the next call."""
    actors = actors_of(2)
    act = actors[1].forward

    def forward(data: dict[int, Any], **setting: Any) -> dict[int, dict[str, Any]]:
        if actors[1].calls == 5:
            actors[1].calls += 1
            raise RuntimeError("once")
        return act(data, **setting)

    actors[1].forward = forward  # type: ignore[method-assign]
    with cls({}, Battle([2, 3]), [actor.mode for actor in actors]) as made:
        with pytest.raises(RuntimeError, match="once"):
            made.collect(20)
        data, infos = made.collect(20)
        assert [len(own) for own in data] == [20, 20]
        assert all("eval_episode_return" in info for own in infos for info in own)


@pytest.mark.parametrize("cls", [SampleSerialCollector, *BOTH])
def test_training_samples_may_be_no_mappings(cls: Any) -> None:
    actors, cfg = actors_of(1 if cls is SampleSerialCollector else 2), {}
    for actor in actors:
        actor.get_train_sample = lambda piece: [(one["done"],) for one in piece]  # type: ignore[method-assign]
    if cls is BattleEpisodeSerialCollector:
        cfg = {"get_train_sample": True}
    if cls is SampleSerialCollector:
        with cls(cfg, Manager((2, 2)), actors[0].mode) as made:
            data = [made.collect(4)]
    else:
        with cls(cfg, Battle((2, 2)), [actor.mode for actor in actors]) as made:
            data, _ = made.collect(4 if cls is BattleSampleSerialCollector else 2)
    assert all(sorted(own) == [(False,), (False,), (True,), (True,)] for own in data)


@pytest.mark.parametrize(
    ("info", "own"),
    [
        ([{"a": 1}, {"a": 2}], {"a": 2}),
        (({"a": 1}, {"a": 2}), {"a": 2}),
        ({"eval_episode_return": [1.0, 2.0], "b": 3}, {"eval_episode_return": 2.0, "b": 3}),
        ({"eval_episode_return": np.array([[1.0], [2.0]])}, {"eval_episode_return": 2.0}),
        ({"eval_episode_return": torch.tensor([1.0, 2.0])}, {"eval_episode_return": 2.0}),
        ({"eval_episode_return": [torch.tensor(1.0), torch.tensor(2.0)]},
         {"eval_episode_return": 2.0}),
        ({}, {}),
    ],
)  # fmt: skip
def test_a_players_part_of_an_info(info: Any, own: dict[str, Any]) -> None:
    ended = "eval_episode_return" in own
    assert infos_of(info, 2, 0, ended=ended)[1] == own
