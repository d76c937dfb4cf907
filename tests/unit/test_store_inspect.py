"""Looking into files and run folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from fakes.store import write_shard
from hpcdi.store import inspect as inspection
from hpcdi.store import shard_file
from hpcdi.store.atomic import TEMPORARY_MARK
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import save_checkpoint
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.store.sealed import rewritten_files, write_sealed, write_sealed_json
from hpcdi.store.shards import Appender, survey, survey_in
from hpcdi.store.state_file import save_state
from hpcdi.types import BLOCK_ID_BITS, ITEM_DTYPE, RowView


def make_block(rows: int = 4, items: int = 2) -> Block:
    table = np.zeros(items, dtype=ITEM_DTYPE)
    table["item_len"] = rows // max(items, 1)
    table["policy_version"] = 5 + np.arange(items)
    columns = {
        "obs/speed": np.linspace(-1, 1, 2 * rows).reshape(rows, 2),
        "terminated": np.arange(rows) == 1,
        "nothing": np.zeros((rows, 0)),
    }
    views = (RowView("next", "obs/speed", "offset"),)
    return Block(columns, table, {"task_id": "task_1", "sealed_at": 0.0}, views)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run with three shards, a policy and a snapshot."""
    layout = RunLayout(tmp_path)
    run = {"exp_name": "cartpole", "state": "done", "versions": {"hpcdi": "1.2.3"}}
    write_sealed_json(layout.run_file, run)
    write_sealed(layout.config_file, "seed: 1\n")
    for number in range(3):
        write_shard(layout, layout.shard_path(2, number, 0.0), make_block(), fsync=False)
    publish_policy(layout.latest_policy, PolicyImage.of({"w": torch.ones(2)}, 9), fsync=False)
    state = {"counters": {"env_steps": 7}, "index": np.arange(3)}
    save_checkpoint(
        layout.snapshots_dir, "snapshot_000001",
        {"coordinator.h5": lambda path: save_state(path, "coordinator", 1, state, fsync=False)},
        {"train_iter": 5, "env_steps": 7}, keep=None,
    )  # fmt: skip
    return layout


def state_of(layout: RunLayout) -> Path:
    return layout.snapshots_dir / "snapshot_000001" / "coordinator.h5"


def shards_of(layout: RunLayout) -> list[Path]:
    return sorted(layout.data_dir.rglob("*.h5"))


def tear(path: Path) -> None:
    """Damage the last byte of the data."""
    data = bytearray(path.read_bytes())
    start = data.index(np.linspace(-1, 1, 8).tobytes()) if path.suffix == ".h5" else len(data) - 1
    data[start] ^= 0xFF
    path.write_bytes(data)


def test_a_shard(layout: RunLayout) -> None:
    path = shards_of(layout)[0]
    report = inspect(str(path))
    assert report.errors == []
    text = "\n".join(report.lines)
    assert text.startswith(f"{path}: shard of 1 block, ")
    assert "checksums are right" in report.lines[0]
    assert "4 transitions in 2 items, 4 rows, policy versions 5 to 6" in text
    assert "task_id: task_1" in text
    assert "sealed_at: 19" in text  # a date, not a number of seconds
    speed = next(line.split() for line in report.lines if "obs/speed" in line and "=" not in line)
    assert speed == ["obs/speed", "float64", "(4,", "2)", "-1", "..", "1"]
    assert any(line.split()[:1] == ["nothing"] and "empty" in line for line in report.lines)
    assert "next                 = obs/speed[row + offset[row]]" in text


def test_a_shard_without_items(layout: RunLayout) -> None:
    write_shard(layout, "data/empty.h5", make_block(0, 0), fsync=False)
    report = inspect(layout.root / "data" / "empty.h5")
    assert report.errors == []
    assert "  no items" in report.lines


def test_a_policy(layout: RunLayout) -> None:
    report = inspect(layout.latest_policy)
    assert report.errors == []
    assert "policy of train iteration 9" in report.lines[0]
    assert report.lines[1].split() == ["w", "F32", "(2,)"]


def test_saved_state(layout: RunLayout) -> None:
    report = inspect(state_of(layout))
    assert report.errors == []
    assert "state of 'coordinator', schema 1" in report.lines[0]
    told = {line.split()[0]: line.split()[1:] for line in report.lines[1:]}
    assert told == {"counters/env_steps": ["7"], "index": ["int64", "(3,)"]}


def test_long_texts_are_cut(tmp_path: Path) -> None:
    save_state(tmp_path / "x.h5", "x", 1, {"text": "a" * 500})
    (line,) = inspect(tmp_path / "x.h5").lines[1:]
    assert line.endswith("aaa...")
    assert len(line) < 110


def test_a_run_folder(layout: RunLayout) -> None:
    report = inspect(layout.root)
    assert report.errors == []
    text = "\n".join(report.lines)
    assert "run of 'cartpole', state 'done', hpcdi 1.2.3" in report.lines[0]
    assert "data: 3 blocks in 3 shards, 12 transitions" in text
    assert "all checksums right" in text
    assert "policy of train iteration 9" in text
    assert "snapshot at train iteration 5, env step 7, all checksums right" in text


def test_a_checkpoint_by_its_folder(layout: RunLayout) -> None:
    folder = state_of(layout).parent
    assert inspect(folder).lines == [
        f"{folder}: snapshot at train iteration 5, env step 7, all checksums right"
    ]
    state_of(layout).write_bytes(b"torn")
    (error,) = inspect(folder).errors
    assert error == f"{folder}: is torn: coordinator.h5 is not what was written"


def test_one_damaged_shard_is_named_and_the_rest_is_counted(layout: RunLayout) -> None:
    damaged = shards_of(layout)[1]
    tear(damaged)
    report = inspect(layout.root)
    assert report.errors == [f"{damaged}: checksum of block 0 is wrong: the file is torn"]
    text = "\n".join(report.lines)
    assert "data: 2 blocks in 2 shards, 8 transitions" in text
    assert "1 damaged" in text


def test_every_damaged_file_is_named(layout: RunLayout) -> None:
    tear(shards_of(layout)[0])
    shards_of(layout)[2].write_bytes(b"")
    tear(layout.latest_policy)
    state_of(layout).write_bytes(b"text")
    report = inspect(layout.root)
    assert len(report.errors) == 4
    named = {error.partition(":")[0] for error in report.errors}
    assert named == {
        str(shards_of(layout)[0]),
        str(shards_of(layout)[2]),
        str(layout.latest_policy),
        str(state_of(layout).parent),
    }


def test_what_an_interrupted_write_left_is_told(layout: RunLayout) -> None:
    left = layout.data_dir / ".000009.h5.tmp-77"
    left.write_bytes(b"half")
    report = inspect(layout.root)
    assert report.errors == []
    assert f"  left over from an interrupted write: {left}" in report.lines


def test_a_run_without_data(tmp_path: Path) -> None:
    write_sealed_json(RunLayout(tmp_path).run_file, {})
    write_sealed(RunLayout(tmp_path).config_file, "seed: 1\n")
    report = inspect(tmp_path)
    assert report.errors == []
    assert "data: 0 blocks in 0 shards, 0 transitions" in "\n".join(report.lines)


def test_an_old_copy_of_what_is_written_again_and_again_is_named(layout: RunLayout) -> None:
    run = {"state": "done", "files": rewritten_files(layout)}
    write_sealed_json(layout.run_file, run)
    assert inspect(layout.root).errors == []
    publish_policy(layout.latest_policy, PolicyImage.of({"w": torch.ones(2)}, 8), fsync=False)
    write_sealed(layout.config_file, "seed: 0\n")
    assert [error.partition(": ")[0] for error in inspect(layout.root).errors] == [
        str(layout.config_file),
        str(layout.latest_policy),
    ]


@pytest.mark.parametrize("text", ["", "{", "\x00"])
def test_a_torn_run_file_is_told(tmp_path: Path, text: str) -> None:
    file = RunLayout(tmp_path).run_file
    file.write_text(text)
    assert inspect(tmp_path).errors[0].startswith(f"{file}: is damaged: ")


@pytest.mark.parametrize("name", ["run.json", "snapshots/snapshot_000001/manifest.json"])
def test_every_byte_of_run_and_manifests_is_covered(layout: RunLayout, name: str) -> None:
    """Also bytes that JSON does not care about."""
    assert not inspect(layout.root).errors
    path = layout.root / name
    whole = path.read_bytes()
    others = [whole + b"\n", whole[:-1], b" " + whole, whole.replace(b": ", b":", 1)]
    others += [whole.replace(b"{", b'{"facts": 1,', 1), whole.replace(b'"crc32"', b'"more"')]
    for other in others:
        path.write_bytes(other)
        (error,) = inspect(layout.root).errors
        assert "is damaged: " in error


def test_what_a_running_run_removes_meanwhile_is_not_damaged(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = shards_of(layout)
    read, check, scan = inspection.read_blocks, inspection.open_checkpoint, os.scandir

    def blocks_of(path: Path) -> Any:
        if path == first:
            path.unlink()
        yield from read(path)
        if path == second:
            path.unlink()

    def open_removed(path: Path, **given: Any) -> Any:
        shutil.rmtree(path)
        return check(path, **given)

    def scan_removed(path: Any) -> Any:
        if Path(str(path)).name.startswith(".snapshot"):
            shutil.rmtree(path)
        return scan(path)

    (layout.snapshots_dir / f".snapshot_000002{TEMPORARY_MARK}1").mkdir()
    monkeypatch.setattr(inspection, "read_blocks", blocks_of)
    monkeypatch.setattr(inspection, "open_checkpoint", open_removed)
    monkeypatch.setattr(os, "scandir", scan_removed)
    report = inspect(layout.root)
    assert not report.errors
    assert "data: 1 block in 1 shard, 4 transitions, " in report.lines[1]


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    assert inspect(tmp_path).errors == [f"{tmp_path}: is no run folder, as it has no run.json"]


def test_nothing_there(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    assert inspect(path).errors == [f"{path}: does not exist"]


def shard_of_blocks(root: Path, rank: int = 2, number: int = 1) -> Path:
    """A shard of three blocks, in a run folder."""
    layout = RunLayout(root)
    items = np.ones(2, dtype=ITEM_DTYPE)
    items["item_start"], items["item_len"] = [0, 3], [3, 2]
    appender = Appender(layout, 1 << 16, fsync=False)
    name = f"data/rank{rank:05d}/20261126T00/{number:06d}.h5"
    for count in range(3):
        columns = {
            "observation": np.full((6, 3), count, np.float32),
            "action": np.arange(6, dtype=np.int64),
            "flag": np.zeros(6, bool),
        }
        block_id = (rank << BLOCK_ID_BITS) + number + count
        facts = {"collector_rank": rank, "block_id": block_id}
        appender.write(name, Block(columns, items, facts, (), 1))
    return layout.root / name


def seen_by_tools(path: Path) -> dict[str, Any] | None:
    """What h5py reads; None: it cannot."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return {k: file[k][()].tolist() for k in file if isinstance(file[k], h5py.Dataset)}
    except Exception:  # h5py raises almost any error for damaged files
        return None


def test_what_common_tools_read_otherwise_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit at a time, everywhere in the structure, and in what it holds."""
    monkeypatch.setattr(shard_file, "_PAUSES_S", ())  # nobody writes to it
    path = shard_of_blocks(tmp_path)
    assert not inspect(path).errors
    whole, right = path.read_bytes(), seen_by_tools(path)
    assert right is not None
    random = np.random.default_rng(0)
    filled = np.flatnonzero(np.frombuffer(whole, np.uint8))
    places = [*random.integers(0, 2048, 150), *random.choice(filled, 150)]
    blind = []
    for place in map(int, places):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ (1 << int(random.integers(8)))]))
        if seen_by_tools(path) != right and not inspect(path).errors:
            blind.append(place)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(whole[place : place + 1])
    assert not blind


@pytest.mark.parametrize("how", ["link", "another", "longer", "filtered", "more", "swapped"])
def test_a_shard_that_was_changed_is_named(tmp_path: Path, how: str) -> None:
    path = shard_of_blocks(tmp_path)
    if how == "longer":
        with path.open("ab") as file:
            file.write(bytes(1000))
    elif how == "swapped":
        shutil.copy(shard_of_blocks(tmp_path, rank=3), path)
    else:
        with h5py.File(path, "r+") as file:
            rows = file["action"][:]
            if how == "more":
                file["added"] = rows
            else:
                del file["action"]
            if how == "link":
                file["action"] = h5py.SoftLink("/flag")
            elif how == "another":
                file["action"] = rows + 1
            elif how == "filtered":
                file.create_dataset("action", data=rows, compression="gzip")
    assert inspect(path).errors


def test_a_shard_in_the_place_of_another_is_not_taken(tmp_path: Path) -> None:
    for number, rank in ((1, 2), (9, 2), (1, 4)):
        path = shard_of_blocks(tmp_path / "run", rank, number)
        assert not survey(path, "x").damaged
    other = shard_of_blocks(tmp_path / "run", 5, 1)
    for place in (other, path.with_name("000007.h5")):
        shutil.copy(path, place)
        (problem,) = survey(place, "x").damaged
        assert "is another shard's file" in str(problem)


def copied(root: Path, how: str) -> Path:
    """A copy of a run's only shard, somewhere below its `data/`."""
    path = shard_of_blocks(root)
    rank, hour = path.parent.parent, path.parent
    copy = {
        "another hour": rank / "20261126T09" / path.name,
        "a later number": hour / "000002.h5",
        "its number in other digits": hour / "1.h5",
        "its rank in other digits": rank.with_name("rank2") / hour.name / path.name,
        "another rank": rank.with_name("rank00003") / hour.name / path.name,
        "no number": hour / "copy.h5",
        "no rank": rank.with_name("old_rank00002") / hour.name / path.name,
        "no folder": rank.parent / path.name,
    }[how]
    copy.parent.mkdir(exist_ok=True, parents=True)
    shutil.copy(path, copy)
    return copy


COPIES = [
    *("another hour", "a later number", "its number in other digits", "its rank in other digits"),
    *("another rank", "no number", "no rank", "no folder"),
]


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_shard_is_named_and_counts_for_nothing(tmp_path: Path, how: str) -> None:
    write_sealed_json(RunLayout(tmp_path).run_file, {})
    write_sealed(RunLayout(tmp_path).config_file, "seed: 1\n")
    copy = copied(tmp_path, how)
    report = inspect(tmp_path)
    assert {error.partition(": is ")[0] for error in report.errors} == {str(copy)}
    assert "data: 3 blocks in 1 shard, 15 transitions" in "\n".join(report.lines)


def test_a_folder_of_shards_by_a_second_name_counts_for_nothing(tmp_path: Path) -> None:
    """A link that is followed before the file is opened hides by which name it was found."""
    layout, path = RunLayout(tmp_path), shard_of_blocks(tmp_path)
    (layout.data_dir / "rank00003").symlink_to("rank00002")
    found = {name: survey_in(layout, name, lambda *_: True) for name in layout.shard_numbers()}
    assert {name: len(each.blocks) for name, each in found.items()} == {
        str(path.relative_to(tmp_path)): 3,
        "data/rank00003/20261126T00/000001.h5": 0,
    }


@pytest.mark.parametrize("place", ["elsewhere.h5", "copied/rank00002/20261126T00/000001.h5"])
def test_a_shard_is_read_from_wherever_it_was_copied_to(tmp_path: Path, place: str) -> None:
    copy = tmp_path / place
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(shard_of_blocks(tmp_path / "run"), copy)
    assert not inspect(copy).errors


def test_a_shard_is_read_by_its_path_from_anywhere_in_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shard_of_blocks(tmp_path)
    for folder in path.relative_to(tmp_path).parents:
        monkeypatch.chdir(tmp_path / folder)
        assert not inspect(path.relative_to(tmp_path / folder)).errors


def test_a_snapshot_under_another_name_is_named_and_a_renamed_checkpoint_is_not(
    layout: RunLayout,
) -> None:
    snapshot = state_of(layout).parent
    copy = shutil.copytree(snapshot, snapshot.with_name("snapshot_000002"))
    shutil.copytree(snapshot, layout.checkpoints_dir / "mine")
    assert inspect(layout.root).errors == [f"{copy}: is snapshot_000001, under another name"]


def test_files_in_the_place_of_folders_are_named(tmp_path: Path) -> None:
    write_sealed_json(RunLayout(tmp_path).run_file, {})
    write_sealed(RunLayout(tmp_path).config_file, "seed: 1\n")
    assert not inspect(tmp_path).errors
    for place in ("data", "policies", "log", "snapshots"):
        (tmp_path / place).write_text("")
    assert len(inspect(tmp_path).errors) == 4


@pytest.mark.parametrize("name", ["iteration_7.pth.tar", "mine.pth"])
def test_a_checkpoint_s_file_for_torch_is_no_damage(layout: RunLayout, name: str) -> None:
    layout.checkpoints_dir.mkdir(exist_ok=True)
    torch.save({"model": {}}, layout.checkpoints_dir / name)
    assert not inspect(layout.root).errors


def test_bytes_after_a_policy_are_named(tmp_path: Path) -> None:
    image = PolicyImage.of({"w": torch.ones(3)}, 7)
    path = tmp_path / "a.safetensors"
    path.write_bytes(image.data)
    assert not inspect(path).errors
    path.write_bytes(image.data + bytes(1000))
    assert "its header describes" in inspect(path).errors[0]


def test_a_configuration_that_was_changed_is_told(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    write_sealed_json(layout.run_file, {})
    write_sealed(layout.config_file, "seed: 1\n")
    layout.config_file.write_bytes(layout.config_file.read_bytes().replace(b"1", b"2", 1))
    assert inspect(tmp_path).errors == [
        f"{layout.config_file}: is not as the run wrote it: its checksum is wrong"
    ]
