"""A team over ranks: two policies that learn in one run, which is killed, and goes on elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs import CONFIGS, Running, transitions

from hpcdi.store.inspect import inspect

pytestmark = [pytest.mark.job, pytest.mark.slow]


def test_two_policies_learn_over_ranks_and_in_one_process(
    start: Callable[..., Running], resume: Callable[..., Running]
) -> None:
    job = start(
        CONFIGS / "speaker_listener_ppo.yaml", "-n", "3", "env.stop_value=99",
        "system.snapshot_s=1", "policy.eval.every=2000 env_steps",
    )  # fmt: skip
    job.until(lambda: (job.run_dir / "snapshots" / "snapshot_000003").exists())
    job.kill_everything()
    before = transitions(job.run_dir)
    ended = resume(job.run_dir, "env.stop_value=3.5", verb="serial").wait()
    ended.check(0, "done")
    assert "  resumed      snapshot_" in ended.out
    figures = ended.run["figures"]
    assert figures["evaluations"][0]["mean"] < 3.5 <= figures["evaluations"][-1]["mean"]
    assert figures["env_steps"] == transitions(job.run_dir) > before
    assert not inspect(job.run_dir).errors
