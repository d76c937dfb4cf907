"""What the controller of a `solver_job` does: stands in for a collector."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.comm import solver_group
from hpcdi.comm.doorbell import Doorbell
from hpcdi.comm.failure import ranks_may_die
from hpcdi.comm.solver_protocol import Sizes, SolverPlace
from hpcdi.env.base import EnvFacts, EnvFailure
from hpcdi.env.mpi.pool import CoupledGroup
from hpcdi.env.mpi.python_solver import find_class
from hpcdi.env.mpi.solvers import Solver, SolverLimits, wait
from hpcdi.errors import CommError


class Controller:
    """Has the environments of a job; its public methods are what a SPEC can ask for."""

    def __init__(
        self, places: list[SolverPlace], sizes: Sizes, folder: Path, spec: dict[str, Any]
    ) -> None:
        self._spec, self._folder, self._sizes = spec, folder, sizes
        self._bell = None if spec.get("naps") else Doorbell()
        self._spares = [place for place in places if place.assigner is not None]
        limits = SolverLimits(**spec.get("limits", {}))
        self.solvers = [
            Solver(
                self._group(place), limits, folder_of=lambda group: self._folder_of[group],
                next_group=self._next_group, states=spec.get("states", ()),
                may_die=ranks_may_die(), bell=self._bell,
            )
            for place in places if place.assigner is None
        ]  # fmt: skip

    def _group(self, place: SolverPlace, folder: int | None = None) -> Any:
        group: Any = solver_group.SolverGroup(
            place, self._sizes, self._bell, is_coupled="coupling" in self._spec
        )
        if "coupling" in self._spec:
            found = find_class(self._spec["coupling"])
            facts = EnvFacts(found.observation_space, found.action_space)
            group = CoupledGroup(group, found(), facts)
        number = place.environment if folder is None else folder
        self._folder_of = {**getattr(self, "_folder_of", {}), group: self._folder / f"env{number}"}
        return group

    def _next_group(self) -> Any:
        if not self._spares:
            return None
        spare = self._spares.pop(0)
        lost = next(n for n, s in enumerate(self.solvers) if s.is_lost)
        return self._group(solver_group.assign(spare, lost, 0), spare.environment)

    def close(self) -> None:
        """Let all programs end, and this process."""
        for spare in self._spares:
            solver_group.dismiss(spare)
        for solver in self.solvers:
            solver.group.release()

    # ---- what it can be asked for

    def steps(self) -> dict[str, Any]:
        """Step all environments together."""
        began = time.monotonic()
        for number, solver in enumerate(self.solvers):
            solver.ask_reset(100 + number)
        firsts = [solver.answer() for solver in self.solvers]
        begun_s = time.monotonic() - began
        seen, times = [[first.observation.tolist()] for first in firsts], []
        rewards: list[list[float]] = [[] for _ in firsts]
        for step in range(self._spec["steps"]):
            then = time.perf_counter()
            for number, solver in enumerate(self.solvers):
                solver.ask_step(np.array([step, number], float), 1000 + step)
            wait(self.solvers, len(self.solvers), self._bell)
            answers = [solver.answer() for solver in self.solvers]
            times.append(time.perf_counter() - then)
            for number, answer in enumerate(answers):
                seen[number].append(answer.observation.tolist())
                rewards[number].append(answer.reward)
                if answer.first is not None:
                    seen[number].append(answer.first.tolist())
        return {
            "seen": seen, "rewards": rewards, "begun_s": begun_s,
            "p50_us": 1e6 * float(np.median(times)), "numbers": answers[0].numbers,
        }  # fmt: skip

    def faults(self) -> dict[str, Any]:
        """Step all environments; the SPEC's fault, or their own arguments, have some of them fail.

        Those have spare ranks then, as long as there are any.
        """
        failures, done = [], [0] * len(self.solvers)
        for number, solver in enumerate(self.solvers):
            solver.ask_reset(number)
        for solver in self.solvers:
            solver.answer()
        for step in range(self._spec["steps"]):
            self._strike(step)
            live = [number for number, solver in enumerate(self.solvers) if not solver.is_lost]
            asked_s = time.monotonic()
            for number in live:
                self.solvers[number].ask_step(np.resize([1.0, 0.0], self._sizes.actions), step)
            for number in live:
                try:
                    answer = self.solvers[number].answer()
                    done[number] += 1
                    if not np.isfinite(answer.observation).all():
                        failures.append([number, "NaN", time.monotonic() - asked_s, ""])
                except (EnvFailure, CommError) as failure:
                    cause, detail = getattr(failure, "cause", str(failure)), str(failure)
                    detail = getattr(failure, "detail", detail)
                    failures.append([number, cause, time.monotonic() - asked_s, detail])
        again = [self._again(n) for n, solver in enumerate(self.solvers) if solver.is_lost]
        return {"failures": failures, "done": done, "again": again}

    def _strike(self, step: int) -> None:
        for fault in self._spec.get("faults", ()):
            if step == fault["at"]:
                peers = list(self.solvers[fault["environment"]].group.peers.values())
                os.kill(peers[fault["rank"]].pid, fault["signal"])

    def _again(self, number: int) -> Any:
        """Returns a first observation on spare ranks, or why there is none."""
        try:
            self.solvers[number].begin()
            self.solvers[number].ask_reset(1000)
            return self.solvers[number].answer().observation.tolist()
        except (EnvFailure, CommError) as failure:
            return str(failure)

    def ends(self) -> dict[str, Any]:
        """Let unmodified programs run to their ends."""
        reasons = []
        for solver in self.solvers:
            solver.ask_reset(0)
        for solver in self.solvers:
            try:
                solver.answer()
                reasons.append("it answers")
            except EnvFailure as failure:
                reasons.append(failure.cause)
            except CommError as error:
                reasons.append(str(error).partition("\n")[0])
        return {"reasons": reasons}
