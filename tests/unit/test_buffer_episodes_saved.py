"""The buffer of episodes: transitions of any kind, saved states, frames that are stored once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes.episodes import columns, episode, filled, held, make, slices
from hpcdi.errors import SnapshotError


def test_transitions_may_be_anything() -> None:
    lock = (n for n in range(2))  # cannot be copied, and need not be
    buffer = make(3)
    buffer.push([["a", "b"], [None], [{"it": lock}] * 900])
    buffer.push([[7] * 900])
    assert buffer.sample_batch(1) is None
    assert sorted(map(len, buffer.sample(3, 0))) == [1, 900, 900]
    (drawn,) = buffer.sample(1, 0, slice(1, 2))
    assert drawn[0]["it"] is lock


def test_objects_stay_in_order_as_their_room_grows() -> None:
    """After others have gone, so that they lie round the end of the old room and of the new one."""
    buffer = make(2)
    for number, length in enumerate([600, 300, 500, 700, 1300]):
        buffer.push([[f"{number}/{step}" for step in range(length)]])
        for drawn in buffer.sample(buffer.count(), 0):
            first = drawn[0].split("/")[0]
            assert drawn == [f"{first}/{step}" for step in range(len(drawn))]


def test_plain_objects_can_be_saved_others_are_refused(tmp_path: Path) -> None:
    buffer, moved = make(3), make(3)
    buffer.push([episode(n, n + 1, text={str(n)}) for n in range(2)])
    with pytest.raises(SnapshotError, match="cannot be stored"):
        buffer.save_data(tmp_path / "b.h5")  # a set
    buffer.clear()
    buffer.push([["a", "b"], ["c"]])
    buffer.save_data(tmp_path / "b.h5")
    moved.load_data(tmp_path / "b.h5")
    assert sorted(moved.sample(2, 0)) == [["a", "b"], ["c"]]


@pytest.mark.parametrize("lengths", [[], [3], [5, 1, 2, 8], [900, 300, 700, 1, 2000]], ids=str)
@pytest.mark.parametrize("by_file", [False, True])
def test_saved_episodes_go_on(lengths: list[int], by_file: bool, tmp_path: Path) -> None:
    """Empty, partly filled, wrapped, grown: the same draws follow, and the same ids."""
    buffer, moved = filled(*lengths, size=3), filled(7, 7, 7, 7, size=3)
    if by_file:
        buffer.save_data(tmp_path / "b.h5")
        moved.load_data(tmp_path / "b.h5")
    else:
        moved.load_state_dict(buffer.state_dict())
    for _ in range(2):
        assert (moved.count(), moved.push_count) == (buffer.count(), buffer.push_count)
        assert moved.episode_len == buffer.episode_len
        if buffer.count():
            assert held(moved) == held(buffer)
            left, right = buffer.sample_batch(40, length=1), moved.sample_batch(40, length=1)
            assert slices(left).tolist() == slices(right).tolist()
        for both in (buffer, moved):
            both.push([episode(len(lengths), 1500)])


def test_a_saved_buffer_that_was_cleared_goes_on_with_its_ids() -> None:
    buffer, moved = filled(2, 2), make(100)
    buffer.clear()
    buffer.push(columns(0, 2))
    moved.load_state_dict(buffer.state_dict())
    moved.push(columns(0, 2))
    assert (moved.push_count, sorted(moved.sample_batch(2).unique_ids)) == (2, [2, 3])


def test_stacks_of_frames_are_stored_once() -> None:
    """Also as the room for transitions grows."""
    buffer = make(3, frames=["obs"])
    for n in range(4):
        frames = np.arange(500 + 3, dtype=np.int64)[:, None, None] + 1000 * n
        stacks = np.stack([frames[k : k + 500] for k in range(4)], axis=1)
        buffer.push({"obs": stacks, "t": np.arange(500)})
    batch = buffer.sample_batch(3)
    for row, number in enumerate(batch.unique_ids.tolist()):
        told = batch.columns["obs"][row, :, :, 0, 0]
        assert (told == 1000 * number + np.arange(500)[:, None] + np.arange(4)).all()
    assert buffer.n_bytes < 4 * 2048 * 8 * 2
