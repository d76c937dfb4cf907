"""Code that a configuration names, and the folders where such modules are found.

A folder is searched for modules only where a configuration names one that lies in it, after all
that is installed: else a file of somebody else in the present folder would be imported in place of
an optional package that is not installed.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_MODULES = frozenset({"import_names", "import_path"})
_MODULE_AND_NAME = frozenset(
    {
        "env_id",
        "type",
        "wrappers",
        "encoder",
        "leaf_encoders",
        "memory",
        "head",
        "optimizer",
        "fixed",
    }
)
"""Keys whose values, at any depth, are imported up to a colon, whatever follows it."""
_RUNS_A_PROGRAM = "mpi"
"""Type of environments whose id is a program, or a source that is compiled."""
_NO_CODE = "slurm"
"""Section that is read before a job only; its options and lines for the shell have colons."""
_LOOKS_LIKE_IT = re.compile(r"[^\s:/]+:[^\W\d][^\s:]*")


def named_code(tree: object, *, is_module: bool = False, is_code: bool = False) -> Iterator[str]:
    """Yields what a configuration may import: modules and folders, each as it is spelled.

    These are `import_names`, folders of `import_path` (searched for any module that is not
    installed, an optional one too), programs, and what holds a colon where a module may be named:
    Gymnasium imports all that stands before it in an id, ``module:namespace/Name-v0``.

    Args:
        tree: the configuration, or a part of it.
        is_module: any text of it names a module or a folder.
        is_code: any text of it with a colon names a module; else those that look like it do.
    """
    if isinstance(tree, Mapping):
        if tree.get("type") == _RUNS_A_PROGRAM and isinstance(tree.get("env_id"), str):
            yield tree["env_id"]
        for key, value in tree.items():
            yield from named_code(str(key), is_code=is_code)
            if key != _NO_CODE:
                yield from named_code(
                    value, is_module=key in _MODULES, is_code=is_code or key in _MODULE_AND_NAME
                )
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from named_code(value, is_module=is_module, is_code=is_code)
    elif isinstance(tree, str) and (
        is_module or (is_code and ":" in tree) or _LOOKS_LIKE_IT.fullmatch(tree)
    ):
        yield tree


def modules_beside(tree: object, folders: Iterable[Path]) -> dict[Path, list[Path]]:
    """Returns folders with modules that a configuration names and that are not installed.

    Args:
        tree: the configuration.
        folders: folders to look in; the first one that has a module counts.

    Returns:
        Folder -> files, and folders of packages, with such modules.
    """
    candidates = list(dict.fromkeys(folders))
    modules: dict[Path, list[Path]] = {}
    for module in sorted({top for text in named_code(tree) for top in _modules_in(text)}):
        for folder in candidates:
            files = [f for f in (folder / f"{module}.py", folder / module) if f.exists()]
            if files and not _is_installed(module, candidates):
                modules.setdefault(folder, []).append(files[0])
                break
    return modules


def holds_modules(folder: Path) -> bool:
    """Returns whether Python modules lie in a folder."""
    return any(folder.glob("*.py")) or any(folder.glob("*/__init__.py"))


def folders_of_modules(config_file: Path) -> list[Path]:
    """Returns the folders where modules that a configuration names may lie.

    These are the file's, that of the code that a run carries beside it (see `RunLayout.code_dir`),
    the present one, and that of the script that runs.
    """
    beside = config_file.absolute().parent
    folders = [beside, beside / "code"]
    with contextlib.suppress(FileNotFoundError):  # it has been removed
        folders.append(Path.cwd())
    main = sys.modules["__main__"]
    script, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    is_of_package = spec is not None and spec.name != "__main__"  # python -m: no place for others
    if script and Path(script).suffix == ".py" and not is_of_package:
        folders.append(Path(script).resolve().parent)
    return folders


def _modules_in(text: str) -> Iterator[str]:
    """Yields top-level modules that a text of a configuration may have imported."""
    for end in [match.start() for match in re.finditer(":", text)] or [len(text)]:
        module = text[:end].partition(".")[0]
        if module and not set(module) & set("/\0"):
            yield module


def _is_installed(module: str, beside: Iterable[Path]) -> bool:
    """Returns whether a module can be imported without the folders of the user's modules."""
    if module in sys.builtin_module_names or module in sys.stdlib_module_names:
        return True
    users = {folder.resolve() for folder in beside}
    path = [folder for folder in sys.path if folder and Path(folder).resolve() not in users]
    return importlib.machinery.PathFinder.find_spec(module, path) is not None
