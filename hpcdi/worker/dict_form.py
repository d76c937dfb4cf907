"""Policies of columns, ours, by dicts: the methods that DI-engine's loops call, in their modes.

`DictForm` gives them to the modes of a `TorchPolicy`: observations, transitions and samples as
dicts go in and out, and the policy sees columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdi.env.contract import pick
from hpcdi.errors import PolicyError
from hpcdi.policy.base import CollectMode, EvalMode, LearnMode, Policy, TrainColumns
from hpcdi.policy.exploration import RandomActor
from hpcdi.policy.spaces import is_normalised
from hpcdi.store.rows import SEQUENCE_LEN
from hpcdi.types import ACTION_MASK, NUMBERS, Array, Columns, Settings, Spaces, Transition
from hpcdi.utils.nested import flatten, share_tensors, split_columns, stack_columns

if TYPE_CHECKING:
    from hpcdi.policy.torch_policy import TorchPolicy


class DictForm:
    """Methods by dicts of a policy of columns, in its modes; see `TorchPolicy`.

    Args:
        policy: the policy.
    """

    def __init__(self, policy: TorchPolicy) -> None:
        self._policy = policy

    def collect(self, mode: CollectMode) -> CollectMode:
        """The mode with its methods by dicts."""
        actor = mode.get_attribute("columnar")
        return mode._replace(
            forward=lambda data, **setting: self._act(actor, data, setting),
            get_train_sample=self._get_train_sample,
        )

    def eval(self, mode: EvalMode) -> EvalMode:
        """The mode with its methods by dicts."""
        actor = mode.get_attribute("columnar")
        return mode._replace(forward=lambda data: self._act(actor, data, {}))

    def learn(self, mode: LearnMode) -> LearnMode:
        """The mode with its methods by dicts; columns are learnt from as before."""

        def forward(data: Any, **kwargs: Any) -> Any:
            if not isinstance(data, Mapping):
                cfg = self._policy.get_attribute("cfg")
                columns = columns_of_samples(data, cfg.discount_factor**cfg.nstep)
                if SEQUENCE_LEN not in columns:
                    self._check_no_sequences()
                data = share_tensors(columns)
            return mode.forward(data, **kwargs)

        return mode._replace(forward=forward)

    def _act(
        self, actor: Any, data: Mapping[int, Any], setting: Settings
    ) -> dict[int, dict[str, Any]]:
        observation = self._stacked(list(data.values()))
        outputs = actor.act(observation, setting, np.array(list(data)))
        return dict(zip(data, split_columns(outputs), strict=True))

    def _stacked(self, values: Sequence[Any]) -> Columns:
        """Observations as columns [envs, ...].

        An environment's observation is as its space has it or, where not every action is legal in
        every state, ``{"observation": ..., "action_mask": [actions]}`` or ``{"action_mask": ...,
        ...}``: actions whose mask is not 0 are legal.
        """
        inner = [unmasked(obs) for obs in values]
        cfg = self._policy.get_attribute("cfg")
        leaves = [leaf for leaf in cfg.model.obs_leaves if leaf.name]
        columns: Columns = {} if leaves else {"observation": np.array(inner)}
        for leaf in leaves:
            column = np.array([np.asarray(pick(obs, leaf.name.split("/"))) for obs in inner])
            # whole numbers that are normalised stay as they are until their mean is subtracted
            if not (
                cfg.normalize.observation and column.dtype.kind in "iu" and is_normalised(leaf)
            ):
                column = column.astype(leaf.dtype, copy=False)
            columns[leaf.column("observation")] = column
        if isinstance(values[0], Mapping) and ACTION_MASK in values[0]:
            if not cfg.TAKES_MASKS:
                name = type(self._policy).__name__
                raise PolicyError(f"{name} knows no action masks; DQN and PPO do")
            columns[ACTION_MASK] = np.array([obs[ACTION_MASK] for obs in values]) != 0
        return columns

    def _get_train_sample(self, transitions: list[Transition]) -> list[Transition]:
        """Samples of consecutive transitions of an episode, with what `train_columns` adds.

        With an n-step return ``reward`` is that, ``next_obs`` and ``done`` are those n steps on,
        and ``value_gamma`` is the discount of the value there.

        Raises:
            PolicyError: what is learnt from is no single transitions, or has an exploration bonus
                or copies with other goals.
        """
        self._check_no_sequences()
        cfg = self._policy.get_attribute("cfg")
        check_no_hindsight(cfg, "collect()")
        if cfg.on_policy and cfg.exploration_bonus.type != "none":
            raise PolicyError(
                "policy.exploration_bonus: samples as dicts have no bonus in their advantages: "
                f"{_BY_COLUMNS}"
            )
        length = np.array([len(transitions)], dtype=np.int32)
        last = self._stacked([transitions[-1]["next_obs"]])
        lazy = _LazyColumns(transitions, self._stacked([row["obs"] for row in transitions]))
        added = dict(self._policy.train_columns(lazy, length, last).columns)
        offset, _ = added.pop("bootstrap_offset", None), added.pop("bootstrap_discount", None)
        samples = [dict(transition) for transition in transitions]
        if offset is not None:
            added["value_gamma"] = (cfg.discount_factor**offset).astype(np.float32)
            for row, (sample, steps) in enumerate(zip(samples, offset.tolist(), strict=True)):
                end = transitions[row + steps - 1]
                sample["next_obs"], sample["done"] = end["next_obs"], end["done"]
        if "n_step_return" in added:  # in the shape that rewards came in
            shape = np.shape(transitions[0]["reward"])
            added["n_step_return"] = added["n_step_return"].reshape(len(samples), *shape)
        for name, column in added.items():
            key = _SAMPLE_KEYS.get(name, name)
            for sample, value in zip(samples, column, strict=True):
                sample[key] = value
        return samples

    def _check_no_sequences(self) -> None:
        cfg = self._policy.get_attribute("cfg")
        if cfg.LEARNS_FROM_SEQUENCES:
            raise PolicyError(
                f"{cfg.type} learns from sequences, which samples as dicts are not: {_BY_COLUMNS}"
            )


_BY_COLUMNS = "collect them by columns, as hpcdi train and hpcdi serial do"


def check_no_hindsight(cfg: Any, method: str) -> None:
    """Check that no copies of episodes with other goals are to be learnt from.

    Args:
        cfg: a policy's settings.
        method: which makes none.

    Raises:
        PolicyError: they are.
    """
    hindsight = getattr(cfg, "hindsight", None)
    if hindsight is not None and hindsight.goals:
        raise PolicyError(
            f"policy.hindsight: {method} adds no copies with other goals; hpcdi train and hpcdi "
            "serial do; or set policy.hindsight.goals=0"
        )


class RandomPolicy:
    """A collect mode that acts uniformly at random, to fill a replay buffer before learning begins.

    All but acting is delegated to another mode, whose contract it keeps (`CollectMode`).

    Args:
        spaces: of the environment: what actions there are.
        collect_mode: the mode that makes transitions and samples.
        seed: of the random numbers.

    Raises:
        PolicyError: actions are continuous and not bounded on both sides.
    """

    def __init__(self, spaces: Spaces, collect_mode: Any, seed: np.random.SeedSequence) -> None:
        self._mode, self._actor = collect_mode, RandomActor(spaces, seed)

    def forward(self, data: Mapping[int, Any], **_setting: Any) -> dict[int, dict[str, Any]]:
        """An action for each environment; a legal one where its observation has a mask."""
        masks = [obs.get(ACTION_MASK) for obs in data.values() if isinstance(obs, Mapping)]
        legal = None
        if masks and len(masks) == len(data) and all(mask is not None for mask in masks):
            legal = np.stack([np.asarray(mask) for mask in masks]) != 0
        actions = self._actor.draw(len(data), legal)
        return dict(zip(data, split_columns(actions), strict=True))

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """See `Actor.act`."""
        return self._actor.act(observation, setting, rows)

    def train_columns(self, *arguments: Any) -> TrainColumns:
        """See `ColumnarActor.train_columns`: those of the other mode."""
        columns: TrainColumns = self._mode.get_attribute("columnar").train_columns(*arguments)
        return columns

    def get_attribute(self, name: str) -> Any:
        """See `Policy.get_attribute`; it acts by columns where the other mode does."""
        value = self._mode.get_attribute(name)
        return self if name == "columnar" else value

    def state_dict(self) -> dict[str, Any]:
        """Empty: nothing is learnt."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Ignored."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mode, name)


# -------------------------------------------------------------------- samples of these, as columns


class _LazyColumns(Mapping[str, Array]):
    """Columns of transitions, each stacked when it is asked for: algorithms read few of them."""

    def __init__(self, transitions: Sequence[Transition], observation: Columns) -> None:
        self._transitions, self._observation = transitions, observation

    def __getitem__(self, name: str) -> Array:
        rows = self._transitions
        if name in self._observation:
            return self._observation[name]
        if name == "terminated":
            return np.array([row["done"] for row in rows], dtype=bool)
        column = np.array([(row if name in row else flatten(row))[name] for row in rows])
        if name != "reward":
            return column
        if column.size == len(rows):  # DI-engine's environments have one as [1]
            column = column.reshape(len(rows))
        return column.astype(np.float32, copy=False)

    def __iter__(self) -> Iterator[str]:
        first = {k: v for k, v in self._transitions[0].items() if k not in ("obs", "next_obs")}
        return iter([*self._observation, "terminated", *flatten(first)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


_SAMPLE_KEYS = {"n_step_return": "reward", "advantage": "adv"}
"""Columns whose key in a sample is another one."""


def columns_of_samples(samples: Sequence[Transition], default_discount: float) -> Columns:
    """Columns of samples as `CollectMode.get_train_sample` returns them; metadata may ride along.

    Args:
        samples: dicts with ``obs`` and any of ``next_obs, reward, done, value_gamma, adv``, with
            ``IS`` or ``weight``, the importance weight, and with other numbers or arrays, which
            keep their names.
        default_discount: of the bootstrapped value, for samples without ``value_gamma``.
    """
    rows = [
        {key: _parts_of(value) if key in _OBSERVATIONS else value for key, value in sample.items()}
        for sample in samples
    ]
    columns = {
        _learnt_name(name): column.astype(np.float32) if column.dtype == np.float64 else column
        for name, column in stack_columns(rows).items()
        if column.dtype.kind in NUMBERS
    }
    one = np.ones(len(samples))
    columns["weight"] = columns.pop("IS", columns.get("weight", one))
    for name, column in columns.items():
        is_number = name in _SINGLE or (name == "action" and column.dtype.kind in "iu")
        if is_number and column.shape[1:] == (1,):  # DI-engine's environments have one as [1]
            columns[name] = column[:, 0]
    for name in ("n_step_return", "weight"):
        if name in columns:
            columns[name] = columns[name].astype(np.float32)
    if "done" in columns:
        discount = columns.pop("value_gamma", default_discount * one)
        alive = ~columns["done"].astype(bool)
        columns["bootstrap_discount"] = (discount * alive).astype(np.float32)
    if "next_action_mask" in columns:
        columns["next_action_mask"] = columns["next_action_mask"] != 0
    return columns


_OBSERVATIONS = ("obs", "next_obs")
_SINGLE = ("n_step_return", "done", "value_gamma", "weight", "advantage")
"""Columns of one number a sample."""
_LEARNT_NAMES = {
    "obs": "observation",
    "next_obs": "next_observation",
    "reward": "n_step_return",
    "adv": "advantage",
}


def _parts_of(obs: Any) -> Any:
    """An observation's arrays in a mapping, apart from its mask; one array alone as it is."""
    inner = _as_mapping(unmasked(obs))
    if isinstance(obs, Mapping) and ACTION_MASK in obs:
        return {"": inner, ACTION_MASK: obs[ACTION_MASK]}
    return inner


def _as_mapping(value: Any) -> Any:
    if isinstance(value, tuple):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        return {str(key): _as_mapping(part) for key, part in value.items()}
    return value


def _learnt_name(name: str) -> str:
    """The column of a sample's key: ``obs//arm`` and ``obs/arm`` are ``observation/arm``."""
    root, _, rest = name.partition("/")
    if rest == ACTION_MASK and root in _OBSERVATIONS:
        return root.replace("obs", ACTION_MASK)
    rest = rest.strip("/")
    return "/".join(filter(None, (_LEARNT_NAMES.get(root, root), rest)))


def unmasked(obs: Any) -> Any:
    """An environment's observation without its mask; ``observation``, where that alone is left."""
    if not isinstance(obs, Mapping):
        return obs
    others = {key: value for key, value in obs.items() if key != ACTION_MASK}
    return others["observation"] if list(others) == ["observation"] else others


def install() -> None:
    """Give all policies of columns their methods by dicts."""
    Policy.dict_form = DictForm
