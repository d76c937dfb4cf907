"""Acting at random, to fill a replay buffer before there is anything to act by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcdi.errors import PolicyError
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.exploration import uniform_legal
from hpcdi.types import Array, Columns, Settings, Spaces, Transition


class RandomPolicy:
    """A collect mode that acts uniformly at random, and leaves the rest to another one.

    It keeps the contract of `CollectMode`; where the other mode is columnar, so is this.

    Args:
        spaces: of the environment: what actions there are.
        collect_mode: makes transitions and samples, and has all other attributes.
        seed: of the random numbers.

    Raises:
        PolicyError: actions are continuous and not bounded on both sides.
    """

    def __init__(self, spaces: Spaces, collect_mode: Any, seed: np.random.SeedSequence) -> None:
        self._spaces, self._mode = spaces, collect_mode
        self._rng = np.random.default_rng(seed)
        bounds = np.array([spaces.action_low, spaces.action_high], dtype=np.float64)
        if spaces.action_count is None and not (bounds.size and np.isfinite(bounds).all()):
            raise PolicyError(
                f"there is no uniform choice of actions between {spaces.action_low} and "
                f"{spaces.action_high}; do without random collecting, or wrap the environment"
            )

    def forward(self, data: Mapping[int, Any], **_setting: Any) -> dict[int, dict[str, Any]]:
        """An action for each environment; a legal one where its observation has a mask."""
        masks = [obs.get("action_mask") for obs in data.values() if isinstance(obs, Mapping)]
        if len(masks) == len(data) and all(mask is not None for mask in masks):
            legal = np.stack([np.asarray(mask) for mask in masks]) != 0 if masks else None
            actions = np.empty(0) if legal is None else uniform_legal(legal, self._rng)
        else:
            actions = self._draw(len(data))
        return {env: {"action": action} for env, action in zip(data, actions, strict=True)}

    def act(self, observation: Array, setting: Settings) -> Columns:  # noqa: ARG002
        """See `ColumnarActor.act`: ``action`` alone."""
        return {"action": self._draw(len(observation))}

    def train_columns(
        self, transitions: Columns, item_len: Array, last_observation: Array
    ) -> TrainColumns:
        """What the other mode's actor adds."""
        actor = self._mode.get_attribute("columnar")
        added: TrainColumns = actor.train_columns(transitions, item_len, last_observation)
        return added

    def process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> Transition:
        """The other mode's."""
        made: Transition = self._mode.process_transition(obs, policy_output, timestep)
        return made

    def get_train_sample(self, transitions: list[Transition]) -> list[Transition]:
        """The other mode's."""
        samples: list[Transition] = self._mode.get_train_sample(transitions)
        return samples

    def reset(self, data_id: list[int] | None = None) -> None:
        """The other mode's."""
        self._mode.reset(data_id)

    def get_attribute(self, name: str) -> Any:
        """The other mode's; its columnar actor is replaced by this."""
        value = self._mode.get_attribute(name)
        return self if name == "columnar" and hasattr(value, "act") else value

    def set_attribute(self, name: str, value: Any) -> None:
        """The other mode's."""
        self._mode.set_attribute(name, value)

    def state_dict(self) -> dict[str, Any]:
        """Nothing is learnt."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Nothing is learnt."""

    def _draw(self, count: int) -> Array:
        """Actions [count, ...]: int64, or float32 within the bounds."""
        spaces = self._spaces
        if spaces.action_count is not None:
            return self._rng.integers(0, spaces.action_count, count)
        flat = self._rng.uniform(
            spaces.action_low, spaces.action_high, (count, len(spaces.action_low))
        )
        return flat.astype(np.float32).reshape(count, *spaces.action_shape)
