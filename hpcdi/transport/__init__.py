"""How blocks travel from collectors to learners.

Owns: the interface (`base`) and its implementations, one module each (`files`: shards on the shared
file system; `shared`: memory of a node; `mpi`: messages; `memory`: within one process). May import:
`store`, `comm`, `config` and below. Why so: rank 0 handles references alone, so collectors and
learners need nothing of a transport but `base.Transport`, and import-linter keeps them from
`store.shards`. A new one is a module here, a line in `TRANSPORTS`, and a choice of the setting
``system.transport``. Code that reads a shard as a file in a folder (resume on rank 0, `hpcdi
inspect`, `load_data_fn` of the file-system learner) needs no transport.

Way of a block::

    collector ──publisher.submit──► announced: ShardRef ──BlockReady──► rank 0
    rank 0 ──AdmitBlock: ShardRef──► learner ──fetch──► rows of its ring

On one node a block is lent when it is sealed, in one process while it is open, and announced (piece
by piece); a learner has its rows at once, and they are written behind it::

    collector ──lend──► announced: a piece ──BlockReady──► rank 0 ──AdmitBlock──► learner: fetch
    collector ──publisher.submit──► written: ShardRef ──BlockStored──► rank 0

With ``system.transport: mpi``, on one node and across nodes, the learner asks for the rows of a
piece; it takes blocks in the order in which they were assigned, and one whose collector has died or
does not answer is read from its shard, if it has one::

    learner ──RowsRequest──► collector ──Rows──► learner: fetch

What is lent by memory or messages counts when it is stored: snapshots, counters and what is left of
a dead collector are those of `files`. A block that was lent and never stored was learnt from, and
is reported. What is learnt from once and not to be kept is lent alone (`blocks_are_stored`): it
counts at once, ends with its collector's process, and nothing of it is written.
"""

from __future__ import annotations

from hpcdi.config.schema import SystemConfig
from hpcdi.store.layout import RunLayout
from hpcdi.transport.base import Transport
from hpcdi.transport.files import FileTransport
from hpcdi.transport.mpi import MpiTransport
from hpcdi.transport.shared import SharedMemoryTransport

TRANSPORTS: dict[str, type[FileTransport]] = {
    "files": FileTransport,
    "memory": SharedMemoryTransport,
    "mpi": MpiTransport,
}
"""By the name in ``system.transport``."""


def open_transport(
    system: SystemConfig, layout: RunLayout, *, lends: bool = True, is_on_one_node: bool = True
) -> Transport:
    """Returns the transport that ``system.transport`` names, for the run in `layout`.

    Args:
        system: settings.
        layout: the run folder.
        lends: whether learners may learn from what is not stored yet.
        is_on_one_node: whether all ranks see each other's memory.
    """
    name = system.transport
    if not lends or (name == "memory" and not is_on_one_node):
        name = "files"
    return TRANSPORTS[name](layout, system.storage)
