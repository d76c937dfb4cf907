"""Settings of a team's policies: `policy` of type team, which acts in environments of that type."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Self

from hpcdi.config.fields import components, replaced, sections, setting
from hpcdi.config.policy import (
    BaseLearnConfig,
    BaseOtherConfig,
    CollectConfig,
    HindsightConfig,
    PolicyConfig,
    TorchPolicyConfig,
)
from hpcdi.dataclass import dataclass
from hpcdi.errors import Problem
from hpcdi.types import Leaf, SequenceRule, Settings
from hpcdi.utils.registry import POLICY_REGISTRY

ALL = "all"
"""Name of the policy of all players, where an experiment names an algorithm alone."""
_OF_TEAM = (
    *("cuda", "priority", "priority_IS_weight", "random_collect_size", "eval"),
    *("collect.n_sample", "collect.collector", "collect.serial_collector", "learn.learner"),
    *("learn.replay_ratio", "learn.update_per_collect"),
    *("other.replay_buffer", "other.commander"),
)
"""Settings of the whole team: those of its policies must be left as they are."""
_BATCH = "learn.batch_size"
"""Of the team's steps where it learns from the replay buffer, else of each policy's rows."""
_OF_POLICIES = ("discount_factor", "nstep")
"""Settings of each policy: those of the team must be left as they are, or equal all of these."""


@dataclass(frozen=True)
class TeamConfig(PolicyConfig):
    """Settings of a team's policies.

    What concerns the run is here: collecting, replay, evaluations, learner ranks. Networks and
    updates are the policies' own.
    """

    type: str = "team"
    policies: dict[str, TorchPolicyConfig] = components(
        POLICY_REGISTRY, "the policies: name -> type and settings, as of a single `policy`"
    )
    players: dict[str, str] = setting(
        {},
        "who acts by which policy: a player's name, or a pattern such as 'predator_*' -> policy; "
        "the first that matches counts; empty: players act by the policy whose name theirs begins "
        "with, all by a single one",
    )
    numbers: bool = setting(
        True, "players that share a policy see their number, by which it can tell them apart"
    )
    observation: tuple[Leaf, ...] = sections(Leaf, "the environment's observations, filled in")
    action: tuple[Leaf, ...] = sections(Leaf, "the environment's actions, filled in")
    is_masked: bool = setting(False, "the environment has masks of actions, filled in")

    def __post_init__(self) -> None:
        """Take from the policies whether they learn on-policy."""
        if self.policies:
            is_on_policy = all(policy.on_policy for policy in self.policies.values())
            object.__setattr__(self, "on_policy", is_on_policy)

    @classmethod
    def of(cls, policy: TorchPolicyConfig) -> Self:
        """Returns the settings of a team whose players all act by one policy.

        What concerns the run is the team's alone: there it may be changed when the run goes on.
        """
        learn, other = policy.learn, policy.other
        defaults = type(policy)()
        member = replaced(policy, {path: attrgetter(path)(defaults) for path in _OF_TEAM})
        if max(member.collect.unroll_len, member.nstep) > member.collect.n_sample:  # both end there
            member = replaced(member, {"collect.n_sample": policy.collect.n_sample})
        batch = defaults.learn.batch_size
        if not policy.on_policy and batch >= learn.accumulate:  # of which a part needs a sample
            member = replaced(member, {_BATCH: batch})
        if policy.on_policy:
            learn = dataclasses.replace(learn, batch_size=BaseLearnConfig().batch_size)
        return cls(
            import_names=policy.import_names,
            cuda=policy.cuda,
            priority=policy.priority,
            priority_IS_weight=policy.priority_IS_weight,
            discount_factor=policy.discount_factor,
            random_collect_size=policy.random_collect_size,
            nstep=policy.nstep,
            collect=dataclasses.replace(_part(CollectConfig, policy.collect), unroll_len=1),
            eval=policy.eval,
            learn=_part(BaseLearnConfig, learn),
            other=_part(BaseOtherConfig, other),
            policies={ALL: member},
        )

    @property
    def paper_ratio(self) -> float | None:
        """See `PolicyConfig.paper_ratio`, for each step of the team: of the first policy."""
        first = next(iter(self.policies.values()), None)
        return first.paper_ratio if first is not None else None

    @property
    def names(self) -> tuple[str, ...]:
        """The players, once the environment's observations are filled in."""
        roots = (leaf.name.split("/") for leaf in self.observation)
        return tuple(dict.fromkeys(root[1] for root in roots if root[0] == "players"))

    @property
    def sequence(self) -> SequenceRule:
        """See `PolicyConfig.sequence`: what each of the policies finds its sequences in."""
        rules = [policy.sequence for policy in self.policies.values()] or [SequenceRule()]
        stride, ahead = min(rule.stride for rule in rules), max(rule.ahead for rule in rules)
        return SequenceRule(rules[0].length, stride, ahead)

    @property
    def burn_in(self) -> int:
        """See `PolicyConfig.burn_in`: the shortest of the policies'."""
        return min((policy.burn_in for policy in self.policies.values()), default=0)

    @property
    def stack_len(self) -> int:
        """See `PolicyConfig.stack_len`: the longest of the policies'."""
        return max((policy.stack_len for policy in self.policies.values()), default=0)

    def usual_updates(self, transitions: int) -> int:
        """See `PolicyConfig.usual_updates`: of the first policy."""
        return next(iter(self.policies.values())).usual_updates(transitions)

    def collect_setting(self, info: Settings) -> dict[str, Any]:
        """What rank 0 tells collectors: of each policy."""
        return {name: policy.collect_setting(info) for name, policy in self.policies.items()}

    def policy_of(self, player: str) -> str | None:
        """Returns the policy that a player acts by; None: no pattern matches its name."""
        for pattern, policy in self.players.items():
            if fnmatch.fnmatchcase(player, pattern):
                return policy
        if self.players:
            return None
        if len(self.policies) == 1:
            return next(iter(self.policies))
        beginnings = [name for name in self.policies if player.startswith(name)]
        return max(beginnings, key=len, default=None)

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from self._problems_of_team()
        if not self.policies:
            yield Problem("policies", "must name at least one policy")
        for pattern, name in self.players.items():
            if name not in self.policies:
                known = ", ".join(self.policies)
                yield Problem(f"players.{pattern}", f"is {name}, no policy; there are {known}")
        if len({policy.on_policy for policy in self.policies.values()}) > 1:
            why = "all learn on-policy, or all from the replay buffer: they share their data"
            yield Problem("policies", why)
        yield from self._problems_of_sequences()
        for name, policy in self.policies.items():
            if set(name) & set("./"):
                why = "has . or / in its name, which part those of its parameters and columns"
                yield Problem(f"policies.{name}", f"{why}: rename it")
            for problem in self._problems_of_policy(policy):
                yield dataclasses.replace(problem, path=f"policies.{name}.{problem.path}")

    def _problems_of_team(self) -> Iterator[Problem]:
        for problem in PolicyConfig.problems(self):
            is_of_policies = problem.path == "collect.unroll_len"
            yield self._belongs_to_policies(problem.path) if is_of_policies else problem
        for path in (*_OF_POLICIES, *([_BATCH] if self.on_policy else [])):
            value_of = attrgetter(path)
            in_policies = {*map(value_of, self.policies.values())}
            if value_of(self) != value_of(type(self)()) and {value_of(self)} != in_policies:
                yield self._belongs_to_policies(path)

    def _belongs_to_policies(self, path: str) -> Problem:
        name = next(iter(self.policies), "NAME")
        default = attrgetter(path)(type(self)())
        why = f"is each policy's own: set policy.policies.{name}.{path}, and leave this {default}"
        return Problem(path, why)

    def _problems_of_sequences(self) -> Iterator[Problem]:
        if len({policy.sequence.length for policy in self.policies.values()}) > 1:
            why = (
                "all learn from single steps, or all by a memory from sequences of one "
                "collect.unroll_len: they share their samples"
            )
            yield Problem("policies", why)
        if self.sequence.length > 1 and self.random_collect_size:
            yield Problem("random_collect_size", "has no states for a memory; leave this 0")

    def _problems_of_policy(self, policy: TorchPolicyConfig) -> Iterator[Problem]:
        if policy.LEARNS_FROM_SEQUENCES or policy.IMITATES or policy.CORRECTS_STALENESS:
            why = (
                "a team learns by ppo, vdn or qmix, which may have a model.memory, or by what has "
                "a replay buffer of single steps, such as dqn, c51, sac or td3; not by "
                f"{policy.type}"
            )
            yield Problem("type", why)
        if policy.normalize.reward:
            yield Problem("normalize.reward", "is not for the policies of a team yet")
        if getattr(policy, "hindsight", None) not in (None, HindsightConfig()):
            yield Problem("hindsight", "is not for the policies of a team yet")
        if policy.exploration_bonus.type != "none":
            yield Problem("exploration_bonus.type", "is not for the policies of a team yet")
        if policy.collect.unroll_len > self.collect.n_sample:
            why = f"is above policy.collect.n_sample ({self.collect.n_sample}), where it ends"
            yield Problem("collect.unroll_len", why)
        if not policy.on_policy and policy.nstep > self.collect.n_sample:
            why = f"is above policy.collect.n_sample ({self.collect.n_sample}), where it ends"
            yield Problem("nstep", why)
        if self.eval.sample and not policy.DRAWS_ACTIONS:
            why = "has no distribution of actions to draw from; leave policy.eval.sample false"
            yield Problem("type", f"{policy.type} {why}")
        defaults = type(policy)()
        for path in (*_OF_TEAM, *(() if policy.on_policy else [_BATCH])):
            value, default, of_team = map(attrgetter(path), (policy, defaults, self))
            if value not in (default, of_team):
                why = f"is one of the whole team: set policy.{path}, and leave this {default}"
                yield Problem(path, why)


def _part(cls: Any, whole: Any) -> Any:
    """Returns a section as the class that it is derived from."""
    return cls(**{each.name: getattr(whole, each.name) for each in dataclasses.fields(cls)})
