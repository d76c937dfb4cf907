"""On-policy: two learners are equal to the bit, and data are of the policy that is learnt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PPO, TWO_LEARNERS, Ended, Running

from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import survey

pytestmark = pytest.mark.job
Start = Callable[..., Running]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What watched policies write to."""
    folder = tmp_path / "watched"
    folder.mkdir()
    return folder


def watch(policy: str) -> list[str]:
    return [f"policy.type={policy}", "policy.import_names=[fakes.planted_policies]"]


def check_steps(ended: Ended, folder: Path) -> None:
    """Both have made the same steps, have ended at the same iteration; the first one wrote all."""
    first, second = ((folder / f"steps{learner}").read_text().split() for learner in range(2))
    assert len(set(first)) == len(first) > 20, "each step changes the parameters"
    assert first == second, "bit-equal before the first step and after every one"
    iterations = {ended.run["figures"]["ranks"][rank]["train_iter"] for rank in ("1", "2")}
    assert iterations == {ended.run["figures"]["train_iter"]}
    written = [
        {Path(line).parent.name for line in (folder / f"files{learner}").read_text().split()}
        if (folder / f"files{learner}").exists()
        else set()
        for learner in range(2)
    ]
    assert written[0] >= {"policies", "checkpoints"}
    assert not written[1] & {"policies", "checkpoints"}


@pytest.mark.slow
def test_two_learners_of_ppo(start: Start, folder: Path) -> None:
    ended = start(
        PPO, TWO_LEARNERS, "policy.collect.collector.collector_num=2", *watch("watched_ppo"),
        "env.stop_value=1e9", "policy.other.commander.max_train_iter=6",
        variables={"WATCHED": str(folder)},
    ).wait()  # fmt: skip
    ended.check(0, "done")
    assert "done: max_train_iter reached" in ended.out
    assert ended.run["figures"]["train_iter"] >= 6
    check_steps(ended, folder)


def test_ppo_solves_cartpole_by_batches_that_its_present_policy_made(
    start: Start, folder: Path
) -> None:
    ended = start(
        PPO, "-n", "4", "policy.type=watching_ppo", "policy.import_names=[fakes.watching_ppo]",
        variables={"WATCHED_AT": str(folder / "batches")},
    ).wait()  # fmt: skip
    ended.check(0, "done")
    assert "solved: stop value reached" in ended.out
    assert ended.err == ""
    lines = [line.split() for line in (folder / "batches").read_text().splitlines()]
    sizes = [int(count) for count, _ in lines]
    assert max(float(largest) for _, largest in lines) < 1e-4, lines
    assert 0 <= len(lines) - ended.run["figures"]["train_iter"] <= 1
    full = 2 * 64 * 8
    assert max(sizes) <= full
    # where no evaluation takes a collector away, or cuts its piece short, a batch is of all
    evaluations = ended.out.count("evaluation ")
    assert sum(count > 0.9 * full for count in sizes) >= len(sizes) - 4 * (evaluations + 1)
    versions = policy_versions(ended.run_dir)
    assert len(versions) == 2
    for own in versions.values():
        assert own == sorted(own)
        # one by each; a second one where an evaluation has cut the first short
        assert len(own) - len(set(own)) <= evaluations + 1


def policy_versions(run_dir: Path) -> dict[str, list[int]]:
    """Policy versions of each collector's blocks, in order; each block has one."""
    versions = defaultdict(list)
    for path, (rank, _) in RunLayout(run_dir).shard_numbers().items():
        for _, block in survey(run_dir / path, path).blocks:
            (version,) = set(block.items["policy_version"].tolist())
            versions[f"rank{rank:05d}"].append(version)
    return dict(versions)
