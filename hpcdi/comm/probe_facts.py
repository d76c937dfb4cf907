"""What probes of MPI and torch.distributed have found; nothing here starts either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcdi.comm.codec import sendable


@sendable
@dataclass(frozen=True)
class Begun:
    """MPI, as it has started on this rank.

    Attributes:
        library: first line of what the library says of itself.
        thread_level: "SINGLE", "FUNNELED", "SERIALIZED" or "MULTIPLE".
        transports: "on" and "off" -> what carries messages on a host and between hosts, where the
            library tells it (Open MPI 5, on rank 0).
        start_s: seconds that the start has taken.
    """

    library: str
    thread_level: str
    transports: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 0.0


@sendable
@dataclass(frozen=True)
class Link:
    """How fast two ranks talk.

    Attributes:
        rank: the one beside rank 0.
        latency_s: median of a small message, one way.
        bytes_per_s: of a large message, one way.
    """

    rank: int
    latency_s: float
    bytes_per_s: float


@sendable
@dataclass(frozen=True)
class Reduced:
    """A process group that has worked.

    Attributes:
        ranks: its members, by their ranks in the world.
        import_s: seconds to import torch.
        form_s: seconds to form the group.
        reduce_s: seconds to average a million float32, after a first time.
    """

    ranks: tuple[int, ...]
    import_s: float
    form_s: float
    reduce_s: float
