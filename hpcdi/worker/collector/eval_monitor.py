"""An evaluation's episodes: their returns and infos, and pictures of them in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.errors import ConfigError
from hpcdi.roles.collector.loop import quotas
from hpcdi.types import Array
from hpcdi.utils.log import LOGGER
from hpcdi.utils.video import as_frame
from hpcdi.worker.dict_envs import as_number, by_dicts, to_lists
from hpcdi.worker.errors import NoEpisodeError, NoFilmError, QuotaError

NAMES = ("worst", "median", "best")


class VectorEvalMonitor:
    """Counts a fixed number of episodes of each environment.

    Each environment has its quota (`quotas`), and what it plays beyond is ignored.

    Args:
        env_num: environments.
        n_episode: episodes of all of them together, at least one each; the first environments play
            one more where the number is not a multiple.
        max_video_bytes: of all pictures together; see `EpisodeVideos`.

    Raises:
        QuotaError: there are fewer episodes than environments, or no environment.
    """

    def __init__(self, env_num: int, n_episode: int, *, max_video_bytes: int = 256 << 20) -> None:
        try:
            self.quota = quotas(n_episode, env_num)
        except ConfigError as error:
            raise QuotaError(error.problems, error.source) from None
        """Episodes of each environment that count."""
        self.env_steps = 0
        """Steps of environments that were made for it."""
        self._rewards: dict[int, list[float]] = {env: [] for env in range(env_num)}
        self._infos: dict[int, list[Mapping[str, Any]]] = {env: [] for env in range(env_num)}
        self._videos = EpisodeVideos(env_num, max_video_bytes)

    def is_open(self, env_id: int) -> bool:
        """Returns whether the environment's next episode counts.

        Raises:
            KeyError: there is no such environment.
        """
        return len(self._rewards[env_id]) < self.quota[env_id]

    def is_finished(self) -> bool:
        """Returns whether every environment has played its quota."""
        return not any(map(self.is_open, self._rewards))

    def update_info(self, env_id: int, info: Mapping[str, Any]) -> None:
        """Add the info of an ended episode, before its `update_reward` or after it."""
        if len(self._infos[env_id]) < self.quota[env_id]:
            self._infos[env_id].append(to_lists(info))

    def update_reward(self, env_id: int, reward: Any) -> None:
        """Add the return of an ended episode: a number, or an array or tensor of one element.

        Raises:
            EnvError: it is something else.
        """
        if self.is_open(env_id):
            self._rewards[env_id].append(reward if type(reward) is int else as_number(reward))
            self._videos.end(env_id)

    def update_video(self, imgs: Mapping[int, Any] | Sequence[Any]) -> None:
        """Add a picture of each environment, uint8 [H, W, 3], or of those in a mapping.

        Pictures of environments that have played their quota are ignored.
        """
        by_env = imgs if isinstance(imgs, Mapping) else dict(enumerate(imgs))
        for env_id, image in by_env.items():
            if self.is_open(env_id):
                self._videos.add(env_id, as_frame(image))

    def drop_episode(self, env_id: int) -> None:
        """Drop the environment's unfinished episode, as it failed."""
        self._videos.drop(env_id)

    def get_video(self) -> Array:
        """The worst, the median and the best episode, as uint8 [3, T, C, H, W].

        Shorter ones are padded with their last picture. Of an even number of episodes the median
        is the lower of the two in the middle.

        Raises:
            EnvError: no episode has ended, one of them was not filmed, or pictures differ in size.
        """
        ended = [(env, n) for env, rewards in self._rewards.items() for n in range(len(rewards))]
        if not ended:
            raise NoEpisodeError("there is no video yet: no episode has ended")
        ranked = sorted(ended, key=lambda episode: self._rewards[episode[0]][episode[1]])
        return self._videos.stack([ranked[0], ranked[(len(ranked) - 1) // 2], ranked[-1]])

    @property
    def video_stride(self) -> int:
        """Steps between two pictures of `get_video`: above 1 where memory was short."""
        return self._videos.stride

    def get_episode_return(self) -> list[float]:
        """Return of each episode that counts, environment by environment."""
        return [reward for rewards in self._rewards.values() for reward in rewards]

    def get_latest_reward(self, env_id: int) -> float:
        """Return of the environment's last episode that counts.

        Raises:
            EnvError: it has ended none.
        """
        if not self._rewards[env_id]:
            raise NoEpisodeError(f"environment {env_id} has not ended an episode yet")
        return self._rewards[env_id][-1]

    def get_current_episode(self) -> int:
        """Episodes that have ended and count."""
        return sum(map(len, self._rewards.values()))

    def get_episode_info(self) -> dict[str, Any] | None:
        """Key -> value in each episode's info, in the order of `get_episode_return`.

        None where an episode's info lacks the key. Numbers that all infos have come with their mean
        as ``<key>_mean``, a float. Without any info, None.
        """
        infos = [info for of_env in self._infos.values() for info in of_env]
        if not infos:
            return None
        keys = dict.fromkeys(key for info in infos for key in info)
        lists: dict[str, list[Any]] = {key: [info.get(key) for info in infos] for key in keys}
        return lists | {
            f"{key}_mean": np.mean(values)
            for key, values in lists.items()
            if all(isinstance(value, int | float | np.number) for value in values)
        }


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
