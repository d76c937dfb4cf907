"""`hpcdi doctor`: checks whether this machine and its MPI are fit for a run.

Owns: the command (`command`), the facts that every rank measures (`facts`), the checks that judge
them on rank 0 (`checks`), and the examination over ranks with its report (`examine`). May import:
`run`, `comm`, `store` and below. Why so: a check is a pure function of the facts of all ranks,
so that clusters with known faults are tests.
"""

from hpcdi.commands.doctor.command import main

__all__ = ["main"]
