"""R2D2: recurrent replay for DQN (Kapturowski et al. 2019).

Samples are sequences of `collect.unroll_len` transitions; one begins every `collect.stride`
transitions. The memory begins with the stored state, and reads the first `learn.burn_in` steps
without learning from them, so that its state where learning begins is that of the present network.
(At the start of an episode the state is exact, and no burn-in is needed.) Targets are n-step ones
of double Q-learning, rescaled; steps whose bootstrap lies behind the sequence are left out.

Read `dqn` and `torch_policy` for what is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hpcdi.config.algorithms import R2D2Config, R2D2LearnConfig
from hpcdi.policy import memories, networks
from hpcdi.policy.dqn import DQNPolicy


class R2D2Policy(DQNPolicy):
    """R2D2; priorities are of sequences."""

    Config = R2D2Config
    _cfg: R2D2Config
    _learn: R2D2LearnConfig

    def update(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """One gradient step; see `DQNPolicy.update`.

        Args:
            batch: ``observation, action, n_step_return, bootstrap_discount, bootstrap_offset,
                sequence_len`` and ``state/<name>``: [sequences, unroll_len, ...], of which rows
                behind ``sequence_len[:, 0]`` are filler; and ``weight`` [sequences].
        """
        columns = dict(batch)
        columns["length"] = columns.pop(memories.LENGTH)[:, 0].long()
        return super().update(columns)

    def losses(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, value and priority of sequences: means over their steps; each [sequences]."""
        learn, lengths = self._cfg.learn, batch["length"]
        states = {name: state[:, 0] for name, state in memories.state_of(batch).items()}
        steps = torch.arange(batch["action"].shape[1], device=lengths.device)
        is_first = torch.stack([(state == 0).flatten(1).all(dim=1) for state in states.values()])
        burnt = torch.where(is_first.all(dim=0), 0, learn.burn_in).minimum(lengths)
        is_step = steps < lengths.unsqueeze(1)  # not filler
        learnt = is_step & (steps >= burnt.unsqueeze(1))
        values = self._unrolled(self._forward, batch, states, burnt, is_step)
        with torch.no_grad():
            target_values = self._unrolled(self.target_forward, batch, states, burnt, is_step)
            ahead = steps + batch["bootstrap_offset"].long()
            is_inside = ahead < lengths.unsqueeze(1)
            ahead = ahead.clamp(max=len(steps) - 1).unsqueeze(2).expand_as(values)
            choosing = (values if learn.double else target_values).gather(1, ahead)
            best = choosing.argmax(dim=2, keepdim=True)
            bootstrap = target_values.gather(1, ahead).gather(2, best).squeeze(2)
            bootstrap = unscaled(bootstrap, learn.rescale) * batch["bootstrap_discount"]
            target = scaled(batch["n_step_return"] + bootstrap, learn.rescale)
            counts = learnt & (is_inside | (batch["bootstrap_discount"] == 0))
        value = values.gather(2, batch["action"].long().unsqueeze(2)).squeeze(2)
        if self._extra:
            self._seen = {"output": values, "value": value, "is_learnt": learnt}
        error = torch.where(counts, target - value, 0.0)
        number = counts.sum(dim=1).clamp(min=1)
        losses = 0.5 * error.square().sum(dim=1) / number
        size = error.detach().abs()
        # eq. of sec. 2.3
        priority = learn.eta * size.amax(dim=1) + (1 - learn.eta) * size.sum(dim=1) / number
        return losses, torch.where(counts, value, 0.0).sum(dim=1) / number, priority

    def outputs_of(self, batch: Mapping[str, Tensor], value: Tensor) -> dict[str, Any]:  # noqa: ARG002
        """Of [sequences, steps]: see `extra.Outputs`; the rows that are learnt from count."""
        if not self._extra:
            return {}
        learnt, features = self._seen["is_learnt"], self._extra.features
        if features is not None:
            padded = features.new_zeros(*learnt.shape, features.shape[1])
            features = padded.index_put((learnt,), features)
        return {**self._seen, "features": features}

    def _unrolled(
        self, forward: Any, batch: Mapping[str, Any], states: Any, burnt: Tensor, is_step: Tensor
    ) -> Tensor:
        """Returns values [sequences, steps, actions], 0 in burn-in and filler.

        Args:
            forward: computes a network's output and next state.
            batch: see `update`.
            states: name -> [sequences, ...]: the memory's state before each sequence.
            burnt: steps of burn-in, int64 [sequences].
            is_step: bool [sequences, steps]; false in filler.
        """
        steps = torch.arange(is_step.shape[1], device=is_step.device)
        in_burn_in = steps < burnt.unsqueeze(1)
        if bool(in_burn_in.any()):
            chosen = burnt > 0
            with torch.no_grad():
                before = {name: state[chosen] for name, state in states.items()}
                rows = networks.rows_of(networks.observation_of(batch), in_burn_in)
                _, after = forward(rows, {**before, memories.LENGTH: burnt[chosen]})
            states = {name: state.clone() for name, state in states.items()}
            for name, state in states.items():
                state[chosen] = after[name].to(state.dtype)
        learnt = is_step & ~in_burn_in
        chosen = learnt.any(dim=1)
        before = {name: state[chosen] for name, state in states.items()}
        lengths = learnt.sum(dim=1)[chosen]
        rows = networks.rows_of(networks.observation_of(batch), learnt)
        values, _ = forward(rows, {**before, memories.LENGTH: lengths})
        padded: Tensor = values.new_zeros(*is_step.shape, values.shape[1])
        padded[learnt] = values
        return padded


def scaled(value: Tensor, slope: float) -> Tensor:
    """``h(x) = sign(x) (sqrt(|x| + 1) - 1) + e x`` (Pohlen et al. 2018); x itself for e = 1."""
    if slope == 1:
        return value
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + slope * value


def unscaled(value: Tensor, slope: float) -> Tensor:
    """The inverse of `scaled`."""
    if slope == 1:
        return value
    root = (1 + 4 * slope * (value.abs() + 1 + slope)).sqrt()
    return value.sign() * (((root - 1) / (2 * slope)).square() - 1)
