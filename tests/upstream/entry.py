"""DI-engine's serial entries, as they are or with one changed import; prints every evaluation.

    python tests/upstream/entry.py {ding,hpcdi} ENTRY CONFIG ENV_STEPS EVAL_FREQ [--own-draws SEED]
    python tests/upstream/entry.py {ding,hpcdi}  # a run for each line of such arguments on stdin

ENTRY is "serial", "onpolicy", "ngu" or "ppg"; CONFIG a module below `dizoo` that holds
`main_config` and `create_config`; EVAL_FREQ takes the place of the configuration's, unless it is 0.
Our buffers draw as DI-engine's do, unless `--own-draws` says that they are measured.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import stubs

ENTRIES = {
    "serial": ("ding.entry.serial_entry", "serial_pipeline"),
    "onpolicy": ("ding.entry.serial_entry_onpolicy", "serial_pipeline_onpolicy"),
    "ngu": ("ding.entry.serial_entry_ngu", "serial_pipeline_ngu"),
    "ppg": ("dizoo.classic_control.cartpole.entry.cartpole_ppg_main", "main"),
}
"""Module and function of each entry."""
LIMIT_S = 300
"""For a run."""


def entry_of(worker: str, name: str) -> ModuleType:
    """The module of an entry, from its source, with `ding.worker` replaced by another package."""
    module = importlib.import_module(ENTRIES[name][0])
    source = Path(str(module.__file__)).read_text()
    changed = source.replace("from ding.worker import", f"from {worker} import")
    assert changed.count(f"from {worker} import") == 1
    exec(compile(changed, str(module.__file__), "exec"), module.__dict__)
    return module


class SameDraws:
    """Draws as DI-engine's buffers do: by numpy's own generator, its deque by Python's."""

    def __init__(self, *, is_deque: bool) -> None:
        self._is_deque = is_deque

    def random(self, size: int) -> Any:
        import numpy as np

        return np.random.uniform(size=(size,))

    def choice(self, among: Any, size: int, replace: bool) -> Any:
        import numpy as np

        if self._is_deque:
            return np.array(random.sample(range(among), size))
        return np.random.choice(among, size, replace)


def noted(evaluator: type, rows: list[dict[str, Any]]) -> None:
    """Lets a class of evaluators note when it evaluates, in CPU seconds, and what comes out."""
    evaluate = evaluator.eval  # type: ignore[attr-defined]
    begun = time.process_time()

    def eval(
        self: Any, save_ckpt_fn: Any = None, train_iter: int = -1, envstep: int = -1, **more: Any
    ) -> Any:
        started = time.process_time() - begun
        stop, info = evaluate(self, save_ckpt_fn, train_iter, envstep, **more)
        stated = info["eval_episode_return"]
        returns = [float(one[0] if isinstance(one, list) else one) for one in stated]
        row = {"train_iter": train_iter, "envstep": envstep, "returns": returns}
        rows.append({**row, "from_s": started, "to_s": time.process_time() - begun})
        return stop, info

    evaluator.eval = eval  # type: ignore[attr-defined]


def run(
    worker: str, entry: str, config: str, env_steps: int, eval_freq: int, seed: int | None
) -> list[dict[str, Any]]:
    """Evaluations of a run; with a seed, our buffers draw by their own generators."""
    import torch

    torch.set_num_threads(1)
    module = entry_of(worker, entry)
    rows: list[dict[str, Any]] = []
    noted(importlib.import_module(worker).InteractionSerialEvaluator, rows)
    settings = importlib.import_module(f"dizoo.{config}")
    policy = settings.main_config.policy
    policy.cuda = policy.cuda and torch.cuda.is_available()
    if eval_freq:
        policy.eval.evaluator = {**policy.eval.get("evaluator", {}), "eval_freq": eval_freq}
    create = settings.create_config
    if worker.startswith("hpcdi") and seed is None:
        from hpcdi.worker.replay_buffer import base_buffer

        draws = SameDraws(is_deque=create.get("replay_buffer", {}).get("type") == "deque")
        base_buffer._seeded_by_numpy = lambda _name: draws  # type: ignore[assignment,return-value]
    function = getattr(module, ENTRIES[entry][1])
    given = settings.main_config if entry == "ppg" else (settings.main_config, create)
    function(given, seed=seed or 0, max_env_step=env_steps)
    return rows


def printed(package: str, arguments: list[str]) -> None:
    """Runs it in a folder that is thrown away."""
    entry, config, env_steps, eval_freq, *more = arguments
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with contextlib.redirect_stdout(sys.stderr):
            rows = run(
                f"{package}.worker",
                entry,
                config,
                int(env_steps),
                int(eval_freq),
                int(more[1]) if more else None,
            )
        os.chdir("/")
    print(json.dumps(rows), flush=True)


def serve(package: str) -> None:
    """Runs each line in a fork: what all import and compile, longer than a run, is there by then.

    Prints an empty line for a run that failed or took too long.
    """
    with contextlib.redirect_stdout(sys.stderr):
        # the first optimizer of a process imports torch._dynamo
        for name in ("torch._dynamo", "ding.entry", "ding.policy", f"{package}.worker"):
            importlib.import_module(name)
        if package == "ding":
            importlib.import_module("ding.utils.segment_tree").SumSegmentTree(2)  # by numba
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(LIMIT_S)
            printed(package, line.split())
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            print(flush=True)


def main() -> None:
    """One run, or one for each line."""
    package, *arguments = sys.argv[1:]
    stubs.install()
    if arguments:
        printed(package, arguments)
    else:
        serve(package)


if __name__ == "__main__":
    main()
