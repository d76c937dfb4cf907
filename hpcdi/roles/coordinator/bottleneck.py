"""What holds a run back, in a line each: what was seen, and which setting to change.

Judged by what ranks measure of themselves, their shares of time by activity (`TimeLedger`), and by
the settings. A healthy run gets no line. Each rule is a function of this module; of those that
judge time, what stands first explains what stands behind it, and one line is enough for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from statistics import median

import numpy as np

from hpcdi.config.env import OverlappingConfig
from hpcdi.config.policy import EpsConfig, ReplayPolicyConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.config.team import TeamConfig
from hpcdi.dataclass import dataclass
from hpcdi.replay.ratio import warm_up_of
from hpcdi.types import Array
from hpcdi.utils.metrics import human_count

LEAST_S = 20.0
"""Nothing is said of the time of a run that has learnt for less."""
_MUCH = 0.5
"""A share of time above which a rank does one thing mostly."""
_BIG_GROWTH, _LARGE_LOSS, _BEYOND = 30.0, 100.0, 10.0
_FEW_POINTS = 8
_SOME = 2
"""Evaluations from which on it is known how much of the time they take: of one, not how often."""
_SLOWER = 5.0
"""Times that one environment is slower than the others, from which on it is named."""
_QUICK = 50.0
"""Updates a second above which a learner is not slow."""
_OFTEN = 64.0
"""Samples drawn of each transition above which little is new: published ratios are 0.25 to 20."""


@dataclass(frozen=True)
class Rank:
    """How a rank has used its time.

    Attributes:
        role: ``coordinator``, ``learner`` or ``collector``.
        shares: activity -> share of its time, 0 to 1.
        cpu: mean number of cores that it kept busy; NaN: not known.
        slowest_env: of a collector's environments, see `EnvManager.slowest`.
    """

    role: str
    shares: Mapping[str, float]
    cpu: float = math.nan
    slowest_env: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranks:
    """How ranks have used their time, a row a rank: there may be thousands; see `Rank`.

    Attributes:
        numbers: int64 [ranks], ascending.
        roles: str [ranks].
        shares: activity -> float64 [ranks].
        cpu: float64 [ranks].
        slowest_env: of each.
    """

    numbers: Array
    roles: Array
    shares: Mapping[str, Array]
    cpu: Array
    slowest_env: Sequence[Mapping[str, float]]

    @classmethod
    def of(cls, ranks: Mapping[int, Rank]) -> Ranks:
        """Returns what ranks have reported, by number."""
        numbers = sorted(ranks)
        reports = [ranks[number] for number in numbers]
        shares = [report.shares for report in reports]
        return cls(
            np.array(numbers, np.int64),
            np.array([report.role for report in reports], str),
            {
                name: np.array([of_rank.get(name, 0.0) for of_rank in shares])
                for name in set().union(*shares)
            },
            np.array([report.cpu for report in reports]),
            [report.slowest_env for report in reports],
        )

    def since(self, before: Ranks, elapsed_s: float, before_s: float) -> Ranks:
        """Returns how they have used their time since `before_s`, when it was as `before`."""
        had_reported = np.isin(self.numbers, before.numbers)
        of_those = np.isin(before.numbers, self.numbers)

        def later(now: Array, then: Array | None) -> Array:
            known = np.zeros(len(now))  # of a rank that had not reported yet: it has used little
            if then is not None:
                known[had_reported] = then[of_those]
            return (now * elapsed_s - known * before_s) / max(elapsed_s - before_s, 1e-9)

        shares = {
            name: later(share, before.shares.get(name)).clip(0.0, 1.0)
            for name, share in self.shares.items()
        }
        cpu = later(self.cpu, before.cpu)
        return Ranks(self.numbers, self.roles, shares, cpu, self.slowest_env)

    def share(self, activity: str) -> Array:
        """Returns the share of each one's time that it spends on something, float64 [ranks]."""
        return self.shares.get(activity, np.zeros(len(self.numbers)))


@dataclass(frozen=True)
class Used:
    """How a run has used its time.

    Attributes:
        elapsed_s: seconds.
        ranks: that have reported.
        evaluating_s: seconds that its evaluations have taken, together; there is one at a time.
        evaluations: number of those that are over.
        under_way: number of others.
    """

    elapsed_s: float
    ranks: Ranks
    evaluating_s: float = 0.0
    evaluations: int = 0
    under_way: int = 0

    def since(self, before: Used) -> Used:
        """Returns how it has used its time since then."""
        ranks = self.ranks.since(before.ranks, self.elapsed_s, before.elapsed_s)
        evaluating_s = self.evaluating_s - before.evaluating_s
        evaluations = self.evaluations - before.evaluations
        elapsed_s = self.elapsed_s - before.elapsed_s
        return Used(elapsed_s, ranks, evaluating_s, evaluations, self.under_way)


@dataclass(frozen=True)
class RunSeen:
    """A run, as this module sees it.

    Attributes:
        config: the experiment.
        used: how it has used its time since learning began.
        has_learnt: it has begun to learn.
        samples_per_transition: samples that were drawn for each transition, see `replay_ratio`.
        updates_per_s: train iterations a second.
        cores: that all ranks have together on their host; None: they are on several.
        takes_turns: all ranks are roles of one process, whose time says nothing of them.
        losses: a learner's losses, oldest first.
        largest_return: of the last episodes, by its absolute value; 0: there is none.
    """

    config: ExperimentConfig
    used: Used
    has_learnt: bool = True
    samples_per_transition: float = 0.0
    updates_per_s: float = 0.0
    cores: int | None = None
    takes_turns: bool = False
    losses: Sequence[float] = field(default_factory=tuple)
    largest_return: float = 0.0

    def share(self, role: str, activity: str) -> float:
        """Mean share of time that ranks of a role spend on something."""
        shares = self.used.ranks.share(activity)[self.used.ranks.roles == role]
        return float(shares.mean()) if len(shares) else 0.0

    @property
    def collectors(self) -> int:
        """Number of collectors."""
        return int((self.used.ranks.roles == "collector").sum())

    @property
    def is_full(self) -> bool:
        """True if the host's cores are all busy: more processes would not help."""
        return self.cores is not None and np.nansum(self.used.ranks.cpu) > 0.85 * self.cores


def advice_on(seen: RunSeen) -> dict[str, str]:
    """Returns what holds a run back, by kind; nothing of a healthy one."""
    said = _said_by(_OF_ALL_RUNS, seen)
    is_ordinary = not (seen.takes_turns or seen.config.data)  # offline nobody waits for others
    if seen.has_learnt and seen.used.elapsed_s >= LEAST_S and is_ordinary:
        said += _said_by(_OF_TIME, seen)[:1]
    return dict(said)


def _said_by(rules: Iterable[_Rule], seen: RunSeen) -> list[tuple[str, str]]:
    """Returns kind and line of each rule that has something to say."""
    lines = ((rule.__name__.strip("_"), rule(seen)) for rule in rules)
    return [(kind, line) for kind, line in lines if line]


# ------------------------------------------------------------------------------- of the settings


def _exploration_ends_early(seen: RunSeen) -> str:
    policy = seen.config.policy
    eps = getattr(policy.other, "eps", None)
    if not isinstance(policy, ReplayPolicyConfig) or not isinstance(eps, EpsConfig):
        return ""
    begins = warm_up_of(seen.config)
    if not begins or eps.start <= eps.end:
        return ""
    left = (eps.rate(begins) - eps.end) / (eps.start - eps.end)
    if left > 0.1:
        return ""
    return (
        f"exploration has fallen to {eps.rate(begins):.2g} before learning begins, at env step "
        f"{human_count(begins)}: raise policy.other.eps.decay ({human_count(eps.decay)}), or begin "
        "earlier (policy.other.replay_buffer.min_fill, policy.random_collect_size)"
    )


# ------------------------------------------------------------------------------- of ranks' time


def _disk(seen: RunSeen) -> str:
    share = seen.share("collector", "disk")
    if share < 0.2:
        return ""
    return (
        f"collectors wait {share:.0%} of their time for the disk: a faster file system for the run "
        "folder (--run-dir), or system.storage.fsync=false if a power failure may cost data"
    )


def _evaluation(seen: RunSeen) -> str:
    share = seen.used.evaluating_s / (max(seen.collectors, 1) * seen.used.elapsed_s)
    if share < 0.25 or seen.used.evaluations + seen.used.under_way < _SOME:
        return ""
    every = seen.config.policy.eval.every
    now = f"={every}" if every is not None else ""
    return (
        f"evaluations take {share:.0%} of the collectors' time: evaluate less often "
        f"(policy.eval.every{now}), or fewer episodes (env.evaluator_episode_num)"
    )


def _messages(seen: RunSeen) -> str:
    busy = 1.0 - seen.share("coordinator", "wait") - seen.share("coordinator", "start")
    if busy < 0.7:
        return ""
    return (
        f"rank 0 is busy {busy:.0%} of its time with messages: larger blocks "
        "(system.storage.block_bytes, seal_seconds), or fewer collectors"
    )


def _oversubscribed(seen: RunSeen) -> str:
    """Ranks that were ready to compute had no core: their busy time is more than their CPU time."""
    ranks = seen.used.ranks
    known = ~np.isnan(ranks.cpu) & (ranks.roles != "coordinator")
    busy, computing = (1.0 - ranks.share("wait"))[known].sum(), ranks.cpu[known].sum()
    if not seen.is_full or seen.cores is None or busy < 2.0 * seen.cores:
        return ""
    return (
        f"{known.sum()} ranks share {seen.cores} cores, and computed {computing / busy:.0%} of "
        f"the time that they wanted to: fewer ranks do as much (-n {seen.cores + 2})"
    )


def _slow_environment(seen: RunSeen) -> str:
    ranks = seen.used.ranks
    for row in map(int, np.flatnonzero(ranks.share("env") >= _MUCH)):
        slow = ranks.slowest_env[row]
        if slow and slow["step_s"] > _SLOWER * slow["others_s"]:
            step_ms, others_ms = 1e3 * slow["step_s"], 1e3 * slow["others_s"]
            overlaps = isinstance(seen.config.env.manager, OverlappingConfig)
            needed = "" if overlaps else "env.manager.type=subprocess, "
            return (
                f"environment {slow['env']:.0f} of rank {ranks.numbers[row]} takes {step_ms:.3g} "
                f"ms a step, others take {others_ms:.3g} ms and wait for it: find out why, or let "
                f"them go on ({needed}env.manager.wait_num)"
            )
    return ""


def _learner_waits(seen: RunSeen) -> str:
    waits = seen.share("learner", "wait")
    busiest = max(("env", "policy", "record"), key=lambda name: seen.share("collector", name))
    if waits < _MUCH or seen.share("collector", "wait") > 0.35 or seen.is_full:
        return ""
    what, instead = {
        "env": (
            "stepping environments",
            "faster environments, env.manager.type=subprocess where cores are idle",
        ),
        "policy": ("acting", "more environments that act together (env.collector_env_num)"),
        "record": ("recording", "smaller observations (bytes, frames that are shared)"),
    }[busiest]
    return (
        f"the learner waits {waits:.0%} of its time for data, while collectors spend "
        f"{seen.share('collector', busiest):.0%} of theirs on {what}: more collectors (-n), or "
        f"{instead}"
    )


def _collectors_wait(seen: RunSeen) -> str:
    waits, trains = seen.share("collector", "wait"), seen.share("learner", "train")
    policy = seen.config.policy
    if policy.on_policy:  # collecting and learning take turns
        is_normal = min(waits, trains) < 0.85
    else:  # the algorithm's own replay ratio, by a learner that is not slow
        ratio, usual = policy.replay_ratio, policy.paper_ratio
        is_own = ratio is None or not usual or ratio <= usual
        is_normal = is_own and seen.updates_per_s > _QUICK
    if waits < _MUCH or trains < 0.6 or is_normal:
        return ""
    learners = policy.learn.learner.learner_num
    gpu = "" if policy.cuda else "a GPU (policy.cuda), "
    return (
        f"collectors wait {waits:.0%} of their time for the learner, which trains {trains:.0%} of "
        f"its: {gpu}more learners (policy.learn.learner.learner_num={learners}), fewer updates for "
        "each transition, or fewer collectors, which lose nothing"
    )


def _overtrains(seen: RunSeen) -> str:
    """Without a replay ratio learners draw as fast as they can, however slow collectors are."""
    policy, drawn = seen.config.policy, seen.samples_per_transition
    if policy.on_policy or policy.replay_ratio is not None or drawn < _OFTEN or seen.is_full:
        return ""
    return (
        f"{drawn:.0f} samples are drawn for each transition, since collecting is slower than "
        "learning: more collectors (-n) or faster environments; policy.learn.replay_ratio=8 "
        "bounds it"
    )


# ------------------------------------------------------------------------------- of learning


def _loss_explodes(seen: RunSeen) -> str:
    losses = [abs(loss) for loss in seen.losses]
    if len(losses) < _FEW_POINTS:
        return ""
    before, now = min(losses[:3]), median(losses[-3:])
    has_grown = now > _LARGE_LOSS and now > _BIG_GROWTH * before
    # an error of values that is larger, squared, than any return was
    is_beyond = seen.largest_return > 0 and now > (_BEYOND * seen.largest_return) ** 2
    if not has_grown and not is_beyond:
        return ""
    grown = f"has grown from {before:.3g} to" if has_grown else "is"
    advice = (
        "lower policy.learn.learning_rate, set policy.learn.grad_clip_norm, or scale rewards "
        "(policy.normalize.reward)"
    )
    if isinstance(seen.config.policy, TeamConfig):  # these are its policies', without rewards'
        names = [*seen.config.policy.policies]
        learn = f"policy.policies.{names[0] if len(names) == 1 else 'NAME'}.learn"
        advice = f"lower {learn}.learning_rate, or set {learn}.grad_clip_norm"
    return f"the loss {grown} {now:.3g}: {advice}"


_Rule = Callable[[RunSeen], str]
_OF_ALL_RUNS: tuple[_Rule, ...] = (_exploration_ends_early, _loss_explodes)
_OF_TIME: tuple[_Rule, ...] = (
    _disk, _evaluation, _messages, _oversubscribed, _slow_environment, _collectors_wait,
    _learner_waits, _overtrains,
)  # fmt: skip
"""The first that has something to say explains what the others would say."""
