"""Environments of gym before 0.26, and of DI-engine, in gymnasium's API; by their shape alone.

Nothing is imported of either: an environment is old if its spaces are another library's, or if its
``reset`` takes no seed, or no options, or must be asked for an info (``return_info``, of gym 0.22).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from hpcdi.env.contract import number_of, parts_of_step, refuse_dm_env, truth_of
from hpcdi.errors import EnvError, EnvValueError

TIME_LIMIT = "TimeLimit.truncated"
"""By this key of an info they say that an episode was cut."""
_OF_VECTORS = ("single_action_space", "env_is_wrapped")
"""What gymnasium's and gym's vector environments have beside ``num_envs``, and Stable-Baselines3's.
"""


def as_gymnasium(env: Any) -> Any:
    """Returns an environment with gymnasium's ``reset`` and ``step``; itself if it has them.

    What is old in wrappers of gymnasium's, as it has those of an id, is adapted there.

    Raises:
        EnvError: it is a vector environment.
    """
    if isinstance(env, gymnasium.Wrapper) and _is_of_gymnasium(env):
        env.env = as_gymnasium(env.env)
        return env
    if hasattr(env, "num_envs") and any(hasattr(env, name) for name in _OF_VECTORS):
        raise EnvError(
            f"{type(env).__name__} is a vector environment (num_envs: {env.num_envs}), and hpcdi "
            "wants a single one here: give what makes one, and it makes as many as it needs; or "
            "gymnasium.register(id, vector_entry_point=...) what makes gymnasium's vectors, and "
            "set env.vectorization: vector_entry_point"
        )
    spaces = (getattr(env, name, None) for name in ("observation_space", "action_space"))
    are_foreign = any(space is not space_of(space) for space in spaces)
    is_new = resets_anew(env) and not _is_asked_for_infos(env)
    return env if is_new and not are_foreign else OldEnv(env)


def resets_anew(env: Any) -> bool:
    """Returns whether an environment's `reset` is of gymnasium's API: with a seed and options."""
    return _takes(env, "seed") and _takes(env, "options")


def made_by(entry: Any, **kwargs: Any) -> Any:
    """Returns an environment that a class or a function makes, in gymnasium's API and of its base.

    What is no environment at all is returned as it is.
    """
    env = entry(**kwargs)
    if not (callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))):
        return env
    env = as_gymnasium(env)
    # gymnasium writes to `unwrapped`, which may be of another library, and reads `env` itself
    is_whole = isinstance(env, gymnasium.Env) and isinstance(env.unwrapped, gymnasium.Env)
    return env if is_whole else OldEnv(env)


def space_of(space: Any) -> Any:
    """Returns a space of another library as gymnasium's, with those inside it; else itself."""
    if space is None or isinstance(space, gymnasium.Space):
        return space
    if hasattr(space, "low") and hasattr(space, "high"):
        dtype = np.dtype(space.dtype)
        low, high = (
            np.broadcast_to(limit, space.shape).astype(dtype) for limit in (space.low, space.high)
        )
        return gymnasium.spaces.Box(low, high, dtype=dtype.type)
    if hasattr(space, "nvec"):
        return gymnasium.spaces.MultiDiscrete(np.asarray(space.nvec))
    if hasattr(space, "n"):
        if getattr(space, "shape", ()):
            return gymnasium.spaces.MultiBinary(space.n)
        return gymnasium.spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return gymnasium.spaces.Dict({key: space_of(part) for key, part in parts.items()})
    if isinstance(parts, list | tuple):
        return gymnasium.spaces.Tuple(map(space_of, parts))
    return space


class OldEnv(gymnasium.Env[Any, Any]):
    """An old environment behind gymnasium's API, in which gymnasium's wrappers take it.

    An end is a truncation where the info's `TIME_LIMIT` says so, else a termination.

    Args:
        env: has ``reset()`` or ``reset(seed=...)``, which return an observation, perhaps with an
            info; ``step(action)``, which returns four values or five; and perhaps ``seed``.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._has_seed = _takes(env, "seed")
        self._asked = {"return_info": True} if _is_asked_for_infos(env) else {}
        self._later_seeds = np.random.default_rng()

    @property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        """Its own, where it has some."""
        own: dict[str, Any] | None = getattr(self._env, "metadata", None)
        return own or {}

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """Its own, where it has one."""
        return getattr(self._env, "render_mode", None)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Its own picture, where it draws one; before gym 0.26 it must be asked for one."""
        render: Any = getattr(self._env, "render", super().render)
        if not (args or kwargs or self.render_mode) and "mode" in (parameters_of(render) or ()):
            return render(mode="rgb_array")
        return render(*args, **kwargs)

    def close(self) -> None:
        """Close it, where it closes."""
        getattr(self._env, "close", super().close)()

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        """The space as gymnasium's."""
        return space_of(self._env.observation_space)

    @property
    def action_space(self) -> Any:  # type: ignore[override]
        """The space as gymnasium's."""
        return space_of(self._env.action_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Options are passed on where there are some."""
        given = {**({"options": options} if options else {}), **self._asked}
        if self._has_seed:
            result = self._env.reset(seed=seed, **given)
        else:
            self._seed(seed)
            result = self._env.reset(**given)
        refuse_dm_env(result)
        if _is_pair(result) and (not self._sees_pairs or _is_pair(result[0])):
            return result[0], dict(result[1])
        return result, {}

    @property
    def _sees_pairs(self) -> bool:
        """Whether an observation looks as one with an info does."""
        parts = getattr(getattr(self._env, "observation_space", None), "spaces", None)
        if not isinstance(parts, list | tuple) or len(parts) != 2:
            return False
        return isinstance(getattr(parts[1], "spaces", None), Mapping)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Returns observation, reward, whether it terminated, was truncated, and the info."""
        result = self._env.step(action)
        refuse_dm_env(result)
        if isinstance(result, tuple | list) and len(result) == 5:
            return parts_of_step(result)  # gymnasium's API but for the seed of a reset
        if not isinstance(result, tuple | list) or len(result) != 4:
            raise EnvValueError("step() must return observation, reward, done and info")
        observation, reward, over, info = result
        is_over = truth_of(over, "done")
        limit = info.get(TIME_LIMIT, False) if isinstance(info, Mapping) else False
        truncated = truth_of(limit, TIME_LIMIT)
        return observation, number_of(reward), is_over and not truncated, truncated, info

    def _seed(self, seed: int | None) -> None:
        seeds = getattr(self._env, "seed", None)
        if seeds is None:
            return
        if "dynamic_seed" in (parameters_of(seeds) or ()):
            # it would begin every episode from the seed that it was given last
            if seed is None:
                seed = int(self._later_seeds.integers(2**31))
            else:
                self._later_seeds = np.random.default_rng(seed)
            seeds(seed, dynamic_seed=False)
        elif seed is not None:
            seeds(seed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # which a copy asks for before it has an environment
            raise AttributeError(name)
        return getattr(self._env, name)


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Returns the parameters of a function, or of a class; None: it is written in C, and silent."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _is_of_gymnasium(env: object) -> bool:
    return type(env).__module__.partition(".")[0] == "gymnasium"


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping)


def _is_asked_for_infos(env: Any) -> bool:
    return _takes(env, "return_info", unknown=False)


def _takes(env: Any, name: str, *, unknown: bool = True) -> bool:
    """Decides whether ``reset`` takes a keyword; a wrapper that takes anything, as what it wraps.

    A gymnasium.Env that is no wrapper of gymnasium's is no other's either: it may hold, as `env`,
    what knows no seed, and seed it itself.

    Args:
        env: has a ``reset``.
        name: of the keyword.
        unknown: the answer where it is written in C, or takes anything.
    """
    parameters = parameters_of(env.reset)
    if parameters is None:
        return unknown
    if name in parameters:
        return True
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return False
    if isinstance(env, gymnasium.Env) and not isinstance(env, gymnasium.Wrapper):
        return unknown
    inner = getattr(env, "env", None)
    wraps = hasattr(inner, "action_space") and callable(getattr(inner, "reset", None))
    return _takes(inner, name, unknown=unknown) if wraps else unknown
