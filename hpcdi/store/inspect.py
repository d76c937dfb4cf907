"""Describes a file or a run folder, and verifies every checksum."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

import h5py
import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import CheckpointError, ShardError, StoreError
from hpcdi.store.atomic import TEMPORARY_MARK, read_json
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import MANIFEST, SUFFIXES, checkpoint_names, open_checkpoint
from hpcdi.store.files import check_file, is_unreadable
from hpcdi.store.hdf5 import DAMAGE, read_attributes
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import header, read_policy
from hpcdi.store.sealed import change_of, load_sealed_json, other_files
from hpcdi.store.shard_file import KIND as SHARD
from hpcdi.store.shard_file import ShardReader
from hpcdi.store.shards import read_blocks
from hpcdi.store.state_file import KIND as SAVED_STATE
from hpcdi.store.state_file import read_state
from hpcdi.types import NO_SEED, Array
from hpcdi.utils.metrics import counted, human_bytes
from hpcdi.utils.nested import flatten


@dataclass
class Report:
    """Lines for people, and errors."""

    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def inspect(path: str | Path) -> Report:
    """Describe a shard, a policy, saved state, a checkpoint, or a whole run folder."""
    path = Path(path)
    report = Report()
    try:
        if path.is_dir() and (path / MANIFEST).is_file():
            report.lines.append(_checkpoint(path))
        elif path.is_dir():
            _run_folder(path, report)
        elif not os.path.lexists(path):
            report.errors.append(f"{path}: does not exist")
        elif path.suffix == ".safetensors":
            report.lines += _policy(path)
        else:
            report.lines += _hdf5(path, report)
    except StoreError as error:
        report.errors.append(str(error))
    return report


def _hdf5(path: Path, report: Report) -> Iterator[str]:
    try:
        with h5py.File(check_file(path), "r", locking=False) as file:
            kind = read_attributes(file).get("format")
    except DAMAGE as error:
        raise StoreError(path, f"cannot be read as HDF5: {error}") from error
    if kind == SHARD:
        return _shard(path, report)
    if kind == SAVED_STATE:
        return _state(path)
    raise StoreError(path, "is an HDF5 file, but not one of hpcdi")


def _shard(path: Path, report: Report) -> Iterator[str]:
    blocks, damaged, n_bytes = _blocks(path)
    report.errors += damaged
    items = sum(len(block.items) for block in blocks)
    right = "damaged" if damaged else "checksums are right"
    yield f"{path}: shard of {counted(len(blocks), 'block')}, {human_bytes(n_bytes)}, {right}"
    yield (
        f"  {sum(block.transitions for block in blocks)} transitions in {items} items, "
        f"{sum(block.rows for block in blocks)} rows" + _versions(blocks) + _seeds(blocks)
        if items
        else "  no items"
    )
    for name in dict.fromkeys(name for block in blocks for name in block.facts):
        values = dict.fromkeys(_fact(name, block.facts.get(name)) for block in blocks)
        first, *_, last = [*values, *values]
        yield f"  {name}: {first}" + (f" .. {last}" if len(values) > 1 else "")
    for name, column in blocks[0].columns.items() if blocks else ():
        shape = (sum(block.rows for block in blocks), *column.shape[1:])
        extent = _range([block.columns[name] for block in blocks])
        yield f"  {name:<20} {column.dtype!s:<8} {shape!s:<18} {extent}"
    for view in blocks[0].views if blocks else ():
        yield f"  {view.name:<20} = {view.column}[row + {view.offset}[row]]"


def _blocks(path: Path) -> tuple[list[Block], list[str], int]:
    """The blocks of a shard, what is wrong with others, and the bytes that it takes on its disk.

    Raises:
        ShardError: it is missing, torn, or not one of ours.
    """
    shard = ShardReader(path, path.name)
    blocks, damaged = [], []
    for block in read_blocks(path):
        if isinstance(block, Block):
            blocks.append(block)
        else:
            damaged.append(str(block))
    if not damaged:
        try:
            shard.check_structure()
        except ShardError as error:
            damaged.append(str(error))
    return blocks, damaged, shard.disk_bytes


def _policy(path: Path) -> Iterator[str]:
    image = read_policy(path)
    yield (
        f"{path}: policy of train iteration {image.version}, "
        f"{human_bytes(len(image.data))}, checksum is right"
    )
    for name, entry in header(image.data, path).items():
        if name != "__metadata__":
            yield f"  {name:<40} {entry['dtype']:<6} {tuple(entry['shape'])}"


def _state(path: Path) -> Iterator[str]:
    kind, version, state = read_state(path)
    size = human_bytes(path.stat().st_size)
    yield f"{path}: state of {kind!r}, schema {version}, {size}, checksums are right"
    for name, value in flatten(state).items():
        if isinstance(value, np.ndarray):
            yield f"  {name:<40} {value.dtype!s:<8} {value.shape}"
        else:
            text = str(value)
            yield f"  {name:<40} {text if len(text) < 60 else text[:57] + '...'}"


def _run_folder(path: Path, report: Report) -> None:
    layout = RunLayout(path)
    path = layout.root
    if not layout.run_file.is_file():
        raise StoreError(path, "is no run folder, as it has no run.json")
    run = read_json(layout.run_file)
    try:
        load_sealed_json(layout.run_file)
    except (OSError, ValueError) as error:
        kind = "cannot be read" if is_unreadable(error) else "is damaged"
        report.errors.append(f"{layout.run_file}: {kind}: {error}")
    versions = run.get("versions")
    of_version = versions.get("hpcdi") if isinstance(versions, dict) else None
    report.lines.append(
        f"{path}: run of {run.get('exp_name')!r}, state {run.get('state')!r}, hpcdi {of_version}"
    )
    report.errors += _no_folders(layout)
    report.errors += _config(layout)
    recorded = run.get("files")
    report.errors += other_files(layout, recorded if isinstance(recorded, dict) else {})
    shards, blocks, transitions, size = 0, 0, 0, 0
    ours = {path / name for name in layout.shard_numbers()}
    others = {*_below(layout.data_dir, "*.h5")} - ours
    damaged = [f"{file}: is no shard by its path: no run reads it" for file in sorted(others)]
    for shard in sorted(ours):
        whole, torn, n_bytes = list[Block](), list[str](), 0
        try:
            whole, torn, n_bytes = _blocks(shard)
        except StoreError as error:
            torn = [str(error)]
        if torn and not os.path.lexists(shard):
            continue  # a running run has removed it
        damaged += torn
        shards, blocks = shards + bool(whole), blocks + len(whole)
        transitions += sum(block.transitions for block in whole)
        size += n_bytes
    report.lines.append(
        f"  data: {counted(blocks, 'block')} in {counted(shards, 'shard')}, "
        f"{transitions} transitions, {human_bytes(size)}"
        + (f", {len(damaged)} damaged" if damaged else ", all checksums right" * bool(blocks))
    )
    report.errors += damaged
    for other in (*layout.frozen_files(), *layout.policy_files()):
        policy = inspect(other)
        report.lines += [f"  {line}" for line in policy.lines[:1]]
        report.errors += policy.errors
    _checkpoints(layout, report)
    leftovers = _below(path, f".*{TEMPORARY_MARK}*")
    report.lines += [f"  left over from an interrupted write: {name}" for name in leftovers]


def _below(folder: Path, pattern: str) -> Iterator[Path]:
    """Yields what is anywhere in a folder; a running run may remove folders meanwhile."""
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in fnmatch.filter([*folders, *files], pattern))


def _config(layout: RunLayout) -> Iterator[str]:
    """Yields what is wrong with the experiment of a run."""
    try:
        change = change_of(layout.config_file)
    except OSError as error:
        change = f"it cannot be read: {error.strerror or error}"
    if change:
        yield f"{layout.config_file}: is not as the run wrote it: {change}"


def _no_folders(layout: RunLayout) -> Iterator[str]:
    """Yields a line for each folder of a run in whose place is something else."""
    places = [
        *(layout.data_dir, *layout.data_dir.glob("[!.]*"), *layout.data_dir.glob("rank*/[!.]*")),
        *(layout.snapshots_dir, *layout.snapshots_dir.glob("[!.]*")),
        *layout.checkpoint_dirs(),
        *(path for path in layout.root.glob("checkpoints*/[!.]*") if path.suffix not in SUFFIXES),
        layout.latest_policy.parent,
        layout.log_dir,
    ]
    for place in places:
        if os.path.lexists(place) and not place.is_dir():
            yield f"{place}: is no folder, as it was"


def _checkpoints(layout: RunLayout, report: Report) -> None:
    folders = [layout.snapshots_dir, *layout.checkpoint_dirs()]
    for path in [folder / name for folder in folders for name in checkpoint_names(folder)]:
        try:
            report.lines.append(f"  {_checkpoint(path)}")
        except CheckpointError as error:
            if os.path.lexists(path):  # a running run may have removed it
                report.errors.append(str(error))


def _checkpoint(path: Path) -> str:
    kind = "snapshot" if path.parent.name == "snapshots" else "checkpoint"
    facts = open_checkpoint(path, by_name=kind == "snapshot").facts
    steps = facts.get("env_steps", facts.get("collector_envstep"))
    at = "" if steps is None else f", env step {steps}"
    return f"{path}: {kind} at train iteration {facts.get('train_iter')}{at}, all checksums right"


def _fact(name: str, value: object) -> str:
    if name.endswith("_at") and isinstance(value, float):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return str(value)


def _range(columns: list[Array]) -> str:
    columns = [column for column in columns if column.size]
    if not columns:
        return "empty"
    low = np.fmin.reduce([np.fmin.reduce(column, axis=None) for column in columns])
    high = np.fmax.reduce([np.fmax.reduce(column, axis=None) for column in columns])
    odd = sum(np.count_nonzero(column != column) for column in columns)  # of NaN
    share = odd / sum(column.size for column in columns)
    return f"{low:.6g} .. {high:.6g}" + f", {share:.1%} NaN" * bool(odd)


def _seeds(blocks: list[Block]) -> str:
    """Returns which seeds episodes of blocks have begun by."""
    seeds = {int(seed) for block in blocks for seed in block.items["episode_seed"]} - {NO_SEED}
    if not seeds:
        return ""
    return f", {counted(len(seeds), 'seed')}: {min(seeds)}" + f" to {max(seeds)}" * (len(seeds) > 1)


def _versions(blocks: list[Block]) -> str:
    """Returns by which policies blocks, of which one has an item at least, were collected."""
    versions = np.concatenate([block.items["policy_version"] for block in blocks])
    return f", policy versions {versions.min()} to {versions.max()}"
