"""Whole runs on a GPU: to the scores that CPUs reach, over deaths, and between devices."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import (
    CARTPOLE,
    CONFIGS,
    ENDLESS,
    ONE_COLLECTOR,
    TESTS,
    TWO_LEARNERS,
    Running,
    hpcdi,
    logged,
    max_train_iter,
)
from safetensors.numpy import load_file

from hpcdi.run.environment import visible_gpus
from hpcdi.store.policies import read_policy

pytestmark = pytest.mark.job
Start = Callable[..., Running]

CUDA = "policy.cuda=true"
BLIND = {"CUDA_VISIBLE_DEVICES": ""}
ENDS_WITHIN_S = 30.0


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs a GPU."""
    skips = pytest.mark.skipif(not visible_gpus(os.environ), reason="this machine shows no GPU")
    return pytest.mark.gpu(skips(test))


@pytest.mark.parametrize("verb", ["train", "serial"])
def test_without_a_gpu_it_is_refused_before_anything_starts(start: Start, verb: str) -> None:
    ended = start(CARTPOLE, CUDA, verb=verb, variables=BLIND).wait()
    assert ended.code in (1, 2), ended.said
    assert "policy.cuda is true, but " in ended.err
    assert "policy.cuda=false" in ended.err
    assert "Traceback" not in ended.said
    assert not ended.run_dir.exists()


@on_gpu
@pytest.mark.parametrize(
    "name", ["memory_len_r2d2", "pendulum_sac", "cartpole_impala", "cartpole_ppo", "cartpole_dqn"]
)
def test_algorithms_reach_the_scores_of_their_configurations(start: Start, name: str) -> None:
    ended = start(CONFIGS / f"{name}.yaml", CUDA).wait()
    ended.check(0, "done")
    assert "solved: stop value reached" in ended.out
    assert [place["gpu"] for place in ended.run["placement"]] == ["", *visible_gpus(os.environ)[:1],
                                                                 "", ""]  # fmt: skip


@on_gpu
def test_the_same_seed_makes_the_same_weights_again(start: Start) -> None:
    settings = (CUDA, *ENDLESS, max_train_iter(300), "system.deterministic=true")
    ended = [start(CARTPOLE, *settings).wait() for _ in range(2)]
    weights = []
    for run in ended:
        run.check(0, "done")
        weights.append(load_file(run.run_dir / "policies" / "latest.safetensors"))
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@on_gpu
@pytest.mark.parametrize("is_first", [True, False], ids=["to a CPU", "to a GPU"])
def test_a_run_goes_on_elsewhere(start: Start, resume: Start, is_first: bool) -> None:
    before, after = (f"policy.cuda={cuda}" for cuda in (is_first, not is_first))
    goal = 300
    job = start(CARTPOLE, before, *ENDLESS, max_train_iter(goal))
    job.wait().check(0, "done")
    ended = resume(job.run_dir, after, max_train_iter(2 * goal)).wait()
    ended.check(0, "done")
    assert "  resumed      snapshot_" in ended.out
    assert ended.run["figures"]["train_iter"] >= 2 * goal
    latest = read_policy(job.run_dir / "policies" / "latest.safetensors")
    assert latest.version == ended.run["figures"]["train_iter"]
    assert hpcdi("eval", job.run_dir, "--json", "--episodes", "2").code == 0


@on_gpu
def test_learners_that_share_a_gpu_are_equal_and_a_death_ends_the_run_which_is_resumed(
    start: Start, resume: Start, tmp_path: Path
) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    settings = (
        CUDA, *ENDLESS, TWO_LEARNERS, ONE_COLLECTOR, "system.snapshot_s=1",
        "policy.type=watched_dqn", "policy.import_names=[fakes.planted_policies]",
    )  # fmt: skip
    variables = {"WATCHED": str(watched), "CUDA_VISIBLE_DEVICES": visible_gpus(os.environ)[0]}
    job = start(CARTPOLE, *settings, variables=variables)
    steps = [watched / f"steps{learner}" for learner in range(2)]
    job.until(lambda: all(path.exists() for path in steps))
    job.until(lambda: min(len(path.read_text().split()) for path in steps) > 200)
    job.kill_rank(2)
    killed = time.monotonic()
    ended = job.wait()
    assert time.monotonic() - killed < ENDS_WITHIN_S
    ended.check(85, "stopped")
    assert "learners on GPUs cannot form their group anew" in ended.said
    first, second = (path.read_text().split()[:-1] for path in steps)  # the last one may be cut
    both = min(len(first), len(second))
    assert both >= 199
    assert first[:both] == second[:both], "bit-equal before the first step and after each"
    assert len(set(first)) == len(first), "each step changes the parameters"
    learnt = len(logged(job.run_dir, 1, '"scalars"'))
    again = resume(job.run_dir, variables=variables)
    again.until(lambda: len(logged(job.run_dir, 1, '"scalars"')) > learnt)
    again.send_signal(signal.SIGTERM)
    again.wait().check(85, "stopped")


@on_gpu
def test_the_doctor_tries_the_gpu_and_the_plan_names_it(
    tmp_path: Path, started: list[Running]
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    doctor = hpcdi("doctor", folder, "--cuda", "-n", "3")
    rows = {line[:14].strip(): line[14:].strip() for line in doctor.out.splitlines()}
    assert rows["gpus"].startswith("ok"), doctor.out
    assert "NVIDIA" in rows["gpus"]
    assert rows["nccl"].startswith("ok"), doctor.out
    blind = hpcdi("doctor", folder, "--cuda", "-n", "3", variables=BLIND)
    assert blind.code == 1
    assert "no rank sees a CUDA device" in blind.out
    assert " cuda:0 " in hpcdi("plan", CARTPOLE, CUDA).out


@on_gpu
def test_ranks_of_solvers_compute_on_the_gpu_that_no_learner_uses(start: Start) -> None:
    rods = (
        "env.env_id=fakes.gpu_solver:Rod", "env.kwargs={}", "env.spares=0", "env.gpus_per_rank=1",
    )  # fmt: skip
    gpu = visible_gpus(os.environ)[0]
    config = TESTS / "fakes" / "python_solvers.yaml"
    ended = start(config, *rods, variables={"CUDA_VISIBLE_DEVICES": gpu}).wait()
    ended.check(0, "done")
    rows = 0
    for path in (ended.run_dir / "data").rglob("*.h5"):
        with h5py.File(path) as shard:
            seen = shard["observation"][:]
            for at, size in zip(shard["item_start"][:], shard["item_len"][:], strict=True):
                np.testing.assert_array_equal(seen[at : at + size, 1:], 1)
                rows += size
    assert rows >= 500
    taken = start(config, *rods, CUDA, variables={"CUDA_VISIBLE_DEVICES": gpu}).wait()
    assert taken.code not in (0, 85), taken.said
    assert "env.gpus_per_rank is 1, and of 1 GPU on host" in taken.said
