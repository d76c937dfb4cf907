"""DI-engine's own tests of `ding.worker`, run on `hpcdi.worker` by an alias of the module.

They are those that come with the package; nothing of them is copied. Of its repository's others
those of buffers, hooks and learners were typed and run by this alias: 10 of 13 pass, and
`ELSEWHERE` says why the rest does not.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.ding,
    pytest.mark.skipif(
        importlib.util.find_spec("dizoo") is None, reason="DI-engine is not here: make ding"
    ),
]
HERE = Path(__file__).parent
TESTS = {
    "collector/tests/test_base_serial_collector.py": 1,
    "collector/tests/test_episode_serial_collector.py": 4,
    "collector/tests/test_metric_serial_evaluator.py": 1,
    "collector/tests/test_sample_serial_collector.py": 4,
}
"""File -> tests in it."""
LEFT_OUT = {
    "collector/tests/test_marine_parallel_collector.py": "connects to addresses, which mean "
    "nothing here",
    "collector/tests/speed_test/test_collector_profile.py": "measures for minutes",
}

ELSEWHERE = {
    "replay_buffer/tests/test_advanced_buffer.py::test_update": "private: compares priorities of "
    "`_data` with `_eps` to the last bit; ours are float32 to a power",
    "replay_buffer/tests/test_advanced_buffer.py::test_weight": "private: sums of nodes of "
    "`_sum_tree`; and pushed dicts are marked (on the list: ours are copied)",
    "replay_buffer/tests/test_advanced_buffer.py::test_rate_limit": "all of it passes but the last "
    "lines, which are private: counts in `_thruput_controller`",
    "coordinator/tests/test_one_vs_one_commander.py": "private: `_league`, task "
    "spaces, `_current_policy_id`; settings of its own league (on the list: `naive_sp_player`)",
    "coordinator/tests/test_coordinator.py": "connects to addresses; private: `_commander`, "
    "`_historical_task`",
    "coordinator/tests/test_fake_operator_server.py": "a server of workers",
    "learner/comm/tests/test_learner_with_coordinator.py": "connects to addresses",
    "collector/comm/tests/test_collector_with_coordinator.py": "connects to addresses",
    "adapter/tests/test_learner_aggregator.py": "connects to addresses",
}
"""Tests of its repository that are in neither its wheel nor its sdist, and do not pass; and why.

None is of the public API alone: addresses, private attributes and the league's settings are on the
list of differences in hpcdi/worker/README.md.
"""


def worker() -> Path:
    """Folder of DI-engine's `ding.worker`."""
    spec = importlib.util.find_spec("dizoo")
    assert spec is not None
    return Path(str(spec.origin)).parent.parent / "ding" / "worker"


def test_all_are_known() -> None:
    there = {str(path.relative_to(worker())) for path in worker().rglob("test_*.py")}
    assert there == {*TESTS, *LEFT_OUT}


def test_they_pass(tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": f"{HERE}:{HERE.parent.parent}",
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
    }
    command = ["-m", "pytest", "-q", "-p", "alias", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run(
        [sys.executable, *command, *(worker() / name for name in TESTS)],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    assert f"{sum(TESTS.values())} passed" in done.stdout
