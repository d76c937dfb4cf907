"""What every transport must do: published blocks are announced in order and can be fetched."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from hpcdi.comm.codec import decode, encode
from hpcdi.comm.messages import Rows
from hpcdi.config.compiled import compile_config
from hpcdi.config.schema import StorageConfig, SystemConfig
from hpcdi.errors import ConfigError, StoreError
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.transport import TRANSPORTS, open_transport
from hpcdi.transport.base import Transport, announcement_of_piece
from hpcdi.transport.mpi import MpiTransport
from hpcdi.transport.shared import SharedMemoryTransport
from hpcdi.types import ITEM_DTYPE, ShardRef


def block_of(number: int, rows: int = 5) -> Block:
    """A block that can be told from others by its rows."""
    items = np.zeros(1, dtype=ITEM_DTYPE)
    items["item_len"] = rows
    columns = {"number": np.full(rows, number), "obs/x": np.arange(2.0 * rows).reshape(rows, 2)}
    return Block(columns, items, {"number": number})


def path_of(number: int) -> str:
    return f"data/rank00001/20250101T00/{number:06d}.h5"


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Transport:
    system = SystemConfig(transport=request.param, storage=StorageConfig(fsync=False))
    return open_transport(system, RunLayout(tmp_path))


def test_the_setting_names_every_transport() -> None:
    with pytest.raises(ConfigError) as caught:
        compile_config({"system": {"transport": "pigeons"}})
    [problem] = [p for p in caught.value.problems if p.path == "system.transport"]
    assert set(re.findall(r"'(\w+)'", str(problem))) == {*TRANSPORTS, "pigeons"}


def test_blocks_are_announced_in_order_and_can_be_fetched_at_once(transport: Transport) -> None:
    announced: list[int] = []
    names: list[str] = []

    def announce(shard: ShardRef, block: Block) -> None:
        names.append(shard.path)
        columns = transport.fetch(shard)
        assert list(columns) == list(block.columns)
        for name, column in block.columns.items():
            assert columns[name].dtype == column.dtype
            assert np.array_equal(columns[name], column)
        announced.append(block.facts["number"])

    publisher = transport.publisher(announce)
    for number in range(10):
        publisher.submit(path_of(number), block_of(number))
    publisher.flush()
    assert announced == list(range(10))
    publisher.submit(path_of(10), block_of(10))
    publisher.close()
    publisher.close()
    assert announced == list(range(11))
    assert publisher.lost == 0
    named = transport.fetch_named(names[7])
    assert named.columns["number"].tolist() == [7] * 5
    assert (named.items.tolist(), named.facts) == (block_of(7).items.tolist(), {"number": 7})


def test_a_block_that_is_not_there_costs_no_more_than_an_error(transport: Transport) -> None:
    shards: list[ShardRef] = []
    publisher = transport.publisher(lambda shard, _block: shards.append(shard))
    publisher.submit(path_of(1), block_of(1))
    publisher.close()
    with pytest.raises(StoreError):
        transport.fetch(dataclasses.replace(shards[0], path=path_of(2)))
    with pytest.raises(StoreError):
        transport.fetch_named(path_of(2))
    with pytest.raises(StoreError):
        transport.fetch(dataclasses.replace(shards[0], crc32=shards[0].crc32 ^ 1))
    assert transport.fetch(shards[0])["number"].tolist() == [1] * 5
    assert transport.fetch_named(path_of(1)).columns["number"].tolist() == [1] * 5, "the only one"


def test_memory_is_lent_until_others_have_followed_and_files_remain(tmp_path: Path) -> None:
    collector, learner = (SharedMemoryTransport(RunLayout(tmp_path)) for _ in range(2))
    refs = []
    for number in range(9):
        block = block_of(number, rows=5 if number else 0)
        name = collector.lend("a block", block.columns)
        assert name is not None
        refs.append(announcement_of_piece(name, block_with_facts(block), 0, block.rows).shard)
    for number in range(1, 9):
        columns = learner.fetch(refs[number])
        for name, column in block_of(number).columns.items():
            assert columns[name].dtype == column.dtype
            assert np.array_equal(columns[name], column)
            assert columns[name].ctypes.data % 64 == 0
    with pytest.raises(StoreError, match="not lent any more"):
        learner.fetch(refs[0])
    other = dataclasses.replace(refs[1], path=f"{refs[2].path.partition('#')[0]}#1")
    with pytest.raises(StoreError, match="not lent any more"):
        learner.fetch(other)
    rows = np.array([1000], np.int64).tobytes()
    longer = dataclasses.replace(refs[3], places=rows + refs[3].places[len(rows) :])
    with pytest.raises(StoreError, match="too short"):
        learner.fetch(longer)


def test_columns_without_bytes_are_lent_too(tmp_path: Path) -> None:
    collector, learner = (SharedMemoryTransport(RunLayout(tmp_path)) for _ in range(2))
    columns = {**block_of(1).columns, "nothing": np.zeros((5, 0), np.float32)}
    block = dataclasses.replace(block_with_facts(block_of(1)), columns=columns)
    name = collector.lend("a block", columns)
    assert name is not None
    fetched = learner.fetch(announcement_of_piece(name, block, 0, block.rows).shard)
    assert {name: column.shape for name, column in fetched.items()} == {
        "number": (5,), "obs/x": (5, 2), "nothing": (5, 0),
    }  # fmt: skip


def test_rows_that_are_asked_for_come_as_they_were_lent(tmp_path: Path) -> None:
    collector, learner = (MpiTransport(RunLayout(tmp_path)) for _ in range(2))
    refs = []
    for number in range(9):
        block = block_of(number, rows=5 if number else 0)
        name = collector.lend(f"block {number}", block.columns)
        assert name is not None
        refs.append(announcement_of_piece(name, block_with_facts(block), 0, block.rows).shard)

    def answer_on(ref: ShardRef) -> Rows:
        request = learner.request(ref)
        assert request is not None
        message = encode(collector.answer(request), inline_bytes=64)
        rows = decode(message.head, [np.frombuffer(frame, np.uint8) for frame in message.frames])
        assert isinstance(rows, Rows)
        return rows

    for number in range(1, 9):
        columns = learner.fetch(refs[number], answer_on(refs[number]))
        for name, column in block_of(number).columns.items():
            assert columns[name].dtype == column.dtype
            assert np.array_equal(columns[name], column)
    for rows, why in (
        (answer_on(refs[0]), "not lent any more"),
        (None, "was not asked for"),
        (Rows(refs[1].path, {"number": np.arange(5)}), "without its column obs/x"),
        (Rows(refs[1].path, {"number": np.arange(4)}), "without its column number"),
    ):
        with pytest.raises(StoreError, match=why):
            learner.fetch(refs[1], rows)


def block_with_facts(block: Block) -> Block:
    facts = {**block.facts, "task_id": "task", "block_id": 1, "sealed_at": 0.0}
    return dataclasses.replace(block, facts=facts)
