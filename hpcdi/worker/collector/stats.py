"""What collectors count: episodes as they end, and what a serial collector says of its work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdi.types import Array
from hpcdi.utils.log import LOGGER
from hpcdi.worker.collector.learners_group import sum_over_ranks

_RECENT_EPISODES = 100
_REPORT_EVERY_S = 1.0


class EpisodeCounter:
    """Lengths of running episodes by environment; returns and lengths of those that ended.

    Args:
        env_num: environments.
    """

    def __init__(self, env_num: int) -> None:
        self._lengths = [0] * env_num
        self._ended: list[tuple[Any, int]] = []

    def step(self, env: int, episode_return: Any = None) -> None:
        """One step of an environment; where an episode ended by it, its return.

        That is a number, or a list with one for each player.
        """
        self._lengths[env] += 1
        if episode_return is not None:
            self._ended.append((episode_return, self._lengths[env]))
            self._lengths[env] = 0

    def drop(self, env: int) -> None:
        """An environment's episode came to nothing."""
        self._lengths[env] = 0

    def take(self) -> tuple[Array, Array]:
        """Returns and lengths of the episodes that ended since the last call, in order.

        Returns are [episodes], or [episodes, players] where each player has its own.
        """
        ended, self._ended = self._ended, []
        returns, lengths = zip(*ended, strict=True) if ended else ((), ())
        return np.array(returns, dtype=np.float64), np.array(lengths, dtype=np.int64)


class CollectReport:
    """What a serial collector has done, for TensorBoard and the log.

    Args:
        tb_logger: takes curves; None: none are drawn.
        instance_name: prefix of their tags.
        print_freq: train iterations between two reports; there is one a second at least.
    """

    def __init__(self, tb_logger: Any, instance_name: str, print_freq: int) -> None:
        self._tb_logger, self._instance_name, self._print_freq = (
            tb_logger, instance_name, print_freq,
        )  # fmt: skip
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.totals = {"envstep": 0, "train_sample": 0, "episode": 0}
        self._since: dict[str, float] = {"duration": 0.0}
        self._returns: list[Array] = []
        self._shown: tuple[int, float] | None = None  # at which train iteration, and when
        self.recent: deque[float] = deque(maxlen=_RECENT_EPISODES)

    def add(self, counts: Mapping[str, int], duration_s: float, returns: Array) -> None:
        """Take one call of `collect`.

        Args:
            counts: ``envstep, train_sample, episode``; under torch.distributed those of all ranks
                are summed.
            duration_s: seconds that it took.
            returns: of the episodes that ended in it.
        """
        for name, count in sum_over_ranks(counts).items():
            self.totals[name] += count
            self._since[name] = self._since.get(name, 0) + count
        self._since["duration"] += duration_s
        if len(returns):
            self._returns.append(np.asarray(returns))
            self.recent += np.asarray(returns).reshape(len(returns), -1)[:, 0].tolist()

    def show(self, train_iter: int) -> None:
        """Draw and log what was collected since the last time, if there is an episode to tell of.

        Args:
            train_iter: train iterations so far.
        """
        now = time.monotonic()
        if not self._returns or not self._is_due(train_iter, now):
            return
        self._shown = (train_iter, now)
        scalars = self._scalars()
        LOGGER.info("collect", extra={"train_iter": train_iter, "scalars": scalars})
        if self._tb_logger is not None:
            for name, value in scalars.items():
                tag = f"{self._instance_name}_iter/{name}"
                self._tb_logger.add_scalar(tag, value, train_iter)
                tag = f"{self._instance_name}_step/{name}"
                self._tb_logger.add_scalar(tag, value, self.totals["envstep"])
        self._since, self._returns = {"duration": 0.0}, []

    def close(self) -> None:
        """Flush and close the writer; again: nothing."""
        tb_logger, self._tb_logger = self._tb_logger, None
        if tb_logger is not None:
            tb_logger.flush()
            tb_logger.close()

    def _is_due(self, train_iter: int, now: float) -> bool:
        if self._shown is None:
            return True
        last_iter, last = self._shown
        return train_iter - last_iter >= self._print_freq or now - last >= _REPORT_EVERY_S

    def _scalars(self) -> dict[str, float]:
        """Values under the predecessor's names."""
        since, seconds = self._since, max(self._since["duration"], 1e-9)
        episodes = max(since.get("episode", 0), 1)
        returns = np.concatenate(self._returns)
        if returns.ndim > 1:  # a battle's: the first player's
            returns = returns[:, 0]
        per = {
            f"avg_{name}_per_sec": since.get(name, 0) / seconds
            for name in ("envstep", "train_sample", "episode")
        }
        return {
            **{f"{name}_count": float(since.get(name, 0)) for name in self.totals},
            **{f"total_{name}_count": float(count) for name, count in self.totals.items()},
            **per,
            "avg_envstep_per_episode": since.get("envstep", 0) / episodes,
            "reward_mean": float(returns.mean()),
            "reward_std": float(returns.std()),
            "reward_max": float(returns.max()),
            "reward_min": float(returns.min()),
        }
