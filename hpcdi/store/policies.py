"""Policies as bytes: safetensors, on the wire between ranks and on disk alike.

No pickle anywhere: a safetensors file is a JSON header and raw tensors. The header's metadata carry
the policy's version, which is the learner's train iteration when it was taken, and a crc32 of the
version, the names, dtypes and shapes, and the tensors' bytes in the order of their names.
"""

from __future__ import annotations

import functools
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from hpcdi.dataclass import dataclass
from hpcdi.errors import PolicyError, PolicyFileError
from hpcdi.store.atomic import write_bytes
from hpcdi.store.checksum import crc32_of, crc32_of_array
from hpcdi.store.files import open_file
from hpcdi.utils.nested import parse_json

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 100 << 20
"""As safetensors has it."""
_VERSION, _CHECKSUM = "policy_version", "checksum"


@dataclass(frozen=True)
class PolicyImage:
    """A policy's parameters as safetensors bytes, and the train iteration they are of."""

    version: int
    data: bytes

    @classmethod
    def of(cls, state_dict: Mapping[str, Any], version: int) -> Self:
        """Image of a flat mapping of parameter name -> torch tensor (copied, on any device).

        Raises:
            PolicyError: a parameter is NaN; so none is published, kept as the best, or resumed
                from.
        """
        import torch
        from safetensors.torch import save

        # copied one by one: safetensors refuses tensors that share memory, as tied weights do
        tensors = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in state_dict.items()
        }
        for name, tensor in tensors.items():
            if bool(tensor.isnan().any()):  # of complex numbers, too
                raise PolicyError(
                    f"parameter {name} is NaN after train iteration {version}: the network has "
                    "diverged. Lower policy.learn.learning_rate, or set policy.learn.grad_clip_norm"
                )
        crc32 = _contents_crc(
            version, {name: (_name_of(t.dtype), list(t.shape)) for name, t in tensors.items()}
        )
        for name in sorted(tensors):
            crc32 = crc32_of_array(tensors[name].reshape(-1).view(torch.uint8).numpy(), crc32)
        metadata = {_VERSION: str(version), _CHECKSUM: str(crc32)}
        return cls(version, save(tensors, metadata))

    def state_dict(self, *, as_arrays: bool = False) -> dict[str, Any]:
        """Parameter name -> torch tensor, or array of numpy.

        Raises:
            PolicyFileError: the bytes are not safetensors, or fail their checksum.
        """
        from safetensors import SafetensorError

        if as_arrays:
            from safetensors.numpy import load
        else:
            from safetensors.torch import load
        source = f"policy version {self.version}"
        verify(self.data, source)
        try:
            parameters: dict[str, Any] = load(self.data)
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise PolicyFileError(source, f"is not safetensors: {error}") from error
        return parameters


def publish_policy(path: str | Path, image: PolicyImage, *, fsync: bool = True) -> None:
    """Write a policy file, whole or not at all.

    Raises:
        PolicyFileError: the file system refuses it.
    """
    try:
        write_bytes(path, image.data, fsync=fsync)
    except OSError as error:
        raise PolicyFileError(path, f"cannot be written: {error.strerror or error}") from error


def read_policy(path: str | Path) -> PolicyImage:
    """Read and verify a policy file.

    Raises:
        PolicyFileError: missing, torn, or not a policy of ours.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_LENGTH.size)
            if len(head) == _LENGTH.size and _LENGTH.unpack(head)[0] <= _LARGEST_HEADER:
                head += file.read(_LENGTH.unpack(head)[0])
            _check_size(head, size, path)
            data = head + file.read()
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise PolicyFileError(path, f"cannot be read: {reason}") from error
    metadata = verify(data, path)
    return PolicyImage(int(metadata[_VERSION]), data)


def _check_size(head: bytes, size: int, path: str | Path) -> None:
    """Check that a file has as many bytes as its header describes, before they are read.

    Raises:
        PolicyFileError: it has not; or this is no such header.
    """
    entries = header(head, path)
    try:
        tensors = (entry for name, entry in entries.items() if name != "__metadata__")
        end = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
    except (LookupError, TypeError, ValueError) as error:
        raise PolicyFileError(path, f"its header is damaged: {error!r}") from error
    if len(head) + end != size:
        raise PolicyFileError(path, f"has {size} bytes, its header describes {len(head) + end}")


def header(data: bytes, source: str | Path) -> dict[str, Any]:
    """JSON header of safetensors bytes: tensor name -> dtype, shape, place; and the metadata.

    Raises:
        PolicyFileError: these are not safetensors bytes.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        parsed = parse_json(data[_LENGTH.size : _LENGTH.size + length])
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
    metadata = entries.pop("__metadata__", {})
    missing = {_VERSION, _CHECKSUM} - (metadata.keys() if isinstance(metadata, dict) else set())
    if missing:
        raise PolicyFileError(source, f"is not a policy of hpcdi: it lacks {sorted(missing)}")
    body = memoryview(data)[_LENGTH.size + _LENGTH.unpack_from(data)[0] :]
    try:
        described = {name: (entry["dtype"], entry["shape"]) for name, entry in entries.items()}
        crc32 = _contents_crc(int(metadata[_VERSION]), described)
        for name in sorted(entries):
            start, end = entries[name]["data_offsets"]
            crc32 = crc32_of(body[start:end], crc32)
        expected = int(metadata[_CHECKSUM])
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyFileError(source, f"its header is damaged: {error!r}") from error
    if crc32 != expected:
        raise PolicyFileError(source, "checksum is wrong: the file is torn")
    return {name: str(value) for name, value in metadata.items()}


def _contents_crc(version: int, described: Mapping[str, Any]) -> int:
    """crc32 of what the header says: the version, names, dtypes and shapes."""
    return crc32_of(json.dumps([version, sorted(described.items())]).encode())


@functools.cache
def _name_of(dtype: Any) -> str:
    """How safetensors calls a torch dtype."""
    import torch
    from safetensors.torch import save

    entry = header(save({"x": torch.empty(0, dtype=dtype)}), str(dtype))["x"]
    return str(entry["dtype"])
