"""What experiments cost on this kind of machine, as `hpcdi plan --measure` found it: kept on disk.

There is a file for each experiment and kind of machine, in the user's cache: all nodes of one kind
share it. Settings that change no cost, such as seeds and limits, make no other file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import time
from pathlib import Path

from hpcdi import __version__
from hpcdi.config.fields import in_order, to_mapping, without
from hpcdi.config.schema import ExperimentConfig
from hpcdi.run.forecast import Costs
from hpcdi.store.atomic import read_json, write_json
from hpcdi.utils.disk import user_cache
from hpcdi.utils.host import read_kernel_file

_OF_NO_COST = (
    "env.stop_value",
    "env.evaluator_env_num",
    "env.evaluator_episode_num",
    "policy.eval",
    "policy.other.commander",
    "policy.learn.learner.learner_num",
    "policy.collect.collector.collector_num",
)
"""Settings, and sections of them, that change no cost."""


def keep(config: ExperimentConfig, costs: Costs) -> None:
    """Keep what an experiment costs here.

    Raises:
        OSError: the cache cannot be written.
    """
    write_json(_file(config), {**dataclasses.asdict(costs), "measured_at": time.time()})


def kept(config: ExperimentConfig) -> tuple[Costs, float] | None:
    """Returns what an experiment costs here, and its age in seconds; None: it is not known."""
    found = read_json(_file(config))
    try:
        costs = Costs(**{f.name: float(found[f.name]) for f in dataclasses.fields(Costs)})
        return costs, max(0.0, time.time() - float(found["measured_at"]))
    except (LookupError, TypeError, ValueError):  # none, or torn
        return None


def _file(config: ExperimentConfig) -> Path:
    mapping = {"env": to_mapping(config.env), "policy": to_mapping(config.policy)}
    settings = without(mapping, _OF_NO_COST)
    parts = [__version__, _processor(), len(os.sched_getaffinity(0)), settings]
    text = json.dumps(in_order(parts), default=str)
    return user_cache() / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _processor() -> str:
    """Returns what the machine's cores are called."""
    for line in read_kernel_file(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
