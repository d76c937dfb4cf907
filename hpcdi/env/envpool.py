"""EnvPool: many environments in the threads of one C++ library."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from hpcdi.config.env import EnvPoolConfig
from hpcdi.env.base import EnvType
from hpcdi.env.gymnasium import cannot_make
from hpcdi.errors import ConfigError, Problem
from hpcdi.types import Array
from hpcdi.utils.registry import import_module


class EnvPoolVector(VectorEnv[Array, Array, Array]):
    """EnvPool's environments behind gymnasium's interface of vector environments.

    EnvPool resets in the step after an episode's end: the action of that step does nothing, its
    reward is 0. It takes its seed only when it is created, so a reset with a seed re-creates it.

    Args:
        make: makes it from a seed.
        env_num: environments in it.
        render_mode: as it was made with; None: it draws nothing.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (gymnasium's own way)
        "autoreset_mode": AutoresetMode.NEXT_STEP
    }

    def __init__(
        self, make: Callable[[int], Any], env_num: int, render_mode: str | None = None
    ) -> None:
        self._make, self.render_mode = make, render_mode
        self._pool: Any = None  # it is closed, too, where it cannot be made
        self._pool = make(0)
        self.num_envs = env_num
        with _quiet():
            self.single_observation_space = self._pool.observation_space
            self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, env_num)
        self.action_space = batch_space(self.single_action_space, env_num)

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        """Reset all; EnvPool takes no `options`."""
        if options:
            raise ValueError(f"EnvPool takes no options: {options}")
        if seed is not None:
            first = seed[0] if isinstance(seed, list) else seed
            self._pool.close()
            self._pool = self._make(int(first or 0) & 0x7FFFFFFF)
        with _quiet():
            observation, _ = self._pool.reset()
        return observation, {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step all."""
        given = np.asarray(actions, dtype=self.single_action_space.dtype)
        observation, reward, terminated, truncated, _ = self._pool.step(given)
        return observation, reward, terminated, truncated, {}

    def render(self) -> Array:  # type: ignore[override]
        """Returns pictures, uint8 [environments, height, width, 3]; EnvPool may draw the first."""
        drawn: Array = self._pool.render()
        return drawn

    def close_extras(self, **_kwargs: Any) -> None:
        """End its threads."""
        if self._pool is not None:
            self._pool.close()


class EnvPoolEnv(EnvType):
    """Makes EnvPool's environments; never instantiated."""

    Config = EnvPoolConfig

    @classmethod
    def has_vector(cls, _cfg: EnvPoolConfig) -> bool:
        """Always: EnvPool has no single environments."""
        return True

    @classmethod
    def make_vector(cls, cfg: EnvPoolConfig, env_num: int) -> EnvPoolVector:
        """Returns a vector environment of `env_num` copies.

        Raises:
            ConfigError: EnvPool is not installed, does not know the id or a keyword argument, or
                has several players there.
        """
        import_module(cfg.import_names)
        try:
            envpool: Any = importlib.import_module("envpool")
        except ImportError as error:
            message = f"EnvPool is not installed here ({error}); pip install 'hpcdi[envpool]'"
            raise ConfigError([Problem("env.type", message)]) from error

        def make(seed: int) -> Any:
            with _quiet():
                pool = envpool.make_gymnasium(cfg.env_id, num_envs=env_num, seed=seed, **cfg.kwargs)
            if (players := pool.config.get("max_num_players", 1)) > 1:
                pool.close()
                said = f"{cfg.env_id!r} has up to {players} players in EnvPool, and hpcdi takes one"
                raise ConfigError([Problem("env.env_id", said)])
            return pool

        try:
            return EnvPoolVector(make, env_num, cfg.kwargs.get("render_mode"))
        except (AssertionError, KeyError, ValueError) as error:
            raise cannot_make(cfg.env_id, str(error)) from error
        except TypeError as error:
            raise ConfigError([Problem("env.kwargs", str(error))]) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """EnvPool's float32 spaces have float64 bounds, of which gymnasium warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        yield
