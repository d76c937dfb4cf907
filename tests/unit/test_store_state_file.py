"""Saved state: trees of arrays and plain data come back, or an error says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.errors import SnapshotError
from hpcdi.store.state_file import load_state, read_state, save_state

QUICK = settings(deadline=None, max_examples=30)

keys = st.text("abcxyz_0 -ü", min_size=1, max_size=6)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
)
plain = st.one_of(scalars, st.lists(st.one_of(scalars, st.lists(scalars, max_size=2)), max_size=3))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(["?", "u1", "<i8", "<f4", "<f8", ">i4", "<c8"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.integers(0, 2 if dtype == "?" else 100, shape).astype(dtype)


trees = st.recursive(
    st.dictionaries(keys, st.one_of(plain, arrays()), max_size=4),
    lambda inner: st.dictionaries(keys, st.one_of(plain, arrays(), inner), max_size=3),
    max_leaves=8,
)


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(got[name], value)
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected, strict=True)
    else:
        assert got == expected


@QUICK
@given(trees)
def test_a_tree_comes_back(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("state") / "x.h5"
    save_state(path, "thing", 3, tree, fsync=False)
    assert_same(load_state(path, "thing", 3), tree)
    kind, version, state = read_state(path)
    assert (kind, version) == ("thing", 3)
    assert_same(state, tree)


def test_what_comes_back_in_another_type(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    state = {"tuple": (1, (2, 3)), "numpy": np.float32(0.5), "flag": np.bool_(True)}
    save_state(path, "x", 1, state)
    assert_same(load_state(path, "x", 1), {"tuple": [1, [2, 3]], "numpy": 0.5, "flag": True})


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    save_state(tmp_path / "x.h5", "x", 1, {"best": float("-inf"), "none": float("nan")})
    state = load_state(tmp_path / "x.h5", "x", 1)
    assert state["best"] == float("-inf")
    assert np.isnan(state["none"])


def test_empty_parts_are_kept(tmp_path: Path) -> None:
    """Whoever saves {"tasks": {}} asks for state["tasks"] later."""
    tree = {"tasks": {}, "replay": {"rank1": {"buffer": {}}}, "list": []}
    save_state(tmp_path / "x.h5", "x", 1, tree)
    assert_same(load_state(tmp_path / "x.h5", "x", 1), tree)


def test_many_arrays_with_long_names(tmp_path: Path) -> None:
    """More than 64 KiB of checksums."""
    tree = {f"array_with_quite_a_long_name_{k:06d}": np.full(2, k) for k in range(1500)}
    save_state(tmp_path / "x.h5", "x", 1, tree, fsync=False)
    assert_same(load_state(tmp_path / "x.h5", "x", 1), tree)


def test_arrays_that_do_not_lie_in_one_piece(tmp_path: Path) -> None:
    tree = {"a": np.arange(12).reshape(3, 4).T[::2]}
    save_state(tmp_path / "x.h5", "x", 1, tree)
    assert_same(load_state(tmp_path / "x.h5", "x", 1), tree)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"a": object()}, "is not JSON serializable"),
        ({"a": {1, 2}}, "is not JSON serializable"),
        ({"a": b"bytes"}, "is not JSON serializable"),
        ({"a": [np.zeros(2)]}, "is not JSON serializable"),
        ({"a": np.array([None, 1])}, "cannot be stored"),
        ({"a": np.array(["text"])}, "cannot be stored"),
        ({"a": {"b/c": 1}}, "must not contain '/': 'b/c'"),
        ({".": np.zeros(1)}, "cannot be stored"),
    ],
)
def test_what_cannot_be_stored_leaves_the_old_file(
    tmp_path: Path, state: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "x.h5"
    save_state(path, "thing", 1, {"a": 1})
    with pytest.raises(SnapshotError) as caught:
        save_state(path, "thing", 1, state)
    assert str(caught.value).startswith(f"{path}: state of 'thing' cannot be stored: ")
    assert reason in str(caught.value)
    assert load_state(path, "thing", 1) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["x.h5"]


def test_a_tree_that_holds_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(SnapshotError, match="Circular"):
        save_state(tmp_path / "x.h5", "thing", 1, {"a": loop})


def test_a_file_system_that_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("a file where a folder should be")
    path = tmp_path / "snapshots" / "x.h5"
    with pytest.raises(SnapshotError, match="cannot be written: "):
        save_state(path, "thing", 1, {})


# ---------------------------------------------------------------------------- wrong, torn, foreign


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "x.h5"
    save_state(path, "thing", 2, {"numbers": np.arange(50), "text": "a text to be found"})
    return path


def test_another_kind_is_refused(saved: Path) -> None:
    with pytest.raises(SnapshotError, match="holds the state of 'thing', not of 'buffer'"):
        load_state(saved, "buffer", 2)


@pytest.mark.parametrize("version", [1, 3])
def test_another_version_is_refused(saved: Path, version: int) -> None:
    said = f"is a saved thing of format 2; this hpcdi reads format {version}$"
    with pytest.raises(SnapshotError, match=said):
        load_state(saved, "thing", version)


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        (np.arange(50).tobytes(), "checksum of 'numbers' is wrong: the file is torn"),
        (b"a text to be found", "checksum of its text is wrong: the file is torn"),
    ],
)
def test_a_flipped_bit_is_noticed(saved: Path, piece: bytes, reason: str) -> None:
    data = bytearray(saved.read_bytes())
    start = data.index(piece)
    whole = bytes(data)
    for offset in range(start, start + len(piece), 7):
        data = bytearray(whole)
        data[offset] ^= 0x01
        saved.write_bytes(data)
        with pytest.raises(SnapshotError) as caught:
            load_state(saved, "thing", 2)
        assert str(caught.value) == f"{saved}: {reason}"


@pytest.mark.parametrize("length", [0, 1, 200, 700, -1])
def test_a_truncated_file_is_noticed(saved: Path, length: int) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(SnapshotError, match="cannot be read"):
        load_state(saved, "thing", 2)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be read") as caught:
        load_state(tmp_path / "x.h5", "thing", 1)
    assert caught.value.path == tmp_path / "x.h5"


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = 1
    with pytest.raises(SnapshotError, match="is an HDF5 file, but not saved state of hpcdi"):
        read_state(path)
    path.write_text("text")
    with pytest.raises(SnapshotError, match="cannot be read"):
        read_state(path)


@pytest.mark.parametrize("name", ["text", "arrays", "text_crc32"])
def test_a_file_without_its_parts_is_refused(saved: Path, name: str) -> None:
    with h5py.File(saved, "r+") as file:
        if name == "text_crc32":
            del file.attrs[name]
        else:
            del file[name]
    with pytest.raises(SnapshotError, match="cannot be read"):
        read_state(saved)
