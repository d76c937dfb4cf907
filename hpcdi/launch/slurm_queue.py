"""What Slurm says of a job, from where its commands are: `scontrol`, `squeue`, `sacct`.

Each is asked only where it is there, and for a few seconds at most. Without accounting `sacct` says
nothing; `scontrol` knows a job until some minutes after its end (MinJobAge), the run folder says
the rest.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

LIMIT_S = 10.0
GONE = "UNKNOWN"
"""State of a job that Slurm does not know (any more)."""

_IS_ON = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_WAITS = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING"}
)
_JOB_ID = re.compile(r"\d+(?:_\d+)?")


@dataclass(frozen=True)
class QueueJob:
    """A job as the queue sees it.

    Attributes:
        job_id: its number, of an array's element ``12_3``.
        state: Slurm's word, such as "PENDING", "RUNNING", "TIMEOUT"; `GONE`.
        reason: why it waits or has ended, in Slurm's words.
        nodes: where it runs, as Slurm spells it.
        ends_at: when its time is over, in seconds since the epoch; None: nobody says.
        restarts: how often Slurm has started it again.
        output: file that it prints to.
        folder: where it was submitted.
    """

    job_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    ends_at: float | None = None
    restarts: int = 0
    output: str = ""
    folder: str = ""

    @property
    def is_on(self) -> bool:
        """Whether its processes may be there."""
        return self.state in _IS_ON

    @property
    def waits(self) -> bool:
        """Whether it is yet to start, or to start again."""
        return self.state in _WAITS


def is_job_id(text: str) -> bool:
    """Whether a text is a job's number."""
    return _JOB_ID.fullmatch(text) is not None


def ask(job_id: str) -> QueueJob | None:
    """What Slurm says of a job; None: there is no Slurm here, or it does not answer."""
    known, says = _run("scontrol", "--oneliner", "show", "job", job_id)
    if known and (job := parse_scontrol(job_id, says)) is not None:
        return job
    waits, listed = _run("squeue", "--noheader", "--jobs", job_id, "--format", "%T|%r|%N")
    if waits and listed.strip():
        state, reason, nodes = [*listed.splitlines()[0].split("|"), "", ""][:3]
        return QueueJob(job_id, state, _told(reason), nodes)
    kept, table = _run(
        "sacct", "--noheader", "--parsable2", "--allocations", "--jobs", job_id,
        "--format", "State,NodeList,WorkDir",
    )  # fmt: skip
    if kept and table.strip():
        state, nodes, folder = [*table.splitlines()[-1].split("|"), "", ""][:3]
        return QueueJob(job_id, state.split()[0], nodes=_told(nodes), folder=folder)
    is_unknown = "Invalid job id" in says or (not known and "Invalid job id" in listed)
    return QueueJob(job_id, GONE) if is_unknown or (waits and not listed.strip()) else None


def nobody(_job_id: str) -> QueueJob | None:
    """Instead of `ask`: the queue is left alone."""
    return None


def ask_all(job_ids: Iterable[str]) -> dict[str, QueueJob]:
    """What Slurm says of many jobs, by one question; nothing where it does not answer."""
    wanted = set(job_ids)
    if not wanted:
        return {}
    numbers = sorted({job_id.partition("_")[0] for job_id in wanted})
    answers, listed = _run(
        "squeue", "--noheader", "--array", "--states=all", "--jobs", ",".join(numbers),
        "--format", "%F_%K|%T|%r|%N",
    )  # fmt: skip
    if not answers and "Invalid job id" not in listed:
        return {}
    found = {job_id: QueueJob(job_id, GONE) for job_id in wanted}
    for line in listed.splitlines() if answers else ():
        name, state, reason, nodes = [*line.split("|"), "", "", ""][:4]
        job_id = name.removesuffix("_N/A")
        if job_id in found:
            found[job_id] = QueueJob(job_id, state, _told(reason), nodes)
    return found


def parse_scontrol(job_id: str, text: str) -> QueueJob | None:
    """A job from a line of ``scontrol --oneliner show job``; None where it is none."""
    line = next((line for line in text.splitlines() if "JobState=" in line), "")
    found = re.split(r"(?:^|\s+)([A-Za-z][\w:/]*)=", line)
    facts = dict(zip(found[1::2], found[2::2], strict=True))
    if "JobState" not in facts:
        return None
    return QueueJob(
        job_id,
        facts["JobState"],
        _told(facts.get("Reason", "")),
        _told(facts.get("NodeList", "")),
        _seconds(facts.get("EndTime", "")),
        int(facts.get("Restarts", "0") or 0),
        facts.get("StdOut", ""),
        facts.get("WorkDir", ""),
    )


def _run(*command: str) -> tuple[bool, str]:
    """Whether a command has succeeded, and what it said; where it is not there, nothing."""
    program = shutil.which(command[0])
    if program is None:
        return False, ""
    try:
        done = subprocess.run(  # noqa: S603 (Slurm's own commands, with a number)
            [program, *command[1:]],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr


def _told(text: str) -> str:
    """A field that says something."""
    return "" if text in ("None", "(null)", "Unknown", "None assigned") else text


def _seconds(text: str) -> float | None:
    """A time as Slurm spells it (of this host's zone) in seconds since the epoch."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
