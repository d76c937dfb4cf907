"""A real Slurm cluster, and jobs on it, looked at from outside as a user would."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes.patience import stretched
from hpcdi.store.checkpoints import newest_checkpoint

ROOT = Path(__file__).parent.parent.parent
TOOL = ROOT / "tools" / "slurm_dev_cluster.sh"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
CARTPOLE = ROOT / "configs" / "cartpole_dqn.yaml"
QUICK = ("env.stop_value=20", "policy.eval.every=0.5seconds")


def solved_after(restarts: int, folder: Path, seen: Path | str = "") -> tuple[str, ...]:
    """Settings of a run that is solved once it has been started again so often.

    Args:
        restarts: so often.
        folder: above the run folder.
        seen: a file that must be there, too, for runs whose every state is to be seen.
    """
    return (
        "env.env_id=hpcdi/Paced-v0", "env.import_names=[fakes.paced_env]", "env.vectorization=sync",
        f"env.kwargs={{run_dir: {folder / 'run'}, restarts: {restarts}, seen: '{seen}'}}",
        "env.collector_env_num=2", "env.evaluator_env_num=2", "env.stop_value=2000",
        "policy.collect.n_sample=16", "policy.learn.replay_ratio=8", "policy.eval.every=1seconds",
        "system.snapshot_s=2", "policy.other.replay_buffer.min_fill=200",
    )  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """A throw-away cluster; `variables` is the environment in which its commands are typed."""

    folder: Path
    variables: dict[str, str]
    has_accounting: bool

    def run(self, *command: str | Path, code: int | None = 0, cwd: Path = ROOT) -> str:
        """Output of a command, both streams."""
        done = subprocess.run(
            [str(word) for word in command], env=self.variables, cwd=cwd, capture_output=True,
            text=True, timeout=stretched(), errors="replace",
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"{command}: {done.returncode}\n{said}"
        return said

    def hpcdi(self, *arguments: str | Path, code: int | None = 0, cwd: Path = ROOT) -> str:
        """Output of an hpcdi command."""
        return self.run(sys.executable, "-m", "hpcdi", *arguments, code=code, cwd=cwd)

    def sbatch(self, folder: Path, *command: str | Path, **variables: str) -> Job:
        """Submit a job (options, script, arguments) whose run folder is in `folder`."""
        output, run_dir = folder / "out", folder / "run"
        own = dataclasses.replace(
            self, variables={**self.variables, "HPCDI_RUN": str(run_dir), **variables}
        )
        said = own.run("sbatch", "--parsable", f"--output={output}", *command)
        return Job(self, said.strip().split(";")[0], output, run_dir)

    def submit(self, folder: Path, *arguments: str | Path, code: int = 0) -> Job:
        """Submit a job by `hpcdi submit`, which ends with an exit code."""
        run_dir = folder / "run"
        said = self.hpcdi("submit", *arguments, "--run-dir", run_dir, code=code)
        number = said.split()[1].rstrip(":")
        return Job(self, number, run_dir / "submit" / f"slurm-{number}.out", run_dir)

    def array_states(self, job: Job, wanted: dict[str, str]) -> None:
        """Wait until the states of an array's elements, by index, are as wanted."""

        def states() -> dict[str, str]:
            lines = self.run("scontrol", "show", "job", "-o", job.number).splitlines()
            found = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
            return {facts["ArrayTaskId"]: facts["JobState"] for facts in found}

        job.until(lambda: states() == wanted)

    def unplug(self, node: str) -> None:
        """Kill a node and all that runs on it."""
        self.run(TOOL, "unplug", self.folder, node)

    def repair(self) -> None:
        """Start again what is missing."""
        self.run(TOOL, "up", self.folder)


@dataclass(frozen=True)
class Job:
    """A job of a cluster."""

    cluster: Cluster
    number: str
    output: Path
    run_dir: Path

    def facts(self) -> dict[str, str]:
        """What scontrol says of it."""
        return self.facts_of(self.number)

    def facts_of(self, number: str) -> dict[str, str]:
        """What scontrol says of a job."""
        said = self.cluster.run("scontrol", "show", "job", "-o", number).splitlines()[0]
        return dict(re.findall(r"(\w+)=(\S*)", said))

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, ..."""
        return self.facts()["JobState"]

    @property
    def restarts(self) -> int:
        """How often Slurm has started it again."""
        return int(self.facts()["Restarts"])

    @property
    def run(self) -> dict[str, Any]:
        """What run.json says; empty before the run has begun."""
        file = self.run_dir / "run.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    @property
    def progress(self) -> dict[str, Any]:
        """What status.json says; empty before rank 0 has written it."""
        file = self.run_dir / "status.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    @property
    def env_steps(self) -> int:
        """Steps of this part of the run and those before it."""
        return int(self.progress.get("env_steps", 0))

    @property
    def snapshot_env_steps(self) -> int:
        """Environment steps that its newest snapshot goes on from; 0 before there is any."""
        checkpoint, _ = newest_checkpoint(self.run_dir / "snapshots")
        return 0 if checkpoint is None else int(checkpoint.facts["env_steps"])

    def read(self) -> str:
        """What it has printed; mpirun's own messages carry NUL bytes."""
        if not self.output.exists():
            return ""
        return self.output.read_bytes().replace(b"\0", b"").decode(errors="replace")

    def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something holds."""
        began = time.monotonic()
        while not is_so():
            waited_s = time.monotonic() - began
            if waited_s > stretched():
                facts = {k: v for k, v in self.facts().items() if k in ("JobState", "Reason")}
                pytest.fail(f"not within {waited_s:.0f} s: {facts}\n{self.read()}")
            time.sleep(0.25)

    @contextlib.contextmanager
    def watched(self) -> Iterator[Callable[[], list[str]]]:
        """Watch the run as `hpcdi submit --wait` does, which must return at its end alone.

        Yields:
            Gives the states that were said of it so far, one after the other.
        """
        log = self.run_dir.parent / "watched"

        def said() -> list[str]:
            found = re.findall(r'^  "state": "(\w+)"', log.read_text(), flags=re.MULTILINE)
            return [state for state, _ in itertools.groupby(found)]

        with log.open("w") as file:
            watch = subprocess.Popen(
                [sys.executable, "-m", "hpcdi", "status", self.run_dir, "--watch", "0.2", "--json"],
                env=self.cluster.variables, cwd=ROOT, stdout=file,
            )  # fmt: skip
        try:
            self.until(said)
            yield said
            assert watch.wait(stretched()) == 0, log.read_text()[-2000:]
        finally:
            watch.kill()
            watch.wait()

    def wait(self, state: str = "COMPLETED") -> str:
        """Wait for its end, which must be in a state; gives what it has printed."""
        self.until(lambda: self.state in ENDED)
        assert self.state == state, f"{self.facts()}\n{self.read()}"
        return self.read()


def job_variables(folder: Path) -> dict[str, str]:
    """The environment of a user of a cluster of this machine, whose nodes share its few cores."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
    return {
        **kept,
        "SLURM_CONF": str(folder / "etc" / "slurm.conf"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PRTE_MCA_hwloc_default_binding_policy": "none",  # more ranks than cores
    }


def starts_in_vain(said: str) -> int:
    """Starts that ended before the run had begun: Open MPI crashes now and then in MPI_Init.

    It is its issue 12495, seen here under Slurm 22.05's PMIx; the job's script starts again.
    """
    return said.count("will start the run again")


def check_gone_on(job: Job, restarts: int) -> None:
    """See that counters went on from snapshots, and that the run was solved then."""
    said = job.read()
    begun = re.findall(r"resumed +snapshot_\d+: env step ([\d.]+)(k?)", said)
    counts = [float(number) * (1000 if unit else 1) for number, unit in begun]
    assert len(counts) == restarts, said
    assert counts == sorted(counts)
    assert counts[0] > 0
    assert job.run["restarts"] == restarts
    assert job.run["state"] == "done"
    assert job.run["reason"].startswith("stop value reached")
    assert job.env_steps >= counts[-1]
