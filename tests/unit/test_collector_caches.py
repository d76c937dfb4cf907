"""What serial collectors keep between steps, and transitions as tensors."""

from __future__ import annotations

import math
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hpcdi.errors import EnvError
from hpcdi.worker import to_tensor_transitions
from hpcdi.worker.collector.base_serial_collector import CachePool, TrajBuffer
from hpcdi.worker.dict_envs import as_number, episode_return


@pytest.mark.parametrize("deepcopy", [False, True])
def test_the_last_value_of_each_environment(deepcopy: bool) -> None:
    pool = CachePool("observations", 3, deepcopy=deepcopy)
    assert [pool[env] for env in range(3)] == [None] * 3
    first = np.zeros(2)
    pool.update({1: first})
    first[:] = 7.0
    assert pool[1].tolist() == ([0.0, 0.0] if deepcopy else [7.0, 7.0])
    pool.update([{0: "a", 1: "b"}, {0: "A", 1: "B"}])
    pool.update({1: "d"})
    assert [pool[env] for env in range(3)] == [["a", "A"], "d", None], "one value a player"
    pool.reset(1)
    assert [pool[env] for env in range(3)] == [["a", "A"], None, None]
    with pytest.raises(TypeError, match="observations takes values by environment, not a tuple"):
        pool.update(("a", "b", "c"))  # type: ignore[arg-type]


def test_the_newest_transitions() -> None:
    buffer = TrajBuffer(3)
    for item in range(5):
        buffer.append(item)
    assert buffer == [2, 3, 4]
    buffer.extend(iter([5, 6]))
    assert buffer == [4, 5, 6]
    buffer += (7, 8)
    assert buffer == [6, 7, 8]
    assert TrajBuffer(2, range(5)) == [3, 4]
    assert isinstance(buffer, TrajBuffer)
    again = pickle.loads(pickle.dumps(TrajBuffer(2, [1, 2])))
    again.append(3)
    assert (again, again.maxlen) == ([2, 3], 2)
    assert buffer.maxlen == 3


@pytest.mark.parametrize("maxlen", [None, math.inf])
def test_all_transitions(maxlen: Any) -> None:
    buffer = TrajBuffer(maxlen)
    buffer.extend(range(100))
    assert buffer == list(range(100))


def test_copies_of_transitions() -> None:
    item = {"obs": np.zeros(1)}
    kept, copied = TrajBuffer(5), TrajBuffer(5, deepcopy=True)
    for buffer in (kept, copied):
        buffer.append(item)
        buffer.extend([item])
        buffer += [item]
    item["obs"][:] = 1.0
    assert [one["obs"][0] for one in kept] == [1.0] * 3
    assert [one["obs"][0] for one in copied] == [0.0] * 3


class Named(NamedTuple):
    state: Any
    mask: Any


def trajectory(length: int) -> list[dict[str, Any]]:
    return [
        {
            "obs": {"image": np.full((2, 2), k), "pose": np.full(1, 0.5)},
            "next_obs": {"image": np.full((2, 2), k + 1), "pose": np.full(1, 0.5)},
            "half": np.zeros(2, np.float16), "ints": [1, 2], "named": Named(np.zeros(1), None),
            "reward": np.float64(k), "action": np.int64(k), "done": k == length - 1,
            "weight": 0.5, "seat": 3, "name": "x", "pair": (np.zeros(1), 1),
            "tensor": torch.ones(1),
        }
        for k in range(length)
    ]  # fmt: skip


@pytest.mark.parametrize("shallow", [True, False])
def test_arrays_become_tensors(shallow: bool) -> None:
    data = trajectory(3)
    got = to_tensor_transitions(data, shallow)
    assert [set(one) for one in got] == [set(data[0])] * 3
    for k, one in enumerate(got):
        assert one["obs"]["image"].dtype == torch.int64
        assert one["obs"]["pose"].dtype == one["pair"][0].dtype == torch.float32
        assert one["half"].dtype == torch.float16, "only doubles are shortened"
        assert (type(one["reward"]), type(one["action"])) == (np.float64, np.int64), "as they were"
        assert one["ints"].dtype == torch.int64
        assert isinstance(one["pair"], list)
        assert isinstance(one["named"], Named)
        assert one["obs"]["image"].tolist() == [[k, k], [k, k]]
        assert one["next_obs"]["image"].tolist() == [[k + 1, k + 1], [k + 1, k + 1]]
        assert (one["reward"], one["action"]) == (k, k)
        assert (one["done"], one["weight"], one["seat"], one["name"]) == (k == 2, 0.5, 3, "x")
        assert one["pair"][1] == 1
        assert one["tensor"] is data[k]["tensor"]
    for k in range(2):
        same = got[k]["next_obs"]["image"].data_ptr() == got[k + 1]["obs"]["image"].data_ptr()
        assert same is shallow
    assert isinstance(data[0]["next_obs"]["image"], np.ndarray), "what was given stays"
    data[0]["obs"]["image"][:] = 9
    assert got[0]["obs"]["image"].tolist() == [[0, 0], [0, 0]], "memory of its own"


def test_transitions_without_a_next_observation() -> None:
    assert to_tensor_transitions([]) == []
    (one,) = to_tensor_transitions([{"obs": np.zeros(1)}])
    assert one["obs"].dtype == torch.float32


@pytest.mark.parametrize("told", [2, np.array([2.0]), torch.tensor([2.0]), [2.0]])
def test_returns_in_all_forms(told: Any) -> None:
    assert as_number(episode_return({"eval_episode_return": told}, 3)) == 2.0


def test_a_return_that_is_missing_or_no_number_is_an_error() -> None:
    with pytest.raises(EnvError, match=r"environment 3 .* its info has \['TimeLimit'\]"):
        episode_return({"TimeLimit": True}, 3)
    with pytest.raises(EnvError, match="must be one number"):
        as_number([1.0, 2.0])


def test_all_transitions_have_their_keys_in_one_order() -> None:
    data = [{"obs": np.ones(1), "next_obs": np.ones(1), "reward": 1.0} for _ in range(3)]
    for one in to_tensor_transitions(data):
        assert list(one) == ["obs", "next_obs", "reward"]
