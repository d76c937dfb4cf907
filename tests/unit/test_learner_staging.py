"""Batches on their way to the device: nothing happens on a CPU; a GPU gets them ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpcdi.errors import PolicyError
from hpcdi.roles.learner.feed import CudaStage, HostStage, stage_for
from hpcdi.store.rows import RowStore
from hpcdi.types import Columns
from hpcdi.utils.threads import BackgroundThread
from hpcdi.worker.dict_samples import columns_of as columns_of_samples
from hpcdi.worker.dict_samples import samples_of, weighted_samples_of
from hpcdi.worker.learner import BaseLearner

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def columns_of(rows: int) -> Columns:
    number = np.arange(rows)
    return {
        "obs": np.stack([number, 100 + number], axis=1).astype(np.float32),
        "done": number % 2 == 0,
        "ahead": number.astype(np.uint16),
    }


def test_a_samples_own_weight_reaches_the_policy_beside_the_importance_weight() -> None:
    samples = [{"obs": np.ones(2, np.float32), "weight": 0.25 * k, "x": {"weight": k}}
               for k in (1, 2)]  # fmt: skip
    stage = HostStage()
    (part,) = stage.split(columns_of_samples(samples), np.array([[3.0, 4.0]], np.float32))
    batch = weighted_samples_of(stage.take(part))
    assert [float(one["weight"]) for one in batch] == [0.25, 0.5]
    assert [int(one["x"]["weight"]) for one in batch] == [1, 2]
    assert [one["IS"] for one in batch] == [3.0, 4.0]
    listed = {n: torch.from_numpy(c) for n, c in columns_of_samples([{"weight": [1, 2]}]).items()}
    assert [list(map(int, one["weight"])) for one in samples_of(listed)] == [[1, 2]]
    with pytest.raises(PolicyError, match="must not have '/' or end in"):
        columns_of_samples([{"weight[own]": 1}])


def weights_of(batches: int, size: int) -> Any:
    return np.arange(batches * size, dtype=np.float32).reshape(batches, size)


def policy_on(device: str | None) -> Any:
    def get_attribute(name: str) -> Any:
        if name != "device" or device is None:
            raise NotImplementedError(name)
        return device

    return SimpleNamespace(get_attribute=get_attribute)


@pytest.mark.parametrize("device", ["cpu", None])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_without_a_gpu_batches_stay_where_they_are(device: str | None, pin_memory: bool) -> None:
    stage = stage_for(policy_on(device), pin_memory=pin_memory)
    assert type(stage) is HostStage
    columns, weights = columns_of(6), weights_of(3, 2)
    staged = list(stage.split(columns, weights))
    assert len(staged) == 3
    for k, part in enumerate(staged):
        assert part.keys() == {*columns, "weight"}
        assert all(np.shares_memory(part[name], columns[name]) for name in columns), "no copy"
        batch = stage.take(part)
        assert batch["obs"].tolist() == [[2 * k, 100 + 2 * k], [2 * k + 1, 101 + 2 * k]]
        assert batch["weight"].tolist() == [2 * k, 2 * k + 1]
        assert batch["obs"].data_ptr() == part["obs"].ctypes.data, "no copy here either"


def test_a_gpu_that_is_not_to_be_fed_ahead() -> None:
    assert type(stage_for(policy_on("cuda"), pin_memory=False)) is HostStage
    assert type(stage_for(object(), pin_memory=True)) is HostStage


def test_the_setting_is_on_where_it_is_not_said() -> None:
    assert BaseLearner.default_config().pin_memory is True


# --------------------------------------------------------------------------------------- on a GPU


@pytest.fixture
def stage() -> Iterator[HostStage]:
    made = stage_for(policy_on("cuda"), pin_memory=True)
    assert isinstance(made, CudaStage)
    yield made
    made.close()


@pytest.mark.gpu
@GPU
def test_a_gpu_gets_what_the_cpu_would(stage: HostStage) -> None:
    columns, weights = columns_of(6), weights_of(3, 2)
    staged: list[Any] = []
    thread = BackgroundThread(lambda: staged.extend(stage.split(columns, weights)), "gathers")
    thread.join()
    thread.check()
    for part, host in zip(staged, HostStage().split(columns, weights), strict=True):
        batch = stage.take(part)
        expected = HostStage().take(host)
        assert batch.keys() == expected.keys()
        for name, tensor in batch.items():
            assert tensor.device == torch.device("cuda", torch.cuda.current_device())
            assert tensor.dtype == expected[name].dtype
            assert torch.equal(tensor.cpu(), expected[name])


@pytest.mark.gpu
@GPU
def test_what_is_computed_sees_whole_batches_and_memory_is_not_used_too_early(
    stage: HostStage,
) -> None:
    """Large copies, a slow stream beside, and batches that are let go while they are still read."""
    rows, sums = 1 << 20, []
    for number in range(20):
        columns = {"x": np.full((rows, 4), number, dtype=np.float32)}
        weights = np.ones((2, rows // 2), dtype=np.float32)
        for part in stage.split(columns, weights):
            batch = stage.take(part)
            slow = torch.ones(512, 512, device="cuda")
            for _ in range(20):
                slow = slow @ slow * 0.001
            sums.append((number, batch["x"].sum() + 0 * slow[0, 0].nan_to_num(0, 0, 0)))
            del batch, part
    torch.cuda.synchronize()
    for number, total in sums:
        assert float(total) == number * rows // 2 * 4


@pytest.mark.gpu
@GPU
def test_large_columns_are_gathered_into_memory_that_is_copied_from_before_it_is_used_again(
    stage: HostStage,
) -> None:
    """By several threads, over and over, with a copy under way each time."""
    ring, rng = RowStore(4096), np.random.default_rng(0)
    frames = rng.integers(0, 256, (4096, 84, 84), dtype=np.uint8)
    ring.write(0, {"frame": frames})
    ring.recycler = stage.recycler
    weights, rows, sums = np.ones((1, 1024), np.float32), [], []
    for _ in range(30):
        rows.append(rng.integers(0, 4096, 1024))
        columns = ring.gather(rows[-1])
        assert torch.from_numpy(columns["frame"]).is_pinned()
        (part,) = stage.split(columns, weights)
        del columns
        sums.append(stage.take(part)["frame"].sum(dim=(1, 2)))
    of_frame = frames.sum(axis=(1, 2), dtype=np.int64)
    for chosen, found in zip(rows, sums, strict=True):
        assert np.array_equal(found.cpu().numpy(), of_frame[chosen])
