"""Spaces of an environment with one array of observations and Discrete or Box actions."""

from __future__ import annotations

from hpcdi.types import Leaf, Spaces


def simple_spaces(
    obs_shape: tuple[int, ...],
    obs_dtype: str,
    action_count: int | None,
    action_shape: tuple[int, ...],
    low: tuple[float, ...] = (),
    high: tuple[float, ...] = (),
    *,
    is_masked: bool = False,
) -> Spaces:
    """As `look_at` returns them; `action_count` None: a Box of float32."""
    action = Leaf("", (), "int64", (action_count,)) if action_count else None
    action = action or Leaf("", action_shape, "float32", low=low, high=high)
    return Spaces((Leaf("", obs_shape, obs_dtype),), (action,), is_masked)
