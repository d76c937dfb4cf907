"""What one of several learners does of what a configuration counts over all of them."""

from __future__ import annotations

import copy
import math
from collections.abc import MutableMapping
from typing import Any

from hpcdi.comm.collectives import get_world_size


def to_ddp_config(cfg: Any) -> Any:
    """A copy of a configuration with every learner's share of what is counted over all of them.

    ``policy.batch_size``, ``policy.learn.batch_size``, ``policy.collect.n_sample`` and
    ``policy.collect.n_episode`` are divided by the number of learners and rounded up, where they
    are there and not None.

    Args:
        cfg: nested mappings with the key ``policy``.
    """
    shared = copy.deepcopy(cfg)
    policy = shared["policy"]
    learn, collect = policy.get("learn", {}), policy.get("collect", {})
    for section, key in (
        (policy, "batch_size"),
        (learn, "batch_size"),
        (collect, "n_sample"),
        (collect, "n_episode"),
    ):
        if isinstance(section, MutableMapping) and section.get(key) is not None:
            section[key] = math.ceil(section[key] / get_world_size())
    return shared
