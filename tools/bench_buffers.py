#!/usr/bin/env python3
"""Replay buffers side by side: hpcdi, cpprb, stable-baselines3, tianshou, torchrl, in one run.

Transitions like CartPole's (float32[4], capacity 1e6) and like Atari's (uint8[4, 84, 84], capacity
2e4; stacks as they are, and with each frame stored once). All buffers live in one process, full,
and take turns: a figure is the median of its turns, and the ratio of hpcdi is to the best of the
others (theirs to the best of hpcdi). What is not installed is left out; `make bench` installs all
of them, into a virtual environment of their own.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from buffer_peers import Hpcdi, Peer, Task, makers
from figures import Row, parser, show

TASKS = (
    Task("cartpole", (4,), np.float32, 1_000_000),
    Task("atari", (4, 84, 84), np.uint8, 20_000),
)
SIZES = (64, 256, 1024)


def say(text: str) -> None:
    """Print to people."""
    sys.stderr.write(text + "\n")


def per_second(action: Callable[[], object], seconds: float) -> float:
    """How often `action` can be done in a second, after a while that is not counted."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds / 4:
        action()
    count, start = 0, time.perf_counter()
    while (past := time.perf_counter() - start) < seconds:
        action()
        count += 1
    return count / past


def in_turns(
    actions: dict[str, Callable[[], object]], seconds: float, turns: int
) -> dict[str, float]:
    """Rate of each action, the median of its turns; 0 for one that fails.

    The order is another one in each turn: who comes after whom matters, for memory above all.
    """
    rates: dict[str, list[float]] = {name: [] for name in actions}
    order, shuffle = list(actions.items()), random.Random(0).shuffle
    for _ in range(turns):
        shuffle(order)
        for name, action in order:
            try:
                rates[name].append(per_second(action, seconds))
            except Exception as error:  # a peer's fault is a figure too
                say(f"{name}: {type(error).__name__}: {error}")
                rates[name].append(0.0)
    return {name: statistics.median(values) for name, values in rates.items()}


def compared(name: str, unit: str, rates: dict[str, float], lower_is_better: bool) -> Iterable[Row]:
    """A row for each buffer; the ratio is above 1 where it is better than the best other one."""
    known = {who: rate for who, rate in rates.items() if rate > 0}
    for who, rate in known.items():
        others = {
            w: r for w, r in known.items() if w.startswith("hpcdi") != who.startswith("hpcdi")
        }
        best = (min if lower_is_better else max)(others, key=lambda w: others[w], default=None)
        ratio = None
        if best is not None:
            ratio = others[best] / rate if lower_is_better else rate / others[best]
        yield Row(f"{name}, {who}", rate, unit, ratio=ratio, peer=best or "")


def fill(peer: Peer, task: Task, count: int) -> None:
    """Push `count` transitions by the peer's fast path."""
    size = peer.rows_at_once
    block = peer.laid_out(task.rows(64 * size))
    pushed = 0
    while pushed < count:
        at = pushed % (64 * size)
        peer.push_rows({name: column[at : at + size] for name, column in block.items()})
        pushed += size


def one_by_one(peer: Peer, task: Task) -> Callable[[], object]:
    """Pushes single transitions."""
    rows, turn = peer.laid_out(task.rows(512)), iter(range(10**12))

    def push() -> None:
        for _ in range(64):
            peer.push_one(rows, next(turn) % 512)

    return push


def by_rows(peer: Peer, task: Task) -> Callable[[], object]:
    """Pushes 64 transitions, in as many calls as the peer needs."""
    rows, turn, size = peer.laid_out(task.rows(1024)), iter(range(10**12)), peer.rows_at_once

    def push() -> None:
        for _ in range(64 // size):
            at = next(turn) * size % 1024
            peer.push_rows({name: column[at : at + size] for name, column in rows.items()})

    return push


def memory_of(make: functools.partial[Peer]) -> float:
    """Bytes of memory that an item costs in a full buffer; to be asked in a process of its own."""
    cls, (task, *rest) = make.func, make.args
    small = dataclasses.replace(task, capacity=512)
    fill(cls(small, *rest), small, 512)  # type: ignore[operator]  # imports what it needs
    gc.collect()
    before = rss_bytes()
    peer = make()
    fill(peer, task, task.capacity)
    return (rss_bytes() - before) / float(task.capacity)


def rss_bytes() -> int:
    """Memory of this process."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * 4096


def filled(
    task: Task, prioritized: bool, compact: bool
) -> tuple[dict[str, Peer], dict[str, float]]:
    """All buffers that can be made here, full, and the bytes of memory of an item in each."""
    peers, grown = {}, {}
    for make in makers(task, prioritized, compact):
        try:
            peer = make()
        except NotImplementedError:
            continue
        except ImportError as error:
            say(f"left out: {error}")
            continue
        fill(peer, task, task.capacity)
        peers[peer.name] = peer
        if not prioritized:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as aside:
                grown[peer.name] = aside.submit(memory_of, make).result()
    return peers, grown


def figures(
    task: Task, prioritized: bool, compact: bool, seconds: float, turns: int
) -> Iterable[Row]:
    """All rows of one kind of buffer and task."""
    peers, grown = filled(task, prioritized, compact)
    if not peers:
        return
    words = [task.name, "frames once" if compact else "", "prioritized" if prioritized else ""]
    kind = " ".join(filter(None, words))
    say(f"{kind}: {', '.join(peers)}")
    if not prioritized:
        yield from compared(f"{kind}: memory", "B/item", grown, lower_is_better=True)
        for what, action in (("push one", one_by_one), ("push rows of 64", by_rows)):
            pushes = {n: action(p, task) for n, p in peers.items()}
            rates = {n: 64 * r for n, r in in_turns(pushes, seconds, turns).items()}
            yield from compared(f"{kind}: {what}", "items/s", rates, lower_is_better=False)
    for size in SIZES:
        word = "sample + update" if prioritized else "sample"
        actions: dict[str, Callable[[], object]] = {
            n: functools.partial(p.round if prioritized else p.sample, size)
            for n, p in peers.items()
        }
        rates = in_turns(actions, seconds, turns)
        yield from compared(f"{kind}: {word} {size}", "/s", rates, lower_is_better=False)
    if not prioritized:
        yield from persistence(kind, peers)


def persistence(kind: str, peers: dict[str, Peer]) -> Iterable[Row]:
    """Seconds to save and to load everything: the median of five, in turns.

    The order is another one in each turn, and the disk is idle when one begins: what others have
    written is forced to it before, or who comes after a large file waits for that.

    hpcdi checks what it writes by crc32 and gives it its name when it is whole; the others do not.
    By default it is forced to disk before that, too, which the others never do.
    """
    saves = {name: peer.save for name, peer in peers.items()}
    forced = {n: p.save_forced for n, p in peers.items() if isinstance(p, Hpcdi)}
    loads = {name: peer.load for name, peer in peers.items()}
    shuffle = random.Random(0).shuffle
    with tempfile.TemporaryDirectory() as folder:
        for word, actions in (("save, forced to disk", forced), ("save", saves), ("load", loads)):
            taken: dict[str, list[float]] = {}
            turns = [list(actions.items()) for _ in range(5)]
            for turn in turns:
                shuffle(turn)
            for name, action in itertools.chain(*turns):
                place = Path(folder) / name.replace(" ", "_")
                if action != loads[name]:  # to overwrite is another thing than to write
                    shutil.rmtree(place, ignore_errors=True)
                    place.mkdir()
                os.sync()
                start = time.perf_counter()
                try:
                    action(place / "buffer.h5")
                except Exception as error:  # a peer's fault is a figure too
                    say(f"{name}: {type(error).__name__}: {error}")
                    continue
                taken.setdefault(name, []).append(time.perf_counter() - start)
            medians = {name: statistics.median(values) for name, values in taken.items()}
            yield from compared(f"{kind}: {word}", "s", medians, lower_is_better=True)


def main() -> int:
    """Run it."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", choices=[task.name for task in TASKS], help="one task")
    chosen = arguments.parse_args()
    import torch

    torch.set_num_threads(1)
    seconds, turns = (0.1, 3) if chosen.quick else (0.4, 5)
    for task in TASKS:
        if chosen.only not in (None, task.name):
            continue
        if chosen.quick:
            task = dataclasses.replace(task, capacity=task.capacity // 10)
        for compact in (False, True):
            for prioritized in (False, True):
                show(figures(task, prioritized, compact, seconds, turns), chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
