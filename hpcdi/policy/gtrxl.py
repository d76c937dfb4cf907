"""Attention as a memory: a gated transformer-XL, "GTrXL" (Parisotto et al. 2019).

arXiv:1910.06764. In a layer each step attends to itself and to the last steps of its episode, which
are told apart by how long ago they were (Dai et al. 2019). What a step attends to is normalised,
what it is added to is not (figure 1, "identity map reordering"), and gates add it, which begin
nearly closed (section 3.2). Unlike recurrent cells a layer has the earlier steps themselves before
it, so that what was long ago is as near as what has just been.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcdi.policy.memories import State, no_rows
from hpcdi.store.rows import SEQUENCE_LEN

GATE_BIAS = 2.0
"""``b_g`` of the paper: gates begin with a share of some 0.1 for what is new."""
_HELD, _STEPS = "held", "steps"


class GTrXL(nn.Module):
    """Features of a step and of the steps before it.

    The state of an episode is what went into each layer in its last steps: ``held`` [batch, length,
    layers x size], the newest last, and 0 before the episode's first step; ``steps`` [batch, 1],
    how many of them there are. Gradients go back within a sequence, not into the state before it.

    Args:
        features: size of its input.
        size: size of what layers pass on, and of its output; a multiple of twice `heads`.
        layers: how many.
        heads: of attention, in each layer.
        length: earlier steps that a layer attends to; by n layers a step sees n times as many.

    Attributes:
        stacks: names of states, see `memories.stacks`.
    """

    stacks = (_HELD,)

    def __init__(self, features: int, size: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(features, size)
        self.layers = nn.ModuleList(Layer(size, heads) for _ in range(layers))
        self.register_buffer("ages", sinusoids(length + 1, size), persistent=False)
        self.out_features, self._length = size, length

    def initial_state(self, batch: int) -> State:
        """Returns zeros: nothing is held."""
        like, width = self.embedding.weight, len(self.layers) * self.out_features
        return {
            _HELD: like.new_zeros(batch, self._length, width),
            _STEPS: like.new_zeros(batch, 1),
        }

    def forward(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Returns features after each row, and the state after each sequence; see `memories`.

        Args:
            features: float32 [rows, n].
            state: as of `initial_state`; for sequences with ``sequence_len``, int64 [sequences].
        """
        held, steps = state[_HELD], state[_STEPS]
        embedded, most = self.embedding(features), self._length
        if SEQUENCE_LEN not in state:
            made, after = self._attended(embedded.unsqueeze(1), held, steps)
            return made.squeeze(1), {_HELD: after[:, 1:], _STEPS: (steps + 1).clamp(max=most)}
        lengths = state[SEQUENCE_LEN]
        if not len(lengths):
            return no_rows(self, self.out_features), dict(state)
        is_row = torch.arange(int(lengths.max()), device=lengths.device) < lengths.unsqueeze(1)
        padded = embedded.new_zeros(*is_row.shape, self.out_features)
        padded = padded.index_put((is_row,), embedded)
        made, after = self._attended(padded, held, steps, used=int(steps.max()))
        kept = lengths.unsqueeze(1) + torch.arange(most, device=lengths.device)
        after = after.gather(1, kept.unsqueeze(2).expand(-1, -1, after.shape[2]))
        count = (steps + lengths.unsqueeze(1)).clamp(max=most)
        return made[is_row], {_HELD: after, _STEPS: count, SEQUENCE_LEN: lengths}

    def _attended(
        self, rows: Tensor, held: Tensor, steps: Tensor, used: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the last layer's output for steps that follow each other, and what layers hold.

        Args:
            rows: embedded steps, [sequences, steps, size]; filler may follow a sequence.
            held: of the state before.
            steps: of the state before.
            used: the most earlier steps that a sequence has, where it is known.

        Returns:
            [sequences, steps, size], and [sequences, length + steps, layers x size].
        """
        most, device = self._length, rows.device
        first = 0 if used is None else most - used  # of the places that are attended to
        place = torch.arange(first, most + rows.shape[1], device=device)
        age = place[most - first :].unsqueeze(1) - place  # [steps, places]
        is_there = place >= most - steps  # [sequences, places]
        seen = ((age >= 0) & (age <= most)) & is_there.unsqueeze(1)
        age, inputs = age.clamp(0, most), []
        for number, layer in enumerate(self.layers):
            of_layer = held[
                :, first:, number * self.out_features : (number + 1) * self.out_features
            ]
            context = torch.cat([of_layer.to(rows.dtype), rows], dim=1)
            inputs.append(context)
            rows = layer(rows, context, seen, age, self.ages)
        after = torch.cat(inputs, dim=2)
        return rows, functional.pad(after, (0, 0, first, 0)) if first else after


class Layer(nn.Module):
    """Attention, then two dense layers, each added by a gate (eq. 4 to 7).

    Args:
        size: of what it takes and returns.
        heads: of attention.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.norm, self.norm_dense = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.age, self.join = (_Matrix(size, size) for _ in range(3))
        self.key_value = _Matrix(size, 2 * size)
        # u and v of Dai et al. 2019, section 3.3
        self.of_content, self.of_age = (
            nn.Parameter(torch.zeros(heads, size // heads)) for _ in "uv"
        )
        self.dense = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size))
        self.gate, self.gate_dense = Gate(size), Gate(size)
        self._heads = heads

    def forward(
        self, rows: Tensor, context: Tensor, seen: Tensor, age: Tensor, ages: Tensor
    ) -> Tensor:
        """Returns [sequences, steps, size].

        Args:
            rows: the steps, [sequences, steps, size].
            context: earlier steps and these, [sequences, places, size].
            seen: which of them each step attends to, bool [sequences, steps, places].
            age: how many steps ago each of them was, int64 [steps, places].
            ages: what stands for each age, [age, size].
        """
        normal = self.norm(context)
        attended = self._attention(normal[:, -rows.shape[1] :], normal, seen, age, ages)
        rows = self.gate(rows, attended.relu())
        made: Tensor = self.gate_dense(rows, self.dense(self.norm_dense(rows)).relu())
        return made

    def _attention(
        self, rows: Tensor, context: Tensor, seen: Tensor, age: Tensor, ages: Tensor
    ) -> Tensor:
        """Relative attention (Dai et al. 2019, section 3.3)."""
        query = self._split(self.query(rows))
        key, value = map(self._split, self.key_value(context).chunk(2, dim=2))
        by_age = self.age(ages.to(rows.dtype)).view(len(ages), self._heads, -1)
        by_content = torch.einsum("bthd,bkhd->bhtk", query + self.of_content, key)
        of_all_ages = torch.einsum("bthd,ahd->bhta", query + self.of_age, by_age)
        index = age.expand(*of_all_ages.shape[:2], *age.shape)
        score = (by_content + of_all_ages.gather(3, index)) / math.sqrt(key.shape[3])
        score = score.masked_fill(~seen.unsqueeze(1), -math.inf)  # a step always sees itself
        joined = torch.einsum("bhtk,bkhd->bthd", score.softmax(dim=3), value)
        made: Tensor = self.join(joined.flatten(2))
        return made

    def _split(self, rows: Tensor) -> Tensor:
        size = rows.shape[2] // self._heads  # -1 would be any, of an empty minibatch
        return rows.view(*rows.shape[:2], self._heads, size)


class Gate(nn.Module):
    """Adds y to x as a GRU does (section 3.2, "gated recurrent unit").

    Args:
        size: of both.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.of_y, self.of_x = _Matrix(size, 3 * size), _Matrix(size, 2 * size)
        self.of_kept = _Matrix(size, size)
        self.bias = nn.Parameter(torch.full((size,), GATE_BIAS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns [..., size]."""
        y_reset, y_share, y_new = self.of_y(y).chunk(3, dim=-1)
        x_reset, x_share = self.of_x(x).chunk(2, dim=-1)
        share = (y_share + x_share - self.bias).sigmoid()
        new = (y_new + self.of_kept((y_reset + x_reset).sigmoid() * x)).tanh()
        made: Tensor = (1 - share) * x + share * new
        return made


class _Matrix(nn.Module):
    """A product with weights, which stay as they are drawn here, whatever ``model.init`` says."""

    def __init__(self, size: int, outputs: int) -> None:
        super().__init__()
        parts = [nn.init.xavier_uniform_(torch.empty(size, size)) for _ in range(outputs // size)]
        self.weight = nn.Parameter(torch.cat(parts))

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = functional.linear(rows, self.weight)
        return made


def sinusoids(count: int, size: int) -> Tensor:
    """What stands for 0 to count - 1, float32 [count, size] (Vaswani et al. 2017, section 3.5)."""
    rate = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000) / size))
    angle = torch.arange(count).unsqueeze(1) * rate
    return torch.cat([angle.sin(), angle.cos()], dim=1)
