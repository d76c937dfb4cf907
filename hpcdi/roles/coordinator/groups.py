"""All that rank 0 knows of the groups of learners: one record per group.

Learners of a group average their gradients: they learn one policy. A run has one group, ``main``; a
league has one for each player that learns, with its name. Collectors collect for a group, into its
replay buffer. `hpcdi.league` alone knows who plays against whom.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import islice
from typing import Any, Protocol

import numpy as np

from hpcdi.comm.messages import (
    BlockReady,
    CollectPause,
    CollectProgress,
    CollectResult,
    DataDemand,
    LearnInfo,
    LearnResult,
    LearnTask,
)
from hpcdi.config.roles import SoloCommanderConfig
from hpcdi.config.schema import ExperimentConfig, learners_of
from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError
from hpcdi.replay.manager import ReplayFigures, ReplayManager, create_replay
from hpcdi.replay.partition import Partition
from hpcdi.roles.coordinator.workers import State, Worker
from hpcdi.roles.evaluations import evaluates_as
from hpcdi.types import FIGURES_KEPT, MAIN, Columns, Interval, ScalarWriter
from hpcdi.utils.log import LOGGER
from hpcdi.utils.progress import Evaluation, best_of


class OfPlayer(Protocol):
    """A message or task that names the player whose group it is about."""

    @property
    def player(self) -> str:
        """Name of the player."""
        ...


EPISODE_WINDOW = 100
"""Collected episodes whose returns are kept: the last ones."""
_SHARES_S = 1.0
"""Seconds from the first transition that rank 0 counts until collectors no longer wait for others
to make their shares."""


class EvaluationClock:
    """Decides when the next evaluation is due.

    If the interval is in seconds, a pause as long as an evaluation follows it: evaluations never
    take more than half of a collector's time.

    Args:
        every: interval from the beginning of one to that of the next.

    Attributes:
        took_s: seconds that the last one took.
    """

    def __init__(self, every: Interval) -> None:
        self.every, self.took_s = every, 0.0
        self._last: tuple[int, int, float] | None = None
        """Environment steps, train iterations and seconds when one began; None: one is due."""
        self._is_started = False  # `begin_learning` was called, also before a restart

    def begin_learning(self, env_steps: int, train_iter: int, now: float) -> None:
        """Count the interval from here: learning begins, and with it evaluations.

        After a restart the interval counts from the last evaluation, and one that was due stays so.
        """
        if self._last is not None:
            env_steps, train_iter, _ = self._last
        if self._last is not None or not self._is_started:
            self._last = env_steps, train_iter, now
        self._is_started = True

    def begin(self, env_steps: int, train_iter: int, now: float) -> None:
        """Note that an evaluation begins."""
        self._last = env_steps, train_iter, now

    def make_due(self) -> None:
        """Let an evaluation be due at once."""
        self._last = None

    def is_due(self, env_steps: int, train_iter: int, now: float) -> bool:
        """Returns whether one is due; never twice at the same counts."""
        if self._last is None:
            return True
        before_steps, before_iter, before_s = self._last
        passed = self.every.count(
            env_steps - before_steps, train_iter - before_iter, now - before_s
        )
        pause_s = 2 * self.took_s if self.every.unit == "seconds" else 0.0
        # passed < 0: counters were reset, e.g. by loading a checkpoint
        return passed < 0 or (passed > 0 and passed >= max(self.every.length, pause_s))

    def take(self, env_steps: int, train_iter: int, now: float) -> bool:
        """Returns whether one is due; if so, it begins."""
        is_due = self.is_due(env_steps, train_iter, now)
        if is_due:
            self.begin(env_steps, train_iter, now)
        return is_due

    def state_dict(self) -> list[int]:
        """Environment steps and train iterations when the last one began.

        Both are -1 where one is due; it is empty before learning begins.
        """
        if self._last is None:
            return [-1, -1] if self._is_started else []
        return list(self._last[:2])

    def load_state_dict(self, state: Iterable[int]) -> None:
        """Restore a `state_dict`; seconds count from `begin_learning`."""
        counts = [int(count) for count in state]
        self._is_started = bool(counts)
        self._last = (counts[0], counts[1], 0.0) if counts and counts[0] >= 0 else None


@dataclass
class Learners:
    """The learners of a group, who do a task together.

    Attributes:
        size: number of learners, also of those that have not reported yet; 0: all have died, and
            the run goes on without them.
        members: learners that have reported and live, in the order of ranks.
        task: the task of them all, until the last one has finished it.
    """

    size: int = 1
    members: list[Worker] = field(default_factory=list)
    task: LearnTask | None = None

    def __iter__(self) -> Iterator[Worker]:
        """Those that have reported and live."""
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def ranks(self) -> list[int]:
        """Ranks of those that have reported and live."""
        return [worker.rank for worker in self]

    def add(self, learner: Worker) -> None:
        """Add a learner that has reported."""
        if learner not in self.members:
            bisect.insort(self.members, learner, key=lambda worker: worker.rank)

    def lose(self, learner: Worker) -> None:
        """Remove a learner that has died while the run goes on."""
        self.members.remove(learner)
        self.size -= 1
        if not self.size:
            self.task = None

    @property
    def are_free(self) -> bool:
        """True if all have reported, and are free to begin a task."""
        return sum(worker.state is State.FREE for worker in self) >= self.size

    def begin(self, task: LearnTask, now: float) -> None:
        """Let all begin a task."""
        self.task = task
        for worker in self:
            worker.start(task, now)

    def take_demands(self) -> list[DataDemand] | None:
        """Returns the requests of all learners, once each has made one again; None until then."""
        demands = [worker.demand for worker in self if worker.demand is not None]
        if len(demands) < self.size:
            return None
        for worker in self:
            worker.demand = None
        return demands

    def average(self, learner: Worker, info: LearnInfo) -> LearnInfo:
        """Returns a learner's message with means of the last scalars of all learners.

        The mean of a scalar is over the learners that have it. `train_iter` is the smallest of all,
        0 until all have reported; `shares` stay those of the sender.
        """
        learner.info = info
        infos = [worker.info for worker in self if worker.info is not None]
        values: dict[str, list[float]] = {}
        for one in infos:
            for name, value in one.scalars.items():
                values.setdefault(name, []).append(value)
        means = {name: float(sum(v) / len(v)) for name, v in values.items()}
        slowest = min(one.train_iter for one in infos) if len(infos) == self.size else 0
        return dataclasses.replace(info, train_iter=slowest, scalars=means, player=learner.group)

    def group_result(self) -> LearnResult | None:
        """Returns the result of the task, and ends it, if all learners have finished; else None."""
        results = [worker.result for worker in self if worker.result is not None]
        if not results or len(results) < self.size:
            return None
        self.end_task()
        return dataclasses.replace(results[0], train_iter=min(r.train_iter for r in results))

    def end_task(self) -> None:
        """End the task; whatever learners send of it afterwards is ignored."""
        self.task = None
        for worker in self:
            worker.demand = worker.info = worker.result = None


@dataclass
class Group:
    """One group of learners, and the policy that it learns.

    Attributes:
        name: unique in the run; in a league the name of its player.
        replay: its replay buffer.
        evaluation: decides when its policy is evaluated.
        evaluates_as: what its evaluations are of; see `hpcdi.roles.evaluations.evaluates_as`.
        learners: its members, and their task.
        pause: whether its collectors were ordered to wait for its learners; None: none has begun.
        shared_at: `env_steps` when its first collector began, see `share_out`.
        counted_at: when more of them were seen first; inf: not yet.
        env_steps: environment steps of all its published blocks, also of those removed since.
        episodes: episodes that ended in these blocks.
        train_iter: iterations that all its learners have done.
        priorities_stale: number of priorities that came for items that had left the buffer.
        began_at: `env_steps` when it began anew; its exploration is by the steps since then.
        begins_anew: its learners have yet to be ordered to begin anew.
        evaluations: complete evaluations since this start of the run.
        evaluations_begun: number of evaluations since then, complete or not.
        evaluated_iter: train iterations of the policy of the last complete evaluation.
        evaluates_at: `env_steps` when the evaluation under way began; None: none is.
        best: mean return of its best evaluation in the whole run; -inf: there is none.
        best_evaluation: that evaluation; None: there is none.
        recent: return and length of the last episodes that were collected.
        recent_figures: figures of these by environments, by name; see `Episodes.figures`.
        info: the last scalars of its learners, averaged, which no curve shows yet.
    """

    name: str
    replay: ReplayManager
    evaluation: EvaluationClock
    learners: Learners = field(default_factory=Learners)
    evaluates_as: str = ""
    pause: CollectPause | None = None
    shared_at: int = 0
    counted_at: float = math.inf
    env_steps: int = 0
    episodes: int = 0
    train_iter: int = 0
    priorities_stale: int = 0
    began_at: int = 0
    begins_anew: bool = False
    evaluations: list[Evaluation] = field(default_factory=list)
    evaluations_begun: int = 0
    evaluated_iter: int = 0
    evaluates_at: int | None = None
    best: float = -math.inf
    best_evaluation: Evaluation | None = None
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=EPISODE_WINDOW))
    recent_figures: dict[str, deque[float]] = field(default_factory=dict)
    info: LearnInfo | None = None

    def has(self, message: OfPlayer) -> bool:
        """Returns whether a message or a task is about this group."""
        return message.player == self.name

    @property
    def is_main(self) -> bool:
        """True if the run's goal, its limits and its best policy are this group's."""
        return self.name == MAIN

    @property
    def is_learning(self) -> bool:
        """True if its learners have a task."""
        return self.learners.task is not None

    # ----------------------------------------------------------------------------------- progress

    def count(self, ready: BlockReady) -> None:
        """Count a published block's steps: only what is published still exists after a restart."""
        self.env_steps += ready.env_steps
        self.episodes += ready.episodes
        self.replay.note(ready)

    def share_out(self, collectors: int) -> CollectPause:
        """Let each collector make its share of what may come before the learners draw, and wait.

        Quick environments would be thousands of transitions ahead before rank 0 hears of the first.

        Args:
            collectors: ranks that share.

        Returns:
            The order for each, which is `pause` from now on.
        """
        room, self.shared_at = self.replay.room(self.env_steps), self.env_steps
        share = int(max(room, 0) // max(collectors, 1)) + 1 if room < math.inf else 0
        self.pause = CollectPause(share > 0, share)
        return self.pause

    def has_shares(self, now: float) -> bool:
        """Returns whether its collectors are still to wait when each has made its share.

        One that is late or dies holds up the others for a second: slow environments need no shares.
        """
        if self.pause is None or not self.pause.after:
            return False
        if self.env_steps > self.shared_at:
            self.counted_at = min(self.counted_at, now)
        return now < self.counted_at + _SHARES_S and self.replay.room(self.env_steps) > 0

    def reach(self, train_iter: int) -> None:
        """Note that all its learners have done `train_iter` iterations."""
        self.train_iter = max(self.train_iter, train_iter)

    def hear(self, progress: CollectProgress) -> None:
        """Note the episodes that one of its collectors has ended."""
        returns, lengths = progress.episode_returns.tolist(), progress.episode_lengths.tolist()
        self.recent.extend(zip(returns, lengths, strict=True))
        for name, values in progress.episode_figures.items():
            if name in self.recent_figures or len(self.recent_figures) < FIGURES_KEPT:
                window = self.recent_figures.setdefault(name, deque(maxlen=EPISODE_WINDOW))
                window.extend(values.tolist())

    @property
    def figures(self) -> dict[str, float]:
        """Means of the environments' figures of the last episodes that were collected, by name."""
        return means_of({n: np.array(values) for n, values in self.recent_figures.items()})

    @property
    def returns(self) -> list[float]:
        """Returns of the last episodes that were collected."""
        return [value for value, _ in self.recent]

    @property
    def is_busy(self) -> bool:
        """True if a learner has not learnt yet from all batches that it was sent."""
        parts = self.replay.partitions.values()
        return self.is_learning and not all(part.is_learnt for part in parts)

    @property
    def has_learnt(self) -> bool:
        """True if it has learnt since its last complete evaluation."""
        return self.train_iter > self.evaluated_iter

    def evaluation_is_due(self, now: float) -> bool:
        """Returns whether it is time for an evaluation."""
        return self.evaluation.is_due(self.env_steps, self.train_iter, now)

    def begin_evaluation(self, now: float) -> None:
        """Note that its evaluation begins."""
        self.evaluations_begun += 1
        self.evaluates_at = self.env_steps
        self.evaluation.begin(self.env_steps, self.train_iter, now)

    def lose_evaluation(self) -> None:
        """Note that the evaluation under way has failed: one is due again at once."""
        self.evaluates_at = None
        self.evaluation.make_due()

    def end_evaluation(self, result: CollectResult) -> float:
        """Take the result of a complete evaluation; returns its mean return."""
        began_at, self.evaluates_at = self.evaluates_at, None
        returns = np.asarray(result.episode_returns, dtype=np.float64)
        evaluation = Evaluation(
            mean=float(returns.mean()),
            std=float(returns.std()),
            lowest=float(returns.min()),
            highest=float(returns.max()),
            episodes=returns.size,
            policy_version=result.policy_version,
            env_steps=self.env_steps if began_at is None else began_at,
            took_s=result.duration_s,
            figures=dict(islice(means_of(result.episode_figures).items(), FIGURES_KEPT)),
        )
        self.evaluations.append(evaluation)
        self.evaluated_iter = result.policy_version
        self.recall(evaluation.mean, evaluation)
        return evaluation.mean

    def recall(self, best: float, evaluation: Evaluation | None = None) -> None:
        """Take an evaluation as the best if it is: a new one, or one that the run folder names.

        Args:
            best: its mean return, which the next has to exceed.
            evaluation: all of it; None: the folder says no more than its mean.
        """
        self.best = max(self.best, best)  # NaN never becomes the best
        candidates = [one for one in (self.best_evaluation, evaluation) if one is not None]
        self.best_evaluation = best_of(candidates)

    def begin_anew(self) -> None:
        """Let it learn on from the parameters of its start, and explore as at its start."""
        self.began_at, self.begins_anew = self.env_steps, True

    # -------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State for a snapshot: plain data and arrays."""
        best = self.best_evaluation
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "train_iter": self.train_iter,
            "priorities_stale": self.priorities_stale,
            "began_at": self.began_at,
            "evaluated_iter": self.evaluated_iter,
            "evaluates_as": self.evaluates_as,
            "best": self.best if math.isfinite(self.best) else None,
            # one text: names of figures may have any letters
            "best_evaluation": json.dumps(vars(best)) if best is not None else "",
            # one under way is not in the state: a resumed run makes it again
            "evaluation": self.evaluation.state_dict() if self.evaluates_at is None else [-1, -1],
            "replay": self.replay.state_dict(),
            "ratio": self.replay.ratio.state_dict(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady] | None = None
    ) -> None:
        """Restore a `state_dict`.

        Args:
            state: a `state_dict`.
            published: its blocks that exist, see `ReplayManager.load_state_dict`.
        """
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
        self.train_iter, self.priorities_stale = state["train_iter"], state["priorities_stale"]
        self.began_at, self.evaluated_iter = state["began_at"], state["evaluated_iter"]
        best = state["best_evaluation"]
        self.best_evaluation = Evaluation(**json.loads(best)) if best else None
        self.best = -math.inf if state["best"] is None else state["best"]
        if state["best"] is None and self.best_evaluation is not None:  # it may be infinite
            self.best = max(self.best, self.best_evaluation.mean)
        if state["evaluates_as"] != self.evaluates_as:
            if self.best > -math.inf:
                LOGGER.warning(
                    "evaluations of %s are of other settings now: the best one so far, of mean "
                    "return %g, is not compared with them",
                    self.name,
                    self.best,
                )
            self.best, self.best_evaluation = -math.inf, None
        self.evaluation.load_state_dict(state["evaluation"])
        self.replay.load_state_dict(state["replay"], published)
        drawn = int(state["replay"]["drawn"])
        self.replay.ratio.load_state_dict(state["ratio"], self.env_steps, drawn, self.train_iter)


class Groups:
    """All groups of a run, the main one first.

    Args:
        groups: at least one.
    """

    def __init__(self, groups: Iterable[Group]) -> None:
        self._by_name = {group.name: group for group in groups}
        self.main = next(iter(self._by_name.values()))

    def __getitem__(self, name: str) -> Group:
        """Returns the group of a name.

        Raises:
            CommError: there is no such group.
        """
        try:
            return self._by_name[name]
        except KeyError:
            names = ", ".join(self._by_name)
            message = f"there are no learners of {name!r} in this run, but of {names}"
            raise CommError(message) from None

    def of(self, message: OfPlayer) -> Group:
        """Returns the group that a message or a task is about; see `__getitem__`."""
        group = self._by_name.get(message.player)  # thousands of times a second
        return group if group is not None else self[message.player]

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def may_begin(self) -> bool:
        """True if there are groups without a task, and all learners of these groups are free."""
        idle = [g.learners for g in self if g.learners.size and not g.is_learning]
        return bool(idle) and all(learners.are_free for learners in idle)

    @property
    def others(self) -> list[Group]:
        """All groups but the main one."""
        return [group for group in self if group is not self.main]

    @property
    def size(self) -> int:
        """Number of learners of all groups, also of those that have not reported yet."""
        return sum(group.learners.size for group in self)

    @property
    def learners(self) -> list[Worker]:
        """Learners of all groups that have reported and live."""
        return [worker for group in self for worker in group.learners]

    @property
    def partitions(self) -> dict[int, Partition]:
        """Parts of the replay buffers, by learner rank."""
        return {rank: part for one in self for rank, part in one.replay.partitions.items()}

    def of_learner(self, rank: int) -> Group | None:
        """Returns the group whose replay buffer has a partition of a learner; None: none has."""
        return next((one for one in self if rank in one.replay.partitions), None)

    # ------------------------------------------------------------------------------------- totals

    @property
    def env_steps(self) -> int:
        """Environment steps of all groups."""
        if len(self._by_name) == 1:  # asked for at each block
            return self.main.env_steps
        return sum(group.env_steps for group in self)

    @property
    def episodes(self) -> int:
        """Episodes of all groups."""
        return sum(group.episodes for group in self)

    def replay_figures(self) -> ReplayFigures:
        """Figures of all replay buffers together."""
        return ReplayFigures.total(group.replay.figures() for group in self)

    @property
    def blocked(self) -> str:
        """Why learning, or collecting, has to wait; empty if neither has to."""
        if len(self) == 1:
            return self.main.replay.blocked
        return "; ".join(f"{g.name}: {g.replay.blocked}" for g in self if g.replay.blocked)

    # -------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State of each group, by its name."""
        return {group.name: group.state_dict() for group in self}

    def load_state_dict(
        self, state: Mapping[str, Any], published: Mapping[str, BlockReady] | None = None
    ) -> None:
        """Restore a `state_dict`; it may have other groups: those that are missing in it are new.

        Args:
            state: a `state_dict`.
            published: path -> announcement of all blocks that exist, oldest first; None: they come
                later.
        """
        for group in self:
            blocks = {n: b for n, b in (published or {}).items() if group.has(b)}
            if group.name in state:
                group.load_state_dict(state[group.name], None if published is None else blocks)
            else:
                group.replay.take_published(blocks)


def create_groups(
    config: ExperimentConfig,
    curves: ScalarWriter | None = None,
    workers: int = 2,
    *,
    in_turns: bool = False,
) -> Groups:
    """Make the records of an experiment's groups.

    Args:
        config: the experiment.
        curves: takes what the replay buffers report of themselves.
        workers: ranks besides the coordinator.
        in_turns: collecting and learning take turns, in one process.
    """
    sizes = learners_of(config)
    collectors = workers - sum(sizes.values())
    in_turns |= config.system.deterministic
    every = _evaluation_interval(config, in_turns=in_turns)
    return Groups(
        Group(
            name,
            create_replay(config, curves, collectors, size, number, player=name, in_turns=in_turns),
            EvaluationClock(every),
            Learners(size),
            evaluates_as(config),
        )
        for number, (name, size) in enumerate(sizes.items())
    )


def _evaluation_interval(config: ExperimentConfig, *, in_turns: bool) -> Interval:
    """Returns the configured interval; by default in iterations where roles take turns."""
    every = Interval.of(config.policy.eval.every)
    if every is not None:
        return every
    if in_turns:
        return Interval("iterations", config.policy.eval.evaluator.eval_freq)
    commander = config.policy.other.commander
    if isinstance(commander, SoloCommanderConfig):
        return Interval("seconds", commander.eval_interval)
    return Interval("seconds", math.inf)


def means_of(figures: Columns) -> dict[str, float]:
    """Returns means over the episodes with finite numbers, by name; see `Episodes.figures`."""
    finite = {name: values[np.isfinite(values)] for name, values in figures.items()}
    return {name: float(values.mean()) for name, values in finite.items() if values.size}
