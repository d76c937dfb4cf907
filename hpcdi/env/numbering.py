"""Numbers and folders of environments, unique in a run: for ports, licences, displays, files.

While an environment is made `ENV_INDEX` has its number, and in its keyword arguments ``{index}``
and ``{index + 5005}`` stand for it; `ENV_FOLDER` and ``{folder}`` are its folder, where each has
one. Collectors count on over ranks; evaluations have numbers of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ENV_INDEX = "HPCDI_ENV_INDEX"
"""Environment variable with the number; in a child process it stays."""
ENV_FOLDER = "HPCDI_ENV_FOLDER"
"""Environment variable with the folder; a process of the environment's own is also in it."""
_FOLDER = "{folder}"
_INDEX = re.compile(r"\{\s*index\s*(?:\+\s*(\d+)\s*)?\}")


def make_numbered(
    make: Callable[..., Any],
    index: int,
    folder: str = "",
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Returns what `make` returns, made as the environment of that number.

    Args:
        make: makes it.
        index: the number.
        folder: in which a folder of its own is made, named by the number; empty: it has none.
        kwargs: keyword arguments that take the place of configured ones; None: there are none.
    """
    make = partial(make, kwargs) if kwargs else make
    variables = {ENV_INDEX: str(index)}
    if folder:
        own = Path(folder).absolute() / f"{index:06d}"
        own.mkdir(parents=True, exist_ok=True)
        variables[ENV_FOLDER] = str(own)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    if multiprocessing.parent_process() is not None:  # a process of its own: it stays so
        if folder:
            os.chdir(variables[ENV_FOLDER])
        return make()
    try:
        return make()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def numbered(value: object) -> Any:
    """Returns keyword arguments, or parts of them, with the number of the environment made now.

    A text that is nothing else becomes a whole number.
    """
    if isinstance(value, Mapping):
        return {key: numbered(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [numbered(part) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    if not isinstance(value, str):
        return value
    value = value.replace(_FOLDER, os.environ.get(ENV_FOLDER, ""))
    if "index" not in value:
        return value
    index = int(os.environ.get(ENV_INDEX, "0"))

    def number(match: re.Match[str]) -> str:
        return str(index + int(match[1] or 0))

    text = _INDEX.sub(number, value)
    return int(text) if _INDEX.fullmatch(value.strip()) else text


def is_numbered(value: object) -> bool:
    """Decides whether keyword arguments have the number, or the folder, of an environment."""
    if isinstance(value, Mapping):
        return any(map(is_numbered, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_numbered, value))
    return isinstance(value, str) and (_FOLDER in value or _INDEX.search(value) is not None)
