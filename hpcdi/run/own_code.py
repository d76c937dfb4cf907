"""Names a class or a function of the user so that other processes find it: ``module:Name``.

What is defined in a module has its name there. What a script defines is found by the script's file,
if that can be imported, which runs it once more: it must stand above ``if __name__ == "__main__":``
then, and the start of the run below. All else, of a notebook, a prompt, or a function, is written
by cloudpickle into a module beside the run: it and all that it uses of there, as they are now.

An environment's id that one of these registers is found by its module, which registers it anew.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib.machinery
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcdi.errors import ConfigError, LaunchError, Problem
from hpcdi.store.disk_full import or_refuse

_MAIN = "__main__"
_MODULE = '''\
"""{name}, as hpcdi.train was given it: by cloudpickle, for this version of Python alone."""

import base64

import cloudpickle

{name} = cloudpickle.loads(base64.b64decode("""
{text}
"""))
'''


class Named(NamedTuple):
    """How it is found: ``module:Name``, and the folder that the module is in, perhaps."""

    name: str
    folders: tuple[str, ...] = ()


def named(made: Callable[..., Any], folder: Callable[[], Path]) -> Named:
    """Returns how other processes find a class or a function.

    Args:
        made: the class or function.
        folder: makes the folder for a module that has to be written, and returns it.

    Raises:
        LaunchError: it has no name, and cannot be written.
    """
    module, name = made.__module__, getattr(made, "__qualname__", "")
    found = getattr(sys.modules.get(module), name, None) if name.isidentifier() else None
    if found is made and module != _MAIN:
        return Named(f"{module}:{name}", _folder_of(module))
    if found is made and (script := _script(name)) is not None:
        return Named(f"{script.name}:{name}", script.folders)
    return _written(made, folder)


def registering(env_id: str, imported: Sequence[str], folders: Sequence[str]) -> Named | None:
    """Returns the module by whose import other processes know an id of gymnasium.

    None: they know it without; or nobody does, which who makes it says.

    Args:
        env_id: the id.
        imported: modules that they import.
        folders: that they look for modules in, besides.

    Raises:
        ConfigError: it is registered in this process alone.
    """
    from hpcdi.env.gymnasium import entry_of, first_that_registers

    if ":" in env_id or (entry := entry_of(env_id)) is None:
        return None
    tried = [*_modules_from(*entry)]
    places = [*folders, *(folder for each in tried for folder in each.folders)]
    number = first_that_registers(env_id, imported, [each.name for each in tried], places)
    if number is not None:
        return tried[number] if number >= 0 else None
    message = (
        f"{env_id!r} is registered in this process alone, so that neither ranks nor `hpcdi eval` "
        "and a resumed run would know it: give the class itself, or set env.import_names to the "
        "module that registers it when it is imported"
    )
    raise ConfigError([Problem("env.env_id", message)])


def _modules_from(module: str, name: str) -> Iterator[Named]:
    """Yields what may register what a module defines: its packages, itself, and the script."""
    if module not in (_MAIN, ""):
        with contextlib.suppress(Exception):  # perhaps nobody has made one yet
            importlib.import_module(module)
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            yield Named(".".join(parts[:depth]), _folder_of(module))
    if (script := _script(name if module == _MAIN else "")) is not None:
        yield script


def _folder_of(module: str) -> tuple[str, ...]:
    """The folder that a module's package is in, where that is not installed."""
    top = sys.modules.get(module.partition(".")[0])
    file, places = getattr(top, "__file__", None), list(getattr(top, "__path__", ()))
    if file is None and not places:
        return ()
    folder = Path(places[0] if places else str(file)).absolute().parent
    return () if folder.name in ("site-packages", "dist-packages") else (str(folder),)


def _script(name: str) -> Named | None:
    """Returns the script that runs, as a module, if others that import it have `name` of it.

    "" is nothing of it. None: it would train then, too; or another module is imported by its name.
    """
    main = sys.modules[_MAIN]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)  # pdb drops it
    if file is None or Path(file).suffix != ".py":
        return None
    path = Path(file).absolute()
    module = spec.name if spec is not None else path.stem  # python -m, or its file
    is_found = _is_found_as(path) if spec is None else module != _MAIN  # which a folder's is
    if not is_found or not _is_guarded(path, name):
        return None
    # it runs already, and is not to run in this process again
    known = sys.modules.setdefault(module, main)
    folder = path.parents[module.count(".")]
    return Named(module, (str(folder),)) if known is main else None


def _is_found_as(script: Path) -> bool:
    """Decides whether a script is what others import by its name."""
    if not script.stem.isidentifier() or script.stem in sys.stdlib_module_names:
        return False
    if script.stem in sys.modules:
        return True
    spec = importlib.machinery.PathFinder.find_spec(script.stem)
    return spec is None or spec.origin == str(script)


def _is_guarded(script: Path, name: str) -> bool:
    """Decides whether the script's line that runs now does not run when it is imported.

    And what is defined by `name`, if it has one, is defined then.
    """
    frame: types.FrameType | None = sys._getframe()
    line = 0
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == _MAIN:
            line = frame.f_lineno
        frame = frame.f_back
    try:
        statements = ast.parse(script.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):  # not what runs
        return False
    guards = [
        one for one in statements if isinstance(one, ast.If) and "__name__" in ast.unparse(one.test)
    ]
    below = {getattr(each, "name", "") for guard in guards for each in ast.walk(guard)}
    runs_below = any(guard.lineno <= line <= (guard.end_lineno or 0) for guard in guards)
    return runs_below and not (name and name in below)


def _written(made: Callable[..., Any], folder: Callable[[], Path]) -> Named:
    """Write it into a module of its own; this process keeps what it has."""
    import cloudpickle  # gymnasium needs it, too

    name = getattr(made, "__name__", "")
    name = name if name.isidentifier() else "made"
    try:
        text = base64.b64encode(cloudpickle.dumps(made))
    except Exception as error:  # whatever its parts raise
        raise LaunchError(
            f"{made!r} is not defined in a module that ranks could import, and cannot be written "
            f"by cloudpickle either: {error}. Define it in a file, my_env.py say, and import it"
        ) from error
    lines = "\n".join(text[i : i + 96].decode() for i in range(0, len(text), 96))
    module, place = f"own_{zlib.crc32(text):08x}", folder()
    with or_refuse(str(place)):
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{module}.py").write_text(_MODULE.format(name=name, text=lines))
    own = sys.modules[module] = types.ModuleType(module)
    setattr(own, name, made)
    file = getattr(sys.modules[_MAIN], "__file__", None)
    beside = Path.cwd() if file is None else Path(file).absolute().parent  # what it imports
    return Named(f"{module}:{name}", (str(place), str(beside)))
