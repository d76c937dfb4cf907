"""A fixed number of episodes of each environment, and their films."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.evaluator_parts import DuckPolicy, Manager
from hpcdi.errors import ConfigError, EnvError
from hpcdi.worker import InteractionSerialEvaluator, VectorEvalMonitor

EPISODES = st.lists(
    st.lists(st.tuples(st.integers(1, 7), st.integers(-9, 9)), min_size=1, max_size=3),
    min_size=1,
    max_size=5,
)


def picture(value: int, height: int = 2, width: int = 3) -> Any:
    return np.full((height, width, 3), value, np.uint8)


@given(env_num=st.integers(1, 20), extra=st.integers(0, 50))
def test_every_environment_gets_its_share(env_num: int, extra: int) -> None:
    monitor = VectorEvalMonitor(env_num, env_num + extra)
    shares = [0] * env_num
    while not monitor.is_finished():
        for env_id in range(env_num):
            if monitor.is_open(env_id):
                monitor.update_reward(env_id, 0.0)
                shares[env_id] += 1
    assert sum(shares) == env_num + extra == monitor.get_current_episode()
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


@settings(max_examples=60, deadline=None)
@given(
    episodes=EPISODES,
    extra=st.integers(0, 9),
    together=st.integers(1, 5),
    renews=st.booleans(),
    data=st.data(),
)
def test_the_mean_does_not_depend_on_how_long_episodes_are(
    episodes: Any, extra: int, together: int, renews: bool, data: st.DataObject
) -> None:
    """Nor on who answers when: each environment's first episodes count, and nothing else."""
    n_episode = len(episodes) + extra
    manager = Manager(episodes, together=together, renews=renews)
    with InteractionSerialEvaluator({}, manager, DuckPolicy()) as evaluator:
        _, info = evaluator.eval(n_episode=n_episode)
    expected = []
    for env_id, mine in enumerate(episodes):
        share = len(range(env_id, n_episode, len(episodes)))
        expected += [float(mine[k % len(mine)][1]) for k in range(share)]
    assert info["eval_episode_return"] == expected
    assert info["reward_mean"] == [pytest.approx(np.mean(expected))]


def test_what_is_played_beyond_is_ignored() -> None:
    monitor = VectorEvalMonitor(2, 3)
    for number in range(5):
        monitor.update_info(1, {"number": number})
        monitor.update_reward(1, number)
    assert not monitor.is_finished()
    monitor.update_reward(0, 7.0)
    monitor.update_reward(0, 8.0)
    assert monitor.is_finished()
    assert monitor.get_episode_return() == [7.0, 8.0, 0.0]
    assert (monitor.get_latest_reward(0), monitor.get_latest_reward(1)) == (8.0, 0.0)
    assert monitor.get_episode_info() == {"number": [0]}


@pytest.mark.parametrize(
    "reward", [2.5, np.float32(2.5), np.array([2.5]), np.array(2.5), torch.tensor([2.5]), [2.5]]
)
def test_returns_come_in_many_forms(reward: Any) -> None:
    monitor = VectorEvalMonitor(1, 1)
    monitor.update_reward(0, reward)
    assert monitor.get_episode_return() == [2.5]


@pytest.mark.parametrize("reward", [np.zeros(2), torch.zeros(2), "much", None])
def test_what_is_not_one_number_is_no_return(reward: Any) -> None:
    with pytest.raises(EnvError, match="must be one number, not"):
        VectorEvalMonitor(1, 1).update_reward(0, reward)


def test_infos_are_lists_of_one_length() -> None:
    monitor = VectorEvalMonitor(2, 2)
    monitor.update_info(1, {"a": 1, "b": 2})
    monitor.update_info(0, {"b": 3})
    assert monitor.get_episode_info() == {"a": [None, 1], "b": [3, 2]}


@pytest.mark.parametrize(("env_num", "n_episode"), [(3, 2), (0, 4), (1, 0)])
def test_too_few_episodes(env_num: int, n_episode: int) -> None:
    with pytest.raises(ConfigError, match=f"{n_episode} episodes are too few for {env_num}"):
        VectorEvalMonitor(env_num, n_episode)


def test_no_episode_yet() -> None:
    monitor = VectorEvalMonitor(1, 1)
    assert (monitor.get_current_episode(), monitor.get_episode_info()) == (0, {})
    with pytest.raises(EnvError, match="environment 0 has not ended an episode"):
        monitor.get_latest_reward(0)
    with pytest.raises(EnvError, match="no episode has ended"):
        monitor.get_video()


# ---------------------------------------------------------------------------------------- films


def film(monitor: VectorEvalMonitor, env_id: int, values: list[int], total: float) -> None:
    for value in values:
        monitor.update_video({env_id: picture(value)})
    monitor.update_reward(env_id, total)


def test_worst_median_and_best_stand_still_at_their_end() -> None:
    monitor = VectorEvalMonitor(2, 5)
    film(monitor, 0, [10, 11, 12], 3.0)
    film(monitor, 1, [20], -1.0)
    film(monitor, 0, [30, 31], 9.0)
    film(monitor, 1, [40], 4.0)
    film(monitor, 0, [50], 0.0)
    video = monitor.get_video()
    assert (video.dtype, video.shape) == (np.uint8, (3, 3, 3, 2, 3))
    assert video[:, :, 0, 0, 0].tolist() == [[20, 20, 20], [10, 11, 12], [30, 31, 31]]


def test_one_episode_is_worst_median_and_best() -> None:
    monitor = VectorEvalMonitor(1, 1)
    film(monitor, 0, [1, 2], 0.0)
    assert monitor.get_video()[:, :, 0, 0, 0].tolist() == [[1, 2]] * 3


def test_pictures_of_all_environments_as_a_list() -> None:
    monitor = VectorEvalMonitor(2, 3)
    monitor.update_video([picture(1), picture(2)])
    monitor.update_reward(1, 5.0)
    monitor.update_video([picture(3), picture(99)])  # 1 has its share
    monitor.update_reward(0, 4.0)
    monitor.update_video([picture(6), picture(99)])
    monitor.update_reward(0, 6.0)
    assert monitor.get_video()[:, :, 0, 0, 0].tolist() == [[1, 3], [2, 2], [6, 6]]


def test_an_episode_that_failed_leaves_no_picture() -> None:
    monitor = VectorEvalMonitor(1, 1)
    monitor.update_video([picture(1)])
    monitor.drop_episode(0)
    film(monitor, 0, [7], 0.0)
    assert monitor.get_video()[:, :, 0, 0, 0].tolist() == [[7]] * 3


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    room=st.integers(6, 80),
    dropped=st.integers(0, 20),
)
def test_films_get_coarser_not_shorter_where_memory_is_short(
    lengths: list[int], room: int, dropped: int
) -> None:
    size = picture(0).nbytes
    monitor = VectorEvalMonitor(len(lengths), len(lengths), max_video_bytes=room * size)
    for k in range(dropped):
        monitor.update_video({0: picture(k)})
    monitor.drop_episode(0)
    for env_id, length in enumerate(lengths):
        film(monitor, env_id, list(range(length)), float(env_id))
        held = sum(len(f) for ended in monitor._videos._ended for f in ended)
        assert held <= max(room, len(lengths))
    stride = monitor.video_stride
    assert stride == 1 or sum(lengths) + dropped > room
    last = monitor.get_video()[2, :, 0, 0, 0].tolist()
    true = list(range(0, lengths[-1], stride))
    assert last[: len(true)] == true
    assert set(last[len(true) :]) <= {true[-1]}


def test_dropped_episodes_take_no_room() -> None:
    monitor = VectorEvalMonitor(1, 1, max_video_bytes=4 * picture(0).nbytes)
    for _ in range(10):
        monitor.update_video([picture(1)])
        monitor.drop_episode(0)
    film(monitor, 0, [1, 2, 3, 4], 0.0)
    assert monitor.video_stride == 1


def test_pictures_of_different_sizes() -> None:
    monitor = VectorEvalMonitor(2, 2)
    monitor.update_video([picture(1), picture(1, height=9)])
    monitor.update_reward(0, 1.0)
    monitor.update_reward(1, 1.0)
    with pytest.raises(EnvError, match=r"sizes \[\(2, 3, 3\), \(9, 3, 3\)\]; update_video"):
        monitor.get_video()


def test_an_episode_without_pictures() -> None:
    monitor = VectorEvalMonitor(2, 2)
    film(monitor, 0, [1], 0.0)
    monitor.update_reward(1, 1.0)
    with pytest.raises(EnvError, match=r"they have \[1, 1, 0\] pictures"):
        monitor.get_video()
