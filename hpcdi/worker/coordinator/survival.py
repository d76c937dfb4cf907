"""Whether a run goes on without a rank that has died; decisions only."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field

from hpcdi.comm.messages import WorkerReady
from hpcdi.config.schema import ExperimentConfig, SurvivalConfig


@dataclass
class Survival:
    """Who is alive, and without whom the run can do.

    Args:
        rules: what the user wants.
        is_possible: the MPI library lets the others live when a rank is killed.
        learners_on_gpu: learners speak by NCCL, which cannot be left in the middle of a step.
        each_learner_needs_one: a collector: on-policy, a batch has a piece for each learner.
    """

    rules: SurvivalConfig = field(default_factory=SurvivalConfig)
    is_possible: bool = False
    learners_on_gpu: bool = False
    each_learner_needs_one: bool = False
    _alive: dict[int, WorkerReady] = field(default_factory=dict)
    _idle: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    """Workers that have died and that the run has gone on without, and their roles."""

    @classmethod
    def of(cls, config: ExperimentConfig, *, is_possible: bool) -> Survival:
        """As an experiment wants it; a deterministic run has the same ranks from start to end."""
        rules = config.system.survival
        if config.system.deterministic:
            rules = dataclasses.replace(rules, on_collector_death="abort", on_learner_death="abort")
        return cls(rules, is_possible, config.policy.cuda, config.policy.on_policy)

    def come(self, rank: int, message: WorkerReady) -> None:
        """A worker has come."""
        self._alive[rank] = message

    def have_come(self, ranks: Collection[int]) -> bool:
        """Whether all of these are there."""
        return all(rank in self._alive for rank in ranks)

    def role_of(self, rank: int) -> str:
        """It is "collector" or "learner"; empty of one that has not come, or has died."""
        return self._alive[rank].role if rank in self._alive else ""

    def who(self, rank: int) -> str:
        """A worker, for people."""
        ready = self._alive.get(rank)
        return f"rank {rank} ({ready.role}, host {ready.host})" if ready else f"rank {rank}"

    def hosts(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """Where workers are."""
        return tuple(self._alive[rank].host for rank in ranks)

    def left(self, role: str) -> tuple[int, ...]:
        """Workers of a role that are alive and can work, in order."""
        of_role = [rank for rank, ready in self._alive.items() if ready.role == role]
        return tuple(sorted(rank for rank in of_role if rank not in self._idle))

    def why_not_without(self, rank: int) -> str:
        """Why the run cannot go on without a worker; empty: it can."""
        role = self.role_of(rank)
        if not role:
            return "it had not come yet"
        if rank in self._idle:
            return ""
        if len(self.left(role)) == 1:
            return f"it was the last {role}"
        if role == "collector" and len(self.left(role)) <= self.collectors_needed:
            return "on-policy there must be a collector to each learner"
        rule = {"collector": self.rules.on_collector_death, "learner": self.rules.on_learner_death}
        if rule[role] == "abort":
            return f"system.survival.on_{role}_death is 'abort'"
        if role == "learner" and self.learners_on_gpu:
            return "learners on GPUs cannot form their group anew"
        return ""

    @property
    def collectors_needed(self) -> int:
        """With fewer the run cannot go on."""
        return max(len(self.left("learner")), 1) if self.each_learner_needs_one else 1

    def goes_on_after_error(self, rank: int) -> bool:
        """Whether a worker that has raised is to die alone."""
        is_wanted = self.rules.on_worker_error == "continue"
        return is_wanted and self.is_possible and not self.why_not_without(rank)

    def dismiss(self, rank: int) -> None:
        """A worker is there, and can do nothing now."""
        self._idle.add(rank)

    def recall(self, rank: int) -> None:
        """It may be able to again."""
        self._idle.discard(rank)

    def report_of(self, rank: int) -> WorkerReady:
        """What a worker said when it came."""
        return self._alive[rank]

    def lose(self, rank: int) -> str:
        """A worker has died, and the run goes on; gives what it was."""
        self.lost[rank] = role = self._alive.pop(rank).role
        return role
