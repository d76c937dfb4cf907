"""Pictures of an evaluation's episodes, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hpcdi.types import Array
from hpcdi.utils.log import LOGGER
from hpcdi.utils.video import as_frame
from hpcdi.worker.dict_envs import by_dicts
from hpcdi.worker.errors import NoFilmError

NAMES = ("worst", "median", "best")


class EpisodeVideos:
    """Pictures of each environment's episodes, one a step until memory is short.

    Every episode is filmed to its end, as only the end tells which are the worst, the median and
    the best. When all pictures together take more than `max_bytes`, every second one of each
    episode is dropped, and only every second step is filmed from then on: films get coarser, not
    shorter, and all by the same factor, `stride`.

    Args:
        env_num: environments.
        max_bytes: of all pictures.
    """

    def __init__(self, env_num: int, max_bytes: int = 256 << 20) -> None:
        self.stride = 1
        self._max_bytes, self._bytes = max_bytes, 0
        self._ended: list[list[list[Array]]] = [[] for _ in range(env_num)]
        self._open: list[list[Array]] = [[] for _ in range(env_num)]
        self._steps = [0] * env_num

    def add(self, env_id: int, frame: Array) -> None:
        """Add the picture of an environment's next step, uint8 [H, W, 3]; it is not copied."""
        if self._steps[env_id] % self.stride == 0:
            self._open[env_id].append(frame)
            self._bytes += frame.nbytes
        self._steps[env_id] += 1
        while self._bytes > self._max_bytes and self._thin():
            pass

    def end(self, env_id: int) -> None:
        """End the environment's episode; the next picture is of another one."""
        self._ended[env_id].append(self._open[env_id])
        self._open[env_id], self._steps[env_id] = [], 0

    def drop(self, env_id: int) -> None:
        """Drop the environment's unfinished episode."""
        self._bytes -= sum(frame.nbytes for frame in self._open[env_id])
        self._open[env_id], self._steps[env_id] = [], 0

    def stack(self, episodes: Iterable[tuple[int, int]]) -> Array:
        """Stack films in one array; shorter ones are padded with their last picture.

        Args:
            episodes: (environment, number of its episode) of each film.

        Returns:
            uint8 [N, T, 3, H, W].

        Raises:
            EnvError: an episode was not filmed, or pictures differ in size.
        """
        films = [self._ended[env_id][number] for env_id, number in episodes]
        shapes = {frame.shape for film in films for frame in film}
        if len(shapes) != 1 or not all(films):
            raise NoFilmError(
                f"the films of {len(films)} episodes cannot be laid together: they have "
                f"{[len(film) for film in films]} pictures of the sizes {sorted(shapes)}; "
                "update_video() must get pictures of one size, before every step"
            )
        longest = max(map(len, films))
        padded = [film + film[-1:] * (longest - len(film)) for film in films]
        return np.asarray(padded, dtype=np.uint8).transpose(0, 1, 4, 2, 3)

    def _thin(self) -> bool:
        """Drop every second picture; returns False where no episode has two."""
        films = [*self._open, *(film for ended in self._ended for film in ended)]
        if max(map(len, films)) < 2:
            return False
        for film in films:
            self._bytes -= sum(frame.nbytes for frame in film[1::2])
            del film[1::2]
        self.stride *= 2
        return True


class Camera:
    """Takes pictures of environments; where that fails, it warns once and stays off.

    Args:
        max_size: pixels; larger pictures are scaled down.
    """

    def __init__(self, max_size: int) -> None:
        self.is_broken = False
        self._max_size = max_size

    def take(self, env: Any, env_ids: Iterable[int]) -> dict[int, Array]:
        """Take pictures of these environments, uint8 [H, W, 3]; none once it is broken.

        `env` is one of our managers, or has a method ``ready_imgs(render_mode)``, or a property
        ``ready_imgs``, with pictures by environment or one for each.
        """
        if self.is_broken:
            return {}
        try:
            images = by_dicts(env).ready_imgs
            images = images(render_mode="rgb_array") if callable(images) else images
            by_env = images if isinstance(images, Mapping) else dict(enumerate(images))
            return {env_id: as_frame(by_env[env_id], self._max_size) for env_id in env_ids}
        # whatever a foreign renderer raises: an evaluation is worth more than its film
        except Exception as error:
            self.is_broken = True
            LOGGER.warning(
                "this evaluation goes on without video: %s cannot draw its environments (%s: %s); "
                "make them with render_mode='rgb_array', or set render.render_freq to -1",
                type(env).__name__,
                type(error).__name__,
                error,
            )
            return {}
