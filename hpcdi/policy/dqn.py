"""DQN: off-policy learning of action values (Mnih et al. 2015).

Double, dueling, n-step and prioritized, as configured.

This file knows no torch until a mode that computes is enabled; `q_learning` and `networks` do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdi.config.fields import section, setting
from hpcdi.errors import PolicyError, Problem
from hpcdi.policy.base import Policy, TrainColumns
from hpcdi.policy.dqn_samples import columns_of, n_step_samples, split_masks
from hpcdi.policy.exploration import epsilon_greedy, get_epsilon_greedy_fn
from hpcdi.policy.returns import n_step
from hpcdi.policy.settings import LearnConfig, PolicyConfig
from hpcdi.policy.spaces import as_shape, network_shape, observation_problems
from hpcdi.types import Array, Columns, RowView, Settings, Spaces, Transition
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
            if self.on_policy:
                yield Problem("on_policy", "DQN learns from a replay buffer; leave this false")
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
        model = cfg.model
        problems = list(observation_problems(model.obs_shape, spaces))
        if spaces.action_count is None:
            problems.append(Problem("type", "DQN needs an environment with discrete actions"))
        elif model.action_shape not in (None, spaces.action_count):
            problems.append(
                Problem(
                    "model.action_shape",
                    f"is {model.action_shape}, the environment has {spaces.action_count} actions",
                )
            )
        filled = dataclasses.replace(
            model, obs_shape=network_shape(spaces), action_shape=spaces.action_count
        )
        return dataclasses.replace(cfg, model=filled), problems

    # -------------------------------------------------------------------------------------- learn

    _columnar: Any = True

    def _init_learn(self) -> None:
        from hpcdi.policy.networks import learner_device
        from hpcdi.policy.q_learning import QLearner, QUpdate

        device, cfg = learner_device(cuda=self._cfg.cuda), self._cfg
        update = QUpdate.of(
            cfg.learn, use_weights=cfg.priority_IS_weight, give_priority=cfg.priority
        )
        self._learner = QLearner(self._build_network(), update, device)
        self._model = self._learner.network

    def _forward_learn(self, data: Any, **_kwargs: Any) -> dict[str, Any]:
        import torch

        if isinstance(data, Mapping):
            return self._learner.update(data)
        columns = columns_of(data, self._cfg.discount_factor**self._cfg.nstep)
        return self._learner.update({k: torch.from_numpy(v) for k, v in columns.items()})

    def _monitor_vars_learn(self) -> list[str]:
        return ["total_loss", "q_value", "cur_lr"]

    def _state_dict_learn(self) -> dict[str, Any]:
        return {
            "model": self._learner.network.state_dict(),
            "target_model": self._learner.target.state_dict(),
            "updates": self._learner.updates,
            **self._learner.step.state_dict(),
        }

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        self._learner.network.load_state_dict(state_dict["model"])
        self._learner.target.load_state_dict(state_dict.get("target_model", state_dict["model"]))
        self._learner.step.load_state_dict(state_dict)
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
        return {"action": self._choose(observation, None, setting.get("eps", 0.0))}

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

    def _choose(self, observation: Array, legal: Array | None, eps: float) -> Array:
        """Actions int64 [envs]; `legal`: bool [envs, actions], or None where all are."""
        greedy = self._greedy(observation, legal)
        return epsilon_greedy(greedy, eps, self._cfg.model.action_shape, self._rng, legal)

    def _greedy(self, observation: Array, legal: Array | None) -> Array:
        import torch

        with torch.inference_mode():
            device = next(self._model.parameters()).device
            values = self._model(torch.from_numpy(observation).to(device))
            if legal is not None:
                values = values.masked_fill(~torch.from_numpy(legal).to(device), -torch.inf)
            actions: Array = values.argmax(dim=1).cpu().numpy()
        return actions

    def _forward_collect(self, data: dict[int, Any], **kwargs: Any) -> dict[int, dict[str, Any]]:
        observation, legal = split_masks(data)
        actions = self._choose(observation, legal, kwargs.get("eps", 0.0))
        return {env: {"action": action} for env, action in zip(data, actions, strict=True)}

    def _forward_eval(self, data: dict[int, Any]) -> dict[int, dict[str, Any]]:
        return self._forward_collect(data)

    def _get_export_module(self) -> nn.Module:
        from hpcdi.policy.acting import BestAction

        return BestAction(self._model)

    def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> Transition:
        return super()._process_transition(obs, {"action": policy_output["action"]}, timestep)

    def _get_train_sample(self, transitions: list[Transition]) -> list[Transition]:
        """Samples of consecutive transitions of an episode; ``reward`` is the n-step return."""
        return n_step_samples(transitions, self._cfg.discount_factor, self._cfg.nstep)

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
            as_shape(model.obs_shape), model.action_shape, model.encoder_hidden_size_list,
            dueling=model.dueling,
        )  # fmt: skip
