"""An HDF5 file made of its structure and of arrays that are not copied: h5py reads it back."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fakes.store import image_of
from hpcdi.store.checksum import crc32_of
from hpcdi.store.hdf5 import read_attributes
from hpcdi.store.image import ALIGNMENT, Draft, Image, read_arrays, write_pieces
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


@settings(max_examples=60, deadline=None)
@given(named_arrays(), attributes)
def test_h5py_reads_back_every_array_and_attribute(columns: Columns, said: dict[str, Any]) -> None:
    image = image_of(columns, said)
    data = bytes(image)
    with h5py.File(io.BytesIO(data)) as file:
        assert all_names(file) == set(columns)
        assert all(same(file[name], array) for name, array in columns.items())
        assert read_attributes(file) == said
    assert len(data) == image.size
    for name, array in columns.items():
        offset = image.offsets[name]
        assert offset % ALIGNMENT == 0
        assert (offset > 0) == (array.size > 0)
        if array.size:
            assert data[offset : offset + array.nbytes] == array.tobytes()


def test_nothing_overlaps() -> None:
    columns = {f"group {n}/x": np.full(n, n % 251, np.uint8) for n in range(1, 300)}
    image = image_of(columns, {})
    spans = sorted((image.offsets[name], len(array)) for name, array in columns.items())
    ends = [0, *(offset + count for offset, count in spans)]
    assert all(offset >= end for (offset, _), end in zip(spans, ends, strict=False))
    with h5py.File(io.BytesIO(bytes(image))) as file:
        assert all((file[name][()] == array).all() for name, array in columns.items())


def some_image() -> Image:
    columns = {"a": np.arange(5000), "g/b": np.ones((3, 4)), "g/none": np.zeros((0, 2))}
    return image_of(columns, {"kind": "test", "n": 3})


def test_a_real_file_is_the_same_bytes(tmp_path: Path) -> None:
    image, path = some_image(), tmp_path / "image.h5"
    with path.open("wb") as file:
        image.write_to(file)
    assert path.read_bytes() == bytes(image)
    with h5py.File(path) as file:
        assert file["a"][4999] == 4999
        assert file["g/none"].shape == (0, 2)
        assert file["a"].id.get_offset() == image.offsets["a"]


def test_the_same_arrays_make_the_same_bytes() -> None:
    """Nothing of the time or of memory that was not written is in it."""
    assert bytes(some_image()) == bytes(some_image())


def test_h5py_can_write_on_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "image.h5"
    path.write_bytes(bytes(some_image()))
    with h5py.File(path, "r+") as file:
        file["g/new"] = np.arange(7)
        file["a"][0] = -1
    with h5py.File(path) as file:
        assert file["g/new"][6] == 6
        assert file["a"][:2].tolist() == [-1, 1]
        assert (file["g/b"][()] == 1).all()


def shares(image: Image, array: Array) -> bool:
    pieces = [np.frombuffer(piece, np.uint8) for _, piece in image.pieces]
    return any(np.shares_memory(piece, array) for piece in pieces)


@pytest.mark.parametrize("dtype", ["u1", "?", ">i4", "f8", "c16"])
def test_arrays_are_not_copied(dtype: str) -> None:
    array = np.ones((40, 5), dtype)
    rows = np.ones((40, 5), dtype)[10:20]
    image = image_of({"array": array, "rows": rows}, {})
    assert shares(image, array)
    assert shares(image, rows)
    array[:] = 0  # till it is written
    with h5py.File(io.BytesIO(bytes(image))) as file:
        assert not file["array"][()].any()
        assert file["rows"][()].all()


def test_a_large_array_is_one_piece_and_the_rest_is_small() -> None:
    image = image_of({"large": np.zeros(1 << 20), "small": np.zeros(3)}, {"kind": "test"})
    sizes = sorted((len(piece) for _, piece in image.pieces), reverse=True)
    assert sizes[0] == 8 << 20
    assert sum(sizes[1:]) < 8192


def test_arrays_that_do_not_lie_in_order_come_out_right() -> None:
    array = np.arange(24.0).reshape(4, 6)
    frozen = array.copy()
    frozen.flags.writeable = False
    columns = {
        "turned": array.T, "every second": array[:, ::2], "backwards": array[::-1],
        "one row": np.broadcast_to(array[0], (5, 6)), "frozen": frozen,
    }  # fmt: skip
    image = image_of(columns, {})
    with h5py.File(io.BytesIO(bytes(image))) as file:
        assert all((file[name][()] == each).all() for name, each in columns.items())
    assert shares(image, frozen)


def test_an_image_of_nothing() -> None:
    image = image_of({}, {})
    assert image.offsets == {}
    with h5py.File(io.BytesIO(bytes(image))) as file:
        assert list(file) == list(file.attrs) == []


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.zeros(2, "m8[s]")])
def test_what_hdf5_cannot_hold_is_refused(array: Array) -> None:
    with pytest.raises(TypeError):
        image_of({"a": array}, {})


@pytest.mark.parametrize("value", [None, {"a": 1}])
def test_attributes_that_hdf5_cannot_hold_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        image_of({}, {"a": value})


@pytest.mark.parametrize("name", ["", "a/", "."])
def test_names_that_hdf5_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        image_of({name: np.zeros(3)}, {})


def test_a_name_cannot_be_an_array_and_a_group() -> None:
    with pytest.raises((TypeError, ValueError), match="exists"):
        image_of({"a": np.zeros(3), "a/b": np.zeros(3)}, {})


def test_arrays_that_are_written_before_the_rest_is_known(tmp_path: Path) -> None:
    early, late, path = {"large": np.arange(300_000), "g/none": np.zeros(0)}, np.arange(9), tmp_path
    with (path / "image.h5").open("wb") as file, Draft() as draft:
        draft.add(early)
        write_pieces(file, draft.pending())
        draft.add({"g/late": late})
        image = draft.finish({"known": "now"})
        assert sum(len(piece) for _, piece in image.pieces) < 8192  # the large one is there already
        image.write_to(file)
    with h5py.File(path / "image.h5") as read:
        assert all((read[name][()] == array).all() for name, array in early.items())
        assert read["g/late"][()].tolist() == late.tolist()
        assert read_attributes(read) == {"known": "now"}


@given(named_arrays())
def test_the_structure_leaves_the_arrays_alone(columns: Columns) -> None:
    with Draft() as draft:
        draft.add(columns)
        taken = [(offset, offset + len(piece)) for offset, piece in draft.pending()]
        image = draft.finish({"kind": "test"})
    for offset, piece in image.pieces:
        assert all(offset + len(piece) <= start or end <= offset for start, end in taken)


@settings(deadline=None)
@given(named_arrays())
def test_arrays_come_back_with_their_checksums(
    tmp_path_factory: pytest.TempPathFactory, columns: Columns
) -> None:
    path = tmp_path_factory.mktemp("read") / "image.h5"
    path.write_bytes(bytes(image_of(columns, {})))
    with h5py.File(path) as file:
        arrays, checksums = read_arrays(path, {name: file[name] for name in columns})
    for name, array in columns.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        assert arrays[name].tobytes() == array.tobytes()
        assert checksums[name] == crc32_of(array.tobytes())


def test_arrays_that_another_tool_has_laid_out_come_back_too(tmp_path: Path) -> None:
    array = np.arange(60_000).reshape(-1, 6)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        dataset = file.create_dataset("squeezed", data=array, chunks=(100, 6), compression="gzip")
        arrays, checksums = read_arrays(tmp_path / "other.h5", {"squeezed": dataset})
    assert (arrays["squeezed"] == array).all()
    assert checksums["squeezed"] == crc32_of(array.tobytes())


def test_a_file_that_ends_within_an_array_is_told(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.h5", tmp_path / "cut.h5"
    whole.write_bytes(bytes(image_of({"a": np.arange(1 << 20)}, {})))
    cut.write_bytes(whole.read_bytes()[: 3 << 20])
    with h5py.File(whole) as file, pytest.raises(OSError, match="the file ends at byte 3145728"):
        read_arrays(cut, {"a": file["a"]})
