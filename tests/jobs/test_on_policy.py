"""On-policy: data are of the policy that is learnt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PPO, Running

from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import survey

pytestmark = pytest.mark.job
Start = Callable[..., Running]


@pytest.mark.slow
def test_ppo_solves_cartpole_by_batches_that_its_present_policy_made(
    start: Start, tmp_path: Path
) -> None:
    ended = start(
        PPO, "-n", "4", "policy.type=watching_ppo", "policy.import_names=[fakes.watching_ppo]",
        variables={"WATCHED_AT": str(tmp_path / "batches")},
    ).wait()  # fmt: skip
    ended.check(0, "done")
    assert "solved: stop value reached" in ended.out
    assert ended.err == ""
    lines = [line.split() for line in (tmp_path / "batches").read_text().splitlines()]
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
