"""`hpcdi sweep`: one experiment with several settings, each a run of its own.

Owns: the commands (`commands`), the sweep's folder and manifest (`folder`), its runs on this
machine (`local`) or as an array job (`array`), and what has become of them (`table`). May import:
the rest of `launch`. Why so: a sweep knows runs by their folders alone, as people do.
"""

from hpcdi.commands.sweep.commands import main

__all__ = ["main"]
