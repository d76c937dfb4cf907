"""Policies as bytes: safetensors, on the wire between ranks and on disk alike.

No pickle anywhere: a safetensors file is a JSON header and raw tensors. The header's metadata carry
the policy's version, which is the learner's train iteration when it was taken, and a crc32 of the
version, the names and shapes, and the tensors' bytes in the order of their names.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.errors import PolicyFileError
from hpcdi.store.atomic import published
from hpcdi.store.checksum import crc32_of, crc32_of_array

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class PolicyImage:
    """A policy's parameters as safetensors bytes, and the train iteration they are of."""

    version: int
    data: bytes

    def state_dict(self) -> dict[str, Any]:
        """Parameter name -> torch tensor.

        Raises:
            PolicyFileError: the bytes are not safetensors, or fail their checksum.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        source = f"policy version {self.version}"
        verify(self.data, source)
        try:
            tensors: dict[str, Any] = load(self.data)
        except SafetensorError as error:
            raise PolicyFileError(source, f"is not safetensors: {error}") from error
        return tensors


def pack(state_dict: Mapping[str, Any], version: int) -> PolicyImage:
    """Image of a flat mapping of parameter name -> torch tensor (copied, on any device)."""
    import torch
    from safetensors.torch import save

    # copied one by one: safetensors refuses tensors that share memory, as tied weights do
    tensors = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in state_dict.items()
    }
    crc32 = _contents_crc(version, {name: list(t.shape) for name, t in tensors.items()})
    for name in sorted(tensors):
        crc32 = crc32_of_array(tensors[name].reshape(-1).view(torch.uint8).numpy(), crc32)
    metadata = {"policy_version": str(version), "crc32": str(crc32)}
    return PolicyImage(version, save(tensors, metadata))


def publish_policy(path: str | Path, image: PolicyImage, *, fsync: bool = True) -> None:
    """Write a policy file, whole or not at all.

    Raises:
        PolicyFileError: the file system refuses it.
    """
    try:
        with published(path, fsync=fsync) as file:
            file.write(image.data)
    except OSError as error:
        raise PolicyFileError(path, f"cannot be written: {error.strerror or error}") from error


def read_policy(path: str | Path) -> PolicyImage:
    """Read and verify a policy file.

    Raises:
        PolicyFileError: missing, torn, or not a policy of ours.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PolicyFileError(path, f"cannot be read: {error.strerror or error}") from error
    metadata = verify(data, path)
    return PolicyImage(int(metadata["policy_version"]), data)


def header(data: bytes, source: str | Path) -> dict[str, Any]:
    """JSON header of safetensors bytes: tensor name -> dtype, shape, place; and the metadata.

    Raises:
        PolicyFileError: these are not safetensors bytes.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        parsed = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    except (struct.error, ValueError) as error:
        raise PolicyFileError(source, f"is not a safetensors file: {error}") from error
    if not isinstance(parsed, dict):
        raise PolicyFileError(source, "is not a safetensors file")
    return parsed


def verify(data: bytes, source: str | Path) -> dict[str, str]:
    """Metadata of a policy's bytes, after their checksum was found right.

    Raises:
        PolicyFileError: not a policy of ours, or torn.
    """
    entries = header(data, source)
    metadata: dict[str, str] = entries.pop("__metadata__", {})
    missing = {"policy_version", "crc32"} - metadata.keys()
    if missing:
        raise PolicyFileError(source, f"is not a policy of hpcdi: it lacks {sorted(missing)}")
    body = memoryview(data)[_LENGTH.size + _LENGTH.unpack_from(data)[0] :]
    try:
        shapes = {name: entry["shape"] for name, entry in entries.items()}
        crc32 = _contents_crc(int(metadata["policy_version"]), shapes)
        for name in sorted(entries):
            start, end = entries[name]["data_offsets"]
            crc32 = crc32_of(body[start:end], crc32)
        expected = int(metadata["crc32"])
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyFileError(source, f"its header is damaged: {error!r}") from error
    if crc32 != expected:
        raise PolicyFileError(source, "checksum is wrong: the file is torn")
    return metadata


def _contents_crc(version: int, shapes: Mapping[str, list[int]]) -> int:
    """crc32 of what the header says: the version, names and shapes."""
    return crc32_of(json.dumps([version, sorted(shapes.items())]).encode())
