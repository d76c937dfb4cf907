"""The text of sbatch scripts: pure functions of the resources and the run folder.

The scripts in ``slurm/`` have the same body, `SLURM_BODY`, below their own options and settings.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdi.config.schema import SlurmConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import LaunchError
from hpcdi.run.environment import OF_A_RANK, REFUSED, REFUSED_VARIABLE
from hpcdi.store.layout import RunLayout
from hpcdi.utils.metrics import counted

EXPERIMENT_FILE = "experiment.yaml"
MOST_IN_VAIN, IN_VAIN_S = 4, 10.0
"""Starts in a row in which no run begins, after which none follows (`_COUNT`, too); the pause
before the next one, where Python starts it."""
LEAST_TIME_LEFT_S = 120.0
"""With less time until the end of the job around it no run is started: none would come far."""
_INDEX = '$(printf %03d "$SLURM_ARRAY_TASK_ID")'
_RANKS = ("nodes", "ntasks-per-node")
_NUMBERS = ("cpus-per-task", "gpus-per-node")
_TEXTS = ("partition", "account", "qos", "constraint", "time", "mem")
_LONG = {"tasks-per-node": "ntasks-per-node"}
_OF_SIZE = (
    "contiguous", "core-spec", "cores-per-socket", "cpus-per-gpu", "exclusive", "extra-node-info",
    "gpu", "gres", "mem", "mincpus", "node", "ntasks", "sockets-per-node", "switches",
    "thread-spec", "tmp", "tres-per-task",
)  # fmt: skip
"""How options begin that say how much a job gets, or on which nodes."""
_SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint",
    "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile",
    "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses",
    "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "O": "overcommit",
    "o": "output", "p": "partition", "q": "qos", "S": "core-spec", "s": "oversubscribe",
    "t": "time", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip
"""Options of sbatch by their letters."""
_NOT_FOR_USERS = {
    "array": "its tasks would share a run folder. `hpcdi sweep CONFIG seed=0..3` has one for each",
    "wait": "sbatch would not say the job's number before its end. --wait waits for it",
    "wrap": "the job has its own script. slurm.setup (--setup) has commands before the run",
    "parsable": "it is given already",
}
"""Options of sbatch that hpcdi gives itself, or that change what sbatch takes and says."""


@dataclass(frozen=True)
class BatchJob:
    """A run as a batch job, or a sweep as an array job or packed into one.

    Attributes:
        name: of the job.
        folder: the run folder or the sweep's folder, absolute.
        slurm: resources; `ntasks_per_node` is at least 1, `mpi` is set.
        python: the interpreter.
        is_resumed: whether it resumes the run that the folder holds, even if that is done.
        array: indices of an array job as ``sbatch --array`` takes them; empty: a single run.
        arguments: of `hpcdi train`, in a script that runs although nothing has been written; empty:
            the experiment lies in `submit_dir`.
        packed: more arguments of `hpcdi sweep resume --pack`; None: it is no packed sweep. With
            `array`, each task does so: they search together.
        guests: indices of an array job of guests of the run in `folder`; empty: it is none.
        is_anew: with `arguments`: each submission of the script is another run, whose folder is
            `folder` with the job's number at its end.
    """

    name: str
    folder: Path
    slurm: SlurmConfig
    python: str
    is_resumed: bool = False
    array: str = ""
    arguments: tuple[str, ...] = ()
    packed: tuple[str, ...] | None = None
    guests: str = ""
    is_anew: bool = False

    @property
    def submit_dir(self) -> Path:
        """Folder of the script and its experiment."""
        return RunLayout(self.folder).submit_dir

    @property
    def script(self) -> Path:
        """Path of the script."""
        return self.submit_dir / ("guests.sbatch" if self.guests else "job.sbatch")

    @property
    def ranks(self) -> int:
        """Ranks of the run, on all nodes."""
        return self.slurm.nodes * self.slurm.ntasks_per_node


_BESIDE_SHELL = """\
# This shell gets the signal before the time limit, also another one that the user names, and
# passes it on.
{command} &
pid=$!
trap 'kill -USR2 "$pid" 2>/dev/null || true' USR2  # it may have ended
trap 'kill -USR1 "$pid" 2>/dev/null || true' USR1
trap 'kill -XCPU "$pid" 2>/dev/null || true' XCPU
trap 'kill -HUP "$pid" 2>/dev/null || true' HUP
trap 'is_ending=1; kill -USR2 "$pid" 2>/dev/null || true' TERM
while
    code=0  # a signal ends `wait`, too
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null
do :; done
"""
_START = {
    "srun": f"export {REFUSED_VARIABLE}={REFUSED}  "
    """\
# what a rank says in place of 1: srun's own 1 is that it could not start
if [ "${SLURM_NTASKS:-}${SLURM_HET_SIZE:-}" = 1 ]; then HPCDI_REFUSED=1; fi  # no rank, alone
code=0
srun --mpi={mpi} --export=ALL --kill-on-bad-exit=1 \\
    "${PYTHON[@]}" -m hpcdi train "$@" "${WHERE[@]}" || code=$?
""",
    "mpirun": f"{REFUSED_VARIABLE}=1\n"
    + _BESIDE_SHELL.replace(
        "{command}", '"${PYTHON[@]}" -m hpcdi train "$@" -n "$SLURM_NTASKS" "${WHERE[@]}"'
    ),
}

_UNSET = textwrap.fill(
    "unset " + " ".join(f'"${{!{start}@}}"' for start in OF_A_RANK),
    width=96,
    subsequent_indent="    ",
    break_long_words=False,
    break_on_hyphens=False,
).replace("\n", " \\\n")
_LIMITS = (
    f"""\
# sbatch passes on the variables of the shell in which it is typed: in a step of srun those of a
# rank, in another job that one's memory and GPUs, for which srun would ask here. Without them the
# ranks have all that this job has.
{_UNSET}
unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_GPUS SLURM_GPUS_PER_NODE
# A step of srun passes on a list of its cores, too; a wish of yours (SLURM_CPU_BIND=none) has none.
if [ -n "${{SLURM_CPU_BIND_LIST:-}}" ]; then unset "${{!SLURM_CPU_BIND@}}"; fi
# On a full disk, on which the output lies, too, a word that is lost ends nothing.
say() {{ echo "hpcdi: $*" || true; }}
"""
    """\
# Slurm's commands, without variables of this job or of another that change what they do.
slurm() (
    for name in ${!SLURM_@} ${!SQUEUE_@} ${!SBATCH_@}; do
        case $name in
            SLURM_CONF* | SLURM_JWT | *_CLUSTERS) ;;
            SBATCH_ACCOUNT | SBATCH_PARTITION | SBATCH_QOS | SBATCH_RESERVATION | SBATCH_WCKEY) ;;
            *) unset "$name" ;;
        esac
    done
    exec timeout 100 "$@"  # one that hangs holds no start, and no requeue
)
# This job alone: an array's last task has the number of the whole array as SLURM_JOB_ID, and a job
# that was submitted within an array has the variables of that one.
JOB=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
JOB=${JOB:-$SLURM_JOB_ID}
says=$(slurm scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null |
    grep "^JobId=$SLURM_JOB_ID " || true)
if [ -n "$says" ] && [[ "$says" != *" ArrayTaskId="* ]]; then
    JOB=$SLURM_JOB_ID
    unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
fi
# Slurm 22.05 to 23.02 do not pass this on to srun; before 23.02 the job does not know its end time.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
end=$(slurm squeue --noheader --jobs="$JOB" --format=%e 2>/dev/null | sed -n 1p || true)
if end=$(date -d "${end:-unknown}" +%s 2>/dev/null); then export SLURM_JOB_END_TIME=$end; fi
# The job's state, and whether it may be requeued. Slurm's controller may be away for minutes: until
# it answers, nothing is known.
job() {
    local says=
    for _ in {1..30}; do
        says=$(slurm scontrol show job --oneliner "$JOB" |
            sed -n '1s/.* JobState=\\([A-Z_]*\\) .* Requeue=\\([01]\\) .*/\\1 \\2/p' || true)
        if [ -n "$says" ]; then break; fi
        sleep 5 || true
    done
    echo "$says"
}

"""
)
_HOW = """\
case $code in
    85) how=stopped ;;
    130 | 143) exit "$code" ;;
    *) # another signal has killed it, such as the kernel's for its memory
        if [ "$code" -le 128 ]; then exit "$code"; fi
        how=killed
        ;;
esac
"""
_COUNT = """\
        # on a full disk nothing is counted: the job is requeued until there is room
        { mkdir -p "$RUN/submit" && echo "job $JOB: exit code $code" >> "$vain"; } || true
        if [ "$({ wc -l < "$vain"; } 2>/dev/null || echo 0)" -gt 3 ]; then
            say "it did not begin four times in a row, and is not started again" >&2
            rm "$vain"
            exit 1
        fi
"""
_VERDICT = """\
# How the run ended stands in its run.json. The exit codes of srun and mpirun are unreliable: a rank
# that has left may look like one that was killed, and mpirun returns 0 after it has lost a node.
# Another job that has taken the folder meanwhile says nothing of this one.
mkdir -p "$RUN" || true
before=$(cat "$RUN/run.json" 2>/dev/null || true)
vain=$RUN/submit/starts-in-vain
# To all processes of the job: the ranks take them, and this shell goes on.
is_ending=
trap : HUP USR1 USR2 XCPU
trap is_ending=1 TERM
{start}\
facts=$(cat "$RUN/run.json" 2>/dev/null || true)
said=$(echo "$facts" | sed -n 's/^  "exit_code": \\([0-9]*\\),\\{0,1\\}$/\\1/p')
whose=$(echo "$facts" | sed -n 's/^    "SLURM_JOB_ID": "\\([^"]*\\)".*/\\1/p')
if [ "$facts" = "$before" ] || [ "${whose:-$SLURM_JOB_ID}" != "$SLURM_JOB_ID" ]; then
    if [ "$said,$code" = 0,0 ]; then exit 0; fi  # it was done before
    say "the run has not begun (exit code $code)" >&2
    case $code in  # the user's error: it has been named above
        2) exit 2 ;;
        "$HPCDI_REFUSED") exit 1 ;;
    esac
    said=ended  # by a preemption, or `scontrol requeue`: it was not in vain
    if [ -z "$is_ending" ] && [[ "$(job)" == RUNNING* ]]; then
{count}        said=vain
    fi
else
    rm -f "$vain"
fi
will="resume it"
case $said in
    ended) why="the start was ended" will="start the run again" ;;
    vain) why="a rank or node was lost" will="start the run again" ;;
    85) why="the run was stopped" ;;
    "") why="the run ended without a verdict (exit code $code): a rank or node was lost" ;;
    *) exit "$said" ;;
esac

"""
_REQUEUE = """\
# Requeue, unless Slurm itself is ending this job (scancel, time limit) or requeues it.
for _ in {1..5}; do
    state=$(job)
    if [ "$state" != "RUNNING 1" ]; then break; fi
    if slurm scontrol requeue "$JOB"; then
        say "$why; job $JOB will $will"
        { sleep 60 || true; } 2>/dev/null  # until Slurm ends this script, of which bash would tell
        exit 85
    fi
    sleep 5 || true
done
say "$why"
if [ -z "$state" ]; then
    say "Slurm says nothing of job $JOB: it is not requeued, submit it again yourself" >&2
fi
"""
_AGAIN = (
    _REQUEUE
    + """\
if [[ $state == RUNNING* ]]; then  # it may not be requeued: another job like it resumes the run
    task=${SLURM_ARRAY_JOB_ID:+$SLURM_ARRAY_TASK_ID}
    gpus=--gpus-per-node=
    if grep -q '^#SBATCH.*--gres[= ]' "$0"; then gpus=--gres=gpu:; fi  # Slurm adds the two up
    # options of a command line are of all components of a heterogeneous job, so it has its script's
    # and memory by GPU is asked for in no other way. It says 1.50G, and takes it from nobody
    mapfile -t like_it < <(slurm scontrol show job --oneliner "$JOB" |
        sed -n '1{/ HetJobOffset=/d;/ MemPerTres=/s/ MinMemory[^ ]*//;p}' | tr ' ' '\\n' |
        LC_ALL=C awk -F'[=GT]' '!/^MinMemory.*\\.[0-9]+[GT]$/ { print; next }
            { printf "%s=%.0fM\\n", $1, $2 * 1024 * (/T$/ ? 1024 : 1) }' |
        sed -nE -e '/=(\\(null\\)|N\\/A|0)$/d' -e 's/^Partition=/--partition=/p' \\
            -e 's/^Account=/--account=/p' -e 's/^QOS=/--qos=/p' -e 's/^TimeLimit=/--time=/p' \\
            -e 's/^NumNodes=/--nodes=/p' -e 's/^NumTasks=/--ntasks=/p' \\
            -e 's/^NtasksPerN:B:S:C=([1-9][0-9]*):.*/--ntasks-per-node=\\1/p' \\
            -e 's,^CPUs/Task=,--cpus-per-task=,p' -e 's/^Features=/--constraint=/p' \\
            -e 's/^OverSubscribe=YES$/--oversubscribe/p' \\
            -e 's/^OverSubscribe=NO$/--exclusive/p' \\
            -e 's/^OverSubscribe=(USER|MCS)$/--exclusive=\\L\\1/p' \\
            -e 's/^MinMemoryNode=([0-9]+[KMGT])$/--mem=\\1/p' \\
            -e 's/^MinMemoryCPU=([0-9]+[KMGT])$/--mem-per-cpu=\\1/p' \\
            -e 's,^MemPerTres=gres[:/]gpu:,--mem-per-gpu=,p' \\
            -e 's,^TresPerJob=gres[:/]gpu:([^,]*)$,--gpus=\\1,p' \\
            -e "s,^TresPerNode=gres[:/]gpu:([^,]*)\\$,$gpus\\\\1,p")
    if next=$(HPCDI_RUN=$RUN slurm sbatch --parsable --dependency="afterany:$JOB" \\
        ${task:+--array="$task"} ${SLURM_JOB_NAME:+--job-name="$SLURM_JOB_NAME"} "${like_it[@]}" \\
        "$0" "$@" | grep -oE '^[0-9]+'); then
        next=${next##*$'\\n'}${task:+_$task}
        say "job $next will resume it: this one may not be requeued"
        echo "{\\"job\\": {\\"SLURM_JOB_ID\\": \\"$next\\"}}" > "$RUN/next_job.json" || true
    else
        say "sbatch has taken no job that resumes it: submit one with HPCDI_RUN=$RUN" >&2
    fi
fi
exit 85
"""
)
SLURM_BODY = f"{_LIMITS}{_VERDICT.replace('{count}', _COUNT)}{_AGAIN}"
_PACKED = f"""\
{_LIMITS}\
begun() {{ cat "$RUN"/*/run.json 2>/dev/null | cksum || true; }}  # each start of a run changes it
before=$(begun)
vain=$RUN/submit/starts-in-vain${{SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}
is_ending=
{_BESIDE_SHELL.replace("{command}", '"${PYTHON[@]}" -m hpcdi sweep resume "$RUN" --pack "$@"')}\
{_HOW}\
if [ "$(begun)" = "$before" ]; then
    say "no run has begun" >&2
    if [ -z "$is_ending" ] && [[ "$(job)" == RUNNING* ]]; then
{_COUNT}\
    fi
else
    rm -f "$vain"
fi
why="the sweep was $how" will="resume it"

{_AGAIN}"""
_GUEST = f"""\
{_LIMITS}\
vain=$RUN/submit/guest-killed${{SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}
is_ending=
{_BESIDE_SHELL.replace("{command}", '"${PYTHON[@]}" -m hpcdi join "$RUN" "$@"')}\
{_HOW}\
if [ "$how" = killed ] && [ -z "$is_ending" ] && [[ "$(job)" == RUNNING* ]]; then
{_COUNT.replace("did not begin", "was killed").replace("        ", "    ")}\
else
    rm -f "$vain"
fi
why="the guest was $how" will="join the run again"

{_REQUEUE}\
exit 85
"""


def slurm_body(launcher: str, mpi: str = "pmix") -> str:
    """Returns what a script does once ``PYTHON``, ``RUN``, ``WHERE`` and the arguments are set.

    ``WHERE`` is the option that names the run folder, if the arguments do not.

    Args:
        launcher: "srun" or "mpirun".
        mpi: PMI plugin of srun.
    """
    return SLURM_BODY.replace("{start}", _START[launcher].replace("{mpi}", mpi))


def slurm_options(job: BatchJob) -> dict[str, str]:
    """Returns options of sbatch, without their dashes; an empty text: the option has no value."""
    slurm = job.slurm
    # with srun all ranks get the signal; it would kill mpirun's daemons, so the shell passes it on
    receiver = "B:" if slurm.launcher == "mpirun" or job.guests else ""
    output = f"{_literal(job.submit_dir)}/slurm-%j.out"
    if job.guests:
        output = f"{_literal(job.submit_dir)}/guest-%A_%a.out"
    elif job.array:
        output = f"{_literal(job.folder)}/output/slurm-%A_%a.out"
    elif job.arguments:
        output = "slurm-%j.out"  # where it is submitted: that folder exists
    if "\\" in output:  # then sbatch fills in no number; its default is a file where it is typed
        output = ""
    options = {
        "job-name": job.name,
        "array": job.guests or job.array,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "nodes": str(slurm.nodes),
        "ntasks-per-node": str(slurm.ntasks_per_node),
        "cpus-per-task": str(slurm.cpus_per_task),
        "gpus-per-node": str(slurm.gpus_per_node or ""),
        "mem": slurm.mem,
        "time": slurm.time,
        "signal": f"{receiver}USR2@{slurm.signal_delay_s}",
        "open-mode": "append",
        "output": output,
    }
    chosen = {name: value for name, value in options.items() if value}
    return {**chosen, "requeue": "", **_own_options(slurm)}


def _own_options(slurm: SlurmConfig) -> dict[str, str]:
    """Returns the user's own options of sbatch, which beat the section's keys."""
    return dict(map(_option, slurm.options))


def _option(text: str) -> tuple[str, str]:
    """Returns an option's long name, without dashes, and its value: ``--nodes=2``, ``-N 2``."""
    text = text.strip()
    short = re.fullmatch(r"-(\w)\s*(.*)", text)
    if short is not None and short[1] in _SHORT:
        return _SHORT[short[1]], short[2]
    name, *values = re.split(r"=|\s+", text.removeprefix("--"), maxsplit=1)
    return _LONG.get(name, name), "".join(values)


def with_options(slurm: SlurmConfig) -> SlurmConfig:
    """Returns resources in which options that have a key of the section stand as that key.

    So what is checked, said and written is what Slurm gives.

    Raises:
        LaunchError: an option says the number of ranks as no key can, or is not the user's.
    """
    keys: dict[str, Any] = {}
    others = []
    for text in slurm.options:
        name, value = _option(text)
        key = name.replace("-", "_")
        is_whole = value.isdecimal() and int(value) > 0
        if name in _NOT_FOR_USERS:
            raise LaunchError(f"slurm.options: {text}: {_NOT_FOR_USERS[name]}")
        if name in _RANKS and is_whole:
            keys[key] = int(value)
        elif name in _RANKS or name.startswith("ntasks"):
            raise LaunchError(
                f"slurm.options: {text} leaves open how many ranks there are, or on how many "
                "nodes: say it by slurm.nodes and slurm.ntasks_per_node (--nodes N "
                "--ntasks-per-node N)"
            )
        elif name in _NUMBERS and is_whole:
            keys[key] = int(value)
        elif name in _TEXTS and (value or name == "time"):  # of none, who checks it says so
            keys[key] = value
        else:
            others.append(text)
    return replace(slurm, options=tuple(others), **keys)


def options_for_any_size(slurm: SlurmConfig) -> tuple[str, ...]:
    """Returns the user's own options of sbatch but those that say how large the job is."""
    return tuple(text for text in slurm.options if not _option(text)[0].startswith(_OF_SIZE))


def time_limit_of(slurm: SlurmConfig) -> str:
    """Returns the time limit by which Slurm takes a job."""
    return _own_options(slurm).get("time", slurm.time)


def _literal(folder: Path) -> str:
    """Returns a folder for sbatch's --output, in which a % begins a variable."""
    return str(folder).replace("%", "%%")


def _quoted(value: str) -> str:
    """Returns an option's value for sbatch, where a backslash escapes even within quotes."""
    return shlex.quote(value).replace("\\", "\\\\")


def _about(job: BatchJob) -> list[str]:
    """Returns the comment at the top of a script."""
    if job.guests:
        return [
            f"# {job.name}: collectors for a run, written by `hpcdi submit --guests`.",
            "# Whenever this script starts again, it joins the run anew.",
        ]
    return [
        f"# {job.name}: {job.ranks} ranks on {counted(job.slurm.nodes, 'node')}, written "
        "by `hpcdi submit`. The run resumes",
        "# from its newest snapshot whenever this script starts again.",
    ]


def script_text(job: BatchJob) -> str:
    """Returns a script for sbatch."""
    slurm = job.slurm
    folder, submit = shlex.quote(str(job.folder)), job.submit_dir.name
    lines = [
        "#!/bin/bash",
        *_about(job),
        *[
            f"#SBATCH --{name}{f'={_quoted(value)}' if value else ''}"
            for name, value in slurm_options(job).items()
        ],
        "set -eo pipefail",
        "",
        *[f"module load {shlex.quote(name)}" for name in slurm.modules],
        *slurm.setup,
        f"PYTHON=({f'{slurm.container} python' if slurm.container else shlex.quote(job.python)})",
    ]
    if job.array and job.packed is None:
        lines += [
            f"SWEEP={folder}",
            f'RUN=${{HPCDI_RUN:-"$SWEEP/{_INDEX}"}}',
            f'set -- "$SWEEP/experiments/{_INDEX}.yaml"',
        ]
    elif job.packed is not None:
        lines += [f"RUN={folder}", shlex.join(["set", "--", *job.packed])]
    elif job.guests:
        return "\n".join([*lines, f"RUN={folder}", "", _GUEST])
    elif job.arguments:
        run = f"${{HPCDI_RUN:-{folder}-$SLURM_JOB_ID}}" if job.is_anew else folder
        lines += [f"RUN={run}", shlex.join(["set", "--", *job.arguments])]
    else:
        lines += [f"RUN={folder}", f'set -- "$RUN/{submit}/{EXPERIMENT_FILE}"']
    body = _PACKED if job.packed is not None else slurm_body(slurm.launcher, slurm.mpi)
    where = '--resume "$RUN"' if job.is_resumed else '--run-dir "$RUN"'
    return "\n".join([*lines, "", body.replace('"${WHERE[@]}"', where)])
