"""PPO: on-policy learning of a policy and its value (Schulman et al. 2017).

This file knows no torch until a mode that computes is enabled; `ppo_update`, `ppo_actor` and
`actor_critic` do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hpcdi.errors import PolicyError, Problem
from hpcdi.policy.base import CollectMode, EvalMode, Policy
from hpcdi.policy.ppo_settings import PPOConfig, fill_spaces
from hpcdi.policy.spaces import as_shape
from hpcdi.types import Array, Columns, Settings, Spaces, Transition
from hpcdi.utils.nested import split_columns, stack_columns
from hpcdi.utils.registry import POLICY_REGISTRY

if TYPE_CHECKING:
    from torch import nn

    from hpcdi.policy.actor_critic import ActorCritic
    from hpcdi.policy.ppo_actor import PPOActor

_NETWORK, _ACTIONS, _SHUFFLES = range(3)  # streams of random numbers, whichever modes there are


@POLICY_REGISTRY.register("ppo", "ppo_command")
class PPOPolicy(Policy):
    """PPO in four modes, for discrete or continuous actions; data in columns, or in dicts."""

    Config: ClassVar[type] = PPOConfig

    _cfg: Any
    _model: ActorCritic
    _columnar: Any = True

    @classmethod
    def with_spaces(cls, cfg: Any, spaces: Spaces) -> tuple[Any, list[Problem]]:
        """Fill empty shapes and bounds from the environment; say where given ones contradict it.

        Args:
            cfg: a `Config`.
            spaces: of the environment.
        """
        return fill_spaces(cfg, spaces)

    # Collecting samples actions and evaluating does not: each mode has its own actor.

    @property
    def collect_mode(self) -> CollectMode:
        """Methods for a collector."""
        return super().collect_mode._replace(get_attribute=self._get_attribute_collect)

    @property
    def eval_mode(self) -> EvalMode:
        """Methods for an evaluator."""
        return super().eval_mode._replace(get_attribute=self._get_attribute_eval)

    def _get_attribute_collect(self, name: str) -> Any:
        return self._sampler if name == "columnar" else self.get_attribute(name)

    def _get_attribute_eval(self, name: str) -> Any:
        return self._greedy if name == "columnar" else self.get_attribute(name)

    # -------------------------------------------------------------------------------------- learn

    def _init_learn(self) -> None:
        from hpcdi.policy.networks import learner_device
        from hpcdi.policy.ppo_update import PPOLearner

        device = learner_device(cuda=self._cfg.cuda)
        self._model = self._build_network()
        self._learner = PPOLearner(self._model, self._cfg.learn, device, self._random(_SHUFFLES))

    def _forward_learn(self, data: Any, **_kwargs: Any) -> list[dict[str, Any]]:
        """Several passes over the data of one policy; scalars of each minibatch.

        Args:
            data: see `PPOLearner.update`; or samples as `_get_train_sample` gives them.
        """
        import torch

        if isinstance(data, Mapping):
            return self._learner.update(data)
        return self._learner.update(
            {name: torch.from_numpy(column) for name, column in _columns_of(data).items()}
        )

    def _monitor_vars_learn(self) -> list[str]:
        return ["total_loss", "policy_loss", "value_loss", "entropy", "approx_kl", "cur_lr"]

    def _state_dict_learn(self) -> dict[str, Any]:
        learner = self._learner
        return {
            "model": learner.network.state_dict(),
            "updates": learner.updates,
            "iterations": learner.iterations,
            "rng": learner.rng.bit_generator.state,
            **learner.step.state_dict(),
        }

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        learner = self._learner
        learner.network.load_state_dict(state_dict["model"])
        learner.step.load_state_dict(state_dict)
        learner.updates = state_dict.get("updates", 0)
        learner.iterations = state_dict.get("iterations", 0)
        if "rng" in state_dict:
            learner.rng.bit_generator.state = state_dict["rng"]

    # -------------------------------------------------------------------------- collect, evaluate

    def _init_collect(self) -> None:
        self._sampler = self._build_actor(self._random(_ACTIONS))

    def _init_eval(self) -> None:
        self._greedy = self._build_actor(None)

    def _build_actor(self, rng: np.random.Generator | None) -> PPOActor:
        from hpcdi.policy.ppo_actor import PPOActor

        if not hasattr(self, "_model"):
            self._model = self._build_network().requires_grad_(False).eval()
        return PPOActor(self._model, self._cfg, rng)

    def _forward_collect(self, data: dict[int, Any], **kwargs: Any) -> dict[int, dict[str, Any]]:
        return _act(self._sampler, data, kwargs)

    def _forward_eval(self, data: dict[int, Any]) -> dict[int, dict[str, Any]]:
        return _act(self._greedy, data, {})

    def _get_export_module(self) -> nn.Module:
        from hpcdi.policy.acting import LikeliestAction, MeanAction

        if self._model.log_std is None:
            return LikeliestAction(self._model)
        return MeanAction(self._model, self._cfg.model)

    def _get_train_sample(self, transitions: list[Transition]) -> list[Transition]:
        """Samples of consecutive transitions of an episode, with ``adv`` and ``return``."""
        columns = stack_columns(transitions)
        renamed = {**columns, "terminated": columns["done"]}
        length = np.array([len(transitions)], dtype=np.int32)
        last = columns["next_obs"][-1:]
        made = self._sampler.train_columns(renamed, length, last).columns
        return split_columns({**columns, "adv": made["advantage"], "return": made["return"]})

    def _state_dict_collect(self) -> dict[str, Any]:
        return {"model": self._model.state_dict()}

    def _load_state_dict_collect(self, state_dict: dict[str, Any]) -> None:
        self._model.load_state_dict(state_dict["model"])

    # -------------------------------------------------------------------------------- what is built

    def _build_network(self) -> ActorCritic:
        from hpcdi.policy.actor_critic import ActorCritic

        model = self._cfg.model
        if model.obs_shape is None or model.action_shape is None or model.action_space is None:
            raise PolicyError(
                "policy.model.obs_shape, action_shape and action_space are not known; set them, or "
                "have PPOPolicy.with_spaces take them from an environment"
            )
        is_discrete = model.action_space == "discrete"
        network = ActorCritic(
            as_shape(model.obs_shape), math.prod(as_shape(model.action_shape)),
            model.encoder_hidden_size_list, activation=model.activation,
            share_encoder=model.share_encoder, log_std=None if is_discrete else model.log_std_init,
        )  # fmt: skip
        network.initialize(int(self._random(_NETWORK).integers(2**63)))
        return network

    def _random(self, stream: int) -> np.random.Generator:
        """Random numbers of a purpose, which depend on the seed alone."""
        key = (*self._seed.spawn_key, stream)
        return np.random.default_rng(np.random.SeedSequence(self._seed.entropy, spawn_key=key))


def _act(actor: PPOActor, data: Mapping[int, Any], setting: Settings) -> dict[int, dict[str, Any]]:
    """Outputs for each environment, of observations of each."""
    outputs = actor.act(np.stack([np.asarray(obs) for obs in data.values()]), setting)
    return dict(zip(data, split_columns(outputs), strict=True))


def _columns_of(samples: Sequence[Transition]) -> Columns:
    """Columns of samples in the per-transition form, as `_get_train_sample` gives them."""
    columns = stack_columns(samples)
    action = columns["raw_action"] if "raw_action" in columns else columns["action"]
    floats = {"log_prob": "log_prob", "value": "value", "advantage": "adv", "return": "return"}
    made: dict[str, Array] = {
        name: columns[given].astype(np.float32, copy=False) for name, given in floats.items()
    }
    return {"observation": columns["obs"], "action": action, **made}
