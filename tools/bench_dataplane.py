"""The data plane by parts: writing shards, rows in RAM, drawing by priority, policies, messages.

Each part stands beside the alternative that one would take instead, measured in the same run.

    python tools/bench_dataplane.py            about a minute
    python tools/bench_dataplane.py --quick    half of it
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from figures import Row, at_least, at_most, parser, show

from hpcdi.run.local import mpirun_command, rank_environment
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.store.rows import RowStore
from hpcdi.store.shards import Appender, read_shard
from hpcdi.types import ITEM_DTYPE, Columns, RowView, ShardRef
from hpcdi.worker.replay_buffer import AdvancedReplayBuffer

BATCH = 256
SLOT_ROWS = 15_600


def main() -> None:
    """Measure, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--pair", action="store_true", help="(a rank of the message test)")
    given = command_line.parse_args()
    if given.pair:
        pair_rank()
        return
    seconds = 0.5 if given.quick else 1.5
    with tempfile.TemporaryDirectory() as folder:
        for part in (shard_rows, ring_rows, stack_rows, buffer_rows, policy_rows):
            show(part(Path(folder), seconds), given.json)
    show(message_rows(), given.json)


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def per_second(call: Callable[[], object], seconds: float) -> float:
    """Calls a second, the median of three spells."""
    call()
    rates = []
    for _ in range(3):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds / 3:
            call()
            count += 1
        rates.append(count / (time.perf_counter() - start))
    return sorted(rates)[1]


def cartpole_rows(rows: int) -> Columns:
    """Columns as DQN on CartPole stores them, 41 bytes a row."""
    rng = np.random.default_rng(0)
    return {
        "observation": rng.random((rows, 4), dtype=np.float32),
        "action": rng.integers(0, 2, rows),
        "reward": np.ones(rows, dtype=np.float32),
        "terminated": np.zeros(rows, dtype=bool),
        "truncated": np.zeros(rows, dtype=bool),
        "n_step_return": np.ones(rows, dtype=np.float32),
        "bootstrap_discount": np.ones(rows, dtype=np.float32),
        "bootstrap_offset": np.ones(rows, dtype=np.uint16),
    }


def a_block(rows: int) -> Block:
    """A block of items of 32 transitions and a bootstrap row."""
    items = np.zeros(rows // 33, dtype=ITEM_DTYPE)
    items["item_start"] = 33 * np.arange(len(items))
    items["item_len"] = 32
    return Block(cartpole_rows(rows), items, {"task_id": "bench"}, tail_rows=1)


def shard_rows(folder: Path, seconds: float) -> list[Row]:
    """Writing and reading 4 MB blocks, beside a file of pickled dicts for each trajectory."""
    layout, block = RunLayout(folder), a_block(100_000)
    megabytes = sum(column.nbytes for column in block.columns.values()) / 1e6
    numbers = itertools.count()
    shards = Appender(layout, 1 << 26, fsync=True)

    def append() -> ShardRef:
        return shards.write(f"data/{next(numbers) % 64}.h5", block)  # not the whole disk

    write = megabytes * per_second(append, seconds)
    cpu = time.process_time()
    for _ in range(20):
        append()
    cpu_ms = 1e3 * (time.process_time() - cpu) / (20 * megabytes)
    ref = append()
    read = megabytes * per_second(lambda: read_shard(layout, ref), seconds)
    path = layout.inside(ref.path)
    by_h5py = megabytes * per_second(lambda: by_common_tools(path, block), seconds)

    import torch

    steps = [{k: torch.as_tensor(v[i]) for k, v in block.columns.items()} for i in range(32)]
    size = megabytes * 32 / block.rows
    pickled = size * per_second(lambda: torch.save(steps, folder / "b.pt"), seconds)
    return [
        at_least("block appended, fsync included (100k rows)", write / 1e3, "GB/s", 1.0,
                 ratio=write / pickled, peer="torch.save of a list of dicts a trajectory"),
        at_most("CPU of writing", cpu_ms, "ms/MB", 0.6),
        Row("block read into arrays, verified", read / 1e3, "GB/s", ratio=read / by_h5py,
            peer="the same through h5py"),
    ]  # fmt: skip


def by_common_tools(path: Path, block: Block) -> None:
    """Read as many rows of each column as the block has."""
    with h5py.File(path) as file:
        for name in block.columns:
            file[name][: block.rows]


def ring_rows(folder: Path, seconds: float) -> list[Row]:
    """Gathering batches out of 1e6 rows in RAM: plain rows beside block slots and h5py."""
    rows = 64 * SLOT_ROWS
    columns = cartpole_rows(rows)
    ring = RowStore(rows, views=[RowView("next_observation", "observation", "bootstrap_offset")])
    ring.write(0, columns)
    slots = {name: c.reshape(64, SLOT_ROWS, *c.shape[1:]) for name, c in columns.items()}
    rng = np.random.default_rng(1)
    draw = rng.integers(0, rows - 1, (64, BATCH))
    turn = itertools.cycle(draw)

    def by_slot() -> None:
        slot, row = np.divmod(next(turn), SLOT_ROWS)
        batch = {name: column[slot, row] for name, column in slots.items()}
        after = row + batch["bootstrap_offset"]
        batch["next_observation"] = slots["observation"][slot, np.minimum(after, SLOT_ROWS - 1)]

    def to_torch() -> None:
        import torch

        [torch.from_numpy(column) for column in ring.gather(next(turn)).values()]

    plain = per_second(
        lambda: [
            np.take(c, next(turn), axis=0) for c in [*columns.values(), columns["observation"]]
        ],
        seconds,
    )
    gathered = per_second(to_torch, seconds)
    slotted = per_second(by_slot, seconds)
    with h5py.File(folder / "rows.h5", "w") as file:
        for name, column in columns.items():
            file[name] = column
        from_file = per_second(
            lambda: [file[name][np.unique(next(turn))] for name in columns], seconds
        )
    name = "rows of 256 transitions gathered to torch"
    return [
        at_least(name, gathered, "/s", plain / 3, ratio=gathered / plain, peer="bare numpy.take"),
        Row(name, gathered, "/s", ratio=gathered / slotted, peer="[slot, row] of block slots"),
        Row(name, gathered, "/s", ratio=gathered / from_file, peer="h5py, the file being cached"),
    ]


def stack_rows(_folder: Path, seconds: float) -> list[Row]:
    """Gathering batches of Atari's stacks of frames, four of which wait at once."""
    rows, size = 4096, 32
    columns: Columns = {
        "observation": np.random.default_rng(0).integers(0, 256, (rows, 4, 84, 84), np.uint8),
        "bootstrap_offset": np.ones(rows, np.int32),
    }
    ring = RowStore(rows, views=[RowView("next_observation", "observation", "bootstrap_offset")])
    ring.write(0, columns)
    turn = itertools.cycle(np.random.default_rng(1).integers(0, rows - 1, (64, size)))
    waiting: deque[object] = deque(maxlen=4)

    def bare() -> None:
        at = next(turn)
        waiting.append([np.take(columns["observation"], k, axis=0) for k in (at, at + 1)])

    plain = per_second(bare, seconds)
    waiting.clear()
    gathered = per_second(lambda: waiting.append(ring.gather(next(turn))), seconds)
    name = "batches of 32 transitions of 4 x 84 x 84 bytes gathered"
    return [Row(name, gathered, "/s", ratio=gathered / plain, peer="bare numpy.take")]


def buffer_rows(folder: Path, seconds: float) -> list[Row]:
    """The coordinator's index of a million items."""
    size = 1_000_000
    buffer = AdvancedReplayBuffer({"replay_buffer_size": size}, rng=np.random.default_rng(0))
    for start in range(0, size, 50_000):
        buffer.push_columns({"row": np.arange(start, start + 50_000)}, 0)
    rng = np.random.default_rng(1)

    def round_() -> None:
        sample = buffer.sample_batch(BATCH, 0)
        assert sample is not None
        buffer.update_priorities(sample.drawn.unique_ids, rng.random(BATCH))

    rounds = per_second(round_, seconds)
    saves = [timed(lambda: buffer.save_data(folder / "index.h5")) for _ in range(7)]
    saved_s = statistics.median(saves)
    return [
        at_least("prioritized sample + update of 256 of 1e6 items", rounds, "/s", 3_000),
        at_most("snapshot of an index of 1e6 items", 1e3 * saved_s, "ms", 50),
        Row("its size", (folder / "index.h5").stat().st_size / 1e6, "MB"),
    ]


def policy_rows(_folder: Path, seconds: float) -> list[Row]:
    """Packing 5 MB of weights and unpacking them, beside torch.save."""
    import io

    import torch

    from hpcdi.store.policies import PolicyImage

    weights = {f"layer{k}": torch.randn(512, 244) for k in range(10)}
    ours = per_second(lambda: PolicyImage.of(weights, 0).state_dict(), seconds)

    def by_torch() -> None:
        buffer = io.BytesIO()
        torch.save(weights, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)

    theirs = per_second(by_torch, seconds)
    return [
        at_most("5 MB of weights packed, verified, unpacked", 1e3 / ours, "ms", 10,
                ratio=ours / theirs, peer="torch.save and load in memory (speed)"),
    ]  # fmt: skip


def message_rows() -> list[Row]:
    """A message there and back between rank 0 and a communication thread, and 5 MB one way."""
    command = [*mpirun_command(2), sys.executable, __file__, "--pair"]
    out = subprocess.run(
        command, env=rank_environment(os.environ), capture_output=True, text=True, check=True
    ).stdout
    small_ms, large_ms = map(float, out.split())
    return [
        at_most("control message one way, p50", small_ms / 2, "ms", 0.5),
        Row("5 MB one way and a word back, p50", large_ms, "ms"),
    ]


def pair_rank() -> None:
    """Rank 0 asks, rank 1 answers from its communication thread."""
    from hpcdi.comm.messages import CloseTask, PolicyUpdate
    from hpcdi.comm.pump import LinkPump
    from hpcdi.comm.world import open_world

    world = open_world()
    link = world.open_link()
    count = 200
    if world.rank == 1:
        with LinkPump(link, {PolicyUpdate: lambda _r, _m: pump.send(0, CloseTask("got"))}) as pump:
            left = count
            while left:
                for _, message in pump.receive(1.0):
                    left -= 1
                    pump.send(0, message)
            pump.flush(5.0)
            world.comm.Barrier()
        return
    small, large = [], []
    data = np.zeros(5_000_000, dtype=np.uint8)
    for message, times in ((PolicyUpdate(0, data), large), (CloseTask("x"), small)):
        for _ in range(20 if message.__class__ is PolicyUpdate else count):
            start = time.perf_counter()
            link.send(1, message)
            while not link.receive(1.0):
                pass
            times.append(time.perf_counter() - start)
    world.comm.Barrier()
    print(1e3 * sorted(small)[len(small) // 2], 1e3 * sorted(large)[len(large) // 2])


if __name__ == "__main__":
    main()
