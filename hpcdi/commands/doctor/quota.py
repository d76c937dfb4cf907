"""What `hpcdi doctor` knows of quotas: what the cluster's own commands say of a folder."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdi.commands.doctor.report import FAIL, OK, WARN, Finding
from hpcdi.store.probe import mounts_in
from hpcdi.utils.metrics import human_bytes, human_count

_LIMIT_S = 5.0
"""A server that does not answer must not end the look at everything else."""
_KIB = 1024
_FULL, _NEARLY = 1.0, 0.9
_ROW = re.compile(
    r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+(\S+)\s*$"
)


@dataclass(frozen=True)
class Quota:
    """How much of something may be used; `whose` is "user" or "group", `what` bytes or files."""

    whose: str
    what: str
    used: int
    limit: int

    def __str__(self) -> str:
        human = human_bytes if self.what == "bytes" else human_count
        what = "" if self.what == "bytes" else " files"
        return f"{human(self.used)} of {human(self.limit)}{what} ({self.whose} quota)"


def quotas_of(folder: Path, kind: str, mount: str) -> tuple[Quota, ...]:
    """Quotas that hold for a folder; empty where there are none, or no command tells them.

    Args:
        folder: that is written to.
        kind: type of its file system.
        mount: where that is mounted.
    """
    if kind != "lustre":
        everywhere = _told_by(["quota", "--raw-grace", "--no-wrap", "--user", "--group"])
        return tuple(_read(everywhere, mount))
    found: list[Quota] = []
    for flag, number in (("-u", os.getuid()), ("-g", folder.stat().st_gid)):
        found += _read(_told_by(["lfs", "quota", flag, str(number), str(folder)]))
    return tuple(found)


def _told_by(command: Sequence[str]) -> str:
    """What a command prints; empty where it is not there, or does not answer."""
    try:
        told = subprocess.run(  # noqa: S603 (fixed words, and names of this process)
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout  # the code is 1 where a quota is exceeded


def _read(text: str, mount: str = "") -> list[Quota]:
    """Quotas in the table of `quota` or `lfs quota`; of one mount point only, where it is named.

    A long name of a file system has a line of its own, and the numbers follow in the next one.
    """
    quotas, whose, name = [], "user", ""
    for line in text.splitlines():
        if line.startswith("Disk quotas for "):
            whose = "group" if line.split()[3] in ("group", "grp") else "user"
        row = _ROW.match(line) or _ROW.match(f"{name} {line}")
        name = line.strip() if row is None else ""
        if row is None or (mount and row[1] != mount and not _is_mounted(row[1], mount)):
            continue
        used_kib, *blocks, _, files, soft, hard, _ = row.groups()[1:]
        for what, used, limits in (
            ("bytes", int(used_kib) * _KIB, [int(limit) * _KIB for limit in blocks]),
            ("files", int(files), [int(soft), int(hard)]),
        ):
            limit = min((limit for limit in limits if limit), default=0)
            if limit:
                quotas.append(Quota(whose, what, used, limit))
    return quotas


def _is_mounted(device: str, mount: str) -> bool:
    """Whether a device, or what a server exports, is what is mounted there."""
    mounted = mounts_in(Path("/proc/mounts").read_text())
    return any((source, point) == (device, mount) for source, point, _ in mounted)


def judge_quotas(quotas: Sequence[Quota]) -> list[Finding]:
    """Quotas as findings; none where there are none."""
    findings = []
    for quota in quotas:
        share = quota.used / quota.limit
        status = FAIL if share >= _FULL else WARN if share >= _NEARLY else OK
        less = "free some space" if quota.what == "bytes" else "remove small files"
        advice = "" if status == OK else f"{less}, or ask for a larger quota"
        findings.append(Finding(status, str(quota), advice))
    return findings
