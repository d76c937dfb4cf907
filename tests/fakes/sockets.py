"""Which addresses a process listens on, as ``ss -ltnp`` shows them."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

_LINE = re.compile(r"^LISTEN\s+\d+\s+\d+\s+(\S+):(\d+)\s+\S+\s+users:\((.*)\)")


def listening(*pids: int) -> list[tuple[str, int]]:
    """Address and port of each listening TCP socket of some processes; ``%lo``: bound to loopback.

    Where there is no ss the test is skipped.
    """
    if shutil.which("ss") is None:
        pytest.skip("NOT TESTED: who listens; there is no ss: apt-get install iproute2")
    shown = subprocess.run(
        ["ss", "-Hltnp"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = set()
    for line in shown:
        match = _LINE.match(line)
        if match and {int(pid) for pid in re.findall(r"pid=(\d+)", match[3])} & set(pids):
            address = match[1].replace("[", "").replace("]", "").replace("*", "::")
            found.add((address, int(match[2])))
    return sorted(found)
