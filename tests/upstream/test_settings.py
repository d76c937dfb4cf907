"""Every setting of a collector, evaluator, learner or buffer in DI-engine's files is known here.

These are the default configurations of its policies and the configuration files that come with it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from beside import answer_of

pytestmark = [
    pytest.mark.ding,
    pytest.mark.skipif(
        importlib.util.find_spec("dizoo") is None, reason="DI-engine is not here: make ding"
    ),
]
SLIPS = ("evalu_freq",)
"""Settings that are misspelt in four of its files, which DI-engine does not see."""


def policies() -> Iterator[tuple[str, Any, Any]]:
    """Name, policy's settings, and ``create_config``."""
    registry = importlib.import_module("ding.utils").POLICY_REGISTRY
    importlib.import_module("ding.policy")
    for name, cls in registry.items():
        if hasattr(cls, "default_config"):
            yield name, cls.default_config(), {}
    folder = Path(str(importlib.import_module("dizoo").__file__)).parent
    for file in sorted(folder.rglob("*config*.py")):
        name = ".".join(("dizoo", *file.relative_to(folder).with_suffix("").parts))
        try:
            module = importlib.import_module(name)
        except (ImportError, AttributeError):  # of what is not installed
            continue
        policy = getattr(module, "main_config", {}).get("policy")
        if policy is not None:
            yield name, policy, getattr(module, "create_config", {})


def components(policy: Any, create: Any) -> Iterator[tuple[Any, Any]]:
    """Class and settings of each component of a policy's run."""
    import hpcdi.worker as worker

    buffer = policy.get("other", {}).get("replay_buffer")
    kinds = create.get("replay_buffer", {})
    if buffer and buffer.get("multi_buffer"):
        for name in filter(lambda name: isinstance(buffer[name], Mapping), buffer):
            yield worker.get_buffer_cls({"type": "advanced", **kinds.get(name, {})}), buffer[name]
    elif buffer:
        yield worker.get_buffer_cls({"type": "advanced", **kinds}), buffer
    cls = None
    with contextlib.suppress(KeyError):  # a collector of a user's own
        cls = worker.get_serial_collector_cls(create.get("collector", {}))
    if cls is not None:
        yield cls, policy.get("collect", {}).get("collector", {})
    yield worker.InteractionSerialEvaluator, policy.get("eval", {}).get("evaluator", {})
    yield worker.BaseLearner, policy.get("learn", {}).get("learner", {})


def unknown() -> tuple[int, list[str]]:
    """Number of configurations, and what is wrong with them."""
    from hpcdi.errors import ConfigError

    merge, count, wrong = importlib.import_module("ding.utils").deep_merge_dicts, 0, []
    for name, policy, create in policies():
        count += 1
        for cls, settings in components(policy, create):
            try:
                cls.parse_config(merge(cls.default_config(), settings))
            except ConfigError as error:
                wrong += [f"{name}: {cls.__name__}: {one.path}" for one in error.problems]
    return count, wrong


def test_every_setting_is_known() -> None:
    count, wrong = answer_of(__file__)
    # checkpoints that a user makes first are not there
    usual = ("hook.load_ckpt_before_run", *SLIPS)
    assert [line for line in wrong if not line.endswith(usual)] == []
    assert count > 400


if __name__ == "__main__":
    importlib.import_module("alias")
    print(json.dumps(unknown()))
