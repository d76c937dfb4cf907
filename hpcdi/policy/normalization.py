"""Running normalisation of observations and rewards, as buffers of the network.

Shards hold what environments returned. Its statistics are learnt where weights are: a learner takes
them from the batches that it learns from, several learners merge theirs, and they are buffers
``normalizer.*`` of the network. So they are part of each policy version: collectors act by those of
the version that they have; evaluations, checkpoints, snapshots and exports have them too; and
learners see old transitions as they see new ones.

On-policy each transition is counted once, after the update that learns from it, which so sees it by
the statistics that it was made by. A replay buffer's are counted as often as they are drawn, as in
Acme (Hoffman et al. 2020).

Observations are ``(x - mean) / sqrt(variance + 1e-8)``, each component for itself. Rewards are
divided by ``sqrt(variance of G + 1e-8)`` and not shifted, where ``G <- gamma G + r`` is each
environment's running discounted return, 0 at the start of an episode (Engstrom et al. 2020,
"Implementation matters", 3; OpenAI Baselines' VecNormalize).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.comm import group
from hpcdi.config.policy import TorchPolicyConfig
from hpcdi.errors import PolicyError
from hpcdi.policy.acting.base import DISCOUNTED
from hpcdi.policy.acting.network import VARIANCE_EPSILON
from hpcdi.policy.players import ACTS
from hpcdi.policy.spaces import STATE, is_normalised, obs_leaves
from hpcdi.store.rows import SEQUENCE_LEN
from hpcdi.types import Array

_WIDE = (torch.int32, torch.int64, torch.uint32, torch.uint64)
"""Dtypes of which not all numbers are in float32."""
_OBSERVATIONS = ("observation", "next_observation")


class Moments(nn.Module):
    """Count, mean and sum of squared differences of all arrays of one shape that were merged."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(tuple(shape), dtype=torch.float64))

    @property
    def deviation(self) -> Tensor:
        """The root of the variance, float64; 1 where nothing was merged."""
        variance = self.m2 / self.count.clamp(min=1)
        return torch.where(self.count > 0, (variance + VARIANCE_EPSILON).sqrt(), 1.0)

    def merge(self, packed: Tensor) -> None:
        """Add the moments of other arrays (Chan, Golub and LeVeque 1983, eq. 2.1).

        Args:
            packed: of `packed_moments`.
        """
        count, mean, m2 = packed[0], *packed[1:].view(2, *self.mean.shape)
        total = self.count + count
        share = count / total.clamp(min=1)
        difference = mean - self.mean
        self.m2 += m2 + difference.square() * (self.count * share)
        self.mean += difference * share
        self.count.copy_(total)


def packed_moments(rows: Tensor) -> Tensor:
    """Count, means and sums of squared differences of rows [n, components], float64 in a row."""
    rows = rows.double()
    mean = rows.mean(dim=0) if len(rows) else rows.new_zeros(rows.shape[1])
    count = torch.full((1,), len(rows), dtype=torch.float64, device=rows.device)
    return torch.cat([count, mean, (rows - mean).square().sum(dim=0)])


def of_all_learners(packed: Tensor) -> list[Tensor]:
    """What each learner has packed, in one order, so that all merge the same; collective."""
    gathered = [torch.empty_like(packed) for _ in range(group.get_world_size())]
    group.allgather(gathered, packed)
    return gathered


class Normalizer(nn.Module):
    """Statistics of observations and of the discounted return, and what they are used for.

    Args:
        cfg: a policy's settings, filled with the environment's spaces.
    """

    def __init__(self, cfg: TorchPolicyConfig) -> None:
        super().__init__()
        settings = cfg.normalize
        self._clip, self._on_policy = settings.clip, cfg.on_policy
        self._is_one_step = cfg.nstep == 1
        self._sequence = cfg.sequence.length
        leaves = obs_leaves(cfg.model) if settings.observation else ()
        seen = [leaf for leaf in leaves if is_normalised(leaf)]
        self._columns = [leaf.column("observation") for leaf in seen]
        self._is_of_teams = cfg.WHOLE_TEAMS
        states = [name for name in self._columns if name.split("/")[1:2] == [STATE]]
        self._of_states = states if cfg.sees_state else []
        self.observation: Any = nn.ModuleList(Moments(leaf.shape) for leaf in seen)
        self.returns = Moments(()) if settings.reward else None

    def forward(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Columns [rows, ...], observations among them as a network is to see them."""
        made = dict(columns)
        for column, moments in zip(self._columns, self.observation, strict=True):
            mean, scale = moments.mean.float(), (1 / moments.deviation).float()
            for root in _OBSERVATIONS:
                name = column.replace("observation", root, 1)
                if name in columns:
                    values = columns[name]
                    if values.dtype in _WIDE:  # of large numbers differences may be small
                        centred = (values.double() - moments.mean).float()
                    else:
                        centred = values.float() - mean
                    made[name] = (centred * scale).clamp(-self._clip, self._clip)
        return made

    def batch(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A learner's columns [rows, ...] as an update is to see them."""
        made: dict[str, Tensor] = self(columns)
        if self.returns is not None:
            scale = (1 / self.returns.deviation).float()
            if "reward" in made:
                made["reward"] = (made["reward"] * scale).clamp(-self._clip, self._clip)
            if "n_step_return" in made and not self._on_policy:
                made["n_step_return"] = made["n_step_return"] * scale
                if self._is_one_step:  # the reward itself
                    made["n_step_return"] = made["n_step_return"].clamp(-self._clip, self._clip)
        return made

    def rewards(self, reward: Array) -> Array:
        """Rewards, scaled and clipped, float32."""
        if self.returns is None:
            return reward
        scaled = reward / np.float32(self.returns.deviation.item())
        return scaled.clip(-self._clip, self._clip)

    @torch.no_grad()
    def learn(self, columns: Mapping[str, Tensor]) -> None:
        """Add a batch, as it was stored, to the statistics; collective over the learners.

        Args:
            columns: name -> [rows, ...], or [sequences, steps, ...] with `sequence_len`; of
                whole teams with `players.ACTS`.

        Raises:
            PolicyError: there are no discounted returns, or a value is infinite.
        """
        held = None
        if SEQUENCE_LEN in columns and (lengths := columns[SEQUENCE_LEN]).ndim == 2:
            steps = torch.arange(lengths.shape[1], device=lengths.device)
            held = (steps < self._sequence) & (steps < lengths[:, :1].long())  # behind is filler
            held = (held & (columns["bootstrap_offset"].long() > 0)).flatten()  # or no transition
        there = held
        if self._is_of_teams:  # with rows of players who are not there
            acts = columns[ACTS].flatten()
            there = acts if held is None else acts & held
        tracked = [*zip(self._columns, self.observation, strict=True)]
        if self.returns is not None:
            tracked.append((DISCOUNTED, self.returns))
        parts = []
        for name, moments in tracked:
            if name not in columns:
                raise PolicyError(
                    f"policy.normalize: samples have no {name!r}: collect them by columns, as "
                    "hpcdi train and hpcdi serial do"
                )
            rows = columns[name].reshape(-1, moments.mean.numel())
            counted = held if name in self._of_states else there
            parts.append(packed_moments(rows if counted is None else rows[counted]))
        packed = torch.cat(parts)
        if not bool(packed.isfinite().all()):
            raise PolicyError(
                "policy.normalize: an observation or a reward is infinite, and has no mean; clip "
                "it in the environment, e.g. by env.wrappers: [{type: ClipReward, ...}]"
            )
        for of_learner in of_all_learners(packed):
            own = torch.split(of_learner, [len(part) for part in parts])
            for (_, moments), each in zip(tracked, own, strict=True):
                moments.merge(each)
