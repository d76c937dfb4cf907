"""Memories: what a network knows of earlier steps of an episode; and sequences to learn it from.

When acting, a memory is called with one step of each row. When learning, it is called with
sequences, whose rows follow each other::

    features [rows, n]   a a a b c c      three sequences, of 3, 1 and 2 steps
    sequence_len         3 1 2            [sequences]; absent: every row is one step
    state                of a, b, c       [sequences, ...]: before their first steps

So encoders and heads get rows without filler, and only the memory knows of sequences. A sequence is
a piece of one episode: nothing is reset within it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from hpcdi.errors import PolicyError
from hpcdi.store.rows import SEQUENCE_LEN, STATES
from hpcdi.types import Array

State = dict[str, Tensor]


class Recurrent(nn.Module):
    """LSTM (Hochreiter and Schmidhuber 1997) or GRU (Cho et al. 2014), of one layer.

    Args:
        features: size of its input.
        size: size of its state, and of its output.
        kind: `nn.LSTM` or `nn.GRU`.
        span: steps for which untrained cells remember, at most; None: some few.
    """

    def __init__(
        self,
        features: int,
        size: int,
        kind: type[nn.LSTM] | type[nn.GRU],
        span: int | None = None,
    ) -> None:
        super().__init__()
        self.cells: nn.RNNBase = kind(features, size)
        for name, parameter in self.cells.named_parameters():
            nn.init.orthogonal_(parameter) if "weight" in name else nn.init.zeros_(parameter)
        bias: Any = self.cells.bias_ih_l0
        keep = bias[size : 2 * size]  # an LSTM's forget gates, a GRU's update gates
        if span is not None:  # Tallec and Ollivier 2018, eq. 16: open for 1 to span - 1 steps
            nn.init.uniform_(keep, 1, span - 1)
            keep.data.log_()
            if kind is nn.LSTM:
                bias.data[:size] = -keep.data  # its input gates
        elif kind is nn.LSTM:  # forget gates begin open (Jozefowicz et al. 2015)
            nn.init.ones_(keep)
        self.out_features = size
        self._names = ("hidden", "cell") if kind is nn.LSTM else ("hidden",)

    def initial_state(self, batch: int) -> State:
        """Returns zeros [batch, size]."""
        like = next(self.parameters())
        return {name: like.new_zeros(batch, self.out_features) for name in self._names}

    def forward(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Returns features after each row, and the state after each sequence; see the module.

        Args:
            features: float32 [rows, n].
            state: as of `initial_state`; for sequences with ``sequence_len``, int64 [sequences].
        """
        before: Any = tuple(state[name].unsqueeze(0) for name in self._names)
        before = before if len(before) > 1 else before[0]
        if SEQUENCE_LEN not in state:
            outputs, after = self.cells(features.unsqueeze(0), before)
            return outputs.squeeze(0), self._named(after)
        lengths = state[SEQUENCE_LEN].tolist()
        if not lengths:
            return no_rows(self, self.out_features), dict(state)
        packed = rnn.pack_sequence(list(torch.split(features, lengths)), enforce_sorted=False)
        outputs, after = self.cells(packed, before)
        rows = torch.cat(rnn.unpack_sequence(outputs))
        return rows, {**self._named(after), SEQUENCE_LEN: state[SEQUENCE_LEN]}

    def _named(self, state: object) -> State:
        states = state if isinstance(state, tuple) else (state,)
        return {name: each.squeeze(0) for name, each in zip(self._names, states, strict=True)}


def no_rows(module: nn.Module, size: int) -> Tensor:
    """A module's output [0, size] for an empty part of a batch.

    So gradients of its parameters are 0, as the other learners' sums need them, and not None.
    """
    total = torch.stack([each.sum() for each in module.parameters()]).sum()
    return total.new_zeros(0, size) * total


def stacks(network: nn.Module) -> tuple[str, ...]:
    """Returns the names of states that are stacks of what was kept of each step, newest last."""
    own: tuple[str, ...] = getattr(network, "stacks", ())
    return own or getattr(getattr(network, "memory", None), "stacks", ())


def initial_state(network: nn.Module, batch: int) -> State:
    """Returns a network's state at the start of `batch` episodes; empty without a memory."""
    make = getattr(network, "initial_state", None)
    if make is None:
        make = getattr(getattr(network, "memory", None), "initial_state", None)
    state: State = {} if make is None else make(batch)
    return state


# ------------------------------------------------------------------------------------------- acting


class EpisodeStates:
    """The memory's state in each row's running episode.

    Args:
        initial: makes the states at the start of a number of episodes.
    """

    def __init__(self, initial: Callable[[int], State]) -> None:
        self._initial = initial
        self._states = initial(0)

    def read(self, rows: Sequence[int] | Array) -> State:
        """Returns copies of the states of these rows, [rows, ...]."""
        numbers = np.array(rows, np.int64)
        missing = int(numbers.max(initial=-1)) + 1 - self._count
        if missing > 0:
            more = self._initial(missing)
            self._states = {n: torch.cat([old, more[n]]) for n, old in self._states.items()}
        chosen = torch.from_numpy(numbers)
        return {name: states[chosen] for name, states in self._states.items()}

    def write(self, rows: Sequence[int] | Array, state: State) -> None:
        """Store the states after a step of these rows."""
        chosen = torch.from_numpy(np.array(rows, np.int64))
        for name, states in self._states.items():
            states[chosen] = state[name]

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """Set the states of rows in which new episodes begin; None: of all."""
        numbers = np.array(range(self._count) if rows is None else rows, np.int64)
        existing = torch.from_numpy(numbers[numbers < self._count])
        fresh = self._initial(len(existing))
        for name, states in self._states.items():
            states[existing] = fresh[name]

    @property
    def _count(self) -> int:
        return len(next(iter(self._states.values())))


# ----------------------------------------------------------------------------------------- learning


def state_of(columns: Mapping[str, Any]) -> State:
    """Returns the state for a network from columns of sequences; empty if they have none."""
    state = {n.removeprefix(STATES): c for n, c in columns.items() if n.startswith(STATES)}
    return {**state, SEQUENCE_LEN: columns[SEQUENCE_LEN]} if SEQUENCE_LEN in columns else state


def of_sequences(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns lengths of a batch's sequences, and the states before them: columns for `chosen`.

    Args:
        batch: name -> [rows, ...]; complete items, in order, with ``sequence_len`` and the states
            before each row.

    Raises:
        PolicyError: rows are missing, or not in order.
    """
    stored = batch[SEQUENCE_LEN].long()
    starts = stored.nonzero().squeeze(1)
    lengths = stored[starts]
    is_whole = torch.equal(lengths.cumsum(0) - lengths, starts)
    if not is_whole or int(lengths.sum()) != len(stored):
        raise PolicyError(
            f"a batch for a memory must have whole sequences, in order; these {len(stored)} rows "
            f"have {len(starts)} beginnings of sequences of {int(lengths.sum())} rows"
        )
    states = {
        name: column[starts] for name, column in state_of(batch).items() if name != SEQUENCE_LEN
    }
    return {SEQUENCE_LEN: lengths, **{STATES + name: state for name, state in states.items()}}


def chosen(columns: Mapping[str, Tensor], numbers: Tensor) -> dict[str, Tensor]:
    """Returns the columns of some of the sequences, in the order of `numbers`.

    Args:
        columns: columns of rows [rows, ...] and, by `of_sequences`, of sequences [sequences, ...].
        numbers: numbers of sequences, int64 [m].
    """
    lengths = columns[SEQUENCE_LEN]
    firsts, counts = lengths.cumsum(0) - lengths, lengths[numbers]
    offsets = firsts[numbers] - (counts.cumsum(0) - counts)
    within = torch.arange(int(counts.sum()), device=lengths.device)
    rows = offsets.repeat_interleave(counts) + within
    return {
        name: column[numbers if name == SEQUENCE_LEN or name.startswith(STATES) else rows]
        for name, column in columns.items()
    }


def split(columns: Mapping[str, Tensor], order: Tensor, parts: int) -> list[dict[str, Tensor]]:
    """Splits sequences, in a given order, into `parts` with about as many sequences each."""
    return [chosen(columns, numbers) for numbers in torch.tensor_split(order, parts)]
