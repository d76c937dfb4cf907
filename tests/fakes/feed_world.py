"""A learner's data feed against real shards, and the rank 0 that it talks to."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from fakes.store import write_shard
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    DataDemand,
    Message,
)
from hpcdi.roles.context import COORDINATOR_RANK
from hpcdi.roles.learner.feed import Feed, Staged
from hpcdi.roles.learner.training import Batch
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.transport.base import Transport
from hpcdi.transport.files import FileTransport
from hpcdi.types import ITEM_DTYPE, Columns, RowView

RING_ROWS = 16


class World:
    """A feed, and the rank 0 that it talks to."""

    def __init__(
        self,
        root: Path,
        prefetch: int = 4,
        batch_size: int = 2,
        transport: Transport | None = None,
    ) -> None:
        self.layout = RunLayout(root)
        self.sent: list[Message] = []
        self.asked: list[tuple[int, Message]] = []  # of collectors
        self.blocks = 0
        self.ready: list[Staged] = []
        self.feed = Feed(
            transport or FileTransport(self.layout), self._take, self.ready.append,
            batch_size=batch_size, prefetch=prefetch,
        )  # fmt: skip
        self.feed.open("task")
        self.now, self.served = 0.0, 0

    def _take(self, rank: int, message: Message) -> None:
        if rank == COORDINATOR_RANK:
            self.sent.append(message)
        else:
            self.asked.append((rank, message))

    def block(self, columns: Columns, first_row: int) -> AdmitBlock:
        """Publish rows that shall go to `first_row`."""
        self.blocks += 1
        items = np.zeros(1, dtype=ITEM_DTYPE)
        items["item_len"] = len(next(iter(columns.values())))
        views = (RowView("next_obs", "obs", "ahead"),) if "ahead" in columns else ()
        path = f"data/{self.blocks}.h5"
        ref = write_shard(self.layout, path, Block(columns, items, views=views), fsync=False)
        return AdmitBlock(self.blocks, first_row, RING_ROWS, ref, time.time() - 5.0)

    def rows(self, first_row: int, count: int) -> Columns:
        """Columns whose values tell their row; `ahead` looks at the next one."""
        number = np.arange(first_row, first_row + count)
        return {
            "obs": np.stack([number, 100 + number], axis=1).astype(np.float32),
            "done": number % 2 == 0,
            "ahead": np.ones(count, dtype=np.uint16),
        }

    def admit(self, first_row: int, count: int) -> BlockAdmitted:
        return self.give(self.block(self.rows(first_row, count), first_row))

    def give(self, order: AdmitBlock) -> BlockAdmitted:
        self.feed.admit(order)
        told = self.sent[-1]
        assert isinstance(told, BlockAdmitted)
        return told

    def fill(self, rows: list[list[int]], ids: list[list[int]] | None = None) -> None:
        shape = np.array(rows)
        weights = np.full(shape.shape, 0.5, dtype=np.float32)
        self.feed.fill(Batches(shape, np.array(ids or rows), weights, env_steps=70))

    def demands(self) -> list[DataDemand]:
        return [message for message in self.sent if isinstance(message, DataDemand)]

    def serve(self) -> None:
        """Rank 0: send every batch that was asked for and not sent yet."""
        missing = sum(demand.batches for demand in self.demands()) - self.served
        if missing:
            self.fill([[0, 1]] * missing)
            self.served += missing

    def next(self) -> Batch:
        """The next batch."""
        return self.feed.batch(self.ready.pop(0), self.now)

    def learn(self, train_iter: int, lasts_s: float = 0.0) -> Batch:
        """Ask, be served, and learn from the next batch."""
        self.feed.ask(train_iter, self.now)
        self.serve()
        batch = self.next()
        self.now += lasts_s
        return batch
