"""The serial collectors: samples or whole episodes, of one policy or of a battle's policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdi.config.fields import setting
from hpcdi.config.roles import (
    BattleSampleCollectorConfig,
    SampleCollectorConfig,
    SerialCollectorConfig,
)
from hpcdi.dataclass import dataclass
from hpcdi.errors import EnvError
from hpcdi.policy.base import actor_of, attribute_of
from hpcdi.roles.collector.loop import Act, Loop, PolicyAgent, quotas
from hpcdi.roles.collector.recorder import Recorder
from hpcdi.store.block import Block
from hpcdi.store.rows import transitions
from hpcdi.store.segment import Segment
from hpcdi.types import Columns, Settings, Transition
from hpcdi.utils.nested import column_rows, concatenate_columns
from hpcdi.worker.collector.base_serial_collector import INF as INF
from hpcdi.worker.collector.base_serial_collector import CollectCall, SerialCollector, unowned
from hpcdi.worker.dict_envs import ForeignEnvs, by_dicts, ours
from hpcdi.worker.dict_form import check_no_hindsight
from hpcdi.worker.dict_policy import Trajectory, TrajectoryRecorder
from hpcdi.worker.errors import NoPolicyError
from hpcdi.worker.replay_buffer.items import without

_MADE_AT = "collect_iter"


class SamplesCollector(SerialCollector):
    """Base of the serial collectors of training samples."""

    def _collect_samples(
        self, call: CollectCall, target: int, train_iter: int
    ) -> list[list[Transition]]:
        """Step until each player whose samples are kept has enough; returns them, marked."""
        recorders = [(player, one) for player, one in enumerate(call.recorders) if one]
        for player, recorder in recorders:
            recorder.length = self._piece_length(player, target)
        samples: list[list[Transition]] = [[] for _ in call.recorders]
        for _ in call.steps():
            for player, recorder in recorders:
                for trajectory in recorder.take():
                    samples[player] += _marked(trajectory.samples, train_iter)
            if all(len(samples[player]) >= target for player, _ in recorders):
                break
        for player, recorder in recorders:
            if self._attribute("on_policy", False, player):
                recorder.drop_open()  # another policy acts from here on
        return samples


class EpisodesCollector(SerialCollector):
    """Base of the serial collectors of whole episodes.

    Short episodes are not preferred: in a foreign manager, only as many episodes begin as a call
    returns, and an environment without one rests. Managers of ours step all environments together:
    what is running at the end of a call continues in the next one. If a policy is on-policy,
    episodes begin anew in each call, and each environment contributes its share.
    """

    def _collect_episodes(
        self, amount: int | None, setting: Any, train_iter: int
    ) -> tuple[CollectCall, list[list[Trajectory]]]:
        """Step until each player has so many whole episodes; returns the call, and them."""
        target = self._episode_target(amount)
        players = range(len(self._policies()))
        shares: list[int] | None = None
        if ours(self._env) is not None and any(
            self._attribute("on_policy", False, player) for player in players
        ):
            self.reset_env()
            shares = quotas(target, self._env.env_num)
        call = self._begin(setting, train_iter, episodes=target)
        for recorder in call.recorders:
            recorder.quota = shares
        for _ in call.steps():
            if min(recorder.finished for recorder in call.recorders) >= target:
                break
        if isinstance(call.loop.envs, ForeignEnvs):
            call.loop.envs.settle()  # the next call begins with all of them
        return call, [recorder.take(target) for recorder in call.recorders]


class SampleSerialCollector(SamplesCollector):
    """Collects a number of training samples; see `SerialCollector` for the arguments.

    Trajectories continue in the next call, so that no step is lost; what an on-policy policy has
    not finished at the end of a call is dropped, as another policy acts from there on. In a process
    group its counts are those of all ranks, and `collect` is collective.
    """

    Config = SampleCollectorConfig
    _sums_ranks = True
    _chance: _NoPolicy | None = None
    """What has acted at random where there was no policy."""

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool = True,
        random_collect: bool = False,
        record_random_collect: bool = True,
        policy_kwargs: Settings | None = None,
        level_seeds: Mapping[int, int] | Sequence[int] | None = None,
    ) -> list[Transition]:
        """Collect training samples as the policy's ``get_train_sample`` makes them.

        Args:
            n_sample: how many; default: the policy's attribute ``n_sample``.
            train_iter: train iterations of the policy; marked on each sample as ``collect_iter``.
            drop_extra: return exactly `n_sample`: further samples are lost.
            random_collect: fill a buffer before learning begins; by the collector's policy (of
                hpcdi at random: ``policy_kwargs={"random": True}``), or where it has none by
                actions that the environments choose. Then samples are bare transitions, ``done``
                also at a time limit: they do not go with those of a policy into one buffer.
            record_random_collect: report such episodes like others; steps always count.
            policy_kwargs: for the policy's ``forward``, e.g. ``{"eps": 0.1}``.
            level_seeds: seed of the level of each environment, by its number (a mapping, a
                sequence or a tensor), marked on its samples as ``seed``.

        Raises:
            ConfigError: the number of samples is unknown.
            NoPolicyError: there is no policy, and `random_collect` is false.
        """
        if isinstance(self._policy, _NoPolicy):
            self._policy = None
        if random_collect and self._policy is None and self._env is not None:
            if self._chance is None or self._chance.env is not self._env:
                self._chance = _NoPolicy(self._env)  # its draws go on from call to call
            self.reset_policy(self._chance)
        target = self._target(n_sample, "n_sample")
        if target < 1:
            return []
        call = self._begin(policy_kwargs, train_iter, level_seeds)
        if self._records is not None:
            self._records.actor.passes_state = not random_collect
        (samples,) = self._collect_samples(call, target, train_iter)
        is_shown = record_random_collect or not random_collect
        call.report(self._report, len(samples), train_iter, is_shown=is_shown)
        return samples[:target] if drop_extra else samples

    def collect_columns(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Settings | None = None,
        *,
        act: Act | None = None,
        keep: Callable[[Segment], None] | None = None,
    ) -> Columns:
        """Collect transitions as columns, name -> [transitions, ...]: the fast path.

        All environments step together until there are `n_sample` transitions or a few more; every
        trajectory is cut at the end of the call.

        Args:
            n_sample: see `collect`.
            train_iter: train iterations of the policy, for reports.
            policy_kwargs: for the policy's ``act``.
            act: acts instead of the policy, e.g. at random.
            keep: called with the rows that hold the same transitions, as a shard would.

        Raises:
            PolicyError: the policy wants dicts, or copies with other goals (`policy.hindsight`).
            EnvError: the environments are foreign.
        """
        target = self._target(n_sample, "n_sample")
        if target < 1:
            return {}
        actor, envs = actor_of(self._policy), ours(self._env)
        check_no_hindsight(attribute_of(self._policy, "cfg", None), "collect_columns()")
        if envs is None:
            raise EnvError(
                f"{self._env!r} is none of hpcdi's managers: it has no columns; call collect() for "
                "lists of samples"
            )
        # twice the room: steps in which an environment is being reset make no transition
        recorder = Recorder(envs, 2 * math.ceil(target / envs.env_num), actor)
        if self._records is not None:
            self._leave_loop()  # trajectories of collect() end here: these steps would be missing
        if self._loop is None:
            self._loop = Loop(envs, PolicyAgent(actor))
        loop = self._loop
        loop.agent, loop.recorder = PolicyAgent(actor), recorder
        self._follow_resets(loop)
        call = CollectCall(self._env, loop, policy_kwargs, act)
        parts: list[Columns] = []
        recorded = collected = 0
        for count in call.steps():
            recorded += count
            if collected + recorded >= target or loop.must_cut:
                segment = loop.cut(train_iter)
                if segment is not None:
                    segment = segment.copy()
                    if keep is not None:
                        keep(segment)
                parts.append(_columns_of(segment))
                recorded = 0
                collected += column_rows(parts[-1])  # without those of failed environments
            if collected >= target:
                break
        call.report(self._report, collected, train_iter)
        return concatenate_columns(parts)


class EpisodeSerialCollector(EpisodesCollector):
    """Collects a number of whole episodes; see `SerialCollector` for the arguments.

    Which episodes: see `EpisodesCollector`.
    """

    @dataclass(frozen=True)
    class Config(SerialCollectorConfig):
        """Settings of the collector of episodes."""

        type: str = "episode"
        get_train_sample: bool = setting(
            False, "return training samples of all episodes; else each episode as a list"
        )
        reward_shaping: bool = setting(
            False, "apply the environment manager's reward_shaping to each episode"
        )

    _cfg: Config

    def collect(
        self,
        n_episode: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Settings | None = None,
    ) -> list[Any]:
        """Collect whole episodes, each a list of transitions; or the training samples of all.

        Args:
            n_episode: how many, at least one of each environment; default: the policy's attribute
                ``n_episode``.
            train_iter: train iterations of the policy; marked on each sample as ``collect_iter``.
            policy_kwargs: for the policy's ``forward``.

        Raises:
            ConfigError: the number of episodes is unknown or too small.
        """
        call, (taken,) = self._collect_episodes(n_episode, policy_kwargs, train_iter)
        episodes = [trajectory.samples for trajectory in taken]
        call.report(self._report, sum(map(len, episodes)), train_iter)
        if self._cfg.get_train_sample:
            return [sample for episode in episodes for sample in episode]
        return episodes

    def _shaped(self, env: int, trajectory: list[Transition]) -> list[Transition]:
        """An episode as its environment shapes it, in place or anew."""
        episode = self._prepared(0, trajectory)
        if not self._cfg.reward_shaping:
            return episode
        shaped = by_dicts(self._env).reward_shaping(env, episode)
        return episode if shaped is None else shaped

    def _recorder(self, player: int) -> TrajectoryRecorder:  # noqa: ARG002
        make, shape = unowned(self._finished), unowned(self._shaped)
        return TrajectoryRecorder(self._env.env_num, math.inf, make, shape=shape)

    def _finished(self, episode: list[Transition]) -> list[Transition]:
        """An episode as it is returned: itself, or training samples."""
        return self._policy.get_train_sample(episode) if self._cfg.get_train_sample else episode


class BattleSerialCollector(SerialCollector):
    """Base of the serial collectors of battles; the policy is a list, one a player."""

    def _checked_policy(self, policy: Any) -> list[Any]:
        if not isinstance(policy, list | tuple) or len(policy) < 2 or hasattr(policy, "forward"):
            raise NoPolicyError(
                f"{type(self).__name__} takes a list of policies, one for each player, at least two"
            )
        return list(policy)

    def _attribute(self, name: str, default: Any, player: int = 0) -> Any:
        """See `SerialCollector._attribute`; or one of its settings, where DI-engine reads it."""
        cfg = attribute_of(self._policies()[player], "cfg", None)
        settings = cfg if name == "on_policy" else getattr(cfg, "collect", None)
        usual = settings.get(name) if isinstance(settings, Mapping) else default
        return super()._attribute(name, usual, player)

    def _reported(
        self, call: CollectCall, samples: int, train_iter: int
    ) -> list[list[dict[str, Any]]]:
        """Add a call to the report; returns each player's infos, with returns: one an episode."""
        ended = call.report(self._report, samples, train_iter)
        infos = self._records.take_infos() if self._records else []
        for episodes, of_player in zip(ended, infos, strict=True):
            for info, total in zip(of_player, episodes.returns.tolist(), strict=True):
                info.setdefault("eval_episode_return", total)
        return infos


class BattleSampleSerialCollector(BattleSerialCollector, SamplesCollector):
    """Collects training samples of a battle of n policies; see `SerialCollector`.

    A policy whose attribute ``collect_data`` is false plays, but its samples are not collected.
    """

    Config = BattleSampleCollectorConfig

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool = True,
        policy_kwargs: Settings | list[Settings] | None = None,
    ) -> tuple[list[list[Transition]], list[list[dict[str, Any]]]]:
        """Collect training samples of each player.

        Args:
            n_sample: samples of each collected player; default: the first policy's attribute, or
                its setting ``collect.n_sample``.
            train_iter: train iterations of the policies; marked on samples as ``collect_iter``.
            drop_extra: return exactly `n_sample` of each; further samples are lost.
            policy_kwargs: for the policies' ``forward``; a list has one mapping a player.

        Returns:
            Samples of each player (empty where they are not collected), and for each player a list
            of infos, one for each episode that ended: the environment's last one for that player,
            with ``eval_episode_return``.
        """
        target = self._target(n_sample, "n_sample")
        if target < 1:
            return [[] for _ in self._policy], [[] for _ in self._policy]
        call = self._begin(policy_kwargs, train_iter)
        samples = self._collect_samples(call, target, train_iter)
        infos = self._reported(call, max(map(len, samples)), train_iter)
        last = target if drop_extra else None
        return [of_player[:last] for of_player in samples], infos

    def _is_kept(self, player: int) -> bool:
        policy = self._policy[player]
        return bool(getattr(policy, "collect_data", attribute_of(policy, "collect_data", True)))


class BattleEpisodeSerialCollector(BattleSerialCollector, EpisodesCollector):
    """Collects whole episodes of a battle of two policies; see `SerialCollector`.

    Which episodes: see `EpisodesCollector`.
    """

    @dataclass(frozen=True)
    class Config(SerialCollectorConfig):
        """Settings of the collector of a battle's episodes."""

        type: str = "episode_1v1"
        get_train_sample: bool = setting(
            False, "return training samples of all episodes; else each episode as a list"
        )

    _cfg: Config

    def _checked_policy(self, policy: Any) -> list[Any]:
        policies = super()._checked_policy(policy)
        if len(policies) > 2:
            raise NoPolicyError(
                f"{type(self).__name__} takes two policies, not {len(policies)}; "
                "BattleSampleSerialCollector takes more"
            )
        return policies

    def collect(
        self,
        n_episode: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Settings | list[Settings] | None = None,
    ) -> tuple[list[list[Any]], list[list[dict[str, Any]]]]:
        """Collect whole episodes of each player.

        Args:
            n_episode: how many, at least one of each environment; default: the first policy's
                attribute ``n_episode``, or its setting ``collect.n_episode``.
            train_iter: train iterations of the policies; marked on samples as ``collect_iter``.
            policy_kwargs: for the policies' ``forward``; a list has one mapping a player.

        Returns:
            For each player its episodes, each a list of transitions, or training samples of all;
            and for each player a list of infos, one for each of these episodes: see
            `BattleSampleSerialCollector`.
        """
        call, taken = self._collect_episodes(n_episode, policy_kwargs, train_iter)
        data: list[list[Any]] = [
            [_marked(trajectory.samples, train_iter) for trajectory in of_player]
            for of_player in taken
        ]
        count = max(sum(map(len, of_player)) for of_player in data)
        self._reported(call, count, train_iter)
        infos = [[trajectory.info or {} for trajectory in of_player] for of_player in taken]
        if self._cfg.get_train_sample:
            data = [[sample for episode in of_player for sample in episode] for of_player in data]
        return data, infos

    def _recorder(self, player: int) -> TrajectoryRecorder:
        make = self._samples if self._cfg.get_train_sample else self._prepared
        return TrajectoryRecorder(self._env.env_num, math.inf, unowned(make, player))


class _NoPolicy:
    """Collects where there is no policy: the environments choose actions; samples are transitions.

    Args:
        env: the environment manager.
    """

    def __init__(self, env: Any) -> None:
        self.env, self._by_dicts = env, by_dicts(env)

    def forward(self, data: Mapping[int, Any], **_setting: Any) -> dict[int, dict[str, Any]]:
        actions = self._by_dicts.random_action()
        return {env: {"action": actions[env]} for env in data}

    def process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> Transition:
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            "action": output["action"],
            "reward": timestep.reward,
            "done": timestep.done,
        }

    def get_train_sample(self, trajectory: list[Transition]) -> list[Transition]:
        return trajectory

    def reset(self, data_id: list[int] | None = None) -> None:
        pass


def _marked(samples: list[Any], train_iter: int) -> list[Any]:
    """Samples that say of which train iteration their policy is, where they are mappings.

    Those that do not yet are copied: a policy may keep its own. Dicts stay of their class.
    """
    marked = []
    for sample in samples:
        is_unmarked = isinstance(sample, Mapping) and _MADE_AT not in sample
        marked.append(without(sample) if is_unmarked else sample)
        if is_unmarked:
            marked[-1][_MADE_AT] = train_iter
    return marked


def _columns_of(segment: Segment | None) -> Columns:
    if segment is None:
        return {}
    block = Block(dict(segment.columns), segment.items, {}, segment.views, segment.tail_rows)
    return transitions(block)
