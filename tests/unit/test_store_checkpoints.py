"""Checkpoints: whole or not at all; the newest whole one is taken; no code comes out of them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fakes.failing_files import FailingFiles
from hpcdi.errors import CheckpointError, SnapshotError, StoreError
from hpcdi.store.atomic import sweep_temporary, temporary_beside
from hpcdi.store.checkpoints import (
    MANIFEST,
    UnsavableError,
    checkpoint_names,
    load_tensors,
    newest_checkpoint,
    open_checkpoint,
    save_checkpoint,
    save_tensors,
    write_files,
)
from hpcdi.store.sealed import load_sealed_json, write_sealed_json

Writer = Callable[[Path], None]


def writes(text: str) -> Writer:
    return lambda path: path.write_text(text) and None


def save(folder: Path, number: int, *, keep: int = 2, facts: dict[str, Any] | None = None) -> Path:
    """A checkpoint of two files, each of which says its number."""
    writers = {"a.txt": writes(f"a {number}"), "b.bin": writes("b" * number)}
    facts = facts if facts is not None else {"number": number}
    return save_checkpoint(folder, f"iteration_{number:09d}", writers, facts, keep=keep)


def numbers(folder: Path) -> list[int]:
    return [int(name.removeprefix("iteration_")) for name in checkpoint_names(folder)]


def newest(folder: Path) -> int | None:
    checkpoint, _ = newest_checkpoint(folder)
    if checkpoint is None:
        return None
    number = int(checkpoint.facts["number"])
    assert checkpoint.file("a.txt").read_text() == f"a {number}"
    assert checkpoint.file("b.bin").read_text() == "b" * number
    return number


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


# ---------------------------------------------------------------------------------- saved and read


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    path = save(folder, 7, facts={"number": 7, "best": -1.5, "env_steps": 10**12})
    checkpoint = open_checkpoint(path)
    assert checkpoint.folder == path == folder / "iteration_000000007"
    assert checkpoint.facts == {"number": 7, "best": -1.5, "env_steps": 10**12}
    assert sorted(file.name for file in path.iterdir()) == ["a.txt", "b.bin", MANIFEST]
    assert newest(folder) == 7
    assert hidden(folder) == []


def test_a_best_that_there_is_not_yet_comes_back(tmp_path: Path) -> None:
    path = save(tmp_path, 1, facts={"best": None})
    assert open_checkpoint(path).facts == {"best": None}


def test_a_checkpoint_without_files(tmp_path: Path) -> None:
    assert open_checkpoint(save_checkpoint(tmp_path, "x", {}, {"a": 1}, keep=1)).facts == {"a": 1}


def test_there_may_be_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") == (None, [])
    assert newest_checkpoint(tmp_path) == (None, [])
    with pytest.raises(CheckpointError, match="is no whole checkpoint"):
        open_checkpoint(tmp_path / "none")


def test_the_oldest_ones_go(tmp_path: Path) -> None:
    seen = []
    for number in (1, 5, 10, 200, 3000):
        save(tmp_path, number, keep=3)
        seen.append(numbers(tmp_path))
    assert seen == [[1], [1, 5], [1, 5, 10], [5, 10, 200], [10, 200, 3000]]
    save(tmp_path, 3001, keep=1)
    assert numbers(tmp_path) == [3001]


def test_only_names_of_a_kind_are_counted(tmp_path: Path) -> None:
    for name in ("a1", "a1_good", "b1", "a_best", "a2", "a3", "b2"):
        kept = 1 if name.startswith("a") else None
        save_checkpoint(tmp_path, name, {}, {}, keep=kept)
    assert checkpoint_names(tmp_path) == ["a1_good", "a3", "a_best", "b1", "b2"]


def test_a_link_that_leads_nowhere_hides_none(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "a1", {}, {}, keep=1)
    (tmp_path / "file").touch()
    for name, target in (("loop", "loop"), ("gone", "nowhere"), ("within", "file/x")):
        (tmp_path / name).symlink_to(target)
    assert checkpoint_names(tmp_path) == ["a1"]


def test_one_replaces_another_of_its_name(tmp_path: Path) -> None:
    for number in (1, 2):
        writers = {f"{number}.txt": writes("x")}
        facts = {"number": number}
        save_checkpoint(tmp_path, "best", writers, facts, keep=None)
    checkpoint = open_checkpoint(tmp_path / "best")
    assert checkpoint.facts == {"number": 2}
    assert sorted(path.name for path in checkpoint.folder.iterdir()) == ["2.txt", MANIFEST]
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_replacement_that_fails_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, "best", {}, {"number": 1}, keep=None)
    rename = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if self.name.startswith(".best"):
            raise OSError(errno.ENOSPC, "planted: no space")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(CheckpointError, match="planted: no space"):
        save_checkpoint(tmp_path, "best", {}, {"number": 2}, keep=None)
    assert open_checkpoint(tmp_path / "best").facts == {"number": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


REPLACES_FOR_EVER = """
import itertools, sys
from pathlib import Path
from hpcdi.store.checkpoints import save_checkpoint

for number in itertools.count():
    facts = {"number": number}
    save_checkpoint(Path(sys.argv[1]), "best", {}, facts, keep=None)
    print(number, flush=True)
"""


def test_a_kill_while_one_replaces_another_leaves_one_of_both(tmp_path: Path) -> None:
    for wait_for in range(2, 6):
        child = subprocess.Popen(
            [sys.executable, "-c", REPLACES_FOR_EVER, str(tmp_path)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        with child.stdout as told:
            for _ in range(wait_for):
                told.readline()
            child.send_signal(signal.SIGKILL)
            child.wait()
        found = sorted(checkpoint_names(tmp_path))
        assert found in (["best"], ["best", "best.before"], ["best.before"])
        # of two, the one before may be half removed
        assert open_checkpoint(tmp_path / found[0]).facts["number"] >= 0
    save_checkpoint(tmp_path, "best", {}, {"number": -1}, keep=None)
    assert checkpoint_names(tmp_path) == ["best"]


def test_the_one_that_a_kill_has_left_under_its_other_name_stays_until_there_is_a_new_one(
    tmp_path: Path,
) -> None:
    path = save(tmp_path, 8)
    before = path.rename(path.with_name(f"{path.name}.before"))
    path.symlink_to("nowhere")  # no folder takes the place of a link
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_checkpoint(tmp_path, path.name, {}, {}, keep=None)
    assert open_checkpoint(before).facts == {"number": 8}


# -------------------------------------------------------------------------------------------- torn


def truncate(path: Path) -> None:
    (path / "b.bin").write_text("b")


def flip(path: Path) -> None:
    data = bytearray((path / "b.bin").read_bytes())
    data[1] ^= 1
    (path / "b.bin").write_bytes(data)


def lose_file(path: Path) -> None:
    (path / "a.txt").unlink()


def lose_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def cut_manifest(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text[: len(text) // 2])


def wrong_checksum(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"]["a.txt"]["crc32"] += 1
    (path / MANIFEST).write_text(json.dumps(manifest))


def manifest_is(data: bytes) -> Callable[[Path], None]:
    return lambda path: (path / MANIFEST).write_bytes(data) and None


TEARS = {
    "truncated": truncate, "flipped": flip, "lost": lose_file, "no manifest": lose_manifest,
    "half a manifest": cut_manifest, "wrong checksum": wrong_checksum,
    "empty manifest": manifest_is(b""), "binary manifest": manifest_is(b"\x89\xff\x00"),
    "a list": manifest_is(b"[]"), "no facts": manifest_is(b'{"files": {}}'),
    "files are none": manifest_is(b'{"facts": {}, "files": 3}'),
}  # fmt: skip
ALL_TEARS = pytest.mark.parametrize("tear", TEARS.values(), ids=TEARS.keys())


@ALL_TEARS
def test_a_torn_one_is_an_error_and_the_one_before_is_taken(
    tmp_path: Path, tear: Callable[[Path], None]
) -> None:
    save(tmp_path, 8)
    path = save(tmp_path, 9)
    tear(path)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert str(caught.value).startswith(f"{path}: is ")
    assert newest(tmp_path) == 8
    _, errors = newest_checkpoint(tmp_path)
    assert [str(error) for error in errors] == [str(caught.value)]


@pytest.mark.parametrize("where", ["manifest.json", "b.bin", "checkpoints"])
def test_one_that_cannot_be_read_for_a_moment_is_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = tmp_path / "checkpoints"
    for number in (1, 2):
        save(folder, number)
    failing = FailingFiles(monkeypatch, where, 3)
    assert (newest(folder), failing.left) == (2, 0)
    failing.left = 99
    with pytest.raises(StoreError, match=r"cannot be read: .*Stale file handle"):
        newest_checkpoint(folder)


def test_where_all_are_torn_there_is_none(tmp_path: Path) -> None:
    for number in (8, 9):
        flip(save(tmp_path, number))
    checkpoint, errors = newest_checkpoint(tmp_path)
    assert checkpoint is None
    assert [error.path.name for error in errors] == ["iteration_000000009", "iteration_000000008"]
    assert "b.bin is not what was written" in str(errors[0])


@ALL_TEARS
def test_a_torn_one_is_written_anew_under_its_name(
    tmp_path: Path, tear: Callable[[Path], None]
) -> None:
    """A run that goes on from the one before comes by the same iteration again."""
    save(tmp_path, 8)
    tear(save(tmp_path, 9))
    save(tmp_path, 9)
    assert newest(tmp_path) == 9
    assert numbers(tmp_path) == [8, 9]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_torn_one_does_not_take_the_place_of_a_new_one(tmp_path: Path, keep: int) -> None:
    """It is newer by its name than those that follow when the run goes on from one before it."""
    save(tmp_path, 5)
    truncate(save(tmp_path, 9))
    save(tmp_path, 6, keep=keep)
    assert newest(tmp_path) == 6
    assert numbers(tmp_path) == [5, 6][-keep:]


# ------------------------------------------------------------------------------ under another name


@pytest.mark.parametrize("how", ["copied", "swapped", "its manifest"])
def test_an_older_one_under_the_newest_name_is_not_taken(tmp_path: Path, how: str) -> None:
    one, two, three = (save(tmp_path, number, keep=3) for number in (7, 8, 9))
    if how == "its manifest":
        shutil.copy(one / MANIFEST, three)
    else:
        three.rename(tmp_path / "aside")
        shutil.copytree(one, three)
        if how == "swapped":
            shutil.rmtree(one)
            (tmp_path / "aside").rename(one)
        else:
            shutil.rmtree(tmp_path / "aside")
    checkpoint, errors = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.folder == two
    assert list(map(str, errors)) == [f"{three}: is {one.name}, under another name"]
    save(tmp_path, 9, keep=3)
    assert newest(tmp_path) == 9, "it is written anew"


def test_a_single_one_is_loaded_from_wherever_it_was_copied_to(tmp_path: Path) -> None:
    path = save(tmp_path / "run", 8)
    for copy in (tmp_path / "mine", path.with_name("ckpt_mine")):
        shutil.copytree(path, copy)
        assert open_checkpoint(copy).facts == {"number": 8}


def test_one_that_was_renamed_to_be_replaced_is_taken(tmp_path: Path) -> None:
    """A kill may leave it under that name."""
    path = save(tmp_path, 8)
    path.rename(path.with_name(f"{path.name}.before"))
    checkpoint, errors = newest_checkpoint(tmp_path)
    assert (checkpoint is not None, errors) == (True, [])


def test_a_manifest_without_a_name_is_damaged(tmp_path: Path) -> None:
    path = save(tmp_path, 8)
    manifest = load_sealed_json(path / MANIFEST)
    assert manifest.pop("name") == path.name
    write_sealed_json(path / MANIFEST, manifest)
    with pytest.raises(CheckpointError, match=r"it has the keys \['facts', 'files'\]"):
        open_checkpoint(path)


# --------------------------------------------------------------------------------- whole or nothing


def no_space(_path: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_space_in_the_store(path: Path) -> None:
    raise SnapshotError(path, "cannot be written: No space left on device")


def test_a_link_in_the_place_of_a_file_leads_nowhere(tmp_path: Path) -> None:
    other, aside = tmp_path / "other", tmp_path / "aside"
    other.write_text("somebody else's")
    aside.mkdir()
    (aside / "x").symlink_to(other)
    write_files(aside, {"x": partial(save_tensors, tree={"a": 1})})
    assert other.read_text() == "somebody else's"
    assert load_tensors(aside / "x") == {"a": 1}


@pytest.mark.parametrize("fails", [no_space, no_space_in_the_store])
def test_a_full_disk_is_told_and_changes_nothing(tmp_path: Path, fails: Writer) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        save_checkpoint(tmp_path, "iteration_3", {"a": writes("a"), "b": fails}, {}, keep=1)
    assert caught.value.path == tmp_path / "iteration_3"
    assert (numbers(tmp_path), hidden(tmp_path)) == ([1, 2], [])
    assert newest(tmp_path) == 2


def test_any_other_error_leaves_nothing_either(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, "x", {"a": broken}, {}, keep=1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where a folder should be")
    with pytest.raises(CheckpointError, match="cannot be written: Not a directory"):
        save(tmp_path / "checkpoints", 1)


def test_what_a_killed_process_left_is_no_checkpoint_and_is_swept(tmp_path: Path) -> None:
    save(tmp_path, 1)
    left = temporary_beside(tmp_path / "iteration_000000002")
    left.mkdir()
    (left / "a.txt").write_text("half")
    assert numbers(tmp_path) == [1]
    assert sweep_temporary(tmp_path) == [left]
    assert not left.exists()
    assert newest(tmp_path) == 1


def test_what_this_very_process_left_is_written_over(tmp_path: Path) -> None:
    """Where process ids come again, the folder of another life may be there."""
    left = temporary_beside(tmp_path / "iteration_000000002")
    left.mkdir()
    (left / "stranger").write_text("half")
    path = save(tmp_path, 2)
    assert sorted(file.name for file in path.iterdir()) == ["a.txt", "b.bin", MANIFEST]


WRITES_FOR_EVER = """
import itertools, sys
from pathlib import Path
from hpcdi.store.checkpoints import save_checkpoint
def write(text):
    def to(path):
        with path.open("w") as file:
            for _ in range(64):
                file.write(text)
                file.flush()
    return to
for number in itertools.count(int(sys.argv[2])):
    text = f"{number:08d}" * 512
    save_checkpoint(Path(sys.argv[1]), f"iteration_{number:09d}",
                    {"a": write(text), "b": write(text)}, {"number": number}, keep=2)
    print(number, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_one(tmp_path: Path) -> None:
    first, leftovers = 0, 0
    for wait_for in range(2, 8):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path), str(first)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        with child.stdout as told:
            told_last = [int(told.readline()) for _ in range(wait_for)][-1]
            time.sleep(0.001 * wait_for)  # into the next one
            child.send_signal(signal.SIGKILL)
            child.wait()
            rest = told.read().splitlines()
        told_last = max([told_last, *(int(line) for line in rest if line)])
        leftovers += len(hidden(tmp_path))
        checkpoint, errors = newest_checkpoint(tmp_path)
        assert checkpoint is not None
        assert not errors, "what is killed leaves nothing that looks like a checkpoint"
        number = int(checkpoint.facts["number"])
        assert number in (told_last, told_last + 1), "what was told is there"
        for name in ("a", "b"):
            assert checkpoint.file(name).read_text() == f"{number:08d}" * 512 * 64
        assert len(checkpoint_names(tmp_path)) <= 3
        first = number + 1
    sweep_temporary(tmp_path)
    assert hidden(tmp_path) == []
    assert leftovers, "no kill came while something was written"


# ----------------------------------------------------------------------------------------- tensors


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    return network, optimizer


def test_tensors_and_an_optimizer_come_back_bit_by_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network, optimizer = trained()
    path = tmp_path / "x.pt"
    tree = {
        "policy": {"model": network.state_dict(), "optimizer": optimizer.state_dict()},
        "train_iter": 3,
        "rng": {"state": {"state": 2**127 + 1, "inc": 3}, "has_uint32": 0},
        "random": torch.get_rng_state(),
        "none": None,
    }
    save_tensors(path, tree)
    held = load_tensors(path)
    assert (held["train_iter"], held["rng"], held["none"]) == (3, tree["rng"], None)
    assert torch.equal(held["random"], torch.get_rng_state())
    again = torch.nn.Linear(3, 2)
    again.load_state_dict(held["policy"]["model"])
    its_optimizer = torch.optim.Adam(again.parameters(), lr=0.5)
    its_optimizer.load_state_dict(held["policy"]["optimizer"])
    for net, opt in ((network, optimizer), (again, its_optimizer)):
        opt.zero_grad()
        net(torch.full((4, 3), 0.3)).square().sum().backward()
        opt.step()
    for one, other in zip(network.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), "the next step is the same"


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.at}",)


def test_an_object_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    path, sprung = tmp_path / "x.pt", tmp_path / "sprung"
    torch.save({"a": Trap(sprung)}, path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tensors(path)
    assert not sprung.exists()


KEPT = [
    np.arange(6.0).reshape(2, 3), np.zeros((0, 3), ">i4"), np.array(3, np.float32),
    np.array(["a", "bc"]), np.array(["2026-11-29"], "M8[D]"), np.asfortranarray(np.eye(2)[:, :1]),
    *(kind(1) for kind in (np.bool_, np.int64, np.uint8, np.float16, np.float64, np.complex64)),
    deque([1, 2.5], 3), {1, "a"}, OrderedDict(a=1), Counter("aab"), (1, [b"x", bytearray(b"y")]),
    b"", 2j, None, torch.device("cpu"), torch.Size([2]), torch.float16,
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_what_is_saved_comes_back_type_for_type(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x.pt"
    save_tensors(path, {"state": {"held": value, np.int64(3): [value]}})
    for trusted in (load_tensors(path), torch.load(path, weights_only=False)):  # DI-engine's, too
        state = trusted["state"]
        for held in (state["held"], state[3][0]):
            assert type(held) is type(value)
            np.testing.assert_equal(held, value)
            assert getattr(held, "dtype", None) == getattr(value, "dtype", None)
            assert getattr(held, "maxlen", None) == getattr(value, "maxlen", None)
    if isinstance(value, np.ndarray):
        assert held.flags.writeable


class Pair(NamedTuple):
    one: int


@pytest.mark.parametrize(
    "value",
    [Path("x"), frozenset({1}), defaultdict(int), Pair(1), np.array([None]), np.str_("a"),
     np.zeros(1, [("a", int)]), np.ma.masked_array([1])],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_could_not_be_loaded_is_refused_by_its_key(tmp_path: Path, value: Any) -> None:
    for tree, key in (
        ({"rms": [torch.ones(1), {"mean": value}]}, r"rms\.1\.mean"),
        (deque([value]), "0"),
        (value, "the state"),
    ):
        with pytest.raises(UnsavableError, match=rf"^{key} \(an? .*could not be loaded again"):
            save_tensors(tmp_path / "x.pt", tree)
        torch.save(tree, tmp_path / "y.pt")
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_tensors(tmp_path / "y.pt")
    assert not (tmp_path / "x.pt").exists()


@pytest.mark.parametrize("left", [0, 1, 100, 0.5, 0.99])
def test_a_torn_file_of_tensors_is_told(tmp_path: Path, left: float) -> None:
    path = tmp_path / "x.pt"
    save_tensors(path, trained()[1].state_dict())
    data = path.read_bytes()
    path.write_bytes(data[: int(left if left >= 1 or not left else left * len(data))])
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        load_tensors(path)
    assert caught.value.path == path


def test_no_flipped_bit_raises_anything_else(tmp_path: Path) -> None:
    """Torch's reader checks little; the checkpoint's checksums find the rest."""
    path = tmp_path / "x.pt"
    save_tensors(path, trained()[1].state_dict())
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 13):
        data = bytearray(whole)
        data[at] ^= 0x80
        path.write_bytes(data)
        try:
            load_tensors(path)
        except CheckpointError:
            refused += 1
    assert refused > 10


def test_tensors_on_a_full_disk(tmp_path: Path) -> None:
    def to_a_full_disk(path: Path) -> None:
        path.symlink_to("/dev/full")
        save_tensors(path, {"a": torch.zeros(100_000)})

    with pytest.raises(CheckpointError, match="No space left on device"):
        save_checkpoint(tmp_path, "x", {"a": to_a_full_disk}, {}, keep=1)
    assert list(tmp_path.iterdir()) == []
