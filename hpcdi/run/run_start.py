"""How a run begins: what rank 0 tells all ranks first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.comm.codec import sendable
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_DONE
from hpcdi.run.job_end import EndTime
from hpcdi.run.placement import Place, RankPlace

for _part_of_messages in (Place, RankPlace, EndTime):
    sendable(_part_of_messages)


@sendable
@dataclass(frozen=True)
class RunStart:
    """Rank 0's first message to every rank; all ranks end if `error` is not empty.

    Attributes:
        experiment: the checked experiment, as a mapping.
        run_dir: the run folder.
        placement: where each rank is, and what it does.
        restarts: how often the run has been resumed.
        ends_at: when the time limit ends the job.
        error: why the run does not begin.
        exit_code: exit code of rank 0 in that case.
    """

    experiment: Mapping[str, Any]
    run_dir: str
    placement: tuple[RankPlace, ...]
    restarts: int = 0
    ends_at: EndTime = EndTime()
    error: str = ""
    exit_code: int = EXIT_DONE
