"""The contract between policies and workers: four modes, each a named tuple of bound methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from hpcdi.config.compat import Configurable
from hpcdi.config.fields import ComponentConfig
from hpcdi.config.policy import PolicyConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import PolicyError
from hpcdi.types import Array, Columns, RowView, Settings, Transition


class LearnMode(NamedTuple):
    """Methods for a learner.

    `forward(data)` learns from a batch: a list of dicts, one a sample, or, if the policy's
    attribute ``columnar`` is true, a dict of torch tensors [batch, ...]. It returns a dict of
    Python scalars, or a list of them, one an update; ``priority`` is an array or list [batch].
    """

    forward: Callable[..., Any]
    reset: Callable[..., None]
    info: Callable[[], str]
    monitor_vars: Callable[[], list[str]]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]


def owner_of(mode: object) -> Any:
    """Returns the policy whose bound methods a mode holds; None: it holds other functions."""
    return getattr(getattr(mode, "set_attribute", None), "__self__", None)


def attribute_of(policy: object, name: str, default: object) -> Any:
    """Returns an attribute of a policy, or mode, of any kind; `default` if it has none."""
    get = getattr(policy, "get_attribute", None)
    try:
        return default if get is None else get(name)
    except (NotImplementedError, AttributeError, KeyError):
        return default


class CollectMode(NamedTuple):
    """Methods for a collector.

    `forward({env_id: obs}, **setting)` returns ``{env_id: {"action": ...}}``.
    If the policy's attribute ``columnar`` is a `ColumnarActor`, it is called instead of `forward`.
    """

    forward: Callable[..., Any]
    process_transition: Callable[..., Transition]
    get_train_sample: Callable[..., Any]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]


class EvalMode(NamedTuple):
    """Methods for an evaluator; see `CollectMode`."""

    forward: Callable[..., Any]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]


class CommandMode(NamedTuple):
    """Methods for the commander on rank 0: settings for learners, collectors and evaluators."""

    get_setting_learn: Callable[[Settings], dict[str, Any]]
    get_setting_collect: Callable[[Settings], dict[str, Any]]
    get_setting_eval: Callable[[Settings], dict[str, Any]]


@dataclass(frozen=True)
class TrainColumns:
    """Columns that a policy adds to transitions before they are stored.

    Attributes:
        columns: name -> [transitions, ...], beside the observation, action, reward, flags and the
            policy's outputs, which are stored anyway.
        views: columns that the learner reads at other rows of stored ones.
        stacks: outputs of acting that are stacks [transitions, k, ...], each moved on by one from
            that of the step before: what is in several of them is stored once.
    """

    columns: Columns
    views: tuple[RowView, ...] = ()
    stacks: tuple[str, ...] = ()


class Actor(Protocol):
    """Acts in many environments at once. A row is a seat of one of them."""

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """Returns actions, and columns to store beside them, each [rows, ...].

        Args:
            observation: ``observation`` or, if it has several arrays, ``observation/<name>``; and
                ``action_mask``, if not every action is legal; each [rows, ...]. The arrays are
                overwritten in the next step but one.
            setting: what the command mode asks for.
            rows: numbers of the rows that act; None: all, in order.

        Returns:
            ``action`` or, if it has several parts, ``action/<name>``, discrete ones counted from 0;
            and what else is stored with each transition.
        """
        ...


class ColumnarActor(Actor, Protocol):
    """What acts for a policy's mode.

    Two more methods are optional. ``reset(rows)`` is called with the numbers of rows whose episodes
    have ended or failed (None: all rows); an actor with a memory has it. ``step_columns(reward,
    live, over)``, all [rows], is called after each step and returns columns [rows, ...] to store
    beside the step's: `live` rows completed a transition, in `over` rows the episode ended or
    failed.
    """

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        """Returns columns to add to transitions.

        Args:
            transitions: name -> [transitions, ...], item after item: observations, ``reward``
                (float32), ``terminated, truncated`` (bool) and the outputs of `act`.
            item_len: transitions of each item, int32 [items]; an item is a piece of one episode.
            last_observation: observation after each item's last transition, columns [items, ...].
        """
        ...


def actor_of(mode: Any) -> ColumnarActor:
    """Returns what acts for a policy's mode: its attribute ``columnar``.

    Raises:
        PolicyError: it has none: it is a policy of dicts.
    """
    actor = attribute_of(mode, "columnar", None)
    if not hasattr(actor, "act"):
        raise PolicyError(
            f"the policy {mode!r} knows no columns: its attribute 'columnar' has no act(observation"
            ", setting, rows), see hpcdi.policy.base.ColumnarActor"
        )
    columnar: ColumnarActor = actor
    return columnar


class Policy(Configurable):
    """Base of policies: builds the enabled modes and answers workers' questions by attributes.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        enable_field: modes to build, of "learn", "collect", "eval", "command".
        seed: of this policy's random numbers, in this process.
    """

    Config: ClassVar[type] = PolicyConfig
    _cfg: PolicyConfig
    MODES = ("learn", "collect", "eval", "command")
    SCALARS: ClassVar[tuple[str, ...]] = ("total_loss",)
    """Names of what an update says of itself, beside the learning rate."""
    HOLDS_OTHERS: ClassVar[bool] = False
    """True if it consists of policies, and takes ``gets_weights`` for them; see `create_policy`."""
    dict_form: ClassVar[Any] = None
    """Gives the modes of a policy of columns their methods by dicts, for DI-engine's loops;
    `hpcdi.worker` sets it, to `hpcdi.worker.dict_form.DictForm`."""

    def __init__(
        self,
        cfg: Mapping[str, Any] | ComponentConfig | None = None,
        enable_field: Sequence[str] | None = None,
        *,
        seed: np.random.SeedSequence | None = None,
    ) -> None:
        self._cfg = self.parse_config(cfg)
        self._seed = seed if seed is not None else np.random.SeedSequence(0)
        wanted = set(self.MODES if enable_field is None else enable_field)
        unknown = wanted - set(self.MODES)
        if unknown:
            raise PolicyError(f"no policy mode {sorted(unknown)}; there are {self.MODES}")
        self._enabled = tuple(mode for mode in self.MODES if mode in wanted)
        for mode in self._enabled:
            getattr(self, f"_init_{mode}")()

    @property
    def learn_mode(self) -> LearnMode:
        """Methods for a learner."""
        self._demand("learn")
        return LearnMode(
            forward=self._forward_learn,
            reset=self._reset_learn,
            info=self.__repr__,
            monitor_vars=self._monitor_vars_learn,
            get_attribute=self.get_attribute,
            set_attribute=self.set_attribute,
            state_dict=self._state_dict_learn,
            load_state_dict=self._load_state_dict_learn,
        )

    @property
    def collect_mode(self) -> CollectMode:
        """Methods for a collector."""
        self._demand("collect")
        return CollectMode(
            forward=self._forward_collect,
            process_transition=self._process_transition,
            get_train_sample=self._get_train_sample,
            reset=self._reset_collect,
            get_attribute=self.get_attribute,
            set_attribute=self.set_attribute,
            state_dict=self._state_dict_collect,
            load_state_dict=self._load_state_dict_collect,
        )

    @property
    def eval_mode(self) -> EvalMode:
        """Methods for an evaluator."""
        self._demand("eval")
        return EvalMode(
            forward=self._forward_eval,
            reset=self._reset_eval,
            get_attribute=self.get_attribute,
            set_attribute=self.set_attribute,
            state_dict=self._state_dict_eval,
            load_state_dict=self._load_state_dict_eval,
        )

    @property
    def command_mode(self) -> CommandMode:
        """Methods for the commander."""
        self._demand("command")
        return CommandMode(
            self._get_setting_learn, self._get_setting_collect, self._get_setting_eval
        )

    def get_attribute(self, name: str) -> Any:
        """Returns ``_get_<name>()``, else ``_<name>``.

        Raises:
            NotImplementedError: this policy has neither.
        """
        getter = getattr(self, f"_get_{name}", None)
        if getter is not None:
            return getter()
        try:
            return getattr(self, f"_{name}")
        except AttributeError:
            raise NotImplementedError(f"{type(self).__name__} has no attribute {name!r}") from None

    def set_attribute(self, name: str, value: object) -> None:
        """Set ``_<name>``."""
        setattr(self, f"_{name}", value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(modes={list(self._enabled)})"

    def _demand(self, mode: str) -> None:
        if mode not in self._enabled:
            raise PolicyError(f"the policy was built with modes {self._enabled}, not with {mode!r}")

    # Attributes that workers ask for.

    def _get_batch_size(self) -> int:
        return int(self._cfg.learn.batch_size)

    def _get_n_sample(self) -> int:
        return int(self._cfg.collect.n_sample)

    def _get_n_episode(self) -> int | None:
        return None  # collected by samples, not by episodes

    def _get_device(self) -> str:
        return "cuda" if self._cfg.cuda and "learn" in self._enabled else "cpu"

    def _get_unroll_len(self) -> int:
        return int(self._cfg.collect.unroll_len)

    def _get_on_policy(self) -> bool:
        return bool(self._cfg.on_policy)

    def _get_export_module(self) -> Any:
        """An `nn.Module` that acts as the eval mode does; see `hpcdi.policy.networks.Greedy`."""
        raise NotImplementedError

    # Defined by an algorithm. `_init_<mode>` is called once for each enabled mode.

    def _init_learn(self) -> None:
        raise NotImplementedError

    def _init_collect(self) -> None:
        raise NotImplementedError

    def _init_eval(self) -> None:
        raise NotImplementedError

    def _init_command(self) -> None:
        """Nothing to build: settings follow from `Config`."""

    def _forward_learn(self, data: Any, **kwargs: Any) -> dict[str, Any] | list[dict[str, Any]]:
        raise NotImplementedError

    def _forward_collect(self, data: dict[int, Any], **kwargs: Any) -> dict[int, dict[str, Any]]:
        raise NotImplementedError(self._no_dicts())

    def _forward_eval(self, data: dict[int, Any]) -> dict[int, dict[str, Any]]:
        raise NotImplementedError(self._no_dicts())

    def _no_dicts(self) -> str:
        return (
            f"{type(self).__name__} has no methods by dicts; a policy of columns has them once "
            "hpcdi.worker is imported"
        )

    def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> Transition:
        """A transition with all outputs of the policy; ``done``: the episode terminated."""
        info = timestep.info
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            **policy_output,
            "reward": np.float32(timestep.reward),
            "done": bool(info.get("terminated", timestep.done)),
            "truncated": bool(info.get("truncated", False)),
        }

    def _get_train_sample(self, transitions: list[Transition]) -> list[Transition]:
        raise NotImplementedError(self._no_dicts())

    def _state_dict_learn(self) -> dict[str, Any]:
        raise NotImplementedError

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        raise NotImplementedError

    def _state_dict_collect(self) -> dict[str, Any]:
        raise NotImplementedError

    def _load_state_dict_collect(self, state_dict: dict[str, Any]) -> None:
        raise NotImplementedError

    def _state_dict_eval(self) -> dict[str, Any]:
        return self._state_dict_collect()

    def _load_state_dict_eval(self, state_dict: dict[str, Any]) -> None:
        self._load_state_dict_collect(state_dict)

    def _monitor_vars_learn(self) -> list[str]:
        return [*self.SCALARS, "cur_lr"]

    def _reset_learn(self, data_id: list[int] | None = None) -> None:
        """Nothing to reset; policies with memory override these three."""

    def _reset_collect(self, data_id: list[int] | None = None) -> None:
        """See `_reset_learn`."""

    def _reset_eval(self, data_id: list[int] | None = None) -> None:
        """See `_reset_learn`."""

    def _get_setting_learn(self, _info: Settings) -> dict[str, Any]:
        return {}

    def _get_setting_collect(self, info: Settings) -> dict[str, Any]:
        return self._cfg.collect_setting(info)

    def _get_setting_eval(self, _info: Settings) -> dict[str, Any]:
        return {}
