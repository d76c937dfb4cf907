"""File systems and quotas of a folder, as the kernel and the commands of a cluster know them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdi.dataclass import dataclass
from hpcdi.utils.answers import answer_of

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


class Mount(NamedTuple):
    """A file system that is mounted: its type, mount point and device (or export)."""

    kind: str
    point: str
    device: str


def mount_of(path: Path, mounts: str | None = None) -> Mount:
    """Returns the file system of an absolute path.

    Args:
        path: links followed.
        mounts: text of ``/proc/mounts``, by default this host's; of several mounts on one point
            the last counts.
    """
    best = Mount("unknown", "", "")
    for line in (Path("/proc/mounts").read_text() if mounts is None else mounts).splitlines():
        device, escaped, kind, *_ = line.split()
        # a blank is \040
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), escaped)
        if path.is_relative_to(point) and len(point) >= len(best.point):
            best = Mount(kind, point, device)
    return best


def quotas_of(path: Path, mount: Mount) -> tuple[Quota, ...]:
    """Returns the quotas of a folder; empty where there are none, or no command knows them.

    Args:
        path: folder that is written to.
        mount: its file system; a table of `quota` names it by mount point or device.
    """
    if mount.kind != "lustre":
        everywhere = _output_of("quota", "--raw-grace", "--no-wrap", "--user", "--group")
        return tuple(_parse_quotas(everywhere, (mount.point, mount.device)))
    quotas: list[Quota] = []
    for flag, number in (("-u", os.getuid()), ("-g", path.stat().st_gid)):
        quotas += _parse_quotas(_output_of("lfs", "quota", flag, str(number), str(path)))
    return tuple(quotas)


def _output_of(*command: str) -> str:
    """Returns what a command prints, also where its exit code is 1: a quota is exceeded."""
    return answer_of(*command, limit_s=_QUOTA_LIMIT_S).out


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
