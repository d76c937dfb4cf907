"""The guides hpcdi/policy/README.md and VARY.md: code runs and learns, configurations are right."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import hpcdi.policy
import hpcdi.worker
from fakes.serial_runs import SMALL, serial_run, train
from fakes.spaces import simple_spaces
from hpcdi.policy.create import create_policy, get_policy_cls
from hpcdi.policy.spaces import with_spaces
from hpcdi.utils.registry import POLICY_REGISTRY

pytestmark = pytest.mark.usefixtures("one_torch_thread")

FOLDER = Path(hpcdi.policy.__file__).parent
GUIDE, VARY = ((FOLDER / name).read_text() for name in ("README.md", "VARY.md"))
SPACES = simple_spaces((4,), "float32", 2, ())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE + VARY, flags=re.DOTALL)


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each python block is the file that its first line names."""
    names = []
    for block in blocks("python"):
        first = re.match(r"# (\w+)\.py\n", block)
        assert first is not None
        names.append(first[1])
        (tmp_path / f"{first[1]}.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in names:
        sys.modules.pop(name, None)
    for kind in ("a2c", "a2c_memory", "heads_dqn"):
        POLICY_REGISTRY._classes.pop(kind, None)


def policy_of(kind: str) -> Any:
    """The policy of the guide's YAML block of this type, in all modes."""
    given = [yaml.safe_load(block)["policy"] for block in blocks("yaml")]
    (cfg,) = [policy for policy in given if policy["type"] == kind]
    cls = get_policy_cls(cfg)
    filled, problems = with_spaces(cls.parse_config(cfg), SPACES)
    assert problems == []
    return create_policy(filled, seed=np.random.SeedSequence(0))


def test_the_guides_are_short() -> None:
    assert len(GUIDE.splitlines()) <= 200
    assert len(VARY.splitlines()) <= 200


@pytest.mark.parametrize("kind", ["dqn", "heads_dqn"])
def test_a_network_of_ones_own_learns_and_so_does_a_variant_of_dqn(kind: str) -> None:
    """It moves towards the target of a fixed batch, and acts and is exported as any other."""
    built = policy_of(kind)
    if kind == "dqn":
        assert type(built._model).__name__ == "Residual"
        assert built._model.first.out_features == 128
    else:
        assert built._cfg.model.heads == 3
    rng = np.random.default_rng(0)
    batch = {
        "observation": torch.from_numpy(rng.standard_normal((32, 4), dtype=np.float32)),
        "next_observation": torch.zeros(32, 4),
        "action": torch.from_numpy(rng.integers(0, 2, 32)),
        "n_step_return": torch.from_numpy(rng.standard_normal(32, dtype=np.float32)),
        "bootstrap_discount": torch.zeros(32),
        "weight": torch.ones(32),
    }
    losses = [built.learn_mode.forward(batch)["total_loss"] for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    observation = rng.standard_normal((5, 4), dtype=np.float32)
    evaluating = built.eval_mode.get_attribute("columnar")
    actions = evaluating.act({"observation": observation}, {})["action"]
    exported = built.eval_mode.get_attribute("export_module")(torch.from_numpy(observation))
    assert exported[0].tolist() == actions.tolist()


def test_an_algorithm_of_ones_own_finds_the_better_action() -> None:
    """Action 1 is rewarded by 1, action 0 by 0: after some updates it is likelier."""
    built = policy_of("a2c")
    assert built._cfg.learn.entropy_weight == 0.02
    actor = built.collect_mode.get_attribute("columnar")
    rng = np.random.default_rng(0)

    def share(count: int = 256) -> float:
        observation = rng.standard_normal((count, 4), dtype=np.float32)
        return float(actor.act({"observation": observation}, {})["action"].mean())

    before = share()
    for _ in range(40):
        observation = rng.standard_normal((64, 4), dtype=np.float32)
        outputs = actor.act({"observation": observation}, {})
        transitions = {
            "observation": observation, "reward": outputs["action"].astype(np.float32),
            "terminated": np.ones(64, bool), "truncated": np.zeros(64, bool), **outputs,
        }  # fmt: skip
        last = {"observation": observation}
        added = actor.train_columns(transitions, np.ones(64, np.int32), last)
        columns = {**transitions, **added.columns}
        info = built.learn_mode.forward({k: torch.from_numpy(v) for k, v in columns.items()})
        assert np.isfinite(info["total_loss"])
    assert share() > max(0.75, before)


@pytest.mark.parametrize("memory", ["gru", "none"])
def test_the_algorithm_of_the_guide_with_the_memory_of_the_guide(
    memory: str, tmp_path: Path
) -> None:
    """A run by its code and what the section Memory says to add; with its words it failed."""
    text = " ".join(GUIDE.split())
    (begin,) = re.findall(r"begins `update` by `(.*?)`:", text)
    assert "`self.infer_last(transitions, item_len, last_observation)`" in text
    (code,) = [block for block in blocks("python") if block.startswith("# my_a2c.py")]
    for old, new in (
        ('"a2c"', '"a2c_memory"'),
        ("TAKES_MASKS = True", "TAKES_MASKS = True\n        TAKES_MEMORY = True"),
        ("import gradient_step, networks", "import gradient_step, memories, networks"),
        ("self.infer(last_obs", "self.infer_last(transitions, item_len, last_obs"),
        ('"return": returns}', '"return": returns, **self.sequence_columns(item_len)}'),
        ("observation_of(part), {}", "observation_of(part), memories.state_of(part)"),
        ("def update(self, batch):", f"def update(self, batch):\n        {begin}"),
    ):
        assert old in code
        code = code.replace(old, new)
    (tmp_path / "my_a2c_memory.py").write_text(code)
    learnt = {"memory": memory, "memory_size": 8} if memory == "gru" else {}
    policy: dict[str, Any] = {
        "type": "a2c_memory", "import_names": ["my_a2c_memory"], "model": learnt,
        "learn": {"accumulate": 2}, "collect": {"n_sample": 16},
        "other": {"commander": {"max_train_iter": 2}},
    }  # fmt: skip
    if memory == "gru":
        policy["collect"]["unroll_len"] = 4
    config = tmp_path / "a2c.yaml"
    config.write_text(yaml.safe_dump({"env": {"env_id": "CartPole-v1"}, "policy": policy}))
    with serial_run(tmp_path / "run", str(config), *SMALL) as run:
        train(run)
    sys.modules.pop("my_a2c_memory", None)
