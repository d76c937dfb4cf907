"""What may be pushed: columns, objects, and what is refused without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.buffers import advanced, item, items, seen
from hpcdi.config.compat import ConfigDict
from hpcdi.errors import BufferContractError, SnapshotError
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer, create_buffer


def drawn_of(value: Any, file: Path | None = None) -> Any:
    """What comes back of an item whose key "a" holds `value`; through a file if one is named."""
    buffer = advanced()
    buffer.push({"a": value})
    if file is not None:
        buffer.save_data(file)
        buffer = advanced()
        buffer.load_data(file)
    return buffer.sample(1, 0)[0]["a"]


# ------------------------------------------------------------------------------------------- forms


@pytest.mark.parametrize(
    "value",
    [
        3, 2.5, True, 1 + 2j, np.float32(0.5), np.bool_(True), np.int64(3), np.array(2.5),
        np.arange(6, dtype=np.int16).reshape(2, 3), torch.tensor(1.5), torch.arange(3),
        [torch.zeros(2)] * 2, [1.0, 2.0], (1, 2.5),
        [np.zeros(2), 1],
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("by_file", [False, True])
def test_what_comes_back_is_what_went_in_type_for_type(
    value: Any, by_file: bool, tmp_path: Path
) -> None:
    drawn = drawn_of(value, tmp_path / "buffer.h5" if by_file else None)
    same(drawn, value)


@pytest.mark.parametrize("kind", ["naive", "sequence", "advanced", "deque"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_dict_of_another_class_comes_back_as_one(kind: str, depth: int) -> None:
    """Its keys are attributes, say, also of one in a plain dict, and after a state was loaded."""
    inner = ConfigDict(obs=torch.ones(2), priority=2.0)
    given = {"a": inner} if depth else inner
    buffer, other = (create_buffer({"type": kind}) for _ in range(2))
    buffer.push([given] * 3, 0)
    buffer.push(given, 0)
    other.load_state_dict(dict(buffer.state_dict()))
    for each in (buffer, other):
        drawn = each.sample(1, 1, 0)[0][0] if kind == "sequence" else each.sample(1, 0)[0]
        assert type(drawn) is type(given)
        assert (drawn["a"] if depth else drawn).obs.tolist() == [1, 1]
    assert inner.priority == 2.0, "the caller's own"


def test_a_state_of_dicts_whose_pop_has_no_default() -> None:
    """As older EasyDicts; of DI-engine's form, whose items have some of the marks."""

    class Attributes(dict[str, Any]):
        def pop(self, key: str, default: Any = None) -> Any:
            return super().pop(key)

    buffer = AdvancedReplayBuffer({"replay_buffer_size": 4})
    held = [Attributes(n=n, priority=1.0, replay_unique_id=f"x_{n}") for n in range(4)]
    buffer.load_state_dict({"data": held, "use_count": [0] * 4, "tail": 0, "max_priority": 1.0})
    drawn = buffer.sample(4, 0) or []
    assert {type(one) for one in drawn} == {Attributes}
    assert {one["n"] for one in drawn} == set(range(4))


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, np.ndarray | torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert bool((one == other).all())
    else:
        assert one == other


@pytest.mark.parametrize(
    "value",
    ["text", None, {"k": "v"}, [[1], [2, 3]], {}, {1, 2}, [{"b": 1}], b"bytes"],
    ids=repr,
)
def test_anything_else_comes_back_as_it_is(value: Any) -> None:
    assert drawn_of(value) == value


def test_an_item_without_keys_comes_back() -> None:
    buffer = advanced()
    buffer.push({})
    drawn = buffer.sample(1, 0)
    assert [d["replay_unique_id"] for d in drawn] == ["buffer_0"]


def test_nested_keys_are_kept_apart() -> None:
    """Names with the separators that storage uses inside are no trap."""
    tree = {"a": {"b": 1, "c|d": 2}, "a|b": 3, "": 4}
    buffer, copy = advanced(), advanced()
    buffer.push(tree)
    copy.load_state_dict(buffer.state_dict())
    for drawn in (*buffer.sample(1, 0), *copy.sample(1, 0)):
        assert {key: drawn[key] for key in tree} == tree


def test_a_float_column_takes_integers_and_an_integer_column_no_floats() -> None:
    buffer = advanced()
    buffer.push({"x": 0.5, "n": 1})
    buffer.push({"x": 2, "n": np.int8(3)})
    assert {float(d["x"]) for d in buffer.sample(2, 0)} <= {0.5, 2.0}
    with pytest.raises(BufferContractError, match=r"'n' is float64.*first items it was int64"):
        buffer.push({"x": 2, "n": 2.5})


def test_no_columns_of_no_items() -> None:
    buffer = advanced()
    assert buffer.push_columns({"row": np.zeros(0, np.int64)}, made_at=-1) == range(0)
    assert buffer.count() == 0
    assert buffer.push_columns({"row": np.arange(3)}, made_at=-1) == range(3)


# ----------------------------------------------------------------------------------------- objects


@pytest.mark.parametrize("like", [torch.zeros, np.zeros])
@pytest.mark.parametrize("frames", [[], ["a"]])
def test_an_item_that_was_drawn_is_no_larger_than_it_looks(like: Any, frames: list[str]) -> None:
    """Kept or pickled, it has nothing of the batch that it was drawn in."""
    buffer = advanced(64, frames=frames)
    buffer.push(
        [{"a": like((4, 100)), "n": torch.tensor(1.0), "m": torch.zeros(2)} for _ in range(64)]
    )
    drawn = (buffer.sample(50, 0) or [])[0]
    for value in (drawn["a"], drawn["n"], drawn["m"]):
        if isinstance(value, torch.Tensor):
            assert value.untyped_storage().nbytes() == value.nbytes
    if like is np.zeros:
        assert drawn["a"].base is None


def test_object_items_are_evicted_and_drawn_like_others() -> None:
    buffer = advanced(3)
    buffer.push([{"text": str(n)} for n in range(5)])
    assert {d["text"] for _ in range(40) for d in buffer.sample(1, 0)} == {"2", "3", "4"}
    assert buffer.sample_batch(1, 0) is None  # they are not columns
    buffer.push({"other": "keys"})
    assert buffer.count() == 3


@pytest.mark.parametrize("there", [{"a/b": 1, "a": {"b": 2}}, {"obs": {"arm/at": np.ones(2)}}])
def test_items_whose_keys_have_slashes_come_back_as_they_went_in(
    tmp_path: Path, there: dict[str, Any]
) -> None:
    buffer, copy = advanced(), advanced()
    buffer.push([there, there])
    buffer.save_data(tmp_path / "slashes.h5")
    copy.load_data(tmp_path / "slashes.h5")
    for drawn in (*buffer.sample(2, 0), *copy.sample(2, 0)):
        assert {key: str(drawn[key]) for key in there} == {key: str(there[key]) for key in there}


def test_a_draw_of_objects_as_columns_draws_nothing() -> None:
    buffer = advanced(max_use=1)
    buffer.push({"text": "a"})
    assert buffer.sample_batch(1, 0) is None
    assert buffer.sample(1, 0)[0]["use"] == 1


def test_a_state_of_objects_shares_nothing() -> None:
    buffer, copy = advanced(), advanced()
    buffer.push({"text": "a", "tags": ["old"]})
    state = buffer.state_dict()
    copy.load_state_dict(state)
    for drawn in (*copy.sample(1, 0), state.own["ring"]["items"]["objects"][0]):
        drawn["tags"].append("new")
    assert buffer.sample(1, 0)[0]["tags"] == ["old"]


def test_plain_objects_can_be_saved_others_are_refused(tmp_path: Path) -> None:
    buffer, copy = advanced(), advanced()
    buffer.push({"text": "a", "parts": [1, None, {"b": True}]})
    buffer.save_data(tmp_path / "plain.h5")
    copy.load_data(tmp_path / "plain.h5")
    assert copy.sample(1, 0)[0]["parts"] == [1, None, {"b": True}]
    buffer.push({"text": "a", "parts": {1, 2}})
    with pytest.raises(SnapshotError, match=r"other\.h5.*cannot be stored"):
        buffer.save_data(tmp_path / "other.h5")
    assert not (tmp_path / "other.h5").exists()


# --------------------------------------------------------------------------------- refused pushes


def full(n: int, /, **changed: Any) -> dict[str, Any]:
    return {**item(n), "priority": 1.0, **changed}


REFUSED_ALWAYS: dict[str, Any] = {
    "no dict": [full(9), 3],
    "another key": [full(9), full(9, new=1)],
    "another shape": [full(9), full(9, obs={"image": np.zeros((3, 2)), "speed": 1.0})],
    "a text among numbers": [full(9), full(9, n="nine")],
    "a negative priority": [full(9), full(9, priority=-1.0)],
    "a priority that is no number": full(9, priority=float("nan")),
    "an infinite priority": full(9, priority=float("inf")),
    "a wrong one after many": [*map(full, range(9, 30)), {"n": 30}],
}
REFUSED_LATER: dict[str, Any] = {
    "a key with a slash": full(9, **{"a/b": 1}),
    "a key less": {"n": 9},
    "another dtype": full(9, n=2.5),
    "nothing among numbers": full(9, n=None),
}
CASES = [(0, name) for name in REFUSED_ALWAYS]
CASES += [(n, name) for n in (3, 20) for name in REFUSED_ALWAYS | REFUSED_LATER]


@pytest.mark.parametrize(("before", "name"), CASES)
def test_a_refused_push_changes_nothing(before: int, name: str) -> None:
    """Not the items, not the counters, and not what the next push may be."""
    buffer, untouched = advanced(), advanced()
    for both in (buffer, untouched):
        both.push([full(n) for n in range(before)])
    with pytest.raises(BufferContractError):
        buffer.push((REFUSED_ALWAYS | REFUSED_LATER)[name])
    assert (buffer.count(), buffer.push_count) == (untouched.count(), untouched.push_count)
    for both in (buffer, untouched):
        both.push([full(n) for n in range(before, before + 4)])
    assert [d["n"] for d in buffer.sample(4, 0)] == [d["n"] for d in untouched.sample(4, 0)]


COLUMNS = {"n": np.arange(4)}


@pytest.mark.parametrize(
    ("columns", "made_at", "priority", "words"),
    [
        ({}, 0, None, "of one length"),
        ({"n": np.arange(4), "m": np.arange(3)}, 0, None, "of one length"),
        ({"n": np.array(["a", "b"])}, 0, None, "'n' is <U1, a column holds numbers"),
        ({"n": np.array([None, 1])}, 0, None, "'n' is object"),
        (COLUMNS, np.arange(3), None, r"ages of shape \(3,\) for 4 items"),
        (COLUMNS, 0, np.ones(3), r"priorities of shape \(3,\) for 4 items"),
        (COLUMNS, 0, np.array([1, 1, 1, -1.0]), "negative, not a number or above"),
        (COLUMNS, 0, np.array([1, 1, 1, np.nan]), "negative, not a number or above"),
        ({"n": np.zeros((4, 2), np.int64)}, 0, None, r"'n' is int64\(2,\).*it was int64\(\)"),
        ({"m": np.arange(4)}, 0, None, r"differ from the first ones in the keys \['m', 'n'\]"),
    ],
)
def test_refused_columns_change_nothing(
    columns: Any, made_at: Any, priority: Any, words: str
) -> None:
    buffer = advanced()
    buffer.push_columns(COLUMNS, 0)
    with pytest.raises(BufferContractError, match=words):
        buffer.push_columns(columns, made_at, priority)
    assert (buffer.count(), buffer.push_count) == (4, 4)
    assert buffer.push_columns(COLUMNS, 0) == range(4, 8)
    assert {int(d["n"]) for _ in range(30) for d in buffer.sample(4, 0)} == {0, 1, 2, 3}


def test_columns_into_a_buffer_of_objects_are_refused() -> None:
    buffer = advanced()
    buffer.push({"text": "a"})
    with pytest.raises(BufferContractError, match="holds objects, not columns"):
        buffer.push_columns(COLUMNS, 0)
    assert buffer.count() == 1


def test_errors_name_the_experiment_and_the_buffer() -> None:
    buffer = AdvancedReplayBuffer(None, None, "cartpole", "rank1")
    with pytest.raises(BufferContractError, match="cartpole/rank1: items must be dicts"):
        buffer.push([1, 2])


def test_more_at_once_than_fit() -> None:
    by_items, by_columns = advanced(4), advanced(4)
    by_items.push(items(0, 11))
    kept = by_columns.push_columns(
        {
            "n": np.arange(11),
            "obs/image": np.arange(11, dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(3, 2),
            "obs/speed": np.arange(11) / 2,
        },
        made_at=np.arange(11), priority=np.arange(11) + 1.0,
    )  # fmt: skip
    assert kept == range(7, 11)
    for buffer in (by_items, by_columns):
        assert (buffer.count(), buffer.push_count, seen(buffer)) == (4, 11, {7, 8, 9, 10})
    drawn = by_columns.sample(4, 20, slice(None))
    assert {d["n"]: (round(d["priority"], 4), d["staleness"]) for d in drawn} == {
        n: (n + 1, 20 - n) for n in range(7, 11)
    }
