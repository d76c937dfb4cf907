"""R2D2: recurrent replay for DQN (Kapturowski et al. 2019).

Samples are sequences of `collect.unroll_len` transitions, which begin every `collect.stride` ones.
The memory begins with the state that was stored, and reads the first `learn.burn_in` steps without
learning from them, so that it is as of the present network where learning begins. (At the start of
an episode the state is exact, and nothing is burnt in.) Targets are n-step ones of double
Q-learning, in a rescaled form; a step whose bootstrap lies behind the sequence is left out.

Read `dqn` and `torch_policy` for what is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hpcdi.config.fields import section, setting
from hpcdi.errors import Problem
from hpcdi.policy.dqn import DQNLearnConfig, DQNModelConfig, DQNPolicy
from hpcdi.policy.settings import CollectConfig, ReplayPolicyConfig
from hpcdi.utils.packed import rows_of
from hpcdi.utils.registry import POLICY_REGISTRY, lazy_module

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hpcdi.policy import memories
else:
    torch = lazy_module("torch")
    memories = lazy_module("hpcdi.policy.memories")


@dataclass(frozen=True)
class R2D2ModelConfig(DQNModelConfig):
    """The network."""

    dueling: bool = setting(True, "value and advantage apart (Wang et al. 2016)")
    memory: str = setting("lstm", "lstm, gru, or 'my_module:make'")


@dataclass(frozen=True)
class R2D2LearnConfig(DQNLearnConfig):
    """The update; `batch_size` counts sequences."""

    PAPER_RATIO: ClassVar[float | None] = None  # as many as come (Kapturowski et al. 2019)

    burn_in: int = setting(
        10, "steps at the start of a sequence that only the memory reads", minimum=0
    )
    eta: float = setting(
        0.9, "share of the largest TD error in a sequence's priority; the mean has the rest",
        minimum=0, maximum=1,
    )  # fmt: skip
    rescale: float = setting(
        1e-3, "slope, far from 0, of the function that values are rescaled by; 1: they are not",
        above=0, maximum=1,
    )  # fmt: skip


@dataclass(frozen=True)
class R2D2CollectConfig(CollectConfig):
    """Collecting."""

    n_sample: int = setting(
        80, "transitions of one environment that are processed together; sequences end there",
        minimum=2, maximum=65_535,
    )  # fmt: skip
    unroll_len: int = setting(
        40, "transitions of a sequence, burn-in included", minimum=2, maximum=65_535
    )
    stride: int = setting(20, "transitions from one sequence's start to the next's", minimum=1)


@POLICY_REGISTRY.register("r2d2")
class R2D2Policy(DQNPolicy):
    """R2D2; priorities are of sequences."""

    @dataclass(frozen=True)
    class Config(ReplayPolicyConfig):
        """Settings of R2D2."""

        LEARNS_FROM_SEQUENCES = True
        TAKES_MEMORY = True

        type: str = "r2d2"
        priority: bool = setting(True, "sample in proportion to priority")
        nstep: int = setting(5, "steps of reward before the value is bootstrapped", minimum=1)
        discount_factor: float = setting(0.997, "discount of one step", minimum=0, maximum=1)
        model: R2D2ModelConfig = section(R2D2ModelConfig, "the network")
        learn: R2D2LearnConfig = section(R2D2LearnConfig, "the update")
        collect: R2D2CollectConfig = section(R2D2CollectConfig, "collecting")

        def problems(self) -> Iterator[Problem]:
            """Rules over several settings."""
            yield from ReplayPolicyConfig.problems(self)
            if self.model.memory == "none":
                yield Problem("model.memory", "R2D2 is DQN with a memory: lstm or gru; or use dqn")
            if self.collect.stride > self.collect.unroll_len:
                yield Problem(
                    "collect.stride", "is above unroll_len: transitions would be left out"
                )
            if self.learn.burn_in >= self.collect.unroll_len:
                yield Problem("learn.burn_in", "leaves nothing of collect.unroll_len to learn from")
            if self.random_collect_size:
                yield Problem("random_collect_size", "has no states for a memory; leave this 0")

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
        held = steps < lengths.unsqueeze(1)
        learnt = held & (steps >= burnt.unsqueeze(1))
        values = self._unrolled(self._forward, batch, states, burnt, held)
        with torch.no_grad():
            target_values = self._unrolled(self._target_forward, batch, states, burnt, held)
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
        error = torch.where(counts, target - value, 0.0)
        number = counts.sum(dim=1).clamp(min=1)
        losses = 0.5 * error.square().sum(dim=1) / number
        size = error.detach().abs()
        # eq. of sec. 2.3
        priority = learn.eta * size.amax(dim=1) + (1 - learn.eta) * size.sum(dim=1) / number
        return losses, torch.where(counts, value, 0.0).sum(dim=1) / number, priority

    def _unrolled(
        self, forward: Any, batch: Mapping[str, Any], states: Any, burnt: Tensor, held: Tensor
    ) -> Tensor:
        """Values [sequences, steps, actions]; 0 where nothing is learnt."""
        steps = torch.arange(held.shape[1], device=held.device)
        in_burn_in = steps < burnt.unsqueeze(1)
        if bool(in_burn_in.any()):
            chosen = burnt > 0
            with torch.no_grad():
                own = {name: state[chosen] for name, state in states.items()}
                rows = rows_of(batch["observation"], in_burn_in)
                _, after = forward(rows, {**own, memories.LENGTH: burnt[chosen]})
            states = {name: state.clone() for name, state in states.items()}
            for name, state in states.items():
                state[chosen] = after[name].to(state.dtype)
        learnt = held & ~in_burn_in
        chosen = learnt.any(dim=1)
        own = {name: state[chosen] for name, state in states.items()}
        lengths = learnt.sum(dim=1)[chosen]
        rows = rows_of(batch["observation"], learnt)
        values, _ = forward(rows, {**own, memories.LENGTH: lengths})
        found: Tensor = values.new_zeros(*held.shape, values.shape[1])
        found[learnt] = values
        return found


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
