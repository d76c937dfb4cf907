"""Snapshots of a run: when one is taken, rank 0's part, and how a run is resumed from one.

A snapshot is a consistent cut, without a collective and without a pause: rank 0 puts `TakeSnapshot`
between the batches that it sends, at the same place for every learner, and copies its state at that
moment. A learner copies its state when it comes to that place. So all have done the same
iterations, and rank 0's index names exactly the rows that learners have::

    rank 0     Batches Batches TakeSnapshot Batches ...      index, counters ──► coordinator.h5
    learner 1  train   train   keep ─────── train ...        weights, optimizer ──► learner.pt
    learner 2  train   train   keep ─────── train ...        its random numbers ──► learner_2.pt

Files of a league's second group of learners begin with ``agent1_``, and so on. Where a group's last
learner has died and the run goes on, a snapshot takes over its files from the one before.

Files are written to a temporary folder, by a thread of each rank; rank 0 renames the folder when
all parts are there. `SnapshotClock` decides, `SnapshotKeeper` writes, `resume_from` reads.

Data are not copied: rank 0's state names blocks in shards. `SnapshotKeeper` counts the users of
each block, and removes a shard when none of its blocks has one. A block is in use::

    from its publication until the replay buffer drops it
    ... and until the next complete snapshot has counted its steps (a run that is resumed from an
        older one must find it, to count them)
    from a snapshot that names it until that snapshot is removed
"""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from hpcdi.comm.messages import BlockReady, SnapshotPart, TakeSnapshot
from hpcdi.dataclass import dataclass
from hpcdi.errors import ShardError, SnapshotError, StoreError
from hpcdi.replay.manager import blocks_of
from hpcdi.store.atomic import temporary_beside
from hpcdi.store.checkpoints import (
    MANIFEST,
    Checkpoint,
    checkpoint_names,
    finish,
    newest_checkpoint,
    remove_others,
    write_files,
)
from hpcdi.store.files import is_unreadable, patiently
from hpcdi.store.layout import RunLayout, split_name
from hpcdi.store.retention import Retention
from hpcdi.store.shards import survey_in, withdraw
from hpcdi.store.state_file import load_state, save_state
from hpcdi.transport.base import announcement
from hpcdi.types import GIVEN, MAIN, block_number, collector_of
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import human_bytes, human_count
from hpcdi.utils.threads import JobThread

STATE_FILE, STATE_KIND, STATE_VERSION = "coordinator.h5", "coordinator", 8
_PREFIX = "snapshot_"


@dataclass
class Snapshot:
    """A snapshot that is being taken.

    Attributes:
        name: name of its folder, once it is complete.
        missing: learner ranks whose part has not come yet.
        files: file -> ``bytes, crc32``.
        iterations: group -> iterations that its learners have done.
        stall_s: longest time, in seconds, for which a learner stopped for it.
        error: why it cannot become complete; empty: it can.
    """

    name: str
    missing: set[int]
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    iterations: dict[str, int] = field(default_factory=dict)
    stall_s: float = 0.0
    error: str = ""

    @property
    def train_iter(self) -> int:
        """Train iterations of the main group."""
        return self.iterations.get(MAIN, 0)


class SnapshotClock:
    """Decides when a snapshot is taken, and collects its parts.

    Args:
        every_s: seconds from one to the next; infinite: only on request.
        new: returns name and folder of the next one; None: none are taken.

    Attributes:
        resume: folder of the snapshot from which learners resume, relative to the run folder; empty
            once they have begun.
    """

    def __init__(self, every_s: float, new: Callable[[], tuple[str, str]] | None = None) -> None:
        self.resume = ""
        self._every_s, self._new = every_s, new
        self._began = 0.0
        self._taken: dict[str, Snapshot] = {}

    def start(self, now: float) -> None:
        """Note that learners have begun: the first snapshot is due in `every_s`."""
        self._began, self.resume = now, ""

    def is_due(self, now: float) -> bool:
        """True if it is time for one, and none is being taken."""
        return not self._taken and now - self._began >= self._every_s

    def take(self, learners: Iterable[int], now: float) -> TakeSnapshot | None:
        """Begin one; returns the order for each of the learners, None where none are taken."""
        if self._new is None:
            return None
        name, folder = self._new()
        self._began = now
        self._taken[name] = Snapshot(name, set(learners))
        return TakeSnapshot(name, folder)

    def part(self, rank: int, part: SnapshotPart) -> None:
        """Note that a learner's part is on disk, or could not be written."""
        snapshot = self._taken.get(part.name)
        if snapshot is None:
            return
        snapshot.missing.discard(rank)
        snapshot.files.update(part.files)
        done = snapshot.iterations.get(part.player, 0)
        snapshot.iterations[part.player] = max(done, part.train_iter)
        snapshot.stall_s = max(snapshot.stall_s, part.stall_s)
        snapshot.error = snapshot.error or part.error

    def lose(self, rank: int) -> None:
        """Note a learner's death: a snapshot that lacks its part cannot become complete."""
        for snapshot in self._taken.values():
            if rank in snapshot.missing:
                snapshot.missing.clear()
                snapshot.error = f"rank {rank} died before its part was written"

    def take_complete(self) -> list[Snapshot]:
        """Returns the snapshots whose parts have all come since the last call."""
        complete = [snapshot for snapshot in self._taken.values() if not snapshot.missing]
        for snapshot in complete:
            del self._taken[snapshot.name]
        return complete


@dataclass(frozen=True)
class SnapshotResult:
    """How a snapshot ended.

    Attributes:
        snapshot: its parts.
        n_bytes: bytes of all files.
        took_s: seconds until it was complete.
        error: why it failed; empty: it is complete.
        removed: names of snapshots that were removed: older ones, or this one if it failed.
    """

    snapshot: Snapshot
    n_bytes: int
    took_s: float
    error: str
    removed: tuple[str, ...]

    @property
    def figures(self) -> dict[str, float]:
        """Seconds that a learner stopped for it, seconds until it was complete, bytes."""
        return {"stall_s": self.snapshot.stall_s, "took_s": self.took_s, "bytes": self.n_bytes}

    @property
    def is_worth_a_line(self) -> bool:
        """True if it is complete and learners have parts in it, unlike in that of the beginning."""
        return not self.error and bool(self.snapshot.files)

    def __str__(self) -> str:
        return (
            f"{self.snapshot.name}: iteration {human_count(self.snapshot.train_iter)}, "
            f"{human_bytes(self.n_bytes)} in {self.took_s:.2f} s; the learner stood still for "
            f"{1e3 * self.snapshot.stall_s:.0f} ms"
        )


@dataclass
class _CoordinatorPart:
    """Rank 0's part of a snapshot that is being taken.

    Attributes:
        folder: where its files are written.
        facts: facts for the manifest.
        lost: file name prefixes of the groups whose learners have all died.
        counted: shards with blocks that it is the first to count, and how many.
        files: file -> ``bytes, crc32``.
        error: why they could not be written; empty: they are, or will be.
        began: when it was begun, by `time.monotonic`.
    """

    folder: Path
    facts: dict[str, Any]
    lost: tuple[str, ...]
    counted: Counter[str]
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    error: str = ""
    began: float = field(default_factory=time.monotonic)


class SnapshotKeeper(Closing):
    """Writes rank 0's parts, completes snapshots, and removes shards that nobody needs.

    Files of snapshots are written on one thread, in the order of the calls.

    Args:
        layout: the run folder.
        keep: how many snapshots stay.
        keep_data: never remove a shard.
        repeats_as: see `hpcdi.config.compiled.repeats_as`; a fact of each snapshot.

    Attributes:
        last_took_s: seconds until the last snapshot was complete; 0: there is none yet.
    """

    def __init__(
        self, layout: RunLayout, keep: int, *, keep_data: bool = True, repeats_as: str = ""
    ) -> None:
        self.last_took_s, self._repeats_as = 0.0, repeats_as
        self._layout, self._keep = layout, keep
        self._retention = Retention(layout, keep_data=keep_data)
        self._uncounted = Counter[str]()  # blocks published since the last snapshot, by shard
        self._named: dict[str, list[str]] = {}  # snapshot -> the blocks and files that it names
        self._parts: dict[str, _CoordinatorPart] = {}  # by snapshot, while it is being taken
        # with the blocks that they have counted
        self._ended: deque[tuple[SnapshotResult, Counter[str]]] = deque()
        self._jobs = JobThread("snapshots")
        self._torn: frozenset[str] = frozenset()
        self._number = _last_number(layout)

    # ---------------------------------------------------------------------------------- snapshots

    def new(self) -> tuple[str, str]:
        """Returns name and folder of the next one; see `SnapshotClock`."""
        self._number += 1
        target = _folder_of(self._layout, self._number)
        return target.name, str(temporary_beside(target).relative_to(self._layout.root))

    def keep_beginning(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Take a snapshot of a new run before it begins, without parts of learners.

        So a run can be resumed, with everything that it published, whenever it dies.

        Args:
            state: returns rank 0's state.
        """
        if self._number > 0:
            return  # the run was resumed
        name, folder = self.new()
        self.begin(TakeSnapshot(name, folder), state(), {"env_steps": 0, "learners": []})
        self._commit(Snapshot(name, set()))

    def has_begun(self, name: str) -> bool:
        """Returns whether rank 0's part was taken and other parts are still missing."""
        return name in self._parts

    def begin(
        self,
        order: TakeSnapshot,
        state: Mapping[str, Any],
        facts: Mapping[str, Any],
        lost: Sequence[str] = (),
    ) -> None:
        """Write rank 0's part; the blocks that it names stay as long as the snapshot.

        Args:
            order: for the learners.
            state: of rank 0; must not change afterwards. It may name files of a caller's own by
                ``item_files``; they stay, too.
            facts: facts for the manifest: ``env_steps``, and ``learners`` that have a part.
            lost: file name prefixes of the groups whose learners have all died.
        """
        self._named[order.name] = named = _files_of(state)
        self.need(named)
        folder = self._layout.inside(order.folder)
        same = {"repeats_as": self._repeats_as} if self._repeats_as else {}
        facts = {**facts, **same, "saved_at": time.time()}
        part = _CoordinatorPart(folder, facts, tuple(lost), self._uncounted)
        self._uncounted = Counter()
        self._parts[order.name] = part
        self._jobs.submit(partial(self._write, part, state))

    def complete(self, snapshots: Iterable[Snapshot]) -> list[SnapshotResult]:
        """Give snapshots their names; returns how those ended that have ended since the last call.

        Args:
            snapshots: those of which all learners' parts have come.
        """
        for snapshot in snapshots:
            self._commit(snapshot)
        results = []
        while self._ended:
            result, counted = self._ended.popleft()
            self.last_took_s = result.took_s
            if result.error:
                self._uncounted += counted
            else:
                self._retention.release_users(counted)
            for name in result.removed:
                self._retention.release(self._named.pop(name, ()))
            results.append(result)
        return results

    def close(self) -> None:
        """Complete the snapshots that have all parts, drop the others. Idempotent."""
        for name in list(self._parts):
            error = "a learner's part was missing at the end"
            self._commit(Snapshot(name, set(), error=error))
        self._jobs.close()

    # ------------------------------------------------------------------------------------- shards

    def published(self, path: str) -> None:
        """Keep a new block until it is dropped, and until a snapshot has counted it.

        Raises:
            StoreError: it is not in the run folder.
        """
        self._uncounted[self._retention.need(path, users=2)] += 1

    def need(self, paths: Iterable[str]) -> None:
        """Count one more user of blocks, until `drop`."""
        for path in paths:
            self._retention.need(path)

    def drop(self, paths: Iterable[str]) -> None:
        """Count one user less of blocks: no learner needs them any more."""
        self._retention.release(paths)

    def ended(self, rank: int) -> None:
        """Note that a collector has left or died, and appends to no shard any more."""
        self._retention.end(rank)

    def adopt(self, resumed: Resumed) -> None:
        """Keep the blocks of a resumed run, and those that its snapshots name.

        Snapshots that are newer than the one it is resumed from are torn. They do not count as
        snapshots to keep, and are removed with the next complete one.

        Raises:
            SnapshotError: the file system fails.
        """
        existing = checkpoint_names(self._layout.snapshots_dir)
        self._torn = frozenset(name for name in existing if name > resumed.name)
        for name in existing:
            try:
                self._named[name] = _files_of(_state_in(self._layout.snapshots_dir / name))
            except SnapshotError as error:
                if is_unreadable(error):
                    raise
                # a torn one needs nothing
        self.need(resumed.published)
        for named in self._named.values():
            self.need(named)
        for path in resumed.after:  # until one has counted it: a run from an older one needs it
            self._uncounted[self._retention.need(path)] += 1
        self._retention.end()  # who has written them died with that start

    # ---------------------------------------------------------------------- on the thread of files

    def _write(self, part: _CoordinatorPart, state: Mapping[str, Any]) -> None:
        def write(path: Path) -> None:
            save_state(path, STATE_KIND, STATE_VERSION, state)

        try:
            part.files = write_files(part.folder, {STATE_FILE: write})
        except (OSError, StoreError) as error:
            part.error = str(error)

    def _commit(self, snapshot: Snapshot) -> None:
        """Complete a snapshot of which all parts have come; drop it if one failed."""
        self._jobs.submit(partial(self._finish, snapshot, self._parts.pop(snapshot.name)))

    def _finish(self, snapshot: Snapshot, part: _CoordinatorPart) -> None:
        files = {**part.files, **snapshot.files}
        target = self._layout.snapshots_dir / snapshot.name
        removed, error = [snapshot.name], snapshot.error or part.error
        try:
            if not error:
                facts = {**part.facts, "train_iter": snapshot.train_iter}
                if part.lost:
                    taken, facts["iterations"] = self._take_over(part, snapshot.iterations)
                    files |= taken
                elif len(snapshot.iterations) > 1:
                    facts["iterations"] = snapshot.iterations
                finish(part.folder, target, files, facts)
                removed = self._remove_others(target)
        except (OSError, StoreError) as problem:
            error = str(problem)
        shutil.rmtree(part.folder, ignore_errors=True)
        n_bytes = sum(file["bytes"] for file in files.values())
        took_s = time.monotonic() - part.began
        result = SnapshotResult(snapshot, n_bytes, took_s, error, tuple(removed))
        self._ended.append((result, part.counted))

    def _remove_others(self, target: Path) -> list[str]:
        """Remove the snapshots that a new one replaces; returns their names.

        Where that fails they stay for the next one to remove: this one is whole.
        """
        try:
            return remove_others(target, self._keep, self._torn)
        except OSError as error:
            LOGGER.warning("no older snapshot could be removed: %s", error)
            return []

    def _take_over(
        self, part: _CoordinatorPart, iterations: Mapping[str, int]
    ) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """Copy the files of groups without learners from the newest complete snapshot.

        Returns:
            The files as `write_files` returns them, and the train iterations of all groups.
        """
        last, _ = newest_checkpoint(self._layout.snapshots_dir)
        if last is None:
            return {}, dict(iterations)
        writers: dict[str, Callable[[Path], None]] = {
            path.name: partial(shutil.copyfile, path)
            for path in last.folder.iterdir()
            if path.name.startswith(part.lost)
        }
        return write_files(part.folder, writers), {**last.facts.get("iterations", {}), **iterations}


def amend(
    layout: RunLayout,
    snapshot: Checkpoint,
    writers: Mapping[str, Callable[[Path], None]],
    facts: Mapping[str, Any],
) -> Path:
    """Write a new snapshot of a run that is not running: its newest one, with some files replaced.

    Args:
        layout: the run folder; the caller holds its lock.
        snapshot: its newest snapshot.
        writers: file name -> writes the new file to the path that it is called with.
        facts: facts that replace those of the same names in the manifest.

    Returns:
        Its folder.

    Raises:
        OSError, StoreError: the file system refuses it.
    """
    target = _folder_of(layout, _last_number(layout) + 1)
    aside = temporary_beside(target)
    copies = {
        path.name: partial(shutil.copyfile, path)
        for path in snapshot.folder.iterdir()
        if path.name != MANIFEST
    }
    try:
        files = write_files(aside, {**copies, **writers})
        finish(aside, target, files, {**snapshot.facts, **facts})
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _state_in(folder: Path) -> dict[str, Any]:
    """Returns rank 0's part of a snapshot; what cannot be read is tried again for about 1.5 s.

    Raises:
        SnapshotError: it is missing, torn, of another version, or the file system fails.
    """
    file = folder / STATE_FILE
    return patiently(partial(load_state, file, STATE_KIND, STATE_VERSION), file)


def blocks_in(folder: Path) -> list[str]:
    """Returns the paths of the blocks that a snapshot names; see `_state_in`."""
    return _blocks_of(_state_in(folder))


def _blocks_of(state: Mapping[str, Any]) -> list[str]:
    return [path for group in state["groups"].values() for path in blocks_of(group["replay"])]


def _files_of(state: Mapping[str, Any]) -> list[str]:
    """Returns the blocks that rank 0's state names, and files of items of callers' own."""
    return [*_blocks_of(state), *state.get("item_files", ())]


def _last_number(layout: RunLayout) -> int:
    """Returns the number of the newest snapshot; 0: there is none."""
    digits = (name.removeprefix(_PREFIX) for name in checkpoint_names(layout.snapshots_dir))
    return max((int(number) for number in digits if number.isdecimal()), default=0)


def _folder_of(layout: RunLayout, number: int) -> Path:
    return layout.snapshots_dir / f"{_PREFIX}{number:06d}"


# ------------------------------------------------------------------------------------------- resume


@dataclass(frozen=True)
class Resumed:
    """What a run is resumed from: a snapshot, and the blocks in the run folder.

    Attributes:
        name: name of the snapshot.
        folder: folder of the learners' parts, relative to the run folder; empty: there are none.
        facts: facts of the manifest.
        state: state of rank 0.
        published: path -> announcement of the blocks that exist, oldest first.
        after: paths of those that were published after the snapshot.
        lost: number of blocks that the snapshot names and that are missing or damaged.
        withdrawn: number of blocks that were published after it and removed.
    """

    name: str
    folder: str
    facts: Mapping[str, Any]
    state: Mapping[str, Any]
    published: dict[str, BlockReady] = field(default_factory=dict)
    after: frozenset[str] = frozenset()
    lost: int = 0
    withdrawn: int = 0

    @property
    def iterations(self) -> dict[str, int]:
        """Train iterations that the learners of each group had done."""
        iterations = self.facts.get("iterations", {})
        return {
            name: int(done) for name, done in {**iterations, MAIN: self.facts["train_iter"]}.items()
        }

    @property
    def later(self) -> int:
        """Environment steps that were published after the snapshot, which has not counted them."""
        return sum(self.published[path].env_steps for path in self.after)

    def __str__(self) -> str:
        line = (
            f"{self.name}: env step {human_count(self.facts['env_steps'])}, train iteration "
            f"{human_count(self.facts['train_iter'])}, {len(self.published)} blocks"
        )
        if "policy_of" in self.facts:
            line += f", policy of {self.facts['policy_of']}"
        if self.later:
            line += f"; {human_count(self.later)} transitions published after it are taken, too"
        if self.withdrawn:
            line += f"; {self.withdrawn} blocks after it are removed: the run repeats them"
        if self.lost:
            line += f"; {self.lost} blocks are missing or damaged"
        return line


def resume_from(layout: RunLayout, snapshot: Checkpoint, *, repeats: bool = False) -> Resumed:
    """Read rank 0's part of a snapshot, and find out which blocks exist.

    Blocks with higher numbers than those announced before the snapshot are new: the resumed run
    learns from them, so that nothing that was published is lost.

    Args:
        layout: the run folder.
        snapshot: the snapshot.
        repeats: the run will repeat what it did after the snapshot: remove later blocks of its own.

    Raises:
        SnapshotError: rank 0's part is missing, or of another version; or the run cannot repeat
            itself, because a block is missing or damaged. Then nothing has changed.
        StoreError: the file system fails, also after about 1.5 s.
    """
    state = _state_in(snapshot.folder)
    named = set(_blocks_of(state))
    announced = {int(rank): number for rank, number in state["announced"].items()}
    existing = _published(layout, named, announced)
    later, absent = existing.keys() - named, named - existing.keys()
    if repeats and absent:
        raise SnapshotError(
            snapshot.folder,
            f"{len(absent)} of its blocks are missing or damaged, {min(absent)} first: the run "
            "cannot repeat itself. Restore them, or go on with other data: --resume ... "
            "system.deterministic=false",
        )
    # what the run was given came before it began: it does not repeat that
    repeated = {n for n in later if repeats and collector_of(existing[n].block_id) != GIVEN}
    withdraw(layout, repeated)
    existing = {name: ready for name, ready in existing.items() if name not in repeated}
    files = {name: layout.root / split_name(name)[0] for name in absent}
    missing = sorted(n for n, file in files.items() if not (file.is_symlink() or file.exists()))
    if missing:
        LOGGER.warning(
            "%d blocks of the snapshot are missing, %s first; they are left out",
            len(missing),
            missing[0],
            extra={"missing": missing},
        )
    published = dict(sorted(existing.items(), key=lambda item: item[1].sealed_at))
    has_learners = bool(snapshot.facts["learners"])  # the beginning of a run has none
    folder = str(snapshot.folder.relative_to(layout.root)) if has_learners else ""
    return Resumed(
        name=snapshot.folder.name,
        folder=folder,
        facts=snapshot.facts,
        state=state,
        published=published,
        after=frozenset(later - repeated),
        lost=len(absent),
        withdrawn=len(repeated),
    )


def unannounced(layout: RunLayout, rank: int, announced: int) -> list[BlockReady]:
    """Returns the blocks that a collector published but died before it announced them.

    Args:
        layout: the run folder.
        rank: rank of the collector.
        announced: number of the last block that it has announced; 0: it has announced none.

    Raises:
        StoreError: the file system fails, also after about 1.5 s.
    """
    blocks = _published(layout, set(), {rank: announced}, rank)
    return sorted(blocks.values(), key=lambda ready: ready.sealed_at)


def _published(
    layout: RunLayout, named: set[str], announced: Mapping[int, int], of: int | None = None
) -> dict[str, BlockReady]:
    """Returns path -> announcement of blocks in the run folder; damaged ones are left out.

    Args:
        layout: the run folder.
        named: paths of blocks to look for.
        announced: collector rank -> number of a block; look for all later ones of that rank, too.
        of: rank of a collector; None: all collectors.

    Raises:
        StoreError: the file system fails, also after about 1.5 s.
    """
    files = patiently(partial(layout.shard_numbers, of), layout.data_dir)
    shards = {split_name(name)[0] for name in named}
    last: dict[int, str] = {}
    for path, (rank, number) in files.items():
        if number <= announced.get(rank, 0):
            last[rank] = path  # the file may have later blocks, too
        else:
            shards.add(path)
    blocks = {}
    for path in sorted(files.keys() & {*shards, *last.values()}):

        def is_wanted(name: str, facts: Mapping[str, Any], rank: int = files[path][0]) -> bool:
            number = block_number(int(facts.get("block_id", 0)))
            return name in named or number > announced.get(rank, 0)

        survey_of = survey_in(layout, path, is_wanted)
        damaged = survey_of.damaged
        for ref, block in survey_of.blocks:
            try:
                blocks[ref.path] = announcement(ref, block)
            except ShardError as error:
                damaged.append(error)
        for problem in damaged:
            LOGGER.warning("%s; it is left out", problem)
    return blocks
