"""Replay buffers of `ding.worker`."""

from hpcdi.replay.advanced_buffer import AdvancedReplayBuffer, DequeReplayBuffer
from hpcdi.replay.base_buffer import IBuffer, create_buffer, get_buffer_cls
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
