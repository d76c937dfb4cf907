"""`hpcdi rehearse`: plays an experiment's environments, and says what a run would meet.

Owns: the command (`command`), what is measured (`facts`): of one environment (`alone`) and of all
that a collector has (`as_a_run`), each in a process of its own whose output is kept (`apart`), and
the checks that judge it (`checks`). May import: `run` and below, and other commands. Why so: an
environment may exit, hang, print or take signals without ending the rehearsal, and checks are pure
functions of what was measured.
"""

from hpcdi.commands.rehearse.command import main

__all__ = ["main"]
