"""What `hpcdi doctor` makes of the tables of `quota` and `lfs quota`.

No kernel here has quotas: programs of those names print what the manuals show.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.doctor_facts import FOLDER
from hpcdi.commands.doctor import quota
from hpcdi.commands.doctor.files import judge_folder
from hpcdi.commands.doctor.quota import Quota, quotas_of
from hpcdi.commands.doctor.report import FAIL, OK, WARN

KIB, GIB = 1 << 10, 1 << 30
LFS = """\
Disk quotas for usr 500 (uid 500):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
   /mnt/lustre/project
                 302048* 300000  309200 1d2h   1   0   0       -
"""
QUOTA = """\
Disk quotas for user me (uid 500): none
Disk quotas for group us (gid 100):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/home   10240    9000       0       0       2     100     200       0
      /dev/work    5120       0   20480       0     190       0     200       0
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def prints(text: str, code: int = 0) -> str:
    return f"cat <<'END'\n{text}END\nexit {code}"


def test_quotas_of_the_folders_own_file_system(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        quota, "_is_mounted", lambda device, mount: (device, mount) == ("/dev/work", "/work")
    )
    program(programs, "quota", prints(QUOTA, code=1))  # 1: one is exceeded
    assert quotas_of(Path("/"), "ext4", "/work") == (
        Quota("group", "bytes", 5120 * KIB, 20480 * KIB), Quota("group", "files", 190, 200),
    )  # fmt: skip
    assert quotas_of(Path("/"), "ext4", "/elsewhere") == ()


def test_lustre_is_asked_for_the_user_and_the_folders_group(programs: Path, tmp_path: Path) -> None:
    program(programs, "lfs", f'echo "$@" >> {tmp_path}/asked\n' + prints(LFS, code=1))
    (user, group) = quotas_of(tmp_path, "lustre", "/mnt/lustre")
    assert user == group == Quota("user", "bytes", 302048 * KIB, 300000 * KIB)
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"quota -u {os.getuid()} {tmp_path}", f"quota -g {tmp_path.stat().st_gid} {tmp_path}",
    ]  # fmt: skip


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "exec sleep 30"])
def test_who_tells_nothing_ends_nothing(
    programs: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "_LIMIT_S", 0.2)
    program(programs, "quota", script)
    assert quotas_of(Path("/"), "nfs4", "/") == ()


def test_without_the_command_nothing_is_known(programs: Path) -> None:
    (programs / "quota").unlink(missing_ok=True)
    assert quotas_of(Path("/"), "lustre", "/") == ()


@pytest.mark.parametrize(
    ("used", "status", "words"),
    [
        (10 * GIB, OK, "10.0 GiB of 100.0 GiB (user quota)"),
        (95 * GIB, WARN, "free some space, or ask for a larger quota"),
        (100 * GIB, FAIL, "100.0 GiB of 100.0 GiB (user quota)"),
    ],
)
def test_a_quota_is_judged_with_its_folder(used: int, status: str, words: str) -> None:
    finding = judge_folder(replace(FOLDER, quotas=(Quota("user", "bytes", used, 100 * GIB),)))
    assert finding.status == status
    assert words in f"{finding.found}; {finding.advice}"


def test_files_are_counted() -> None:
    assert str(Quota("group", "files", 190, 200)) == "190 of 200 files (group quota)"
