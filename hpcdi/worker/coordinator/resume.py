"""Rank 0's side of going on: what a snapshot names, and what lies in the data folder since then."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdi.comm.messages import BlockReady
from hpcdi.errors import ShardError
from hpcdi.store.block import survey_block
from hpcdi.store.checkpoints import Checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.store.snapshots import load_state
from hpcdi.utils.log import LOGGER
from hpcdi.worker.coordinator.snapshot_keeper import (
    STATE_FILE,
    STATE_KIND,
    STATE_VERSION,
    shards_of,
)


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from."""

    folder: str
    """Of the learners' parts of the snapshot, relative to the run folder; empty: none has one."""
    facts: Mapping[str, Any]
    state: Mapping[str, Any]
    published: dict[str, BlockReady] = field(default_factory=dict)
    """Blocks that are there, by path, the oldest first."""
    later: int = 0
    """Transitions among them that were published after the snapshot."""
    lost: int = 0
    """Shards that the snapshot names and that are not there, or damaged."""


def resume_from(layout: RunLayout, snapshot: Checkpoint, *, repeats: bool = False) -> Resumed:
    """Read rank 0's part of a snapshot, and look which shards are there.

    Shards that were published after it are found by their numbers, and learnt from like new ones:
    nothing that was published is lost.

    Args:
        layout: the run folder.
        snapshot: to go on from.
        repeats: the run will do again what it did after the snapshot: such shards are removed.

    Raises:
        SnapshotError: rank 0's part is of another version.
    """
    state = load_state(snapshot.file(STATE_FILE), STATE_KIND, STATE_VERSION)
    known, newest = set(shards_of(state)), state["replay"]["newest"]
    numbers = layout.shard_numbers()
    later = {path for path, (r, number) in numbers.items() if number > newest.get(str(r), 0)}
    missing = sorted(known - numbers.keys())
    if missing:
        LOGGER.warning(
            "%d shards of the snapshot are missing, %s first; they are left out",
            len(missing), missing[0], extra={"missing": missing},
        )  # fmt: skip
    if repeats:
        for path in later:
            layout.inside(path).unlink(missing_ok=True)
        later = set()
    published, lost = [], len(missing)
    for path in sorted((known | later) & numbers.keys()):
        try:
            published.append(_announcement(layout, path))
        except ShardError as error:
            LOGGER.warning("%s; it is left out", error)
            lost += path in known
    published.sort(key=lambda ready: ready.sealed_at)
    now = time.time()  # until a learner has its rows it is new
    fresh = {r.shard.path: dataclasses.replace(r, sealed_at=now) for r in published}
    steps = sum(int(r.items["item_len"].sum()) for path, r in fresh.items() if path in later)
    has_learners = bool(snapshot.facts["learners"])  # the beginning of a run has none
    folder = str(snapshot.folder.relative_to(layout.root)) if has_learners else ""
    return Resumed(folder, snapshot.facts, state, fresh, steps, lost)


def _announcement(layout: RunLayout, path: str) -> BlockReady:
    """What was said when a shard was published."""
    ref, block = survey_block(layout.inside(path), path)
    facts = block.facts
    try:
        return BlockReady(
            str(facts["task_id"]), str(facts["buffer_id"]), int(facts["block_id"]), ref,
            block.items, block.tail_rows, float(facts["sealed_at"]),
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise ShardError(path, f"does not say whose it is: {error}") from error
