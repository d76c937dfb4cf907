"""The text of batch scripts: pure functions of the resources and the run folder.

The scripts in ``slurm/`` have the same body, `SLURM_BODY`, below their own options and settings.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from hpcdi.config.slurm import SlurmConfig
from hpcdi.launch.time_limit import seconds_of
from hpcdi.store.layout import RunLayout

EXPERIMENT_FILE = "experiment.yaml"


@dataclass(frozen=True)
class BatchJob:
    """A run as a batch job.

    Attributes:
        name: of the job.
        run_dir: the run folder, absolute.
        slurm: what is asked for; `ntasks_per_node` is at least 1, `mpi` is named.
        python: the interpreter.
        is_resumed: whether it is to go on with the run that the folder holds, even if that is done.
    """

    name: str
    run_dir: Path
    slurm: SlurmConfig
    python: str
    is_resumed: bool = False

    @property
    def folder(self) -> Path:
        """Where what is submitted lies."""
        return RunLayout(self.run_dir).submit_dir

    @property
    def ranks(self) -> int:
        """Of the whole job."""
        return self.slurm.nodes * self.slurm.ntasks_per_node

    @property
    def output(self) -> Path:
        """What its script prints to; Slurm fills in what % means."""
        return self.folder / "slurm-%j.out"

    @property
    def array(self) -> str:
        """Tasks of an array job, as sbatch takes them; empty: it is none."""
        return ""

    def place(self) -> list[str]:
        """Lines of bash that set ``RUN``, and the experiment as argument."""
        return [
            f"RUN={shlex.quote(str(self.run_dir))}",
            f'set -- "$RUN/{self.folder.name}/{EXPERIMENT_FILE}"',
        ]


_START = {
    "srun": """\
code=0
srun --mpi={mpi} --kill-on-bad-exit=1 "${PYTHON[@]}" -m hpcdi train "$@" --run-dir "$RUN" || code=$?
""",
    "mpirun": """\
# The signal that comes before the time limit comes to this shell, which hands it on.
"${PYTHON[@]}" -m hpcdi train "$@" -n "$SLURM_NTASKS" --run-dir "$RUN" &
pid=$!
trap 'kill -USR2 "$pid"' USR2 TERM
while
    code=0  # a signal ends `wait`, too
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null
do :; done
""",
}

SLURM_BODY = """\
# Slurm 22.05 to 23.02 do not hand this on to srun; before 23.02 the job is not told when it ends.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null | sed -n 1p || true)
if end=$(date -d "${end:-unknown}" +%s 2>/dev/null); then export SLURM_JOB_END_TIME=$end; fi

# What became of the run stands in its folder. srun's and mpirun's exit codes do not tell: a rank
# that has left may look like one that was killed, and mpirun says 0 when it has lost a node.
mkdir -p "$RUN"
before=$(cat "$RUN/run.json" 2>/dev/null || true)
{start}\
said=$(sed -n 's/^  "exit_code": \\([0-9]*\\),\\{0,1\\}$/\\1/p' "$RUN/run.json" 2>/dev/null || true)
if [ "$(cat "$RUN/run.json" 2>/dev/null || true)" = "$before" ]; then
    if [ "$said,$code" = 0,0 ]; then exit 0; fi  # it was done before
    echo "hpcdi: the run has not begun (exit code $code)" >&2
    exit $((code > 0 ? code : 1))
fi
case $said in
    85) echo "hpcdi: the run has been stopped; job $SLURM_JOB_ID is to go on with it" ;;
    "") echo "hpcdi: the run ended without a word (exit code $code): a rank or node was lost" ;;
    *) exit "$said" ;;
esac

# Again, unless Slurm itself is ending this job (scancel, time limit) or starting it again.
job() {
    scontrol show job --oneliner "$SLURM_JOB_ID" |
        sed -n '1s/.* JobState=\\([A-Z_]*\\) .* Requeue=\\([01]\\) .*/\\1 \\2/p'
}
if [ "$(job)" = "RUNNING 1" ] && scontrol requeue "$SLURM_JOB_ID"; then
    sleep 60  # until Slurm ends this script
elif [[ $(job) == RUNNING* ]]; then  # it may not be requeued: another job goes on
    HPCDI_RUN=$RUN sbatch --dependency="afterany:$SLURM_JOB_ID" \\
        ${SLURM_ARRAY_TASK_ID:+--array="$SLURM_ARRAY_TASK_ID"} "$0" "$@"
fi
exit 85
"""


def slurm_body(launcher: str, mpi: str = "pmix") -> str:
    """What a Slurm script does once ``PYTHON``, ``RUN`` and the arguments are set.

    Args:
        launcher: "srun" or "mpirun".
        mpi: PMI plugin of srun.
    """
    return SLURM_BODY.replace("{start}", _START[launcher].replace("{mpi}", mpi))


def slurm_options(job: BatchJob) -> dict[str, str]:
    """Options of sbatch, without their dashes; an empty text: it has no value."""
    asked = job.slurm
    # with srun all ranks get the signal; mpirun's daemons would die of it: the shell hands it on
    receiver = "B:" if asked.launcher == "mpirun" else ""
    options = {
        "job-name": job.name,
        "array": job.array,
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "constraint": asked.constraint,
        "nodes": str(asked.nodes),
        "ntasks-per-node": str(asked.ntasks_per_node),
        "cpus-per-task": str(asked.cpus_per_task),
        "gpus-per-node": str(asked.gpus_per_node or ""),
        "mem": asked.mem,
        "time": asked.time,
        "signal": f"{receiver}USR2@{asked.signal_delay_s}",
        "open-mode": "append",
        "output": str(job.output),
    }
    given = {name: value for name, value in options.items() if value}
    given["requeue"] = ""
    for text in asked.options:
        name, _, value = text.removeprefix("--").partition("=")
        given[name] = value
    return given


def slurm_text(job: BatchJob) -> str:
    """A script for sbatch."""
    options = [
        f"#SBATCH --{name}{f'={shlex.quote(value)}' if value else ''}"
        for name, value in slurm_options(job).items()
    ]
    start = slurm_body(job.slurm.launcher, job.slurm.mpi)
    return _script(job, options, start, end="set -eo pipefail")


def pbs_text(job: BatchJob) -> str:
    """A script for qsub of PBS; it has not run on a real one."""
    asked = job.slurm
    cores = asked.ntasks_per_node * asked.cpus_per_task
    chunk = f"select={asked.nodes}:ncpus={cores}:mpiprocs={asked.ntasks_per_node}"
    chunk += f":ngpus={asked.gpus_per_node}" * (asked.gpus_per_node > 0)
    chunk += f":mem={asked.mem}" * bool(asked.mem)
    options = [
        f"#PBS -N {job.name}",
        *[f"#PBS -q {asked.partition}"] * bool(asked.partition),
        *[f"#PBS -A {asked.account}"] * bool(asked.account),
        f"#PBS -l {chunk}",
        f"#PBS -l walltime={_clock(asked.time)}",
        "#PBS -r y",
        "#PBS -j oe",
        f"#PBS -o {job.folder}/",
    ]
    start = f"""\
code=0
"${{PYTHON[@]}}" -m hpcdi train "$@" -n {job.ranks} --run-dir "$RUN" \\
    --time-limit {asked.time} || code=$?
if [ "$code" = 85 ]; then qsub {shlex.quote(str(job.folder / "job.pbs"))}; fi
exit $code
"""
    return _script(job, [*options, *_untested("PBS")], start, end="set -eo pipefail")


def lsf_text(job: BatchJob) -> str:
    """A script for bsub of LSF; it has not run on a real one."""
    asked = job.slurm
    cores = asked.ntasks_per_node * asked.cpus_per_task
    options = [
        f"#BSUB -J {job.name}",
        *[f"#BSUB -q {asked.partition}"] * bool(asked.partition),
        *[f"#BSUB -P {asked.account}"] * bool(asked.account),
        f"#BSUB -n {asked.nodes * cores}",
        f'#BSUB -R "span[ptile={cores}]"',
        *[f'#BSUB -gpu "num={asked.gpus_per_node}"'] * (asked.gpus_per_node > 0),
        *[f"#BSUB -M {asked.mem}"] * bool(asked.mem),
        f"#BSUB -W {math.ceil(seconds_of(asked.time) / 60)}",
        "#BSUB -r",
        '#BSUB -Q "85"',
        f"#BSUB -o {job.folder}/lsf-%J.out",
    ]
    start = f"""\
exec "${{PYTHON[@]}}" -m hpcdi train "$@" -n {job.ranks} --run-dir "$RUN" \\
    --time-limit {asked.time}
"""
    return _script(job, [*options, *_untested("LSF")], start, end="set -eo pipefail")


TEXTS = {"slurm": slurm_text, "pbs": pbs_text, "lsf": lsf_text}
ENDINGS = {"slurm": "sbatch", "pbs": "pbs", "lsf": "bsub"}


def script_file(job: BatchJob, scheduler: str) -> Path:
    """Where the script of a job lies."""
    return job.folder / f"job.{ENDINGS[scheduler]}"


def _script(job: BatchJob, options: list[str], start: str, end: str) -> str:
    """A script: what it is, options, what Python needs, the run folder, the start."""
    asked = job.slurm
    nodes = f"{asked.nodes} node{'s' * (asked.nodes > 1)}"
    lines = [
        "#!/bin/bash",
        f"# {job.name}: {job.ranks} ranks on {nodes}, written by `hpcdi submit`. The run goes on",
        "# from its newest snapshot whenever this script starts again.",
        *options,
        end,
        "",
        *[f"module load {shlex.quote(name)}" for name in asked.modules],
        *asked.setup,
    ]
    lines += [
        f"PYTHON=({f'{asked.container} python' if asked.container else shlex.quote(job.python)})",
        *job.place(),
        "",
    ]
    if job.is_resumed:
        start = start.replace('--run-dir "$RUN"', '--resume "$RUN"')
    return "\n".join(lines) + "\n" + start


def _untested(scheduler: str) -> list[str]:
    return [
        f"# This script has not been tested on a real {scheduler}: look at it before you use it."
    ]


def _clock(text: str) -> str:
    """A duration as ``hours:minutes:seconds``."""
    seconds = int(seconds_of(text))
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
