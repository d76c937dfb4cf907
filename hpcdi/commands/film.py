"""Films of single episodes, and of battles: an environment that renders, and a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcdi.config.env import ChildConfig, NamedEnvConfig
from hpcdi.config.roles import (
    InteractionEvaluatorConfig,
    RenderConfig,
)
from hpcdi.config.schema import ExperimentConfig
from hpcdi.env.create import create_env_manager
from hpcdi.env.manager import EnvManager
from hpcdi.env.probe import look_at
from hpcdi.errors import ConfigError, EnvError, LaunchError
from hpcdi.roles.collector.loop import Loop, evaluate
from hpcdi.run.run_folder import short
from hpcdi.store.atomic import published
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import of_run
from hpcdi.types import Array, Episodes, Settings, Step
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.metrics import human_return
from hpcdi.utils.video import encode_video
from hpcdi.worker.collector.eval_monitor import Camera, EpisodeVideos

_SHORTEST_S = 5.0
"""A film lasts so long at least: a game of nine moves is over in a blink."""
_WHAT_DRAWS = ", or install what it draws with: pip install 'hpcdi[video]'"


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
        self._render = RenderConfig()
        if isinstance(evaluator, InteractionEvaluatorConfig):
            self._render = evaluator.render
        # with its one episode done it stands still, and can be drawn once more
        plain = dataclasses.replace(config.env, evaluator_env_num=1, evaluator_episode_num=1)
        tried = [plain]
        if isinstance(plain, NamedEnvConfig):
            kwargs = {**plain.kwargs, "render_mode": "rgb_array"}
            tried = [dataclasses.replace(plain, kwargs=kwargs), plain]
        self._env: EnvManager | None = None
        takes_none = ""
        for env in tried:
            try:
                if isinstance(env.manager, ChildConfig):  # which would try again, and warn
                    look_at(env)
                self._env = create_env_manager(env, evaluate=True, policy=config.policy, seed=seed)
                self._env.launch()
                self._env.pictures()
                break
            except Exception as error:  # whatever a foreign renderer raises
                self.close()
                reason = str(error.problems[0] if isinstance(error, ConfigError) else error)
                if env is not tried[-1] and "'render_mode'" in reason:
                    takes_none = "it takes no 'render_mode'; without: "
                    continue  # it may draw all the same
                advice = "" if takes_none or "render_mode" in reason else _WHAT_DRAWS
                raise EnvError(
                    f"{env.title} cannot be filmed ({takes_none}{reason.partition(chr(10))[0]}); "
                    f"leave --video out{advice}"
                ) from error
        self._camera = Camera(self._render.max_size)
        self._videos = EpisodeVideos(1, self._render.memory_mb << 20)

    @property
    def env(self) -> EnvManager:
        """Its manager, of one environment that plays one episode.

        Raises:
            EnvError: it is closed.
        """
        if self._env is None:
            raise EnvError("the film's environment is closed")
        return self._env

    def snap(self) -> None:
        """Add a picture of the environment as it is."""
        for picture in self._camera.take(self.env, [0]).values():
            self._videos.add(0, picture)

    def shoot(
        self, make_loop: Callable[[EnvManager], tuple[Loop, Settings]], name: Path
    ) -> tuple[Path, str]:
        """Play an episode and write its video; returns the file, and a line about it.

        Args:
            make_loop: returns who plays in environments, and the setting.
            name: see `write`.

        Raises:
            EnvError: the environment breaks its contract.
            LaunchError: see `write`.
        """

        def after(step: Step, _episodes: Episodes) -> None:
            if step.failed is not None:
                self._videos.drop(0)

        loop, setting = make_loop(self.env)
        episodes = evaluate(loop, 1, setting, self.snap, after)
        if self.env.seats > 1:
            self.snap()  # how the game has ended
        file, count = self.write(name)
        returned = human_return(float(episodes.stated[0]))
        return file, f"{count} pictures of an episode of return {returned}"

    def write(self, name: Path) -> tuple[Path, int]:
        """Write the video of all pictures; returns the file, and how many they are.

        Args:
            name: of the file, without its suffix, which depends on what can be encoded here.

        Raises:
            EnvError: the environment has stopped drawing.
            LaunchError: the film cannot be written, or nothing here encodes it.
        """
        if self._camera.is_broken:
            raise EnvError("the film broke off: the environment no longer draws")
        self._videos.end(0)
        pictures: Array = self._videos.stack([(0, 0)])[0].transpose(0, 2, 3, 1)
        fps = self._render.fps / self._videos.stride
        fps = min(fps, len(pictures) / _SHORTEST_S)
        try:
            encoded, suffix = encode_video(pictures, max(1.0, fps))
        except ImportError as error:
            raise LaunchError(
                f"nothing here encodes a film ({error}): pip install 'hpcdi[video]'"
            ) from error
        file = of_run(name.with_name(name.name + suffix))
        with or_refuse(f"the film {short(file)}"), published(file) as out:
            out.write(encoded)
        return file, len(pictures)

    def close(self) -> None:
        """Close the environment. Idempotent."""
        env, self._env = self._env, None
        if env is not None:
            env.close()
