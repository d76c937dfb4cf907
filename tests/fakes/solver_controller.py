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
from hpcdi.env.base import EnvFailure
from hpcdi.env.mpi.solvers import Limits, Solver, wait
from hpcdi.errors import EnvError


class Controller:
    """Has the environments of a job; its public methods are what a SPEC can ask for."""

    def __init__(
        self, places: list[SolverPlace], sizes: Sizes, folder: Path, spec: dict[str, Any]
    ) -> None:
        self._spec, self._folder, self._sizes = spec, folder, sizes
        self._bell = None if spec.get("naps") else Doorbell()
        self._spares = [place for place in places if place.assigner is not None]
        limits = Limits(**spec.get("limits", {}))
        self.solvers = [
            Solver(
                self._group(place), limits, folder_of=lambda group: self._folder_of[group],
                next_group=self._next_group, states=spec.get("states", ()),
                may_die=ranks_may_die(), bell=self._bell,
            )
            for place in places if place.assigner is None
        ]  # fmt: skip

    def _group(self, place: SolverPlace, folder: int | None = None) -> Any:
        group = solver_group.SolverGroup(place, self._sizes, self._bell)
        number = place.environment if folder is None else folder
        self._folder_of = {**getattr(self, "_folder_of", {}), group: self._folder / f"env{number}"}
        return group

    def _next_group(self) -> Any:
        if not self._spares:
            return None
        spare = self._spares.pop(0)
        lost = next(n for n, s in enumerate(self.solvers) if s._is_lost)
        return self._group(solver_group.assign(spare, lost, 0), spare.environment)

    def close(self) -> None:
        """Let all programs end, and this process."""
        for spare in self._spares:
            solver_group.dismiss(spare)
        for solver in self.solvers:
            solver.close()

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
        """Step all environments; one of them fails, of itself or by what the SPEC's fault says.

        Then it has spare ranks, if there are any, and goes on.
        """
        fault, failures, seen = self._spec.get("fault", {}), [], []
        done = [0] * len(self.solvers)
        for number, solver in enumerate(self.solvers):
            solver.ask_reset(number)
        for solver in self.solvers:
            solver.answer()
        struck_s = time.monotonic()
        for step in range(self._spec["steps"]):
            live = [n for n, s in enumerate(self.solvers) if not s._is_lost]
            if step == fault.get("at"):
                peers = list(self.solvers[fault["environment"]].group.peers.values())
                os.kill(peers[fault["rank"]].pid, fault["signal"])
            for number in live:
                self.solvers[number].ask_step(np.array([1.0, 0.0]), step)
            asked_s = time.monotonic()
            if not failures:
                struck_s = asked_s
            for number in live:
                solver = self.solvers[number]
                try:
                    answer = solver.answer()
                    done[number] += 1
                    if not np.isfinite(answer.observation).all():
                        failures.append([number, "NaN", time.monotonic() - struck_s, ""])
                        solver.ask_reset(step)
                        solver.answer()
                except (EnvFailure, EnvError) as failure:
                    cause = getattr(failure, "cause", str(failure))
                    detail = getattr(failure, "detail", "")
                    failures.append([number, cause, time.monotonic() - struck_s, detail])
                    try:
                        solver.begin()
                        solver.ask_reset(step)
                        seen = solver.answer().observation.tolist()
                    except (EnvFailure, EnvError) as error:
                        failures.append([number, str(error), time.monotonic() - struck_s, ""])
        return {"failures": failures, "done": done, "again": seen}

    def feedback(self) -> dict[str, Any]:
        """Episodes with actions of minus the observation, times the SPEC's gain; their returns."""
        gain, size = self._spec["gain"], self._sizes.actions
        returns, times = [], []
        for episode in range(self._spec["episodes"]):
            for number, solver in enumerate(self.solvers):
                solver.ask_reset(1000 * episode + number)
            seen = [solver.answer().observation for solver in self.solvers]
            totals, over, infos = [0.0] * len(seen), False, []
            while not over:
                then = time.perf_counter()
                for solver, observation in zip(self.solvers, seen, strict=True):
                    solver.ask_step(-gain * observation[:size])
                answers = [solver.answer() for solver in self.solvers]
                times.append(time.perf_counter() - then)
                seen = [answer.observation for answer in answers]
                infos.append(answers[0].numbers)
                totals = [t + a.reward for t, a in zip(totals, answers, strict=True)]
                over = answers[0].truncated or answers[0].terminated
            returns.append(totals)
        return {"returns": returns, "step_ms": 1e3 * float(np.mean(times)), "infos": infos[-3:]}

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
            except EnvError as error:
                reasons.append(str(error).partition("\n")[0])
        return {"reasons": reasons}
