"""Numbers of environments, unique in a run: for ports, folders, licences and displays.

While an environment is made `ENV_INDEX` has its number, and in its keyword arguments ``{index}``
and ``{index + 5005}`` stand for it. Collectors count on over ranks; evaluations have numbers of
their own.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

ENV_INDEX = "HPCDI_ENV_INDEX"
"""Environment variable with the number; in a child process it stays."""
_INDEX = re.compile(r"\{\s*index\s*(?:\+\s*(\d+)\s*)?\}")


def make_numbered(make: Callable[[], Any], index: int) -> Any:
    """Returns what `make` returns, made as the environment of that number."""
    before = os.environ.get(ENV_INDEX)
    os.environ[ENV_INDEX] = str(index)
    try:
        return make()
    finally:
        if multiprocessing.parent_process() is None:  # the process is not its own
            if before is None:
                del os.environ[ENV_INDEX]
            else:
                os.environ[ENV_INDEX] = before


def numbered(value: Any) -> Any:
    """Returns keyword arguments, or parts of them, with the number of the environment made now.

    A text that is nothing else becomes a whole number.
    """
    if isinstance(value, Mapping):
        return {key: numbered(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [numbered(part) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    if not isinstance(value, str) or "index" not in value:
        return value
    index = int(os.environ.get(ENV_INDEX, "0"))

    def number(match: re.Match[str]) -> str:
        return str(index + int(match[1] or 0))

    text = _INDEX.sub(number, value)
    return int(text) if _INDEX.fullmatch(value.strip()) else text


def is_numbered(value: Any) -> bool:
    """Decides whether keyword arguments have the number of an environment."""
    if isinstance(value, Mapping):
        return any(map(is_numbered, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_numbered, value))
    return isinstance(value, str) and _INDEX.search(value) is not None
