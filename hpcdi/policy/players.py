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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.algorithms import VDNConfig
from hpcdi.config.policy import TorchPolicyConfig
from hpcdi.config.team import TeamConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.policy.acting.base import SEQUENCE_LEN
from hpcdi.policy.base import ColumnarActor, TrainColumns
from hpcdi.policy.spaces import with_spaces
from hpcdi.types import ACTION_MASK, Array, Columns, Leaf, RowView, Spaces
from hpcdi.utils.nested import take_rows

OWN, NUMBER, STATE = "own", "number", "state"
"""Parts of a player's observation, where it has more than its own one."""
ACTS = "acts"
"""Column of policies that learn from whole teams: which players were there, bool [rows]."""
_SEEN = "observation/"
_ACTS, _REWARD, _ENDED = f"{_SEEN}acts", f"{_SEEN}reward", f"{_SEEN}ended"
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
        mask: its entries in the team's mask; None: there is none.
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
            own = dataclasses.replace(leaf, name=part)
            seen.setdefault(name, {})[leaf.column("observation")] = own
    acts: dict[str, list[Leaf]] = {}
    masks: dict[str, tuple[int, int]] = {}
    entry = 0
    for leaf in spaces.action:
        name, _, part = leaf.name.partition("/")
        acts.setdefault(name, []).append(dataclasses.replace(leaf, name=part))
        first, _ = masks.setdefault(name, (entry, entry))
        entry += sum(leaf.counts)
        masks[name] = (first, entry)
    return [
        Player(
            name, number, seen[name], tuple(acts[name]), masks[name] if spaces.is_masked else None
        )
        for number, name in enumerate(seen)
    ]


class PolicyGroup:
    """The players that act by one policy.

    Args:
        name: of the policy.
        policy: its settings.
        team: the settings of the team, filled.

    Attributes:
        spaces: of a row of the policy.
    """

    def __init__(self, name: str, policy: TorchPolicyConfig, team: TeamConfig) -> None:
        spaces = Spaces(team.observation, team.action, is_masked=team.is_masked)
        every = players_of(spaces)
        self.name, self.policy = name, policy
        self.players = [player for player in every if team.policy_of(player.name) == name]
        self._numbers = [player.number for player in self.players]
        self.is_whole = policy.WHOLE_TEAMS
        self._remembers = policy.memory != "none"
        self._is_numbered = team.numbers and len(self.players) > 1
        self._state = _state_of(spaces, every) if policy.sees_state else {}
        self._is_alone = not (self._is_numbered or self._state)
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
            mine = [*player.leaves.values()], player.actions
            if mine != ([*first.leaves.values()], first.actions):
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
        if self._is_alone:
            return leaf
        return dataclasses.replace(leaf, name=f"{OWN}/{leaf.name}" if leaf.name else OWN)

    # ----------------------------------------------------------------------------------- acting

    def observed(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the policy sees, [rows * players, ...], of columns of the team [rows, ...].

        Arrays or tensors.
        """
        own = [self._of_player(columns, number) for number in range(len(self.players))]
        return {name: _beside([each[name] for each in own]) for name in own[0]}

    def _of_player(self, columns: Mapping[str, Any], number: int) -> dict[str, Any]:
        player = self.players[number]
        made = {
            self._renamed(leaf).column("observation"): columns[name]
            for name, leaf in player.leaves.items()
        }
        if self._is_numbered:
            like = columns[next(iter(player.leaves))]
            numbers = np.full(_batch_shape(like, player), number)
            made[f"{_SEEN}{NUMBER}"] = (
                numbers if isinstance(like, np.ndarray) else _like(numbers, like)
            )
        made |= {leaf.column("observation"): columns[name] for name, leaf in self._state.items()}
        if player.mask is not None:
            made[ACTION_MASK] = columns[ACTION_MASK][..., slice(*player.mask)]
        return made

    def rows_of(self, rows: Array) -> Array:
        """Returns the numbers of the policy's rows, [rows * players], of those of the team."""
        seats = len(self.players)
        numbers: Array = (rows[:, None] * seats + np.arange(seats)).reshape(-1)
        return numbers

    def there(self, columns: Mapping[str, Array]) -> Array:
        """Returns which of the policy's rows are of players that are to act, bool."""
        acts: Array = columns[_ACTS][:, self._numbers].reshape(-1) > 0
        return acts

    def outputs(self, made: Columns) -> Columns:
        """Returns a policy's outputs [rows * players, ...] as columns of the team [rows, ...]."""
        count = len(self.players)
        return {
            _of(name, player.name): column[number::count]
            for name, column in made.items()
            for number, player in enumerate(self.players)
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

        A player's transitions make items of its own: they end where it is not there any more.

        Args:
            actor: the policy's.
            transitions: of the team; this and the others are as in `ColumnarActor.train_columns`.
            item_len: of the items of the team.
            last_observation: of the team.
        """
        ends = np.cumsum(item_len) - 1
        after = _Following(transitions, ends, last_observation)
        reward, ended = after(_REWARD), after(_ENDED)
        if self.is_whole:
            of_team = {**transitions, "reward": reward[:, self._numbers].mean(axis=1)}
            made = actor.train_columns(of_team, item_len, last_observation)
            rows = np.arange(len(reward))
            return self._added(self.name, made, rows, len(rows), self.players)
        is_end = np.zeros(len(reward), dtype=bool)
        is_end[ends] = True
        columns: Columns = {}
        views: list[RowView] = []
        stacks: list[str] = []
        acts = transitions[_ACTS].astype(bool)
        goes_on = after(_ACTS).astype(bool)
        for number, player in enumerate(self.players):
            rows = np.flatnonzero(acts[:, player.number])
            if not rows.size:
                made = self._nothing(actor, transitions, last_observation, number)
            else:
                over = ended[rows, player.number]
                last = is_end[rows] | ~goes_on[rows, player.number] | (over > 0)
                own = self._of_player({n: c[rows] for n, c in self._read(transitions)}, number)
                own |= {n: c[rows] for n, c in _outputs_of(player.name, transitions)}
                own["reward"] = reward[rows, player.number]
                own["terminated"] = over == _TERMINATED
                own["truncated"] = over > _TERMINATED
                seen = self._of_player(after.at(rows[last], dict(self._read(transitions))), number)
                lengths = np.diff(np.flatnonzero(last), prepend=-1).astype(np.int32)
                made = actor.train_columns(own, lengths, seen)
            added = self._added(player.name, made, rows, len(reward), [player])
            columns |= added.columns
            views += added.views
            stacks += added.stacks
        return TrainColumns(columns, tuple(views), tuple(stacks))

    def _nothing(
        self, actor: ColumnarActor, transitions: Mapping[str, Array], last: Columns, number: int
    ) -> TrainColumns:
        """What the policy adds to no transitions: the columns' dtypes, by one that is dropped."""
        player = self.players[number]
        own = self._of_player({n: c[:1] for n, c in self._read(transitions)}, number)
        own |= {n: c[:1] for n, c in _outputs_of(player.name, transitions)}
        own |= {n: transitions[n][:1] for n in ("reward", "terminated", "truncated")}
        seen = self._of_player({n: last[n][:1] for n, _ in self._read(transitions)}, number)
        made: TrainColumns = actor.train_columns(own, np.ones(1, np.int32), seen)
        return dataclasses.replace(made, columns={n: c[:0] for n, c in made.columns.items()})

    def _read(self, columns: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Yields the team's columns that its players see something of."""
        names = dict.fromkeys([n for p in self.players for n in p.leaves] + list(self._state))
        for name in [*names, *([ACTION_MASK] if self.spaces.is_masked else [])]:
            yield name, columns[name]

    def _added(
        self, unit: str, made: TrainColumns, rows: Array, count: int, players: Sequence[Player]
    ) -> TrainColumns:
        """Returns a policy's columns of some rows as the team's; `unit` is whose they are."""
        columns = {}
        for name, column in made.columns.items():
            # where an item is a sequence, its length is of the team, by the name of every run's
            is_of_items = self.is_whole and name == SEQUENCE_LEN
            named = name if is_of_items else _of(name, unit)
            whole = columns[named] = np.zeros((count, *column.shape[1:]), column.dtype)
            whole[rows] = column
        sources = dict.fromkeys([n for p in players for n in p.leaves] + list(self._state))
        if self.spaces.is_masked:
            sources[ACTION_MASK] = None
        if self.is_whole:
            sources[_ACTS] = None
        views = [
            RowView(f"{_NEXT}/{unit}/{source}", source, _of(view.offset, unit))
            for view in made.views
            for source in sources
        ]
        stacks = tuple(_of(name, player.name) for name in made.stacks for player in players)
        return TrainColumns(columns, tuple(views), stacks)

    def learnt(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Returns the policy's columns, and which rows of it they are, of tensors of the team.

        Args:
            batch: name -> [rows, ...]; of sequences of whole teams [sequences, steps, ...].

        Returns:
            name -> [rows of the policy, ...]; and their numbers, int64, None: all, in order. Of
            sequences a row is a player's. Where none of its players is there, there are no rows.
        """
        made = [self._learnt_by(number, batch) for number in range(len(self.players))]
        place = _behind if self._remembers and not self.is_whole else _beside
        columns = {name: place([own[name] for own in made]) for name in made[0]}
        if self.is_whole:
            return columns, None
        acts = place([batch[_ACTS][:, number] for number in self._numbers]) > 0
        if bool(acts.all()):
            return columns, None
        rows = acts.nonzero().squeeze(1)
        if len(rows) and not self.policy.on_policy:  # learners' batches are of one size
            rows = rows.repeat(-(-len(acts) // len(rows)))[: len(acts)]
        return take_rows(columns, rows), rows

    def _learnt_by(self, number: int, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a player's columns of a batch, [rows, ...]."""
        player = self.players[number]
        unit = self.name if self.is_whole else player.name
        own = self._of_player(batch, number)
        own |= dict(_outputs_of(player.name, batch))
        own |= dict(_outputs_of(unit, batch))
        prefix = f"{_NEXT}/{unit}/"
        later = {n.removeprefix(prefix): c for n, c in batch.items() if n.startswith(prefix)}
        if later:
            own |= {f"next_{n}": c for n, c in self._of_player(later, number).items()}
        if self.is_whole:
            own[ACTS] = batch[_ACTS][..., player.number].bool()
        if self.is_whole and later:
            own[f"next_{ACTS}"] = later[_ACTS][:, player.number].bool()
        if self.is_whole and self._remembers:
            own[SEQUENCE_LEN] = batch[SEQUENCE_LEN]
        if "weight" in batch:
            own["weight"] = batch["weight"]
        return own


class _Following:
    """Columns of the rows that follow those of a segment's transitions."""

    def __init__(self, columns: Mapping[str, Array], ends: Array, last: Columns) -> None:
        self._columns, self._ends, self._last = columns, ends, last

    def __call__(self, name: str) -> Array:
        column: Array = np.roll(self._columns[name], -1, axis=0)
        column[self._ends] = self._last[name]
        return column

    def at(self, rows: Array, names: Mapping[str, Any]) -> Columns:
        return {name: self(name)[rows] for name in names}


def with_players(cfg: TeamConfig, spaces: Spaces) -> tuple[TeamConfig, list[Problem]]:
    """Fill a team's settings from its environment; see `spaces.with_spaces`."""
    problems: list[Problem] = []
    players = players_of(spaces)
    if not players:
        said = "a team acts in environments of type team: set env.type: team"
        return cfg, [Problem("type", said)]
    filled = dataclasses.replace(
        cfg, observation=spaces.observation, action=spaces.action, is_masked=spaces.is_masked
    )
    for player in players:
        if filled.policy_of(player.name) is None:
            names = ", ".join(filled.players or filled.policies)
            others = ", ".join(p.name for p in players)
            said = f"{player.name!r} matches none of {names}; the players are {others}"
            problems.append(Problem("players", said))
    policies = dict(cfg.policies)
    for name, policy in cfg.policies.items():
        group = PolicyGroup(name, policy, filled)
        if not group.players:
            problems.append(Problem(f"policies.{name}", "no player acts by it; see policy.players"))
            continue
        if differing := ", ".join(group.differing()):
            said = (
                f"{group.players[0].name} and {differing} have different spaces, and need policies "
                "of their own: policy.type: team, with policies and players"
            )
            problems.append(Problem(f"policies.{name}", said))
            continue
        own = policy
        if isinstance(policy, VDNConfig):
            own = dataclasses.replace(policy, players=len(group.players))
        policies[name], found = with_spaces(own, group.spaces)
        problems += [
            dataclasses.replace(each, path=f"policies.{name}.{each.path}") for each in found
        ]
    return dataclasses.replace(filled, policies=policies), problems


def _state_of(spaces: Spaces, players: Sequence[Player]) -> dict[str, Leaf]:
    """The state's arrays by columns: the environment's, or all that players see."""
    own = {
        leaf.column("observation"): leaf
        for leaf in spaces.observation
        if leaf.name.partition("/")[0] == STATE
    }
    if own:
        return own
    return {
        column: dataclasses.replace(leaf, name="/".join(filter(None, (STATE, p.name, leaf.name))))
        for p in players
        for column, leaf in p.leaves.items()
    }


def _of(name: str, player: str) -> str:
    """Returns the team's name of a policy's column: ``action/x`` is ``action/<player>/x``."""
    root, _, rest = name.partition("/")
    return f"{root}/{player}/{rest}" if rest else f"{root}/{player}"


def _outputs_of(player: str, columns: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the columns that are a player's, or a group's, by the policy's names; see `_of`."""
    for name, column in columns.items():
        root, _, rest = name.partition("/")
        own, _, part = rest.partition("/")
        if own == player and root not in ("observation", _NEXT):
            yield (f"{root}/{part}" if part else root), column


def _beside(parts: Sequence[Any]) -> Any:
    """Returns columns [rows, ...] of several players as one, [rows * players, ...]."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        stacked = np.stack(parts, axis=1)
        return stacked.reshape(-1, *stacked.shape[2:])
    import torch

    return torch.stack(list(parts), dim=1).flatten(0, 1)


def _behind(parts: Sequence[Any]) -> Any:
    """Returns tensors [rows, ...] of several players as one, [players * rows, ...]."""
    import torch

    return torch.cat(list(parts))


def _batch_shape(column: Any, player: Player) -> tuple[int, ...]:
    """Returns what is before the rows' shape of the player's first array: [rows], [m, steps]."""
    own = next(iter(player.leaves.values())).shape
    shape = tuple(column.shape)
    return shape[: len(shape) - len(own)]


def _like(numbers: Array, tensor: Any) -> Any:
    import torch

    return torch.from_numpy(numbers).to(tensor.device)
