"""The seeds' task dicts for a learner, and items that are shards."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fakes.store import write_shard
from hpcdi.errors import CheckpointError, ShardError
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import UnsavableError
from hpcdi.store.layout import RunLayout
from hpcdi.types import ITEM_DTYPE, ShardRef
from hpcdi.worker.collector.comm import FlaskFileSystemCollector
from hpcdi.worker.learner.comm import LearnerSlave, MPIFileSystemLearner
from hpcdi.worker.slave import TaskFail


@pytest.mark.parametrize("task", [{"name": "collector_start_task"}, {"name": None}, {}])
def test_an_unknown_task(task: dict[str, Any]) -> None:
    slave = LearnerSlave(callback_fn=dict.fromkeys(LearnerSlave.CALLBACKS, print))
    with pytest.raises(TaskFail, match=f"a learner knows no task {task.get('name')!r}") as failed:
        slave._process_task(task)
    assert failed.value.result == {"message": "task name error"}


# ------------------------------------------------------------------------------------ load_data_fn

load = MPIFileSystemLearner.load_data_fn


@pytest.fixture
def shard(tmp_path: Path) -> ShardRef:
    items = np.zeros(1, dtype=ITEM_DTYPE)
    items["item_len"] = 3
    columns = {"obs": np.arange(6, dtype=np.float32).reshape(3, 2), "done": np.eye(3, dtype=bool)}
    return write_shard(RunLayout(tmp_path), "a.h5", Block(columns, items), fsync=False)


def test_columns_with_metadata_over_them(tmp_path: Path, shard: ShardRef) -> None:
    loaded = load(tmp_path / shard.path, {"data_id": shard.path, "done": "said otherwise"})
    assert loaded.keys() == {"obs", "done", "data_id"}
    assert loaded["obs"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (loaded["data_id"], loaded["done"]) == ("a.h5#0", "said otherwise")


def test_a_decompressor_comes_first(tmp_path: Path, shard: ShardRef) -> None:
    loaded = load(str(tmp_path / shard.path), {"b": 1}, lambda columns: {"names": sorted(columns)})
    assert loaded == {"names": ["done", "obs"], "b": 1}


def test_a_missing_a_foreign_and_a_torn_shard(tmp_path: Path, shard: ShardRef) -> None:
    path = tmp_path / "a.h5"
    with pytest.raises(ShardError, match=r"no.h5: cannot be read"):
        load(tmp_path / "no.h5", {})
    image = path.read_bytes()
    foreign = tmp_path / "foreign.h5"
    foreign.write_bytes(b"not HDF5")
    with pytest.raises(ShardError, match=r"foreign.h5: cannot be read"):
        load(foreign, {})
    path.write_bytes(image[:100])
    with pytest.raises(ShardError, match=r"a.h5: cannot be read"):
        load(path, {})
    flipped = bytearray(image)
    flipped[shard.columns[0].offset] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(ShardError, match=r"a.h5: checksum of block 0 is wrong.*torn"):
        load(path, {})


# --------------------------------------------------------------------------- what a collector wrote


class Step(NamedTuple):
    obs: np.ndarray
    reward: float


@pytest.fixture
def files(tmp_path: Path) -> FlaskFileSystemCollector:
    return FlaskFileSystemCollector({"path_data": str(tmp_path)})


def test_one_sample_and_bytes_are_read_as_they_were_written(
    tmp_path: Path, files: FlaskFileSystemCollector
) -> None:
    files.send_stepdata("one", {"obs": torch.ones(2), "reward": 1.0})
    loaded = load(tmp_path / "one", {"data_id": "one"})
    assert (loaded["obs"].tolist(), loaded["reward"], loaded["data_id"]) == ([1, 1], 1.0, "one")
    files.send_stepdata("bytes", zlib.compress(b"a sample"))
    assert load(tmp_path / "bytes", {"b": 1}, lambda read: {"read": zlib.decompress(read)}) == {
        "read": b"a sample", "b": 1,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match="holds bytes, no samples: give what decompresses"):
        load(tmp_path / "bytes", {})


def test_values_of_a_sample_keep_their_kinds(
    tmp_path: Path, files: FlaskFileSystemCollector
) -> None:
    sample = {
        "back": np.arange(4)[::-1], "words": np.array(["a", "b"]), "count": np.int64(3),
        "pair": (1, 2), "tensor": torch.ones(2, requires_grad=True), "more": {"a": b"x"},
    }  # fmt: skip
    files.send_stepdata("a", [sample])
    loaded = load(tmp_path / "a", {})
    assert {key: type(value) for key, value in loaded.items()} == {
        key: type(value) for key, value in sample.items()
    }
    assert loaded["back"].tolist() == [3, 2, 1, 0]
    assert loaded["words"].tolist() == ["a", "b"]
    assert (loaded["count"], loaded["pair"], loaded["more"]) == (3, (1, 2), {"a": b"x"})
    assert not loaded["tensor"].requires_grad


def test_what_could_not_be_read_again_is_refused_at_once(
    tmp_path: Path, files: FlaskFileSystemCollector
) -> None:
    for value, what in ((Step(np.ones(2), 1.0), "Step"), (np.array([None]), "array of object")):
        with pytest.raises(UnsavableError, match=rf"^0.obs \(an? {what}\) could not be loaded"):
            files.send_stepdata("a", [{"obs": value}])
    assert not list(tmp_path.iterdir())
