"""A team's policies: several players of one environment, each acting by one of several policies.

Each policy is one of the others here (`ppo`, `dqn`, ...), and knows of no team: its rows are the
players that act by it (`players`). All learn in the same process from the same data. Their weights
are one policy version of the run, with the policy's name before each parameter's.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hpcdi.comm.group import allreduce_data, get_world_size
from hpcdi.config.team import TeamConfig
from hpcdi.errors import PolicyError
from hpcdi.policy.acting.base import with_actor
from hpcdi.policy.base import CollectMode, EvalMode, Policy, TrainColumns
from hpcdi.policy.create import create_policy
from hpcdi.policy.players import PolicyGroup
from hpcdi.types import Array, Columns, Settings, Spaces
from hpcdi.utils.nested import column_rows

_FORWARDED = ("collector", "env_steps")  # attributes that are set in all policies, too
_FIRST_STREAM = 1000  # of the random numbers of the policies, one each


class Member(NamedTuple):
    """A policy of a team, alone.

    Attributes:
        group: its players.
        mode: its eval mode.
        spaces: of one of its players: the state is not among them.
    """

    group: PolicyGroup
    mode: EvalMode
    spaces: Spaces


class TeamPolicy(Policy):
    """Policies of a team; see the module.

    Args:
        cfg: the settings.
        enable_field: modes.
        seed: of their random numbers.
        gets_weights: see `create_policy`.
    """

    HOLDS_OTHERS = True
    Config: ClassVar[type] = TeamConfig
    _cfg: TeamConfig

    _columnar: Any = True

    def __init__(
        self,
        cfg: Any = None,
        enable_field: Sequence[str] | None = None,
        *,
        seed: np.random.SeedSequence | None = None,
        gets_weights: bool = False,
    ) -> None:
        self._policies: dict[str, Any] = {}
        self._gets_weights = gets_weights
        super().__init__(cfg, enable_field, seed=seed)

    def _make(self) -> None:
        """Make the policies, with the modes of this one, if they are not there yet."""
        if self._policies:
            return
        cfg = self._cfg
        if not cfg.observation:
            raise PolicyError(
                "the team's environment is not known: see policy.players.with_players"
            )
        self._groups = [PolicyGroup(name, policy, cfg) for name, policy in cfg.policies.items()]
        modes = [mode for mode in self._enabled if mode != "command"]
        for number, group in enumerate(self._groups):
            key = (*self._seed.spawn_key, _FIRST_STREAM + number)
            self._policies[group.name] = create_policy(
                dataclasses.replace(
                    group.policy,
                    cuda=cfg.cuda,
                    priority=cfg.priority,
                    eval=cfg.eval,
                    priority_IS_weight=cfg.priority_IS_weight,
                ),
                modes,
                seed=np.random.SeedSequence(self._seed.entropy, spawn_key=key),
                gets_weights=self._gets_weights,
            )

    def _each(self) -> Iterator[tuple[PolicyGroup, Any]]:
        for group in self._groups:
            yield group, self._policies[group.name]

    def set_attribute(self, name: str, value: object) -> None:
        """Set ``_<name>``, of all policies where it concerns them."""
        super().set_attribute(name, value)
        if name in _FORWARDED:
            for policy in self._policies.values():
                policy.set_attribute(name, value)
        if name == "collector_rows" and isinstance(value, int):  # of a policy: its players
            for group, policy in self._each():
                policy.set_attribute(name, value * len(group.players))

    # ------------------------------------------------------------------------------------ acting

    def _init_collect(self) -> None:
        self._make()
        actors = [policy._collecting for policy in self._policies.values()]
        self._collecting = _TeamActor(self._groups, actors)

    def _init_eval(self) -> None:
        self._make()
        actors = [policy._evaluating for policy in self._policies.values()]
        self._evaluating = _TeamActor(self._groups, actors)

    @property
    def collect_mode(self) -> CollectMode:
        """Methods for a collector."""
        return super().collect_mode._replace(get_attribute=with_actor(self, self._collecting))

    @property
    def eval_mode(self) -> EvalMode:
        """Methods for an evaluator."""
        return super().eval_mode._replace(get_attribute=with_actor(self, self._evaluating))

    def _reset_collect(self, data_id: list[int] | None = None) -> None:
        self._collecting.reset(data_id)

    def _reset_eval(self, data_id: list[int] | None = None) -> None:
        self._evaluating.reset(data_id)

    def _get_takes_arrays(self) -> bool:
        return all(getattr(each, "_takes_arrays", False) for each in self._policies.values())

    def _state_dict_collect(self) -> dict[str, Any]:
        return {
            "model": self._model_of({n: p._state_dict_collect() for n, p in self._policies.items()})
        }

    def _load_state_dict_collect(self, state_dict: dict[str, Any]) -> None:
        for name, policy in self._policies.items():
            model = _below(name, state_dict["model"])
            if getattr(policy, "_takes_arrays", False):  # others of the team may take tensors
                model = {parameter: np.asarray(value) for parameter, value in model.items()}
            policy._load_state_dict_collect({"model": model})

    # ---------------------------------------------------------------------------------- learning

    def _init_learn(self) -> None:
        self._make()

    def _forward_learn(self, data: Mapping[str, Any], **_kwargs: Any) -> dict[str, Any]:
        """Let each policy learn from its players' part of a batch, if there is one.

        A learner without such a part, where others have one, adds zeros to their gradients.

        Returns:
            ``total_loss``, the sum; ``cur_lr`` of the first; the policies' scalars by their names,
            ``<policy>/<scalar>`` where there are several; and ``priority``, the mean over players.
        """
        logs: dict[str, Any] = {}
        losses: list[float] = []
        priorities: list[Array] = []
        parts = [(group, policy, *group.learner_batch(data)) for group, policy in self._each()]
        learning = self._learning([rows is None or len(rows) > 0 for *_, rows in parts])
        for group, policy, columns, rows in itertools.compress(parts, learning):
            log = dict(policy._forward_learn(columns))
            if rows is not None and not len(rows) and not self._cfg.on_policy:
                continue  # its scalars are of no rows; on-policy they are those of all learners
            if (priority := log.pop("priority", None)) is not None:
                priorities.append(_of_team(priority, rows, len(group.players), len(data["reward"])))
            losses.append(log.get("total_loss", 0.0))
            logs.setdefault("cur_lr", log.pop("cur_lr", None))
            prefix = f"{group.name}/" if len(self._groups) > 1 else ""
            logs |= {f"{prefix}{name}": value for name, value in log.items()}
        logs["total_loss"] = sum(losses)
        if priorities:
            logs["priority"] = np.mean(priorities, axis=0)
        return logs

    def _learning(self, have_rows: list[bool]) -> list[bool]:
        """Returns which policies have rows in the batch of any learner.

        Collective, unless all policies learn from whole teams, which always have rows.

        Args:
            have_rows: of each policy, whether it has rows in this learner's batch.
        """
        if get_world_size() == 1 or all(group.is_whole for group in self._groups):
            return have_rows
        import torch  # which collectors do without

        device = next(iter(self._policies.values()))._device
        learners = torch.tensor(have_rows, dtype=torch.float32, device=device)
        allreduce_data(learners, "sum")
        in_any: list[bool] = (learners > 0).tolist()
        return in_any

    @property
    def _model(self) -> Any:
        """The networks of the policies that have one, as one module, by the policies' names."""
        from torch import nn  # which collectors do without

        networks = {n: getattr(p, "_model", None) for n, p in self._policies.items()}
        team = nn.Module()
        team._modules.update({n: each for n, each in networks.items() if each is not None})
        return team

    def set_setting(self, key: str, value: float) -> None:
        """Learn with another value of a setting from the next iteration on.

        Args:
            key: ``policy.learn.NAME`` of all policies, or ``policy.policies.POLICY.learn.NAME``.
            value: the new one.

        Raises:
            PolicyError: it cannot be changed, or there is no such policy.
        """
        for policy, own in self._with(key).values():
            policy.set_setting(own, value)

    def configured(self, key: str) -> dict[str, Any]:
        """Returns by policies what is configured for what `set_setting` may change."""
        of_each = {name: policy.configured(own) for name, (policy, own) in self._with(key).items()}
        return {
            what: {n: one[what] for n, one in of_each.items()} for what in ("value", "schedule")
        }

    def _with(self, key: str) -> dict[str, tuple[Any, str]]:
        """Returns the policies that a key is about, by name, with the key as each has it."""
        of_one = key.removeprefix("policy.policies.")
        if of_one == key:
            return {name: (policy, key) for name, policy in self._policies.items()}
        name, _, own = of_one.partition(".")
        if name not in self._policies:
            raise PolicyError(f"{key!r}: there is no policy {name!r}, only {[*self._policies]}")
        return {name: (self._policies[name], f"policy.{own}")}

    def _state_dict_learn(self) -> dict[str, Any]:
        states = {name: policy._state_dict_learn() for name, policy in self._policies.items()}
        keys = dict.fromkeys(key for state in states.values() for key in state if key != "model")
        others = {key: {n: s[key] for n, s in states.items() if key in s} for key in keys}
        return {"model": self._model_of(states), **others}

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        for name, policy in self._policies.items():
            others = {k: s[name] for k, s in state_dict.items() if k != "model" and name in s}
            policy._load_state_dict_learn({"model": _below(name, state_dict["model"]), **others})

    def _model_of(self, states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {
            f"{name}.{parameter}": value
            for name, state in states.items()
            for parameter, value in state["model"].items()
        }

    def _get_members(self) -> list[Member]:
        """What each policy is when it acts alone, for `hpcdi export`."""
        return [
            Member(group, policy.eval_mode, group.acting_spaces) for group, policy in self._each()
        ]

    def _get_acting_by(self) -> Any:
        """Makes what acts for the team of what acts for each of its policies, in order."""
        return lambda actors: _TeamActor(self._groups, actors)


class _TeamActor:
    """The `ColumnarActor` of a team.

    Args:
        groups: the players of each policy.
        actors: of the policies, in the same order.
    """

    def __init__(self, groups: Sequence[PolicyGroup], actors: Sequence[Any]) -> None:
        self._parts = list(zip(groups, actors, strict=True))

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """See `Actor.act`: columns of each player, ``action/<player>``."""
        outputs: Columns = {}
        count = column_rows(observation)
        rows = np.arange(count) if rows is None else rows
        for group, actor in self._parts:
            numbers = group.rows_of(rows)
            its_setting = {**setting, **setting.get(group.name, {})}
            acted = actor.act(group.observations(observation), its_setting, numbers)
            outputs |= group.outputs(acted)
            if hasattr(actor, "reset") and not group.is_whole:
                # who is not there remembers nothing when it comes; of whole teams memories run on
                actor.reset(numbers[~group.are_acting(observation)])
        return outputs

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """New episodes begin; None: in all rows."""
        for group, actor in self._parts:
            if hasattr(actor, "reset"):
                actor.reset(None if rows is None else group.rows_of(np.asarray(rows, np.int64)))

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        """See `ColumnarActor.train_columns`: columns of each player."""
        made = [
            group.train_columns(actor, transitions, item_len, last_observation)
            for group, actor in self._parts
        ]
        columns = {name: column for each in made for name, column in each.columns.items()}
        views = tuple(view for each in made for view in each.views)
        # stacks of one segment are of one shape: those of other policies are stored as they are
        return TrainColumns(columns, views, next((m.stacks for m in made if m.stacks), ()))


def _below(name: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a policy's parameters, by its own names, of the team's: undoes `_model_of`."""
    prefix = f"{name}."
    return {n.removeprefix(prefix): value for n, value in model.items() if n.startswith(prefix)}


def _of_team(priority: Array, rows: Any, players: int, count: int) -> Array:
    """Returns the priorities of a team's rows, [count]: the mean of its players'.

    Args:
        priority: of the policy's rows.
        rows: their numbers; None: all, in order.
        players: of each row of the team.
        count: rows of the team. One of which no player is there gets the mean of all.
    """
    if rows is None:
        mean: Array = priority.reshape(count, players).mean(axis=1)
        return mean
    team_rows = rows.cpu().numpy() // players
    counts = np.bincount(team_rows, minlength=count)
    total: Array = np.bincount(team_rows, weights=priority, minlength=count)
    return np.where(counts > 0, total / np.maximum(counts, 1), priority.mean())
