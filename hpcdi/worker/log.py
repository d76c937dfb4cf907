"""The log of a component in DI-engine's form: lines, and tables of values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hpcdi.utils.log import LOGGER

_COLUMNS = 4


class TableLog(logging.LoggerAdapter[logging.Logger]):
    """hpcdi's log, with tables for hooks and evaluators of a user's own."""

    def __init__(self) -> None:
        super().__init__(LOGGER, {})

    def get_tabulate_vars(self, variables: Mapping[str, Any]) -> str:
        """Returns a table with a line for each name and its value."""
        width = max(map(len, variables), default=0)
        return "".join(f"\n{name:<{width}}  {_text(one)}" for name, one in variables.items())

    def get_tabulate_vars_hor(self, variables: Mapping[str, Any]) -> str:
        """Returns a table with names above their values, four side by side."""
        pairs = [(name, _text(one)) for name, one in variables.items()]
        lines = []
        for start in range(0, len(pairs), _COLUMNS):
            part = pairs[start : start + _COLUMNS]
            widths = [max(map(len, pair)) for pair in part]
            lines += [
                "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
                for row in zip(*part, strict=True)
            ]
        return "".join(f"\n{line.rstrip()}" for line in lines)


def _text(value: Any) -> str:
    try:
        return f"{float(value):.6f}"
    except (TypeError, ValueError):
        return str(value)
