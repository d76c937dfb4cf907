"""`hpcdi report`: runs as one HTML file that opens without a network.

Owns: the command (`command`), what is read of each run and which runs are one group (`runs`),
figures over seeds (`statistics`), line charts as SVG (`charts`), and the page (`page`). May import:
other commands, `run`, `store` and below. Why so: reading, statistics and drawing are pure functions
of run folders, so that a report can be made anywhere, at any time, also of a run that is still on:
of its job the queue is asked, where there is one.
"""

from hpcdi.commands.report.command import main

__all__ = ["main"]
