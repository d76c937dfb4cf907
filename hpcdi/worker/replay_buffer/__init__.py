"""Replay buffers: which data are learnt from, and how often.

Owns: the buffer contract (`base_buffer`), where items lie (`ring`), which are there (`index`), what
is said of them (`items`), how they are drawn (`samplers`), the buffers themselves. May import:
`store`, `config`, `utils`, `types`, `errors`. Why so: the same buffer is the coordinator's index
over shards (its items are row numbers) and a library of its own (its items are transitions); only
the coordinator and the serial entry hold one.
"""

from hpcdi.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer
from hpcdi.worker.replay_buffer.base_buffer import IBuffer, create_buffer, get_buffer_cls

__all__ = ["AdvancedReplayBuffer", "IBuffer", "create_buffer", "get_buffer_cls"]
