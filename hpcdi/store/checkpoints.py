"""Folders of files that appear all at once, with a manifest that is written last.

Two things are such folders: the checkpoints of a learner (its policy and how far it is), and the
snapshots of a run (all of it, the replay buffer included). This module calls both checkpoints.
Several ranks may write files of one: each calls `write_files`, and one of them `finish`.

Life of a checkpoint::

    .<name>.tmp-.../ ──files, each forced to disk──► manifest.json ──rename──► <name>/

Where one of the same name exists, it is renamed to `<name>.before` first and removed last, so that
a kill at any moment leaves one of them.

The manifest has the folder's name, the size and the crc32 of every file, and its own, over every
byte of it. A folder without a manifest, or whose files differ from it, is torn: readers skip it,
and take the one before it. So is one under another's name, where names say which is the newest: a
single checkpoint may be renamed or copied, and loaded from there.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import shutil
import string
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import CheckpointError, HpcdiError, StoreError
from hpcdi.store.atomic import make_folders, temporary_beside
from hpcdi.store.checksum import crc32_of_file
from hpcdi.store.files import (
    REFUSED,
    check_file,
    is_unreadable,
    names_in,
    open_file,
    patiently,
)
from hpcdi.store.sealed import load_sealed_json, write_sealed_json

MANIFEST = "manifest.json"
POLICY_FILE = "policy.safetensors"
"""File of every checkpoint: the weights."""
BEST_CHECKPOINT = "ckpt_best"
"""Name of the checkpoint with the best evaluation; in a run over ranks it has weights alone."""
SUFFIXES = (".tar", ".pth", ".pt", ".ckpt")
"""Endings of DI-engine's names of checkpoints: of files beside folders, whose names drop them."""
_BEFORE = ".before"


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint: its folder, and the facts in its manifest."""

    folder: Path
    facts: Mapping[str, Any]

    def file(self, name: str) -> Path:
        """Path of one of its files."""
        return self.folder / name


def save_checkpoint(
    folder: Path,
    name: str,
    writers: Mapping[str, Callable[[Path], None]],
    facts: Mapping[str, Any],
    *,
    keep: int | None,
) -> Path:
    """Write a checkpoint, in place of one of its name, then remove the oldest ones.

    Args:
        folder: folder of all checkpoints of a run.
        name: name of this one; names sort by age.
        writers: file name -> writes the file to the path that it is called with.
        facts: plain data, for the manifest.
        keep: how many stay, this one included, of those whose names differ in their number alone;
            others stay. None: all.

    Raises:
        CheckpointError: the file system refuses it; then nothing has changed.
    """
    target = folder / name
    aside = temporary_beside(target)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        files = write_files(aside, writers)
        finish(aside, target, files, facts)
    except (OSError, StoreError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(target, f"cannot be written: {reason}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if keep is not None:
        remove_others(target, keep)
    return target


def of_agent(agent: int, file: str) -> str:
    """Returns the name of an agent's file (battles, leagues); the first agent's is unchanged."""
    return f"agent{agent}_{file}" if agent else file


def write_files(
    aside: Path, writers: Mapping[str, Callable[[Path], None]]
) -> dict[str, dict[str, int]]:
    """Write files of a checkpoint; returns ``bytes`` and ``crc32`` of each.

    Args:
        aside: folder in which they wait for the others; see `temporary_beside`.
        writers: file name -> writes the file to the path that it is called with.

    Raises:
        OSError, StoreError: the file system refuses one.
    """
    make_folders(aside)
    if aside.is_symlink():  # somebody else's: the files would go to where it leads
        raise CheckpointError(aside, "is a link, and not this run's folder")
    files = {}
    for file, write in writers.items():
        (aside / file).unlink(missing_ok=True)  # somebody's link
        write(aside / file)
        with open_file(aside / file) as written:
            size = os.fstat(written.fileno()).st_size
            files[file] = {"bytes": size, "crc32": crc32_of_file(written)}
    return files


def finish(
    aside: Path, target: Path, files: Mapping[str, Mapping[str, int]], facts: Mapping[str, Any]
) -> None:
    """Give a checkpoint its manifest, and then its name.

    Raises:
        OSError, StoreError: the file system refuses it.
    """
    write_sealed_json(aside / MANIFEST, {"name": target.name, "facts": facts, "files": files})
    _put(aside, target)


def remove_others(target: Path, keep: int, torn: Collection[str] = ()) -> list[str]:
    """Remove the oldest checkpoints, and all that are newer than one: of a past before a resume.

    Those of other names, such as a user's copies, stay.

    Args:
        target: the one that was just written.
        keep: see `save_checkpoint`.
        torn: names of checkpoints that the caller knows to be torn: none of them stays.

    Returns:
        Names of those that were removed.
    """
    names, stem = checkpoint_names(target.parent), _without_number(target.name)
    beside = [name for name in names if _without_number(name) == stem]
    older = [name for name in beside if name < target.name and name not in torn]
    staying = {target.name, *older[max(0, len(older) - keep + 1) :]}
    removed = [name for name in beside if name not in staying]
    for name in removed:
        doomed = temporary_beside(target.parent / name)  # a reader must never see half of one
        with contextlib.suppress(OSError):
            (target.parent / name).replace(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    return removed


def _without_number(name: str) -> str:
    return name.removesuffix(_BEFORE).rstrip(string.digits)


def open_checkpoint(folder: Path, *, by_name: bool = False) -> Checkpoint:
    """Returns a checkpoint whose files have all been verified.

    Args:
        folder: its folder.
        by_name: the folder's name says how old it is, so it must be the one that was written.

    Raises:
        CheckpointError: there is none, or it is torn.
    """
    try:
        name, facts, files = _verified(folder / MANIFEST)
        if by_name and name != folder.name.removesuffix(_BEFORE):
            raise CheckpointError(folder, f"is {name}, under another name")
        for file, written in files.items():
            if not _is_as_written(folder / file, written):
                raise CheckpointError(folder, f"is torn: {file} is not what was written")
        return Checkpoint(folder, facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = "cannot be read" if is_unreadable(error) else "is no whole checkpoint"
        raise CheckpointError(folder, f"{what}: {error}") from error


def newest_checkpoint(
    folder: Path, needed: Mapping[str, type] | None = None
) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """Returns the newest intact checkpoint of a run, and what is wrong with newer ones.

    Args:
        folder: folder of all checkpoints of the run.
        needed: facts that it must state, and their types.

    Raises:
        StoreError: the file system fails, also after about 1.5 s; the newest one may be whole.
    """
    errors: list[CheckpointError] = []
    for name in reversed(patiently(partial(checkpoint_names, folder), folder)):
        opened = partial(open_checkpoint, folder / name, by_name=True)
        try:
            checkpoint = patiently(opened, folder / name)
        except CheckpointError as error:
            if is_unreadable(error):
                raise
            errors.append(error)
            continue
        kinds = (needed or {}).items()
        lacking = [name for name, kind in kinds if not isinstance(checkpoint.facts.get(name), kind)]
        if not lacking:
            return checkpoint, errors
        errors.append(CheckpointError(checkpoint.folder, f"its {MANIFEST} does not say {lacking}"))
    return None, errors


def checkpoint_names(folder: Path) -> list[str]:
    """Names of the checkpoints in a folder, oldest first.

    Raises:
        OSError: the folder cannot be read.
    """
    names = names_in(folder, only_folders=True)
    return sorted(name for name in names if not name.startswith("."))


_NUMBERS = (
    np.bool_,
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
)
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, *_NUMBERS})
_ARRAY_KINDS = "biufcmMSU"  # of a dtype: numbers, times and texts, but neither objects nor records


class UnsavableError(HpcdiError, TypeError):
    """A state holds what could not be loaded again."""


def save_tensors(path: Path, tree: object) -> None:
    """Write what `load_tensors` returns again, type for type, as torch does, forced to disk.

    Args:
        path: of the file.
        tree: tensors, arrays of numbers and texts, numbers of Python or NumPy, texts, bytes, None,
            and torch's sizes, devices and dtypes, in dicts, lists, tuples, sets and deques.

    Raises:
        UnsavableError: it holds something else; nothing is written.
    """
    tensors_writer(tree)(path)


def tensors_writer(tree: object) -> Callable[[Path], None]:
    """Returns what writes a file as `save_tensors` does, whose errors it raises at once."""
    if found := _unsavable(tree):
        raise UnsavableError(
            f"{found} could not be loaded again, so it is not saved: a file holds tensors, "
            "arrays, numbers and texts, in dicts, lists, tuples, sets and deques"
        )
    return partial(_write_tensors, tree)


def _unsavable(value: Any, key: str = "") -> str:
    """Returns the first value that `load_tensors` would refuse, by key and type; empty: none."""
    import torch

    kind = type(value)
    if kind in _PLAIN or kind in (torch.Tensor, torch.nn.Parameter):
        return ""
    if kind in (torch.Size, torch.device, torch.dtype):
        return ""
    if kind is np.ndarray and value.dtype.kind in _ARRAY_KINDS:
        return ""
    if kind in (dict, OrderedDict, Counter):
        parts = [(name, part) for name, held in value.items() for part in (name, held)]
    elif kind in (list, tuple, set, deque):
        parts = list(enumerate(value))
    else:
        what = f"an array of {value.dtype}" if kind is np.ndarray else f"a {kind.__name__}"
        return f"{key or 'the state'} ({what})"
    inside = (_unsavable(part, f"{key}.{name}" if key else str(name)) for name, part in parts)
    return next(filter(None, inside), "")


class _Made:
    """What a file makes by a constructor: arrays, NumPy's numbers and deques.

    Their own ways in a file would need NumPy's dtypes, into which a file may write any bytes.
    """

    def __init__(self, constructor: type, *arguments: object) -> None:
        self._how = constructor, arguments

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return self._how


def _writable(value: Any) -> Any:
    """Returns a tree with a `_Made` in the place of what it stands for; containers as they are."""
    kind = type(value)
    if kind is np.ndarray:
        return _Made(np.ndarray, value.shape, value.dtype.str, bytearray(value.tobytes()))
    if isinstance(value, np.generic):
        return _Made(kind, value.item())
    if kind is deque:
        return _Made(deque, [_writable(part) for part in value], value.maxlen)
    if kind in (list, tuple, set):
        return kind(_writable(part) for part in value)
    if kind in (dict, OrderedDict, Counter):
        written = copy.copy(value)  # with its attributes, as `Module.state_dict` gives it some
        written.clear()
        for name, part in value.items():
            written[_writable(name)] = _writable(part)
        return written
    return value


def _write_tensors(tree: object, path: Path) -> None:
    import torch

    data = io.BytesIO()  # not straight to the file: torch's error would not say that a disk is full
    torch.save(_writable(tree), data)
    with path.open("wb") as file:
        file.write(data.getbuffer())
        file.flush()
        os.fsync(file.fileno())


def load_tensors(path: Path) -> Any:
    """Read what `save_tensors` wrote; nothing but what it may write is ever built from a file.

    Raises:
        CheckpointError: the file is torn, or holds something else.
    """
    import torch

    try:
        with torch.serialization.safe_globals([np.ndarray, deque, bytes, *_NUMBERS]):
            return torch.load(check_file(path), map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader of torn files raises almost any of them
        raise CheckpointError(path, f"cannot be read: {error}") from error


def _put(aside: Path, target: Path) -> None:
    """Give a folder its name, in place of the one that has it."""
    before = target.with_name(f"{target.name}{_BEFORE}")
    if target.exists():  # else a kill may have left `before` alone
        shutil.rmtree(before, ignore_errors=True)
        target.replace(before)
    try:
        aside.replace(target)
    except OSError:
        if before.exists():
            before.replace(target)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _verified(path: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Returns name, facts and files of a manifest.

    Raises:
        OSError: it cannot be read. ValueError: it is damaged.
    """
    try:
        manifest = load_sealed_json(path)
    except ValueError as error:
        raise ValueError(f"{MANIFEST} is damaged: {error}") from error
    if manifest.keys() != {"name", "facts", "files"}:
        raise ValueError(f"{MANIFEST} is damaged: it has the keys {sorted(manifest)}")
    name, facts, files = manifest["name"], manifest["facts"], manifest["files"]
    if not isinstance(facts, dict) or not isinstance(files, dict):
        raise ValueError(f"{MANIFEST} names no files")  # noqa: TRY004 (a file, not an argument)
    return name, facts, files


def _is_as_written(path: Path, written: Mapping[str, int]) -> bool:
    """True if a file has the size and the checksum of the manifest."""
    try:
        file = open_file(path)
    except OSError as error:
        if error.errno in REFUSED:
            return False
        raise
    with file:
        is_alike = os.fstat(file.fileno()).st_size == written["bytes"]
        return is_alike and crc32_of_file(file) == written["crc32"]
