"""The report of `hpcdi doctor`: findings, how they are put together, and how they are shown.

It imports little: thread variables are set before numpy is imported.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from hpcdi.errors import EXIT_DONE, EXIT_FAILED, HpcdiError

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

OK, WARN, FAIL = "ok", "warn", "FAIL"
_GRAVITY = (OK, WARN, FAIL)
_WIDTH, _NAME_WIDTH, _STATUS_WIDTH = 100, 13, 6
_NAMED = 3


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        status: "ok", "warn" or "FAIL".
        found: facts.
        advice: what to do; empty where nothing is to be done.
    """

    status: str
    found: str
    advice: str = ""


class Report:
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
        if not self.rows and not self._is_json:
            _print(f"{'check':<{_NAME_WIDTH}} {'result':<{_STATUS_WIDTH}} what was found, -> what "
                   "to do", "-" * _WIDTH)  # fmt: skip
        self.rows[name] = finding
        if self._is_json:
            return
        head = f"{name:<{_NAME_WIDTH}} {finding.status:<{_STATUS_WIDTH}} "
        indent = " " * len(head)
        _print(*_wrapped(finding.found, head, indent))
        if finding.advice:
            _print(*_wrapped(finding.advice, indent + "-> ", indent + "   "))

    def finish(self) -> int:
        """Print the verdict; returns the exit code."""
        counts = Counter(finding.status for finding in self.rows.values())
        is_fit = not counts[FAIL]
        code = EXIT_DONE if is_fit else EXIT_FAILED
        if self._is_json:
            rows = [{"name": name, **asdict(finding)} for name, finding in self.rows.items()]
            _print(json.dumps({"checks": rows, "ok": is_fit}))
        else:
            failed = [name for name, finding in self.rows.items() if finding.status == FAIL]
            verdict = "fit to run" if is_fit else f"NOT fit to run: {', '.join(failed)} failed"
            warnings = f"; {counts[WARN]} warning{'s' * (counts[WARN] != 1)}"
            _print("", verdict + warnings * (counts[WARN] > 0 or not is_fit))
        if self._last_word:
            _print(f"{self._last_word}{code}")
        return code


def _print(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=later,
        break_long_words=True, break_on_hyphens=False,
    ) or [first.rstrip()]  # fmt: skip


def together(parts: Iterable[Finding]) -> Finding:
    """Returns several findings as one: the gravest status, everything that was found."""
    known = list(parts)
    return Finding(
        max((part.status for part in known), key=_GRAVITY.index),
        "; ".join(dict.fromkeys(part.found for part in known if part.found)),
        ". ".join(dict.fromkeys(part.advice for part in known if part.advice)),
    )


def over_hosts(parts: Mapping[str, Finding]) -> Finding:
    """Returns findings by host as one: the gravest hosts are named, the others are counted."""
    gravest = max((part.status for part in parts.values()), key=_GRAVITY.index)
    grave = {host: part for host, part in parts.items() if part.status == gravest}
    by_text: dict[str, list[str]] = {}
    for host, part in grave.items():
        by_text.setdefault(part.found, []).append(host)
    texts = [f"{found} on {hosts_text(hosts)}" for found, hosts in by_text.items()]
    if len(texts) > _NAMED:
        texts = [*texts[:_NAMED], f"and so on {len(grave) - _NAMED} more hosts"]
    advice = ". ".join(dict.fromkeys(part.advice for part in grave.values()))
    return Finding(gravest, "; ".join(texts), advice)


def ranks_text(ranks: Sequence[int], hosts: Sequence[str] = ()) -> str:
    """Returns ranks for people: "rank 3 (node2)", "ranks 0-3, 8 (node1, node4)".

    Args:
        ranks: which.
        hosts: host of every rank of the world; none: they are not named.
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in spans[:8])
    if len(spans) > 8:
        text += ", ..."
    where = f" ({hosts_text([hosts[rank] for rank in sorted(ranks)])})" if hosts else ""
    return f"rank{'s' * (len(ranks) > 1)} {text}{where}"


def hosts_text(hosts: Iterable[str]) -> str:
    """Returns hosts for people: the first few, and how many more."""
    distinct = list(dict.fromkeys(hosts))
    text = ", ".join(distinct[:_NAMED])
    more = len(distinct) - _NAMED
    return f"{text} and {more} more" if more > 0 else text


def ranks_of(hosts: Sequence[str]) -> dict[str, list[int]]:
    """Returns host -> its ranks."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    return by_host


def majority(values: Sequence[H]) -> tuple[H, dict[H, list[int]]]:
    """Returns the commonest value, and for each other value the ranks that have it."""
    (common, _), *_others = Counter(values).most_common(1)
    different: dict[H, list[int]] = {}
    for rank, value in enumerate(values):
        if value != common:
            different.setdefault(value, []).append(rank)
    return common, different


def attempt(make: Callable[[], T]) -> tuple[T | None, str]:
    """Returns a function's result, or None and its error: that is a finding, not a traceback."""
    try:
        return make(), ""
    except Exception as error:
        text = " ".join(str(error).split())
        return None, text if isinstance(error, HpcdiError) else f"{type(error).__name__}: {text}"
