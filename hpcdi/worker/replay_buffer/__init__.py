"""Replay buffers: which data are learnt from, and how often.

Owns: the contract and what all buffers share (`base_buffer`), DI-engine's buffers (`naive_buffer`,
`episode_buffer`, `advanced_buffer`), and
their parts: where items lie (`ring`, over `store.rows`), what is known of them (`index`), how they
are drawn (`samplers`, `priority_tree`), when drawing waits (`limits`), what is reported
(`monitor`). May import: `store`, `config`, `utils`, `types`, `errors`. Why so: the same buffer is
the coordinator's index over shards (its items are row numbers), the memory of serial training (its
items are transitions) and a library of its own; only the coordinator and the serial entry hold one.
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
