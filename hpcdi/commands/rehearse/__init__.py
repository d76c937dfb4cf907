"""`hpcdi rehearse`: plays an experiment's environments, and says what a run would meet.

Owns: the command (`command`), what is measured (`facts`): of one environment (`alone`, which is
`watched` from outside) and of all that a collector has (`as_a_run`), each in a process of its own
(`apart`) whose output is kept (`output`), and the checks that judge it (`checks`). May import:
`run` and below, and `doctor` for findings. Why so: an environment may exit, hang, print or take
signals without ending the rehearsal, and checks are pure functions of what was measured.
"""

from hpcdi.commands.rehearse.command import main

__all__ = ["main"]
