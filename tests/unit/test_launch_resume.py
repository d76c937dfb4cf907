"""How a run begins: new, from a snapshot, anew, or not at all."""

from __future__ import annotations

import json
import shlex
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.failing_files import FailingFiles
from fakes.small_disk import mounted
from hpcdi.comm.failure import exit_code_of
from hpcdi.config.load import load, read_mapping
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import CheckpointError, HpcdiError, LaunchError, NoProgressError
from hpcdi.roles.coordinator.snapshots import STATE_FILE, STATE_KIND, STATE_VERSION
from hpcdi.run import resume, run_folder
from hpcdi.run.experiment import load_experiment
from hpcdi.run.local import ranks_of
from hpcdi.run.placement import RankPlace
from hpcdi.run.request import RunRequest
from hpcdi.run.resume import NewSettings, StartMode, config_of, folder_of, read_newest, start_mode
from hpcdi.run.run_lock import RunLock
from hpcdi.run.start import start
from hpcdi.store.checkpoints import save_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.store.state_file import save_state
from hpcdi.utils.curves import CurveFile, read_curves
from hpcdi.utils.event_file import TensorBoardWriter

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml")
SLURM = {"SLURM_JOB_ID": "7"}
PLACEMENT = [RankPlace("a", role="coordinator")]


@dataclass(frozen=True)
class Line(RunRequest):
    """A command line."""

    config: str | None = CONFIG

    def experiment(self) -> ExperimentConfig:
        return load(config_of(self), self.overrides).config

    def mode(self, variables: Mapping[str, str] | None = None) -> StartMode:
        return start_mode(self, self.experiment(), variables or {})


def take(line: Line, mode: StartMode) -> int:
    layout = RunLayout(folder_of(line, mode, "x"))
    return resume.take(layout, mode, line.experiment(), PLACEMENT, mpi="")


def reach(path: Path, train_iter: int, env_steps: int) -> None:
    """Let a run have a snapshot."""
    facts = {"train_iter": train_iter, "env_steps": env_steps, "saved_at": 0.0, "learners": [1]}
    name = f"snapshot_{train_iter:03d}_{env_steps:03d}"
    save_checkpoint(RunLayout(path).snapshots_dir, name, {}, facts, keep=2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was started, and killed."""
    path = tmp_path / "run"
    assert take(Line(run_dir=str(path)), StartMode.NEW) == 0
    return path


def set_state(run: Path, state: str) -> None:
    run_folder.end(RunLayout(run), state, "why not", 0, {})


@pytest.mark.parametrize(
    ("auto", "variables", "goes_on"),
    [
        ("null", {}, False), ("null", SLURM, True), ("true", {}, True), ("false", SLURM, False),
    ],
)  # fmt: skip
def test_a_folder_is_gone_on_with_inside_slurm_or_where_that_is_wanted(
    run: Path, auto: str, variables: dict[str, str], goes_on: bool
) -> None:
    reach(run, 10, 100)
    line = Line(overrides=(f"system.auto_resume={auto}",), run_dir=str(run))
    mode = line.mode(variables)
    assert mode is (StartMode.RESUME if goes_on else StartMode.NEW)
    if not goes_on:
        with pytest.raises(LaunchError, match="holds another run"):
            folder_of(line, mode, "x")


def test_what_the_folder_holds_says_how(run: Path, tmp_path: Path) -> None:
    line = Line(run_dir=str(run))
    assert Line().mode(SLURM) is StartMode.NEW
    assert Line(run_dir=str(tmp_path / "none")).mode(SLURM) is StartMode.NEW
    assert line.mode(SLURM) is StartMode.RESTART
    reach(run, 10, 100)
    for state in ("failed", "stopped", "running"):
        set_state(run, state)
        assert line.mode(SLURM) is StartMode.RESUME
    set_state(run, "done")
    assert line.mode(SLURM) is StartMode.DONE
    assert "is done already (why not)" in resume.done_line(run)
    RunLayout(run).run_file.write_text("")
    with pytest.raises(LaunchError, match=r"run.json is damaged: .*; nothing was changed"):
        line.mode(SLURM)  # to begin anew would remove the snapshots
    shutil.rmtree(RunLayout(run).snapshots_dir)
    assert line.mode(SLURM) is StartMode.RESTART  # killed while it took the folder


OFFLINE = "policy.other.commander.offline_iterations"


@pytest.mark.parametrize(
    ("began", "now", "why"),
    [
        (("data=[x]", f"{OFFLINE}=9"), (f"{OFFLINE}=0",), "begun offline, .* would be lost"),
        (("data=[x]", f"{OFFLINE}=9"), (f"{OFFLINE}=inf", "data=[]"), "begun offline"),
        (("data=[x]", f"{OFFLINE}=0"), (f"{OFFLINE}=9",), "begun by collecting"),
        ((), ("data=[y]", f"{OFFLINE}=0"), "so y would not be learnt from"),
        (("data=[x]", f"{OFFLINE}=9"), (f"{OFFLINE}=1",), ""),
        (("data=[x]", f"{OFFLINE}=0"), ("data=[]", f"{OFFLINE}=inf"), ""),
    ],
)
def test_a_resumed_run_keeps_the_axis_of_its_curves_and_is_given_nothing_new(
    tmp_path: Path, began: tuple[str, ...], now: tuple[str, ...], why: str
) -> None:
    path = tmp_path / "run"
    take(Line(run_dir=str(path), overrides=began), StartMode.NEW)
    reach(path, 10, 100)
    line = Line(config=None, resume=str(path), overrides=now)
    if not why:
        assert line.mode() is StartMode.RESUME
        return
    with pytest.raises(LaunchError, match=why):
        line.mode()


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("key", ["train_iter", "env_steps", "saved_at", "learners", "facts"])
def test_a_snapshot_with_a_damaged_key_is_passed_over(run: Path, key: str, *, is_old: bool) -> None:
    """It was a KeyError. Manifests of older versions have no checksum of their own."""
    reach(run, 10, 100)
    reach(run, 20, 200)
    manifest = RunLayout(run).snapshots_dir / "snapshot_020_200" / "manifest.json"
    held = json.loads(manifest.read_text())
    if is_old:
        del held["crc32"]
        held["files"] = {"x": {"bytes": 1, "crc32": 2}}
        manifest.with_name("x").write_bytes(b"x")
        held["files"]["x"]["crc32"] = zlib.crc32(b"x")
    manifest.write_text(json.dumps(held).replace(f'"{key}"', '"dam@ged"'))
    assert resume.newest_snapshot(RunLayout(run)).facts["train_iter"] == 10
    assert take(Line(run_dir=str(run)), StartMode.RESUME) == 1


def test_a_link_to_the_newest_run_is_called_by_its_name(run: Path) -> None:
    latest = run.with_name("latest")
    latest.symlink_to(run.name)
    assert folder_of(Line(resume=str(latest)), StartMode.RESUME, "x") == run


def test_a_full_disk_refuses_to_resume_and_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    """With room for the lock, and for no more; it was a traceback."""
    with mounted(tmp_path / "small", "1m") as disk:
        path = disk.root / "run"
        line = Line(run_dir=str(path))
        take(line, StartMode.NEW)
        reach(path, 10, 100)
        set_state(path, "stopped")
        kept = RunLayout(path).run_file.read_bytes()
        disk.fill()
        with pytest.raises(LaunchError, match="cannot be written: No space left on device"):
            RunLock(RunLayout(path))
        assert not RunLayout(path).lock_file.exists(), "an empty one would stand for a process"
        with pytest.raises(LaunchError, match=r"No space left .*Free some space and try again"):
            take(line, StartMode.RESUME)
        assert RunLayout(path).run_file.read_bytes() == kept
        disk.free()
        assert take(line, StartMode.RESUME) == 1


def test_another_experiment_is_not_gone_on_with(run: Path) -> None:
    set_state(run, "done")
    line = Line(overrides=("seed=1", "policy.nstep=2"), run_dir=str(run))
    with pytest.raises(LaunchError, match="holds a run of another experiment") as caught:
        line.mode(SLURM)
    assert "\n  - seed: 0 in the run, 1 now" in str(caught.value)
    assert "\n  - policy.nstep: 5 in the run, 2 now" in str(caught.value)


def test_a_run_that_is_done_by_other_settings_is_not_called_done(run: Path) -> None:
    """A job whose folder was taken would else end well, with nothing of its experiment trained."""
    set_state(run, "done")
    free = ("system.auto_resume=true", "system.import_path=[/else]", "slurm.nodes=7")
    assert Line(overrides=free, run_dir=str(run)).mode() is StartMode.DONE
    line = Line(overrides=("policy.learn.learning_rate=0.5",), run_dir=str(run))
    with pytest.raises(
        LaunchError, match="holds a run that is done, with other settings"
    ) as caught:
        line.mode(SLURM)
    assert "\n  - policy.learn.learning_rate: 0.001 in the run, 0.5 now" in str(caught.value)


def test_a_run_that_is_requeued_has_the_data_that_latest_showed_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused, as one of other data, where a newer run was beside them meanwhile."""
    monkeypatch.chdir(tmp_path)
    runs = [tmp_path / "runs" / "x" / name for name in ("first", "second")]
    for folder in runs:
        folder.mkdir(parents=True)
    (latest := runs[0].with_name("latest")).symlink_to("first")
    given = ("policy.other.commander.offline_iterations=9", "data=[runs/x/latest, runs/x/second]")
    line = Line(overrides=given, run_dir="goes_on")

    def began() -> ExperimentConfig:
        return load_experiment(config_of(line), resume.overrides_of(line))[0].config

    config = began()
    assert config.data == tuple(map(str, runs))
    resume.take(RunLayout(tmp_path / "goes_on"), StartMode.NEW, config, PLACEMENT, mpi="")
    latest.unlink()
    latest.symlink_to("second")
    assert began().data == config.data
    assert start_mode(line, began(), SLURM) is StartMode.RESTART
    other = Line(overrides=(*given[:1], "data=[runs/x/latest, runs/x/first]"), run_dir="goes_on")
    assert resume.overrides_of(other)[-1] == f'data=["{runs[0]}", "runs/x/first"]'
    with pytest.raises(LaunchError, match="a run of another experiment"):
        start_mode(other, load(CONFIG, resume.overrides_of(other)).config, SLURM)


def test_a_league_that_is_requeued_has_the_policies_that_latest_showed_as_it_began(
    tmp_path: Path,
) -> None:
    """Its players' files were looked for in the run that was the newest one by then: itself."""
    key = "policy.other.commander.league.fixed"
    file, run = tmp_path / "x.yaml", tmp_path / "🗀" / "first"
    (tmp_path / "goes_on").mkdir()
    file.write_text("env: {env_id: x}\n")
    given = (f"{key}.a={tmp_path}/🗀/latest/a.safetensors", f"{key}.b={tmp_path}/🗀/latest/b")
    given += (f"{key}.c=🗀/latest/a.safetensors",)  # beside the experiment's file
    fixed = {"a": f"{run}/a.safetensors", "b": f"{run}/c", "c": f"{run}/a.safetensors"}
    of_run = {"commander": {"league": {"fixed": fixed}}}
    written = json.dumps({"policy": {"other": of_run}}, ensure_ascii=False)
    (tmp_path / "goes_on" / "config.yaml").write_text(written)
    line = Line(str(file), given, run_dir=str(tmp_path / "goes_on"))
    kept = [f'{key}.{name}="{run}/a.safetensors"' for name in ("a", "c")]
    assert resume.overrides_of(line) == [*given, *kept]
    read = read_mapping(file, resume.overrides_of(line))
    assert read["policy"]["other"]["commander"]["league"]["fixed"]["a"] == fixed["a"]


@pytest.mark.parametrize(("name", "quoted"), [("a b", "'a b'"), ("ü", "'ü'"), ("(it's)", None)])
def test_a_folder_whose_name_a_shell_quotes_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, quoted: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    take(Line(run_dir=str(path)), StartMode.NEW)
    reach(path, 10, 100)
    assert Line(run_dir=name).mode(SLURM) is StartMode.RESUME
    with pytest.raises(LaunchError, match="holds a run of another experiment") as caught:
        Line(overrides=("seed=1",), run_dir=name).mode(SLURM)
    assert f"--resume {quoted or shlex.quote(name)} key=value" in str(caught.value)


def test_a_configuration_beside_resume_is_compared_key_by_key(run: Path, tmp_path: Path) -> None:
    reach(run, 10, 100)
    other = tmp_path / "other.yaml"
    text = Path(CONFIG).read_text().replace("nstep: 5", "nstep: 3").replace("0.001", "0.002")
    other.write_text(text)
    line = Line(str(other), resume=str(run))
    with pytest.raises(LaunchError, match=r"does not fit the snapshots of") as caught:
        line.mode()
    assert str(caught.value).count("\n  - ") == 1
    assert "policy.nstep: 5 in the run, 3 now" in str(caught.value)
    assert Line(str(other), ("policy.nstep=3",), resume=str(run)).mode() is StartMode.RESUME
    assert Line(str(other), ("policy.nstep=5",), resume=str(run)).mode() is StartMode.RESUME
    assert Line(None, ("policy.nstep=3",), resume=str(run)).mode() is StartMode.RESUME
    assert config_of(Line(None, resume=str(run))) == str(run / "config.yaml")


@pytest.mark.parametrize(
    ("overrides", "ranks"),
    [((), 9), (("policy.learn.batch_size=64",), 9), (("collector_num=4",), 6),
     (("collector_num=2",), 4), (("collector_num=4", "collector_max=5"), 7)],
)  # fmt: skip
def test_a_run_goes_on_over_as_many_ranks_or_with_the_collectors_that_are_wanted_now(
    tmp_path: Path, overrides: tuple[str, ...], ranks: int
) -> None:
    """It said "resumed with collector_num: 2 in the run, 4 now", and had as many as before."""
    places = [RankPlace("a", rank=rank, role="x") for rank in range(9)]  # by -n 9
    layout = RunLayout(tmp_path / "run")
    resume.take(layout, StartMode.NEW, Line().experiment(), places, mpi="")
    where = "policy.collect.collector."
    settings = [each if "." in each else where + each for each in overrides]
    line = Line(None, tuple(settings), resume=str(layout.root))
    assert ranks_of(line, line.experiment()) == ranks


def test_a_run_that_came_to_nothing_begins_anew(run: Path) -> None:
    for left in (
        "data/rank00002/a.h5",
        "tb/events",
        "curves.csv",  # else the new run's points would be among those of the old one
        "callbacks/rank00002.json",
        "league.json",
        "log/rank00000.jsonl",
        "checkpoints/a/b",
    ):
        (run / left).parent.mkdir(parents=True, exist_ok=True)
        (run / left).write_text("left")
    started = run_folder.read(run)["started"]
    (run / "status.json").write_text('{"started_at": 5.0, "written_at": 8.0}')
    line = Line(overrides=("env.stop_value=7",), run_dir=str(run))
    assert take(line, StartMode.RESTART) == 1
    assert sorted(path.name for path in run.iterdir()) == [
        ".reserve",
        "config.yaml",
        "log",
        "run.json",
    ]
    facts = run_folder.read(run)
    assert facts["started"] >= started
    assert run_folder.spent(facts, {})["elapsed_s"] == 3.0, "it counts in what the run has cost"
    assert (facts["state"], facts["restarts"], facts["restarts_without_progress"]) == (
        "running", 1, 1,
    )  # fmt: skip
    assert load(run / "config.yaml").config.env.stop_value == 7


@pytest.mark.parametrize("reached", [(0, 0), (0, 90), (3, 90)])
def test_new_settings_are_the_run_s_from_its_first_snapshot_by_them_on(
    run: Path, reached: tuple[int, int]
) -> None:
    def kept() -> Any:
        return load(run / "config.yaml").config.env.stop_value

    reach(run, *reached)
    line = Line(overrides=("env.stop_value=7",), run_dir=str(run))
    take(line, StartMode.RESUME)
    settings = NewSettings(RunLayout(run), line.experiment())
    settings.look(10.0)
    assert kept() == 195
    reach(run, 5, 100)
    settings.look(10.9)
    assert kept() == 195  # it has looked just now
    settings.look(11.0)
    assert kept() == 7


def test_at_its_end_a_run_looks_at_once_and_a_new_one_never(run: Path) -> None:
    before = (run / "config.yaml").stat().st_mtime_ns
    new = NewSettings(RunLayout(run), Line().experiment())
    reach(run, 5, 100)
    new.look(10.0, at_once=True)
    assert (run / "config.yaml").stat().st_mtime_ns == before
    again = NewSettings(RunLayout(run), Line(overrides=("seed=9",)).experiment())
    again.look(0.1)
    reach(run, 6, 120)
    again.look(0.2, at_once=True)
    assert load(run / "config.yaml").config.seed == 9


def test_restarts_without_progress_are_counted_and_capped(run: Path) -> None:
    line = Line(resume=str(run), overrides=("system.max_restarts_without_progress=2",))
    reach(run, 10, 100)
    for reached, in_vain in (
        ((10, 100), 0), ((10, 100), 1), ((10, 101), 0), ((10, 101), 1), ((11, 101), 0),
        ((11, 101), 1), ((11, 101), 2),
    ):  # fmt: skip
        reach(run, *reached)
        take(line, StartMode.RESUME)
        assert run_folder.read(run)["restarts_without_progress"] == in_vain
    before = run_folder.read(run)
    with pytest.raises(NoProgressError, match="restarted 2 times in a row") as caught:
        take(line, StartMode.RESUME)
    assert caught.value.exit_code == 1
    assert "train iteration 11" in str(caught.value)
    after = run_folder.read(run)
    assert (after["state"], after["reason"], after["exit_code"]) == ("failed", str(caught.value), 1)
    assert {name: after[name] for name in before if name in after and name != "state"} == {
        name: value for name, value in before.items() if name not in ("state", "before")
    }
    more = Line(resume=str(run))  # 3 by default
    assert take(more, StartMode.RESUME) == 8
    reach(run, 12, 101)
    assert take(line, StartMode.RESUME) == 9
    assert json.loads(RunLayout(run).run_file.read_text())["restarts_without_progress"] == 0


def test_a_run_that_dies_before_its_first_snapshot_is_not_started_for_ever(run: Path) -> None:
    line: Any = Line(run_dir=str(run), overrides=("system.max_restarts_without_progress=2",))
    assert [take(line, StartMode.RESTART), take(line, StartMode.RESTART)] == [1, 2]
    with pytest.raises(NoProgressError):
        take(line, StartMode.RESTART)


def test_torn_snapshots_are_never_wiped(run: Path) -> None:
    reach(run, 10, 100)
    (manifest,) = run.rglob("manifest.json")
    manifest.unlink()
    line = Line(run_dir=str(run))
    assert line.mode(SLURM) is StartMode.RESUME
    before = RunLayout(run).run_file.read_bytes()
    with pytest.raises(CheckpointError, match=r"no whole snapshot .*\n  - .*manifest.json"):
        take(line, StartMode.RESUME)
    assert RunLayout(run).run_file.read_bytes() == before


@pytest.mark.parametrize("where", ["run.json", "config.yaml", "/snapshots", "manifest.json"])
@pytest.mark.parametrize("named", [True, False])
def test_a_file_system_that_fails_decides_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, where: str, *, named: bool
) -> None:
    """A run that cannot be read is neither damaged, nor none, nor without a snapshot."""
    reach(run, 10, 100)
    line = Line(config=None, resume=str(run)) if named else Line(run_dir=str(run))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    def begin() -> int:
        assert line.mode(SLURM) is StartMode.RESUME
        return take(line, StartMode.RESUME)

    failing = FailingFiles(monkeypatch, where, 99)
    if (named, where) != (False, "config.yaml"):  # the other is read by its name
        with pytest.raises(HpcdiError, match=r"cannot be read: .*Stale file handle") as caught:
            begin()
        assert exit_code_of(caught.value) == 85
    failing.left = 0
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    failing.left = 3
    assert begin() == 1


def test_a_run_that_died_before_its_first_snapshot_says_how_to_begin_anew(run: Path) -> None:
    with pytest.raises(CheckpointError, match="ended before its first one") as caught:
        take(Line(config=None, resume=str(run)), StartMode.RESUME)
    words = str(caught.value)
    config = shlex.quote(str(run / "config.yaml"))
    assert f"{config}; with --run-dir {run} system.auto_resume=true" in words
    line = Line(str(run / "config.yaml"), ("system.auto_resume=true",), run_dir=str(run))
    assert line.mode() is StartMode.RESTART
    assert take(line, StartMode.RESTART) == 1


@pytest.mark.parametrize(
    "override",
    [
        "policy.model.encoder_hidden_size_list=[64]", "policy.normalize.observation=true",
    ],
)  # fmt: skip
def test_other_networks_are_refused_by_name_before_a_file_is_touched(
    run: Path, override: str
) -> None:
    reach(run, 10, 100)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(LaunchError, match="are of other networks") as caught:
        Line(None, (override,), resume=str(run)).mode()
    assert f"\n  - {override.partition('=')[0]}" in str(caught.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def league_of(path: Path, **league: Mapping[str, str]) -> str:
    """The configuration of a league with other players, in a file."""
    whole = read_mapping(Path(CONFIG).with_name("tictactoe_exploiter.yaml"))
    commander = whole["policy"]["other"]["commander"]
    commander["league"] |= league
    commander["learner_task_space"] = len(commander["league"]["players"])
    path.write_text(json.dumps(whole))
    return str(path)


TWO = {"main": "main", "exploiter": "main_exploiter"}
ALL = {"all": "league_exploiter"}


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ({"players": TWO}, {"players": {"main": "main"}}, "exploiter would be missing"),
        ({"players": TWO}, {"players": {"main": "main", **ALL, **TWO}}, "another order"),
        ({"players": TWO}, {"players": {**TWO, **ALL}}, ""),
        ({"players": TWO}, {"players": {**TWO, "exploiter": "league_exploiter"}}, ""),
        ({"fixed": {"bob": "random"}}, {"fixed": {"bob": "a:b"}}, "fixed.bob: random in the run"),
        ({"fixed": {"bob": "random"}}, {"players": {**TWO, "bob": "main"}}, "it learns now"),
        ({"fixed": {"bob": "random"}}, {"fixed": {"eve": "random"}}, ""),
    ],
)
def test_a_league_goes_on_with_all_of_its_players_or_is_refused_by_name(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any], why: str
) -> None:
    path, files = tmp_path / "run", (tmp_path / "before.yaml", tmp_path / "now.yaml")
    old, new = league_of(files[0], **before), league_of(files[1], **now)
    take(Line(old, run_dir=str(path)), StartMode.NEW)
    lines = Line(new, resume=str(path)), Line(new, run_dir=str(path))
    assert lines[0].mode() is StartMode.RESUME, "it has no snapshot that would not fit"
    reach(path, 10, 100)
    for line in lines:
        if not why:
            assert line.mode(SLURM) is StartMode.RESUME
            continue
        with pytest.raises(LaunchError, match="are of another league") as caught:
            line.mode(SLURM)
        assert why in str(caught.value)


def test_curves_of_each_player_go_on_from_its_own_steps(tmp_path: Path) -> None:
    """They were cut at the steps of all players together: what came later stood there twice."""
    layout = RunLayout(tmp_path)
    replay = {"waiting": [], "partitions": {}}
    steps = {"main": 100, "exploiter": 40}
    groups = {name: {"env_steps": count, "replay": replay} for name, count in steps.items()}
    state = {"groups": groups, "announced": {}}
    facts = {"train_iter": 10, "env_steps": 140, "saved_at": 0.0, "learners": [1]}
    writers = {STATE_FILE: lambda file: save_state(file, STATE_KIND, STATE_VERSION, state)}
    save_checkpoint(layout.snapshots_dir, "snapshot_000001", writers, facts, keep=1)
    limits = {
        "curves/loss": 100, "curves/loss/exploiter": 40, "detail/collector/exploiter/x": 40,
        "info/x": 100, "curves/steps_per_s": 140, "league/elo_exploiter": 140,
    }  # fmt: skip
    with CurveFile(layout.curves_file) as record, TensorBoardWriter(layout.tensorboard_dir) as page:
        for name in limits:
            for step in (30, 40, 41, 100, 101, 140, 141):
                record.add_scalar(name, 1.0, step)
                page.add_scalar(name, 1.0, step)
    assert read_newest(layout) is not None
    points = read_curves([layout.curves_file])
    assert {name: points[name][-1].step for name in limits} == limits
    drawn = EventAccumulator(str(layout.tensorboard_dir)).Reload()
    assert {name: drawn.Scalars(name)[-1].step for name in limits} == limits


def test_what_changes_at_a_resume_is_listed(run: Path) -> None:
    reach(run, 10, 100)
    overrides = (
        "policy.discount_factor=0.9", "env.env_id=Acrobot-v1", "policy.learn.batch_size=7",
        "slurm.time='5'",
    )  # fmt: skip
    line = Line(None, overrides, resume=str(run))
    listed = resume.changes(line, line.experiment())
    assert len(listed) == 3
    by_key = {text.split()[2].rstrip(":"): text for text in listed}
    assert "for the other one" in by_key["policy.discount_factor"]
    assert "CartPole-v1 in the run, Acrobot-v1 now" in by_key["env.env_id"]
    assert by_key["policy.learn.batch_size"].endswith("in the run, 7 now")
    as_it_was = Line(None, resume=str(run))
    assert resume.changes(as_it_was, as_it_was.experiment()) == []


def test_a_run_that_was_submitted_and_has_not_begun_is_not_called_none(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.submit_dir.mkdir()
    layout.submit_file.write_text('{"job": {"SLURM_JOB_ID": "7"}}')
    with pytest.raises(LaunchError, match="has not begun: `hpcdi status"):
        config_of(Line(None, resume=str(tmp_path)))


@pytest.mark.parametrize("over_ranks", [True, False])
def test_a_run_in_use_is_told_before_anything_else(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kept: Callable[[str], Path],
    over_ranks: bool,
) -> None:
    shutil.copytree(kept("dqn"), tmp_path / "run")
    line = RunRequest(None, resume=str(tmp_path / "run"))
    capsys.readouterr()
    with RunLock(RunLayout(tmp_path / "run")), pytest.raises(LaunchError, match="is in use: by"):
        start(line, over_ranks=over_ranks)
    assert capsys.readouterr() == ("", "")
