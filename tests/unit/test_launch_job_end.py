"""When a batch job ends, by stand-ins for the commands of Slurm, PBS and LSF."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from hpcdi.run.environment import kept_for_share
from hpcdi.run.job_end import job_end, lsf_left_s, pbs_end
from hpcdi.run.signals import end_of

BEGAN = time.mktime((2026, 11, 26, 15, 4, 5, 0, 0, -1))
OPENPBS = """Job Id: 12.head
    Job_Name = train
    resources_used.walltime = 00:10:00
    job_state = R
    Resource_List.select = 2:ncpus=8
    Resource_List.walltime = 01:30:00
    stime = Thu Nov 26 15:04:05 2026
    Variable_List = PBS_O_HOME=/home/me,PBS_O_LANG=C,
\tPBS_O_WORKDIR=/home/me
"""
TORQUE = """Job Id: 12[3].head
    Resource_List.walltime = 100:00:00
    start_time = Thu Nov 26 15:04:05 2026
    Walltime.Remaining = 359400
"""
WITHOUT_BEGINNING = "    Resource_List.walltime = 3600\n    resources_used.walltime = 00:10:00\n"


@pytest.mark.parametrize(
    ("said", "end"),
    [
        (OPENPBS, BEGAN + 5400),
        (TORQUE, BEGAN + 360000),
        (WITHOUT_BEGINNING, 1000 + 3000),
        (OPENPBS.replace("    Resource_List.walltime = 01:30:00\n", ""), math.inf),
        (OPENPBS.replace("01:30:00", "1:00:00:00"), BEGAN + 86400),
        (OPENPBS.replace("Thu Nov", "jeu. nov."), 1000 + 4800),
        ("qstat: Unknown Job Id 12.head\n", math.inf),
        ("    Resource_List.walltime = \n", math.inf),
        ("    Resource_List.walltime = a day\n    stime = today\n", math.inf),
        ("", math.inf),
    ],
)
def test_what_qstat_says(said: str, end: float) -> None:
    assert pbs_end(said, 1000.0) == end


@pytest.mark.parametrize(
    ("said", "left_s"),
    [
        ("1:05 L\n", 3900), ("0:00 X\n", 0), ("100:00 L", 360000), ("0:30", 1800),
        ("0:30 E\n", math.inf), ("-\n", math.inf), ("", math.inf),
        ("Job <9> is not found\n", math.inf),
    ],
)  # fmt: skip
def test_what_bjobs_says(said: str, left_s: float) -> None:
    assert lsf_left_s(said) == left_s


def stand_in(folder: Path, name: str, lines: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{lines}\n")
    file.chmod(0o755)


def test_the_queue_is_asked_about_this_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    stand_in(tmp_path, "qstat", 'test "$*" = "-f 12[3].head" && echo "stime = Thu Nov 26 15:04:05 '
             '2026\n Resource_List.walltime = 00:30:00"')  # fmt: skip
    stand_in(tmp_path, "bjobs", 'test "$*" = "-noheader -o time_left 9[4]" && echo "0:30 L"')
    assert job_end({"PBS_JOBID": "12[3].head"}, 1000.0).at == BEGAN + 1800
    assert end_of(None, {"LSB_JOBID": "9", "LSB_JOBINDEX": "4"}, 1000.0).at == 2800
    assert end_of("10:00", {"LSB_JOBID": "9"}, 1000.0).at == 1600, "what the user says comes first"
    pbs = kept_for_share({"PBS_JOBID": "12[3].head"})
    assert job_end(pbs, 1000.0).at == BEGAN + 1800, "in a share"
    lsf = kept_for_share({"LSB_JOBID": "9", "LSB_JOBINDEX": "4"})
    assert end_of(None, lsf, 1000.0).at == 2800
    assert job_end({"PBS_JOBID": "7.other"}, 1000.0).at == math.inf, "the stand-in refuses"


@pytest.mark.parametrize(
    ("state", "ends", "end"),
    [
        ("RUNNING", "2026-11-26T15:04:05", BEGAN),
        ("RUNNING", "Unknown", math.inf),
        ("COMPLETED", "2026-11-26T15:04:05", math.inf),  # of a salloc whose shell lives on
    ],
)
def test_slurm_is_asked_where_no_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, ends: str, end: float
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    words = f"JobId=90 ArrayJobId=12 ArrayTaskId=3 JobState={state} EndTime={ends} Partition=x"
    stand_in(tmp_path, "scontrol", f'test "$4" = 12_3 && echo "{words}"')
    variables = {"SLURM_JOB_ID": "90", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    assert job_end(variables, 1000.0).at == end
    assert job_end({**variables, "SLURM_JOB_END_TIME": "5000"}, 1000.0).at == 5000
    assert job_end({**variables, "SLURM_JOB_END_TIME": "900"}, 1000.0).at == end, "it is past"


def test_a_queue_whose_command_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert job_end({"PBS_JOBID": "12.head"}, 1000.0).at == math.inf
    assert job_end({"LSB_JOBID": "9"}, 1000.0).at == math.inf
    assert job_end({"SLURM_JOB_ID": "9"}, 1000.0).at == math.inf
    assert job_end({"HOME": "/root"}, 1000.0).at == math.inf
