"""The checks of `hpcdi rehearse`: pure functions of what was measured, in the order of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hpcdi.commands.findings import FAIL, OK, WARN, Finding, together
from hpcdi.commands.rehearse.facts import Alone, AsARun, Times
from hpcdi.config.env import ChildConfig, ManagerConfig, OverlappingConfig
from hpcdi.config.policy import TorchPolicyConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.config.team import TeamConfig
from hpcdi.dataclass import dataclass
from hpcdi.env.contract import COARSE_FROM
from hpcdi.policy.spaces import is_normalised as has_statistics
from hpcdi.policy.spaces import scale_of
from hpcdi.run.placement import learner_count, working_collectors
from hpcdi.run.sizes import memory_of, row_size
from hpcdi.types import Spaces
from hpcdi.utils.metrics import brief, counted, human_bytes, human_count

_ENDLESS_STEPS = 2_000
"""Steps of an episode that does not end from which that is a fault."""
_SLOW_RESET_S, _LARGE_SHARE = 0.05, 0.5
"""Resets that take at least so long each, and more than this share of the time, are a fault."""
_LONG_EVALUATION_S = 900.0
_MANY_LINES, _MANY_BYTES = 20, 2_000
"""Printed, from which it is too much."""
_LARGE, _LARGE_RETURN, _SMALL = 1e3, 1e5, 1e-4
"""Sizes from which observations and rewards, and returns, are large; up to which rewards are tiny.
"""
_UNEVEN = 1e4
"""Ratio of components' deviations beyond which networks do not see the smallest one."""
_CODES = 32.0
"""Bytes up to it are rather codes than brightness, where the space says far more."""
_FLOAT32_WARNINGS = ("stored as float32", "networks see it as float32")
"""Parts of the warning of `EnvManager` about numbers that are coarse in float32."""
_SHARE_OF_MEMORY = 0.9
"""Share of a host's memory that data may take."""
_NORMALIZE = "policy.normalize.{}=true"
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?")


@dataclass(frozen=True)
class Facts:
    """All that is known when the rehearsal is judged.

    Attributes:
        config, spaces: the experiment, checked.
        ranks: of the run that is planned.
        alone: of one environment; None: there are no single ones.
        run: of all of a collector.
        memory_bytes: that this host has free; 0: unknown.
    """

    config: ExperimentConfig
    spaces: Spaces
    ranks: int
    alone: Alone | None
    run: AsARun
    memory_bytes: int = 0


def findings(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yields the rows, name and finding, of what was measured."""
    alone, run, config, spaces = facts.alone, facts.run, facts.config, facts.spaces
    rows = [("spaces", check_spaces(config, spaces, alone))]
    if alone is not None:
        rows += [
            ("values", check_values(alone)),
            ("speed", check_speed(alone, config)),
            ("episodes", check_episodes(alone, config)),
            ("observations", check_observations(alone, config, spaces)),
            ("rewards", check_rewards(alone, config)),
            ("arrays", check_arrays(alone)),
            ("seeds", check_seeds(alone, config)),
            ("memory", check_memory(alone, run)),
            ("output", check_output(alone)),
            ("signals", check_signals(alone)),
            ("one process", check_another(alone, config)),
        ]
    rows += [
        ("as a run", check_run(run, alone)),
        ("evaluation", check_evaluation(run, alone, config)),
        ("data", check_data(facts)),
    ]
    for name, parts in rows:
        if of_row := list(parts):  # none, where the environment did not come so far
            yield name, together(of_row)


# ------------------------------------------------------------------------------------------- values


def check_spaces(
    config: ExperimentConfig, spaces: Spaces, alone: Alone | None
) -> Iterator[Finding]:
    """Says what is observed, done and stored."""
    seen, acts = (", ".join(map(str, leaves)) for leaves in (spaces.observation, spaces.action))
    mask = ", masks of legal actions" * spaces.is_masked
    stored = f"a stored transition has {human_bytes(row_size(config, spaces))}"
    yield Finding(OK, f"observations {seen}{mask}; actions {acts}; {stored}")
    policy = config.policy
    takes_masks = isinstance(policy, TorchPolicyConfig) and policy.TAKES_MASKS
    if takes_masks and not spaces.is_masked and alone is not None and alone.habits.tells_masks:
        text = "its infos have masks of legal actions, which the policy does not get"
        yield Finding(WARN, text, "env.action_mask=info")


def check_values(alone: Alone) -> Iterator[Finding]:
    """Judges whether values are as the spaces say, and numbers."""
    if alone.trouble:
        yield Finding(FAIL, alone.trouble, _advice_on(alone.trouble))
    if alone.failures:
        yield _failed(alone.failures, alone.steps, alone.warnings)
    for text in alone.outside:
        yield Finding(WARN, text, "set the space to what the environment returns")
    if not (alone.trouble or alone.failures or alone.outside):
        yield Finding(OK, f"as the spaces say, in {alone.steps:,} steps")


def _failed(failures: int, steps: int, warnings: list[str]) -> Finding:
    warning = next((text for text in warnings if " failed (" in text), "it failed")
    return Finding(
        FAIL,
        f"{counted(failures, 'time')} in {steps:,} steps: {warning}",
        "each time a run drops the episode: repair it",
    )


def _advice_on(trouble: str) -> str:
    if "was not over" in trouble or "exited" in trouble or "killed" in trouble:
        return (
            "it hangs or ends its process: env.manager: {type: subprocess, step_timeout: 60, "
            "reset_timeout: 60} lets a run go on without it"
        )
    return "repair it, or wrap it (env.wrappers)"


def check_arrays(alone: Alone) -> Iterator[Finding]:
    """Says whether what was returned changes later."""
    if not alone.steps:
        return
    if alone.habits.reuses_arrays:
        yield Finding(
            WARN,
            "observations change after they were returned: arrays are reused",
            "hpcdi copies them at once; so must wrappers and code of yours that keep them",
        )
    else:
        yield Finding(OK, "observations stay as they were returned")


# --------------------------------------------------------------------------------------------- time


def check_speed(alone: Alone, config: ExperimentConfig) -> Iterator[Finding]:
    """Judges the times of making, resets and steps."""
    habits = alone.habits
    if not alone.steps:
        return
    acts = [("made", habits.made), ("reset", habits.resets), ("stepped", habits.steps)]
    texts = [f"{name} in {brief(times.mean_s)}{_longest(times)}" for name, times in acts]
    per_s = 1 / habits.steps.mean_s if habits.steps.total_s else 0.0
    yield Finding(OK, f"{', '.join(texts)}: {human_count(per_s)} steps/s of one")
    share = habits.resets.total_s / max(1e-9, habits.resets.total_s + habits.steps.total_s)
    if habits.resets.mean_s >= _SLOW_RESET_S and share > _LARGE_SHARE:
        text = f"resets take {100 * share:.0f}% of the time"
        yield Finding(WARN, text, f"{_overlap_advice(config.env.manager)}make episodes longer")
    manager, survival = config.env.manager, config.system.survival
    for name, times, limit_s in (
        ("env.manager.reset_timeout", habits.resets, manager.reset_timeout),
        ("env.manager.step_timeout", habits.steps, manager.step_timeout),
        ("system.survival.worker_timeout_s", habits.resets, survival.worker_timeout_s),
        ("system.survival.worker_timeout_s", habits.steps, survival.worker_timeout_s),
    ):
        if limit_s is not None and times.most_s >= limit_s:
            text = f"{times.most_s:.1f} s in one call, and {name} is {limit_s:g}"
            yield Finding(FAIL, text, f"raise {name}")


def _overlap_advice(manager: ManagerConfig) -> str:
    """Returns how to have other environments go on while one is reset; "": they do already."""
    if not isinstance(manager, OverlappingConfig):
        return "others wait meanwhile: env.manager: {type: subprocess, wait_num: ...}, or "
    return "" if manager.wait_num else "others wait meanwhile: set env.manager.wait_num, or "


def _longest(times: Times) -> str:
    """Returns the longest time, for a message, where it is far above the mean; else ""."""
    is_uneven = times.most_s > 10 * times.mean_s and times.most_s > _SLOW_RESET_S
    return f" (up to {brief(times.most_s)})" * is_uneven


def check_episodes(alone: Alone, config: ExperimentConfig) -> Iterator[Finding]:
    """Judges whether episodes end."""
    if alone.lengths:
        lengths, returns = np.array(alone.lengths), np.array(alone.returns)
        yield Finding(
            OK,
            f"{len(lengths)} at random: {lengths.mean():.1f} steps ({lengths.min()} to "
            f"{lengths.max()}), return {returns.mean():.4g} ({returns.min():.4g} to "
            f"{returns.max():.4g})",
        )
        return
    if not alone.steps:
        return
    limit = f", and it is cut at {alone.limit:,}" if alone.limit else ""
    text = f"none has ended in {alone.running:,} steps{limit}"
    is_late = alone.running >= _ENDLESS_STEPS and not (alone.limit or 0) > alone.running
    advice = (
        "set env.kwargs: {max_episode_steps: ...}; evaluations cut episodes at "
        f"{config.policy.eval.max_steps:,} (policy.eval.max_steps)"
    )
    yield Finding(FAIL, text, advice) if is_late else Finding(OK, text)


def check_evaluation(
    run: AsARun, alone: Alone | None, config: ExperimentConfig
) -> Iterator[Finding]:
    """Says how long an evaluation takes."""
    if not run.wanted:
        return
    mean = f", mean return {np.mean(run.returns):.4g}" if run.returns else ""
    if run.played >= run.wanted:
        took = brief(run.evaluated_s)
        yield Finding(OK, f"{run.wanted} episodes of the fresh policy in {took}{mean}")
        return
    length = float(np.mean(alone.lengths)) if alone and alone.lengths else np.inf
    per_s = run.evaluated_steps / max(1e-9, run.evaluated_s)
    by_length = length * run.wanted / max(1e-9, per_s)
    in_all_s = run.evaluated_s * run.wanted / run.played if run.played else by_length
    text = f"{run.played} of {run.wanted} episodes of the fresh policy in "
    text += brief(run.evaluated_s) + mean
    if in_all_s < _LONG_EVALUATION_S:
        yield Finding(OK, f"{text}: all would take about {brief(in_all_s)}")
        return
    yield Finding(
        WARN,
        f"{text}: all would take {'too long to say' if np.isinf(in_all_s) else brief(in_all_s)}",
        "fewer episodes (env.evaluator_episode_num), a limit (policy.eval.max_steps: "
        f"{config.policy.eval.max_steps:,}), or evaluate seldom (policy.eval.every)",
    )


def check_run(run: AsARun, alone: Alone | None) -> Iterator[Finding]:
    """Says how all environments of a collector do together."""
    if run.trouble:
        yield Finding(FAIL, f"{run.trouble} ({run.doing})", _advice_on(run.trouble))
    if run.steps:
        yield Finding(
            OK,
            f"{counted(run.env_num, 'environment')} made in {brief(run.launch_s)}, "
            f"{human_count(run.steps / max(1e-9, run.step_s))} steps/s by the fresh policy",
        )
    known = [] if alone is None else [_without_numbers(text) for text in alone.warnings]
    warnings = [text for text in run.warnings if _without_numbers(text) not in known]
    if run.failures and not (alone and alone.failures):
        yield _failed(run.failures, run.steps, run.warnings)
    other_rows = ("no episode has ended", "is beyond its space", "takes SIG", "cut after")
    in_other_rows = (*other_rows, " failed (")
    for text in warnings:
        if alone is None or not any(part in text for part in in_other_rows):
            yield Finding(WARN, text)


def _without_numbers(text: str) -> str:
    return _NUMBER.sub("", text)


# -------------------------------------------------------------------------------------------- scale


def check_observations(alone: Alone, config: ExperimentConfig, spaces: Spaces) -> Iterator[Finding]:
    """Judges the scale of observations."""
    policy = config.policy
    is_normalised = isinstance(policy, TorchPolicyConfig) and policy.normalize.observation
    floats = [
        leaf.column("observation")
        for leaf in spaces.observation
        if np.dtype(leaf.dtype).kind == "f"
    ]
    members = [*policy.policies.values()] if isinstance(policy, TeamConfig) else [policy]
    divisors = {  # which are of bytes alone; networks of one's own get these as they are
        leaf.column("observation"): scale_of(leaf)
        for leaf in spaces.observation
        if any(
            isinstance(one, TorchPolicyConfig)
            and not one.model.type
            and not (one.normalize.observation and has_statistics(leaf))
            for one in members
        )
    }
    for name, seen in alone.numbers.items():
        if not seen.count:
            continue
        deviation = seen.deviation
        text = f"{name} from {seen.low.min():.4g} to {seen.high.max():.4g}"
        if 0 < seen.most <= _CODES and (divisor := divisors.get(name) or 0.0) > 4 * _CODES:
            yield Finding(
                WARN,
                f"{text}: bytes, which networks divide by {divisor:g}",
                "where they are codes, and not brightness, set env.wrappers: [AsFloats], or give "
                "the space the largest code as `high`",
            )
            continue
        if name not in floats or is_normalised:
            yield Finding(OK, text)
            continue
        moving = deviation[deviation > 0]
        if not moving.size:
            yield Finding(WARN, f"{text}: it never changes", "is it what the policy should see?")
        elif seen.most >= _LARGE or moving.max() / moving.min() > _UNEVEN:
            spread = f", deviations from {moving.min():.2g} to {moving.max():.2g}"
            yield Finding(
                WARN,
                text + spread,
                f"{_NORMALIZE.format('observation')}, or scale it by a wrapper",
            )
        else:
            yield Finding(OK, text)
        parts = [part for part in _FLOAT32_WARNINGS if any(part in w for w in alone.warnings)]
        if seen.most >= COARSE_FROM and parts:
            yield Finding(
                WARN,
                f"{name} is large, and {parts[0]}, in steps of "
                f"{np.spacing(np.float32(seen.most)):.2g}",
                "set env.origin to what lies near, by column",
            )


def check_rewards(alone: Alone, config: ExperimentConfig) -> Iterator[Finding]:
    """Judges the scale of rewards."""
    seen, policy = alone.reward, config.policy
    if not seen.count:
        return
    text = f"from {seen.low[0]:.4g} to {seen.high[0]:.4g}"
    most = max((abs(value) for value in alone.returns), default=0.0)
    is_normalised = isinstance(policy, TorchPolicyConfig) and policy.normalize.reward
    if not seen.most:
        yield Finding(OK, "0 in all steps: random play does not find one")
    elif not is_normalised and (seen.most >= _LARGE or most >= _LARGE_RETURN):
        scale = f"env.wrappers: [{{type: ScaleReward, scale: {1 / seen.most:.1g}}}]"
        ways = f"{_NORMALIZE.format('reward')}, or {scale}"
        yield Finding(WARN, f"{text}, returns up to {most:.4g}", ways)
    elif not is_normalised and seen.most <= _SMALL:
        yield Finding(WARN, f"{text}: tiny", _NORMALIZE.format("reward"))
    else:
        yield Finding(OK, text)


# ------------------------------------------------------------------------------- its process


def check_seeds(alone: Alone, config: ExperimentConfig) -> Iterator[Finding]:
    """Judges whether seeds repeat episodes."""
    if alone.repeats is None:
        return
    if alone.repeats:
        status = FAIL if config.system.deterministic else WARN
        yield Finding(
            status,
            f"equal seeds do not repeat: {alone.repeats}",
            "draw from self.np_random, which reset(seed=...) makes",
        )
    generators = sorted(alone.habits.generators)
    if generators:
        yield Finding(
            WARN,
            f"it draws from {', '.join(generators)}, of which a process has one: environments in "
            "it share it",
            "draw from self.np_random; env.manager.type=subprocess gives each one its own",
        )
    if not alone.repeats and not generators:
        yield Finding(OK, "equal seeds repeat")


def check_memory(alone: Alone, run: AsARun) -> Iterator[Finding]:
    """Judges whether memory grows."""
    slope = alone.memory.slope
    if not alone.memory.tells:
        return
    if not slope:
        yield Finding(OK, f"does not grow in {alone.steps:,} steps")
        return
    per_s = run.steps / run.step_s if run.step_s else 1 / max(1e-9, alone.habits.steps.mean_s)
    an_hour = slope * per_s * 3600
    yield Finding(
        FAIL,
        f"grows by {human_bytes(slope)} a step, {human_bytes(an_hour)} an hour in each collector "
        f"({human_count(per_s)} steps/s)",
        "a leak: repair it, or env.manager: {type: subprocess, renew_after: 500 MiB}",
    )


def check_output(alone: Alone) -> Iterator[Finding]:
    """Judges what is printed."""
    made, played = alone.made, alone.played
    if made.lines:
        yield Finding(OK, f"{counted(made.lines, 'line')} when made: {made.first!r}")
    if played.lines:
        size = f" ({human_bytes(played.n_bytes)})" * (played.n_bytes >= _MANY_BYTES)
        text = f"{counted(played.lines, 'line')}{size} in {alone.steps:,} steps: {played.first!r}"
        is_much = played.lines >= _MANY_LINES or played.n_bytes >= _MANY_BYTES
        advice = "every rank prints so: have it be quiet"
        yield Finding(WARN, text, advice) if is_much else Finding(OK, text)
    if alone.steps and not made.lines and not played.lines:
        yield Finding(OK, "prints nothing")


def check_signals(alone: Alone) -> Iterator[Finding]:
    """Says which signals and timers are taken."""
    habits = alone.habits
    if habits.signals:
        yield Finding(
            WARN,
            f"takes {', '.join(sorted(habits.signals))}",
            "a run puts its handlers back after each make and reset; child processes "
            "(env.manager.type=subprocess) keep them apart",
        )
    if habits.timers:
        yield Finding(OK, f"uses {', '.join(sorted(habits.timers))}, which are its own")
    if alone.steps and not habits.signals and not habits.timers:
        yield Finding(OK, "takes none")


def check_another(alone: Alone, config: ExperimentConfig) -> Iterator[Finding]:
    """Judges whether a process can have several."""
    if alone.another is None:
        return
    if not alone.another:
        yield Finding(OK, "has room for a second environment")
    elif isinstance(config.env.manager, ChildConfig):
        yield Finding(OK, f"has room for one ({alone.another}), and each has its own")
    else:
        text = f"has no room for a second environment: {alone.another}"
        yield Finding(FAIL, text, "env.manager.type=subprocess")


def check_data(facts: Facts) -> Iterator[Finding]:
    """Judges the replay buffer against this host's memory."""
    row_bytes = row_size(facts.config, facts.spaces)
    learner = memory_of("learner", facts.config, row_bytes)
    others = working_collectors(facts.ranks, facts.config) * (
        memory_of("collector", facts.config, row_bytes) + facts.run.memory_bytes
    )
    text = (
        f"{human_bytes(learner)} in each learner, {human_bytes(others)} in "
        f"{working_collectors(facts.ranks, facts.config)} collectors, "
        f"{human_bytes(facts.memory_bytes)} are free here"
    )
    needed = learner * learner_count(facts.config) + others
    if facts.memory_bytes and needed > _SHARE_OF_MEMORY * facts.memory_bytes:
        advice = "a smaller policy.other.replay_buffer.replay_buffer_size, fewer ranks, more hosts"
        is_learners = learner > _SHARE_OF_MEMORY * facts.memory_bytes
        yield Finding(FAIL if is_learners else WARN, text, advice)
    else:
        yield Finding(OK, text)
