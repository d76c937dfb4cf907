"""A sweep's runs, its folder, and what is told of it."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpcdi import cli
from hpcdi.commands.report.runs import SCORE
from hpcdi.commands.run_state import job_to_come, status_of
from hpcdi.commands.status import lines_of
from hpcdi.commands.sweep import here, population
from hpcdi.commands.sweep import runs as runs_module
from hpcdi.commands.sweep.on_slurm import array_of, packed_job
from hpcdi.commands.sweep.runs import (
    WAITING,
    Population,
    Sweep,
    grid,
    keep,
    look,
    make,
    read,
    to_start,
    values_of,
)
from hpcdi.commands.sweep.table import rows_of
from hpcdi.config.load import load
from hpcdi.errors import ConfigError, LaunchError
from hpcdi.run import experiment as experiment_module
from hpcdi.run import run_folder, run_lock, slurm_queue
from hpcdi.run.environment import kept_for_share
from hpcdi.run.slurm_queue import GONE, QueueJob
from hpcdi.store.layout import RunLayout

SPACE = "policy.learn.learning_rate=log(1e-5,1e-2)"
CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml")


@pytest.fixture(autouse=True)
def _plain_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a", ["a"]),
        ("", [""]),
        ("a,b,c", ["a", "b", "c"]),
        ("0..4", ["0", "1", "2", "3", "4"]),
        ("-1..1", ["-1", "0", "1"]),
        ("7..7", ["7"]),
        ("0..2,7", ["0", "1", "2", "7"]),
        ("1e-3,3e-4", ["1e-3", "3e-4"]),
        ("[64,64],[128]", ["[64,64]", "[128]"]),
        ("{a: [1,2], b: 3},null", ["{a: [1,2], b: 3}", "null"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("'a(b',c", ["'a(b'", "c"]),
        (r'["a\") b, c"]', [r'["a\") b, c"]']),
        ("../data", ["../data"]),
    ],
)
def test_values(text: str, values: list[str]) -> None:
    assert values_of(text) == values


@pytest.mark.parametrize("text", ["4..0", "0..99999", "0..", "..4", "0...4", "1,2..", "a,,b", "a,"])
def test_values_that_are_none(text: str) -> None:
    with pytest.raises(LaunchError, match=r"no range|empty value"):
        values_of(text)


def test_the_last_key_changes_fastest() -> None:
    shared, several = grid(["a=1,2", "x=9", "seed=0..1"])
    assert shared == ["x=9"]
    assert several == [
        ("a=1", "seed=0"), ("a=1", "seed=1"), ("a=2", "seed=0"), ("a=2", "seed=1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["seed=3"], "no setting has several values"),
        (["seed"], "'seed' is not of the form key=value"),
        (["seed=0,1", "policy.nstep=1,3", "seed=1,2"], "seed has several values twice"),
        (["seed=0..2", "seed=7"], "seed has several values twice, or one after them"),
        (["a=0..999", "b=0..99"], "these are 100000 runs"),
    ],
)
def test_what_is_no_sweep(settings: list[str], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        grid(settings)


# ------------------------------------------------------------------------------------- the folder


def make_sweep(root: Path, *settings: str) -> Sweep:
    made, experiments = make(CONFIG, settings or ("seed=0..2",), None, 2, serial=False)
    made = dataclasses.replace(made, root=root)
    keep(made, experiments)
    return made


def begin(sweep: Sweep, index: int, state: str, **facts: Any) -> None:
    """A run that has begun in its folder, and has ended in a state."""
    root = sweep.run_dir(index)
    layout = run_folder.claim(root, {"exp_name": "x"}, [{"role": "serial"}], mpi="none")
    run_folder.end(layout, state, "so it is", 0, {"env_steps": 100 + index, "train_iter": 7})
    evaluation = {
        "mean": 9.0 + index, "std": 0.5, "lowest": 0.0, "highest": 20.0, "episodes": 5,
        "policy_version": 3, "env_steps": 90,
    }  # fmt: skip
    progress = {
        "started_at": 10.0, "written_at": 12.5, "env_steps": 1, "env_steps_per_s": 1.0,
        "train_iter": 1, "train_iters_per_s": 1.0, "evaluations": 1, "evaluation": evaluation,
        "best_evaluation": evaluation, **facts,
    }  # fmt: skip
    layout.status_file.write_text(json.dumps(progress))


def test_each_run_has_its_whole_experiment(tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s", "seed=4..5", "policy.nstep=1,3", "env.stop_value=20")
    assert (made.ranks, made.exp_name, len(made.elements)) == (4, "cartpole_dqn", 4)
    config = load(made.experiment(3)).config
    assert (config.seed, config.policy.nstep, config.env.stop_value) == (5, 3, 20)
    assert config.system.auto_resume is True
    assert read(tmp_path / "s") == made
    held = json.loads(made.manifest.read_text())["runs"][3]
    assert held == {
        "index": 3, "overrides": ["seed=5", "policy.nstep=3"], "job": "", "state": WAITING,
        "run": "003",
    }  # fmt: skip


@pytest.mark.parametrize(
    "setting",
    [
        "seed=0,3,0",
        "policy.learn.learning_rate=1e-3,3e-4,0.001",
        "policy.nstep=1,3,1.0",
        "fault=[],[{kind: kill, role: learner, at_step: 9}],[ ]",
    ],
)
def test_runs_that_are_the_same_are_refused(setting: str) -> None:
    with pytest.raises(LaunchError, match=r"run 2 .* has the same experiment as run 0 "):
        make(CONFIG, [setting], None, 0, serial=True)


def test_every_experiment_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nstep"):
        make_sweep(tmp_path / "s", "policy.nstep=1,three")
    with pytest.raises(LaunchError, match=r"different numbers of ranks \(\[4, 5\]\)"):
        make_sweep(tmp_path / "s", "policy.collect.collector.collector_num=2,3")
    assert list(tmp_path.iterdir()) == []


FAR = """\
env: {type: gymnasium, env_id: "fakes.far_map:Map"}
data: [runs/quick/latest]
policy: {type: bc, other: {commander: {max_train_iter: 4}}}
"""


def test_what_is_found_at_the_start_is_the_same_in_all_runs(tmp_path: Path) -> None:
    """The origin of observations, which has one look of each environment, and what `latest` is."""
    (tmp_path / "runs/quick/first").mkdir(parents=True)
    latest = tmp_path / "runs/quick/latest"
    latest.symlink_to("first")
    (tmp_path / "far.yaml").write_text(FAR)
    looked = list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        look_at = experiment_module.look_at
        patch.setattr(
            experiment_module, "look_at", lambda *a, **k: (looked.append(a), look_at(*a, **k))[1]
        )
        settings = ("env.kwargs.scale=1.0,2.0", "seed=0,1", "env.evaluator_env_num=1,2")
        made, _ = make("far.yaml", settings, None, 0, serial=True)
        keep(made, make("far.yaml", settings, None, 0, serial=True)[1])
    assert len(looked) == 4, "two environments, twice"
    latest.unlink()
    latest.symlink_to("second")
    runs = [load(made.experiment(index)).config for index in range(8)]
    origins = [run.env.origin for run in runs]
    near, far = {"observation": [5_400_000.0, 0.0]}, {"observation": [10_800_000.0, 0.0]}
    assert origins == [near] * 4 + [far] * 4
    assert {run.data for run in runs} == {(str(tmp_path / "runs/quick/first"),)}


def test_an_mpi_program_beside_the_file_is_found_by_every_run(tmp_path: Path) -> None:
    kuramoto = Path(CONFIG).parent / "kuramoto_sac.yaml"
    made, experiments = make(str(kuramoto), ["seed=0,1"], None, 0, serial=False)
    keep(dataclasses.replace(made, root=tmp_path / "s"), experiments)
    for index in range(2):
        env = load(tmp_path / f"s/experiments/{index:03d}.yaml").config.env
        assert env.env_id == str(kuramoto.parent / "solvers" / "kuramoto.c")


def test_the_sweep_of_somebody_else_can_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_sweep(tmp_path / "s", "seed=0,1")
    begin(made, 0, "done")
    before = made.manifest.read_text()

    def refuse(path: Path, *_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(runs_module, "write_json", refuse)
    assert cli.main(["sweep", "status", "s"]) == 0
    assert "2 runs, 1 done, 1 waiting" in capsys.readouterr().out
    assert made.manifest.read_text() == before


def test_the_manifest_follows_the_runs(tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s")
    begin(made, 0, "done")
    begin(made, 1, "failed")
    found, statuses = look(made)
    assert [element.state for element in found.elements] == ["done", "failed", WAITING]
    assert statuses[2] is None
    assert read(made.root) == found
    assert to_start(found) == [1, 2]


def test_a_folder_without_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"holds no sweep: .* of this version in it$"):
        read(tmp_path)
    make_sweep(tmp_path / "sweeps" / "a")
    make_sweep(tmp_path / "sweeps" / "b")
    for above in (tmp_path, tmp_path / "sweeps"):
        with pytest.raises(LaunchError, match=r"holds no sweep: .*; name one, such as .*sweeps/b$"):
            read(above)


# -------------------------------------------------------------------------------------- the table


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_sweep(tmp_path / "s")
    begin(made, 0, "done")
    begin(made, 1, "failed")
    assert cli.main(["sweep", "status", "s"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "cartpole_dqn: 3 runs, 1 done, 1 failed, 1 waiting",
        "index  seed  state    env_steps  train_iter  elapsed_s  best  last",
        "0      0     done     100        7           2s         9.00  9.00",
        "1      1     failed   101        7           2s         10.0  10.0",
        "2      2     waiting  -          -           -          -     -",
        "  next         hpcdi sweep resume s",
    ]
    assert cli.main(["sweep", "status", "s", "--csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    assert rows[1]["reason"] == "so it is"
    assert (rows[1]["best"], rows[1]["best_env_steps"]) == ("10.0", "90")
    assert cli.main(["sweep", "status", "s", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["env_steps"] == 100


def test_seeds_are_taken_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_sweep(tmp_path / "s", "policy.nstep=1,3", "seed=0..2")
    for index in range(5):  # the last seed of the second has not come yet
        begin(made, index, "failed" if index == 1 else "done")
    cli.main(["sweep", "status", "s"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5:-3] == [  # 9 and 11; what has failed does not count
        "  2 seeds of policy.nstep=1: best 10.0 [9.0, 11.0], last 10.0 [9.0, 11.0]",
        "  2 seeds of policy.nstep=3: best 12.5 [12.0, 13.0], last 12.5 [12.0, 13.0]",
    ]
    assert "95 % bootstrap intervals" in lines[-3]


def test_the_area_of_an_offline_run_ends_at_its_train_iterations(tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s")
    limits = {"env_steps": 10_000.0, "train_iter": 200.0, "stop_value": 1000.0}
    begin(made, 0, "done", limits=limits)
    layout = RunLayout(made.run_dir(0))
    layout.config_file.write_text("data: [a]\n")
    layout.curves_file.write_text(
        f"curve,step,time,value\n{SCORE},100,1.0,10.0\n{SCORE},200,2.0,20.0\n"
    )
    row = rows_of(*look(made))[0]
    assert row["area"] == 12.5  # 10 to iteration 100, then from 10 to 20
    assert row["best_train_iter"] == 3
    assert "best_env_steps" not in row


def test_only_a_run_that_is_done_stays_as_good_to_its_limit(tmp_path: Path) -> None:
    made = make_sweep(tmp_path / "s", "seed=0..3")
    for index, state in enumerate(("done", "failed", "stopped")):
        begin(made, index, state, limits={"env_steps": 400.0})
        RunLayout(made.run_dir(index)).curves_file.write_text(
            f"curve,step,time,value\n{SCORE},100,1.0,0.0\n{SCORE},200,2.0,10.0\n"
        )
    assert [row.get("area") for row in rows_of(*look(made))] == [6.25, 2.5, 2.5, None]


@pytest.mark.parametrize(
    ("first", "config"),
    [("seed=0", ""), ("policy.other={commander: {offline_iterations: 0}}", "seed: 0")],
    ids=["it has no settings", "it is online"],
)
def test_what_the_first_run_is_does_not_say_what_the_others_are(
    tmp_path: Path, first: str, config: str
) -> None:
    made = make_sweep(tmp_path / "s")
    for index, text in enumerate((config, "data: [a]")):
        begin(made, index, "done")
        RunLayout(made.run_dir(index)).config_file.write_text(f"{text}\n")
    sweep, statuses = look(made)
    elements = (dataclasses.replace(sweep.elements[0], overrides=(first,)), *sweep.elements[1:])
    online, offline, _ = rows_of(dataclasses.replace(sweep, elements=elements), statuses)
    assert (online["best_env_steps"], offline["best_train_iter"]) == (90, 3)


def test_a_sweep_that_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_sweep(tmp_path / "s", "seed=0,1")
    assert cli.main(["sweep", "status", "s"]) == 0  # nothing is wrong with it yet
    for index in range(2):
        begin(made, index, "done")
    assert cli.main(["sweep", "status", "s"]) == 0
    assert cli.main(["sweep", "resume", "s", "--local"]) == 0
    assert "nothing to start" in capsys.readouterr().out


def test_the_output_of_a_run_is_a_regular_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_sweep(tmp_path / "s", "seed=0,1")
    os.mkfifo(made.output(0))
    assert cli.main(["sweep", "resume", "s", "--local"]) == 1
    assert f"{made.output(0)}: cannot be written" in capsys.readouterr().err


# ------------------------------------------------------------------------------------ the command


def test_a_dry_run_shows_the_commands_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", CONFIG, "seed=1,2", "--local", "--serial", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("run 1 (seed=2): ")
    assert "hpcdi serial runs/cartpole_dqn/sweeps/TIME/experiments/001.yaml" in lines[1]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_for_slurm_shows_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["sweep", CONFIG, "seed=0..3", "--dry-run", "--array-parallelism", "2", "--nodes", "2"]
    assert cli.main([*asked, "--module", "openmpi", "slurm.account=x"]) == 0
    out = capsys.readouterr().out
    for line in (
        "run 3 (seed=3)",
        "sbatch --array=0-3%2 runs/cartpole_dqn/sweeps/TIME/submit/job.sbatch",
        "#SBATCH --array=0-3%2",
        "#SBATCH --account=x",
        "#SBATCH --ntasks-per-node=2",  # four ranks on two nodes
        "module load openmpi",
        'RUN=${HPCDI_RUN:-"$SWEEP/$(printf %03d "$SLURM_ARRAY_TASK_ID")"}',
        'set -- "$SWEEP/experiments/$(printf %03d "$SLURM_ARRAY_TASK_ID").yaml"',
    ):
        assert f"{line}\n" in out, out
    assert "/output/slurm-%A_%a.out" in out


def test_a_dry_run_of_a_packed_sweep_shows_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["sweep", CONFIG, "seed=0..3", "--dry-run", "--pack"]
    assert cli.main([*asked, "--jobs", "2", "--nodes", "2"]) == 0
    out = capsys.readouterr().out
    for line in (
        "sbatch runs/cartpole_dqn/sweeps/TIME/submit/job.sbatch",
        "#SBATCH --ntasks-per-node=4",  # two runs of four ranks on two nodes
        "#SBATCH --signal=B:USR2@120",
        "set -- --jobs 2",
        '"${PYTHON[@]}" -m hpcdi sweep resume "$RUN" --pack "$@" &',
    ):
        assert f"{line}\n" in out, out
    assert "array=0" not in out
    assert cli.main(asked) == 2
    assert "--pack needs the size of the job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--jobs", "2"], "--jobs goes with --local or --pack"),
        (["--local", "--serial", "-n", "4"], "not allowed with argument"),
        (["--pack", "--array-parallelism", "2"], "with --local or --pack: --jobs"),
        (["--pbt", "1000"], "--pbt goes with --local or --pack"),
        (["--pbt-share", "0.6"], "above 0 and at most 0.5"),
        (["--pbt-share", "0.5"], "--pbt-share goes with --pbt"),
        (["--trials", "50"], "--trials is of a search: --optuna SPACE, or --search WHO"),
        (["--score", "area"], "--score is of a search"),
        (["--prune-every", "100"], "--prune-every is of a search"),
        (["--no-prune"], "--no-prune is of a search"),
        (["--seed", "0"], "--seed is of a search"),
        (["--optuna", SPACE, "--pbt-share", "0.5"], "do not go with a search"),
        (["--optuna", SPACE, "--no-prune", "--prune-every", "9"], "not allowed with"),
        (["--search", "random", "--seed", "-1"], "must be an integer from 0, not '-1'"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["sweep", CONFIG, "seed=0..3", "--dry-run", *options])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "restarts", "printed", "code"),
    [
        ("9", "0", ["run 1", "run 2"], 0),  # its own start
        ("9", "1", ["run 2"], 0),  # requeued: what has failed is not tried again
        ("8", "0", ["hpcdi"], 2),  # another job would start what this one runs
    ],
)
def test_a_packed_sweep_belongs_to_its_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    job: str,
    restarts: str,
    printed: list[str],
    code: int,
) -> None:
    sweep = dataclasses.replace(make_sweep(tmp_path / "s"), job="9")
    sweep.save()
    begin(sweep, 0, "done")
    begin(sweep, 1, "failed")
    monkeypatch.setattr(slurm_queue, "ask", lambda job: QueueJob(job, "RUNNING"))
    assert cli.main(["sweep", "status", "s"]) == 1
    assert capsys.readouterr().out.endswith("\n  job          9 is RUNNING\n")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    assert cli.main(["sweep", "resume", "s", "--pack", "--dry-run"]) == code
    said = "".join(capsys.readouterr())
    assert [line[: len(printed[0])] for line in said.splitlines()] == printed


def test_runs_of_a_packed_sweep_wait_with_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On their shares they know it; what has failed before is not tried again."""
    typed = {"command": ["hpcdi", "sweep", CONFIG, "seed=0..3", "--pack"]}
    made = make_sweep(tmp_path / "s", "seed=0..3")
    sweep = dataclasses.replace(made, job="9", started=typed)
    sweep.save()
    with monkeypatch.context() as share:
        for name, value in kept_for_share({"SLURM_JOB_ID": "9"}).items():
            share.setenv(name, value)
        for index, state in enumerate(("stopped", "failed", "done")):
            begin(sweep, index, state)
    (sweep.run_dir(0) / "snapshots" / "snapshot_000001").mkdir(parents=True)
    job = QueueJob("9", "PENDING", output=str(sweep.root / "submit" / "slurm-9.out"))
    monkeypatch.setattr(slurm_queue, "ask", lambda number: dataclasses.replace(job, job_id=number))
    cli.main(["sweep", "status", "s", "--json"])
    states = [row["state"] for row in json.loads(capsys.readouterr().out)]
    assert states == ["pending", "failed", "done", WAITING]
    assert status_of(sweep.run_dir(0), lambda _job: job).state == "pending"
    assert status_of(sweep.run_dir(1), lambda _job: job).state == "failed"
    to_come = [job_to_come(RunLayout(sweep.run_dir(index))) for index in (0, 1)]
    assert [coming is not None for coming in to_come] == [True, False]
    assert cli.main(["status", "9"]) == 2
    assert "job 9 does all runs of a sweep: hpcdi sweep status s;" in capsys.readouterr().err
    ended = status_of(sweep.run_dir(0), lambda _job: QueueJob("9", "FAILED"))
    assert lines_of(ended)[-1] == "  next         hpcdi sweep resume s --pack"


@pytest.mark.parametrize(
    ("own", "job", "expected"),
    [
        ("", QueueJob("9", "CANCELLED"), "dead"),
        ("", QueueJob("9", GONE), "dead"),
        ("", QueueJob("9", "RUNNING"), "starting"),
        ("9", QueueJob("9", "CANCELLED"), "starting"),  # that job itself looks, and asks nobody
    ],
)
def test_a_packed_run_is_dead_once_its_job_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, job: QueueJob, expected: str
) -> None:
    """Though its lock, of another host, is fresh."""
    sweep = make_sweep(tmp_path / "s")
    with monkeypatch.context() as share:
        for name, value in kept_for_share({"SLURM_JOB_ID": "9"}).items():
            share.setenv(name, value)
        layout = run_folder.claim(sweep.run_dir(0), {"exp_name": "x"}, [], mpi="none")
    held = dataclasses.asdict(run_lock.this_process())
    layout.lock_file.write_text(json.dumps({**held, "host": "node9"}))
    facts = {**run_folder.read(layout.root), "host": "node9"}
    layout.run_file.write_text(json.dumps(facts))
    monkeypatch.setenv("SLURM_JOB_ID", own)
    monkeypatch.setattr(slurm_queue, "ask_all", lambda ids: dict.fromkeys(ids, job))
    assert look(sweep)[0].elements[0].state == expected


@pytest.mark.parametrize("way", ["its own job", "an array", "packed anew"])
def test_a_failed_run_of_a_packed_sweep_waits_for_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Only the job in which it has failed starts it no more."""
    packed = "11" if way == "packed anew" else "9"
    sweep = dataclasses.replace(make_sweep(tmp_path / "s", "seed=0..1"), job=packed)
    with monkeypatch.context() as share:
        for name, value in kept_for_share({"SLURM_JOB_ID": "9"}).items():
            share.setenv(name, value)
        begin(sweep, 0, "done")
        begin(sweep, 1, "failed")

    def ask(job: str) -> QueueJob:
        return QueueJob(job, "FAILED" if job == "9" else "PENDING")

    monkeypatch.setattr(slurm_queue, "ask", ask)
    monkeypatch.setattr(slurm_queue, "ask_all", lambda jobs: {job: ask(job) for job in jobs})
    sweep = sweep.with_jobs({1: "10_1"} if way == "an array" else {})
    sweep.save()
    if way == "its own job":
        file = RunLayout(sweep.run_dir(1)).submit_file
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"job": {"SLURM_JOB_ID": "12"}}))
        assert status_of(sweep.run_dir(1), ask).state == "pending"
    else:
        now, _ = look(sweep, packed_job(sweep))
        assert [element.state for element in now.elements] == ["done", "pending"]
        assert to_start(now) == []


@pytest.mark.parametrize("is_population", [True, False])
def test_a_sweep_whose_disk_is_full_is_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_population: bool
) -> None:
    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made = make_sweep(tmp_path / "s", "seed=0..1")
    if is_population:
        dataclasses.replace(made, population=Population(64, 192, 0.5, 0, ())).save()
        monkeypatch.setattr(population, "_write_experiments", full)
    else:
        monkeypatch.setattr(here, "open_to_append", full)
    assert cli.main(["sweep", "resume", "s", "--local"]) == 85


@pytest.mark.parametrize(
    ("indices", "parallel", "told"),
    [([0, 1, 2, 3], 0, "0-3"), ([5], 4, "5%4"), ([9, 0, 1, 7], 2, "0-1,7,9%2")],
)
def test_indices_as_slurm_takes_them(indices: list[int], parallel: int, told: str) -> None:
    assert array_of(indices, parallel) == told


@pytest.mark.parametrize(
    "form",
    [["seed=0,1"], ["seed=0,1", "--pack", "--jobs", "2"], ["--search", "random", "--space", SPACE]],
    ids=["array", "packed", "search"],
)
@pytest.mark.parametrize("more", [["--dry-run"], []], ids=["dry", "submitted"])
def test_a_job_without_time_to_do_anything_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: list[str],
    more: list[str],
) -> None:
    monkeypatch.setattr(slurm_queue, "is_there", lambda: True)
    assert cli.main(["sweep", CONFIG, *form, "--time", "2:00", *more]) == 2
    assert "slurm.time: 2:00 is too short" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_is_resumed_as_a_job_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(*_short(tmp_path / "s"))
    assert cli.main(["sweep", "resume", "s"]) == 2
    assert "slurm.time: 1:00 is too short" in capsys.readouterr().err
    assert cli.main(["sweep", CONFIG, "seed=0,1", "--dry-run", "--option=--time"]) == 2
    assert "the time limit '' is not a duration" in capsys.readouterr().err


def _short(root: Path) -> tuple[Sweep, list[dict[str, Any]]]:
    made, experiments = make(CONFIG, ["seed=0,1", "slurm.time='1:00'"], None, 0, serial=False)
    return dataclasses.replace(made, root=root), experiments


def test_without_slurm_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", CONFIG, "seed=0..3"]) == 2
    assert "there is no sbatch here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


JOB = QueueJob("9_1", "PENDING")


@pytest.mark.parametrize(
    ("state", "own", "job", "expected"),
    [
        (None, "", None, WAITING),
        (None, "9_1", None, "pending"),  # the queue does not answer
        (None, "9_1", JOB, "pending"),
        (None, "9_1", QueueJob("9_1", "RUNNING"), "starting"),
        (None, "9_1", QueueJob("9_1", "FAILED"), "dead"),
        ("failed", "8_1", JOB, "pending"),  # submitted again
        ("failed", "8_1", QueueJob("9_1", "RUNNING"), "starting"),
        ("failed", "9_1", QueueJob("9_1", "COMPLETING"), "failed"),
        ("done", "8_1", JOB, "done"),
        ("stopped", "9_1", QueueJob("9_1", "UNKNOWN"), "stopped"),
    ],
)
def test_the_state_of_a_run_that_may_have_been_submitted_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str | None,
    own: str,
    job: QueueJob | None,
    expected: str,
) -> None:
    sweep = make_sweep(tmp_path / "s").with_jobs({1: "9_1"} if own else {})
    if state is not None:
        array, _, index = own.partition("_")
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", array)
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", index)
        begin(sweep, 1, state)
    jobs = {job.job_id: job} if job is not None else {}
    monkeypatch.setattr(slurm_queue, "ask_all", lambda _ids: jobs)
    assert look(sweep)[0].elements[1].state == expected


@pytest.mark.parametrize("names", ["next_job.json", "run.json"])
def test_a_run_that_goes_on_in_another_job_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """Where jobs may not be requeued, each is followed by another one."""
    sweep = make_sweep(tmp_path / "s").with_jobs({1: "9_1"})
    monkeypatch.setenv("SLURM_JOB_ID", "9" if names == "next_job.json" else "13")
    begin(sweep, 1, "stopped")
    if names == "next_job.json":
        (sweep.run_dir(1) / names).write_text('{"job": {"SLURM_JOB_ID": "13"}}')
    jobs = {"9_1": QueueJob("9_1", "FAILED"), "13": QueueJob("13", "PENDING")}
    monkeypatch.setattr(slurm_queue, "ask_all", lambda ids: {i: jobs[i] for i in ids if i in jobs})
    found, _ = look(sweep)
    assert found.elements[1].state == "pending"
    assert 1 not in to_start(found)
    jobs["13"] = QueueJob("13", "CANCELLED")
    assert 1 in to_start(look(sweep)[0])


def test_jobs_that_are_submitted_while_somebody_looks_stay_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path / "s").with_jobs({0: "9_0", 1: "9_1"})
    sweep.save()

    def resumed_meanwhile(_ids: object) -> dict[str, QueueJob]:
        sweep.with_jobs({1: "12_1"}).save()
        return {job: QueueJob(job, "FAILED") for job in ("9_0", "9_1")}

    monkeypatch.setattr(slurm_queue, "ask_all", resumed_meanwhile)
    assert [element.state for element in look(sweep)[0].elements[:2]] == ["dead", "dead"]
    kept = read(sweep.root).elements
    assert [(element.job, element.state) for element in kept[:2]] == [
        ("9_0", "dead"), ("12_1", WAITING),
    ]  # fmt: skip


def test_the_job_that_goes_on_with_a_packed_sweep_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also without its variable: sbatch --export=NONE hands no HPCDI_RUN on."""
    sweep = dataclasses.replace(make_sweep(tmp_path / "s"), job="9")
    sweep.save()
    begin(sweep, 0, "done")
    states = {"9": "FAILED", "13": "PENDING"}
    monkeypatch.setattr(slurm_queue, "ask", lambda job: QueueJob(job, states[job]))
    assert packed_job(sweep) is None
    (sweep.root / "next_job.json").write_text('{"job": {"SLURM_JOB_ID": "13"}}')
    resume = ["sweep", "resume", "s", "--pack", "--dry-run"]
    assert cli.main(resume) == 2
    assert "job 13 is PENDING: it runs this sweep" in capsys.readouterr().err
    states["13"] = "RUNNING"
    for job, code in (("13", 0), ("14", 2)):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        assert cli.main(resume) == code
    assert "job 13 is RUNNING: it runs this sweep" in capsys.readouterr().err
    # also while other tasks of a search's array are on
    states["9"] = "RUNNING"
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    monkeypatch.setenv("HPCDI_RUN", str(sweep.root))
    assert cli.main(resume) == 0


def test_a_population_is_not_resumed_as_an_array(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_sweep(tmp_path / "s")
    population = Population(64, 192, 0.25, 0, ())
    typed = {"command": ["hpcdi", "sweep", "x.yaml", "--pbt", "64", "--local", "--pack"]}
    dataclasses.replace(made, population=population, started=typed).save()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["sweep", "resume", "s", "--dry-run"])
    assert "--pbt goes with --local or --pack" in capsys.readouterr().err
    assert cli.main(["sweep", "status", "s"]) == 0
    assert capsys.readouterr().out.endswith("  hpcdi sweep resume s --local --pack\n")
    assert cli.main(["sweep", "resume", "s", "--local", "--dry-run"]) == 0


def test_only_what_is_not_done_can_be_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(make_sweep(tmp_path / "s"), 1, "done")
    again = ["sweep", "resume", "s", "--local", "--dry-run"]
    assert cli.main(again) == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == ["run 0", "run 2"]
    assert cli.main([*again, "--index", "2"]) == 0
    assert capsys.readouterr().out.startswith("run 2 (seed=2): ")
    assert cli.main([*again, "--index", "1"]) == 2
    assert "runs [1] are done, pending, running, or not of this sweep" in capsys.readouterr().err


def test_a_folder_that_is_taken_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep(tmp_path / "s")
    assert cli.main(["sweep", CONFIG, "seed=1,2", "--local", "--sweep-dir", "s"]) == 2
    said = capsys.readouterr().err
    assert "s is not empty and holds no run" in said
    assert "Choose another --sweep-dir" in said


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["sweep", "--help"], ["sweep", "status", "--help"]):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        out = capsys.readouterr().out
        assert out.count("\n  hpcdi sweep ") == 9
        assert "exit codes: 0 submitted" in out
