"""The acting half of every algorithm: modes, actors, and columns to store beside transitions."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from hpcdi.config.policy import ReplayPolicyConfig, TorchPolicyConfig
from hpcdi.policy.acting.network import Normalizer, Parameters
from hpcdi.policy.base import CollectMode, ColumnarActor, EvalMode, Policy, TrainColumns
from hpcdi.policy.returns import n_step_columns
from hpcdi.store.rows import SEQUENCE_LEN
from hpcdi.types import ACTION_MASK, Array, Columns, Settings
from hpcdi.utils.nested import under

_MOST = np.iinfo(np.uint16).max
DISCOUNTED = "discounted_return"
"""Stored: each environment's running discounted return, float32."""


class ActingPolicy(Policy):
    """Base of policies of columns: what acting needs, whatever computes the network.

    An algorithm's methods use

    ``_cfg``: its `Config`, with the environment's spaces filled in.
    ``infer``: the network's output for observations.
    """

    Config: ClassVar[type] = TorchPolicyConfig
    _cfg: TorchPolicyConfig

    _columnar: Any = True  # learners are given columns
    _collecting: Any
    _evaluating: Any

    # ------------------------------------------------------------------ what an algorithm defines

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """Returns actions of a collector, and what is stored with them; see `Actor.act`.

        Masks of legal actions, if the environment has them, are ``observation["action_mask"]``.
        """
        raise NotImplementedError

    def train_columns(
        self,
        transitions: Mapping[str, Array],  # noqa: ARG002
        item_len: Array,  # noqa: ARG002
        last_observation: Columns,  # noqa: ARG002
    ) -> TrainColumns:
        """See `ColumnarActor.train_columns`."""
        return TrainColumns({})

    def prepare_acting(self) -> None:
        """Build what `act` needs beside the network; called in collectors and evaluators."""

    # ------------------------------------------------------------------------- for its methods

    def infer(self, observation: Columns) -> tuple[Array, ...]:
        """The network's output for observations [rows, ...]."""
        raise NotImplementedError

    def infer_last(
        self,
        transitions: Mapping[str, Array],  # noqa: ARG002
        item_len: Array,  # noqa: ARG002
        last_observation: Columns,
    ) -> tuple[Array, ...]:
        """Returns the network's output for the observation after each item's last transition.

        Arguments are those of `train_columns`.
        """
        return self.infer(last_observation)

    def act_greedily(self, observation: Columns) -> Columns:
        """The best actions [rows, ...], and nothing else."""
        raise NotImplementedError

    def has_sequences(self) -> bool:
        """Returns whether transitions are learnt from in sequences."""
        return self._cfg.LEARNS_FROM_SEQUENCES

    def sequence_columns(self, item_len: Array) -> Columns:
        """Returns a column for `train_columns` that says where the sequences for a memory begin.

        ``sequence_len`` uint16 [transitions] is the length of the sequence that begins there, else
        0. Each item is cut into sequences of `collect.unroll_len`; the last one may be shorter.
        For a replay buffer it is what `SequenceRule` says, whatever its stride is by then.
        Without a memory there is no such column, unless the algorithm's `Config` wants it
        (`LEARNS_FROM_SEQUENCES`).
        """
        if not self.has_sequences():
            return {}
        length = self._cfg.collect.unroll_len
        ends = item_len.cumsum(dtype=np.int64).repeat(item_len)
        remaining = ends - np.arange(int(item_len.sum()))  # in its item, this transition included
        if self._cfg.samples_sequences:
            lengths = np.minimum(remaining + 1, _MOST)
        else:
            is_start = (item_len.repeat(item_len) - remaining) % length == 0
            lengths = np.where(is_start, np.minimum(remaining, length), 0)
        return {SEQUENCE_LEN: lengths.astype(np.uint16)}

    def random(self, stream: int) -> np.random.Generator:
        """Returns random numbers that depend on the policy's seed and on `stream` alone."""
        key = (*self._seed.spawn_key, stream)
        return np.random.default_rng(np.random.SeedSequence(self._seed.entropy, spawn_key=key))

    # ---------------------------------------------------------------------------------- its modes

    @property
    def collect_mode(self) -> CollectMode:
        """Methods for a collector."""
        mode = super().collect_mode._replace(get_attribute=with_actor(self, self._collecting))
        return mode if self.dict_form is None else self.dict_form(self).collect(mode)

    @property
    def eval_mode(self) -> EvalMode:
        """Methods for an evaluator."""
        mode = super().eval_mode._replace(get_attribute=with_actor(self, self._evaluating))
        return mode if self.dict_form is None else self.dict_form(self).eval(mode)

    def _init_eval(self) -> None:
        if "collect" not in self._enabled:
            self._init_collect()
        self._evaluating = self._with_memory(EvaluationActor(self))

    def _with_memory(self, actor: ColumnarActor) -> ColumnarActor:
        """Returns an actor that keeps what the network's memory needs; without one itself."""
        return actor

    def _reset_collect(self, data_id: list[int] | None = None) -> None:
        if self._collecting is not self:
            self._collecting.reset(data_id)


class ReplayActing(ActingPolicy):
    """Of algorithms that learn from a replay buffer by n-step returns."""

    Config: ClassVar[type] = ReplayPolicyConfig
    _cfg: ReplayPolicyConfig

    def train_columns(
        self,
        transitions: Mapping[str, Array],
        item_len: Array,
        last_observation: Columns,  # noqa: ARG002
    ) -> TrainColumns:
        """Returns the n-step return, and the row and discount of its bootstrap value."""
        cfg = self._cfg
        n_step = n_step_columns(transitions, item_len, cfg.discount_factor, cfg.nstep)
        if not self.has_sequences():
            return n_step
        # without the views: the successor of a step is in its sequence
        return TrainColumns({**n_step.columns, **self.sequence_columns(item_len)})


class Network(Protocol):
    """A network in numpy, see `hpcdi.policy.acting.network`."""

    def load(self, parameters: Parameters) -> None:
        """Take parameters by their names; they are copied."""
        ...

    def __call__(self, observation: Columns) -> tuple[Array, ...]:
        """The output, float32 [rows, ...] each."""
        ...


class DensePolicy(ActingPolicy):
    """Acts by a network of layers of numbers, in numpy; the weights are a learner's.

    Until they have come it cannot act.
    """

    _takes_arrays = True
    """Attribute of its modes: parameters come as arrays of numpy, not as tensors of torch."""

    def make_dense_network(self) -> Network:
        """Make the network."""
        raise NotImplementedError

    def best(self, output: tuple[Array, ...], legal: Array | None) -> Columns:
        """The best actions [rows, ...] by the network's output; `legal`: None: all are."""
        raise NotImplementedError

    def infer(self, observation: Columns) -> tuple[Array, ...]:
        """See `ActingPolicy.infer`."""
        return self._network(self._normalizer(observation))

    def act_greedily(self, observation: Columns) -> Columns:
        """See `ActingPolicy.act_greedily`."""
        return self.best(
            self._evaluated(self._normalizer(observation)), observation.get(ACTION_MASK)
        )

    def _init_collect(self) -> None:
        self._network = self.make_dense_network()
        self._evaluated = getattr(self._network, "acting", self._network)
        self._normalizer = Normalizer(self._cfg)
        self._collecting = self
        if self._normalizer.returns is not None:
            self._collecting = RewardTracker(self._cfg, self._normalizer, self)
        self.prepare_acting()

    def _load_state_dict_collect(self, state_dict: dict[str, Any]) -> None:
        self._network.load(state_dict["model"])
        self._normalizer.load(state_dict["model"])


class EvaluationActor:
    """The `ColumnarActor` of evaluation: the best actions, or with `eval.sample` drawn ones."""

    def __init__(self, policy: ActingPolicy) -> None:
        self._policy = policy
        self.train_columns = policy.train_columns

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """See `Actor.act`: actions alone."""
        if not self._policy._cfg.eval.sample:
            return self._policy.act_greedily(observation)
        return under(self._policy.act(observation, setting, rows), "action")


class ScalesRewards(Protocol):
    """Statistics of discounted returns."""

    def rewards(self, reward: Array) -> Array:
        """Rewards, scaled and clipped, float32."""
        ...


class RewardTracker:
    """An actor that stores the discounted returns beside its transitions.

    What an on-policy algorithm makes of rewards before they are stored, it makes of scaled ones; a
    replay buffer keeps them as they are, and learners scale.

    Args:
        cfg: the policy's settings.
        normalizer: of its network.
        actor: acts.
    """

    def __init__(
        self, cfg: TorchPolicyConfig, normalizer: ScalesRewards, actor: ColumnarActor
    ) -> None:
        self.act = actor.act
        self._cfg, self._normalizer, self._actor = cfg, normalizer, actor
        self._running = np.zeros(0)

    def step_columns(self, reward: Array, live: Array, over: Array) -> Columns:
        """Follow a step; returns the columns to store. See `ColumnarActor.step_columns`."""
        if len(self._running) != len(reward):
            self._running = np.zeros(len(reward))
        following = self._cfg.discount_factor * self._running + reward
        self._running = np.where(live, following, self._running)
        column = self._running.astype(np.float32)
        self._running[over] = 0.0
        return {DISCOUNTED: column}

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        """See `ColumnarActor.train_columns`."""
        if self._cfg.on_policy:
            reward = self._normalizer.rewards(transitions["reward"])
            transitions = ChainMap({"reward": reward}, transitions)  # type: ignore[arg-type]
        made: TrainColumns = self._actor.train_columns(transitions, item_len, last_observation)
        return made

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """New episodes begin; None: in all rows."""
        if len(self._running):
            self._running[slice(None) if rows is None else list(rows)] = 0.0
        if hasattr(self._actor, "reset"):
            self._actor.reset(rows)


def with_actor(policy: Policy, actor: ColumnarActor) -> Any:
    """Returns `get_attribute` of a mode: ``columnar`` is the mode's actor."""
    return lambda name: actor if name == "columnar" else policy.get_attribute(name)
