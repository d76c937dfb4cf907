"""Jobs of the queue, by Slurm's commands `scontrol`, `squeue`, `sacct`, if they are installed.

Each has a few seconds to answer. Without accounting `sacct` says nothing; `scontrol` knows a job
until some minutes after its end (MinJobAge).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping

from hpcdi.dataclass import dataclass
from hpcdi.utils.answers import answer_of
from hpcdi.utils.host import count_in

GONE = "UNKNOWN"
"""State of a job that Slurm does not know, or no longer."""
NO_ANSWER = "NO_ANSWER"
"""State of a job for which Slurm was asked in vain: it may wait, run or have ended."""
NO_CLUSTER = ("configuration source", "DNS SRV lookup")
"""Messages of Slurm's commands where they are installed, but belong to no cluster."""

_PREFIXES = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCONTROL_", "SINFO_", "SRUN_", "SALLOC_")
_OF_THE_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
_CLUSTERS = "_CLUSTERS"
OF_THE_USER = ("ACCOUNT", "PARTITION", "QOS", "RESERVATION", "WCKEY")
"""Of the variables ``SBATCH_...``, those that say who submits and where, not what a job is."""

_IS_ON = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", NO_ANSWER}
)
_IS_HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESIZING"}) | _IS_HELD
_IN_ORDER = frozenset({"COMPLETED", "CANCELLED"})
_JOB_ID = re.compile(r"\d+(?:_\d+)?")
_STATE = re.compile(r"([A-Z_]+)( by .*)?")
"""A job's state; sacct also says by whom it was cancelled."""


@dataclass(frozen=True)
class QueueJob:
    """A job of the queue.

    Attributes:
        job_id: its number; of an array's element ``12_3``.
        state: of Slurm, such as "PENDING", "RUNNING", "TIMEOUT"; `GONE`, `NO_ANSWER`.
        reason: why it waits or has ended, by Slurm.
        nodes: node list, as Slurm spells it.
        ends_at: end of its time limit, in seconds since the epoch; None: unknown.
        restarts: number of requeues.
        output: its output file.
        folder: in which it was submitted.
        has_script: False of an interactive job, such as one of `salloc`.
        het_job: the heterogeneous job of which it is a component; empty: of none.
    """

    job_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    ends_at: float | None = None
    restarts: int = 0
    output: str = ""
    folder: str = ""
    has_script: bool = True
    het_job: str = ""

    @property
    def is_on(self) -> bool:
        """True if its processes may exist."""
        return self.state in _IS_ON

    @property
    def said(self) -> str:
        """Its state, for people."""
        if self.state == NO_ANSWER:
            return f"Slurm does not answer: job {self.job_id} may wait"
        return f"job {self.job_id} is {self.state}"

    @property
    def waits(self) -> bool:
        """True if it is pending, or requeued."""
        return self.state in _WAITS

    @property
    def is_held(self) -> bool:
        """True if it waits until somebody releases it, such as after launches that failed."""
        return self.state in _IS_HELD or (self.waits and "held" in self.reason.lower())

    @property
    def has_failed(self) -> bool:
        """True if it is known to have ended, other than in order or by `scancel`."""
        return not (self.is_on or self.waits) and self.state not in {*_IN_ORDER, GONE}


def names_cluster(name: str) -> bool:
    """Returns whether a variable says to Slurm's commands which cluster they ask."""
    return name in _OF_THE_CLUSTER or (name.startswith(_PREFIXES) and name.endswith(_CLUSTERS))


def is_foreign(name: str) -> bool:
    """Returns whether a variable of Slurm changes what its commands do, or is of another job.

    Variables that name the cluster, and the user's account or partition (`OF_THE_USER`), are not.
    """
    if not name.startswith(_PREFIXES) or names_cluster(name):
        return False
    return name not in {f"SBATCH_{known}" for known in OF_THE_USER}


def set_for_slurm(variables: Mapping[str, str]) -> list[str]:
    """Returns names of variables that `is_foreign`, but for those that Slurm gives a job."""
    names = sorted(filter(is_foreign, variables))
    if "SLURM_JOB_ID" not in variables:
        return names
    given = ("SLURM_", "SRUN_CPUS", "SRUN_DEBUG")
    return [name for name in names if not name.startswith(given) or name.endswith("_FORMAT")]


def slurm_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for Slurm's commands: without variables that `is_foreign`.

    With another job's variables sbatch fails (SLURM_MEM_PER_CPU beside --mem) or passes them on;
    SBATCH_TIMELIMIT beats a script's own; SLURM_TIME_FORMAT changes what a time looks like.
    """
    return {name: value for name, value in variables.items() if not is_foreign(name)}


def texts_of(value: object) -> dict[str, str]:
    """Returns Slurm's variables as a file has them; none where it is damaged."""
    items = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in items if isinstance(text, str)}


def is_job_id(text: str) -> bool:
    """Returns whether a text is a job id."""
    return _JOB_ID.fullmatch(text) is not None


def is_there() -> bool:
    """Returns whether a Slurm answers on this host."""
    return _run("scontrol", "ping")[0]


def ask(job_id: str) -> QueueJob | None:
    """Returns a job, of a whole array the task that is on, or else waits; None: no Slurm here."""
    is_known, says = _run("scontrol", "--oneliner", "show", "job", job_id)
    if is_known and (job := parse_scontrol(job_id, says)) is not None:
        return job
    waits, listed = _run("squeue", "--noheader", "--jobs", job_id, "--format", "%T|%r|%N")
    for row in _rows(listed, "State", "Reason", "NodeList", free="Reason") if waits else ():
        return QueueJob(job_id, row["State"], row["Reason"], row["NodeList"])
    is_recorded, table = _run(
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--jobs",
        job_id,
        "--format",
        "State,NodeList,WorkDir",
    )
    rows = _rows(table, "State", "NodeList", "WorkDir", free="WorkDir") if is_recorded else []
    for row in rows[-1:]:
        return QueueJob(job_id, row["State"], nodes=row["NodeList"], folder=row["WorkDir"])
    is_unknown = "Invalid job id" in says or (not is_known and "Invalid job id" in listed)
    if is_unknown or waits:
        return QueueJob(job_id, GONE)
    return QueueJob(job_id, NO_ANSWER) if _is_silent(f"{says} {listed}") else None


def _is_silent(says: str) -> bool:
    """Decides by what its commands have said whether there is a Slurm that does not answer."""
    is_installed = any(map(shutil.which, ("scontrol", "squeue")))
    return is_installed and not any(words in says for words in NO_CLUSTER)


def nobody(_job_id: str) -> QueueJob | None:
    """Returns None: in place of `ask` where the queue is not to be asked."""
    return None


def ask_all(job_ids: Iterable[str]) -> dict[str, QueueJob]:
    """Returns many jobs by one call of squeue; none if there is no Slurm here."""
    wanted = set(job_ids)
    if not wanted:
        return {}
    numbers = sorted({job_id.partition("_")[0] for job_id in wanted})
    answers, listed = _run(
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        "--jobs",
        ",".join(numbers),
        "--Format",
        "ArrayJobID:|,ArrayTaskID:|,State:|,Reason:255|,NodeList:255|,RestartCnt:|",
    )
    if not answers and "Invalid job id" not in listed:
        silent = _is_silent(listed)
        return {job_id: QueueJob(job_id, NO_ANSWER) for job_id in wanted} if silent else {}
    jobs = {job_id: QueueJob(job_id, GONE) for job_id in wanted}
    names = ("ArrayJobID", "ArrayTaskID", "State", "Reason", "NodeList", "RestartCnt", "end")
    for row in _rows(listed, *names, free="Reason") if answers else ():
        job_id = f"{row['ArrayJobID']}_{row['ArrayTaskID']}".removesuffix("_N/A")
        if job_id in jobs:
            restarts = count_in(row, "RestartCnt")
            jobs[job_id] = QueueJob(
                job_id, row["State"], row["Reason"], row["NodeList"], restarts=restarts
            )
    return jobs


def submitted_since(script: str, since: float) -> str:
    """Returns the number of the user's last job that runs a script; empty: none is queued.

    Args:
        script: its path, as sbatch got it.
        since: when it was submitted, at the earliest, in seconds since the epoch.
    """
    fields = "ArrayJobID:|,State:|,SubmitTime:|,RestartCnt:|,Command:4096"
    _, listed = _run("squeue", "--me", "--noheader", "--Format", fields)
    names = ("ArrayJobID", "State", "SubmitTime", "RestartCnt", "Command")
    return max(
        (
            row["ArrayJobID"]
            for row in _rows(listed, *names, free="Command")
            if row["Command"] == script
            and not count_in(row, "RestartCnt")  # a requeued job was submitted before
            and (_seconds(row["SubmitTime"]) or 0.0) >= since
        ),
        key=int,
        default="",
    )


def _rows(table: str, *names: str, free: str) -> list[dict[str, str]]:
    """Returns the jobs of a table, a line each, by the names of its fields.

    A site's commands may print more: a line without a state is none.

    Args:
        table: with ``|`` between fields; the last ones may be missing.
        names: of the fields, of which one is "State".
        free: the one that may have ``|`` in it.
    """
    rows, at = [], names.index(free)
    for line in table.splitlines():
        words = line.split("|")
        end = at + 1 + max(0, len(words) - len(names))
        fields = [*words[:at], "|".join(words[at:end]), *words[end:]]
        row = dict.fromkeys(names, "") | dict(zip(names, map(_known, fields), strict=False))
        state = _STATE.fullmatch(row["State"])
        if state is not None:
            rows.append({**row, "State": state[1]})
    return rows


def parse_scontrol(job_id: str, text: str) -> QueueJob | None:
    """Returns the job that ``scontrol --oneliner show job`` shows; None: there is none.

    Of an array, which has a line for each task, a task that is on, or else one that waits; so of a
    heterogeneous job, which has one for each component, and the nodes of all of them.
    """
    shown = [_fields_of(line) for line in text.splitlines() if " JobState=" in line]
    components = [_known(fields.get("NodeList", "")) for fields in shown if "HetJobId" in fields]
    jobs = [_job_of(job_id, fields, ",".join(filter(None, components))) for fields in shown]
    return max(jobs, key=lambda job: (job.is_on, job.waits), default=None)


def _fields_of(line: str) -> dict[str, str]:
    """Returns the fields of one line of scontrol."""
    words = re.split(r"(?:^|\s+)([A-Za-z][\w:/]*)=", line)
    return dict(zip(words[1::2], words[2::2], strict=True))


def _job_of(job_id: str, facts: Mapping[str, str], nodes: str) -> QueueJob:
    """Returns the job of one line of scontrol; of a heterogeneous one, `nodes` are all its own."""
    return QueueJob(
        job_id,
        facts["JobState"],
        _known(facts.get("Reason", "")),
        nodes or _known(facts.get("NodeList", "")),
        _seconds(facts.get("EndTime", "")),
        count_in(facts, "Restarts"),
        facts.get("StdOut", ""),
        facts.get("WorkDir", ""),
        facts.get("BatchFlag", "1") != "0",
        facts.get("HetJobId", ""),
    )


def _run(*command: str) -> tuple[bool, str]:
    """Returns whether a command of Slurm has succeeded, and its output, else its errors."""
    answer = answer_of(*command, variables=slurm_variables(os.environ))
    return answer.is_success, answer.out if answer.is_success else answer.errors


def _known(text: str) -> str:
    """Returns a field's value; empty if Slurm has none."""
    value = text.strip()
    return "" if value in ("None", "(null)", "Unknown", "None assigned") else value


def _seconds(text: str) -> float | None:
    """Returns a time as Slurm spells it (in this host's zone) in seconds since the epoch."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
