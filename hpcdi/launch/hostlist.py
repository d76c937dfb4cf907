"""Lists of hosts as batch systems write them: a container has no `scontrol` to ask."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpcdi.errors import LaunchError

_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def expand(text: str) -> list[str]:
    """Returns the hosts of a list such as ``gpu[01-02,7],login,rack[0-1]n[1-3]-ib0``, in its order.

    Raises:
        LaunchError: it is no such list.
    """
    hosts: list[str] = []
    for word in _words(text):
        names = [""]
        for part in re.split(r"(\[[^\[\]]*\])", word):
            if part.startswith("[") and part.endswith("]"):
                numbers = _numbers(part[1:-1], text)
                names = [name + number for name in names for number in numbers]
            elif set(part) & set("[]"):
                raise LaunchError(f"{text!r} is no list of hosts: its brackets do not match")
            else:
                names = [name + part for name in names]
        hosts += names
    return hosts


def compress(hosts: Sequence[str]) -> str:
    """Returns the same hosts in the same order, as short as `expand` can read them."""
    words: list[tuple[str, list[str]]] = []
    for host in hosts:
        found = _NUMBERED.fullmatch(host)
        prefix, number = found.groups() if found else (host, "")
        if number and words and words[-1][0] == prefix and words[-1][1]:
            words[-1][1].append(number)
        else:
            words.append((prefix, [number] if number else []))
    return ",".join(prefix + _bracketed(numbers) for prefix, numbers in words)


def _words(text: str) -> Iterable[str]:
    """Yields the words between the commas that stand outside of brackets."""
    depth, word = 0, ""
    for sign in text.strip():
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            yield _checked(word, text)
            word = ""
        else:
            word += sign
    if word or text.strip():
        yield _checked(word, text)


def _checked(word: str, text: str) -> str:
    if not word or set(word) & set(" \t\n"):
        raise LaunchError(f"{text!r} is no list of hosts: a name in it is empty or has a blank")
    return word


def _numbers(text: str, whole: str) -> list[str]:
    """Returns the numbers of ``001-003,7``, with their zeros."""
    numbers: list[str] = []
    for span in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", span, flags=re.ASCII)
        if found is None:
            raise LaunchError(f"{whole!r} is no list of hosts: {span!r} is no number and no range")
        first, last = found[1], found[2] or found[1]
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _bracketed(numbers: Sequence[str]) -> str:
    """Returns a number as it is; several as ranges in brackets."""
    if len(numbers) < 2:
        return "".join(numbers)
    spans: list[tuple[str, str]] = []
    for number in numbers:
        if spans and number == str(int(spans[-1][1]) + 1).zfill(len(spans[-1][0])):
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return f"[{','.join(a if a == b else f'{a}-{b}' for a, b in spans)}]"
