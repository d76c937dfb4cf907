"""When the batch job ends: Slurm 23.02 and its scripts export it; else the batch system is asked.

PBS and LSF have been tried with stand-ins for their commands only, no real PBS or LSF.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping

from hpcdi.dataclass import dataclass
from hpcdi.run import slurm_queue
from hpcdi.run.environment import allocation, own_job
from hpcdi.utils.answers import answer_of
from hpcdi.utils.threads import BackgroundThread

END_VARIABLE = "SLURM_JOB_END_TIME"
_ASK_S = 60.0
"""So long before an end matters the queue is asked whether it still holds; then once more."""
_ANSWER_S = 15.0
"""So long the answer is waited for where it matters already, as after a suspension."""
_MOVED_S = 60.0
"""An answer that differs by less moves no end: LSF says whole minutes."""
_UNITS_S = (1, 60, 3600, 86400)


@dataclass(frozen=True)
class EndTime:
    """When something has to have ended.

    Attributes:
        at: in seconds since the epoch; infinite: never.
        may_move: it is a batch job's end, which the queue may move.
    """

    at: float = math.inf
    may_move: bool = False


class Deadline:
    """An end that comes near, by a clock that does not go back.

    Where it may move it counts only when the queue has said so again, on another thread: a user may
    have prolonged the job, and Slurm adds the time for which it was suspended.
    """

    def __init__(self, end: EndTime) -> None:
        self._ends, self._may_move = _monotonic(end.at), end.may_move
        self._asked: float | None = None
        self._said: float | None = None
        self._asks_last = False

    @property
    def left_s(self) -> float:
        """Seconds until then; negative once it has passed."""
        return self._ends - time.monotonic()

    @property
    def ends_at(self) -> float:
        """The end in seconds since the epoch, as far as it is known now."""
        return time.time() + self.left_s

    def is_near(self, margin_s: float) -> bool:
        """Returns whether less than `margin_s` is left; call often, from one thread.

        Once it is, the end no longer moves.
        """
        left_s = self.left_s
        if not self._may_move or left_s > margin_s + _ASK_S:
            return left_s <= margin_s
        is_last = left_s <= margin_s
        if self._asked is None or (is_last and not self._asks_last):
            self._asked, self._said, self._asks_last = time.monotonic(), None, is_last
            BackgroundThread(self._ask, "hpcdi-job-end")
        if self._said is not None and _has_moved(self._ends, self._said):
            self._ends, self._asked, self._said = self._said, None, None
            self._asks_last = False
            return False
        is_known = self._said is not None or time.monotonic() - self._asked > _ANSWER_S
        self._may_move = not (is_last and is_known)
        return not self._may_move

    def _ask(self) -> None:
        self._said = _monotonic(asked_end(os.environ, time.time()))


def _has_moved(end: float, said: float) -> bool:
    """Decides whether the queue, which has been asked again, has moved an end to a later time."""
    return end + _MOVED_S < said < math.inf


def _monotonic(end: float) -> float:
    """Returns a time in seconds since the epoch as one of `time.monotonic`."""
    return time.monotonic() + (end - time.time())


def job_end(variables: Mapping[str, str], now: float) -> EndTime:
    """Returns the end of this process's batch job, as it was at its start; never if unknown.

    Args:
        variables: environment variables.
        now: seconds since the epoch.
    """
    end = variables.get(END_VARIABLE, "")
    is_known = end.isdigit() and int(end) > now  # else the job was prolonged, or its shell lives on
    return EndTime(float(end) if is_known else asked_end(variables, now), may_move=True)


def ends_within(seconds: float) -> bool:
    """Returns whether this process's batch job ends that soon; waits for the queue's answer."""
    now = time.time()
    end = job_end(os.environ, now).at
    if end - now >= seconds:
        return False
    said = asked_end(os.environ, now)
    return not _has_moved(end, said) or said - now < seconds


def asked_end(variables: Mapping[str, str], now: float) -> float:
    """Returns that end as the batch system says it now; infinite if it does not say any.

    Args:
        variables: environment variables.
        now: seconds since the epoch.
    """
    job = allocation(own_job(variables))
    if job is not None and job.scheduler == "slurm":
        known = slurm_queue.ask(job.job)
        if known is not None and known.is_on and known.ends_at is not None:  # its shell may live on
            return known.ends_at
    if job is not None and job.scheduler == "pbs":
        return pbs_end(answer_of("qstat", "-f", job.job).out, now)
    if job is not None and job.scheduler == "lsf":
        return now + lsf_left_s(answer_of("bjobs", "-noheader", "-o", "time_left", job.job).out)
    return math.inf


def pbs_end(said: str, now: float) -> float:
    """Returns the end of a job by what `qstat -f` says of it, of OpenPBS or Torque."""
    fields = dict(re.findall(r"^\s*([\w.]+) = (.*?)\s*$", said, re.MULTILINE))
    limit_s = _duration_s(fields.get("Resource_List.walltime", ""))
    try:
        began = fields.get("stime") or fields["start_time"]  # OpenPBS; Torque
        return time.mktime(time.strptime(began, "%a %b %d %H:%M:%S %Y")) + limit_s
    except (KeyError, ValueError, OverflowError):
        used_s = _duration_s(fields.get("resources_used.walltime", "0"))
        return now + limit_s - used_s if math.isfinite(used_s) else math.inf


def lsf_left_s(said: str) -> float:
    """Returns the seconds that are left to a job by `bjobs -o time_left`, such as ``1:05 L``.

    ``E`` in the place of ``L`` is an estimate of the user's, which ends nothing.
    """
    match = re.fullmatch(r"\s*(\d+):(\d+)(?::(\d+))?\s*([LX]?)\s*", said)
    if match is None:
        return math.inf
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    return float(hours * 3600 + minutes * 60 + seconds)


def _duration_s(text: str) -> float:
    """Returns a duration as PBS spells it, ``[[days:]hours:]minutes:seconds``, or in seconds."""
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) > len(_UNITS_S):
        return math.inf
    return float(
        sum(int(part) * unit for part, unit in zip(reversed(parts), _UNITS_S, strict=False))
    )
