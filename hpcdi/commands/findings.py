"""Findings of checks, and the table in which they are shown."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from hpcdi.commands.options import print_lines
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_DONE, EXIT_FAILED
from hpcdi.utils.metrics import counted

OK, WARN, FAIL = "ok", "warn", "FAIL"
GRAVITY = (OK, WARN, FAIL)
_WIDTH, _NAME_WIDTH, _STATUS_WIDTH = 100, 13, 6


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        status: "ok", "warn" or "FAIL".
        found: facts; empty: another finding of the check has them.
        advice: what to do; empty where nothing is to be done.
    """

    status: str
    found: str
    advice: str = ""


def together(parts: Iterable[Finding]) -> Finding:
    """Returns several findings as one: the gravest status, everything that was found."""
    findings = list(parts)
    return Finding(
        max((part.status for part in findings), key=GRAVITY.index),
        "; ".join(dict.fromkeys(part.found for part in findings if part.found)),
        ". ".join(dict.fromkeys(part.advice for part in findings if part.advice)),
    )


class ResultTable:
    """Rows of findings, printed as they come, or as one JSON object at the end.

    Args:
        is_json: print JSON.
        last_word: printed with the exit code at the very end, for the parent process; empty: none.
    """

    def __init__(self, *, is_json: bool, last_word: str = "") -> None:
        self.rows: dict[str, Finding] = {}
        self._is_json, self._last_word = is_json, last_word

    def add(self, name: str, finding: Finding) -> None:
        """Add a row, and print it."""
        is_first = not self.rows
        self.rows[name] = finding
        if self._is_json:
            return
        if is_first:
            title = f"{'check':<{_NAME_WIDTH}} {'result':<{_STATUS_WIDTH}} what was found"
            print_lines([f"{title}, -> what to do", "-" * _WIDTH])
        head = f"{name:<{_NAME_WIDTH}} {finding.status:<{_STATUS_WIDTH}} "
        indent = " " * len(head)
        print_lines(_wrapped(finding.found, head, indent))
        if finding.advice:
            print_lines(_wrapped(finding.advice, indent + "-> ", indent + "   "))

    def finish(self) -> int:
        """Print the verdict; returns the exit code."""
        counts = Counter(finding.status for finding in self.rows.values())
        is_fit = not counts[FAIL]
        code = EXIT_DONE if is_fit else EXIT_FAILED
        if self._is_json:
            rows = [{"name": name, **asdict(finding)} for name, finding in self.rows.items()]
            print_lines([json.dumps({"checks": rows, "ok": is_fit})])
        else:
            failed = [name for name, finding in self.rows.items() if finding.status == FAIL]
            verdict = "fit to run" if is_fit else f"NOT fit to run: {', '.join(failed)} failed"
            warnings = f"; {counted(counts[WARN], 'warning')}"
            print_lines(["", verdict + warnings * (counts[WARN] > 0 or not is_fit)])
        if self._last_word:
            print_lines([f"{self._last_word}{code}"])
        return code


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=True,
        break_on_hyphens=False,
    ) or [first.rstrip()]
