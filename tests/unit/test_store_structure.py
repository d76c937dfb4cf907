"""An HDF5 file whose structure h5py makes, and whose arrays we write: h5py reads it back."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpcdi.store.hdf5 import read_attributes
from hpcdi.store.structure import ALIGNMENT, write_arrays
from hpcdi.types import Array, Columns

DTYPES = ["?", "u1", "i1", "<i2", ">i4", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16"]
NAMES = ["a", "b", "obs", "é"]

arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=9)
attributes = st.dictionaries(
    st.sampled_from(["version", "kind", "made by"]),
    st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans() | texts,
)


@st.composite
def named_arrays(draw: st.DrawFn) -> Columns:
    """Arrays at the leaves of a tree of groups."""
    depths = draw(st.lists(st.integers(0, 2), max_size=5))
    return {
        "/".join([*NAMES[:depth], f"leaf {number}"]): draw(arrays)
        for number, depth in enumerate(depths)
    }


def same(read: h5py.Dataset, array: Array) -> bool:
    """Value for value, bit for bit; h5py gives a scalar in the machine's byte order."""
    expected = array if array.ndim else array.astype(array.dtype.newbyteorder("="))
    found = read[()]
    return (read.dtype, read.shape, found.tobytes()) == (
        array.dtype, array.shape, expected.tobytes()
    )  # fmt: skip


def all_names(file: h5py.File) -> set[str]:
    names: set[str] = set()
    file.visititems(lambda name, node: names.add(name) if isinstance(node, h5py.Dataset) else None)
    return names


def contents(columns: Columns, attributes: dict[str, Any]) -> bytes:
    """What is written into an empty file."""
    with tempfile.TemporaryFile() as file:
        write_arrays(file, columns, attributes)
        file.seek(0)
        return file.read()


def offset_of(dataset: h5py.Dataset) -> int:
    return int(dataset.id.get_offset() or 0)


@settings(max_examples=60, deadline=None)
@given(named_arrays(), attributes)
def test_h5py_reads_back_every_array_and_attribute(columns: Columns, said: dict[str, Any]) -> None:
    data = contents(columns, said)
    with h5py.File(io.BytesIO(data)) as file:
        assert all_names(file) == set(columns)
        assert all(same(file[name], array) for name, array in columns.items())
        assert read_attributes(file) == said
        for name, array in columns.items():
            offset = offset_of(file[name])
            assert offset % ALIGNMENT == 0
            assert (offset > 0) == (array.size > 0)
            if array.size:
                assert data[offset : offset + array.nbytes] == array.tobytes()


def test_nothing_overlaps() -> None:
    columns = {f"group {n}/x": np.full(n, n % 251, np.uint8) for n in range(1, 300)}
    with h5py.File(io.BytesIO(contents(columns, {}))) as file:
        spans = sorted((offset_of(file[name]), len(array)) for name, array in columns.items())
        assert all((file[name][()] == array).all() for name, array in columns.items())
    ends = [0, *(offset + count for offset, count in spans)]
    assert all(offset >= end for (offset, _), end in zip(spans, ends, strict=False))


def some_contents() -> bytes:
    columns = {"a": np.arange(5000), "g/b": np.ones((3, 4)), "g/none": np.zeros((0, 2))}
    return contents(columns, {"kind": "test", "n": 3})


def test_the_same_arrays_make_the_same_bytes() -> None:
    """Nothing of the time or of memory that was not written is in it."""
    assert some_contents() == some_contents()


def test_h5py_can_write_on_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(some_contents())
    with h5py.File(path, "r+") as file:
        file["g/new"] = np.arange(7)
        file["a"][0] = -1
    with h5py.File(path) as file:
        assert file["g/new"][6] == 6
        assert file["a"][:2].tolist() == [-1, 1]
        assert (file["g/b"][()] == 1).all()


def test_what_is_no_array_is_small() -> None:
    columns = {"large": np.zeros(1 << 17), "small": np.zeros(3)}
    assert len(contents(columns, {"kind": "test"})) < (1 << 20) + 8192


def test_arrays_that_do_not_lie_in_order_come_out_right() -> None:
    array = np.arange(24.0).reshape(4, 6)
    frozen = array.copy()
    frozen.flags.writeable = False
    columns = {
        "turned": array.T, "every second": array[:, ::2], "backwards": array[::-1],
        "one row": np.broadcast_to(array[0], (5, 6)), "frozen": frozen,
    }  # fmt: skip
    with h5py.File(io.BytesIO(contents(columns, {}))) as file:
        assert all((file[name][()] == each).all() for name, each in columns.items())


def test_a_file_of_nothing() -> None:
    with h5py.File(io.BytesIO(contents({}, {}))) as file:
        assert list(file) == list(file.attrs) == []


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.zeros(2, "m8[s]")])
def test_what_hdf5_cannot_hold_is_refused(array: Array) -> None:
    with pytest.raises(TypeError):
        contents({"a": array}, {})


@pytest.mark.parametrize("value", [None, {"a": 1}])
def test_attributes_that_hdf5_cannot_hold_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        contents({}, {"a": value})


@pytest.mark.parametrize("name", ["", "a/", ".", "a\0b"])
def test_names_that_hdf5_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        contents({name: np.zeros(3)}, {})


def test_a_name_cannot_be_an_array_and_a_group() -> None:
    with pytest.raises((TypeError, ValueError), match="exists"):
        contents({"a": np.zeros(3), "a/b": np.zeros(3)}, {})
