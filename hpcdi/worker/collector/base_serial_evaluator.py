"""The contract of all serial evaluators, and how episodes are counted without bias."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdi.config.compat import Configurable, component_class
from hpcdi.errors import ConfigError, EnvError, Problem
from hpcdi.types import Array
from hpcdi.utils.registry import SERIAL_EVALUATOR_REGISTRY
from hpcdi.utils.video import as_frame
from hpcdi.worker.collector.contract import as_number
from hpcdi.worker.collector.episode_videos import EpisodeVideos


class ISerialEvaluator(Configurable, ABC):
    """Says now and then how good a policy is, and when it is good enough."""

    @abstractmethod
    def reset_env(self, _env: Any = None) -> None:
        """Reset the environments; or take others and launch them.

        Args:
            _env: takes the place of the present one, which is closed; None: that is reset.

        Raises:
            EnvError: there is none to reset.
        """

    @abstractmethod
    def reset_policy(self, _policy: Any = None) -> None:
        """Reset the policy; or take another.

        Args:
            _policy: takes the place of the present one; None: that is reset.

        Raises:
            PolicyError: there is none to reset.
        """

    @abstractmethod
    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """Begin anew: see `reset_policy` and `reset_env`; the best result is forgotten."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments and the TensorBoard writer; again: nothing."""

    @abstractmethod
    def should_eval(self, train_iter: int) -> bool:
        """Whether it is time; who asks is expected to evaluate then.

        True at the first call, and where `eval_freq` train iterations have passed since the last
        time it was true; never twice for one iteration.
        """

    @abstractmethod
    def eval(self, save_ckpt_fn: Any = None, train_iter: int = -1, envstep: int = -1) -> Any:
        """Evaluate now.

        Args:
            save_ckpt_fn: called with ``"ckpt_best.pth.tar"`` where the result is the best so far.
            train_iter: train iterations so far; the run is not ended before the first.
            envstep: environment steps so far.

        Returns:
            Whether the run can end, and the result.
        """


def create_serial_evaluator(cfg: Any, **kwargs: Any) -> ISerialEvaluator:
    """The evaluator that ``cfg.type`` names, "interaction" where it names none.

    Args:
        cfg: settings, a mapping or frozen.
        kwargs: go to its constructor.

    Raises:
        UnknownTypeError: no evaluator has that type. ConfigError: a setting is wrong.
    """
    if isinstance(cfg, Mapping):
        cfg = {"type": "interaction", **cfg}
    evaluator: ISerialEvaluator = component_class(SERIAL_EVALUATOR_REGISTRY, cfg)(cfg, **kwargs)
    return evaluator


class VectorEvalMonitor:
    """Counts a fixed number of episodes of each environment.

    The first `n` episodes that several environments end are more often short ones than long ones,
    and their mean is biased. Here each environment has its quota, and what it plays beyond is
    ignored.

    Args:
        env_num: environments.
        n_episode: episodes of all of them together, at least one each; where they do not come out
            even, the first environments play one more.
        max_video_bytes: of all pictures together; see `EpisodeVideos`.

    Raises:
        ConfigError: there are fewer episodes than environments, or no environment.
    """

    def __init__(self, env_num: int, n_episode: int, *, max_video_bytes: int = 256 << 20) -> None:
        if not 1 <= env_num <= n_episode:
            problem = f"{n_episode} episodes are too few for {env_num} environments: give each one"
            raise ConfigError([Problem("n_episode", problem)], "the evaluation")
        self._quota = [(n_episode + env_num - 1 - env_id) // env_num for env_id in range(env_num)]
        self._rewards: list[list[float]] = [[] for _ in range(env_num)]
        self._infos: list[list[Mapping[str, Any]]] = [[] for _ in range(env_num)]
        self._videos = EpisodeVideos(env_num, max_video_bytes)

    def is_open(self, env_id: int) -> bool:
        """Whether the environment's next episode counts."""
        return len(self._rewards[env_id]) < self._quota[env_id]

    def is_finished(self) -> bool:
        """Whether every environment has played its quota."""
        return not any(map(self.is_open, range(len(self._quota))))

    def update_info(self, env_id: int, info: Mapping[str, Any]) -> None:
        """Take what is known of an ended episode; comes before its `update_reward`."""
        if self.is_open(env_id):
            self._infos[env_id].append(info)

    def update_reward(self, env_id: int, reward: Any) -> None:
        """Take the return of an ended episode: a number, or an array or tensor of one element.

        Raises:
            EnvError: it is something else.
        """
        if self.is_open(env_id):
            self._rewards[env_id].append(as_number(reward))
            self._videos.end(env_id)

    def update_video(self, imgs: Mapping[int, Any] | Sequence[Any]) -> None:
        """Take a picture of each environment, uint8 [H, W, 3], or of those that a mapping names.

        Pictures of environments that have played their quota are ignored.
        """
        by_env = imgs if isinstance(imgs, Mapping) else dict(enumerate(imgs))
        for env_id, image in by_env.items():
            if self.is_open(env_id):
                self._videos.add(env_id, as_frame(image))

    def drop_episode(self, env_id: int) -> None:
        """Forget the environment's unfinished episode: it failed."""
        self._videos.drop(env_id)

    def get_video(self) -> Array:
        """The worst, the median and the best episode, as uint8 [3, T, C, H, W].

        The shorter ones stand still on their last picture. Of an even number of episodes the median
        is the lower of the two in the middle.

        Raises:
            EnvError: no episode has ended, one of them was not filmed, or pictures differ in size.
        """
        ended = [(env, n) for env, rewards in enumerate(self._rewards) for n in range(len(rewards))]
        if not ended:
            raise EnvError("there is no video yet: no episode has ended")
        ranked = sorted(ended, key=lambda episode: self._rewards[episode[0]][episode[1]])
        return self._videos.stack([ranked[0], ranked[(len(ranked) - 1) // 2], ranked[-1]])

    @property
    def video_stride(self) -> int:
        """Steps from one picture of `get_video` to the next: above 1 where memory was short."""
        return self._videos.stride

    def get_episode_return(self) -> list[float]:
        """Return of each episode that counts, environment by environment."""
        return [reward for rewards in self._rewards for reward in rewards]

    def get_latest_reward(self, env_id: int) -> float:
        """Return of the environment's last episode that counts.

        Raises:
            EnvError: it has ended none.
        """
        if not self._rewards[env_id]:
            raise EnvError(f"environment {env_id} has not ended an episode yet")
        return self._rewards[env_id][-1]

    def get_current_episode(self) -> int:
        """Episodes that have ended and count."""
        return sum(map(len, self._rewards))

    def get_episode_info(self) -> dict[str, list[Any]]:
        """Key -> value in each episode's info, in the order of `get_episode_return`.

        None stands in for what an episode's info lacks.
        """
        infos = [info for of_env in self._infos for info in of_env]
        keys = dict.fromkeys(key for info in infos for key in info)
        return {key: [info.get(key) for info in infos] for key in keys}
