"""Rules over settings of several components; the rules of one component stand in that component."""

from __future__ import annotations

from typing import Any

from hpcdi.errors import Problem


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


def check_over_ranks(config: Any) -> list[Problem]:
    """What a run over several ranks cannot do, though one in a single process can."""
    problems = []
    buffer = config.policy.other.replay_buffer
    if getattr(buffer, "frames", ()):
        problems.append(
            Problem(
                "policy.other.replay_buffer.frames",
                "is for buffers that hold data themselves; a run over several ranks holds them in "
                "shards, and rank 0 their index",
            )
        )
    return problems


def check_serial(config: Any) -> list[Problem]:
    """What a run in one process cannot do."""
    problems = []
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
