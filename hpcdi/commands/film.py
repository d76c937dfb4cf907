"""The film of one episode, for `hpcdi eval --video`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.config.schema import ExperimentConfig
from hpcdi.env.create import create_env_manager
from hpcdi.errors import ConfigError, EnvError, LaunchError
from hpcdi.launch.run_folder import short
from hpcdi.store.atomic import published
from hpcdi.types import Array
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.metrics import human_return
from hpcdi.utils.video import encode_video
from hpcdi.worker.collector.episode_videos import Camera, RenderConfig
from hpcdi.worker.collector.evaluation import VectorEvalMonitor, play_episodes


@dataclass(frozen=True)
class Shot:
    """A film on disk."""

    file: Path
    episode_return: float
    pictures: int

    def __str__(self) -> str:
        return (
            f"{self.pictures} pictures of an episode of return {human_return(self.episode_return)}"
        )


class Film(Closing):
    """An environment that renders; made before the evaluation, so that it fails early.

    Args:
        config: the experiment.
        seed: of the environment.

    Raises:
        EnvError: the environment cannot render.
    """

    def __init__(self, config: ExperimentConfig, seed: np.random.SeedSequence) -> None:
        evaluator = config.policy.eval.evaluator
        self._render: RenderConfig = getattr(evaluator, "render", RenderConfig())
        self._transform_obs = bool(getattr(evaluator, "transform_obs", False))
        env = dataclasses.replace(config.env, evaluator_env_num=1, evaluator_episode_num=None)
        if hasattr(env, "kwargs"):
            env = dataclasses.replace(env, kwargs={**env.kwargs, "render_mode": "rgb_array"})
        self._env: Any = None
        try:
            self._env = create_env_manager(env, evaluate=True, seed=seed)
            self._env.launch()
            self._env.ready_imgs()
        except Exception as error:  # whatever a foreign renderer raises
            self.close()
            reason = str(error.problems[0] if isinstance(error, ConfigError) else error)
            name = getattr(env, "env_id", env.type)
            raise EnvError(
                f"{name} cannot be filmed ({reason.partition(chr(10))[0]}); leave --video out, or "
                "install what it draws with: pip install 'hpcdi[video]'"
            ) from error

    def shoot(self, modes: Sequence[Any], name: Path) -> Shot:
        """Play an episode and write its film.

        Args:
            modes: eval modes, one a player.
            name: of the file, without its suffix, which depends on what can be encoded here.

        Raises:
            EnvError: the environment breaks its contract.
            LaunchError: the film cannot be written, or nothing here encodes it.
        """
        monitor = VectorEvalMonitor(1, 1, max_video_bytes=self._render.memory_mb << 20)
        camera = Camera(self._render.max_size)
        policies = modes[0] if len(modes) == 1 else list(modes)
        for _ in play_episodes(
            self._env, policies, monitor, transform_obs=self._transform_obs, camera=camera
        ):
            pass
        if camera.is_broken:
            raise EnvError("the film broke off: the environment has drawn, and draws no more")
        pictures = monitor.get_video()[0].transpose(0, 2, 3, 1)
        fps = max(1.0, self._render.fps / monitor.video_stride)
        return Shot(_write(pictures, fps, name), monitor.get_latest_reward(0), len(pictures))

    def close(self) -> None:
        """Close the environment. Idempotent."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _write(pictures: Array, fps: float, name: Path) -> Path:
    try:
        encoded, suffix = encode_video(pictures, fps)
    except ImportError as error:
        raise LaunchError(
            f"nothing here encodes a film ({error}): pip install 'hpcdi[video]'"
        ) from error
    file = name.with_name(name.name + suffix)
    try:
        with published(file) as out:
            out.write(encoded)
    except OSError as error:
        raise LaunchError(
            f"the film {short(file)} cannot be written: {error.strerror or error}"
        ) from error
    return file
