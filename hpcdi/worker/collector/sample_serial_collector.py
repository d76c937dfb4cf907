"""Collecting a number of training samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdi.errors import PolicyError
from hpcdi.store.block import Block
from hpcdi.store.builder import Segment
from hpcdi.store.rows import transitions
from hpcdi.types import Columns, Settings, Transition
from hpcdi.utils.nested import column_rows, concatenate_columns
from hpcdi.utils.registry import SERIAL_COLLECTOR_REGISTRY
from hpcdi.worker.collector.base_serial_collector import (
    SerialCollector,
    SerialCollectorConfig,
    attribute_of,
    marked,
    piece_length,
)
from hpcdi.worker.collector.rollout import ColumnarForm, TransitionForm, columnar_actor
from hpcdi.worker.collector.session import Session
from hpcdi.worker.collector.trajectory import TransitionRecorder


@SERIAL_COLLECTOR_REGISTRY.register("sample")
class SampleSerialCollector(SerialCollector):
    """Collects as many training samples as are asked for; see `SerialCollector` for the arguments.

    Trajectories go on from one call to the next, so that no step is lost; those of a policy that
    learns on-policy are cut at the end of each call.
    """

    @dataclass(frozen=True)
    class Config(SerialCollectorConfig):
        """Settings of the collector of samples."""

        type: str = "sample"

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool = True,
        random_collect: bool = False,
        record_random_collect: bool = True,
        policy_kwargs: Settings | None = None,
        level_seeds: Mapping[int, int] | None = None,
    ) -> list[Transition]:
        """Training samples as the policy's ``get_train_sample`` gives them.

        Args:
            n_sample: how many; by default the policy's attribute ``n_sample``.
            train_iter: train iterations of the policy; marked on each sample as ``collect_iter``.
            drop_extra: give exactly `n_sample`: what the last trajectories gave besides is lost.
            random_collect: act at random, to fill a buffer before learning begins.
            record_random_collect: count and draw such steps like others.
            policy_kwargs: for the policy's forward, e.g. ``{"eps": 0.1}``.
            level_seeds: environment -> seed of its level, marked on its samples as ``seed``.

        Raises:
            ConfigError: it is not known how many samples to collect.
        """
        target = self._target(n_sample, "n_sample")
        form, on_policy = self._the_form(), bool(attribute_of(self._policy, "on_policy", False))
        recorder: TransitionRecorder = form.recorder
        recorder.length = piece_length(self._policy, target, self._env.env_num)
        act = _at_random(self._env) if random_collect else None
        session = Session(self._env, form, policy_kwargs, act)
        unroll, may_cut = int(attribute_of(self._policy, "unroll_len", 1)), on_policy
        samples: list[Transition] = []
        for _ in session.steps():
            samples += _samples_of(recorder, train_iter, level_seeds)
            if may_cut and len(samples) + recorder.open_transitions // unroll >= target:
                may_cut = False  # once: pieces that are too short may give no sample
                recorder.close_all()
                samples += _samples_of(recorder, train_iter, level_seeds)
            if len(samples) >= target:
                break
        if on_policy:  # another policy acts from here on
            recorder.close_all()
            samples += _samples_of(recorder, train_iter, level_seeds)
        if record_random_collect or not random_collect:
            session.report(self._report, len(samples), train_iter)
        else:
            form.take_episodes()
        return samples[:target] if drop_extra else samples

    def collect_columns(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Settings | None = None,
        *,
        act: Callable[[Any, Settings], Columns] | None = None,
    ) -> Columns:
        """Transitions as columns, name -> [transitions, ...]: the fast way, for policies that can.

        All environments step together until there are `n_sample` transitions or a few more; every
        trajectory is cut at the end of the call.

        Args:
            n_sample: see `collect`.
            train_iter: train iterations of the policy, for reports.
            policy_kwargs: for the policy's `act`.
            act: acts instead of the policy, e.g. at random.

        Raises:
            PolicyError: the policy knows no columns.
        """
        target = self._target(n_sample, "n_sample")
        actor = columnar_actor(self._policy)
        if actor is None:
            raise PolicyError(
                f"the policy {self._policy!r} knows no columns (its attribute 'columnar' has no "
                "act); call collect() for lists of samples"
            )
        # twice the room: steps in which an environment is being reset make no transition
        form = ColumnarForm(self._env, actor, 2 * math.ceil(target / self._env.env_num))
        self._form = None  # trajectories of collect() end here: these steps would be missing
        session = Session(self._env, form, policy_kwargs, act)
        parts: list[Columns] = []
        under_way = made = 0
        for count in session.steps():
            under_way += count
            if made + under_way >= target or form.must_cut:
                parts.append(_columns_of(form.cut(train_iter)))
                under_way = 0
                made += column_rows(parts[-1])  # failed environments' are not in it
            if made >= target:
                break
        session.report(self._report, made, train_iter)
        return concatenate_columns(parts)

    def _make_form(self) -> TransitionForm:
        return self._transition_form(self._recorder(self._policy, 1, self._policy.get_train_sample))


def _samples_of(
    recorder: TransitionRecorder, train_iter: int, level_seeds: Mapping[int, int] | None
) -> list[Transition]:
    """Samples of the pieces that were closed, marked with where they come from."""
    samples = []
    for piece in recorder.take():
        level = {} if level_seeds is None else {"seed": level_seeds[piece.env]}
        samples += marked(piece.samples, train_iter, **level)
    return samples


def _columns_of(segment: Segment | None) -> Columns:
    if segment is None:
        return {}
    block = Block(segment.columns, segment.items, {}, segment.views, segment.tail_rows)
    return transitions(block)


def _at_random(envs: Any) -> Callable[[Any, Settings], dict[int, Any]]:
    """Acts at random in the environments that wait."""

    def act(observation: Mapping[int, Any], _setting: Settings) -> dict[int, Any]:
        actions = envs.random_action()
        return {env: {"action": actions[env]} for env in observation}

    return act
