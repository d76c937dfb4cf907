"""Environment managers of each kind, and the rows that `CountEnv` must return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from hpcdi.config.env import ManagerConfig
from hpcdi.env.base import Step
from hpcdi.env.create import make_env_manager
from hpcdi.env.gymnasium import GymnasiumEnv
from hpcdi.env.manager import EnvManager
from hpcdi.env.toy import CountEnv
from hpcdi.env.vector import VectorEnvs
from hpcdi.types import Array

MODES = ("next_step", "same_step", "disabled")
LENGTH = 3


def vector_manager(
    make: Callable[[], VectorEnv[Any, Any, Any]],
    env_num: int,
    episode_num: int | None = None,
    seed: int | np.random.SeedSequence = 0,
    **settings: Any,
) -> EnvManager:
    """A manager of a vector environment."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return EnvManager(
        VectorEnvs(make, env_num), ManagerConfig(**settings), episode_num=episode_num, seed=sequence
    )


@contextmanager
def launched(
    make: Callable[[int], VectorEnv[Any, Any, Any]],
    env_num: int = 2,
    episode_num: int | None = None,
    seed: int = 0,
) -> Iterator[EnvManager]:
    with vector_manager(lambda: make(env_num), env_num, episode_num, seed) as manager:
        manager.launch()
        yield manager


def by_id(env_id: str, mode: str, **kwargs: Any) -> Callable[[int], VectorEnv[Any, Any, Any]]:
    """Maker of an environment in a mode; "vector_entry_point" is the environment's own form."""
    if mode == "vector_entry_point":
        cfg = GymnasiumEnv.parse_config({"env_id": env_id, "vectorization": mode, "kwargs": kwargs})
    else:
        cfg = GymnasiumEnv.parse_config(
            {"env_id": env_id, "vectorization": "sync", "autoreset": mode, "kwargs": kwargs}
        )
    return lambda env_num: GymnasiumEnv.make_vector(cfg, env_num)


def count(mode: str) -> Callable[[int], VectorEnv[Any, Any, Any]]:
    return by_id("hpcdi/Count-v0", mode, length=LENGTH)


def kept(step: Step) -> Step:
    """A step whose arrays are not written over."""
    successor = {name: column.copy() for name, column in step.successor.items()}
    failed = None if step.failed is None else step.failed.copy()
    return Step(successor, *(column.copy() for column in step[1:6]), failed, step.seeds)


def seen(manager: EnvManager) -> Array:
    """Observations that are to be acted on, of one array."""
    return manager.observation["observation"]


def waiting(manager: EnvManager) -> set[int]:
    """Rows that wait for an action."""
    return set(np.flatnonzero(manager.ready).tolist())


def stepped(manager: EnvManager, action: Array) -> Step:
    """A step by single actions, one a row."""
    return kept(manager.step({"action": action}))


def steps_of(manager: EnvManager, steps: int) -> list[tuple[Array, Step]]:
    """Observation before each step, and the step."""
    actions = np.zeros(manager.rows, dtype=np.int64)
    return [(seen(manager).copy(), stepped(manager, actions)) for _ in range(steps)]


def shape_of(env_num: int, *, seats: int = 1, wait_num: int | None = None) -> Any:
    """What a recorder asks of environments."""
    return SimpleNamespace(env_num=env_num, seats=seats, rows=env_num * seats, wait_num=wait_num)


def of_games(manager: EnvManager) -> tuple[Array, Array]:
    """Returns [games, players] of the games that ended, and their lengths [games]."""
    ended = manager.take_episodes()
    seat = ended.rows // manager.env_num
    returns = np.stack([ended.returns[seat == one] for one in range(manager.seats)], axis=1)
    return returns, ended.lengths[seat == 0]


Row = tuple[list[float], float, bool, bool, list[float]]


def live_rows(taken: list[tuple[Array, Step]], env: int) -> list[Row]:
    return [
        (
            observation[env].tolist(), float(step.reward[env]), bool(step.terminated[env]),
            bool(step.truncated[env]), step.successor["observation"][env].tolist(),
        )
        for observation, step in taken
        if step.live[env]
    ]  # fmt: skip


def count_rows(episodes: int) -> list[Row]:
    """What `CountEnv` must give, transition by transition."""
    rows: list[Row] = []
    for episode in range(episodes):
        for step in range(LENGTH):
            ended = step + 1 == LENGTH
            terminated, truncated = ended and episode % 2 == 0, ended and episode % 2 == 1
            rows.append(
                ([step, episode], step + 1.0, terminated, truncated, [step + 1, episode])
            )  # fmt: skip
    return rows


SYNC = ("next_step", "same_step", "disabled")
CHILDREN = ("forkserver", "spawn")
COUNT = partial(CountEnv, LENGTH)


def made(
    form: str, fns: list[Any], episode_num: int | None = None, seed: int = 0, **settings: Any
) -> EnvManager:
    sequence = np.random.SeedSequence(seed)
    if form in SYNC:
        mode = {"next_step": "NextStep", "same_step": "SameStep", "disabled": "Disabled"}[form]
        return vector_manager(
            lambda: SyncVectorEnv(fns, autoreset_mode=mode), len(fns), episode_num, sequence
        )
    if form == "late":  # whoever is first
        form, settings = "forkserver", {"wait_num": 1, **settings}
    if form in CHILDREN:
        settings = {"type": "subprocess", "start_method": form, **settings}
    manager: EnvManager = make_env_manager(
        {"episode_num": episode_num, "retry_waiting_time": 0.0, **settings}, fns, seed=sequence
    )
    return manager


@contextmanager
def running(form: str, fns: list[Any], *args: Any, **settings: Any) -> Iterator[EnvManager]:
    with made(form, fns, *args, **settings) as manager:
        manager.launch()
        yield manager
