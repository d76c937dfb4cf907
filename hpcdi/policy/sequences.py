"""Sequences of a replay buffer's batch, which a memory learns from: R2D2, VDN and QMIX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hpcdi.policy import networks
from hpcdi.policy.memories import State, state_of
from hpcdi.store.rows import SEQUENCE_LEN
from hpcdi.types import SequenceRule


class Sequences:
    """Sequences drawn from a replay buffer, which a network unrolls.

    The memory begins with the stored state, and reads the first steps without learning from them,
    so that its state where learning begins is that of the present network (Kapturowski et al. 2019,
    2.3). At the start of an episode the state is exact, and no burn-in is needed.

    Behind a sequence are rows that its last steps bootstrap from; nothing is learnt from these.

    Args:
        batch: ``observation, bootstrap_offset, bootstrap_discount, sequence_len``: [sequences,
            rows of a sequence, ...], of which rows from ``sequence_len[:, 0]`` on are filler; and
            ``state/<name>``: [sequences, 1, ...], before the first one.
        burn_in: steps that only the memory reads.
        rule: what a sequence is.
        begin: state at an episode's start, name -> [1, ...].
        players: rows beside each other that are of one team: it is burnt in as a whole.

    Attributes:
        learnt: steps that are learnt from, bool [sequences, steps].
    """

    def __init__(
        self,
        batch: Mapping[str, Tensor],
        burn_in: int,
        rule: SequenceRule,
        begin: State,
        players: int = 1,
    ) -> None:
        most = batch["bootstrap_offset"].shape[1]
        self._batch = batch
        self._states = {name: column[:, 0] for name, column in state_of(batch).items()}
        lengths = self._states.pop(SEQUENCE_LEN).long().clamp(max=most)
        self._steps = torch.arange(most, device=lengths.device)
        begins = [(each == begin[n]).flatten(1).all(dim=1) for n, each in self._states.items()]
        is_first = torch.stack(begins).all(dim=0).view(-1, players).all(dim=1)
        is_first = is_first.repeat_interleave(players)
        self._burnt = torch.where(is_first, 0, burn_in).minimum(lengths)
        self._in_burn_in = self._steps < self._burnt.unsqueeze(1)
        self._unrolled = (self._steps < lengths.unsqueeze(1)) & ~self._in_burn_in
        offset = batch["bootstrap_offset"].long()
        self._ahead = self._steps + offset
        has_target = (self._ahead < lengths.unsqueeze(1)) | (batch["bootstrap_discount"] == 0)
        # the row behind an item is no step, and has the offset 0
        self.learnt = self._unrolled & (self._steps < rule.length) & (offset > 0) & has_target

    def unrolled(self, forward: Callable[..., tuple[Tensor, State]]) -> Tensor:
        """Returns outputs [sequences, steps, n], 0 in burn-in and filler.

        Args:
            forward: computes a network's output [rows, n] and next state.
        """
        states = self._states
        if bool(self._in_burn_in.any()):
            chosen = self._burnt > 0
            with torch.no_grad():
                before = {name: state[chosen] for name, state in states.items()}
                seen = self._seen(self._in_burn_in)
                _, after = forward(seen, {**before, SEQUENCE_LEN: self._burnt[chosen]})
            states = {name: state.clone() for name, state in states.items()}
            for name, state in states.items():
                state[chosen] = after[name].to(state.dtype)
        chosen = self._unrolled.any(dim=1)
        before = {name: state[chosen] for name, state in states.items()}
        lengths = self._unrolled.sum(dim=1)[chosen]
        outputs, _ = forward(self._seen(self._unrolled), {**before, SEQUENCE_LEN: lengths})
        return self._padded(outputs)

    def outputs_for(self, values: Tensor, value: Tensor, features: Tensor | None) -> dict[str, Any]:
        """Returns what an extra loss is given of them, see `extra.Outputs`.

        Args:
            values: of all actions, [sequences, steps, actions].
            value: of those taken, [sequences, steps].
            features: that `unrolled` has led to, [rows, n]; None: the network tells none.
        """
        padded = None if features is None else self._padded(features)
        return {"output": values, "value": value, "is_learnt": self.learnt, "features": padded}

    def _padded(self, rows: Tensor) -> Tensor:
        """Returns rows that were unrolled [rows, n] as [sequences, steps, n], 0 elsewhere."""
        padded = rows.new_zeros(*self._unrolled.shape, rows.shape[1])
        return padded.index_put((self._unrolled,), rows)

    def ahead(self, values: Tensor) -> Tensor:
        """Returns for each step the value of that which it bootstraps from, [sequences, steps].

        Args:
            values: of each step, [sequences, steps]; where `learnt` is false, any is returned.
        """
        return values.gather(1, self._ahead.clamp(max=len(self._steps) - 1))

    def means(self, values: Tensor) -> Tensor:
        """Returns means over the steps learnt from, [sequences], of values [sequences, steps]."""
        return means_of(values, self.learnt)

    def _seen(self, steps: Tensor) -> Any:
        return networks.rows_of(networks.observation_of(self._batch), steps)


def means_of(values: Tensor, learnt: Tensor) -> Tensor:
    """Returns means over the steps learnt from, [sequences]; 0 where there are none.

    Args:
        values: [sequences, steps].
        learnt: which of the steps are, bool.
    """
    return torch.where(learnt, values, 0.0).sum(dim=1) / learnt.sum(dim=1).clamp(min=1)
