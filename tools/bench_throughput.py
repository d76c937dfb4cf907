"""How fast a whole run is while it learns: environment steps, learner iterations, latency, idling.

A real 4-rank `hpcdi train` on CartPole (MLP 4-128-128-2, batch 64) runs with learning on; before
and after it, the bare update of the same network is measured alone on the same machine. The figures
that matter are the ratios: absolute ones drift with the machine and the hour. Least of all drifts
the learner's share by CPU time: updates per CPU second of its main thread, beside those of the bare
loop; ranks that share too few cores, and waiting, do not count in it. A second run learns
by IMPALA, whose collectors never wait, from 2 x 64 environments; a third steps these one by one, as
Sample Factory's APPO does, which runs beside it where it is installed, with the same network,
rollouts and minibatches.

    python tools/bench_throughput.py            about three minutes
    python tools/bench_throughput.py --quick    less than two
    python -m venv sf && sf/bin/pip install torch sample-factory
    python tools/bench_throughput.py --sample-factory sf/bin/python
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Row, at_least, at_most, parser, show

ROOT = Path(__file__).parent.parent
BATCH = 64
PATIENCE_S = 60.0
"""Seconds that a start may take before the figures count."""
BARE = "bare torch update, alone"
SETTINGS = (
    "env.stop_value=1e9", "policy.model.encoder_hidden_size_list=[128,128]",
    f"policy.learn.batch_size={BATCH}", "policy.eval.every=1e9 seconds",
    "policy.other.commander.max_env_step=inf",
)  # fmt: skip


IMPALA = (
    "env.stop_value=1e9", "env.collector_env_num=64", "policy.learn.batch_size=2048",
    "policy.eval.every=1e9 seconds", "policy.other.commander.max_env_step=inf",
    "policy.other.replay_buffer.replay_buffer_size=200000",
)  # fmt: skip
ONE_BY_ONE = "env.vectorization=sync"
START_S, REPORT_S = 20.0, 5.0
"""Seconds that Sample Factory takes to start, and between two reports of it."""
SAMPLE_FACTORY = (
    "--env=cartpole", "--algo=APPO", "--device=cpu", "--num_workers=2", "--num_envs_per_worker=64",
    "--worker_num_splits=2", "--batch_size=2048", "--rollout=32", "--encoder_mlp_layers", "64",
    "64", "--use_rnn=False", "--experiment=run",
)  # fmt: skip


def main() -> None:
    """Measure, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--config", default=str(ROOT / "configs" / "cartpole_dqn.yaml"))
    command_line.add_argument("--idle-rank", action="store_true", help="(a rank of the idle test)")
    command_line.add_argument("--sample-factory", metavar="PYTHON", help="that has it installed")
    given = command_line.parse_args()
    if given.idle_rank:
        idle_rank()
        return
    seconds = 20 if given.quick else 60
    bare = [bare_updates(2.0)]
    figures, learner = run(given.config, seconds)
    bare.append(bare_updates(2.0))
    per_s, per_cpu_s = (sum(both) / len(bare) for both in zip(*bare, strict=True))
    show(rows(figures, per_s), given.json)
    show(learner_rows(learner, per_cpu_s), given.json)
    show(idle_rows(), given.json)
    peer = sample_factory_steps(given.sample_factory, seconds) if given.sample_factory else None
    impala = str(ROOT / "configs" / "cartpole_impala.yaml")
    for name, settings in (("IMPALA", ()), ("IMPALA, one by one", (ONE_BY_ONE,))):
        figures_of, _ = run(impala, seconds, (*IMPALA, *settings))
        show(impala_rows(name, figures_of, peer), given.json)
    if not given.json:
        where_the_time_goes(figures)


def rows(figures: dict[str, Any], bare: float) -> list[Row]:
    """Figures of the run, from the first train iteration on."""
    since, steps_then = figures["learning_since"]
    lasted_s = figures["ended_at"] - since
    steps = (figures["env_steps"] - steps_then) / lasted_s
    iterations = figures["train_iter"] / lasted_s
    files = figures["blocks"] / figures["elapsed_s"] / 2
    latency_ms = 1e3 * figures["block_latency_p50_s"]
    return [
        Row("bare update of the same network, measured alone", bare, "/s"),
        at_least("environment steps while learning", steps, "/s", 20_000),
        at_least(
            "learner iterations at the same time, share of bare", iterations / bare, "", 0.35,
            ratio=iterations / bare, peer=BARE,
        ),
        Row("learner iterations at the same time", iterations, "/s"),
        at_most("full block to learnable, p50", latency_ms, "ms", 100),
        Row("full block to learnable, p99", 1e3 * figures["block_latency_p99_s"], "ms"),
        at_most("files of one collector", files, "/s", 2),
    ]  # fmt: skip


@dataclass(frozen=True)
class LearnerCpu:
    """What the learner has done, and its CPU seconds for it.

    Attributes:
        iterations: train iterations.
        main_s: CPU seconds of its main thread, which learns.
        all_s: of all its threads: also of those that hear, gather batches and write files.
    """

    iterations: int
    main_s: float
    all_s: float

    @classmethod
    def of(cls, run: Path) -> LearnerCpu | None:
        """Returns that of a run as its status file says now; None: it has not learnt yet."""
        try:
            iterations = json.loads((run / "status.json").read_text())["train_iter"]
            first = (run / "log" / "rank00001.jsonl").read_text().partition("\n")[0]
            pid = json.loads(first)["pid"]
            main_s, all_s = (cpu_s(f"/proc/{pid}/task/{pid}"), cpu_s(f"/proc/{pid}"))
        except (OSError, ValueError):  # it is about to be written; or the run has ended
            return None
        return cls(iterations, main_s, all_s) if iterations else None

    def since(self, before: LearnerCpu) -> LearnerCpu:
        """Returns what it has done since another time."""
        return LearnerCpu(
            self.iterations - before.iterations,
            self.main_s - before.main_s,
            self.all_s - before.all_s,
        )


def cpu_s(process: str) -> float:
    """Returns the CPU seconds of a process, or of a thread of one."""
    fields = Path(process, "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def learner_rows(learner: LearnerCpu, bare: float) -> list[Row]:
    """Iterations per CPU second of the learner, while all collect; the bare loop makes `bare`."""
    shares = {
        "learner iterations per CPU s of its main thread": learner.iterations / learner.main_s,
        "the same of all its threads": learner.iterations / learner.all_s,
    }
    return [
        at_least(f"{name}, share of bare", rate / bare, "", 0.6, ratio=rate / bare, peer=BARE)
        for name, rate in shares.items()
    ]


def impala_rows(name: str, figures: dict[str, Any], peer: float | None) -> list[Row]:
    """Figures of IMPALA's run, from the first train iteration on; `peer` makes so many steps/s."""
    since, steps_then = figures["learning_since"]
    lasted_s = figures["ended_at"] - since
    steps = (figures["env_steps"] - steps_then) / lasted_s
    learnt = figures["samples_drawn"] / max(figures["env_steps"], 1)
    return [
        Row(
            f"{name}: environment steps while learning", steps, "/s",
            ratio=steps / peer if peer else None, peer="Sample Factory's APPO" if peer else "",
        ),
        Row(f"{name}: train iterations at the same time", figures["train_iter"] / lasted_s, "/s"),
        Row(f"{name}: transitions learnt from, share", 100 * learnt, "%"),
    ]  # fmt: skip


def sample_factory_steps(python: str, seconds: float) -> float:
    """Environment steps a second of Sample Factory's APPO, by its own log, while it learns."""
    script = Path(__file__).with_name("sample_factory_cartpole.py")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            job = subprocess.Popen(
                [python, script, *SAMPLE_FACTORY, f"--train_dir={folder}/runs"],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            time.sleep(START_S + seconds)
        finally:
            os.killpg(job.pid, signal.SIGTERM)
            time.sleep(2)
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        frames = [int(found) for found in re.findall(r"Total num frames: (\d+)", log.read_text())]
        if len(frames) < 4:
            sys.exit(f"Sample Factory has not learnt for long enough: {log.read_text()[-2000:]}")
        return (frames[-1] - frames[1]) / (REPORT_S * (len(frames) - 2))


def run(
    config: str, seconds: float, settings: tuple[str, ...] = SETTINGS
) -> tuple[dict[str, Any], LearnerCpu]:
    """Run 4 ranks for a while; gives the figures of run.json, and what the learner has done."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "hpcdi",
            "train",
            config,
            *settings,
            "--run-dir",
            str(path),
        ]
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        seen: list[tuple[float, LearnerCpu]] = []  # when the status file was written
        ends = time.monotonic() + seconds + PATIENCE_S
        try:
            while time.monotonic() < ends:
                time.sleep(0.02)
                status = path / "status.json"
                written = status.stat().st_mtime if status.exists() else 0.0
                if written != (seen[-1][0] if seen else 0.0) and (now := LearnerCpu.of(path)):
                    ends = ends if seen else time.monotonic() + seconds  # from the first update
                    seen.append((written, now))
            job.terminate()
            _, errors = job.communicate(timeout=60)
        finally:
            job.kill()
        facts = json.loads((path / "run.json").read_text())
        if facts["state"] != "stopped":
            sys.exit(f"the run failed: {facts.get('reason')}\n{errors.decode()}")
        if len(seen) < 2:
            sys.exit("the learner has not learnt for long enough: other work needs this machine")
        return dict(facts["figures"]), seen[-1][1].since(seen[0][1])


def bare_updates(seconds: float) -> tuple[float, float]:
    """Updates of the same network in a plain torch loop: one batch, one thread, nothing else.

    Returns:
        updates a second, and a CPU second.
    """
    code = f"import bench_throughput as b; print(*b.bare_loop({seconds}))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    per_s, per_cpu_s = map(float, out.split())
    return per_s, per_cpu_s


def bare_loop(seconds: float) -> tuple[float, float]:
    """Double DQN written by hand; fused Adam, as hpcdi uses it."""
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def network() -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
        )

    online, target = network(), network()
    optimizer = torch.optim.Adam(online.parameters(), 1e-3, fused=True)
    now, after = torch.randn(BATCH, 4), torch.randn(BATCH, 4)
    action = torch.randint(0, 2, (BATCH, 1))
    reward, discount = torch.ones(BATCH, 1), torch.full((BATCH, 1), 0.97)

    def update() -> None:
        with torch.no_grad():
            best = online(after).argmax(1, keepdim=True)
            goal = reward + discount * target(after).gather(1, best)
        loss = nn.functional.smooth_l1_loss(online(now).gather(1, action), goal)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    for _ in range(200):
        update()
    start, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        update()
        count += 1
    return count / (time.perf_counter() - start), count / (time.process_time() - cpu)


def idle_rows() -> list[Row]:
    """CPU of ranks that only wait, as shares of a core."""
    from hpcdi.run.local import mpirun_command, rank_environment

    command = [*mpirun_command(4), sys.executable, __file__, "--idle-rank"]
    out = subprocess.run(
        command, env=rank_environment(os.environ), capture_output=True, text=True, check=True
    ).stdout
    shares = json.loads(out)
    return [
        at_most("idle coordinator, share of a core", 100 * shares[0], "%", 5),
        at_most("idle worker (communication thread), worst", 100 * max(shares[1:]), "%", 5),
    ]


def idle_rank() -> None:
    """Wait as a rank waits, and tell what it cost."""
    from hpcdi.comm.pump import LinkPump
    from hpcdi.comm.world import open_world
    from hpcdi.utils.timer import cpu_seconds

    world = open_world()
    link = world.open_link()
    start, cpu = time.monotonic(), cpu_seconds()
    if world.rank == 0:
        while time.monotonic() - start < 4.0:
            link.receive(0.05)
    else:
        with LinkPump(link) as pump:
            while time.monotonic() - start < 4.0:
                pump.receive(0.2)
    share = (cpu_seconds() - cpu) / (time.monotonic() - start)
    shares = world.collect(share)
    if world.rank == 0:
        print(json.dumps(shares))


def where_the_time_goes(figures: dict[str, Any]) -> None:
    """Each rank's time, by activity."""
    print("\nwhere the time goes (share of the whole run; cpu: cores used)")
    for rank, report in figures["ranks"].items():
        told = sorted(report["shares"].items(), key=lambda item: -item[1])
        shares = ", ".join(f"{name} {share:.0%}" for name, share in told if share >= 0.005)
        memory = report["memory_bytes"] / 2**20
        who = f"rank {rank}  {report['role']:<11}"
        print(f"  {who} cpu {report['cpu']:.2f}  {memory:4.0f} MiB  {shares}")


if __name__ == "__main__":
    main()
