"""The command line: parses, and hands on."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from hpcdi import __version__
from hpcdi.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, HpcdiError
from hpcdi.launch import help_texts
from hpcdi.launch.flags import add_short_settings, at_least, experiment_of

if TYPE_CHECKING:
    from hpcdi.launch.policies.kept_policy import PolicyArguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="hpcdi", description=help_texts.DESCRIPTION, epilog=help_texts.EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"hpcdi {__version__}")
    parser.add_argument("command", choices=_COMMANDS, help="what to do; each has its own --help")
    if not arguments:
        parser.print_help()
        return EXIT_USAGE
    known = parser.parse_args(arguments[:1])
    try:
        return _COMMANDS[known.command](arguments[1:])
    except HpcdiError as error:
        sys.stderr.write(f"hpcdi {known.command}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _train(arguments: Sequence[str]) -> int:
    from hpcdi.launch.entry import TrainArguments, run_rank
    from hpcdi.launch.environment import detect

    parser = _parser("train", help_texts.TRAIN)
    _add_experiment(parser, nargs="?")
    _add_run_folder(parser, "a run")
    parser.add_argument(
        "--time-limit", metavar="TIME",
        help="take a last snapshot and end (exit code 85) before 90 minutes, 1:30:00, 2-12:00:00 "
        "are over (default: the queue's, from SLURM_JOB_END_TIME)",
    )  # fmt: skip
    given = parser.parse_intermixed_args(arguments)
    config, overrides = experiment_of(given)
    train = TrainArguments(
        config, overrides, given.ranks, given.run_dir, given.resume, given.time_limit
    )
    launched = detect(os.environ)
    if launched.is_world:
        return run_rank(train, launched)
    from hpcdi.launch.local import train as train_here

    return train_here(train)


def _serial(arguments: Sequence[str]) -> int:
    from hpcdi.launch.serial.command import SerialArguments, serial

    parser = _parser("serial", help_texts.SERIAL)
    _add_settings(parser, nargs="?")
    _add_run_folder(parser, "a serial run")
    given = parser.parse_intermixed_args(arguments)
    config, overrides = experiment_of(given)
    return serial(SerialArguments(config, overrides, given.run_dir, given.resume))


def _plan(arguments: Sequence[str]) -> int:
    from hpcdi.launch.experiment import load_experiment
    from hpcdi.launch.plan import plan
    from hpcdi.launch.topology import default_world_size

    parser = _parser("plan", help_texts.PLAN)
    _add_experiment(parser)
    given = parser.parse_intermixed_args(arguments)
    compiled, spaces = load_experiment(given.config, [*given.override, *given.short])
    ranks = given.ranks if given.ranks is not None else default_world_size(compiled.config)
    _print([*plan(compiled.config, spaces, ranks), *(f"note: {n}" for n in compiled.notes)])
    return EXIT_DONE


def _inspect(arguments: Sequence[str]) -> int:
    from hpcdi.store.inspect import inspect

    parser = _parser("inspect", help_texts.INSPECT)
    parser.add_argument("path", nargs="+", metavar="FILE|RUN", help="file or run folder")
    is_damaged = False
    for path in parser.parse_args(arguments).path:
        report = inspect(path)
        _print(report.lines)
        for error in report.errors:
            sys.stderr.write(f"hpcdi inspect: {error}\n")
        is_damaged |= bool(report.errors)
    return EXIT_FAILED if is_damaged else EXIT_DONE


def _eval(arguments: Sequence[str]) -> int:
    from hpcdi.launch.policies.evaluate import EvalArguments, evaluate

    parser = _parser("eval", help_texts.EVAL)
    _add_policy(parser)
    parser.add_argument(
        "--episodes", type=at_least(1), metavar="N", help="episodes to play (default: see above)"
    )
    parser.add_argument(
        "--seed", type=at_least(0), metavar="S",
        help="of the environments (default: the experiment's)",
    )  # fmt: skip
    parser.add_argument(
        "--video", nargs="?", const="", metavar="DIR",
        help="film one episode (default folder: videos in the run folder)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    given = parser.parse_intermixed_args(arguments)
    if given.video and "=" in given.video:  # `--video seed=3`: a setting follows, and no folder
        given.video, given.override = "", [given.video, *given.override]
    return evaluate(
        EvalArguments(_policy_of(given), given.episodes, given.seed, given.video, given.json)
    )


def _export(arguments: Sequence[str]) -> int:
    from hpcdi.launch.policies.export import FORMATS, ExportArguments, export

    parser = _parser("export", help_texts.EXPORT)
    _add_policy(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="default: <exp_name>.pt2 or .onnx, in this folder"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="default: by FILE's ending, else torch (torch.export)"
    )
    parser.add_argument(
        "--batch", type=_batch, default="dynamic", metavar="N",
        help="observations that are given at a time; dynamic (default): any number",
    )  # fmt: skip
    given = parser.parse_intermixed_args(arguments)
    return export(ExportArguments(_policy_of(given), given.output, given.format, given.batch))


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "policy", metavar="RUN|CHECKPOINT|FILE",
        help="run folder, checkpoint's folder, or a policy's .safetensors file",
    )  # fmt: skip
    parser.add_argument(
        "override", nargs="*", default=[], metavar="key=value", help="settings to change"
    )
    parser.add_argument(
        "--policy", dest="which", choices=("best", "latest"),
        help="which of a run's policies (default: best, where there is one)",
    )  # fmt: skip
    parser.add_argument(
        "--config", metavar="FILE", help="the experiment (default: config.yaml of the policy's run)"
    )


def _policy_of(given: argparse.Namespace) -> PolicyArguments:
    from hpcdi.launch.policies.kept_policy import PolicyArguments

    return PolicyArguments(given.policy, tuple(given.override), given.which, given.config)


def _batch(text: str) -> int | None:
    """Reads a number of observations; None: any number."""
    return None if text == "dynamic" else at_least(1)(text)


def _doctor(arguments: Sequence[str]) -> int:
    from hpcdi.launch.doctor.command import DoctorArguments, doctor
    from hpcdi.launch.environment import detect

    parser = _parser("doctor", help_texts.DOCTOR)
    parser.add_argument(
        "folder", nargs="?", metavar="DIR|RUN", help="where runs go (default: ./runs)"
    )
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="number of ranks (default: 3)")
    parser.add_argument("--cuda", action="store_true", help="fail where learners see no GPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    asked = DoctorArguments(given.folder, given.ranks, given.cuda, given.json)
    return doctor(asked, detect(os.environ))


def _submit(arguments: Sequence[str]) -> int:
    from hpcdi.launch.submit.command import SUBMIT_HELP, submit

    return submit(_parser("submit", SUBMIT_HELP), arguments)


def _in(module: str, name: str) -> Callable[[Sequence[str]], int]:
    """A command that reads its own line, loaded when it is called."""

    def run(arguments: Sequence[str]) -> int:
        return int(getattr(import_module(f"hpcdi.launch.{module}"), name)(arguments))

    return run


def _parser(command: str, about: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"hpcdi {command}", description=about, epilog=help_texts.EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def _add_settings(parser: argparse.ArgumentParser, nargs: str | None) -> None:
    parser.add_argument("config", nargs=nargs, metavar="CONFIG", help="YAML file of the experiment")
    parser.add_argument(
        "override", nargs="*", default=[], metavar="key=value", help="settings to change"
    )


def _add_run_folder(parser: argparse.ArgumentParser, what: str) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--run-dir", metavar="DIR", help="run folder (default: runs/<exp_name>/<time>)"
    )
    where.add_argument("--resume", metavar="RUN", help=f"run folder of {what}, to go on with")


def _add_experiment(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    _add_settings(parser, nargs)
    parser.add_argument(
        "-n", "--ranks", type=int, metavar="N",
        help="number of ranks (default: 1 + learner_num + collector_num, or collector_max)",
    )  # fmt: skip
    add_short_settings(parser)


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()  # here, where `main` sees that nobody reads it


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": _train,
    "serial": _serial,
    "plan": _plan,
    "submit": _submit,
    "sweep": _in("sweep.commands", "sweep"),
    "status": _in("watch.commands", "status"),
    "tail": _in("watch.commands", "show_log"),
    "scale": _in("watch.scale", "scale"),
    "inspect": _inspect,
    "eval": _eval,
    "export": _export,
    "doctor": _doctor,
}
