"""What a command asks of a run: which experiment, where, and on how many ranks.

Imports nothing heavy: a rank reads its command line before it may load numpy.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

from hpcdi.dataclass import dataclass


@dataclass(frozen=True)
class RunRequest:
    """The command line of `hpcdi train` or `hpcdi serial`.

    Attributes:
        config: the experiment's file; None: that of the run folder.
        overrides: ``key=value``.
        run_dir: folder of a new run; None: one of its own.
        resume: folder of the run to resume; None: a new run.
        ranks: their number; None: what the experiment asks for.
        time_limit: see `hpcdi.run.signals.limit_of`; None: the job's.
    """

    config: str | None
    overrides: tuple[str, ...] = ()
    run_dir: str | None = None
    resume: str | None = None
    ranks: int | None = None
    time_limit: str | None = None

    def checksums(self, host: str, temporary: str = "") -> tuple[int, int]:
        """Returns two checksums of what is asked for, without the number of ranks.

        Two ranks ask for the same if either is the same: in the second, texts may have the name of
        the rank's host in them, also without its domain, or its folder for temporary files, as in
        ``/local/node1/experiment.yaml``.

        Args:
            host: on which the rank is.
            temporary: its TMPDIR; empty: it has none.
        """
        asked = own = repr(replace(self, ranks=None))
        for word in (temporary, host, host.partition(".")[0]):
            own = own.replace(word, "")
        return zlib.crc32(asked.encode()), zlib.crc32(own.encode())


@dataclass(frozen=True)
class Ended:
    """How a run, or its start, ended.

    Attributes:
        folder: the run folder.
        exit_code: of a command that does nothing else.
        error: what ended it, where it ran in this process and raised.
    """

    folder: Path
    exit_code: int
    error: BaseException | None = None
