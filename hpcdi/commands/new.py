"""`hpcdi new`: the beginning of an algorithm or an environment of one's own, with a test."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Sequence
from pathlib import Path

import hpcdi.policy.create  # noqa: F401  (registers the built-in policies)
from hpcdi.commands.options import make_parser
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.store.disk_full import or_refuse
from hpcdi.utils.log import say
from hpcdi.utils.registry import POLICY_REGISTRY

HELP = """\
Write an algorithm or an environment to begin from: NAME.py, an experiment that uses it, and a test,
which passes at once. Guides: hpcdi/policy/README.md, hpcdi/env/README.md and MPI.md.

  hpcdi new policy my_a2c        then: python -m pytest test_my_a2c.py (pip install pytest);
                                       hpcdi train my_a2c.yaml
  hpcdi new env my_walk
  hpcdi new env my_flow --mpi          on several MPI ranks, in Python; --mpi c, --mpi fortran
"""


TEMPLATES = Path(__file__).parent / "templates"
"""What is written, with NAME, CLASS and the words of `_WORDS` for what differs."""
_FILES = {
    "policy": ("policy.py.txt", "policy.yaml", "test.py.txt"),
    "env": ("env.py.txt", "env.yaml", "test.py.txt test_env.py.txt"),
    "python": ("solver.py.txt", "solver.yaml", "test_solver.py.txt"),
    "c": ("solver.c", "solver.yaml", "test_program.py.txt"),
    "fortran": ("solver.f90", "solver.yaml", "test_program.py.txt"),
}
"""Kind, or language of an environment with MPI -> templates of source, experiment and test."""
_SPACES = "  observation: {size: 2}\n  action: {size: 1, low: -1, high: 1}\n"
_WORDS = {
    "python": {"ENV_ID": '"NAME:CLASS"  # NAME.py: beside this file', "SPACES\n": ""},
    "c": {
        "ENV_ID": "SOURCE  # beside this file; compiled by MPI's own mpicc",
        "SPACES\n": _SPACES,
        "SOURCE": "NAME.c",
    },
    "fortran": {
        "ENV_ID": "SOURCE  # beside this file; compiled by MPI's own mpif90, see hpcdi/env/MPI.md",
        "SPACES\n": _SPACES,
        "SOURCE": "NAME.f90",
    },
}
"""Language -> words of its templates, in the order in which they are replaced."""


def main(arguments: Sequence[str]) -> int:
    """Write the files into the present folder; returns the exit code.

    Raises:
        LaunchError: the name is no new module's, or a file is there already.
    """
    parser = make_parser("new", HELP)
    parser.add_argument("kind", choices=("policy", "env"))
    parser.add_argument("name", metavar="NAME", help="of the module: letters, digits and _")
    parser.add_argument(
        "--mpi", nargs="?", const="python", choices=_WORDS, metavar="LANGUAGE",
        help="an environment that is an MPI program, in python (default), c or fortran",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.mpi and options.kind != "env":
        parser.error("--mpi is for environments: hpcdi new env NAME --mpi")
    name = options.name
    if not name.isidentifier() or keyword.iskeyword(name):
        raise LaunchError(f"{name!r} is no name of a Python module: use letters, digits and _")
    kind = options.mpi or options.kind
    suffix = Path(_FILES[kind][0].removesuffix(".txt")).suffix
    files = (f"{name}{suffix}", f"{name}.yaml", f"test_{name}.py")
    texts = {f: _text_of(kind, names) for f, names in zip(files, _FILES[kind], strict=True)}
    existing = [file for file in texts if Path(file).exists()]
    if existing:
        raise LaunchError(f"already there: {', '.join(existing)}; nothing was written")
    if importlib.util.find_spec(name) is not None or name in POLICY_REGISTRY:
        raise LaunchError(f"there is a module or a policy {name} already; choose another name")
    class_name = _class_for(name, "".join(texts.values()))
    for file, text in texts.items():
        with or_refuse(file):
            Path(file).write_text(text.replace("NAME", name).replace("CLASS", class_name))
        say(f"  written      {file}")
    look = f"hpcdi rehearse {name}.yaml; " if options.kind == "env" and not options.mpi else ""
    say(f"  then         {look}hpcdi train {name}.yaml")
    missing = "" if importlib.util.find_spec("pytest") else "pip install pytest; "
    say(f"  test         {missing}python -m pytest test_{name}.py")
    return EXIT_DONE


def _text_of(kind: str, templates: str) -> str:
    """Returns the text of templates, one after the other; only NAME and CLASS are left open."""
    text = "".join((TEMPLATES / template).read_text() for template in templates.split())
    for word, meaning in _WORDS.get(kind, {}).items():
        text = text.replace(word, meaning)
    return text


def _class_for(name: str, text: str) -> str:
    """Returns the name of a module's class, which is none of the names in its text."""
    title = name.title().replace("_", "")
    is_free = title.isidentifier() and not keyword.iskeyword(title)
    return title if is_free and not re.search(rf"\b{title}\b", text) else f"Own{title}"
