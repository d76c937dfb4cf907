"""How a run begins: what rank 0 tells all ranks first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdi.comm.codec import sendable
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_DONE
from hpcdi.run.job_end import JobEnd
from hpcdi.run.placement import Place, RankPlace

for _part_of_messages in (Place, RankPlace):
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
        limit: see `ends_at`, as a plain number.
        is_of_job: whether it is a `JobEnd`.
        error: why the run does not begin.
        exit_code: exit code of rank 0 in that case.
    """

    experiment: Mapping[str, Any]
    run_dir: str
    placement: tuple[RankPlace, ...]
    restarts: int = 0
    limit: float = float("inf")
    is_of_job: bool = False
    error: str = ""
    exit_code: int = EXIT_DONE

    @property
    def ends_at(self) -> float:
        """When the time limit ends the job, in seconds since the epoch, see `Deadline`."""
        return JobEnd(self.limit) if self.is_of_job else self.limit
