"""Every kind of file that hpcdi reads, damaged in any way: an error by name, or the right content.

A reader never shows a traceback of another kind, follows a link out of the file, or takes memory
for what a file only says that it holds.
"""

from __future__ import annotations

import contextlib
import json
import resource
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.store import write_shard
from hpcdi.comm.codec import LARGEST_FRAME_BYTES, decode, encode, frame_sizes, from_bytes, to_bytes
from hpcdi.commands import logs
from hpcdi.commands.submit import last_snapshot_s
from hpcdi.commands.sweep import runs as sweep_runs
from hpcdi.config.load import load
from hpcdi.errors import CommError, ConfigError, HpcdiError, StoreError
from hpcdi.run import run_folder, run_lock, signals
from hpcdi.store import policies, shards
from hpcdi.store.atomic import LARGEST_JSON_BYTES, read_json, write_json
from hpcdi.store.block import Block
from hpcdi.store.checkpoints import (
    MANIFEST,
    load_tensors,
    newest_checkpoint,
    open_checkpoint,
    save_checkpoint,
    save_tensors,
)
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.sealed import write_sealed_json
from hpcdi.store.shards import read_block
from hpcdi.store.state_file import load_state, read_state, save_state
from hpcdi.types import ITEM_DTYPE
from hpcdi.utils.curves import CurveFile, drop_points_after, read_curves
from hpcdi.utils.event_file import TensorBoardWriter, drop_events_after

MEMORY_BYTES = 256 << 20
DEEP = (b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
CONFIG = Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml"
STATE = {"replay": {"newest": {"2": 3}, "rows": np.arange(50)}, "name": "x", "rate": 0.5}


def shard_block() -> Block:
    items = np.ones(2, dtype=ITEM_DTYPE)
    items["item_start"], items["item_len"] = [0, 3], [3, 2]
    return Block({"reward": np.arange(5.0), "info/image": np.ones((5, 3), "u1")}, items)


def make_shard(path: Path) -> None:
    write_shard(RunLayout(path.parent), path.name, shard_block(), fsync=False)


def make_policy(path: Path) -> None:
    image = policies.PolicyImage.of(
        {"w": torch.arange(6.0), "b": torch.ones(2, dtype=torch.int64)}, 7
    )
    policies.publish_policy(path, image, fsync=False)


def make_manifest(path: Path) -> None:
    folder = path.parent
    save_checkpoint(
        folder.parent, folder.name, {"a.txt": lambda file: file.write_text("hello") and None},
        {"train_iter": 5, "env_steps": 9, "saved_at": 1.5}, keep=None,
    )  # fmt: skip


def make_curves(path: Path) -> None:
    with TensorBoardWriter(path.parent) as writer:
        for step in range(20):
            writer.add_scalar("a", step / 3, step)
    (made,) = path.parent.glob("events.out.tfevents.*")
    made.replace(path)


def make_record(path: Path) -> None:
    with CurveFile(path) as curves:
        for step in range(20):
            curves.add_scalar("a", step / 3, step)


def make_log(path: Path) -> None:
    lines = [{"time": 1.0, "message": "hi", "snapshot": {"took_s": 0.5}}] * 3
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_sweep(path: Path) -> None:
    run = {"index": 0, "overrides": ["seed=1"], "job": "1", "state": "done"}
    held = {"format": 1, "exp_name": "x", "runs": [run], "ranks": 4, "parallel": 1}
    write_json(path, held, fsync=False)


def read_run(path: Path) -> None:
    """All that commands read of run.json; its damage is one error of `inspect`."""
    run_folder.read(path.parent)
    run_folder.read_state(path.parent)
    assert all(str(path.parent) in error for error in inspect(path.parent).errors)


def read_log(path: Path) -> None:
    logs.parse(0, path.read_bytes().splitlines())
    layout = RunLayout(path.parent)
    target = layout.log_file(0)
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(path.read_bytes())
    assert isinstance(last_snapshot_s(layout), float)


def read_scale(path: Path) -> None:
    signals.ScaleFile(RunLayout(path.parent), 4, lambda: None).take()


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, how it is made, and who reads it."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]


def survey(path: Path) -> None:
    for error in shards.survey(path, path.name).damaged:
        raise error


def write_facts(**facts: Any) -> Callable[[Path], None]:
    return lambda path: write_json(path, facts, fsync=False)


def seal_facts(**facts: Any) -> Callable[[Path], None]:
    return lambda path: write_sealed_json(path, facts)


def make_lock(path: Path) -> None:
    write_json(path, asdict(run_lock.this_process()), fsync=False)


KINDS = [
    Kind("shard.h5", make_shard, read_block),
    Kind("survey.h5", make_shard, survey),
    Kind("state.h5", lambda p: save_state(p, "x", 1, STATE), lambda p: load_state(p, "x", 1)),
    Kind("policy.safetensors", make_policy, lambda p: policies.read_policy(p).state_dict()),
    Kind(MANIFEST, make_manifest, lambda p: open_checkpoint(p.parent)),
    Kind("learner.pt", lambda p: save_tensors(p, {"w": torch.ones(9), "n": 3}), load_tensors),
    Kind(
        "run.json",
        seal_facts(exp_name="x", state="done", versions={"hpcdi": "1"}, placement=[{"rank": 0}]),
        read_run,
    ),
    Kind("run.lock", make_lock, lambda p: run_lock.holder_of(RunLayout(p.parent))),
    Kind("scale.json", write_facts(collectors=3, of=4), read_scale),
    Kind("sweep.json", make_sweep, lambda p: sweep_runs.read(p.parent)),
    Kind("config.yaml", lambda p: p.write_bytes(CONFIG.read_bytes()) and None, load),
    Kind("rank00000.jsonl", make_log, read_log),
    Kind("events", make_curves, lambda p: drop_events_after(p.parent, -1, -1)),
    Kind("curves.csv", make_record, lambda p: (read_curves([p]), drop_points_after(p, -1))),
]  # fmt: skip
ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """What is done within takes no more memory than some files."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MEMORY_BYTES


def place(folder: Path, kind: Kind) -> Path:
    name = "events.out.tfevents.1.host.1" if kind.name == "events" else kind.name
    path = folder / "run" / name
    path.parent.mkdir(exist_ok=True)
    return path


@ALL_KINDS
def test_a_file_as_it_was_written_is_read(tmp_path: Path, kind: Kind) -> None:
    path = place(tmp_path, kind)
    kind.make(path)
    kind.read(path)


mutations = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.floats(0, 1), st.integers(0, 7)),
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("fill"), st.floats(0, 1), st.integers(0, 255)),
        st.tuples(st.just("grow"), st.floats(0, 1), st.integers(0, 255)),
        st.tuples(st.just("swap"), st.floats(0, 1), st.integers(0, 9)),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def mutated(content: bytes, how: list[tuple[str, float, int]]) -> bytes:
    data = bytearray(content)
    for act, share, value in how:
        at = min(int(share * len(data)), max(len(data) - 1, 0))
        if act == "flip" and data:
            data[at] ^= 1 << value
        elif act == "cut":
            del data[at:]
        elif act == "fill":
            data[at : at + 16] = bytes([value]) * 16
        elif act == "grow":
            data[at:at] = bytes([value]) * 9
        elif data:  # a digit, a bracket, a quote in the place of another byte
            data[at] = b'0[{"}]:,-\\'[value]
    return bytes(data)


@ALL_KINDS
@settings(
    max_examples=60, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(how=mutations)
def test_a_damaged_file_is_an_error_by_name(
    tmp_path: Path, kind: Kind, how: list[tuple[str, float, int]]
) -> None:
    path = place(tmp_path, kind)
    kept = tmp_path / "as_it_was"
    if not kept.exists():
        kind.make(path)
        kept.write_bytes(path.read_bytes())
    path.write_bytes(mutated(kept.read_bytes(), how))
    with bounded_memory(), contextlib.suppress(HpcdiError):
        kind.read(path)


@ALL_KINDS
@pytest.mark.parametrize(
    "content", [b"", b"\0" * 5000, b"\xff" * 5000, b"[]", b"null", b'"x"', b"1" * 9000, *DEEP],
    ids=["empty", "zeros", "ones", "list", "null", "text", "digits", "deep", "deep dict"],
)  # fmt: skip
def test_another_content_is_an_error_by_name(tmp_path: Path, kind: Kind, content: bytes) -> None:
    path = place(tmp_path, kind)
    kind.make(path)
    path.write_bytes(content)
    began = time.process_time()
    with bounded_memory(), contextlib.suppress(HpcdiError):
        kind.read(path)
    assert time.process_time() - began < 30


# ------------------------------------------------------------------------------------------- JSON


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to every value of a tree."""
    yield path
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from leaves(tree[key], (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = json.loads(json.dumps(tree))
    node = copy
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k.name.endswith(".json")], ids=lambda kind: kind.name
)
def test_a_value_of_another_type_is_an_error_by_name(tmp_path: Path, kind: Kind) -> None:
    path = place(tmp_path, kind)
    kind.make(path)
    tree = json.loads(path.read_text())
    for way in leaves(tree):
        for value in (None, True, -1, 2**70, 0.5, "", "x", [], [[]], {}, {"a": {"b": 1}}):
            path.write_text(json.dumps(replaced(tree, way, value)))
            with contextlib.suppress(HpcdiError):
                kind.read(path)


def test_a_json_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(64 * LARGEST_JSON_BYTES)  # of zeros, which take no room
    with bounded_memory():
        assert read_json(path) == {}


def test_a_manifest_tells_every_change_of_itself(tmp_path: Path) -> None:
    """A flipped digit of the facts made a run look done."""
    path = tmp_path / "run" / MANIFEST
    make_manifest(path)
    tree = json.loads(path.read_text())
    for way in leaves(tree):
        for value in (None, 0, 1, 6, "x", [], {}):
            changed = replaced(tree, way, value)
            if changed != tree and way != ("crc32",):
                path.write_text(json.dumps(changed))
                with pytest.raises(StoreError):
                    open_checkpoint(path.parent)
    text = json.dumps(tree)
    for offset in range(len(text)):
        for bit in range(7):
            torn = bytearray(text.encode())
            torn[offset] ^= 1 << bit
            path.write_bytes(torn)
            with contextlib.suppress(StoreError):
                # a space for a tab, or the like: what it says is the same
                assert open_checkpoint(path.parent).facts == tree["facts"]


def test_a_manifest_without_a_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run" / MANIFEST
    make_manifest(path)
    tree = json.loads(path.read_text())
    del tree["crc32"]
    path.write_text(json.dumps(tree))
    with pytest.raises(StoreError, match="is damaged: it lacks its checksum"):
        open_checkpoint(path.parent)


def test_a_manifest_without_a_needed_fact_is_passed_over(tmp_path: Path) -> None:
    make_manifest(tmp_path / "1" / MANIFEST)
    facts = {"train_jter": 5, "env_steps": "9", "saved_at": 1.5}
    save_checkpoint(tmp_path, "2", {}, facts, keep=None)
    needed = {"train_iter": int, "env_steps": int, "saved_at": float}
    found, errors = newest_checkpoint(tmp_path, needed)
    assert found is not None
    assert found.folder.name == "1"
    (error,) = errors
    assert "does not say ['train_iter', 'env_steps']" in str(error)


def test_a_file_of_a_checkpoint_that_never_ends_is_not_read(tmp_path: Path) -> None:
    make_manifest(tmp_path / "run" / MANIFEST)
    file = tmp_path / "run" / "a.txt"
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(StoreError, match=r"is torn: a\.txt"):
        open_checkpoint(file.parent)


# ------------------------------------------------------------------------------------------- HDF5


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.h5"
    save_state(path, "x", 1, STATE)
    return path


def relink(path: Path, name: str, how: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "r+") as file:
        del file[name]
        how(file)


def external_link(file: h5py.File, name: str, other: Path) -> None:
    file[name] = h5py.ExternalLink(str(other), name)


def external_bytes(file: h5py.File, name: str, other: Path) -> None:
    file.create_dataset(name, (50,), "i8", external=[(str(other), 0, 400)])


def virtual(file: h5py.File, name: str, other: Path) -> None:
    layout = h5py.VirtualLayout((50,), "i8")
    layout[:] = h5py.VirtualSource(other, name, (50,))
    file.create_virtual_dataset(name, layout)


def soft_link(file: h5py.File, name: str, other: Path) -> None:
    file["elsewhere"] = np.arange(50)
    file[name] = h5py.SoftLink("/elsewhere")


@pytest.mark.parametrize("way", [external_link, external_bytes, virtual, soft_link])
def test_bytes_of_another_file_are_not_read(
    tmp_path: Path, way: Callable[[h5py.File, str, Path], None]
) -> None:
    """With the right bytes in the other file: the checksum is right, and it is refused."""
    name, path, other = "arrays/replay/rows", tmp_path / "x.h5", tmp_path / "other.h5"
    for file in (path, other):
        save_state(file, "x", 1, STATE)
    relink(path, name, lambda file: way(file, name, other))
    with pytest.raises(StoreError, match=r"is a link|in another file"):
        read_state(path)


@pytest.mark.parametrize("chunks", [None, (1 << 20,)])
@pytest.mark.parametrize("name", ["text", "arrays/replay/rows"])
def test_an_hdf5_file_that_declares_much_more_than_it_has(
    state: Path, name: str, chunks: tuple[int, ...] | None
) -> None:
    def declare(file: h5py.File) -> None:
        file.create_dataset(name, (1 << 45,), "i8", chunks=chunks, compression=chunks and "gzip")

    relink(state, name, declare)
    with bounded_memory(), pytest.raises(StoreError, match="which the file does not hold"):
        read_state(state)


# ---------------------------------------------------------------------------------- policies, YAML


def test_a_policy_whose_dtype_has_changed_is_noticed(tmp_path: Path) -> None:
    """F32 and I32 have the same bytes and shape: another policy with the same checksum, before."""
    path = tmp_path / "x.safetensors"
    make_policy(path)
    data = path.read_bytes()
    assert data.count(b'"F32"') == 1
    path.write_bytes(data.replace(b'"F32"', b'"I32"'))
    with pytest.raises(StoreError, match="checksum is wrong"):
        policies.read_policy(path)


def test_a_policy_with_a_huge_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}" * 50)
    with bounded_memory(), pytest.raises(StoreError, match="is not a safetensors file"):
        policies.read_policy(path)


def test_yaml_that_grows_when_it_is_read(tmp_path: Path) -> None:
    """Ten lines that stand for 10^10 values."""
    path = tmp_path / "x.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    path.write_text("\n".join(lines))
    with bounded_memory(), pytest.raises(ConfigError, match="more than 1000000 settings"):
        load(path)
    path.write_text("a: &a [*a]")
    with pytest.raises(ConfigError):
        load(path)


# ---------------------------------------------------------------------------------------- messages


@settings(max_examples=300, deadline=None)
@given(how=mutations)
def test_a_damaged_message_is_an_error_by_name(how: list[tuple[str, float, int]]) -> None:
    value = {"a": np.arange(300), "b": (1, "x", b"bytes", 2 + 1j), "c": torch.ones(3), "d": [None]}
    encoded = encode(value, 1000)
    head = np.frombuffer(mutated(encoded.head.tobytes(), how), np.uint8)
    with bounded_memory(), contextlib.suppress(CommError):
        if len(frame_sizes(head)) <= 1:
            decode(head, [np.frombuffer(frame, np.uint8) for frame in encoded.frames])
    with bounded_memory(), contextlib.suppress(CommError):
        from_bytes(np.frombuffer(mutated(to_bytes(value).tobytes(), how), np.uint8))


@pytest.mark.parametrize("size", [LARGEST_FRAME_BYTES + 1, 1 << 62, (1 << 64) - 1])
def test_a_frame_that_nobody_can_send(size: int) -> None:
    head = np.frombuffer(struct.pack("<IQ", 1, 2) + struct.pack("<QB", size, 1) + b"[]", np.uint8)
    with pytest.raises(CommError, match=f"announces {size} bytes"):
        frame_sizes(head)


SAYS_MORE = [b'["T",0,"float32",[1099511627776]]', b'["q"]', b"[]", b'["a",0,"(,)i4",[0],true]']


@pytest.mark.parametrize("body", [*DEEP, *SAYS_MORE])
def test_a_message_that_says_more_than_it_holds(body: bytes) -> None:
    entry = struct.pack("<QB", 0, 0)
    head = np.frombuffer(struct.pack("<IQ", 1, len(body)) + entry + body, np.uint8)
    with bounded_memory(), pytest.raises(CommError, match="received a damaged message"):
        decode(head, [])


def test_a_head_that_promises_more_entries_than_it_has() -> None:
    head = np.frombuffer(struct.pack("<IQ", 1 << 31, 2) + b"[]", np.uint8)
    with pytest.raises(CommError, match="damaged head"):
        frame_sizes(head)
