"""What the data of a run take: of a stored transition, and of each role."""

from __future__ import annotations

import math

from hpcdi.config.env import ChildConfig
from hpcdi.config.policy import HindsightConfig, PolicyConfig, TorchPolicyConfig
from hpcdi.config.schema import ExperimentConfig, learners_of
from hpcdi.config.team import TeamConfig
from hpcdi.env.child_process import OPEN_FILES
from hpcdi.errors import Problem
from hpcdi.types import Spaces
from hpcdi.utils.host import free_bytes, may_open_files, promised_bytes
from hpcdi.utils.metrics import human_bytes

_OPEN_FILES = 40
"""That a process of a run has beside those for environments."""
_ROW_EXTRA_BYTES = 4 + 2 * 1 + 4 + 4 + 2
"""Stored per row beside observation and action: reward, two flags, n-step return, discount and
offset of its bootstrap."""
_INDEX_ITEM_BYTES = 4 + 1 + 4 + 4 + 4
"""Stored per item in rank 0's index: mass, its share of the sums above, uses, version, row."""


def row_size(config: ExperimentConfig, spaces: Spaces) -> int:
    """Returns the bytes of one stored transition, its share of bootstrap rows included."""
    action = sum(leaf.n_bytes for leaf in spaces.action)
    observation, frames = spaces.observation_bytes, 1
    stacked = config.policy.other.replay_buffer.frames
    stacks = [leaf for leaf in spaces.observation if leaf.column("observation") in stacked]
    if stacks and not config.policy.on_policy:
        first = stacks[0]
        frames = first.shape[0]  # of an observation, stored once: one a row, and offsets
        observation += first.n_bytes // frames - first.n_bytes + 4 * frames
    n_sample = int(config.policy.collect.n_sample)
    of_row = observation + action + _state_bytes(config.policy) + _ROW_EXTRA_BYTES
    return round(of_row * (1 + (frames + config.policy.stack_len) / n_sample))


def _state_bytes(policy: PolicyConfig) -> int:
    """Returns the bytes of a memory's state that are stored beside a transition; 0: unknown."""
    if isinstance(policy, TeamConfig):  # of each player
        names = [policy.policy_of(player) for player in policy.names]
        return sum(_state_bytes(policy.policies[name]) for name in names if name is not None)
    if not isinstance(policy, TorchPolicyConfig):
        return 0
    model = policy.model
    numbers = {
        "lstm": 2 * model.memory_size,
        "gru": model.memory_size,
        # a step of each layer, where the earlier ones are, and how many
        "gtrxl": model.memory_layers * model.memory_size + model.memory_len + 1,
    }
    memories = 1 if getattr(model, "share_encoder", True) else 2
    return 4 * numbers.get(policy.memory, 0) * memories


def partition_size(config: ExperimentConfig) -> int:
    """Returns the items of the replay buffer that one learner holds, at least.

    In a league each player that learns has a buffer of that size, and learners of its own.
    """
    return int(config.policy.other.replay_buffer.replay_buffer_size) // max(_groups(config))


def _groups(config: ExperimentConfig) -> list[int]:
    """Returns the number of learners that share each replay buffer."""
    return [max(1, count) for count in learners_of(config).values()]


def full_block(config: ExperimentConfig, row_bytes: int) -> int:
    """Returns the rows at which a collector seals a block."""
    from hpcdi.store.block import block_rows

    return block_rows(config.system.storage.block_bytes, row_bytes, partition_size(config))


def blocks_per_s_of(config: ExperimentConfig, steps_per_s: float, row_bytes: int) -> float:
    """Returns the blocks that a collector of so many steps a second publishes a second."""
    policy = config.policy
    if policy.on_policy:
        return float(steps_per_s / (policy.collect.n_sample * config.env.collector_env_num))
    by_age = 1 / config.system.storage.seal_seconds
    return float(max(by_age, steps_per_s / full_block(config, row_bytes)))


def memory_of(role: str, config: ExperimentConfig, row_bytes: int) -> float:
    """Returns the bytes that a role holds: a learner rows, rank 0 the index, a collector blocks.

    In a league whose players have more and fewer learners, that is of one that holds most.
    """
    groups = _groups(config)
    if role == "learner":
        return _ring_bytes(config, row_bytes, min(groups))
    if role == "coordinator":
        size = int(config.policy.other.replay_buffer.replay_buffer_size)
        return len(groups) * size * _INDEX_ITEM_BYTES
    block = full_block(config, row_bytes)
    return 6 * block * row_bytes  # one open, four on their way to disk, one being encoded


def _ring_bytes(config: ExperimentConfig, row_bytes: int, learners: int) -> int:
    """Returns the bytes of the rows of each of the learners that share a buffer."""
    from hpcdi.replay.placer import ring_rows

    buffer = config.policy.buffer
    size, min_fill = (n // learners for n in (buffer.replay_buffer_size, buffer.min_fill))
    rule, block = config.policy.item_rule, full_block(config, row_bytes)
    return ring_rows(size, block, rule.apart, min_fill, rule.most_rows) * row_bytes


def too_many_files(config: ExperimentConfig) -> list[Problem]:
    """Returns the problem of more environments in child processes than a process has files for."""
    env, most = config.env, may_open_files()
    if not isinstance(env.manager, ChildConfig):
        return []
    count = env.collector_env_num + env.evaluator_env_num
    needed = _OPEN_FILES + OPEN_FILES * count
    if needed <= most:
        return []
    fits = max(0, most - _OPEN_FILES) // OPEN_FILES
    return [
        Problem(
            "env.collector_env_num",
            f"a collector's process has {OPEN_FILES} open files for each of {count} environments "
            f"({env.collector_env_num} collect, {env.evaluator_env_num} evaluate), and "
            f"{_OPEN_FILES} others, {needed} in all, and may have {most} here (ulimit -Hn): {fits} "
            "would do",
        )
    ]


def _ever_stored(config: ExperimentConfig) -> float:
    """Returns the most transitions that a run stores: it may end before a buffer is full."""
    if config.data:
        return math.inf
    copies = getattr(config.policy, "hindsight", HindsightConfig()).goals
    return float(getattr(config.policy.other.commander, "max_env_step", math.inf) * (1 + copies))


def does_not_fit(config: ExperimentConfig, spaces: Spaces) -> list[Problem]:
    """Returns the problem of a replay buffer that is larger than the free memory of this host."""
    row_bytes, groups = row_size(config, spaces), _groups(config)
    ever = _ever_stored(config) * row_bytes
    whole, learners = memory_of("learner", config, row_bytes), sum(groups)
    needed = min(whole, ever)
    of_all = sum(n * min(_ring_bytes(config, row_bytes, n), ever) for n in groups)
    free, buffer = free_bytes(), config.policy.other.replay_buffer
    if 0 < promised_bytes() < whole:  # it is one array, which the kernel does not give, if empty
        needed = whole
    elif not free or of_all <= free:
        return []
    item_bytes = row_bytes * config.policy.item_rule.apart
    fits = int(free / learners / item_bytes / 2) * learners // len(groups)
    items = "transitions" if item_bytes == row_bytes else "sequences"
    each = "the learner" if learners == 1 else f"each of {learners} learners"
    return [
        Problem(
            "policy.other.replay_buffer.replay_buffer_size",
            f"is {buffer.replay_buffer_size:,}: {buffer.replay_buffer_size // min(groups):,} "
            f"{items} of {human_bytes(item_bytes)} take {human_bytes(needed)} in {each}, and "
            f"{human_bytes(free)} are free on this host; {fits:,} would take half of that",
        )
    ]
