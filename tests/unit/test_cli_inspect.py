"""`hpcdi inspect`: exit code 0 where all is right, 1 where anything is damaged, 2 without one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fakes import store
from hpcdi import cli
from hpcdi.roles.coordinator.snapshots import STATE_FILE, STATE_KIND, STATE_VERSION
from hpcdi.run import run_folder
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import save_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.store.state_file import save_state
from hpcdi.types import ITEM_DTYPE


def write_shard(path: Path, *, damaged: bool = False) -> Path:
    """A shard of five transitions; a damaged one has another byte among its rewards."""
    items = np.zeros(1, dtype=ITEM_DTYPE)
    items["item_len"] = 5
    block = Block({"reward": np.arange(5, dtype=np.float32)}, items)
    ref = store.write_shard(RunLayout(path.parent), path.name, block, fsync=False)
    data = bytearray(path.read_bytes())
    data[ref.columns[0].offset] ^= damaged
    path.write_bytes(data)
    return path


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run with two shards."""
    layout = run_folder.claim(tmp_path / "run", {"exp_name": "mine"}, [], mpi="")
    for number in (1, 2):
        write_shard(layout.root / layout.shard_path(2, number))
    return layout


def test_a_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_shard(tmp_path / "a.h5")
    assert cli.main(["inspect", str(path)]) == 0
    captured = capsys.readouterr()
    assert "5 transitions in 1 items" in captured.out
    assert "reward" in captured.out
    assert captured.err == ""


def test_a_run(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(layout.root)]) == 0
    out = capsys.readouterr().out
    assert "run of 'mine', state 'running'" in out
    assert "2 blocks in 2 shards, 10 transitions" in out


def test_damage_is_named(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write_shard(layout.root / layout.shard_path(2, 3), damaged=True)
    assert cli.main(["inspect", str(layout.root)]) == 1
    captured = capsys.readouterr()
    assert "2 blocks in 2 shards, 10 transitions" in captured.out
    assert captured.err.startswith(f"hpcdi inspect: {bad}: ")


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ("run.json", "all checksums right"),
        ("config.yaml", "all checksums right"),
        ("shard", "1 damaged"),
        ("no HDF5", "1 damaged"),
    ],
)
def test_what_is_said_of_data_is_of_data_alone(
    layout: RunLayout, capsys: pytest.CaptureFixture[str], damaged: str, said: str
) -> None:
    """A changed config.yaml was counted as damaged data."""
    if damaged == "shard":
        write_shard(layout.root / layout.shard_path(2, 3), damaged=True)
    elif damaged == "no HDF5":
        layout.inside(layout.shard_path(2, 3)).write_text("noise")
    else:
        file = layout.root / damaged
        file.write_text(file.read_text().replace("mine", "yours"))
    assert cli.main(["inspect", str(layout.root)]) == 1
    out, err = capsys.readouterr()
    (data,) = (line for line in out.splitlines() if line.startswith("  data: "))
    assert data.startswith("  data: 2 blocks in 2 shards, 10 transitions, ")
    assert data.endswith(f", {said}")
    assert err.count("hpcdi inspect: ") == 1


def test_data_that_are_gone_have_no_right_checksums(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    for shard in layout.data_dir.rglob("*.h5"):
        shard.unlink()
    assert cli.main(["inspect", str(layout.root)]) == 0
    assert "  data: 0 blocks in 0 shards, 0 transitions, 0 B\n" in capsys.readouterr().out


def test_shards_that_are_gone_are_missed(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    """A snapshot needs them: a run whose data were removed was whole to `inspect`."""
    needed = [f"{layout.shard_path(2, number)}#0" for number in (1, 2)]
    groups = {"main": {"replay": {"partitions": {}, "waiting": needed}}}

    def write(path: Path) -> None:
        save_state(path, STATE_KIND, STATE_VERSION, {"groups": groups})

    folder = save_checkpoint(
        layout.snapshots_dir, "snapshot_000001", {STATE_FILE: write}, {"train_iter": 1}, keep=None
    )
    assert cli.main(["inspect", str(layout.root)]) == 0
    assert capsys.readouterr().err == ""
    layout.inside(needed[1]).unlink()
    assert cli.main(["inspect", str(layout.root)]) == 1
    said = f"{folder}: 1 block that it needs is gone, {needed[1]} first"
    assert capsys.readouterr().err == f"hpcdi inspect: {said}\n"


def test_one_that_is_damaged_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [write_shard(tmp_path / name) for name in ("a.h5", "c.h5")]
    bad = write_shard(tmp_path / "b.h5", damaged=True)
    assert cli.main(["inspect", str(good[0]), str(bad), str(good[1])]) == 1
    captured = capsys.readouterr()
    assert all(f"{path}: shard" in captured.out for path in good)
    assert f"{bad}: shard of 0 blocks" in captured.out
    assert captured.err.count("hpcdi inspect: ") == 1


@pytest.mark.parametrize("content", [None, b"", b"not HDF5 at all"])
def test_what_is_no_file_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "x.h5"
    if content is not None:
        path.write_bytes(content)
    assert cli.main(["inspect", str(path)]) == (2 if content is None else 1)
    assert capsys.readouterr().err.startswith(f"hpcdi inspect: {path}: ")


@pytest.mark.parametrize("content", [None, "{"])
def test_a_folder_that_holds_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    if content is not None:
        RunLayout(tmp_path).run_file.write_text(content)
    assert cli.main(["inspect", str(tmp_path)]) == (2 if content is None else 1)
    assert capsys.readouterr().err.startswith(f"hpcdi inspect: {tmp_path}")


def test_a_run_without_its_record_is_damaged(tmp_path: Path) -> None:
    RunLayout(tmp_path).data_dir.mkdir()
    assert cli.main(["inspect", str(tmp_path)]) == 1


def test_a_torn_configuration_hides_nothing_else(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    layout.config_file.write_text("env: {env_id: [")
    write_shard(layout.root / layout.shard_path(2, 3), damaged=True)
    assert cli.main(["inspect", str(layout.root)]) == 1
    captured = capsys.readouterr()
    assert "2 blocks in 2 shards, 10 transitions" in captured.out
    assert "config.yaml: is not as the run wrote it" in captured.err


def test_a_frozen_player_that_is_gone(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    players = [{"name": "main", "role": "main"}, {"name": "main_000001", "role": "historical"}]
    layout.league_file.write_text(json.dumps({"players": players}))
    assert cli.main(["inspect", str(layout.root)]) == 1
    gone = layout.league_dir / "main_000001.safetensors"
    assert f"{gone}: a frozen player of the league is gone" in capsys.readouterr().err
    players += [{"name": f"main_00000{n}", "role": "historical"} for n in range(2, 9)]
    layout.league_file.write_text(json.dumps({"players": players}))
    assert cli.main(["inspect", str(layout.root)]) == 1
    said = capsys.readouterr().err
    assert said == f"hpcdi inspect: {gone}: a frozen player of the league is gone, and 7 more\n"
