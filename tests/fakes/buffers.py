"""Replay buffers for tests, and items that can be told from each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from hpcdi.worker.replay_buffer import (
    AdvancedReplayBuffer,
)

Make: TypeAlias = Callable[..., Any]
SIZE = 8


def advanced(size: int = SIZE, *, prioritized: bool = True, **settings: Any) -> Any:
    cfg = {"replay_buffer_size": size, **settings}
    rng = np.random.default_rng(0)
    return AdvancedReplayBuffer(cfg, rng=rng, prioritized=prioritized)


def uniform(size: int = SIZE, **settings: Any) -> Any:
    return advanced(size, prioritized=False, **settings)


def maker(kind: Any, **more: Any) -> Make:
    """Makes seeded buffers of a class."""
    return lambda size=SIZE, **settings: kind(
        {"replay_buffer_size": size, **more, **settings}, rng=np.random.default_rng(0)
    )


def item(n: int) -> dict[str, Any]:
    """A transition that can be told from all others."""
    return {"n": n, "obs": {"image": np.full((2, 3), n % 256, np.uint8), "speed": n / 2}}


def items(start: int, stop: int) -> list[dict[str, Any]]:
    return [item(n) for n in range(start, stop)]


def number(drawn: dict[str, Any]) -> int:
    """Which item this is; all of its leaves must say the same."""
    n = int(drawn["n"])
    assert drawn["obs"]["image"].tolist() == [[n % 256] * 3] * 2
    assert drawn["obs"]["image"].dtype == np.uint8
    assert drawn["obs"]["speed"] == n / 2
    return n


def seen(buffer: Any, draws: int = 60) -> set[int]:
    """Numbers of the items that come up in many draws: of so few items, all of them."""
    return {number(drawn) for _ in range(draws) for drawn in buffer.sample(1, 0)}


def filled(count: int, size: int = 8, **settings: Any) -> Any:
    """A buffer with items 0..count-1; each is called by its number."""
    buffer = advanced(size, **settings)
    buffer.push([{"n": n} for n in range(count)])
    return buffer
