"""A job of solvers and a controller, which is rank 0: ``mpirun -n N python solver_job.py SPEC``.

SPEC is a JSON file: ``folder``; ``programs``, one for each environment: `Program`'s fields, and
``ranks``, how many, or ``spare`` and ``ranks``; ``do``, the name of a function below that the
controller runs. What that returns is written to ``result.json`` in the folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hpcdi.comm.solver_protocol import Sizes, SolverPlace
from hpcdi.env.mpi.launch import Program, become_solver
from hpcdi.run.environment import rank_of

SPARE_FROM = 1000
"""Environments' numbers of spare ranks until they are needed."""


def main() -> int:
    """Be a rank of the job."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    folder, rank = Path(spec["folder"]), int(rank_of(os.environ))
    places, programs = _places(spec)
    for place, program in zip(places, programs, strict=True):
        if rank in place.ranks:
            return become_solver(place, program, folder / f"env{place.environment}", rank)
    result = _control(spec, places, folder)
    (folder / "result.json").write_text(json.dumps(result))
    from hpcdi.comm.failure import leave_job

    return leave_job(0)


def _places(spec: dict[str, Any]) -> tuple[list[SolverPlace], list[Program]]:
    places, programs, at = [], [], 1
    for number, given in enumerate(spec["programs"]):
        ranks, is_spare = given.pop("ranks"), given.pop("spare", False)
        environment = SPARE_FROM + number if is_spare else number
        assigner = 0 if is_spare else None
        places.append(SolverPlace(environment, tuple(range(at, at + ranks)), 0, assigner))
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        programs.append(Program(**given))
        at += ranks
    return places, programs


def _control(spec: dict[str, Any], places: list[SolverPlace], folder: Path) -> Any:
    from fakes.solver_controller import Controller

    controller = Controller(places, Sizes(*spec.get("sizes", (-1, -1))), folder, spec)
    try:
        result = getattr(controller, spec["do"])()
    finally:
        controller.close()
    return {"at_s": time.time(), **result}


if __name__ == "__main__":
    sys.exit(main())
