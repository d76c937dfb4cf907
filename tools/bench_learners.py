"""What several learners cost and bring: the means of their gradients, step by step.

Starts mpirun itself. Ways to average gradients are run in turns, block by block, within one job;
figures are medians over the rounds, ratios are medians of ratios within a round. One thread each.
The share of communication is what two learners lose to two that do not speak to each other. Then
real runs, see `learner_runs`: how fast one learner and two are, and how well they learn.

    python tools/bench_learners.py              about twelve minutes
    python tools/bench_learners.py --quick      less than two
    python tools/bench_learners.py --only runs  one of: steps, buckets, runs, learning
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from figures import Row, at_most, parser, show
from learner_runs import learning_rows, speed_rows

if TYPE_CHECKING:
    import torch
    from torch import nn

LEARNERS = 2
BLOCK_S = 0.2  # of one way in one round
ALONE, APART = "1 learner", "2, no synchronisation"
OURS, DDP = "2, GradientSync", "2, torch's DDP"
EACH, FLAT = "2, an all-reduce a parameter", "2, all in one after backward"
BUCKET_KIB = (64, 256, 1024, 4096, 16384)

Step = Callable[[], None]


@dataclass(frozen=True)
class Figures:
    """Of one way, a value a round: iterations a second, and processor time of all threads."""

    rates: list[float]
    cpu_ms: list[float]


def main() -> None:
    """Measure, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--only", choices=(*SECTIONS, "buckets"), help="one section alone")
    command_line.add_argument("--seeds", type=int, default=10, help="of the learning curves")
    command_line.add_argument("--rank", default="", help="(a rank of the job: what it measures)")
    given = command_line.parse_args()
    if given.rank:
        rank_main(given.rank, 8 if given.quick else 40)
        return
    for section in [given.only] if given.only else SECTIONS:
        show({**SECTIONS, "buckets": bucket_rows}[section](given), given.json)


def synchronisation_rows(given: argparse.Namespace) -> list[Row]:
    """Iterations a second of each way to average gradients, and what it takes of a step."""
    rows = []
    for model, figures in run("ways", given.quick).items():
        rows += way_rows(model, figures, OURS)
        for way in (OURS, DDP):
            name = f"{model}: {way}: communication share of a step"
            share = 100 * (1 - ratio_of(figures[way].rates, figures[APART].rates))
            rows.append(Row(name, share, "%"))
        cost = ratio_of(figures[OURS].cpu_ms, figures[DDP].cpu_ms)
        rows.append(at_most(f"{model}: {OURS}: CPU, over DDP's", cost, "", 1.1))
    return rows


def bucket_rows(given: argparse.Namespace) -> list[Row]:
    """Iterations a second of `GradientSync` by bucket size."""
    found = run("buckets", given.quick).items()
    return [row for model, figures in found for row in way_rows(model, figures, APART)]


def way_rows(model: str, figures: dict[str, Figures], peer: str) -> list[Row]:
    """Speed and processor time of each way; the latter says more on a machine that is shared."""
    rows = []
    for kind, unit in (("rates", "/s"), ("cpu_ms", "ms CPU/it")):
        of_peer = getattr(figures[peer], kind)
        for way, own in figures.items():
            values = getattr(own, kind)
            compared = {} if way == peer else {"ratio": ratio_of(values, of_peer), "peer": peer}
            rows.append(Row(f"{model}: {way}", middle(values), unit, **compared))
    return rows


def run(what: str, is_quick: bool) -> dict[str, dict[str, Figures]]:
    """Start the learners; gives figures by model and way."""
    from hpcdi.run.local import mpirun_command, rank_environment

    command = [*mpirun_command(LEARNERS), sys.executable, "-m", "mpi4py", __file__, "--rank", what]
    environment = rank_environment({**os.environ, "OMP_NUM_THREADS": "1"})
    done = subprocess.run(
        [*command, "--quick"] if is_quick else command,
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"the learners failed:\n{done.stderr}")
    return {
        model: {way: Figures(**values) for way, values in found.items()}
        for model, found in json.loads(done.stdout).items()
    }


def middle(rates: Iterable[float]) -> float:
    """Median."""
    return statistics.median(rates)


def ratio_of(rates: Iterable[float], peer: Iterable[float]) -> float:
    """Median of the ratios within a round."""
    return middle(one / other for one, other in zip(rates, peer, strict=True))


def rank_main(what: str, rounds: int) -> None:
    """One learner of the job; the first one prints the figures."""
    import torch

    from hpcdi.comm.world import open_world
    from hpcdi.worker.dist import DDPContext

    torch.set_num_threads(1)
    world = open_world()
    with DDPContext(backend="gloo", group=world.comm):
        found = {}
        for model, (make, batch) in models().items():
            task = Task(make, batch)
            steps = ways(task) if what == "ways" else bucket_ways(task)
            found[model] = race(steps, rounds)
    if world.rank == 0:
        print(json.dumps(found))


@dataclass(frozen=True)
class Task:
    """What is learned: a network that a function makes, and one batch."""

    make: Callable[[], nn.Module]
    batch: torch.Tensor

    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A network, alike on all learners, and its optimizer."""
        import torch

        torch.manual_seed(0)
        net = self.make()
        return net, torch.optim.Adam(net.parameters(), 1e-4, fused=True)


def models() -> dict[str, tuple[Callable[[], nn.Module], torch.Tensor]]:
    """A network for vectors with a batch of 128, and one for frames with a batch of 16."""
    import torch
    from torch import nn

    def mlp() -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 18)
        )

    def frames() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 18),
        )  # fmt: skip

    return {
        "MLP 1.2 MiB": (mlp, torch.randn(128, 64)),
        "CNN 6.5 MiB": (frames, torch.randn(16, 4, 84, 84)),
    }


def ways(task: Task) -> dict[str, Step]:
    """One step of each way."""
    from hpcdi.comm.gradients import GradientSync

    def synchronised(net: nn.Module) -> tuple[Step, Step]:
        sync = GradientSync(net.parameters())
        return sync.zero, sync.finish

    return {
        ALONE: plain(task),
        APART: plain(task),
        OURS: plain(task, synchronised),
        DDP: wrapped(task),
        EACH: plain(task, one_by_one),
        FLAT: plain(task, all_at_once),
    }


def bucket_ways(task: Task) -> dict[str, Step]:
    """One step with each size of buckets."""
    from hpcdi.comm.gradients import GradientSync

    def of_size(kib: int) -> Step:
        def synchronised(net: nn.Module) -> tuple[Step, Step]:
            sync = GradientSync(net.parameters(), bucket_bytes=kib * 1024)
            return sync.zero, sync.finish

        return plain(task, synchronised)

    return {APART: plain(task)} | {f"buckets of {kib} KiB": of_size(kib) for kib in BUCKET_KIB}


def plain(task: Task, synchronised: Callable[[nn.Module], tuple[Step, Step]] | None = None) -> Step:
    """A step that does something before the backward pass and something after it."""
    net, optimizer = task.parts()
    zero, finish = synchronised(net) if synchronised else (optimizer.zero_grad, lambda: None)

    def step() -> None:
        zero()
        net(task.batch).square().mean().backward()
        finish()
        optimizer.step()

    return step


def wrapped(task: Task) -> Step:
    """DistributedDataParallel as its manual recommends it."""
    from torch.nn.parallel import DistributedDataParallel

    net, optimizer = task.parts()
    parallel = DistributedDataParallel(net, gradient_as_bucket_view=True)

    def step() -> None:
        optimizer.zero_grad()
        parallel(task.batch).square().mean().backward()
        optimizer.step()

    return step


def one_by_one(net: nn.Module) -> tuple[Step, Step]:
    """An all-reduce for each parameter after the backward pass."""
    from hpcdi.worker.dist import allreduce

    def finish() -> None:
        for parameter in net.parameters():
            allreduce(parameter.grad)

    return lambda: net.zero_grad(), finish


def all_at_once(net: nn.Module) -> tuple[Step, Step]:
    """All gradients as one message after the backward pass."""
    from hpcdi.comm.gradients import GradientSync

    sync = GradientSync(net.parameters(), bucket_bytes=2**40)
    return sync.zero, sync.finish


def race(steps: Mapping[str, Step], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Figures of each way, as `Figures` has them; of the slower learner."""
    import torch.distributed as dist

    from hpcdi.comm.group import broadcast_object, gather_objects

    counts = {}
    for way, step in steps.items():  # warm, and count the steps of a block
        block(step, 5)
        counts[way] = broadcast_object(max(int(BLOCK_S / block(step, 10)[0] * 10), 10))
    found: dict[str, dict[str, list[float]]] = {way: {"rates": [], "cpu_ms": []} for way in steps}
    order = list(steps)
    for _ in range(rounds):
        order.append(order.pop(0))
        for way in order:
            dist.barrier()
            is_idle = way == ALONE and dist.get_rank() > 0
            lasted = (0.0, 0.0) if is_idle else block(steps[way], counts[way])
            wall_s, cpu_s = map(max, zip(*gather_objects(lasted), strict=True))
            found[way]["rates"].append(counts[way] / wall_s)
            found[way]["cpu_ms"].append(1e3 * cpu_s / counts[way])
    return found


def block(step: Step, count: int) -> tuple[float, float]:
    """Seconds of some steps, on the wall and of the processor."""
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    return time.perf_counter() - start, time.process_time() - busy


SECTIONS = {"steps": synchronisation_rows, "runs": speed_rows, "learning": learning_rows}

if __name__ == "__main__":
    main()
