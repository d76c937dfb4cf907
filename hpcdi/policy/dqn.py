"""DQN: off-policy learning of action values (Mnih et al. 2015).

Double, dueling, n-step and prioritized, as configured.

This file knows no torch until a mode that computes is enabled; `q_learning` and `networks` do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdi.config.fields import section, setting
from hpcdi.errors import PolicyError, Problem
from hpcdi.policy.base import Policy, TrainColumns
from hpcdi.policy.exploration import epsilon_greedy, get_epsilon_greedy_fn
from hpcdi.policy.returns import n_step
from hpcdi.policy.settings import LearnConfig, PolicyConfig
from hpcdi.types import Array, Columns, RowView, Settings, Spaces, Transition
from hpcdi.utils.nested import split_columns, stack_columns
from hpcdi.utils.registry import POLICY_REGISTRY

if TYPE_CHECKING:
    from torch import nn

    from hpcdi.policy.networks import QNetwork

NEXT_OBSERVATION = RowView("next_observation", "observation", "bootstrap_offset")


@dataclass(frozen=True)
class DQNModelConfig:
    """The network; shapes left empty are taken from the environment."""

    obs_shape: int | tuple[int, ...] | None = setting(None, "shape of an observation")
    action_shape: int | None = setting(None, "number of discrete actions", minimum=2)
    encoder_hidden_size_list: tuple[int, ...] = setting(
        (128, 128), "sizes of the hidden layers", minimum=1
    )
    dueling: bool = setting(False, "value and advantage apart (Wang et al. 2016)")


@dataclass(frozen=True)
class DQNLearnConfig(LearnConfig):
    """The update."""

    target_update_freq: int = setting(
        200, "updates between renewals of the target network", minimum=1
    )
    double: bool = setting(True, "choose by one network, value by the other (double Q-learning)")
    loss: str = setting("huber", "of the TD error", choices=("huber", "mse"))
    grad_clip_norm: float = setting(0.0, "clip the gradient's norm to this; 0: do not", minimum=0)


@POLICY_REGISTRY.register("dqn", "dqn_command")
class DQNPolicy(Policy):
    """DQN in four modes; data in columns, or transition by transition."""

    @dataclass(frozen=True)
    class Config(PolicyConfig):
        """Settings of DQN."""

        type: str = "dqn"
        model: DQNModelConfig = section(DQNModelConfig, "the network")
        learn: DQNLearnConfig = section(DQNLearnConfig, "the update")

        def problems(self) -> Iterator[Problem]:
            """Rules over several settings."""
            if not self.model.encoder_hidden_size_list:
                yield Problem("model.encoder_hidden_size_list", "needs at least one size")
            yield from PolicyConfig.problems(self)
            if self.nstep > self.collect.n_sample:
                yield Problem(
                    "nstep", f"is above collect.n_sample ({self.collect.n_sample}), where it ends"
                )
            if self.priority_IS_weight and not self.priority:
                yield Problem("priority_IS_weight", "has a meaning only with priority: true")

    _cfg: Any
    _model: nn.Module

    @classmethod
    def with_spaces(cls, cfg: Any, spaces: Spaces) -> tuple[Any, list[Problem]]:
        """Fill empty shapes from the environment's spaces; say where given ones contradict them.

        Args:
            cfg: a `Config`.
            spaces: of the environment.
        """
        problems = []
        model, shape = cfg.model, spaces.obs_shape
        given = None if model.obs_shape is None else _as_shape(model.obs_shape)
        if given is not None and given != shape:
            problems.append(
                Problem("model.obs_shape", f"is {given}, the environment gives {shape}")
            )
        if len(shape) == 3 and (spaces.obs_dtype != "uint8" or shape[0] > shape[2]):
            problems.append(
                Problem(
                    "model.obs_shape",
                    "observations of three axes must be uint8 images [channels, height, width], "
                    f"the environment gives {spaces.obs_dtype} {shape}; wrap it",
                )
            )
        if spaces.action_count is None:
            problems.append(Problem("type", "DQN needs an environment with discrete actions"))
        elif model.action_shape not in (None, spaces.action_count):
            problems.append(
                Problem(
                    "model.action_shape",
                    f"is {model.action_shape}, the environment has {spaces.action_count} actions",
                )
            )
        filled = dataclasses.replace(model, obs_shape=shape, action_shape=spaces.action_count)
        return dataclasses.replace(cfg, model=filled), problems

    # -------------------------------------------------------------------------------------- learn

    _columnar: Any = True

    def _init_learn(self) -> None:
        import torch

        from hpcdi.policy.q_learning import QLearner, QUpdate

        if self._cfg.cuda and not torch.cuda.is_available():
            raise PolicyError("policy.cuda is true, but torch sees no CUDA device on this rank")
        learn = self._cfg.learn
        update = QUpdate(
            learn.learning_rate, learn.target_update_freq, learn.double, learn.loss,
            learn.grad_clip_norm, self._cfg.priority_IS_weight, self._cfg.priority,
        )  # fmt: skip
        device = torch.device("cuda" if self._cfg.cuda else "cpu")
        self._learner = QLearner(self._build_network(), update, device)
        self._model = self._learner.network

    def _forward_learn(self, data: Any, **_kwargs: Any) -> dict[str, Any]:
        import torch

        if isinstance(data, Mapping):
            return self._learner.update(data)
        columns = _columns_of(data, self._cfg.discount_factor**self._cfg.nstep)
        return self._learner.update({k: torch.from_numpy(v) for k, v in columns.items()})

    def _monitor_vars_learn(self) -> list[str]:
        return ["total_loss", "q_value", "cur_lr"]

    def _state_dict_learn(self) -> dict[str, Any]:
        return {
            "model": self._learner.network.state_dict(),
            "target_model": self._learner.target.state_dict(),
            "optimizer": self._learner.optimizer.state_dict(),
            "updates": self._learner.updates,
        }

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        self._learner.network.load_state_dict(state_dict["model"])
        self._learner.target.load_state_dict(state_dict.get("target_model", state_dict["model"]))
        if "optimizer" in state_dict:
            self._learner.optimizer.load_state_dict(state_dict["optimizer"])
        self._learner.updates = state_dict.get("updates", 0)

    # -------------------------------------------------------------------------- collect, evaluate

    def _init_collect(self) -> None:
        self._rng = np.random.default_rng(self._seed.spawn(1)[0])
        if "learn" not in self._enabled:
            self._model = self._build_network().requires_grad_(False).eval()
        self._columnar = self  # a ColumnarActor

    def _init_eval(self) -> None:
        if "collect" not in self._enabled:
            self._init_collect()

    def act(self, observation: Array, setting: Settings) -> Columns:
        """See `ColumnarActor.act`; `setting` may hold ``eps``."""
        greedy = self._greedy(observation)
        eps = setting.get("eps", 0.0)
        return {"action": epsilon_greedy(greedy, eps, self._cfg.model.action_shape, self._rng)}

    def train_columns(
        self,
        transitions: Columns,
        item_len: Array,
        last_observation: Array,  # noqa: ARG002
    ) -> TrainColumns:
        """See `ColumnarActor.train_columns`."""
        steps = n_step(
            transitions["reward"], transitions["terminated"], item_len,
            self._cfg.discount_factor, self._cfg.nstep,
        )  # fmt: skip
        columns = {
            "n_step_return": steps.returns,
            "bootstrap_discount": steps.discount,
            "bootstrap_offset": steps.steps,
        }
        return TrainColumns(columns, (NEXT_OBSERVATION,))

    def _greedy(self, observation: Array) -> Array:
        import torch

        with torch.inference_mode():
            device = next(self._model.parameters()).device
            values = self._model(torch.from_numpy(observation).to(device))
            actions: Array = values.argmax(dim=1).cpu().numpy()
        return actions

    def _forward_collect(self, data: dict[int, Any], **kwargs: Any) -> dict[int, dict[str, Any]]:
        observation = np.stack([np.asarray(obs) for obs in data.values()])
        actions = self.act(observation, kwargs)["action"]
        return {env: {"action": action} for env, action in zip(data, actions, strict=True)}

    def _forward_eval(self, data: dict[int, Any]) -> dict[int, dict[str, Any]]:
        return self._forward_collect(data)

    def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> Transition:
        info = timestep.info
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            "action": policy_output["action"],
            "reward": np.float32(timestep.reward),
            "done": bool(info.get("terminated", timestep.done)),
            "truncated": bool(info.get("truncated", False)),
        }

    def _get_train_sample(self, transitions: list[Transition]) -> list[Transition]:
        """Samples of consecutive transitions of an episode; ``reward`` is the n-step return."""
        columns = stack_columns(transitions)
        length = np.array([len(transitions)], dtype=np.int32)
        steps = n_step(
            columns["reward"], columns["done"], length, self._cfg.discount_factor, self._cfg.nstep
        )
        last = np.arange(len(transitions)) + steps.steps - 1
        columns["next_obs"] = columns["next_obs"][last]
        columns["done"] = columns["done"][last]
        columns["reward"] = steps.returns
        columns["value_gamma"] = (self._cfg.discount_factor**steps.steps).astype(np.float32)
        return split_columns(columns)

    def _state_dict_collect(self) -> dict[str, Any]:
        return {"model": self._model.state_dict()}

    def _load_state_dict_collect(self, state_dict: dict[str, Any]) -> None:
        self._model.load_state_dict(state_dict["model"])

    # ------------------------------------------------------------------------------------ command

    def _get_setting_collect(self, info: Settings) -> dict[str, Any]:
        eps = self._cfg.other.eps
        rate = get_epsilon_greedy_fn(eps.start, eps.end, eps.decay, eps.type)
        return {"eps": rate(info.get("envstep", 0))}

    def _build_network(self) -> QNetwork:
        import torch

        from hpcdi.policy.networks import QNetwork

        model = self._cfg.model
        if model.obs_shape is None or model.action_shape is None:
            raise PolicyError(
                "policy.model.obs_shape and action_shape are not known; set them, or have "
                "DQNPolicy.with_spaces take them from an environment"
            )
        torch.manual_seed(int(self._seed.generate_state(1)[0]))
        return QNetwork(
            _as_shape(model.obs_shape), model.action_shape, model.encoder_hidden_size_list,
            dueling=model.dueling,
        )  # fmt: skip


def _as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _columns_of(samples: Sequence[Transition], default_discount: float) -> Columns:
    """Columns of samples in the per-transition form, as `_get_train_sample` gives them."""
    columns = stack_columns(samples)
    count = len(samples)
    gamma = columns.get("value_gamma", np.full(count, default_discount))
    weight = columns.get("IS", columns.get("weight", np.ones(count)))
    return {
        "observation": columns["obs"].astype(np.float32, copy=False),
        "next_observation": columns["next_obs"].astype(np.float32, copy=False),
        "action": columns["action"],
        "n_step_return": columns["reward"].astype(np.float32),
        "bootstrap_discount": (gamma * ~columns["done"].astype(bool)).astype(np.float32),
        "weight": weight.astype(np.float32),
    }
