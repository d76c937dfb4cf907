"""hpcdi in a real Jupyter kernel: a class of a cell, an interrupted cell, a wrong setting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.patience import stretched

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

CELL = """
import hpcdi
from fakes.interrupting_env import SMALL, Walk

class Mine(Walk):  # of __main__, which has no file
    pass
"""


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs a cell; returns what it has printed and its result, and calls `seen` with each line."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root / 'tests'}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    kernel, client = manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))

    def run(code: str, interrupt_at: str = "") -> str:
        said, until = [], time.monotonic() + stretched(60.0)
        sent = client.execute(code)
        while time.monotonic() < until:
            message = client.get_iopub_msg(timeout=until - time.monotonic())
            content = message["content"]
            if message["parent_header"].get("msg_id") != sent:
                continue
            said += [
                content.get("text", ""),
                *content.get("traceback", ()),
                content.get("data", {}).get("text/plain", ""),
            ]
            if interrupt_at and any(interrupt_at in part for part in said):
                interrupt_at = ""
                kernel.interrupt_kernel()
            if content.get("execution_state") == "idle":
                return "".join(said)
        raise TimeoutError("".join(said))

    try:
        yield run
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


@pytest.mark.job
@pytest.mark.slow
def test_a_notebook_trains_is_interrupted_and_goes_on(cell: Callable[..., str]) -> None:
    assert cell(CELL) == ""
    wrong = cell('hpcdi.train(Mine, "ppo", settings={"policy.lern": 1})')
    assert wrong.count("\n") == 1, wrong
    assert "did you mean 'learn'" in wrong
    train = 'run = hpcdi.train(Mine, "ppo", stop_value=9, settings=SMALL)'
    assert "stopped: received SIGINT" in cell(train, interrupt_at="evaluation 2")
    assert "stopped" in cell("run")
    done = 'hpcdi.train(resume=run, max_env_step=run.figures["env_steps"] + 64)'
    assert ", done: max_env_step reached" in cell(done)
    assert cell("run.policy.act([0.0]) in (3, 4)") == "True"
    over_ranks = 'run = hpcdi.train(Mine, "ppo", ranks=3, max_env_step=64, settings=SMALL); run'
    assert ", done: max_env_step reached" in cell(over_ranks)
