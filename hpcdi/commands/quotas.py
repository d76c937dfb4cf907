"""File systems and quotas of a folder, as the kernel and the commands of a cluster know them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hpcdi.dataclass import dataclass

_QUOTA_LIMIT_S = 5.0
"""A quota server that does not answer must not end the examination."""
_QUOTA_ROW = re.compile(
    r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+(\S+)\s*$"
)


@dataclass(frozen=True)
class Quota:
    """A quota: `whose` is "user" or "group", `what` "bytes" or "files"."""

    whose: str
    what: str
    used: int
    limit: int


def mount_of(path: Path, mounts: str) -> tuple[str, str, str]:
    """Returns the file-system type, mount point and device (or export) of an absolute path.

    Args:
        path: links followed.
        mounts: text of ``/proc/mounts``; of several mounts on one point the last counts.
    """
    best = ("unknown", "", "")
    for line in mounts.splitlines():
        device, escaped, kind, *_ = line.split()
        # a blank is \040
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), escaped)
        if path.is_relative_to(point) and len(point) >= len(best[1]):
            best = (kind, point, device)
    return best


def quotas_of(path: Path, kind: str, names: Sequence[str]) -> tuple[Quota, ...]:
    """Returns the quotas of a folder; empty where there are none, or no command knows them.

    Args:
        path: folder that is written to.
        kind: type of its file system.
        names: of it in a table of `quota`: mount point and device.
    """
    if kind != "lustre":
        everywhere = _output_of(["quota", "--raw-grace", "--no-wrap", "--user", "--group"])
        return tuple(_parse_quotas(everywhere, names))
    quotas: list[Quota] = []
    for flag, number in (("-u", os.getuid()), ("-g", path.stat().st_gid)):
        quotas += _parse_quotas(_output_of(["lfs", "quota", flag, str(number), str(path)]))
    return tuple(quotas)


def _output_of(command: Sequence[str]) -> str:
    """Returns what a command prints; empty where it is not there, or does not answer."""
    try:
        done = subprocess.run(  # noqa: S603 (fixed words, and names of this process)
            command,
            capture_output=True,
            text=True,
            timeout=_QUOTA_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout  # the code is 1 where a quota is exceeded


def _parse_quotas(text: str, names: Sequence[str] = ()) -> list[Quota]:
    """Returns the quotas in a table of `quota` or `lfs quota`; only those of `names`, if any.

    A long name of a file system has a line of its own, and the numbers follow in the next one.
    """
    quotas, whose, name = [], "user", ""
    for line in text.splitlines():
        if line.startswith("Disk quotas for "):
            whose = "group" if line.split()[3] in ("group", "grp") else "user"
        row = _QUOTA_ROW.match(line) or _QUOTA_ROW.match(f"{name} {line}")
        name = line.strip() if row is None else ""
        if row is None or (names and row[1] not in names):
            continue
        used_kib, *blocks, _, files, soft, hard, _ = row.groups()[1:]
        for what, used, bounds in (
            ("bytes", int(used_kib) * 1024, [int(bound) * 1024 for bound in blocks]),
            ("files", int(files), [int(soft), int(hard)]),
        ):
            limit = min((bound for bound in bounds if bound), default=0)
            if limit:
                quotas.append(Quota(whose, what, used, limit))
    return quotas
