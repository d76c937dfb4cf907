"""`policy.type: ding`: a policy of DI-engine's form in hpcdi's runs, in one process or over ranks.

Its own settings are in `policy.ding`, whole; defaults of its class come below them. Those that the
run must know are hpcdi's settings beside it, and go over the same ones in `policy.ding`: `cuda`,
`on_policy`, `priority` and `learn.batch_size`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.config.fields import ComponentConfig, section, setting
from hpcdi.config.policy import BaseLearnConfig, CollectConfig, PolicyConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import PolicyError, Problem
from hpcdi.policy.base import Policy
from hpcdi.types import Settings, Transition
from hpcdi.worker.ding.library import TYPE_IS_REQUIRED, attribute_dict, class_of, policy_settings


@dataclass(frozen=True)
class DingCollectConfig(CollectConfig):
    """How data are collected."""

    n_sample: int = setting(
        32,
        "samples of a rollout for each environment; the policy makes them of as many transitions "
        "at once, at least unroll_len, or of whole episodes (traj_len_inf)",
        minimum=1,
        maximum=65_535,
    )
    unroll_len: int = setting(1, "transitions that one sample holds", minimum=1, maximum=65_535)
    n_episode: int | None = setting(
        None,
        "whole episodes of a collector's rollout, of all its environments; empty: n_sample says "
        "how long it is",
        minimum=1,
    )


@dataclass(frozen=True)
class DingLearnConfig(BaseLearnConfig):
    """What a run must know of learning; the rest is in `policy.ding.learn`."""

    update_per_collect: int | None = setting(
        None, "updates after each collecting of a serial run; empty: one", minimum=1
    )
    replay_ratio: float | None = setting(
        None, "samples that are drawn for each environment step; empty: as many as come", above=0
    )

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        yield from BaseLearnConfig.problems(self)
        if self.learner.learner_num > 1:
            yield Problem(
                "learner.learner_num",
                "must be 1: gradients of DI-engine's policies are not averaged between learners",
            )


@dataclass(frozen=True)
class DingPolicyConfig(PolicyConfig):
    """Settings of a policy of DI-engine's form."""

    type: str = "ding"
    ding: dict[str, Any] = setting(
        {},
        "the policy's own settings as DI-engine has them, `type` among them: its name in "
        "DI-engine's registry, or module:Class",
    )
    traj_len_inf: bool = setting(False, "samples are made of whole episodes")
    collect: DingCollectConfig = section(DingCollectConfig, "collecting")
    learn: DingLearnConfig = section(DingLearnConfig, "learning")

    def usual_updates(self, _transitions: int) -> int:
        """Updates after each collecting, where the settings do not say."""
        return 1

    def problems(self) -> Iterator[Problem]:
        """Rules over several settings."""
        if not self.ding.get("type"):
            yield Problem("ding.type", TYPE_IS_REQUIRED)
        for name in ("discount_factor", "nstep", "priority_IS_weight"):
            if getattr(self, name) != getattr(PolicyConfig, name):
                yield Problem(name, f"is the policy's own setting: policy.ding.{name}")


class DingPolicy(Policy):
    """Delegates hpcdi's modes to a policy of DI-engine's form.

    All modes of that policy are built in every process, as DI-engine's entries do: some rely on
    what another mode has set.
    """

    Config = DingPolicyConfig
    _cfg: DingPolicyConfig

    def __init__(
        self,
        cfg: Mapping[str, Any] | ComponentConfig | None = None,
        enable_field: Sequence[str] | None = None,
        *,
        seed: np.random.SeedSequence | None = None,
    ) -> None:
        self._inner: Any = None
        super().__init__(cfg, enable_field, seed=seed)

    def get_attribute(self, name: str) -> Any:
        """The run's setting of that name, else the inner policy's attribute.

        Raises:
            NotImplementedError: there is neither.
        """
        if name == "cfg" or hasattr(self, f"_get_{name}"):
            return super().get_attribute(name)
        return self._inner._get_attribute(name)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set the inner policy's attribute."""
        self._inner._set_attribute(name, value)

    def _make(self) -> None:
        if self._inner is not None:
            return
        import torch

        cfg = self._cfg
        settings = policy_settings(cfg.ding)
        settings["cuda"] = bool(cfg.cuda and "learn" in self._enabled)
        settings |= {"on_policy": cfg.on_policy, "priority": cfg.priority, "multi_gpu": False}
        settings["learn"]["batch_size"] = cfg.learn.batch_size
        # it draws from the generators of the process
        words = [int(word) for word in self._seed.generate_state(3)]
        torch.manual_seed(words[0])
        np.random.seed(words[1])
        random.seed(words[2])
        self._inner = class_of("policy", cfg.ding)(attribute_dict(settings))

    _init_learn = _init_collect = _init_eval = _init_command = _make

    def _forward_learn(self, data: Any, **kwargs: Any) -> dict[str, Any] | list[dict[str, Any]]:
        result: dict[str, Any] | list[dict[str, Any]] = self._inner._forward_learn(data, **kwargs)
        return result

    def _forward_collect(self, data: dict[int, Any], **kwargs: Any) -> dict[int, dict[str, Any]]:
        return self._act(self._inner._forward_collect, data, kwargs, "collector_env_num")

    def _forward_eval(self, data: dict[int, Any], **kwargs: Any) -> dict[int, dict[str, Any]]:
        return self._act(self._inner._forward_eval, data, kwargs, "evaluator_env_num")

    def _act(
        self, forward: Any, data: dict[int, Any], kwargs: dict[str, Any], env_num: str
    ) -> dict[int, dict[str, Any]]:
        try:
            acted: dict[int, dict[str, Any]] = forward(data, **kwargs)
        except KeyError as error:
            if error.args and error.args[0] in data:  # a state for each environment
                section = "collect" if env_num == "collector_env_num" else "eval"
                raise PolicyError(
                    f"the policy has no state for environment {error.args[0]}: "
                    f"policy.ding.{section}.env_num must be env.{env_num}"
                ) from error
            raise
        return acted

    def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> Transition:
        reward = timestep.reward
        if not getattr(reward, "shape", ()):  # DI-engine's are of shape (1,)
            is_number = not hasattr(reward, "reshape")
            reward = np.full(1, reward, np.float32) if is_number else reward.reshape(1)
        timestep = timestep._replace(reward=reward)
        transition: Transition = self._inner._process_transition(obs, policy_output, timestep)
        return transition

    def _get_train_sample(self, transitions: list[Transition]) -> list[Transition]:
        samples: list[Transition] = self._inner._get_train_sample(transitions)
        return samples

    def _monitor_vars_learn(self) -> list[str]:
        return list(self._inner._monitor_vars_learn())

    def _reset_learn(self, data_id: list[int] | None = None) -> None:
        self._inner._reset_learn(data_id)

    def _reset_collect(self, data_id: list[int] | None = None) -> None:
        self._inner._reset_collect(data_id)

    def _reset_eval(self, data_id: list[int] | None = None) -> None:
        self._inner._reset_eval(data_id)

    def _get_setting_learn(self, info: Settings) -> dict[str, Any]:
        return dict(self._setting("learn", info))

    def _get_setting_collect(self, info: Settings) -> dict[str, Any]:
        return dict(self._setting("collect", info))

    def _get_setting_eval(self, info: Settings) -> dict[str, Any]:
        return dict(self._setting("eval", info))

    def _setting(self, mode: str, info: Settings) -> Settings:
        get = getattr(self._inner, f"_get_setting_{mode}", None)
        known = dict(info)
        known.setdefault("learner_train_iter", known.get("learner_step", 0))
        setting: Settings = {} if get is None else get(known)
        return setting

    def _state_dict_learn(self) -> dict[str, Any]:
        return _with_model(self._inner._state_dict_learn())

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        """Weights alone leave the rest as it is, but a target network: that gets them, too."""
        own, model = dict(self._inner._state_dict_learn()), state_dict.get("model", {})
        if "target_model" in own and own["target_model"].keys() == model.keys():
            own["target_model"] = model
        self._inner._load_state_dict_learn({**own, **state_dict})

    def _state_dict_collect(self) -> dict[str, Any]:
        return self._state_of("collect")

    def _load_state_dict_collect(self, state_dict: dict[str, Any]) -> None:
        self._load("collect", state_dict)

    def _state_dict_eval(self) -> dict[str, Any]:
        return self._state_of("eval")

    def _load_state_dict_eval(self, state_dict: dict[str, Any]) -> None:
        self._load("eval", state_dict)

    def _state_of(self, mode: str) -> dict[str, Any]:
        if self._acts_by_its_model(mode):
            return {"model": self._inner._model.state_dict()}
        return _with_model(getattr(self._inner, f"_state_dict_{mode}")())

    def _load(self, mode: str, state_dict: dict[str, Any]) -> None:
        if self._acts_by_its_model(mode):
            self._inner._model.load_state_dict(state_dict["model"])
        else:
            getattr(self._inner, f"_load_state_dict_{mode}")(state_dict)

    def _acts_by_its_model(self, mode: str) -> bool:
        """Returns whether a mode has no network of its own, as PG's: DI-engine never loads it."""
        return hasattr(self._inner, "_model") and not hasattr(self._inner, f"_{mode}_model")


def _with_model(state: dict[str, Any]) -> dict[str, Any]:
    if "model" not in state:
        raise PolicyError(
            "the policy's state dict has no 'model', the weights that collectors and evaluators "
            f"load; it has {sorted(state)}"
        )
    return state
