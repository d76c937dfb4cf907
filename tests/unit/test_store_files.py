"""Whatever stands in a file's place in a run folder: no reader hangs, follows it, or breaks."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.failing_files import FailingFiles
from hpcdi.cli import main
from hpcdi.errors import StoreError
from hpcdi.store import files
from hpcdi.store.files import check_file, open_file, patiently


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def elsewhere(path: Path) -> None:
    other = path.parent.parent / f"other{path.suffix}"
    other.write_bytes(b"")
    path.symlink_to(Path("..") / other.name)


def folder(path: Path) -> None:
    path.mkdir()


def hole(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"format": 1,')
        file.truncate(1 << 42)


def nothing(path: Path) -> None:
    path.write_bytes(b"")


KINDS = [pipe, device, loop, elsewhere, folder, hole, nothing]
FILES = [
    "run.json", "status.json", "config.yaml", "next_job.json", "run.lock", "scale.json",
    "log/rank00000.jsonl", "data/*/*/*.h5", "policies/latest.safetensors",
    "policies/best.safetensors", "snapshots/*/manifest.json", "snapshots/*/coordinator.h5",
    "checkpoints/*/manifest.json", "submit/submit.json",
]  # fmt: skip
NEEDED = ("data", "policies", "snapshots", "checkpoints", "run.json")
"""Where `inspect` says what is wrong."""


@pytest.mark.parametrize("put", KINDS, ids=lambda kind: kind.__name__)
def test_no_reader_hangs_or_breaks(
    kept: Callable[[str], Path], tmp_path: Path, put: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    whole = kept("dqn")
    for number, pattern in enumerate(FILES):
        run = tmp_path / str(number) / "run"
        shutil.copytree(whole, run)
        found = sorted(run.glob(pattern))
        path = found[0] if found else run / pattern
        if "*" in str(path):
            continue
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        put(path)
        for command in ("inspect", "status", "tail"):
            code = main([command, str(run)])
            assert code in (0, 1, 2, 85), (pattern, command)
            captured = capsys.readouterr()
            assert "Traceback" not in captured.err
            if command == "inspect" and pattern.startswith(NEEDED):
                assert code == 1, (pattern, captured)
        if pattern.startswith(("policies", "config", "run.json")):
            assert main(["eval", str(run), "--episodes", "1"]) in (0, 1, 2), pattern
        shutil.rmtree(run)


def test_a_link_within_its_folder_and_folders_that_are_links_are_followed(tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "a").write_bytes(b"x")
    (moved / "b").symlink_to("a")
    (tmp_path / "data").symlink_to(moved)
    with open_file(tmp_path / "data" / "b") as file:
        assert file.read() == b"x"
    assert check_file(tmp_path / "data" / "a")
    (moved / "c").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="is a link to a file elsewhere"):
        open_file(moved / "c")
    with pytest.raises(OSError, match="too many"):
        open_file(moved / "a", largest_bytes=0)


@pytest.mark.parametrize(
    "text",
    ['{"pid": NaN}', '{"state": "running", "restarts": 1e999}', '{"placement": 3, "state": []}',
     '{"state": "running", "host": 7, "pid": "x", "placement": [1, {"rank": []}]}',
     '{"versions": [], "figures": 3, "exit_code": {}, "exp_name": {"a": 1}, "restarts": "many"}',
     '{"state": "done", "job": 3, "started": [], "ended": {}, "error": 5}', "[]", "3"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["run.json", "status.json"])
def test_json_of_any_content_breaks_no_reader(
    kept: Callable[[str], Path], tmp_path: Path, name: str, text: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(kept("dqn"), run)
    before = json.loads((run / name).read_text())
    wanted = json.loads(text)
    if isinstance(wanted, dict):
        text = json.dumps({**before, **wanted})
    (run / name).write_text(text)
    for command in ("inspect", "status", "tail"):
        assert main([command, str(run)]) in (0, 1, 2, 85), command


@pytest.mark.parametrize(("number", "waits"), [(errno.EIO, 5), (errno.EACCES, 0), (errno.EPERM, 0)])
def test_only_what_may_pass_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, waits: int
) -> None:
    waited: list[float] = []
    FailingFiles(monkeypatch, "x.h5", 99, number)
    monkeypatch.setattr(files, "wait_s", waited.append)
    with pytest.raises(StoreError, match="cannot be read"):
        patiently(lambda: open_file(tmp_path / "x.h5"), tmp_path / "x.h5")
    assert len(waited) == waits
