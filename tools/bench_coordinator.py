"""What rank 0 costs: the real coordinator and codec, with 64, 512 and 4,096 simulated ranks.

One learner, all others collect. What is timed is rank 0's share alone, in CPU seconds: it decodes
the ranks' messages, handles them, and encodes its orders. Each collector announces 2 blocks and
reports its progress once a second; timing begins when all have announced their first. The clock
by which rank 0 decides is simulated, so a machine that is too slow shows as more than one core;
it does not go ahead of the real one, by which rank 0 shows the run. Messages are also timed
alone, beside the form that any value has: JSON of all of it, arrays behind.

    python tools/bench_coordinator.py              10 simulated seconds each
    python tools/bench_coordinator.py --quick      64 and 512 ranks, 3 seconds
"""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from figures import Row, at_most, parsed, parser, show

from hpcdi.comm.codec import Encoded, decode, encode
from hpcdi.comm.messages import (
    AdmitBlock,
    BlockAdmitted,
    BlockReady,
    CollectProgress,
    CollectTask,
    DataDemand,
    Heartbeat,
    LearnTask,
    Message,
    WorkerReady,
)
from hpcdi.config.compiled import compile_config
from hpcdi.roles.coordinator.coordinator import Coordinator, look_seldom_for_cycles
from hpcdi.store.layout import RunLayout, block_name, rank_name
from hpcdi.types import BLOCK_ID_BITS, ITEM_DTYPE, ColumnSpec, RowView, ShardRef

LEARNER, TURN_S, HOSTS = 1, 0.05, 64
WARM_UP_S = 1.0
BLOCKS_PER_S, PROGRESS_PER_S, HEARTBEATS_PER_S = 2, 1, 0.2
EPISODES, STEPS = 8, 25
"""Of a block."""
BLOCKS_OF_A_SHARD = 8000
"""They have 64 MB."""
CONFIG: dict[str, Any] = {
    "env": {"env_id": "CartPole-v1", "stop_value": 1e9},
    "policy": {"other": {"replay_buffer": {"replay_buffer_size": 200_000}}},
}


def main() -> None:
    """Measure, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--ranks", type=int, nargs="+", default=[64, 512, 4096])
    command_line.add_argument("--seconds", type=float, default=10, help="simulated")
    given = parsed(command_line, ranks=[64, 512], seconds=3)
    show(of_messages(2_000 if given.quick else 20_000), given.json)
    look_seldom_for_cycles()
    for ranks in given.ranks:
        show(of_run(ranks, given.seconds), given.json)


# ----------------------------------------------------------------------------------- messages alone


def block(rank: int, number: int, task_id: str = "collector_task_12") -> BlockReady:
    """The announcement of a block of CartPole, as shards hold it."""
    shard, within = divmod(number, BLOCKS_OF_A_SHARD)
    path = block_name(f"data/{rank_name(rank)}/20261121T23/{shard:06d}.h5", within)
    like = a_block()
    return dataclasses.replace(
        like,
        task_id=task_id,
        block_id=(rank << BLOCK_ID_BITS) + number,
        shard=dataclasses.replace(like.shard, path=path),
    )


@cache
def a_block() -> BlockReady:
    """What the announcements of all blocks have in common."""
    number, rows = 7, EPISODES * (STEPS + 1)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "observation": ("<f4", (4,)), "action": ("<i8", ()), "reward": ("<f4", ()),
        "terminated": ("|b1", ()), "truncated": ("|b1", ()), "bootstrap": ("<i4", ()),
    }  # fmt: skip
    specs = [
        ColumnSpec(name, dtype, (rows, *shape), 4096 * number + 512 * at)
        for at, (name, (dtype, shape)) in enumerate(shapes.items())
    ]
    specs += [
        ColumnSpec(name, ITEM_DTYPE[name].str, (EPISODES,), 4096 * number + 64 * at)
        for at, name in enumerate(ITEM_DTYPE.names or ())
    ]
    views = (RowView("next_observation", "observation", "bootstrap"),)
    shard = ShardRef.of("", rows * 40, rows, 123_456_789, tuple(specs), views)
    items = np.zeros(EPISODES, ITEM_DTYPE)
    items["item_len"] = STEPS
    items["item_start"] = np.arange(EPISODES) * (STEPS + 1)
    return BlockReady("", 0, shard, items, 1, time.time(), EPISODES, made_of=EPISODES * STEPS)


@cache
def progress(task_id: str = "collector_task_12") -> CollectProgress:
    """A report of what a collector did in a second."""
    shares = {"act": 0.41, "step": 0.32, "record": 0.12, "wait": 0.1, "other": 0.05}
    returns, lengths = np.full(EPISODES, 21.0), np.full(EPISODES, STEPS)
    return CollectProgress(task_id, returns, lengths, 300, shares, cpu=0.98)


def of_messages(times: int) -> list[Row]:
    """Microseconds to encode and to decode each frequent message, beside the form of any value."""
    rows = []
    ready = decode(encode(block(3, 7)).head, ())
    admit = AdmitBlock(ready.block_id, 1200, 220_000, ready.shard, ready.sealed_at)
    for message in (ready, admit, progress(), BlockAdmitted(ready.block_id, 0.002), Heartbeat()):
        ours, anys = encode(message), encode([message])
        pairs = {
            "encoded": (lambda m=message: encode(m), lambda m=message: encode([m])),
            "decoded": (lambda e=ours: decode(e.head, ()), lambda e=anys: decode(e.head, ())),
        }
        for what, (here, there) in pairs.items():
            taken, beside = cpu_us(here, times), cpu_us(there, times)
            name = f"one {type(message).__name__} {what}"
            rows.append(at_most(name, taken, "us", 5, ratio=taken / beside, peer="as any value is"))
    return rows


def cpu_us(call: Callable[[], object], times: int) -> float:
    """CPU microseconds of one call, in the fastest of five rounds."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(times // 5):
            call()
        rounds.append((time.process_time() - began) / (times // 5))
    return 1e6 * min(rounds)


# ----------------------------------------------------------------------------------- a whole rank 0


class RankZeroLink:
    """Rank 0's end of a link: decodes what ranks have sent, encodes what it sends; see `Link`."""

    ranks_may_die = False

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size
        self.wake = threading.Event()
        self.inbox: deque[tuple[int, Encoded]] = deque()
        self.sent: list[tuple[int, Message]] = []

    def send(self, rank: int, message: Message) -> None:
        """See `Link.send`."""
        encode(message)
        self.sent.append((rank, message))

    def receive(self, timeout_s: float) -> list[tuple[int, Message]]:  # noqa: ARG002
        """See `Link.receive`."""
        arrived = [(rank, decode(one.head, one.frames)) for rank, one in self.inbox]
        self.inbox.clear()
        return arrived

    def unsent(self) -> list[int]:
        """See `Link.unsent`."""
        return []


class Ranks:
    """All ranks but 0: what each says, and when."""

    def __init__(self, link: RankZeroLink) -> None:
        self.link, self.collectors = link, range(2, link.size)
        self.tasks: dict[int, str] = {}
        self.numbers = Counter[int]()
        self.sent = Counter[str]()
        self.iterations = 0

    def say(self, rank: int, message: Message) -> None:
        """Send a message to rank 0."""
        self.sent[type(message).__name__] += 1
        self.link.inbox.append((rank, encode(message)))

    def start(self) -> None:
        """All report, the learner last."""
        for rank in [*self.collectors, LEARNER]:
            role = "learner" if rank == LEARNER else "collector"
            self.say(rank, WorkerReady(role, f"node{rank % HOSTS}", 1000 + rank))

    def hear(self) -> None:
        """Take orders: the learner reads blocks, and asks for the next batches."""
        for rank, order in self.link.sent:
            match order:
                case CollectTask():
                    self.tasks[rank] = order.task_id
                case LearnTask():
                    self.tasks[rank] = order.task_id
                    self.ask()
                case AdmitBlock():
                    self.say(rank, BlockAdmitted(order.block_id, 0.001))
        self.link.sent.clear()

    def ask(self) -> None:
        """The learner asks for batches."""
        none = np.zeros(0, np.int64)
        self.iterations += 8
        demand = DataDemand(
            self.tasks[LEARNER], 8, 64, self.iterations, none, none.astype(float), 8
        )
        self.say(LEARNER, demand)

    def go_on(self, now: float) -> None:
        """All send what is due in the turn that begins now; ranks are out of step."""
        for rank in self.collectors:
            for _ in range(due(rank, now, BLOCKS_PER_S)):
                self.numbers[rank] += 1
                self.say(rank, block(rank, self.numbers[rank], self.tasks[rank]))
            for _ in range(due(rank, now, PROGRESS_PER_S)):
                self.say(rank, progress(self.tasks[rank]))
            for _ in range(due(rank, now, HEARTBEATS_PER_S)):
                self.say(rank, Heartbeat("step"))
        self.ask()


def due(rank: int, now: float, per_s: float) -> int:
    """How often something that is done `per_s` is due for a rank from `now` until the next turn."""
    phase = rank * 0.618 % 1
    return int((now + TURN_S) * per_s + phase) - int(now * per_s + phase)


def of_run(size: int, seconds: float) -> list[Row]:
    """Rank 0's CPU for a run of so many ranks."""
    config = compile_config(CONFIG).config
    with tempfile.TemporaryDirectory() as folder:
        link = RankZeroLink(size)
        layout = RunLayout(Path(folder))
        layout.root.mkdir(exist_ok=True)
        with Coordinator(config, link, layout) as coordinator:
            return measured(coordinator, link, seconds)


def measured(coordinator: Coordinator, link: RankZeroLink, seconds: float) -> list[Row]:
    """Rank 0's CPU: for the start, for an idle turn, and for the messages of all ranks."""
    ranks, now, origin = Ranks(link), 0.0, time.monotonic()

    def turn() -> float:
        nonlocal now
        time.sleep(max(0.0, origin + now - time.monotonic()))
        began = time.process_time()
        coordinator.turn(now)
        taken = time.process_time() - began
        ranks.hear()
        now += TURN_S
        return taken

    ranks.start()
    start_s = sum(turn() for _ in range(5))
    scheduler = coordinator._scheduler
    ticks = []
    for _ in range(100):
        began = time.process_time()
        scheduler.tick(now)
        ticks.append(time.process_time() - began)
    for length_s in (WARM_UP_S, seconds):
        ranks.sent.clear()
        busy_s, until = 0.0, now + length_s
        while now < until:
            ranks.go_on(now)
            busy_s += turn()
    began = time.process_time()
    coordinator.summary()
    summary_s = time.process_time() - began
    count, each = sum(ranks.sent.values()), f"{link.size} ranks"
    return [
        at_most(f"{each}: made ready", start_s, "s", 1),
        at_most(f"{each}: a tick with nothing to do", 1e3 * float(np.median(ticks)), "ms", 0.1),
        at_most(f"{each}: advice, and the summary", 1e3 * summary_s, "ms", 20),
        Row(f"{each}: a message decoded, handled and answered", 1e6 * busy_s / count, "us"),
        at_most(f"{each}: share of a core at {count / seconds:,.0f} messages/s",
                100 * busy_s / seconds, "%", 30),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
