"""A policy that knows nothing of columns: it keeps the mode contract, transition by transition."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcdi.config.policy import PolicyConfig
from hpcdi.utils.registry import POLICY_REGISTRY

Learn = namedtuple(
    "Learn",
    "forward reset info monitor_vars get_attribute set_attribute state_dict load_state_dict",
)
Collect = namedtuple(
    "Collect",
    "forward process_transition get_train_sample reset get_attribute set_attribute state_dict "
    "load_state_dict",
)
Eval = namedtuple("Eval", "forward reset get_attribute set_attribute state_dict load_state_dict")
Command = namedtuple("Command", "get_setting_learn get_setting_collect get_setting_eval")


@POLICY_REGISTRY.register("foreign")
class ForeignPolicy:
    """One-step SARSA-like regression of a linear value; derived from nothing of hpcdi."""

    @dataclass(frozen=True)
    class Config(PolicyConfig):
        """Only the settings that all policies have."""

        type: str = "foreign"

    def __init__(self, cfg: Any, enable_field: Any = None, *, seed: Any = None) -> None:
        self._cfg = cfg
        self._net = torch.nn.Linear(4, 2)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=1e-3)
        self._rng = np.random.default_rng(seed)

    def get_attribute(self, name: str) -> Any:
        """`cfg` and `batch_size`; nothing else."""
        if name == "cfg":
            return self._cfg
        if name == "batch_size":
            return self._cfg.learn.batch_size
        raise NotImplementedError(name)

    def state_dict(self) -> dict[str, Any]:
        """The network."""
        return {"model": self._net.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The network."""
        self._net.load_state_dict(state_dict["model"])

    def reset(self, data_id: Any = None) -> None:
        """No memory."""

    @property
    def learn_mode(self) -> Learn:
        """Modes are named tuples of bound methods."""
        return Learn(
            self.learn, self.reset, str, list, self.get_attribute, setattr,
            self.state_dict, self.load_state_dict,
        )  # fmt: skip

    @property
    def collect_mode(self) -> Collect:
        """See `learn_mode`."""
        return Collect(
            self.collect, self.process_transition, self.get_train_sample, self.reset,
            self.get_attribute, setattr, self.state_dict, self.load_state_dict,
        )  # fmt: skip

    @property
    def eval_mode(self) -> Eval:
        """See `learn_mode`."""
        return Eval(
            self.collect, self.reset, self.get_attribute, setattr, self.state_dict,
            self.load_state_dict,
        )  # fmt: skip

    @property
    def command_mode(self) -> Command:
        """See `learn_mode`."""
        return Command(dict, lambda info: {"eps": 0.5}, dict)

    def learn(self, data: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """`data` is a list of dicts, with the metadata that the buffer adds."""
        assert isinstance(data, list)
        assert {"obs", "action", "reward", "done", "IS"} <= data[0].keys()
        obs = torch.stack([torch.as_tensor(item["obs"]) for item in data])
        reward = torch.tensor([float(item["reward"]) for item in data])
        loss = ((self._net(obs).max(dim=1).values - reward) ** 2).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"total_loss": loss.item(), "priority": [1.0] * len(data)}

    def collect(self, data: dict[int, Any], *, eps: float = 0.0) -> dict[int, dict[str, Any]]:
        """`data` maps environments to observations."""
        outputs = {}
        for env, obs in data.items():
            action = int(self._net(torch.as_tensor(obs)).argmax())
            if self._rng.random() < eps:
                action = int(self._rng.integers(2))
            outputs[env] = {"action": action}
        return outputs

    def process_transition(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        """A transition."""
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            "action": output["action"],
            "reward": np.float32(timestep.reward),
            "done": timestep.done,
        }

    def get_train_sample(self, transitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Samples are the transitions."""
        return transitions
