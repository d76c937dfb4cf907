"""`hpcdi doctor`: whether this machine and its MPI are fit for a run.

Owns: the command (`command`), which all ranks run (`rounds`) check by check (`checks`): each gives
`facts`, and rank 0 judges them (`host`, `world`, `files`, `quota`) and says what it found
(`report`). May import: the rest of `launch`, `comm` and `store`. Why so: a judge is a pure function
of facts, so that clusters with known faults are tests.
"""

from hpcdi.commands.doctor.command import main

__all__ = ["main"]
