"""Policies as bytes: the same tensors come back, or an error that says why not."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from hpcdi.errors import PolicyError, PolicyFileError
from hpcdi.store.inspect import inspect
from hpcdi.store.policies import PolicyImage, header, publish_policy, read_policy, verify


@pytest.fixture
def state_dict() -> dict[str, Tensor]:
    """One of each kind."""
    return {
        "weight": torch.arange(12.0).reshape(3, 4),
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "strided": torch.arange(10)[::3],
        "expanded": torch.ones(1).expand(4),
        "number": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "flags": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "parameter": nn.Parameter(torch.ones(2)),
    }


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].shape == tensor.shape
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor)


@pytest.fixture
def image() -> PolicyImage:
    return PolicyImage.of({"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(0.5)}, 12)


def test_tensors_come_back(state_dict: dict[str, Tensor]) -> None:
    image = PolicyImage.of(state_dict, 12)
    assert image.version == 12
    assert_same(image.state_dict(), state_dict)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_what_has_diverged_is_no_policy(dtype: torch.dtype) -> None:
    diverged = torch.tensor([1.0, torch.nan], dtype=dtype)
    with pytest.raises(PolicyError, match="parameter w is NaN after train iteration 12"):
        PolicyImage.of({"b": torch.zeros(2), "w": diverged}, 12)


def test_a_file_gives_the_image_back(tmp_path: Path, image: PolicyImage) -> None:
    path = tmp_path / "policies" / "latest.safetensors"
    publish_policy(path, image)
    assert read_policy(path) == image
    publish_policy(path, PolicyImage.of({"w": torch.zeros(1)}, 13), fsync=False)
    assert read_policy(path).version == 13
    assert [file.name for file in path.parent.iterdir()] == ["latest.safetensors"]


def test_an_image_does_not_follow_the_network() -> None:
    weight = torch.zeros(3)
    image = PolicyImage.of({"w": weight}, 0)
    weight += 1
    assert image.state_dict()["w"].tolist() == [0.0, 0.0, 0.0]


def test_loaded_tensors_can_be_trained_on(image: PolicyImage) -> None:
    first, second = image.state_dict(), image.state_dict()
    first["w"] += 1
    assert torch.equal(second["w"], torch.arange(6.0).reshape(2, 3))


def test_tied_weights_are_packed() -> None:
    shared = torch.arange(4.0)
    state = {"encoder": shared, "decoder": shared, "part": shared[1:]}
    assert_same(PolicyImage.of(state, 1).state_dict(), state)


def test_a_network_becomes_equal() -> None:
    torch.manual_seed(0)
    one, two = (
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
    )
    two.load_state_dict(PolicyImage.of(one.state_dict(), 0).state_dict())
    assert_same(two.state_dict(), one.state_dict())


def test_no_tensors_at_all() -> None:
    assert PolicyImage.of({}, 3).state_dict() == {}


def test_any_safetensors_reader_sees_version_and_shapes(image: PolicyImage) -> None:
    entries = header(image.data, "x")
    assert entries["__metadata__"]["policy_version"] == "12"
    assert entries["w"]["shape"] == [2, 3]
    assert verify(image.data, "x") == entries["__metadata__"]


# ------------------------------------------------------------------------------------------ damage


def test_every_flipped_bit_of_the_tensors_is_noticed(image: PolicyImage) -> None:
    start = 8 + struct.unpack_from("<Q", image.data)[0]
    for offset in range(start, len(image.data)):
        torn = bytearray(image.data)
        torn[offset] ^= 0x10
        with pytest.raises(PolicyFileError, match="checksum is wrong"):
            PolicyImage(12, bytes(torn)).state_dict()


def test_a_flipped_bit_of_the_header_gives_no_wrong_tensor(image: PolicyImage) -> None:
    """It is an error of ours, or the tensors' values are right (a name has changed)."""
    start = 8 + struct.unpack_from("<Q", image.data)[0]
    right = sorted(tensor.flatten().tolist() for tensor in image.state_dict().values())
    for offset in range(start):
        for bit in (0x01, 0x80):
            torn = bytearray(image.data)
            torn[offset] ^= bit
            try:
                got = PolicyImage(12, bytes(torn)).state_dict()
            except PolicyFileError:
                continue
            assert sorted(tensor.flatten().tolist() for tensor in got.values()) == right


def test_a_file_of_any_shorter_length_is_noticed(image: PolicyImage) -> None:
    for length in range(len(image.data)):
        with pytest.raises(PolicyFileError):
            verify(image.data[:length], "x")


def test_trailing_bytes_are_noticed(image: PolicyImage) -> None:
    with pytest.raises(PolicyFileError, match="policy version 12: is not safetensors"):
        PolicyImage(12, image.data + b"more").state_dict()


def as_safetensors(entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


OURS = {"policy_version": "1", "checksum": "0"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a safetensors file"),
        (b"text and more text", "is not a safetensors file"),
        (b"\xff" * 64, "is not a safetensors file"),
        (as_safetensors([1, 2]), "is not a safetensors file"),
        (save({"w": torch.ones(2)}), "is not a policy of hpcdi: it lacks"),
        (save({"w": torch.ones(2)}, {"checksum": "1"}), "it lacks ['policy_version']"),
        (as_safetensors({"__metadata__": {**OURS, "checksum": "x"}}), "its header is damaged"),
        (as_safetensors({"__metadata__": OURS, "w": {}}), "its header is damaged"),
        (as_safetensors({"__metadata__": OURS, "w": 3}), "its header is damaged"),
        (as_safetensors({"__metadata__": OURS, "w": {"data_offsets": [1]}}), "is damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_a_file_that_is_no_policy_is_told(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(PolicyFileError) as caught:
        read_policy(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert inspect(path).errors == [str(caught.value)]


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="cannot be read: No such file"):
        read_policy(tmp_path / "x.safetensors")
    with pytest.raises(PolicyFileError, match="cannot be read: Is a directory"):
        read_policy(tmp_path)


def test_a_file_system_that_refuses_is_told(tmp_path: Path, image: PolicyImage) -> None:
    (tmp_path / "policies").write_text("a file where a folder should be")
    path = tmp_path / "policies" / "latest.safetensors"
    with pytest.raises(PolicyFileError, match="cannot be written: ") as caught:
        publish_policy(path, image)
    assert caught.value.path == path
