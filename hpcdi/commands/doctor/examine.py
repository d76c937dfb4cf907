"""The course of `hpcdi doctor`: every rank probes, rank 0 gathers the facts, judges and reports.

Nobody blocks in MPI without a limit: a rank that does not come is a finding, not an accident.
"""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from hpcdi.comm import probe
from hpcdi.comm.failure import abort_job
from hpcdi.comm.probe import GroupSpeed
from hpcdi.comm.world import World, gather_and_answer
from hpcdi.commands.doctor import checks, facts
from hpcdi.commands.doctor.checks import named_ranks, ranks_by
from hpcdi.commands.doctor.facts import Facts
from hpcdi.commands.findings import FAIL, Finding, ResultTable, together
from hpcdi.errors import EXIT_FAILED
from hpcdi.run.environment import LaunchEnvironment
from hpcdi.store.atomic import temporary_beside
from hpcdi.utils.threads import BackgroundThread

T = TypeVar("T")

MAX_PAIRS = 8
_PROBE_LIMIT_S = 60.0
_GROUP_LIMIT_S = 180.0
_GATHER_LIMIT_S = 120.0
_OTHERS_LIMIT_S = 300.0
"""Ranks other than 0 wait longer: rank 0 is to name the rank that hangs, and to end the job."""
_GROUP_TIMEOUT_S = 20.0
_LOOK_S = 0.1


def examine(
    world: World,
    rank_facts: Facts,
    launched: LaunchEnvironment,
    target: Path,
    variables: Mapping[str, str],
    report: ResultTable,
    *,
    cuda: bool = False,
    end: Callable[[int], None] = abort_job,
) -> int:
    """Examine the machine with all ranks (collective); returns rank 0's exit code, on all.

    Args:
        world: all ranks.
        rank_facts: this rank's facts; those of MPI's start are known.
        launched: by which launcher.
        target: folder that runs would be written to, or a run folder.
        variables: the environment as the user set it.
        report: rows of rank 0.
        cuda: whether learners must have GPUs.
        end: ends the job with an exit code; called where a probe does not end.
    """
    hosts: list[str] = []  # of all ranks, once they have met
    folder = next(path for path in (target, *target.parents) if path.is_dir()).resolve()
    scratch = temporary_beside(folder / "doctor")
    is_first = world.rank == 0

    def say(line: str) -> None:
        sys.stderr.write(f"hpcdi doctor: rank {world.rank} ({world.host}): {line}\n")
        sys.stderr.flush()

    def give_up(name: str, waits_for: str) -> None:
        reason = f"did not end in time, waiting for {waits_for}"
        if is_first:
            advice = "look at that rank's host; what the ranks say themselves is above"
            report.add(name, Finding(FAIL, reason, advice))
            report.finish()
            shutil.rmtree(scratch, ignore_errors=True)
        say(f"{name!r} {reason}. Ending the job")
        end(EXIT_FAILED)

    watch = Watch(say, give_up, at_least_s=0.0 if is_first else _OTHERS_LIMIT_S)
    probes = Probes(world, rank_facts, variables, watch)
    comm = world.comm.Dup()

    def gather(name: str, answer: Callable[[list[Facts]], T]) -> T:
        """Gather all facts on rank 0, which reports missing ranks; returns its answer on all."""
        watch.begin(name, _GATHER_LIMIT_S, is_quiet=not is_first)
        return gather_and_answer(
            comm, rank_facts, answer, lambda ranks: watch.wait_for(named_ranks(ranks, hosts))
        )

    def meet(of_ranks: list[Facts]) -> tuple[list[str], list[int], Path | None]:
        """Judge the launch on rank 0; returns what `Probes.run_all` needs, to all ranks."""
        hosts[:] = [of_rank.host for of_rank in of_ranks]
        report.add("launcher", together(checks.check_launcher(of_ranks, launched)))
        return (
            hosts,
            checks.nccl_members(of_ranks),
            None if "folder" in rank_facts.errors else scratch,
        )

    def judge(of_ranks: list[Facts]) -> int:
        shutil.rmtree(scratch, ignore_errors=True)
        for name, finding in checks.findings(of_ranks, checks.learners_of_run(target), cuda=cuda):
            report.add(name, finding)
        return report.finish()

    with closing(watch):
        try:
            probes.run("gpus", lambda: facts.gpus(variables), "the import of torch")
            if is_first:
                probes.run("folder", lambda: facts.folder(folder, scratch))
            hosts[:], nccl, shared = gather("launcher", meet)
            probes.run_all(hosts, nccl, shared)
            return gather("facts", judge)
        finally:
            if is_first:
                shutil.rmtree(scratch, ignore_errors=True)


class Probes:
    """One rank's probes, in the order that all ranks keep: some wait for another rank's.

    Args:
        world: all ranks.
        rank_facts: this rank's facts, which the probes fill in.
        variables: the environment as the user set it.
        watch: ends a probe that hangs.
    """

    def __init__(
        self, world: World, rank_facts: Facts, variables: Mapping[str, str], watch: Watch
    ) -> None:
        self._world, self._facts, self._variables, self._watch = world, rank_facts, variables, watch

    def run(
        self,
        name: str,
        make: Callable[[], Mapping[str, Any]],
        waits_for: str = "this rank's own part",
        limit_s: float = _PROBE_LIMIT_S,
    ) -> None:
        """Run a probe; its facts are set, or else its error is."""
        self._watch.begin(name, limit_s, waits_for)
        measured, error = checks.attempt(make)
        if error:
            self._facts.errors[name] = error
        for field, value in (measured or {}).items():
            setattr(self._facts, field, value)

    def run_all(self, hosts: Sequence[str], nccl: Sequence[int], scratch: Path | None) -> None:
        """Run the probes that need the hosts of all ranks, and all others.

        Args:
            hosts: of every rank.
            nccl: ranks of the NCCL test.
            scratch: rank 0's folder for files of probes; None: it cannot write.
        """
        rank, size = self._world.rank, self._world.size
        elsewhere = [ranks[0] for host, ranks in ranks_by(hosts).items() if host != hosts[0]]
        leaders = elsewhere or list(range(1, size))[:1]
        if scratch is not None and rank == 0:
            self.run("disk", lambda: facts.disk(scratch), "the file system")
        elif scratch is not None and rank in leaders:
            list(scratch.iterdir())  # so that its cache knows the folder without the shards
        self.run("software", facts.software)
        self.run("rank death", lambda: {"ulfm": probe.fault_tolerance()})
        self.run("transport", lambda: facts.transport(self._variables))
        self.run("slurm", lambda: facts.slurm(self._variables))
        self.run("cores", lambda: facts.cores(self._variables))
        self.run("memory", facts.memory)
        self.run("limits", facts.limits)
        self.run("packages", facts.packages)
        partners = leaders[:MAX_PAIRS]
        self.run("messages", lambda: {"links": self._with_rank_0(partners, probe.measure_link)})
        self.run("clocks", lambda: {"offsets_s": self._with_rank_0(elsewhere, probe.clock_offset)})
        pairs = [(0, other) for other in dict.fromkeys([1, *leaders[:1]])] if size > 1 else []
        groups = [tuple(nccl)] if nccl else []
        self.run("gloo", lambda: {"gloo": self._reduced("gloo", pairs)}, "", _GROUP_LIMIT_S)
        self.run("nccl", lambda: {"nccl": self._reduced("nccl", groups)}, "", _GROUP_LIMIT_S)
        if scratch is not None and rank in leaders:
            self.run("sharing", lambda: facts.sharing(scratch), f"shards in {scratch}")

    def _with_rank_0(self, partners: Sequence[int], measure: Callable[[Any, int], T]) -> list[T]:
        """Measure rank 0 with each partner in turn; returns the results on rank 0, else nothing."""
        is_first = self._world.rank == 0
        results = []
        for partner in partners if is_first else [0] * (self._world.rank in partners):
            self._watch.wait_for(f"rank {partner}")
            results.append(measure(self._world.comm, partner))
        return results if is_first else []

    def _reduced(self, backend: str, groups: Sequence[Sequence[int]]) -> list[GroupSpeed]:
        """Returns the results of the groups that this rank is in."""
        return [
            probe.reduce_together(
                self._world.comm, ranks, backend, _GROUP_TIMEOUT_S, self._watch.wait_for
            )
            for ranks in groups
            if self._world.rank in ranks
        ]


class Watch:
    """Watches this rank's steps from a thread: prints when one takes long, ends it at its limit.

    Args:
        say: prints a line.
        end: called with a step's name and what it waits for when its time is over; has to end the
            job, because the rank's own thread hangs.
        notice_s: seconds after which it prints what the step waits for.
        at_least_s: shorter limits count as this one.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        end: Callable[[str, str], None],
        notice_s: float = 20.0,
        at_least_s: float = 0.0,
    ) -> None:
        self._say, self._end, self._notice_s, self._at_least_s = say, end, notice_s, at_least_s
        self._waits_for = ""
        self._closed = threading.Event()
        # name, when to print, when to end it, when it began; one tuple: two threads have it
        self._step = "", math.inf, math.inf, 0.0
        self._thread = BackgroundThread(self._run, "watch")

    def begin(
        self, name: str, limit_s: float, waits_for: str = "", *, is_quiet: bool = False
    ) -> None:
        """Start a step, which ends the one before; a quiet one prints nothing before its limit."""
        now = time.monotonic()
        prints_at, ends_at = now + self._notice_s, now + max(limit_s, self._at_least_s)
        self._waits_for = waits_for
        self._step = name, math.inf if is_quiet else prints_at, ends_at, now

    def wait_for(self, whom: str) -> None:
        """Set what the step waits for now."""
        self._waits_for = whom

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        noticed: object = None
        while not self._closed.wait(_LOOK_S):
            step, now = self._step, time.monotonic()
            name, prints_at, ends_at, begun = step
            if now > ends_at:
                self._end(name, self._waits_for)
                return
            if now > prints_at and noticed is not step:
                noticed = step
                self._say(f"{name!r} takes {now - begun:.0f} s, waiting for {self._waits_for}")
