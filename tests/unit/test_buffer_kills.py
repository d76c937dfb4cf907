"""A buffer's file survives SIGKILL at any moment; and the tool that says so would notice if not."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.processes import python
from hpcdi.errors import SnapshotError

TOOLS = Path(__file__).parent.parent.parent / "tools"
ITEMS = 1000


def kill(kills: int, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    line = [TOOLS / "kill_snapshots.py", "--kills", kills, "--seed", 3]
    line += ["--items", ITEMS, "--folder", folder, *more]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent)}  # this checkout's hpcdi
    return python(*line, timeout=60, env=environment)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("kill_snapshots")


def test_every_file_is_whole(tmp_path: Path) -> None:
    ended = kill(10, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    *kills, summary, swept = ended.stdout.splitlines()
    assert len(kills) == 10
    assert all(line.endswith("whole") for line in kills)
    assert summary.startswith("10 of 10 files whole and of one snapshot; ")
    assert int(re.findall(r"(\d+) kills while saving", summary)[0]) > 0
    assert "swept by hpcdi.store.atomic.sweep_temporary" in swept
    assert [path.name for path in (tmp_path / "kill_snapshots").iterdir()] == ["buffer.h5"]


def test_files_written_in_place_are_found_damaged(tmp_path: Path) -> None:
    ended = kill(6, tmp_path, "--in-place")
    assert (ended.returncode, ended.stderr) == (1, "")
    damaged = [line for line in ended.stdout.splitlines() if "IS DAMAGED" in line]
    assert f"{6 - len(damaged)} of 6 files whole" in ended.stdout
    assert damaged


def test_a_whole_file_is_judged_by_its_number(tool: Any, tmp_path: Path) -> None:
    path = tmp_path / "buffer.h5"
    tool.filled(7, ITEMS).save_data(path)
    assert tool.judge(path, ITEMS, 6, 7) == 7
    for ended, begun in ((8, 9), (5, 6)):
        with pytest.raises(ValueError, match=f"snapshot 7 is not one of {ended} to {begun}"):
            tool.judge(path, ITEMS, ended, begun)


def test_a_mixed_file_is_noticed(tool: Any, tmp_path: Path) -> None:
    """A single item of another snapshot is enough, or its priority."""
    path, buffer = tmp_path / "buffer.h5", tool.filled(7, ITEMS)
    buffer.update_priorities(np.array([ITEMS - 1]), np.array([9.0]))
    buffer.save_data(path)
    with pytest.raises(ValueError, match="priorities are of several snapshots"):
        tool.judge(path, ITEMS, 0, 9)
    buffer.push_columns({n: c[-1:] for n, c in tool.snapshot(8, ITEMS).items()})
    buffer.save_data(path)
    with pytest.raises(ValueError, match="'snapshot' is of several snapshots"):
        tool.judge(path, ITEMS, 0, 9)


def test_a_torn_file_or_one_of_too_few_items_is_noticed(tool: Any, tmp_path: Path) -> None:
    path, buffer = tmp_path / "buffer.h5", tool.filled(7, ITEMS)
    buffer._index.evict(1)
    buffer.save_data(path)
    with pytest.raises(ValueError, match="999 items instead of 1000"):
        tool.judge(path, ITEMS, 0, 9)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    with pytest.raises(SnapshotError, match=r"buffer\.h5"):
        tool.judge(path, ITEMS, 0, 9)
