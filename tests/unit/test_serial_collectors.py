"""The contract of serial collectors, for all four of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.serial_parts import Actor, Battle, Manager, check, return_of, steps_of, story
from hpcdi.errors import ConfigError, EnvError, PolicyError
from hpcdi.types import Transition
from hpcdi.utils.curves import TensorBoardWriter
from hpcdi.utils.registry import SERIAL_COLLECTOR_REGISTRY
from hpcdi.worker import (
    BattleEpisodeSerialCollector,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    SampleSerialCollector,
    create_serial_collector,
    get_serial_collector_cls,
)

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
        with kind.make(kind.manager(), policy) as made:
            with pytest.raises(ConfigError, match=f"{kind.target}: must be at least 1, not None"):
                made.collect()
            with pytest.raises(ConfigError, match="at least 1, not 0"):
                made.collect(0)

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

    def test_observations_that_are_overwritten(self, kind: Kind) -> None:
        actors = kind.actors()
        with kind.make(kind.manager(in_place=True), kind.policy(actors), deepcopy_obs=True) as made:
            for player, own in enumerate(kind.collect(made, 4)):
                check(own, LENGTHS, player)
        env = kind.manager(in_place=True)
        with kind.make(env, kind.policy(kind.actors())) as made:
            own = kind.collect(made, 4)[0]
        assert len({id(one["obs"]) for one in own}) == len(LENGTHS), "no copies unless asked for"

    def test_tensors_for_the_policy(self, kind: Kind) -> None:
        actors = kind.actors()
        with kind.make(kind.manager(), kind.policy(actors), transform_obs=True) as made:
            for player, own in enumerate(kind.collect(made, 4)):
                check(own, LENGTHS, player)
        for actor in actors:
            given = [obs for data in actor.seen for obs in data.values()]
            given += [value for step in actor.timesteps for value in (step.obs, step.reward)]
            assert {value.dtype for value in given} == {torch.float32}
            assert all(isinstance(step.done, bool) for step in actor.timesteps)

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
            for _ in range(2):
                made._loop.once({})
            returns, lengths = made._loop.envs.take_episodes()
        assert returns.reshape(2, -1)[:, 0].tolist() == [return_of(1, 2)] * 2
        assert lengths.tolist() == [2, 2]

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
        }  # fmt: skip
        for name, values in expected.items():
            values = [float(np.float32(value)) for value in values]
            assert curve(name, "iter") == list(zip((5, 15), values, strict=True)), name
            assert curve(name, "step") == list(zip((4, 12), values, strict=True)), name
            assert vars(records[1])["scalars"][name] == pytest.approx(values[1])
        per_s = [f"avg_{name}_per_sec" for name in ("envstep", "train_sample", "episode")]
        assert {tag.split("/")[1] for tag in events.Tags()["scalars"]} == {*expected, *per_s}
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
