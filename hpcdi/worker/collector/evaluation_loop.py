"""The loop of an evaluation: environments stepped until enough of their episodes have ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from hpcdi.env.base import is_abnormal
from hpcdi.errors import EnvError
from hpcdi.worker.collector.base_serial_evaluator import VectorEvalMonitor
from hpcdi.worker.collector.episode_videos import Camera
from hpcdi.worker.collector.rollout import renew

_PATIENCE_S = 600.0
_MAX_FAILURES = 100


class Players(Protocol):
    """Who acts in an evaluation: one policy, or several at one table."""

    def act(self, ready: dict[int, Any]) -> dict[int, Any]:
        """Action for each environment that waits, by its observation."""
        ...

    def reset(self, env_ids: list[int] | None = None) -> None:
        """Forget the episodes of these environments; None: of all."""
        ...


def ended_episodes(
    env: Any, players: Players, monitor: VectorEvalMonitor, camera: Camera | None = None
) -> Iterator[tuple[int, Any]]:
    """Play until the monitor has all that it counts; gives (environment, last timestep) of those.

    Who iterates hands each to ``monitor.update_reward``. An episode in which an environment failed
    (``info["abnormal"]``) does not count, and another takes its place; the manager begins it, or,
    where it has no true attribute ``resets_abnormal``, is told to by ``reset({env_id: None})``.

    Raises:
        EnvError: the manager ends, or goes silent, before the episodes are played, or fails on.
    """
    env.reset()
    players.reset()
    failures, heard = 0, time.monotonic()
    while not monitor.is_finished():
        ready = env.ready_obs
        if not ready and getattr(env, "done", False):
            raise EnvError(
                f"the environments are done after {monitor.get_current_episode()} episodes of the "
                "evaluation: the manager's episode_num is too low for n_episode"
            )
        if camera is not None:
            monitor.update_video(camera.take(env, filter(monitor.is_open, ready)))
        steps = env.step(players.act(ready) if ready else {})
        heard = time.monotonic() if ready or steps else heard
        if time.monotonic() - heard > _PATIENCE_S:
            raise EnvError(f"no environment has stepped for {_PATIENCE_S:.0f} s; do they hang?")
        for env_id, step in steps.items():
            if is_abnormal(step):
                failures += 1
                _give_up(env, env_id, players, monitor, failures)
            elif step.done:
                players.reset([env_id])
                if monitor.is_open(env_id):
                    yield env_id, step


def _give_up(
    env: Any, env_id: int, players: Players, monitor: VectorEvalMonitor, failures: int
) -> None:
    """An environment failed: its unfinished episode does not count."""
    if failures > _MAX_FAILURES:
        raise EnvError(
            f"environments failed {failures} times in one evaluation, environment {env_id} last; "
            "their own log says why"
        )
    players.reset([env_id])
    monitor.drop_episode(env_id)
    renew(env, env_id)
