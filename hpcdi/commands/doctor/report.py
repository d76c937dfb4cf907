"""What `hpcdi doctor` finds, and how people and programs read it."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "FAIL"
_GRAVITY = (OK, WARN, FAIL)
_WIDTH = 100
_NAME_WIDTH = 13
_STATUS_WIDTH = 6
_HOSTS_NAMED = 3


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Attributes:
        status: "ok", "warn" or "FAIL".
        found: facts.
        advice: what to do; empty where nothing is to be done.
    """

    status: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Row:
    """A line of the table: a finding under the name of its check."""

    name: str
    finding: Finding


def together(findings: Iterable[Finding]) -> Finding:
    """Several findings of a check as one: the gravest status, everything that was found."""
    known = list(findings)
    return Finding(
        max((finding.status for finding in known), key=_GRAVITY.index),
        "; ".join(dict.fromkeys(finding.found for finding in known if finding.found)),
        ". ".join(dict.fromkeys(finding.advice for finding in known if finding.advice)),
    )


def over_hosts(findings: Mapping[str, Finding]) -> Finding:
    """Findings by host as one: the gravest hosts are named, the others are counted."""
    gravest = max((finding.status for finding in findings.values()), key=_GRAVITY.index)
    grave = {host: finding for host, finding in findings.items() if finding.status == gravest}
    by_text: dict[str, list[str]] = {}
    for host, finding in grave.items():
        by_text.setdefault(finding.found, []).append(host)
    texts = [f"{found} on {hosts_text(hosts)}" for found, hosts in by_text.items()]
    if len(texts) > _HOSTS_NAMED:
        texts = [*texts[:_HOSTS_NAMED], f"and so on {len(grave) - _HOSTS_NAMED} more hosts"]
    advice = ". ".join(dict.fromkeys(finding.advice for finding in grave.values()))
    return Finding(gravest, "; ".join(texts), advice)


def table_head() -> list[str]:
    """Lines above the rows."""
    return [
        f"{'check':<{_NAME_WIDTH}} {'result':<{_STATUS_WIDTH}} what was found, -> what to do",
        "-" * _WIDTH,
    ]


def table_row(row: Row) -> list[str]:
    """Lines of a row, none wider than 100 columns."""
    head = f"{row.name:<{_NAME_WIDTH}} {row.finding.status:<{_STATUS_WIDTH}} "
    indent = " " * len(head)
    lines = _wrapped(row.finding.found, head, indent)
    if row.finding.advice:
        lines += _wrapped(row.finding.advice, indent + "-> ", indent + "   ")
    return lines


def verdict(rows: Sequence[Row]) -> str:
    """The last line."""
    counts = Counter(row.finding.status for row in rows)
    warnings = f"{counts[WARN]} warning{'s' * (counts[WARN] != 1)}"
    if counts[FAIL]:
        names = ", ".join(row.name for row in rows if row.finding.status == FAIL)
        return f"NOT fit to run: {names} failed; {warnings}"
    return f"fit to run; {warnings}" if counts[WARN] else "fit to run"


def is_fit(rows: Sequence[Row]) -> bool:
    """Whether nothing failed."""
    return all(row.finding.status != FAIL for row in rows)


def as_json(rows: Sequence[Row]) -> str:
    """The report as one JSON object."""
    checks = [
        {
            "name": row.name,
            "status": row.finding.status,
            "found": row.finding.found,
            "advice": row.finding.advice,
        }
        for row in rows
    ]
    return json.dumps({"checks": checks, "ok": is_fit(rows)})


def ranks_text(ranks: Sequence[int], hosts: Sequence[str] = ()) -> str:
    """Ranks for people: "rank 3 (node2)", "ranks 0-3, 8 (node1, node4)".

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
    """Hosts for people: the first few, and how many more."""
    distinct = list(dict.fromkeys(hosts))
    text = ", ".join(distinct[:_HOSTS_NAMED])
    more = len(distinct) - _HOSTS_NAMED
    return f"{text} and {more} more" if more > 0 else text


def ranks_of(hosts: Sequence[str]) -> dict[str, list[int]]:
    """Host -> its ranks."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    return by_host


def dissenters(values: Sequence[Hashable]) -> tuple[Hashable, dict[Hashable, list[int]]]:
    """The commonest value, and of each other value the ranks that have it."""
    (common, _), *_others = Counter(values).most_common(1)
    different: dict[Hashable, list[int]] = {}
    for rank, value in enumerate(values):
        if value != common:
            different.setdefault(value, []).append(rank)
    return common, different


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=later,
        break_long_words=True, break_on_hyphens=False,
    ) or [first.rstrip()]  # fmt: skip
