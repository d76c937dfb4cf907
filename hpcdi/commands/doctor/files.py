"""Judges of `hpcdi doctor`: the file system that runs are written to."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdi.comm.plain import sendable
from hpcdi.commands.doctor.quota import Quota, judge_quotas
from hpcdi.commands.doctor.report import FAIL, OK, WARN, Finding, ranks_text, together
from hpcdi.config.load import load
from hpcdi.errors import HpcdiError
from hpcdi.launch.topology import learner_count
from hpcdi.store.atomic import temporary_beside
from hpcdi.store.layout import RunLayout
from hpcdi.store.probe import Space
from hpcdi.utils.metrics import human_bytes, human_count

_LEAST_BYTES = 256 << 20
_FEW_BYTES = 10 << 30
_FEW_SHARE = 0.05
_LEAST_INODES = 1_000
_FEW_INODES = 50_000
_SLOW_S = 1.0
_LATE_S = 1.0
ELSEWHERE = "give another folder: hpcdi doctor DIR, hpcdi train --run-dir DIR/NAME"


@sendable
@dataclass(frozen=True)
class Place:
    """Where and for what the doctor looks.

    Attributes:
        folder: the nearest folder that is there, of the one that runs would be written to.
        scratch: a folder in it that is made, and removed at the end.
        cuda: whether there must be CUDA devices.
        learners: ranks that would learn.
    """

    folder: Path
    scratch: Path
    cuda: bool
    learners: int


@sendable
@dataclass(frozen=True)
class Folder:
    """Where runs would be written, as rank 0 sees it.

    Attributes:
        path: the nearest folder that is there.
        kind: type of its file system.
        mount: where that is mounted.
        room: its size.
        umask: of this process.
        mode: permissions of the folder.
        lock_error: why HDF5 cannot lock files there; empty: it can.
        quotas: that hold there, as far as a command tells them.
    """

    path: str
    kind: str
    mount: str
    room: Space
    umask: int
    mode: int
    lock_error: str
    quotas: tuple[Quota, ...] = ()


def place_of(target: Path, cuda: bool) -> Place:
    """Where to look, for a folder that may not be there yet; what a run in it needs."""
    folder = next(path for path in (target, *target.parents) if path.is_dir()).resolve()
    learners = 1
    config_file = RunLayout(target).config_file
    if config_file.is_file():
        with contextlib.suppress(HpcdiError):  # then it is another program's config.yaml
            learners = learner_count(load(config_file).config)
    return Place(folder, temporary_beside(folder / "doctor"), cuda, learners)


def judge_folder(folder: Folder) -> Finding:
    """Type of the file system, room, rights."""
    room = folder.room
    free = f"{human_bytes(room.free_bytes)} of {human_bytes(room.total_bytes)} free"
    if room.total_inodes:
        free += f", {human_count(room.free_inodes)} inodes"
    where = f"{folder.path} is on {folder.kind} ({folder.mount})"
    findings = [Finding(OK, f"{where}: {free}; umask {folder.umask:04o}")]
    if folder.kind in ("tmpfs", "ramfs"):
        advice = f"what is written there takes memory and is gone with it; {ELSEWHERE}"
        findings.append(Finding(WARN, "it is memory, no disk", advice))
    findings += [*_room(room), *judge_quotas(folder.quotas)]
    is_shared = folder.mode & stat.S_ISGID and folder.mode & stat.S_IWGRP
    if is_shared and folder.umask & stat.S_IWGRP:
        advice = "umask 0002, else your group can neither go on with runs nor remove them"
        findings.append(Finding(WARN, "the folder is your group's, new files would not be", advice))
    return together(findings)


def _room(room: Space) -> list[Finding]:
    """Complaints about room."""
    is_short = room.free_bytes < min(_FEW_BYTES, _FEW_SHARE * room.total_bytes)
    if room.free_bytes < _LEAST_BYTES:
        return [Finding(FAIL, "the disk is full", f"free some space, or {ELSEWHERE}")]
    if room.total_inodes and room.free_inodes < _LEAST_INODES:
        advice = f"remove small files, or {ELSEWHERE}"
        return [Finding(FAIL, "no more files can be made", advice)]
    if is_short or (room.total_inodes and room.free_inodes < _FEW_INODES):
        what = "space" if is_short else "inodes"
        advice = f"hpcdi plan CONFIG says what a run takes; free some, or {ELSEWHERE}"
        return [Finding(WARN, f"little {what} is left", advice)]
    return []


def judge_locks(folder: Folder) -> Finding:
    """HDF5's file locks."""
    if not folder.lock_error:
        return Finding(OK, "HDF5 can lock files there (hpcdi reads without locks)")
    found = f"HDF5 cannot lock files there: {folder.lock_error}"
    advice = "hpcdi needs no locks; for other HDF5 programs: export HDF5_USE_FILE_LOCKING=FALSE"
    return Finding(WARN, found, advice)


def judge_disk(sync_s: float, shard_s: float) -> Finding:
    """Seconds that rank 0's disk takes for 1 MB, and for a shard of 1 MiB."""
    found = f"1 MB is on disk (fsync) after {sync_s * 1e3:.1f} ms, a shard after "
    found += f"{shard_s * 1e3:.1f} ms"
    if max(sync_s, shard_s) > _SLOW_S:
        advice = f"the file system is slow or busy; {ELSEWHERE}, or larger "
        return Finding(WARN, found, advice + "system.storage.block_bytes")
    return Finding(OK, found)


def judge_sharing(seen_s: Sequence[float | None], hosts: Sequence[str]) -> Finding:
    """Seconds after which readers saw rank 0's shards; None: rank that did not look."""
    late = {rank: s for rank, s in enumerate(seen_s) if s is not None}
    if not late:
        return Finding(OK, "one rank: nobody else has to see its files")
    worst = max(late.values())
    whom = "a rank of the same host" if len(set(hosts)) == 1 else "a rank of every other host"
    found = f"what rank 0 writes is seen by {whom} within {worst * 1e3:.1f} ms"
    if worst > _LATE_S:
        slow = [rank for rank, s in late.items() if s > _LATE_S]
        advice = (
            f"{ranks_text(slow, hosts)} wait for attribute caches: ask for the parallel file "
            "system (scratch), or for NFS with a short actimeo"
        )
        return Finding(WARN, found, advice)
    return Finding(OK, found)
