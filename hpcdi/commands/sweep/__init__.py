"""`hpcdi sweep`: several settings of one experiment, each a run of its own.

Owns: the command (`command`), the runs that settings make, in their folder (`runs`), the Slurm job
that does them (`on_slurm`), child processes that do (`here`), the table of what became of them
(`table`), searches (`trials`) and what a run is worth to them (`scores`), and population based
training: what is decided (`pbt`), and its way through files (`population`). May import: other
commands, `run`, `store` and below; from `roles` what writes snapshots. Why so: every run is an
ordinary one in a folder of its own, so that a sweep need only start runs and look at their folders.
"""

from hpcdi.commands.sweep.command import main

__all__ = ["main"]
