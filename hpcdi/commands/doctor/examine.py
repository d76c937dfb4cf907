"""The course of `hpcdi doctor` over ranks: every rank probes, rank 0 gathers the facts and judges.

Nobody blocks in MPI without a limit: a rank that does not come is a finding, not an accident.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.comm import probe
from hpcdi.comm.failure import abort_job
from hpcdi.comm.world import World, gather_with_timeout
from hpcdi.commands.doctor import checks, facts
from hpcdi.commands.doctor.facts import Facts
from hpcdi.commands.doctor.report import FAIL, Finding, Report, attempt, ranks_of, ranks_text
from hpcdi.errors import EXIT_FAILED, StoreError
from hpcdi.launch.environment import LaunchEnvironment
from hpcdi.store import probe as store_probe
from hpcdi.store.atomic import temporary_beside
from hpcdi.utils.watchdog import Patience, Watch

MAX_PAIRS = 8
_PROBE_LIMIT_S = 60.0
_GROUP_LIMIT_S = 180.0
_GATHER_LIMIT_S = 120.0
_OTHERS_LIMIT_S = 300.0
"""Ranks other than 0 wait longer: rank 0 is to name the rank that hangs, and to end the job."""
_GROUP_TIMEOUT_S = 20.0
_SEEN_S = 15.0
_SHARDS = 3
_TRANSPORT_VARIABLES = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "UCX_", "FI_PROVIDER")


def examine(
    world: World,
    own: Facts,
    launched: LaunchEnvironment,
    target: Path,
    variables: Mapping[str, str],
    report: Report,
    *,
    cuda: bool = False,
    end: Callable[[int], None] = abort_job,
) -> int:
    """Examine the machine with all ranks (collective); returns rank 0's exit code, on all.

    Args:
        world: all ranks.
        own: this rank's facts; those of MPI's start are known.
        launched: by which launcher.
        target: folder that runs would be written to, or a run folder.
        variables: the environment as the user set it.
        report: rows of rank 0.
        cuda: whether learners must have GPUs.
        end: ends the job with an exit code; called where a probe does not end.
    """
    hosts: list[str] = []
    folder = next(path for path in (target, *target.parents) if path.is_dir()).resolve()
    scratch = temporary_beside(folder / "doctor")
    is_first = world.rank == 0

    def say(line: str) -> None:
        sys.stderr.write(f"hpcdi doctor: rank {world.rank} ({world.host}): {line}\n")
        sys.stderr.flush()

    def give_up(name: str, waits_for: str) -> None:
        said = f"did not end in time, waiting for {waits_for}"
        if is_first:
            advice = "look at that rank's host; what the ranks say themselves is above"
            report.add(name, Finding(FAIL, said, advice))
            report.finish()
            shutil.rmtree(scratch, ignore_errors=True)
        say(f"{name!r} {said}. Ending the job")
        end(EXIT_FAILED)

    watch = Watch(Patience(), say, give_up)

    def names(ranks: list[int]) -> str:
        return ranks_text(ranks, hosts)

    gather: Any = partial(gather_with_timeout, world.comm.Dup(), watch, names)

    def meet(known: list[Facts]) -> tuple[list[str], list[int], Path | None]:
        """Rank 0: who there is, and where the others look for its files."""
        hosts[:] = [one.host for one in known]
        report.add("launcher", checks.check_launcher(known, launched))
        return hosts, checks.nccl_members(known), None if "folder" in own.errors else scratch

    def judge(known: list[Facts]) -> int:
        shutil.rmtree(scratch, ignore_errors=True)
        for name, finding in checks.findings(known, checks.learners_of(target), cuda=cuda):
            report.add(name, finding)
        return int(report.finish())

    with closing(watch):
        try:
            probes = Probes(world, own, variables, watch)
            probes.run("gpus", lambda: facts.gpus(variables), "the import of torch")
            if is_first:
                probes.run("folder", lambda: _folder(folder, scratch))
            watch.begin("launcher", probes.limit_s(_GATHER_LIMIT_S))
            hosts[:], nccl, shared = gather(own, meet)
            probes.run_all(hosts, nccl, shared)
            watch.begin("facts", probes.limit_s(_GATHER_LIMIT_S))
            return int(gather(own, judge))
        finally:
            if is_first:
                shutil.rmtree(scratch, ignore_errors=True)


class Probes:
    """One rank's probes, in the order that all ranks keep: some wait for another rank's.

    Args:
        world: all ranks.
        own: this rank's facts, which the probes fill in.
        variables: the environment as the user set it.
        watch: ends a probe that hangs.
    """

    def __init__(
        self, world: World, own: Facts, variables: Mapping[str, str], watch: Watch
    ) -> None:
        self._world, self._own, self._variables, self._watch = world, own, variables, watch
        self._leaders: list[int] = []
        self._is_one_host = True

    def limit_s(self, limit_s: float) -> float:
        """Returns the limit of a step on this rank."""
        return limit_s if self._world.rank == 0 else _OTHERS_LIMIT_S

    def run(
        self, name: str, make: Callable[[], Mapping[str, Any]], waits_for: str = "this rank's own "
        "part", limit_s: float = _PROBE_LIMIT_S,
    ) -> None:  # fmt: skip
        """Run a probe; its facts are set, or else its error is."""
        self._watch.begin(name, self.limit_s(limit_s), waits_for)
        found, error = attempt(make)
        if error:
            self._own.errors[name] = error
        for field, value in (found or {}).items():
            setattr(self._own, field, value)

    def run_all(self, hosts: Sequence[str], nccl: Sequence[int], scratch: Path | None) -> None:
        """Run the probes that need to know who there is, and all others.

        Args:
            hosts: of every rank.
            nccl: ranks of the NCCL test.
            scratch: rank 0's folder for files of probes; None: it cannot write.
        """
        others = [ranks[0] for host, ranks in ranks_of(hosts).items() if host != hosts[0]]
        self._is_one_host = not others
        self._leaders = others or list(range(1, self._world.size))[:1]
        is_leader = self._world.rank in self._leaders
        if scratch is not None and self._world.rank == 0:
            self.run("disk", lambda: self._disk(scratch), "the file system")
        elif scratch is not None and is_leader:
            list(scratch.iterdir())  # so that its cache knows the folder without the shards
        self.run("software", facts.software)
        self.run("rank death", lambda: {"ulfm": probe.fault_tolerance()})
        self.run("transport", self._transport)
        self.run("cores", lambda: facts.cores(self._variables))
        self.run("memory", facts.memory)
        self.run("limits", facts.limits)
        self.run("packages", facts.packages)
        self.run("messages", self._links)
        self.run("clocks", self._clocks)
        pairs = [(0, rank) for rank in dict.fromkeys([1, *self._leaders[:1]])]
        pairs = pairs if self._world.size > 1 else []
        groups = [tuple(nccl)] if nccl else []
        self.run("gloo", lambda: {"gloo": self._reduced("gloo", pairs)}, "", _GROUP_LIMIT_S)
        self.run("nccl", lambda: {"nccl": self._reduced("nccl", groups)}, "", _GROUP_LIMIT_S)
        if scratch is not None and is_leader:
            self.run("sharing", lambda: self._sharing(scratch), f"shards in {scratch}")

    def _transport(self) -> dict[str, Any]:
        given = {k: v for k, v in self._variables.items() if k.startswith(_TRANSPORT_VARIABLES)}
        return {"transport_variables": given}

    def _links(self) -> dict[str, Any]:
        return {"links": self._with_rank_0(self._leaders[:MAX_PAIRS], probe.measure_link)}

    def _clocks(self) -> dict[str, Any]:
        partners = [] if self._is_one_host else self._leaders
        return {"offsets_s": self._with_rank_0(partners, probe.clock_offset)}

    def _with_rank_0(
        self, partners: Sequence[int], measure: Callable[[Any, int], Any]
    ) -> list[Any]:
        """Rank 0 measures with each partner in turn, and returns the results; others: none."""
        if self._world.rank == 0:
            results = []
            for partner in partners:
                self._watch.wait_for(f"rank {partner}")
                results.append(measure(self._world.comm, partner))
            return results
        if self._world.rank in partners:
            self._watch.wait_for("rank 0")
            measure(self._world.comm, 0)
        return []

    def _reduced(self, backend: str, groups: Sequence[Sequence[int]]) -> list[Any]:
        """Returns the results of the groups that this rank is in."""
        return [
            probe.reduce_together(
                self._world.comm, ranks, backend, _GROUP_TIMEOUT_S, self._watch.wait_for
            )
            for ranks in groups
            if self._world.rank in ranks
        ]

    def _disk(self, scratch: Path) -> dict[str, float]:
        sync_s, times = store_probe.sync_s(scratch), []
        for number in range(_SHARDS):
            start = time.perf_counter()
            store_probe.write_probe(scratch, number)
            times.append(time.perf_counter() - start)
        return {"sync_s": sync_s, "shard_s": float(np.median(times))}

    def _sharing(self, scratch: Path) -> dict[str, float]:
        limits_s = [_SEEN_S] + [_SEEN_S / _SHARDS] * (_SHARDS - 1)
        seen = [store_probe.await_probe(scratch, n, limit) for n, limit in enumerate(limits_s)]
        return {"seen_s": max(seen)}


def _folder(folder: Path, scratch: Path) -> dict[str, Any]:
    """Returns ``folder``; makes the folder for files of probes."""
    try:
        scratch.mkdir()
    except OSError as error:
        raise StoreError(folder, f"cannot be written: {error.strerror}") from error
    return {"folder": facts.folder_facts(folder, scratch)}
