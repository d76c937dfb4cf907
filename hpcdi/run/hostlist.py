"""Lists of hosts as Slurm writes them: a container has no `scontrol` to ask."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from hpcdi.errors import LaunchError

_WORD = re.compile(r"(?:[^\[\],\s]+|\[[0-9,-]+\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def expand(text: str) -> list[str]:
    """Returns the hosts of a list such as ``gpu[01-02,7],login,rack[0-1]n[1-3]-ib0``, in its order.

    Raises:
        LaunchError: it is no such list.
    """
    words, brackets = _WORD.findall(text), re.findall(r"\[(.*?)\]", text)
    are_ranges = all(_is_range(part) for inside in brackets for part in inside.split(","))
    if ",".join(words) != text.strip() or not are_ranges:
        raise LaunchError(f"{text!r} is no list of hosts such as node[01-08,12]")
    return [host for word in words for host in _hosts_of(word)]


def _is_range(text: str) -> bool:
    """Whether a text is a number, or two of which the second is not the smaller one."""
    found = _RANGE.fullmatch(text)
    return found is not None and int(found[1]) <= int(found[2] or found[1])


def _hosts_of(word: str) -> Iterator[str]:
    """Yields the hosts of ``rack[0-1]n[1-3]-ib0``."""
    parts = re.split(r"\[(.*?)\]", word)  # every second one stood in brackets
    numbers = [list(_numbers_of(part)) if k % 2 else [part] for k, part in enumerate(parts)]
    return map("".join, itertools.product(*numbers))


def _numbers_of(ranges: str) -> Iterator[str]:
    """Yields the numbers of ``001-003,7``, with their zeros."""
    for first, last in _RANGE.findall(ranges):
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def compress(hosts: Sequence[str]) -> str:
    """Returns the same hosts in the same order, as short as `expand` can read them."""
    groups: list[tuple[str, list[str]]] = []
    for host in hosts:
        match = _NUMBERED.fullmatch(host)
        prefix, number = match.groups() if match else (host, "")
        if number and groups and groups[-1][0] == prefix and groups[-1][1]:
            groups[-1][1].append(number)
        else:
            groups.append((prefix, [number] if number else []))
    return ",".join(prefix + _in_brackets(numbers) for prefix, numbers in groups)


def _in_brackets(numbers: Sequence[str]) -> str:
    """Returns a number as it is; several as ranges in brackets."""
    if len(numbers) < 2:
        return "".join(numbers)
    ranges: list[tuple[str, str]] = []
    for number in numbers:
        if ranges and number == str(int(ranges[-1][1]) + 1).zfill(len(ranges[-1][0])):
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return f"[{','.join(a if a == b else f'{a}-{b}' for a, b in ranges)}]"
