"""The players of a team as rows of the policies that they act by; see `hpcdi.env.team`.

A team is one row of an environment, a policy's row is one of its players. What lies between is
here: a `PolicyGroup` has the players of a policy, and makes its columns of the team's and back.
Rows of a policy are players of one step beside each other: ``row of the team * players + player``.
Those that a policy with a memory learns from are one player after the other instead: sequences are
whole. Of one that learns from whole teams, sequences are the team's, and a row is a player's in one
of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.algorithms import VDNConfig
from hpcdi.config.policy import TorchPolicyConfig
from hpcdi.config.team import TeamConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.policy.base import ColumnarActor, TrainColumns
from hpcdi.policy.returns import following
from hpcdi.policy.spaces import STATE, with_spaces
from hpcdi.store.rows import SEQUENCE_LEN
from hpcdi.types import ACTION_MASK, Array, Columns, Leaf, RowView, Spaces
from hpcdi.utils.nested import take_rows

OWN, NUMBER = "own", "number"
"""Parts of a player's observation, where it has more than its own one; and `STATE`."""
ACTS = "acts"
"""Column of policies that learn from whole teams: which players were there, bool [rows]."""
_OBSERVATION = "observation/"
_TEAM_ACTS, _TEAM_REWARD, _TEAM_ENDED = (
    f"{_OBSERVATION}acts",
    f"{_OBSERVATION}reward",
    f"{_OBSERVATION}ended",
)
_TERMINATED = 1
_NEXT = "next"


@dataclass(frozen=True)
class Player:
    """One player.

    Attributes:
        name: of it.
        number: in the team.
        leaves: of what it sees itself, by columns of the team.
        actions: arrays of its actions, named as within the action.
        mask: its entries in the team's mask; None: it has none, nor has it discrete actions.
    """

    name: str
    number: int
    leaves: Mapping[str, Leaf]
    actions: tuple[Leaf, ...]
    mask: tuple[int, int] | None


def players_of(spaces: Spaces) -> list[Player]:
    """Returns the players of a team's environment, in its order."""
    seen: dict[str, dict[str, Leaf]] = {}
    for leaf in spaces.observation:
        root, _, rest = leaf.name.partition("/")
        if root == "players":
            name, _, part = rest.partition("/")
            seen.setdefault(name, {})[leaf.column("observation")] = dataclasses.replace(
                leaf, name=part
            )
    acts: dict[str, list[Leaf]] = {}
    masks: dict[str, tuple[int, int]] = {}
    entry = 0
    for leaf in spaces.action:
        name, _, part = leaf.name.partition("/")
        acts.setdefault(name, []).append(dataclasses.replace(leaf, name=part))
        first, _ = masks.setdefault(name, (entry, entry))
        entry += sum(leaf.counts)
        masks[name] = (first, entry)
    # the team has a mask if any player has one; without discrete actions there is nothing in it
    own = {n: mask for n, mask in masks.items() if spaces.is_masked and mask[0] < mask[1]}
    return [
        Player(name, number, seen[name], tuple(acts[name]), own.get(name))
        for number, name in enumerate(seen)
    ]


class PolicyGroup:
    """The players that act by one policy.

    Args:
        name: of the policy.
        policy: its settings.
        team: the settings of the team, filled.

    Attributes:
        name, policy: see there.
        players: in the team's order; methods here count them within the group, by `index`.
        is_whole: whether the policy learns from whole teams.
        spaces: of a row of the policy.
    """

    def __init__(self, name: str, policy: TorchPolicyConfig, team: TeamConfig) -> None:
        spaces = Spaces(team.observation, team.action, is_masked=team.is_masked)
        all_players = players_of(spaces)
        self.name, self.policy = name, policy
        self.players = [player for player in all_players if team.policy_of(player.name) == name]
        self._numbers = [player.number for player in self.players]
        self.is_whole = policy.WHOLE_TEAMS
        self._remembers = policy.memory != "none"
        self._is_numbered = team.numbers and len(self.players) > 1
        self._state = _state_of(spaces, all_players) if policy.sees_state else {}
        self._sees_own_only = not (self._is_numbered or self._state)
        self.spaces = self._spaces_of_row()

    @property
    def acting_spaces(self) -> Spaces:
        """Of a row of the policy when it acts: without the state."""
        seen = [leaf for leaf in self.spaces.observation if leaf not in self._state.values()]
        return dataclasses.replace(self.spaces, observation=tuple(seen))

    def differing(self) -> Iterator[str]:
        """Yields the players whose spaces differ from those of the first."""
        first = self.players[0]
        for player in self.players[1:]:
            spaces = [*player.leaves.values()], player.actions
            if spaces != ([*first.leaves.values()], first.actions):
                yield player.name

    def _spaces_of_row(self) -> Spaces:
        if not self.players:
            return Spaces((), ())
        first = self.players[0]
        seen = [self._renamed(leaf) for leaf in first.leaves.values()]
        if self._is_numbered:
            seen.append(Leaf(NUMBER, (), "int64", (len(self.players),)))
        seen += self._state.values()
        return Spaces(tuple(seen), first.actions, is_masked=first.mask is not None)

    def _renamed(self, leaf: Leaf) -> Leaf:
        """Returns an array of a player's own observation as the policy names it."""
        if self._sees_own_only:
            return leaf
        return dataclasses.replace(leaf, name=f"{OWN}/{leaf.name}" if leaf.name else OWN)

    # ----------------------------------------------------------------------------------- acting

    def observations(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the policy sees, [rows * players, ...], of columns of the team [rows, ...].

        Arrays or tensors.
        """
        parts = [self._of_player(columns, index) for index in range(len(self.players))]
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}

    def _of_player(self, columns: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Returns what the policy sees as one of its players, of columns of the team."""
        player = self.players[index]
        observation = {
            self._renamed(leaf).column("observation"): columns[name]
            for name, leaf in player.leaves.items()
        }
        if self._is_numbered:
            name, leaf = next(iter(player.leaves.items()))
            like = columns[name]
            axes = tuple(like.shape)[: like.ndim - len(leaf.shape)]  # [rows], [items, steps]
            observation[f"{_OBSERVATION}{NUMBER}"] = (
                np.full(axes, index)
                if isinstance(like, np.ndarray)
                else like.new_zeros(axes).long() + index
            )
        for name, leaf in self._state.items():
            observation[leaf.column("observation")] = columns[name]
        if player.mask is not None:
            observation[ACTION_MASK] = columns[ACTION_MASK][..., slice(*player.mask)]
        return observation

    def rows_of(self, rows: Array) -> Array:
        """Returns the numbers of the policy's rows, [rows * players], of those of the team."""
        count = len(self.players)
        numbers: Array = (rows[:, None] * count + np.arange(count)).reshape(-1)
        return numbers

    def are_acting(self, columns: Mapping[str, Array]) -> Array:
        """Returns which of the policy's rows are of players that are to act, bool."""
        acts: Array = columns[_TEAM_ACTS][:, self._numbers].reshape(-1) > 0
        return acts

    def outputs(self, outputs: Columns) -> Columns:
        """Returns the policy's outputs [rows * players, ...] as columns of the team [rows, ...]."""
        count = len(self.players)
        return {
            _team_name(name, player.name): column[index::count]
            for name, column in outputs.items()
            for index, player in enumerate(self.players)
        }

    # ---------------------------------------------------------------------------------- learning

    def train_columns(
        self,
        actor: ColumnarActor,
        transitions: Mapping[str, Array],
        item_len: Array,
        last_observation: Columns,
    ) -> TrainColumns:
        """Returns the columns that the policy adds, of each player; of whole teams, of the group.

        A player's transitions make items of its own: they end where it is not there any more. What
        it is paid then, until it comes back or the item ends, is of its last transition.

        Args:
            actor: the policy's.
            transitions: of the team; this and the others are as in `ColumnarActor.train_columns`.
            item_len: of the items of the team.
            last_observation: of the team.
        """
        ends = np.cumsum(item_len) - 1

        def after(name: str) -> Array:
            return following(transitions[name], ends, last_observation[name])

        reward, ended = after(_TEAM_REWARD), after(_TEAM_ENDED)
        if self.is_whole:
            # bootstrapped from those of its players who were cut, whoever else has ended
            is_cut = (ended[:, self._numbers] > _TERMINATED).any(axis=1)
            of_team = {
                **transitions,
                "reward": reward[:, self._numbers].mean(axis=1),
                "terminated": transitions["terminated"] & ~is_cut,
            }
            made = actor.train_columns(of_team, item_len, last_observation)
            rows = np.arange(len(reward))
            return self._as_team_columns(self.name, made, rows, len(rows), self.players)
        is_end = np.zeros(len(reward), dtype=bool)
        is_end[ends] = True
        columns: Columns = {}
        views: list[RowView] = []
        stacks: list[str] = []
        acts = transitions[_TEAM_ACTS].astype(bool)
        goes_on = after(_TEAM_ACTS).astype(bool)
        sources = self._sources(self.players)
        for index, player in enumerate(self.players):
            rows = np.flatnonzero(acts[:, player.number])
            if not rows.size:
                made = self._empty_train_columns(actor, transitions, last_observation, index)
            else:
                ending = ended[rows, player.number]
                is_last = is_end[rows] | ~goes_on[rows, player.number] | (ending > 0)
                own = self._of_player({n: transitions[n][rows] for n in sources}, index)
                own |= {n: c[rows] for n, c in _outputs_of(player.name, transitions)}
                own["reward"] = _paid(reward[:, player.number], rows, ends)
                own["terminated"] = ending == _TERMINATED
                own["truncated"] = ending > _TERMINATED
                last = self._of_player({n: after(n)[rows[is_last]] for n in sources}, index)
                lengths = np.diff(np.flatnonzero(is_last), prepend=-1).astype(np.int32)
                made = actor.train_columns(own, lengths, last)
            added = self._as_team_columns(player.name, made, rows, len(reward), [player])
            columns |= added.columns
            views += added.views
            stacks += added.stacks
        return TrainColumns(columns, tuple(views), tuple(stacks))

    def _empty_train_columns(
        self, actor: ColumnarActor, transitions: Mapping[str, Array], last: Columns, index: int
    ) -> TrainColumns:
        """Returns the policy's columns without a row: those of one transition, which is dropped."""
        sources, name = self._sources(self.players), self.players[index].name
        own = self._of_player({n: transitions[n][:1] for n in sources}, index)
        own |= {n: c[:1] for n, c in _outputs_of(name, transitions)}
        own |= {n: transitions[n][:1] for n in ("reward", "terminated", "truncated")}
        after = self._of_player({n: last[n][:1] for n in sources}, index)
        made: TrainColumns = actor.train_columns(own, np.ones(1, np.int32), after)
        return dataclasses.replace(made, columns={n: c[:0] for n, c in made.columns.items()})

    def _sources(self, players: Sequence[Player]) -> list[str]:
        """Returns the names of the team's columns that some players see something of."""
        masks = [ACTION_MASK] if self.spaces.is_masked else []
        return [*dict.fromkeys([*(n for p in players for n in p.leaves), *self._state, *masks])]

    def _as_team_columns(
        self, unit: str, made: TrainColumns, rows: Array, count: int, players: Sequence[Player]
    ) -> TrainColumns:
        """Returns the policy's columns of some rows as columns of the team.

        Args:
            unit: in the columns' names: the player, or of whole teams the policy.
            made: the policy's columns.
            rows: numbers of their rows in the team; others become 0.
            count: rows of the team.
            players: whose next observations are looked at.
        """
        columns = {}
        for name, column in made.columns.items():
            # where an item is a sequence, its length is of the team, by the name of every run's
            is_of_items = self.is_whole and name == SEQUENCE_LEN
            team_name = name if is_of_items else _team_name(name, unit)
            all_rows = columns[team_name] = np.zeros((count, *column.shape[1:]), column.dtype)
            all_rows[rows] = column
        sources = [*self._sources(players), *([_TEAM_ACTS] if self.is_whole else [])]
        views = [
            RowView(f"{_NEXT}/{unit}/{source}", source, _team_name(view.offset, unit))
            for view in made.views
            for source in sources
        ]
        stacks = tuple(_team_name(name, player.name) for name in made.stacks for player in players)
        return TrainColumns(columns, tuple(views), stacks)

    def learner_batch(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Returns the policy's columns of a team's batch, and which of the policy's rows they are.

        Args:
            batch: tensors by name, [rows, ...], or of whole teams' sequences [items, steps, ...].

        Returns:
            Tensors by name, [rows of the policy, ...]; and numbers of these rows, int64, or None:
            all, in order. Of sequences a row is a player's. Where none of its players is there,
            there are no rows.
        """
        parts = [self._player_batch(index, batch) for index in range(len(self.players))]
        join = functools.partial(_joined, are_beside=self.is_whole or not self._remembers)
        columns = {name: join([part[name] for part in parts]) for name in parts[0]}
        if self.is_whole:
            return columns, None
        acts = join([batch[_TEAM_ACTS][:, number] for number in self._numbers]) > 0
        if bool(acts.all()):
            return columns, None
        rows = acts.nonzero().squeeze(1)
        if len(rows) and not self.policy.on_policy:  # learners' batches are of one size
            rows = rows.repeat(-(-len(acts) // len(rows)))[: len(acts)]
        return take_rows(columns, rows), rows

    def _player_batch(self, index: int, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a player's columns of a batch, [rows, ...]."""
        player = self.players[index]
        unit = self.name if self.is_whole else player.name
        own = self._of_player(batch, index)
        own |= dict(_outputs_of(unit, batch))  # of whole teams, what the policy has added
        own |= dict(_outputs_of(player.name, batch))  # last: one of them may have the unit's name
        prefix = f"{_NEXT}/{unit}/"
        later = {n.removeprefix(prefix): c for n, c in batch.items() if n.startswith(prefix)}
        if later:
            own |= {f"next_{n}": c for n, c in self._of_player(later, index).items()}
            if self.is_whole:
                own[f"next_{ACTS}"] = later[_TEAM_ACTS][:, player.number].bool()
        if self.is_whole:
            own[ACTS] = batch[_TEAM_ACTS][..., player.number].bool()
            if self._remembers:
                own[SEQUENCE_LEN] = batch[SEQUENCE_LEN]
        if "weight" in batch:
            own["weight"] = batch["weight"]
        return own


def _paid(reward: Array, rows: Array, ends: Array) -> Array:
    """Returns a player's rewards of the rows in which it acts, with those until it acts again.

    Args:
        reward: of each row of the team, float32 [rows of the team].
        rows: numbers of those in which it acts, at least one.
        ends: numbers of the last rows of items: what comes in a later one is of none before it.
    """
    since = np.searchsorted(rows, np.arange(len(reward)), side="right") - 1
    items = np.searchsorted(ends, np.arange(len(reward)))
    reward = np.where(items == items[rows[since]], reward, 0)
    paid: Array = np.add.reduceat(reward, rows)  # from row to row: what is before the first is out
    return paid


def with_players(cfg: TeamConfig, spaces: Spaces) -> tuple[TeamConfig, list[Problem]]:
    """Fill a team's settings from its environment; see `hpcdi.policy.spaces.with_spaces`."""
    problems: list[Problem] = []
    players = players_of(spaces)
    if not players:
        why = "a team acts in environments of type team: set env.type: team"
        return cfg, [Problem("type", why)]
    filled = dataclasses.replace(
        cfg, observation=spaces.observation, action=spaces.action, is_masked=spaces.is_masked
    )
    for player in players:
        if filled.policy_of(player.name) is None:
            names = ", ".join(filled.players or filled.policies)
            known = ", ".join(p.name for p in players)
            why = f"{player.name!r} matches none of {names}; the players are {known}"
            problems.append(Problem("players", why))
    policies = dict(cfg.policies)
    for name, policy in cfg.policies.items():
        group = PolicyGroup(name, policy, filled)
        if not group.players:
            problems.append(Problem(f"policies.{name}", "no player acts by it; see policy.players"))
            continue
        if differing := ", ".join(group.differing()):
            why = (
                f"{group.players[0].name} and {differing} have different spaces, and need policies "
                "of their own: policy.type: team, with policies and players"
            )
            problems.append(Problem(f"policies.{name}", why))
            continue
        others = {p.name for p in players} - {p.name for p in group.players}
        if group.is_whole and name in others:  # both would add columns of one name
            why = "is the name of a player that acts by another policy: rename the policy"
            problems.append(Problem(f"policies.{name}", why))
        if isinstance(policy, VDNConfig):
            policy = dataclasses.replace(policy, players=len(group.players))
        policies[name], objections = with_spaces(policy, group.spaces, of_team=True)
        problems += [
            dataclasses.replace(each, path=f"policies.{name}.{each.path}") for each in objections
        ]
    return dataclasses.replace(filled, policies=policies), problems


def _state_of(spaces: Spaces, players: Sequence[Player]) -> dict[str, Leaf]:
    """Returns the state's arrays by columns: the environment's, or all that players see."""
    state = {
        leaf.column("observation"): leaf
        for leaf in spaces.observation
        if leaf.name.partition("/")[0] == STATE
    }
    return state or {
        column: dataclasses.replace(leaf, name="/".join(filter(None, (STATE, p.name, leaf.name))))
        for p in players
        for column, leaf in p.leaves.items()
    }


def _team_name(name: str, player: str) -> str:
    """Returns the team's name of a policy's column: ``action/x`` is ``action/<player>/x``."""
    root, _, rest = name.partition("/")
    return f"{root}/{player}/{rest}" if rest else f"{root}/{player}"


def _outputs_of(player: str, columns: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the columns of a player, or of a group, by the policy's names: undoes `_team_name`."""
    for name, column in columns.items():
        root, _, rest = name.partition("/")
        owner, _, part = rest.partition("/")
        if owner == player and root not in ("observation", _NEXT):
            yield (f"{root}/{part}" if part else root), column


def _joined(parts: Sequence[Any], *, are_beside: bool = True) -> Any:
    """Returns columns [rows, ...] of several players as one, [rows * players, ...].

    Rows of one step are beside each other, or else those of one player; the latter of tensors only.
    """
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        stacked = np.stack(parts, axis=1)
        return stacked.reshape(stacked.shape[0] * len(parts), *stacked.shape[2:])
    import torch

    return torch.stack(list(parts), dim=int(are_beside)).flatten(0, 1)
