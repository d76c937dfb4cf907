"""A program that `hpcdi export` has written, as an actor: it plays what the policy plays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.commands.eval import played
from hpcdi.commands.saved_policy import LoadedPolicy
from hpcdi.dataclass import dataclass
from hpcdi.policy.base import ColumnarActor, TrainColumns
from hpcdi.types import ACTION_MASK, Array, Columns, Settings, Spaces
from hpcdi.utils.nested import column_rows


class ProgramActor:
    """Acts by a program, and carries its memory from step to step.

    Args:
        act: the program, name -> [batch, ...] to name -> [batch, ...].
        first_state: makes the inputs ``state/<name>`` at the start of episodes, of a number of
            rows.
        inputs: makes its inputs of an actor's observation.
        spaces: of the environment.
        batch: observations that it takes at a time; None: any number.
    """

    def __init__(
        self, act: Any, first_state: Any, inputs: Any, spaces: Spaces, batch: int | None
    ) -> None:
        self._act, self._first, self._inputs, self._batch = act, first_state, inputs, batch
        self._starts = starts_of(spaces)
        self._state: dict[str, Array] = {}

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:  # noqa: ARG002
        """See `Actor.act`."""
        count = column_rows(observation)
        rows = np.arange(count) if rows is None else np.asarray(rows)
        self._grow(int(rows.max(initial=-1)) + 1)
        given = {**self._inputs(observation), **{n: s[rows] for n, s in self._state.items()}}
        size = self._batch or count
        parts = [self._of(given, slice(at, at + size), size) for at in range(0, count, size)]
        made = {name: np.concatenate([part[name] for part in parts])[:count] for name in parts[0]}
        for name, state in self._state.items():
            state[rows] = made[f"next_{name}"]
        return {name: made[name] - start for name, start in self._starts.items()}

    def _of(self, given: Columns, some: slice, size: int) -> Mapping[str, Array]:
        """What the program makes of some rows; they are filled up to its size by the first one."""
        part = {name: column[some] for name, column in given.items()}
        lack = size - column_rows(part)
        filler = {name: np.repeat(column[:1], lack, axis=0) for name, column in part.items()}
        made: Mapping[str, Array] = self._act(
            {name: np.concatenate([column, filler[name]]) for name, column in part.items()}
        )
        return made

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """New episodes begin."""
        for name, state in self._state.items():
            chosen = np.arange(len(state)) if rows is None else np.asarray(rows)
            chosen = chosen[chosen < len(state)].astype(np.int64)
            state[chosen] = self._first(len(chosen))[name]

    def train_columns(
        self,
        transitions: Mapping[str, Array],  # noqa: ARG002
        item_len: Array,  # noqa: ARG002
        last_observation: Columns,  # noqa: ARG002
    ) -> TrainColumns:
        """Nothing: it does not collect."""
        return TrainColumns({})

    def _grow(self, count: int) -> None:
        held = len(next(iter(self._state.values()))) if self._state else 0
        if count > held:
            more = self._first(count - held)
            self._state = {
                n: np.concatenate([self._state[n], s]) if held else s for n, s in more.items()
            }


@dataclass(frozen=True)
class _Played(LoadedPolicy):
    program: Any = None

    @property
    def actor(self) -> ColumnarActor:
        """The program."""
        program: ColumnarActor = self.program
        return program


def returns_of(
    loaded: LoadedPolicy, actor: ColumnarActor, episodes: int
) -> tuple[list[float], list[float]]:
    """Returns the policy's returns and the program's, of the same seeds."""
    fields = {f.name: getattr(loaded, f.name) for f in dataclasses.fields(LoadedPolicy)}
    by_program = _Played(**fields, program=actor)
    return tuple(played(each, episodes).returns for each in (loaded, by_program))  # type: ignore[return-value]


def starts_of(spaces: Spaces) -> dict[str, Any]:
    """Returns for each part of an action what the environment counts it from."""
    return {
        leaf.column("action"): np.array(leaf.starts, np.int64).reshape(leaf.shape)
        if leaf.starts
        else np.zeros((), leaf.dtype)
        for leaf in spaces.action
    }


def mask_of(observation: Columns) -> Columns:
    """Returns the program's mask; empty where there is none."""
    mask = observation.get(ACTION_MASK)
    return {} if mask is None else {ACTION_MASK: np.asarray(mask, bool)}
