"""Paths of a run folder, and the removal of shards that nobody needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdi.errors import StoreError
from hpcdi.store.layout import RunLayout
from hpcdi.store.retention import Retention

QUICK = settings(deadline=None, max_examples=60)
OUTSIDE = ["../x", "data/../../x", "/etc/passwd", "..", "data/rank00001/../../../x"]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    root = tmp_path / "run"
    root.mkdir()
    return RunLayout(root)


def test_every_path_of_a_run() -> None:
    layout = RunLayout(Path("runs/x/1"))
    assert {
        "config": layout.config_file,
        "run": layout.run_file,
        "data": layout.data_dir,
        "tb": layout.tensorboard_dir,
        "latest": layout.latest_policy,
        "best": layout.best_policy,
        "snapshots": layout.snapshots_dir,
        "checkpoints": layout.checkpoints_dir,
        "another's": layout.checkpoints_of(1),
        "log": layout.log_file(2),
    } == {
        "config": Path("runs/x/1/config.yaml"),
        "run": Path("runs/x/1/run.json"),
        "data": Path("runs/x/1/data"),
        "tb": Path("runs/x/1/tb"),
        "latest": Path("runs/x/1/policies/latest.safetensors"),
        "best": Path("runs/x/1/policies/best.safetensors"),
        "snapshots": Path("runs/x/1/snapshots"),
        "checkpoints": Path("runs/x/1/checkpoints"),
        "another's": Path("runs/x/1/checkpoints1"),
        "log": Path("runs/x/1/log/rank00002.jsonl"),
    }


@pytest.mark.parametrize(
    ("rank", "number", "now", "path"),
    [
        (2, 1, 0.0, "data/rank00002/19700101T00/000001.h5"),
        (2, 1, 3599.9, "data/rank00002/19700101T00/000001.h5"),
        (2, 2, 3600.0, "data/rank00002/19700101T01/000002.h5"),
        (99999, 1234567, 1.7e9, "data/rank99999/20231114T22/1234567.h5"),
    ],
)
def test_shards_have_a_folder_a_collector_and_hour(
    layout: RunLayout, rank: int, number: int, now: float, path: str
) -> None:
    assert layout.shard_path(rank, number, now) == path
    assert layout.inside(path) == layout.root / path
    assert layout.inside(path).is_relative_to(layout.data_dir)


def test_only_folders_of_ranks_have_shards(layout: RunLayout) -> None:
    ours = layout.shard_path(10, 2), layout.shard_path(2, 7), layout.shard_path(2, 10, 0.0)
    for path in (*ours, "data/2024/05/000001.h5", "data/rank00002/x/1.h5.part", "data/notes.h5"):
        layout.inside(path).parent.mkdir(parents=True, exist_ok=True)
        layout.inside(path).touch()
    assert layout.shard_numbers() == {ours[1]: (2, 7), ours[2]: (2, 10), ours[0]: (10, 2)}
    assert list(layout.shard_numbers()) == [ours[1], ours[2], ours[0]]
    assert list(layout.shard_numbers(10)) == [ours[0]]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_lead_out_are_refused(layout: RunLayout, path: str) -> None:
    with pytest.raises(StoreError, match="leads out of the run folder"):
        layout.inside(path)


def test_a_link_that_leads_out_is_refused(layout: RunLayout) -> None:
    (layout.root / "data").symlink_to(layout.root.parent)
    with pytest.raises(StoreError, match="leads out of the run folder"):
        layout.inside("data/x.h5")


def test_a_run_folder_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").symlink_to("scratch")
    layout = RunLayout(tmp_path / "run")
    assert layout.inside("data/x.h5") == tmp_path / "scratch" / "data" / "x.h5"


# --------------------------------------------------------------------------------------- retention


def make_shard(layout: RunLayout, name: str, rank: int = 2) -> str:
    path = layout.inside(f"data/rank{rank:05d}/hour/{name}.h5")
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"rows")
    return str(path.relative_to(layout.root))


def test_a_shard_goes_with_the_last_user_of_any_of_its_blocks(layout: RunLayout) -> None:
    retention = Retention(layout, keep_data=False)
    one, two, three = (make_shard(layout, name) for name in ("1", "2", "3"))
    for name in (f"{one}#0", f"{two}#0", f"{one}#1", f"{one}#0", f"{three}#0"):
        retention.need(name)
    retention.release([f"{one}#0", f"{two}#0"])
    assert layout.inside(one).exists()
    assert not layout.inside(two).exists()
    retention.release([f"{one}#0"])
    assert layout.inside(one).exists()
    assert retention.removed == 1
    retention.release([f"{one}#1"])
    assert not layout.inside(one).exists()
    assert retention.removed == 2


def test_the_newest_shard_of_a_collector_stays_until_there_is_a_newer_one(
    layout: RunLayout,
) -> None:
    """Its collector may be about to append a block that nobody knows of yet."""
    retention = Retention(layout, keep_data=False)
    nine, ten = make_shard(layout, "000009"), make_shard(layout, "1000000010")
    retention.need(f"{nine}#0")
    retention.release([f"{nine}#0"])
    assert layout.inside(nine).exists()
    retention.need(f"{nine}#1")
    retention.release([f"{nine}#1"])
    assert layout.inside(nine).exists()
    retention.need(f"{ten}#0")
    assert not layout.inside(nine).exists()
    retention.release([f"{ten}#0"])
    assert layout.inside(ten).exists()


def test_no_shard_of_a_collector_that_has_ended_stays_unneeded(layout: RunLayout) -> None:
    """As when a run is resumed with fewer, one says goodbye, or dies."""
    retention = Retention(layout, keep_data=False)
    gone, other = make_shard(layout, "000009"), make_shard(layout, "000001", rank=3)
    for path in (gone, other):
        retention.need(f"{path}#0")
    retention.end(2)
    assert layout.inside(gone).exists()
    retention.release([f"{gone}#0", f"{other}#0"])
    assert not layout.inside(gone).exists()
    assert layout.inside(other).exists(), "more blocks may come into it"
    retention.end()
    assert not layout.inside(other).exists()


def test_kept_data_are_never_removed(layout: RunLayout) -> None:
    retention = Retention(layout, keep_data=True)
    path = make_shard(layout, "1")
    retention.need(path)
    retention.release([path])
    retention.end()
    assert layout.inside(path).exists()
    assert retention.removed == 0


def test_a_shard_that_has_gone_already_is_no_error(layout: RunLayout) -> None:
    retention = Retention(layout, keep_data=False)
    retention.need("data/gone.h5")
    retention.release(["data/gone.h5"])


def test_a_shard_that_cannot_be_removed_costs_space_only(
    layout: RunLayout, caplog: pytest.LogCaptureFixture
) -> None:
    retention = Retention(layout, keep_data=False)
    busy, other, newest = (make_shard(layout, name) for name in ("1", "2", "3"))
    layout.inside(busy).unlink()
    layout.inside(busy).mkdir()  # unlink refuses it
    for path in (busy, other, newest):
        retention.need(path)
    retention.release([busy, other])
    assert retention.removed == 1
    assert f"shard {busy} cannot be removed" in caplog.text


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_the_run_folder_is_touched(layout: RunLayout, path: str) -> None:
    victim = layout.root.parent / "x"
    victim.write_text("not ours")
    with pytest.raises(StoreError, match="leads out of the run folder"):
        Retention(layout, keep_data=False).need(path)
    assert victim.exists()


def test_releasing_what_nobody_needs_is_an_error(layout: RunLayout) -> None:
    path = make_shard(layout, "1")
    with pytest.raises(KeyError):
        Retention(layout, keep_data=False).release([path])
    assert layout.inside(path).exists()


@QUICK
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=30))
def test_users_are_counted(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[bool, int]]
) -> None:
    """Against a plain count: a file is there as long as somebody needs it."""
    layout = RunLayout(tmp_path_factory.mktemp("run"))
    retention = Retention(layout, keep_data=False)
    retention.need(make_shard(layout, "9"))  # the newest
    users = dict.fromkeys((make_shard(layout, str(k)) for k in range(3)), 0)
    known: set[str] = set()
    for takes, number in acts:
        path = f"data/rank00002/hour/{number}.h5"
        if takes:
            retention.need(path)
            known.add(path)
            users[path] += 1
        elif users[path]:
            retention.release([path])
            users[path] -= 1
        if users[path] == 0 and path in known:
            assert not layout.inside(path).exists()
            known.discard(path)
            make_shard(layout, str(number))  # another block under that name
        assert all(layout.inside(p).exists() for p in users)
