"""All ranks go through the checks together: each gives facts, rank 0 judges, all go on."""

from __future__ import annotations

import contextlib
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hpcdi.comm.failure import abort_job
from hpcdi.comm.muster import Muster
from hpcdi.comm.plain import sendable
from hpcdi.comm.probe_facts import Begun
from hpcdi.comm.world import World
from hpcdi.commands.doctor.checks import CHECKS, Check, Ground
from hpcdi.commands.doctor.facts import Gpus, gpus
from hpcdi.commands.doctor.files import Place, place_of
from hpcdi.commands.doctor.report import FAIL, Finding, ranks_text
from hpcdi.commands.doctor.world import judge_launcher, nccl_members
from hpcdi.errors import EXIT_FAILED, HpcdiError
from hpcdi.launch.environment import LaunchEnvironment
from hpcdi.utils.watch import Patience, Watch

LAUNCHER = "launcher"
_HELLO_LIMIT_S = 120.0


class Shown(Protocol):
    """Where rank 0 puts rows."""

    def add(self, name: str, finding: Finding) -> None:
        """Take a row."""

    def finish(self) -> int:
        """Give the verdict and the exit code."""


@sendable
@dataclass(frozen=True)
class Given:
    """A rank's facts for a check, or the error that kept it from having them."""

    facts: Any = None
    error: str = ""


class Rounds:
    """The rounds of one rank.

    Args:
        world: all ranks.
        begun: how MPI has started.
        report: rows; only rank 0 adds any.
        patience: how long is long.
        end: ends the job with an exit code; called where a round does not end.
    """

    def __init__(
        self,
        world: World,
        begun: Begun,
        report: Shown,
        patience: Patience = Patience(),  # noqa: B008 (frozen)
        end: Callable[[int], None] = abort_job,
    ) -> None:
        self._world, self._begun, self._report, self._end = world, begun, report, end
        self._hosts: Sequence[str] = ()
        self._scratch: Path | None = None
        is_patient = world.rank > 0
        self._watch = Watch(patience, self._say, self._overdue, is_patient=is_patient)
        self._muster = Muster(world.comm, self._watch, lambda r: ranks_text(r, self._hosts))

    def run(
        self,
        launched: LaunchEnvironment,
        target: Path,
        cuda: bool,
        variables: Mapping[str, str],
        checks: Sequence[Check] = CHECKS,
    ) -> int:
        """Go through the checks; gives the exit code, the same on every rank.

        Args:
            launched: what the launcher has said.
            target: folder that runs would be written to, or a run folder.
            cuda: whether there must be CUDA devices.
            variables: the environment as the user has left it.
            checks: in this order.
        """
        with contextlib.closing(self._watch):
            try:
                ground = self._greet(launched, target, cuda, variables)
                failed: frozenset[str] = frozenset()
                for number, check in enumerate(checks):
                    if not any(later.needs for later in checks[number:]):
                        self._remove_scratch()  # soon: a killed job would leave it behind
                    if check.needs in failed or self._round(check, ground):
                        failed |= {check.name}
                self._watch.begin("verdict", _HELLO_LIMIT_S)
                return self._muster.gather(None, self._conclude)
            finally:
                self._remove_scratch()

    def _greet(
        self, launched: LaunchEnvironment, target: Path, cuda: bool, variables: Mapping[str, str]
    ) -> Ground:
        """Everybody learns who there is, and where to look."""
        self._watch.begin(LAUNCHER, _HELLO_LIMIT_S, "the import of torch")
        seen = _attempt(lambda: gpus(variables)).facts or Gpus()

        def answer(known: list[tuple[str, Gpus]]) -> tuple[list[str], list[int], Place]:
            hosts = [host for host, _ in known]
            self._report.add(LAUNCHER, judge_launcher(launched, len(hosts), hosts))
            return hosts, nccl_members([own for _, own in known], hosts), place_of(target, cuda)

        self._hosts, nccl, place = self._muster.gather((platform.node(), seen), answer)
        self._scratch = place.scratch if self._world.rank == 0 else None
        return Ground(
            self._world, self._begun, place, self._hosts, nccl, variables, self._watch.wait_for
        )

    def _round(self, check: Check, ground: Ground) -> bool:
        """One check; gives whether facts are missing."""
        self._watch.begin(check.name, check.limit_s, "this rank's own part")
        given = _attempt(lambda: check.collect(ground))

        def answer(known: list[Given]) -> bool:
            if errors := _errors(known, self._hosts):
                self._report.add(check.name, Finding(FAIL, errors, check.advice))
                return True
            for name, judge in check.judges.items():
                judged = _attempt(partial(judge, [own.facts for own in known], ground))
                failed = Finding(FAIL, f"could not be judged: {judged.error}")
                self._report.add(name, judged.facts or failed)
            return False

        return self._muster.gather(given, answer)

    def _conclude(self, _nothing: list[None]) -> int:
        """Verdict of rank 0. Once it is known, a rank may leave, and mpirun end all the others."""
        self._remove_scratch()
        return self._report.finish()

    def _say(self, line: str) -> None:
        who = ranks_text([self._world.rank]) + f" ({platform.node()})"
        sys.stderr.write(f"hpcdi doctor: {who}: {line}\n")
        sys.stderr.flush()

    def _overdue(self, name: str, waits_for: str) -> None:
        """A check has not ended: say which and for whom it waits, and end the job."""
        said = f"did not end in time, waiting for {waits_for}"
        if self._world.rank == 0:
            advice = "look at that rank's host; what the ranks say themselves is above"
            self._report.add(name, Finding(FAIL, said, advice))
            self._report.finish()
            self._remove_scratch()
        self._say(f"{name!r} {said}. Ending the job")
        self._end(EXIT_FAILED)

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _attempt(make: Callable[[], Any]) -> Given:
    """What a function gives, or its error: whatever that is, it is a row and not a traceback."""
    try:
        return Given(make())
    except Exception as error:
        text = " ".join(str(error).split())
        known = isinstance(error, HpcdiError)
        return Given(error=text if known else f"{type(error).__name__}: {text}")


def _errors(known: Sequence[Given], hosts: Sequence[str]) -> str:
    """Every distinct error, with the ranks that have it; empty where there is none."""
    ranks: dict[str, list[int]] = {}
    for rank, own in enumerate(known):
        if own.error:
            ranks.setdefault(own.error, []).append(rank)
    return "; ".join(f"{ranks_text(who, hosts)}: {error}" for error, who in ranks.items())
