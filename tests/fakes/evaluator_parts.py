"""Managers, policies and metrics that check what evaluators give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from hpcdi.types import Array
from hpcdi.worker import IMetric


class Step(NamedTuple):
    obs: Any
    reward: Any
    done: bool
    info: Any


class Manager:
    """A foreign manager; episode k of environment i is ``episodes[i][k % len]``: (steps, return).

    Args:
        episodes: see above.
        together: environments that answer a step, in turn; None: all of them (not asynchronous).
        failing: environment -> its steps (counted over its life) at which it fails.
        renews: it begins a new episode itself where one has failed.
    """

    def __init__(
        self,
        episodes: Sequence[Sequence[tuple[int, float]]],
        *,
        together: int | None = None,
        failing: Mapping[int, Sequence[int]] | None = None,
        renews: bool = False,
    ) -> None:
        self.env_num = len(episodes)
        self.episodes, self.together = episodes, together
        self.failing = failing or {}
        self.resets_abnormal = renews
        self.is_launched = False
        self.begun = [-1] * self.env_num
        self.steps = [0] * self.env_num
        self.life = [0] * self.env_num
        self.waiting: dict[int, Any] = {}  # asynchronous: actions without an answer
        self.broken: set[int] = set()
        self.resets: list[int] = []  # environments reset one by one
        self.actions: list[dict[int, Any]] = []

    @property
    def closed(self) -> bool:
        return not self.is_launched

    def launch(self, reset_param: Any = None) -> None:
        assert not self.is_launched
        self.is_launched = True
        self.reset()

    def reset(self, reset_param: Mapping[int, Any] | None = None) -> None:
        assert self.is_launched
        if reset_param is not None:
            self.resets += list(reset_param)
        for env_id in range(self.env_num) if reset_param is None else reset_param:
            self._begin(env_id)
        if reset_param is None:
            self.begun = [0] * self.env_num
            self.waiting.clear()

    def close(self) -> None:
        self.is_launched = False

    def observation(self, env_id: int) -> Any:
        return np.array([env_id, self.begun[env_id], self.steps[env_id]], dtype=np.float32)

    @property
    def ready_obs(self) -> dict[int, Any]:
        assert self.is_launched
        assert not self.broken, f"environments {self.broken} failed and were not reset"
        return {i: self.observation(i) for i in range(self.env_num) if i not in self.waiting}

    def step(self, actions: Mapping[int, Any]) -> dict[int, Step]:
        assert set(actions) == set(self.ready_obs), "every environment that waits, and no other"
        self.actions.append(dict(actions))
        self.waiting.update(actions)
        answering = list(self.waiting)[: self.together]
        return {env_id: self._step(env_id, self.waiting.pop(env_id)) for env_id in answering}

    def ended(self, env_id: int, total: float) -> Any:
        return {
            "eval_episode_return": total,
            "episode_info": {"length": self.steps[env_id], "episode": self.begun[env_id]},
        }

    def ready_imgs(self, render_mode: str = "rgb_array") -> list[Array]:
        assert render_mode == "rgb_array"
        return [
            np.full((12, 16, 3), [env_id, self.begun[env_id], self.steps[env_id]], np.uint8)
            for env_id in range(self.env_num)
        ]

    def _begin(self, env_id: int) -> None:
        self.begun[env_id] += 1
        self.steps[env_id] = 0
        self.broken.discard(env_id)

    def _step(self, env_id: int, action: Any) -> Step:
        self.life[env_id] += 1
        self.steps[env_id] += 1
        if self.life[env_id] in self.failing.get(env_id, ()):
            if self.resets_abnormal:
                self._begin(env_id)
            else:
                self.broken.add(env_id)
            return Step(self.observation(env_id), 0.0, False, {"abnormal": True})
        mine = self.episodes[env_id]
        length, total = mine[self.begun[env_id] % len(mine)]
        done = self.steps[env_id] >= length
        info = self.ended(env_id, total) if done else {}
        step = Step(self.observation(env_id), total / length, done, info)
        if done:
            self._begin(env_id)
        return step


class BattleManager(Manager):
    """Two players; with `turns`, only one acts in each step. Player 1 gets minus the return."""

    def __init__(self, *args: Any, turns: bool = False, one_info: bool = False, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.turns, self.one_info = turns, one_info

    def observation(self, env_id: int) -> list[Any]:
        both = [np.array([seat, self.steps[env_id]], np.float32) for seat in range(2)]
        return [o if not self.turns or s == self.acts(env_id) else None for s, o in enumerate(both)]

    def acts(self, env_id: int) -> int:
        return self.steps[env_id] % 2

    def step(self, actions: Mapping[int, Any]) -> dict[int, Step]:
        for env_id, action in actions.items():
            assert [a is None for a in action] == [o is None for o in self.ready_obs[env_id]]
            assert all(a is None or a == 10 + seat for seat, a in enumerate(action))
        steps = super().step(actions)
        return {i: s if s.info else s._replace(info=[{}, {}]) for i, s in steps.items()}

    def ended(self, env_id: int, total: float) -> Any:
        if self.one_info:
            return {"eval_episode_return": [total, -total], "level": 3}
        return [{"eval_episode_return": sign * total, "level": 3} for sign in (1, -1)]


class DuckPolicy:
    """Any object with forward and reset; checks that it sees float32 tensors."""

    def __init__(self, action: Any = 1) -> None:
        self.action = action
        self.resets: list[list[int] | None] = []
        self.kwargs: list[dict[str, Any]] = []

    def forward(self, data: dict[int, Any], **kwargs: Any) -> dict[int, Any]:
        assert data
        assert {obs.dtype for obs in data.values()} == {torch.float32}
        self.kwargs.append(kwargs)
        return {env_id: {"action": self.action, "logit": None} for env_id in data}

    def reset(self, data_id: list[int] | None = None) -> None:
        self.resets.append(data_id)


class ParityPolicy(DuckPolicy):
    """Says of numbers whether they are odd."""

    def forward(self, data: Any, **kwargs: Any) -> Any:
        return data % 2


class Accuracy(IMetric):
    """Share of outputs that are right; counts how often it reduces."""

    def __init__(self) -> None:
        self.reduced: list[int] = []

    def eval(self, inputs: Any, label: Any) -> dict[str, float]:
        return {"acc": float((inputs == label).float().mean()), "count": float(len(label))}

    def reduce_mean(self, inputs: list[Any]) -> dict[str, float]:
        self.reduced.append(len(inputs))
        total = sum(result["count"] for result in inputs)
        return {
            "acc": sum(result["acc"] * result["count"] for result in inputs) / total,
            "count": total,
        }

    def gt(self, metric1: Any, metric2: Any) -> bool:
        if metric2 is None:
            return True
        other = metric2["acc"] if isinstance(metric2, Mapping) else metric2
        return bool(metric1["acc"] >= other)
