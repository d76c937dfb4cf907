"""CartPole by an id under which there are vector environments, and no single ones."""

from __future__ import annotations

import gymnasium

gymnasium.register(
    "test/CartPoles-v0",
    vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
)
