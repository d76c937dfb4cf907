"""The other ends of a collector's channels: segments to send, a learner that answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcdi.comm.messages import BlockReady, PolicyRequest, PolicyUpdate
from hpcdi.roles.collector.channels import PolicySubscriber
from hpcdi.store.layout import RunLayout
from hpcdi.store.segment import Segment
from hpcdi.store.shards import read_shard
from hpcdi.types import ITEM_DTYPE, RowView

FOREVER_S = 3600.0


class Counter:
    """Makes segments of items of 3 transitions and a bootstrap row, counting all transitions."""

    def __init__(self) -> None:
        self.made = 0

    def segment(self, items: int) -> Segment:
        table = np.zeros(items, dtype=ITEM_DTYPE)
        table["item_start"] = 4 * np.arange(items)
        table["item_len"] = 3
        value = np.full((items, 4), -1, dtype=np.int64)
        value[:, :3] = self.made + np.arange(3 * items).reshape(items, 3)
        self.made += 3 * items
        columns = {"value": value.reshape(-1), "frame": np.zeros((4 * items, 5), dtype=np.uint8)}
        return Segment(columns, table, (RowView("next", "value", "offset"),), tail_rows=1)


def values_of(root: Path, announced: list[BlockReady]) -> list[int]:
    """The transitions of all announced blocks, in order."""
    values: list[int] = []
    for ready in announced:
        column = read_shard(RunLayout(root), ready.shard)["value"]
        for item in ready.items:
            values += column[item["item_start"] :][: item["item_len"]].tolist()
    return values


def policy_update(version: int, size: int = 3) -> PolicyUpdate:
    return PolicyUpdate(version, np.full(size, version, dtype=np.uint8))


LEARNER, OTHER_LEARNER = 1, 2


class Learner:
    """Takes requests; answers when told to, or each at once."""

    def __init__(self, every_s: float = 0.0, patience_s: float = FOREVER_S) -> None:
        self.requests: list[PolicyRequest] = []
        self.asked: list[int] = []
        self.on_request: Callable[[PolicyRequest], None] = lambda _request: None
        learners = [LEARNER, OTHER_LEARNER]
        self.policies = PolicySubscriber(self._ask, learners, every_s, patience_s)

    def _ask(self, rank: int, request: PolicyRequest) -> None:
        self.requests.append(request)
        self.asked.append(rank)
        self.on_request(request)
