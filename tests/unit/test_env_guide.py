"""hpcdi/env/README.md: its files import, its code runs, its settings make environments."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpcdi.env.create import create_env_manager, get_env_cls
from hpcdi.env.probe import look_at
from hpcdi.worker.dict_envs import BaseEnvTimestep, DictManager

GUIDE = (Path(__file__).parents[2] / "hpcdi/env/README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, flags=re.DOTALL)
SETTINGS = [yaml.safe_load(text)["env"] for kind, text in BLOCKS if kind == "yaml"]

pytestmark = [
    pytest.mark.usefixtures("env_helpers"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """EnvPool's import sets variables of matplotlib: before each test's look at them."""
    if importlib.util.find_spec("envpool") is not None:
        importlib.import_module("envpool")


@pytest.fixture(autouse=True)
def _my_envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's own file, where it can be imported."""
    (source,) = (text for _, text in BLOCKS if text.startswith("# my_envs.py"))
    (tmp_path / "my_envs.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_envs", raising=False)


@pytest.mark.parametrize("cfg", SETTINGS, ids=[f"{n}-{s['type']}" for n, s in enumerate(SETTINGS)])
def test_settings_make_environments_that_are_stepped(cfg: dict[str, Any]) -> None:
    if cfg["type"] != "gymnasium" and importlib.util.find_spec(cfg["type"]) is None:
        pytest.skip(f"{cfg['type']} is not installed")
    assert look_at(get_env_cls(cfg).parse_config(cfg)).spaces.action[0].counts
    with create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0)) as rows:
        rows.launch()
        manager = DictManager(rows)
        steps: dict[int, BaseEnvTimestep] = {}
        for _ in range(5):
            steps |= manager.step(manager.random_action())
        assert steps.keys() == set(range(cfg.get("collector_env_num", 8)))
        assert rows.failures == 0


def test_the_library_program_runs() -> None:
    (program,) = (text for _, text in BLOCKS if "make_env_manager" in text)
    names: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), names)
    assert len(names["episodes"].returns) > 8


def test_it_is_short() -> None:
    assert len(GUIDE.splitlines()) <= 145
