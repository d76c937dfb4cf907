"""A policy and an environment of DI-engine's form, derived from nothing of it."""

from __future__ import annotations

import copy
import os
from typing import Any, NamedTuple

import numpy as np
import torch

SEQUENCE = 3


class Box:
    low, high, shape, dtype = np.zeros(3), np.full(3, 99.0), (3,), np.float32


class Discrete:
    n, shape, dtype = 2, (), np.int64


class Timestep(NamedTuple):
    obs: Any
    reward: Any
    done: bool
    info: dict[str, Any]


class Env:
    """Counts the steps of its episode; clips rewards, and states the return without clipping."""

    observation_space, action_space = Box(), Discrete()

    def __init__(self, cfg: Any) -> None:
        self._length, self._offset = cfg.length, 0
        self.is_evaluated = cfg.is_evaluated

    @staticmethod
    def create_collector_env_cfg(cfg: Any) -> list[Any]:
        cfg.is_evaluated = False
        return [cfg] * cfg.pop("collector_env_num")

    @staticmethod
    def create_evaluator_env_cfg(cfg: Any) -> list[Any]:
        cfg.is_evaluated = True
        return [cfg] * cfg.pop("evaluator_env_num")

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self._offset = seed % 50

    def reset(self) -> Any:
        self._step = 0
        return self._observation()

    def step(self, action: Any) -> Timestep:
        assert isinstance(action, np.ndarray)
        assert action.shape == ()
        self._step += 1
        done = self._step == self._length
        info = {"eval_episode_return": 10.0 * self._length} if done else {}
        return Timestep(self._observation(), np.ones(1, np.float32), done, info)

    def close(self) -> None:
        pass

    def _observation(self) -> Any:
        return np.array([self._step, self._offset, self._length], np.float32)


class Policy:
    """Learns nothing of use, but checks that samples come back as it made them."""

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return {
            "on_policy": False, "priority": False, "cuda": False,
            "learn": {"batch_size": 4, "update_per_collect": 2, "rate": 0.01},
            "collect": {"n_sample": 4, "unroll_len": SEQUENCE, "env_num": 2},
            "eval": {"env_num": 1},
            "other": {"replay_buffer": {"replay_buffer_size": 64, "max_use": 9}},
        }  # fmt: skip

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg
        self._net = torch.nn.Linear(3, 2)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=cfg.learn.rate)
        self._state = dict.fromkeys(range(cfg.collect.env_num), 0)

    def _get_attribute(self, name: str) -> Any:
        return getattr(self, f"_{name}")

    def _set_attribute(self, name: str, value: Any) -> None:
        setattr(self, f"_{name}", value)

    def _forward_learn(self, data: list[Any]) -> dict[str, Any]:
        assert len(data) == self._cfg.learn.batch_size
        for sample in data:
            assert sample.keys() >= {
                "action", "done", "gamma", "logit", "obs", "prev_state", "reward", "IS",
            }  # fmt: skip
            assert {len(sample[key]) for key in ("obs", "done", "prev_state")} == {SEQUENCE}
            steps = [int(obs[0]) for obs in sample["obs"]]
            assert steps == list(range(steps[0], steps[0] + SEQUENCE)), "one episode, in order"
            assert [int(state["h"][0]) for state in sample["prev_state"]] == steps
            assert torch.as_tensor(sample["gamma"]).dtype == torch.float32
            assert torch.as_tensor(sample["done"][0]).dtype == torch.bool
            assert sample["reward"][0].shape == (1,)
        loss = torch.stack([self._net(one["obs"][0]).square().sum() for one in data]).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"total_loss": loss.item(), "cur_lr": self._cfg.learn.rate}

    def _forward_collect(self, data: dict[int, Any], eps: float) -> dict[int, Any]:
        outputs = {}
        for env, obs in data.items():
            logit = self._net(torch.as_tensor(obs, dtype=torch.float32)).detach()
            state = {"h": torch.full((2,), float(self._state[env]))}
            outputs[env] = {"action": logit.argmax(), "logit": {"of": logit}, "prev_state": state}
            self._state[env] += 1
        return outputs

    def _forward_eval(self, data: dict[int, Any]) -> dict[int, Any]:
        return {env: {"action": torch.tensor([1])} for env in data}

    def _process_transition(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        return {"obs": obs, **output, "reward": timestep.reward, "done": bool(timestep.done)}

    def _get_train_sample(self, transitions: list[Any]) -> list[Any]:
        whole = range(0, len(transitions) - SEQUENCE + 1, SEQUENCE)
        cut = [transitions[start : start + SEQUENCE] for start in whole]
        return [
            {key: [step[key] for step in piece] for key in piece[0] if key != "logit"}
            | {"gamma": 0.9, "logit": piece[0]["logit"]}
            for piece in cut
        ]

    def _monitor_vars_learn(self) -> list[str]:
        return ["total_loss", "cur_lr"]

    def _reset_learn(self, data_id: Any = None) -> None:
        pass

    def _reset_collect(self, data_id: Any = None) -> None:
        for env in list(self._state) if data_id is None else data_id:
            self._state[env] = 0

    def _reset_eval(self, data_id: Any = None) -> None:
        pass

    def _get_setting_collect(self, info: Any) -> dict[str, Any]:
        return {"eps": 1.0 / (1 + info["envstep"])}

    def _state_dict_learn(self) -> dict[str, Any]:
        return {"model": self._net.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        self._net.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _state_dict_collect(self) -> dict[str, Any]:
        return {"model": self._net.state_dict()}

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        self._net.load_state_dict(state["model"])

    _state_dict_eval, _load_state_dict_eval = _state_dict_collect, _load_state_dict_collect


class WithTarget(Policy):
    """Has a target network, which its `net` leads."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._target = torch.nn.Linear(3, 2)

    def _state_dict_learn(self) -> dict[str, Any]:
        return {**super()._state_dict_learn(), "target_model": self._target.state_dict()}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self._target.load_state_dict(state["target_model"])


class Numbered(Env):
    """Asks for its number and its folder."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        number = int(os.environ["HPCDI_ENV_INDEX"])
        assert os.environ["HPCDI_ENV_FOLDER"].endswith(f"/{number:06d}")


class Levels(Env):
    """Its class makes other settings for each environment, and has defaults."""

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return {"length": 9, "first_level": 10, "cfg_type": "LevelsDict"}

    @staticmethod
    def create_collector_env_cfg(cfg: Any) -> list[Any]:
        return _levels(cfg, cfg.pop("collector_env_num"))

    @staticmethod
    def create_evaluator_env_cfg(cfg: Any) -> list[Any]:
        return _levels(cfg, cfg.pop("evaluator_env_num"))

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._level = cfg.level

    def _observation(self) -> Any:
        return np.array([self._step, self._level, self._length], np.float32)


def _levels(cfg: Any, count: int) -> list[Any]:
    cfg.is_evaluated = False
    levels = [copy.deepcopy(cfg) for _ in range(count)]
    for k, level in enumerate(levels):
        level.level = cfg.first_level + k
    return levels
