"""Rules over settings of several components; the rules of one component stand in that component."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpcdi.errors import Problem
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY

ALLOW_FAULTS = "HPCDI_ALLOW_FAULTS"
"""Set to anything: faults on purpose are allowed."""


def check(config: Any) -> list[Problem]:
    """Everything in an `ExperimentConfig` that is right part by part and wrong together."""
    problems: list[Problem] = []
    policy = config.policy
    lacking = [name for name in ("learn", "collect", "other") if not hasattr(policy, name)]
    if lacking:
        said = f"the settings of type {policy.type!r} lack {', '.join(lacking)}: its Config must be"
        return [Problem("policy", f"{said} derived from hpcdi.policy.settings.PolicyConfig")]
    problems += _buffer_problems(policy)
    if not config.exp_name or "/" in config.exp_name or config.exp_name.startswith("."):
        problems.append(
            Problem("exp_name", f"must be a plain folder name, not {config.exp_name!r}")
        )
    return problems


def check_faults(config: Any, variables: Mapping[str, str]) -> list[Problem]:
    """Faults are made on purpose only where that is allowed.

    Args:
        config: an `ExperimentConfig`.
        variables: of the environment.
    """
    if not config.fault or variables.get("CI") or variables.get(ALLOW_FAULTS):
        return []
    return [
        Problem(
            "fault",
            "kills or disturbs ranks on purpose, for tests of your own; set the environment "
            f"variable {ALLOW_FAULTS}=1 to allow it, or remove the section",
        )
    ]


def check_over_ranks(config: Any) -> list[Problem]:
    """What a run over several ranks cannot do, though one in a single process can."""
    problems = [
        Problem("fault.role", "a run over several ranks has no rank 'serial'")
        for fault in config.fault
        if fault.role == "serial"
    ]
    if config.system.deterministic:
        problems += _deterministic_problems(config)
    return problems


def _deterministic_problems(config: Any) -> list[Problem]:
    """What goes by the clock, and so cannot be the same each time."""
    policy, problems = config.policy, []
    commander = PARALLEL_COMMANDER_REGISTRY.get(policy.other.commander.type)
    buffer, evaluator = policy.other.replay_buffer, policy.eval.evaluator
    limit = buffer.thruput_controller.push_sample_rate_limit
    for is_wrong, path, said in (
        (policy.on_policy, "policy.on_policy", "learning on-policy cannot be deterministic yet"),
        (
            policy.collect.collector.collector_max is not None,
            "policy.collect.collector.collector_max",
            "a deterministic run has the same collectors from start to end",
        ),
        (
            not hasattr(commander, "make_task"),
            "policy.other.commander.type",
            "a deterministic run needs one with a method make_task, as 'solo' has it",
        ),
        (
            limit.max < math.inf or limit.min > 0,
            "policy.other.replay_buffer.thruput_controller.push_sample_rate_limit",
            "goes by the clock; a deterministic run has policy.learn.update_per_collect",
        ),
        (
            not hasattr(evaluator, "eval_freq"),
            "policy.eval.evaluator.type",
            "a deterministic run evaluates every policy.eval.evaluator.eval_freq iterations",
        ),
    ):
        if is_wrong:
            problems.append(Problem(path, f"{said} (system.deterministic)"))
    return problems


def check_serial(config: Any) -> list[Problem]:
    """What a run in one process cannot do."""
    problems = [
        Problem("fault", f"a run in one process is rank 0, role 'serial', without {fault.kind!r}")
        for fault in config.fault
        if fault.role not in (None, "serial")
        or fault.rank not in (None, 0)
        or fault.kind in ("env_hang", "torn_shard")
    ]
    collector, evaluator = config.policy.collect.serial_collector, config.policy.eval.evaluator
    for path, part, known in (
        ("collect.serial_collector", collector, ("sample", "sample_1v1")),
        ("eval.evaluator", evaluator, ("interaction", "battle_interaction")),
    ):
        if part.type in ("episode", "episode_1v1", "metric"):
            said = (
                f"`hpcdi serial` works by {' or '.join(known)}; {part.type!r} is for your own code"
            )
            problems.append(Problem(f"policy.{path}.type", said))
    n_episode, env_num = getattr(evaluator, "n_episode", None), config.env.evaluator_env_num
    if n_episode is not None and n_episode < env_num:
        said = f"must be at least env.evaluator_env_num, {env_num}, not {n_episode}"
        problems.append(Problem("policy.eval.evaluator.n_episode", said))
    return problems


def _buffer_problems(policy: Any) -> list[Problem]:
    """Of the replay buffer, with what it is fed by and drawn from for."""
    buffer = policy.other.replay_buffer
    problems = [] if policy.on_policy else _size_problems(policy)
    if policy.on_policy and policy.random_collect_size:
        problems.append(
            Problem(
                "policy.random_collect_size",
                "fills a replay buffer; on-policy, what another policy made is not learnt from",
            )
        )
    if not hasattr(buffer, "min_fill"):
        problems.append(
            Problem(
                "policy.other.replay_buffer.type",
                f"a run over several ranks draws from an 'advanced' buffer, not {buffer.type!r}; "
                "policy.priority: false makes it draw uniformly",
            )
        )
    return problems


def _size_problems(policy: Any) -> list[Problem]:
    """Of how much the replay buffer holds, where it is drawn from again and again."""
    problems = []
    size = policy.other.replay_buffer.replay_buffer_size
    if policy.learn.batch_size > size:
        problems.append(
            Problem(
                "policy.learn.batch_size",
                f"a batch of {policy.learn.batch_size} cannot be drawn from a replay buffer of "
                f"{size} (policy.other.replay_buffer.replay_buffer_size)",
            )
        )
    shortest = 4 * (policy.collect.n_sample + 1)
    if size < shortest:
        problems.append(
            Problem(
                "policy.other.replay_buffer.replay_buffer_size",
                f"must be at least {shortest}, 4 x (policy.collect.n_sample + 1), not {size}",
            )
        )
    return problems
