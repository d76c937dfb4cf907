"""Rules about the source that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_packages_say_what_they_own_and_may_import() -> None:
    """Except the map of the whole package, and the predecessor's packages."""
    silent = []
    for path in sorted((ROOT / "hpcdi").glob("*/**/__init__.py")):
        is_part = "worker" in (path.parent.parent.name, path.parent.parent.parent.name)
        text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
        missing = [word for word in ("Owns:", "May import:", "Why so:") if word not in text]
        if missing and not is_part:
            silent.append(f"{path.relative_to(ROOT)} does not say {missing}")
    assert not silent, "\n".join(silent)


def test_no_test_module_imports_another() -> None:
    """What several need is in `fakes`, or a fixture in a conftest."""
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("unit", "mpi", "jobs", "slurm", "fakes")
        for path in sorted((ROOT / "tests" / folder).glob("*.py"))
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from|import) (\w+\.)*(test_\w+|conftest)\b", line)
    ]
    assert not wrong, "\n".join(wrong)
