"""Replay buffers of `ding.worker`: items, given as dicts or as columns, beside what draws them.

`base_buffer` has what all share; items lie in a `ring`, in columns (`items`, with `frames`) or as
they are; `hpcdi.replay.index` draws those of a prioritized buffer (`advanced_buffer`).
"""

from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer, DequeReplayBuffer
from hpcdi.worker.replay_buffer.base_buffer import IBuffer, create_buffer, get_buffer_cls
from hpcdi.worker.replay_buffer.episode_buffer import EpisodeReplayBuffer
from hpcdi.worker.replay_buffer.naive_buffer import (
    ElasticReplayBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
)

__all__ = [
    "AdvancedReplayBuffer",
    "DequeReplayBuffer",
    "ElasticReplayBuffer",
    "EpisodeReplayBuffer",
    "IBuffer",
    "NaiveReplayBuffer",
    "SequenceReplayBuffer",
    "create_buffer",
    "get_buffer_cls",
]
