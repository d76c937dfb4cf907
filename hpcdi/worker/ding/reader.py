"""Runs a configuration file of DI-engine, which is Python, in a process of its own.

It is code: it is run only where a user names the file on the command line, as that user. What it
leaves in ``main_config`` and ``create_config`` comes back as JSON, so that only plain data do.

    python -m hpcdi.worker.ding.reader FILE       what `read` starts
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdi.config.modules import holds_modules
from hpcdi.errors import ConfigError, Problem
from hpcdi.utils.python import python_command
from hpcdi.worker.ding.convert import converted, problems_of
from hpcdi.worker.ding.library import policy_settings

_PATIENCE_S = 300.0
_NAMES = ("main_config", "create_config")


def read(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Returns the experiment that a file is, as a mapping, and notes; see `convert.converted`.

    Modules beside the file are found in the run, too, unless they are a package's.

    Raises:
        ConfigError: there is no such file, it raises, or hpcdi has no run for it.
    """
    if not path.is_file():
        raise ConfigError([Problem("", f"there is no file {str(path)!r}")], str(path))
    command = python_command("hpcdi.worker.ding.reader", str(path))
    paths = os.pathsep.join(filter(None, sys.path))  # the same modules are found there
    try:
        done = subprocess.run(  # noqa: S603 (our own command line)
            command,
            stdout=subprocess.PIPE,
            timeout=_PATIENCE_S,
            check=False,
            env={**os.environ, "PYTHONPATH": paths},
        )
    except subprocess.TimeoutExpired:
        message = f"it has run for {_PATIENCE_S:.0f} s: a configuration must end by itself"
        raise ConfigError([Problem("", message)], str(path)) from None
    if done.returncode:
        message = "it could not be run as Python; its error is above"
        raise ConfigError([Problem("", message)], str(path))
    answer = json.loads(done.stdout)
    if "problems" in answer:
        raise ConfigError([Problem(*each) for each in answer["problems"]], str(path))
    experiment, notes = converted(answer["main_config"], answer["create_config"], answer["policy"])
    folder = path.absolute().parent
    if holds_modules(folder) and not (folder / "__init__.py").exists():
        experiment["system"] = {"import_path": [str(folder)]}
    return experiment, notes


def _run(path: Path) -> dict[str, Any]:
    """What a file defines, and its policy's settings over their defaults; or its problems."""
    sys.path.insert(0, str(path.absolute().parent))
    try:
        defined = runpy.run_path(str(path))
    except SystemExit as end:
        message = f"it ends by sys.exit({end.code!r}): a configuration runs to its last line"
        return {"problems": [("", message)]}
    missing = [name for name in _NAMES if not isinstance(defined.get(name), Mapping)]
    if missing:
        message = f"is required, as a dict or an EasyDict: {path} does not define it"
        return {"problems": [(name, message) for name in missing]}
    problems: list[tuple[str, str]] = []
    answer: dict[str, Any] = {}
    for name in _NAMES:
        answer[name] = _plain_data(defined[name], name, problems)
    problems += [(p.path, p.message) for p in problems_of(*(answer[name] for name in _NAMES))]
    if not problems:
        policy = {**answer["create_config"]["policy"], **answer["main_config"]["policy"]}
        try:
            answer["policy"] = _plain_data(policy_settings(policy), "policy", problems)
        except ConfigError as error:
            problems += [(problem.path, problem.message) for problem in error.problems]
    return {"problems": problems} if problems else {"policy": {}, **answer}


def _plain_data(value: Any, path: str, problems: list[tuple[str, str]]) -> Any:
    """Dicts whose keys are strings, lists, numbers, strings and None; the rest is a problem."""
    if isinstance(value, Mapping):
        problems += [
            (f"{path}.{key}", f"has the key {key!r}; keys of an experiment are strings alone")
            for key in value
            if not isinstance(key, str)
        ]
        return {str(key): _plain_data(one, f"{path}.{key}", problems) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_data(one, f"{path}[{place}]", problems) for place, one in enumerate(value)]
    if hasattr(value, "tolist"):  # of numpy
        return value.tolist()
    if value is not None and not isinstance(value, bool | int | float | str):
        problems.append((path, f"is {value!r:.80}; an experiment holds plain data alone"))
    return value


def _main(arguments: Iterator[str]) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the file prints is for people
    answer = _run(Path(next(arguments)))
    with out:
        json.dump(answer, out)


if __name__ == "__main__":
    _main(iter(sys.argv[1:]))
