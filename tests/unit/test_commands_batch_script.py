"""The text of batch scripts: golden files, and the scripts that people edit.

After a wanted change set HPCDI_WRITE_GOLDEN=1 once, and read the diff.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from hpcdi.commands.batch_script import (
    BatchJob,
    script_text,
    slurm_body,
    slurm_options,
    with_options,
)
from hpcdi.config.schema import SlurmConfig
from hpcdi.errors import LaunchError

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "submit"
RUN = Path("/scratch/me/runs/pong/20261122-120000")
PYTHON = "/home/me/.venv/bin/python"

SMALL = SlurmConfig(ntasks_per_node=4, mpi="pmix")
LARGE = SlurmConfig(
    partition="gpu", account="ab12", qos="long", constraint="a100|h100", time="1-12:00:00",
    nodes=2, ntasks_per_node=16, cpus_per_task=4, gpus_per_node=4, mem="200G",
    signal_delay_s=300, mpi="pmix", modules=("python/3.12", "cuda"), setup=("export FOO='a b'",),
    options=("--exclusive", "--mail-type=END,FAIL"),
)  # fmt: skip
CONTAINER = SlurmConfig(
    ntasks_per_node=4, container="apptainer exec --nv /images/hpcdi.sif", mpi="pmi2"
)
MPIRUN = SlurmConfig(nodes=2, ntasks_per_node=4, launcher="mpirun")
CASES = [
    ("small", SMALL),
    ("large", LARGE),
    ("container", CONTAINER),
    ("mpirun", MPIRUN),
]


def job_of(slurm: SlurmConfig) -> BatchJob:
    return BatchJob("hpcdi-pong", RUN, slurm, PYTHON)


@pytest.mark.parametrize(("name", "slurm"), CASES)
def test_the_text(name: str, slurm: SlurmConfig) -> None:
    text = script_text(job_of(slurm))
    golden = GOLDEN / f"{name}.sbatch"
    if os.environ.get("HPCDI_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_there_is_no_other_golden_file() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {name for name, _ in CASES}


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_only_the_shell_gets_the_signal_that_would_kill_the_daemons_of_mpirun(
    launcher: str,
) -> None:
    options = slurm_options(job_of(SlurmConfig(ntasks_per_node=1, launcher=launcher)))
    assert options["signal"] == ("B:USR2@120" if launcher == "mpirun" else "USR2@120")


def test_an_option_that_is_named_wins() -> None:
    options = slurm_options(job_of(SlurmConfig(ntasks_per_node=1, options=("--time=5", "--hold"))))
    assert options["time"] == "5"
    assert options["hold"] == ""


SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if s.name != "smoke.sbatch"], ids=lambda path: path.name
)
def test_scripts_for_people_do_what_submitted_ones_do(script: Path) -> None:
    body = slurm_body("srun", '"${HPCDI_PMI:-pmix}"')
    text = script.read_text()
    if script.name == "train_het.sbatch":  # a command for each component
        start = re.compile(r"^srun .*?code=\$\?$", flags=re.MULTILINE | re.DOTALL)
        (line,) = start.findall(text)
        assert "--kill-on-bad-exit=1" in line
        assert "--het-group=0" in line
        assert "--het-group=1" in line
        text, body = (
            re.sub(r"^hpcdi=.*\n", "", start.sub("", text), flags=re.MULTILINE),
            start.sub("", body),
        )
    assert text.endswith(body)
    for option in ("--signal=USR2@", "--requeue\n", "--open-mode=append\n"):
        assert f"#SBATCH {option}" in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_say_what_to_edit(script: Path) -> None:
    header = script.read_text().partition("#SBATCH")[0]
    assert f"sbatch slurm/{script.name}" in header
    assert "# Edit: " in header


@pytest.mark.parametrize(
    "script",
    [*SCRIPTS, *sorted(GOLDEN.iterdir()), ROOT / "tools" / "slurm_dev_cluster.sh"],
    ids=lambda path: path.name,
)
def test_scripts_are_sound(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


STAND_INS = {  # of Slurm's commands: what they are asked goes to $ASKED
    "scontrol": """\
        case " $AWAY " in *" $(grep -c ^scontrol "$ASKED") "*) exit 1 ;; esac
        case "$1$AS" in show?*) echo "JobId=90 JobState=$AS Reason=x Requeue=1 x=0"; exit ;; esac
        case $1 in show)
            case $4 in 96) echo "JobId=96 HetJobId=96 HetJobOffset=0 JobState=RUNNING Reason=x" \
                "Requeue=$MAY Partition=cpu NumNodes=1"; exit ;; esac
            echo "JobId=90 ArrayJobId=90 ArrayTaskId=2 JobState=RUNNING Reason=x Requeue=$MAY x=0" \
                "Account=(null) Partition=gpu TimeLimit=2-00:00:00 NumNodes=2 NumTasks=6" \
                "CPUs/Task=N/A NtasksPerN:B:S:C=3:0:*:1 $SIZES"
            echo "JobId=91 ArrayJobId=90 ArrayTaskId=0 JobState=COMPLETED Reason=x Requeue=1 x=0"
            echo "JobId=95 JobName=x JobState=RUNNING Reason=None Requeue=$MAY Restarts=0" ;;
        esac""",
    "sbatch": """\
        ${REFUSES:-:}
        env | grep -E '^(SLURM|SBATCH|HPCDI)_' | sort >> $ASKED; echo Welcome!; echo 99""",
    "squeue": """[ "$HANGS" != squeue ] || tail -f /dev/null
        [ -z "$SLURM_TIME_FORMAT" ] && date -d "2 hours" +%FT%T || echo 12:00""",
    "srun": """\
        eval "${STARTS:-}"
        env | grep -E '^SLURM_(ARRAY|JOB_END)' >> $ASKED
        echo "inherited: $(compgen -e | grep -E "^(${INHERITED:-none})" | sort | xargs)" >> $ASKED
        [ -z "$CODE" ] || exit "$CODE"
        while [ $# -gt 0 ]; do [ "$1" != --run-dir ] || run=$2; shift; done
        printf '{\\n  "exit_code": 85\\n}\\n' > "$run/run.json"; exit 85""",
    "timeout": '[ "$2" != "$HANGS" ] || set -- 0.1 "${@:2}"; exec /usr/bin/timeout "$@"',
    # so Slurm ends a script that it requeues
    "sleep": '[ "$1" = 60 ] && kill -TERM "$PPID" $$; true',
}
_BODIES = [
    *(s for s in SCRIPTS if s.name != "smoke.sbatch"),
    *(GOLDEN / f"{name}.sbatch" for name in ("small", "mpirun")),
]


def asked_by(script: Path, folder: Path, **variables: str) -> list[str]:
    """Runs a script whose run is stopped; returns what Slurm's commands were asked."""
    done = ended(script, folder, **variables)
    assert (done.returncode, done.stderr) == (85, "")  # nothing of bash on its children's end
    return (folder / "asked").read_text().splitlines()


def ended(
    script: Path, folder: Path, *words: str, to: IO[str] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end, with stand-ins for Slurm's commands; `to`: its output."""
    for name, body in STAND_INS.items():
        (folder / name).write_text(f'#!/bin/bash\necho "{name} $*" >> "$ASKED"\n{body}\n')
        (folder / name).chmod(0o755)
    text = script.read_text().replace(str(RUN), str(folder / "run"))
    (folder / "job.sbatch").write_text(text.replace(PYTHON, str(folder / "srun")))
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}", "ASKED": str(folder / "asked"),
        "HPCDI_RUN": str(folder / "run"), "SLURM_TIME_FORMAT": "%H:%M", "SBATCH_TIMELIMIT": "3",
        "SLURM_MEM_PER_CPU": "100", "SBATCH_ACCOUNT": "ab12", **variables,
    }  # fmt: skip
    return subprocess.run(
        ["bash", folder / "job.sbatch", *(words or ["x.yaml"])], env=environment, cwd=folder,
        check=False, stdout=to or subprocess.PIPE, stderr=to or subprocess.PIPE, text=True,
    )  # fmt: skip


TASK = {"SLURM_JOB_ID": "90", "SLURM_ARRAY_JOB_ID": "90", "SLURM_ARRAY_TASK_ID": "2"}


@pytest.mark.parametrize("script", _BODIES, ids=lambda path: path.name)
def test_a_task_of_an_array_names_itself_alone(script: Path, tmp_path: Path) -> None:
    """The last task's SLURM_JOB_ID is the number of the whole array."""
    asked = asked_by(script, tmp_path, **TASK, MAY="1")
    assert "scontrol requeue 90_2" in asked
    assert any(line.startswith("squeue") and "--jobs=90_2 " in line for line in asked)
    assert not any(line.startswith("sbatch") for line in asked)


@pytest.mark.parametrize("script", _BODIES, ids=lambda path: path.name)
def test_a_task_that_may_not_be_requeued_is_followed_by_itself_alone(
    script: Path, tmp_path: Path
) -> None:
    asked = asked_by(script, tmp_path, **TASK, MAY="0", SLURM_JOB_NAME="my job")
    (line,) = [line for line in asked if line.startswith("sbatch ")]
    assert "--dependency=afterany:90_2 --array=2 " in line
    assert "--job-name=my job --partition=gpu --time=2-00:00:00 --nodes=2 --ntasks=6 " in line
    assert ("--ntasks-per-node=3 " in line, "--account" in line, "--cpus" in line) == (True, 0, 0)
    inherited = asked[asked.index(line) + 1 :]
    assert [v for v in inherited if v.startswith(("SLURM_", "SBATCH_"))] == ["SBATCH_ACCOUNT=ab12"]
    assert (tmp_path / "run/next_job.json").read_text().count('"99_2"') == 1


@pytest.mark.parametrize(
    ("says", "wants"),
    [
        ("MinMemoryNode=500M Features=a|[b*2&c]", "--mem=500M --constraint=a|[b*2&c]"),
        ("MinMemoryCPU=3G Features=(null) TresPerJob=gres:gpu:4", "--mem-per-cpu=3G --gpus=4"),
        ("MinMemoryNode=1.50G TresPerNode=gres:gpu:a100:2", "--mem=1536M --gpus-per-node=a100:2"),
        ("MinMemoryCPU=1.25T OverSubscribe=OK", "--mem-per-cpu=1310720M"),
        ("OverSubscribe=NO MinMemoryNode=2500M", "--exclusive --mem=2500M"),
        ("OverSubscribe=USER", "--exclusive=user"),
        ("OverSubscribe=YES", "--oversubscribe"),
        ("MinMemoryNode=0 TresPerNode=gres/gpu:0", "--gpus-per-node=0"),
        ("MinMemoryCPU=1G MemPerTres=gres:gpu:100", "--mem-per-gpu=100"),
        ("TresPerNode=gres:gpu:2,gres:shard:1", ""),
    ],
)
def test_the_job_that_follows_asks_for_what_this_one_has(
    says: str, wants: str, tmp_path: Path
) -> None:
    """Its script's GPUs and memory may be others; Slurm takes no 1.50G, and one way of memory."""
    asked = asked_by(GOLDEN / "small.sbatch", tmp_path, **TASK, MAY="0", SIZES=says)
    (line,) = [line for line in asked if line.startswith("sbatch ")]
    assert line.partition(" --ntasks-per-node=3 ")[2].partition(f"{tmp_path}")[0].strip() == wants


@pytest.mark.parametrize(
    ("options", "wants", "leaves"),
    [
        (("--gres=gpu:4",), "--gres=gpu:2 ", "--gpus"),
        (("--gpus-per-node=4", "--gres-flags=enforce-binding"), "--gpus-per-node=2 ", "--gres"),
    ],
)
def test_gpus_of_a_script_that_asks_by_gres_are_not_added_up(
    options: tuple[str, ...], wants: str, leaves: str, tmp_path: Path
) -> None:
    script = tmp_path / "gres.sbatch"
    text = script_text(job_of(replace(SMALL, options=options)))
    script.write_text(text)
    asked = asked_by(script, tmp_path, **TASK, MAY="0", SIZES="TresPerNode=gres:gpu:2")
    (line,) = [line for line in asked if line.startswith("sbatch ")]
    assert (wants in line, leaves in line) == (True, False)


@pytest.mark.parametrize("script", _BODIES, ids=lambda path: path.name)
def test_a_job_that_was_submitted_within_an_array_is_none(script: Path, tmp_path: Path) -> None:
    """Such a job inherits the variables of the task in which sbatch was typed."""
    asked = asked_by(script, tmp_path, **{**TASK, "SLURM_JOB_ID": "95"}, MAY="1")
    assert "scontrol requeue 95" in asked
    assert not any("90_2" in line for line in asked)
    if script.name != "sweep_array.sbatch":
        assert not any(line.startswith("SLURM_ARRAY") for line in asked)


@pytest.mark.parametrize("script", _BODIES, ids=lambda path: path.name)
def test_what_a_job_inherits_of_the_shell_that_submits_it_is_none_of_its_own(
    script: Path, tmp_path: Path
) -> None:
    """srun would refuse to start, or mpirun's `hpcdi train` take itself for a rank."""
    shell = {
        "SLURM_MEM_PER_NODE": "500", "SLURM_GPUS_PER_NODE": "1", "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0", "PMIX_RANK": "0", "PMIX_SERVER_URI41": "x", "PMI_FD": "12",
        "OMPI_COMM_WORLD_RANK": "0", "PMIX_MCA_gds": "hash", "SLURM_NTASKS": "3",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x3", "SLURM_CPU_BIND_LIST": "0x3",
    }  # fmt: skip
    asked = asked_by(script, tmp_path, **TASK, MAY="1", **shell, INHERITED="|".join(shell))
    assert "inherited: PMIX_MCA_gds SLURM_NTASKS" in asked


def test_a_job_is_bound_to_cores_as_the_user_wishes(tmp_path: Path) -> None:
    wished = {"SLURM_CPU_BIND": "none", "INHERITED": "SLURM_CPU_BIND"}
    asked = asked_by(GOLDEN / "small.sbatch", tmp_path, **TASK, MAY="1", **wished)
    assert "inherited: SLURM_CPU_BIND" in asked


@pytest.mark.parametrize("script", _BODIES, ids=lambda path: path.name)
@pytest.mark.parametrize("variables", [{"CODE": "143"}, {"MAY": "0"}], ids=["vain", "no requeue"])
def test_a_full_disk_keeps_no_job_from_being_requeued(
    script: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    """Its output lies on that disk."""
    with Path("/dev/full").open("w") as full:
        done = ended(script, tmp_path, **{**TASK, "MAY": "1", **variables}, to=full)
    assert done.returncode == 85
    asked = (tmp_path / "asked").read_text().splitlines()
    wish = "sbatch " if variables.get("MAY") == "0" else "scontrol requeue 90_2"
    assert any(line.startswith(wish) for line in asked)


@pytest.mark.parametrize("script", ["small", "mpirun"])
@pytest.mark.parametrize("name", ["HUP", "USR1", "XCPU"])
def test_a_signal_that_the_user_has_chosen_does_not_end_the_script(
    script: str, name: str, tmp_path: Path
) -> None:
    """By `slurm.options`: ["--signal=B:USR1@120"], or `scancel --batch --signal=USR1`."""
    # the script may not have come to `wait` yet: it is signalled until it has passed one on
    starts = f"""trap 'passed=1; echo passed on >> $ASKED' {name}
        for _ in {{1..{99 if script == "mpirun" else 3}}}; do
            [ "$passed" ] || {{ kill -{name} $PPID; command -p sleep 0.1; }}
        done"""
    asked = asked_by(GOLDEN / f"{script}.sbatch", tmp_path, **TASK, MAY="1", STARTS=starts)
    assert "scontrol requeue 90_2" in asked
    assert ("passed on" in asked) == (script == "mpirun")


def test_a_heterogeneous_job_is_followed_by_one_with_its_script_s_options(tmp_path: Path) -> None:
    """A command line's options would be of all its components."""
    asked = asked_by(_BODIES[0], tmp_path, SLURM_JOB_ID="96", MAY="0", SLURM_JOB_NAME="x")
    (line,) = [line for line in asked if line.startswith("sbatch ")]
    assert "--dependency=afterany:96 --job-name=x /" in line


def test_slurm_is_asked_until_it_answers(tmp_path: Path) -> None:
    """Its controller is away for two questions, and for the wish to be requeued."""
    asked = asked_by(_BODIES[0], tmp_path, **TASK, MAY="1", AWAY="2 3 5")
    said = [line.split()[1] for line in asked if line.startswith(("scontrol", "sleep"))]
    assert said == [
        "show", "show", "5", "show", "5", "show", "requeue", "5", "show", "requeue", "60"
    ]  # fmt: skip


@pytest.mark.parametrize("script", _BODIES, ids=lambda path: path.name)
def test_commands_of_slurm_that_hang_hold_no_job(script: Path, tmp_path: Path) -> None:
    asked = asked_by(script, tmp_path, **TASK, MAY="1", HANGS="squeue")
    assert [line for line in asked if line.startswith("squeue")]
    assert "scontrol requeue 90_2" in asked


def test_a_slurm_that_never_answers_is_named(tmp_path: Path) -> None:
    away = " ".join(map(str, range(2, 99)))
    done = ended(_BODIES[0], tmp_path, **TASK, MAY="1", AWAY=away)
    assert done.returncode == 85
    assert "Slurm says nothing of job 90_2: it is not requeued, submit it again" in done.stderr


def test_a_job_that_sbatch_does_not_take_is_named(tmp_path: Path) -> None:
    done = ended(_BODIES[0], tmp_path, **TASK, MAY="0", REFUSES="exit 1")
    assert done.returncode == 85
    assert f"taken no job that resumes it: submit one with HPCDI_RUN={tmp_path}" in done.stderr
    assert not (tmp_path / "run/next_job.json").exists()


@pytest.mark.parametrize(
    ("script", "code", "returned"),
    [("small", 2, 2), ("small", 3, 1), ("small", 1, 85), ("mpirun", 1, 1), ("mpirun", 2, 2)],
)
def test_the_user_s_error_is_told_from_that_of_srun(
    script: str, code: int, returned: int, tmp_path: Path
) -> None:
    """srun returns 1 where it could not start anything; a rank says 3 there in place of its 1."""
    done = ended(GOLDEN / f"{script}.sbatch", tmp_path, **TASK, MAY="1", CODE=str(code))
    assert done.returncode == returned
    assert f"the run has not begun (exit code {code})" in done.stderr
    assert (tmp_path / "run/submit/starts-in-vain").exists() == (returned == 85)


def test_a_folder_with_a_percent_sign_is_none_of_sbatchs_variables() -> None:
    for array, name in (("", "submit/slurm-%j.out"), ("0-3", "output/slurm-%A_%a.out")):
        job = BatchJob("x", Path("/scratch/lr 50%u"), SMALL, "python", array=array)
        assert slurm_options(job)["output"] == f"/scratch/lr 50%%u/{name}"


@pytest.mark.parametrize("script", ["small", "mpirun"])
def test_a_job_is_promised_only_once_slurm_has_requeued_it(script: str, tmp_path: Path) -> None:
    """Slurm may be ending it (scancel), or another job may go on."""
    promise = "the run was stopped; job 90_2 will resume it"
    for variables, is_promised in (({"MAY": "1"}, 1), ({"MAY": "0"}, 0), ({"AS": "CANCELLED"}, 0)):
        said = ended(GOLDEN / f"{script}.sbatch", tmp_path, **TASK, **variables).stdout
        assert (promise in said) == is_promised
        assert "hpcdi: the run was stopped" in said
        (tmp_path / "run/run.json").unlink()


def test_a_packed_sweep_is_promised_only_once_slurm_has_requeued_it() -> None:
    text = script_text(replace(job_of(SMALL), packed=()))
    assert text.index("requeue") < text.index("job $JOB will $will")
    assert text.count("will resume it") == 1  # that of the job that follows


@pytest.mark.parametrize("script", ["small", "mpirun"])
@pytest.mark.parametrize(
    ("variables", "is_counted"),
    [
        ({"MAY": "1"}, True),
        ({"AS": "PENDING"}, False),  # `scontrol requeue`, or a preemption that requeues
        ({"MAY": "1", "STARTS": "kill -TERM $PPID"}, False),  # one that gives some time
    ],
    ids=["running", "requeued", "signalled"],
)
def test_a_start_that_slurm_ends_is_not_in_vain(
    script: str, variables: dict[str, str], tmp_path: Path, *, is_counted: bool
) -> None:
    done = ended(GOLDEN / f"{script}.sbatch", tmp_path, **TASK, CODE="143", **variables)
    assert done.returncode == 85
    assert (tmp_path / "run/submit/starts-in-vain").exists() == is_counted
    assert ("the start was ended" in done.stdout) != is_counted


def test_a_packed_sweep_that_begins_no_run_is_not_requeued_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "packed.sbatch"
    script.write_text(script_text(replace(job_of(SMALL), packed=())))
    vain = tmp_path / "run/submit/starts-in-vain"

    def start(**variables: str) -> subprocess.CompletedProcess[str]:
        return ended(script, tmp_path, SLURM_JOB_ID="95", MAY="1", CODE="85", **variables)

    assert [start().returncode for _ in range(2)] == [85, 85]
    begins = 'mkdir -p "${ASKED%/*}/run/000"; date +%N > "${ASKED%/*}/run/000/run.json"'
    assert start(STARTS=begins).returncode == 85
    assert not vain.exists()
    assert [start().returncode for _ in range(4)] == [85, 85, 85, 1]
    done = start(STARTS="trap : USR2; kill -TERM $PPID")  # a preemption
    assert (done.returncode, vain.exists()) == (85, False)


def test_a_packed_sweep_that_was_killed_is_requeued(tmp_path: Path) -> None:
    script = tmp_path / "packed.sbatch"
    script.write_text(script_text(replace(job_of(SMALL), packed=())))

    def returned(code: str) -> int:
        return ended(script, tmp_path, SLURM_JOB_ID="95", MAY="1", CODE=code).returncode

    codes = ("137", "2", "130", "143", "1", "139", "137", "137", "137")
    assert [returned(code) for code in codes] == [85, 2, 130, 143, 1, 85, 85, 1, 85]


def test_a_guest_that_was_killed_joins_again_and_not_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "guests.sbatch"
    script.write_text(script_text(replace(job_of(SMALL), guests="0-3")))

    def returned(code: str) -> int:
        return ended(script, tmp_path, **TASK, MAY="1", CODE=code).returncode

    codes = ("137", "137", "85", "137", "137", "137", "137", "2", "143", "0")
    assert [returned(code) for code in codes] == [85, 85, 85, 85, 85, 85, 1, 2, 143, 0]


@pytest.mark.parametrize("script", ["small", "mpirun"])
@pytest.mark.parametrize("facts", ['"state": "running"', '"exit_code": 85'])
def test_a_folder_that_another_job_has_taken_meanwhile_says_nothing_of_this_one(
    script: str, facts: str, tmp_path: Path
) -> None:
    record = '{\n  %s,\n  "slurm": {\n    "SLURM_JOB_ID": "%s"\n  }\n}\n'
    other = f"printf '{record}' '{facts}' 7 > \"$HPCDI_RUN/run.json\"; CODE=2"
    done = ended(GOLDEN / f"{script}.sbatch", tmp_path, **TASK, MAY="1", STARTS=other)
    assert (done.returncode, done.stderr) == (2, "hpcdi: the run has not begun (exit code 2)\n")
    own = other.replace("7 >", "90 >").replace("CODE=2", "CODE=137")
    assert (
        ended(GOLDEN / f"{script}.sbatch", tmp_path, **TASK, MAY="1", STARTS=own).returncode == 85
    )


def test_an_index_without_settings_is_refused(tmp_path: Path) -> None:
    script = ROOT / "slurm" / "sweep_array.sbatch"
    done = ended(script, tmp_path, **{**TASK, "SLURM_ARRAY_TASK_ID": "4"}, MAY="1")
    assert done.returncode == 2
    assert "SETTINGS has no line 4 of --array: its 4 lines are numbered from 0" in done.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if s.name.startswith("train")], ids=lambda path: path.name
)
@pytest.mark.parametrize(
    ("file", "others"), [("", "seed=1"), ("x.yaml ", "seed=1"), ("", "--collectors-max 9 seed=1")]
)
def test_a_run_is_resumed_by_its_folder(
    script: Path, file: str, others: str, tmp_path: Path
) -> None:
    (tmp_path / "a run").mkdir()
    words = ("--resume", "a run", *file.split(), *others.split())
    done = ended(script, tmp_path, *words, **TASK, MAY="1", SLURM_JOB_NUM_NODES="2", CODE="2")
    assert done.returncode == 2
    asked = (tmp_path / "asked").read_text()
    (line,) = [line for line in asked.splitlines() if line.startswith("srun ")]
    gpus = "policy.cuda=true policy.learn.learner.learner_num=2 "
    own = gpus if script.name == "train_gpu.sbatch" else ""
    assert f"-m hpcdi train --resume a run {file}{own}{others}" in line
    assert "--run-dir" not in line


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if s.name.startswith("train")], ids=lambda path: path.name
)
def test_a_script_without_arguments_leaves_it_to_hpcdi_to_say_so(
    script: Path, tmp_path: Path
) -> None:
    """Also where a site's line above has left `set -u`."""
    variables = {**TASK, "SLURM_JOB_NUM_NODES": "2", "MAY": "1", "CODE": "2"}
    ended(script, tmp_path, **variables)
    variables |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked")}
    words = ["bash", "-u", tmp_path / "job.sbatch"]
    done = subprocess.run(
        words, env=variables, cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, "hpcdi: the run has not begun (exit code 2)\n")


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("--nodes=3", "nodes", 3), ("-N3", "nodes", 3), ("-N 3", "nodes", 3),
        ("--nodes 3", "nodes", 3), ("nodes=3", "nodes", 3),
        ("--ntasks-per-node=6", "ntasks_per_node", 6), ("--tasks-per-node=6", "ntasks_per_node", 6),
        ("-c 2", "cpus_per_task", 2), ("--gpus-per-node=2", "gpus_per_node", 2),
        ("-t5", "time", "5"), ("-p a,b", "partition", "a,b"), ("--mem=1G", "mem", "1G"),
    ],
)  # fmt: skip
def test_an_option_that_has_a_key_is_that_key(option: str, name: str, value: object) -> None:
    slurm = with_options(replace(SMALL, options=("--hold", option)))
    assert getattr(slurm, name) == value
    assert slurm.options == ("--hold",)
    job = job_of(slurm)
    assert job.ranks == slurm.nodes * slurm.ntasks_per_node
    assert slurm_options(job)[name.replace("_", "-")] == str(value)


@pytest.mark.parametrize(
    "option",
    ["--ntasks=6", "-n 6", "-n6", "--ntasks 6", "--nodes=1-2", "-N1-2", "--nodes=two", "--nodes",
     "--ntasks-per-node=0", "--ntasks-per-core=1", "--ntasks-per-n=3"],
)  # fmt: skip
def test_an_option_that_leaves_the_ranks_open_is_refused(option: str) -> None:
    with pytest.raises(LaunchError, match=r"slurm.nodes and slurm.ntasks_per_node") as caught:
        with_options(replace(SMALL, options=(option,)))
    assert option in str(caught.value)


def test_a_short_option_is_written_in_full() -> None:
    text = script_text(job_of(replace(SMALL, options=("-x node[1-3]",))))
    assert "#SBATCH --exclude='node[1-3]'\n" in text


def test_a_backslash_is_written_as_sbatch_reads_it(tmp_path: Path) -> None:
    """A backslash in --output would keep sbatch from filling in the job's number."""
    slurm = replace(SMALL, options=("--comment=a\\b",))
    text = script_text(BatchJob("x", tmp_path / "a\\b", slurm, "python"))
    assert "#SBATCH --comment='a\\\\b'\n" in text
    assert "--output" not in text
    assert f"RUN='{tmp_path}/a\\b'\n" in text


@pytest.mark.parametrize("option", ["--array=0-3", "-a 0-3", "--wait", "-W", "--wrap=true"])
def test_an_option_that_is_not_the_users_is_refused(option: str) -> None:
    with pytest.raises(LaunchError, match=r"slurm\.options: -"):
        with_options(replace(SMALL, options=(option,)))
