"""The look ahead: its numbers must be those of the run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fakes.spaces import simple_spaces
from hpcdi import cli
from hpcdi.commands.plan import plan
from hpcdi.commands.quotas import Quota
from hpcdi.config.fields import replaced
from hpcdi.config.schema import ExperimentConfig
from hpcdi.env.create import create_env_manager
from hpcdi.errors import EXIT_USAGE, LaunchError
from hpcdi.policy.base import actor_of
from hpcdi.policy.create import create_policy
from hpcdi.roles.collector.loop import policy_loop
from hpcdi.run.experiment import load_experiment
from hpcdi.run.sizes import does_not_fit, memory_of, row_size
from hpcdi.store.block import Block, row_bytes
from hpcdi.store.frames import share_frames
from hpcdi.types import Spaces
from hpcdi.utils.metrics import human_bytes

CONFIG = "configs/cartpole_dqn.yaml"
COUNTING = ("env.env_id=hpcdi/Count-v0", "env.import_names=[hpcdi.env.toy]")
MiB = 1 << 20


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(request.config.rootpath)


def experiment(*overrides: str) -> tuple[ExperimentConfig, Spaces]:
    compiled, spaces = load_experiment(CONFIG, overrides)
    return compiled.config, spaces


def table(lines: list[str]) -> list[list[str]]:
    """The rows of the ranks' table, cells apart."""
    return [re.split(r"\s{2,}", line.strip()) for line in lines if re.match(r"\s*\d+  ", line)]


def collected_block(config: Any) -> Block:
    """A block made as a collector makes it."""
    policy = create_policy(config.policy, ["collect"])
    envs = create_env_manager(config.env, evaluate=False, seed=np.random.SeedSequence(0))
    with envs:
        envs.launch()
        actor = actor_of(policy.collect_mode)
        loop = policy_loop(envs, actor, config.policy.collect.n_sample)
        while not loop.must_cut:
            loop.once({"eps": 1.0})
        segment = loop.cut(0)
    assert segment is not None
    segment = share_frames(segment, config.policy.other.replay_buffer.frames)
    return Block(dict(segment.columns), segment.items, {}, segment.views, segment.tail_rows)


@pytest.mark.parametrize(
    "overrides",
    [
        (*COUNTING, "env.kwargs.length=1000"),
        (*COUNTING, "env.kwargs.length=1000", "policy.collect.n_sample=7"),
        ("env.env_id=Acrobot-v1",),
    ],
)
def test_a_stored_transition_has_the_size_that_is_foretold(overrides: tuple[str, ...]) -> None:
    config, spaces = experiment(*overrides)
    block = collected_block(config)
    stored = row_bytes(block.columns) * block.rows / block.transitions
    assert row_size(config, spaces) == round(stored)


@pytest.mark.parametrize(
    ("shape", "action_bytes"), [((), 4), ((1,), 4), ((6,), 24), ((2, 3), 24), ((4, 0), 0)]
)
def test_continuous_actions_are_as_large_as_their_shape(
    shape: tuple[int, ...], action_bytes: int
) -> None:
    config, spaces = experiment("policy.collect.n_sample=1000")
    discrete = row_size(config, spaces)
    (seen,) = spaces.observation
    continuous = simple_spaces(seen.shape, seen.dtype, None, shape)
    assert row_size(config, continuous) - discrete == action_bytes - 8


def test_frames_that_are_stored_once_are_foretold_nearly() -> None:
    """An episode's first frames are equal here, so that a little less is stored."""
    overrides = (
        "env.env_id=hpcdi/Stacked-v0", "env.import_names=[fakes.environments]",
        "env.kwargs.base=Acrobot-v1", "policy.other.replay_buffer.frames=[observation]",
    )  # fmt: skip
    config, spaces = experiment(*overrides)
    block = collected_block(config)
    stored = row_bytes(block.columns) * block.rows / block.transitions
    assert stored <= row_size(config, spaces) <= 1.15 * stored


def test_every_rank_has_its_line() -> None:
    lines = plan(*experiment("env.collector_env_num=3"), 5)
    rows = table(lines)
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("0", "coordinator", "-"),
        ("1", "learner", "-"),
        ("2", "collector", "3"),
        ("3", "collector", "3"),
        ("4", "collector", "3"),
    ]
    assert {row[2] for row in rows} == {"cpu"}
    assert lines[0].startswith("cartpole_dqn: 5 ranks on ")


def test_the_learner_of_a_cuda_policy_has_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for shown, warned in (("0", False), ("", True)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        lines = plan(*experiment("policy.cuda=true"), 3)
        assert [row[2] for row in table(lines)] == ["cpu", "cuda:0", "cpu"]
        assert ("this host shows no GPU: no run starts here" in lines[-1]) == warned


def test_learners_that_outnumber_the_gpus_of_this_host_share_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    lines = plan(*experiment("policy.learn.learner.learner_num=3", "policy.cuda=true"), 5)
    assert [row[2] for row in table(lines)[1:4]] == ["cuda:0", "cuda:1", "cuda:0"]
    assert "3 learners share 2 GPUs of this host" in lines[-1]


def test_several_learners_have_a_device_and_a_part_of_the_buffer_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    overrides = ("policy.learn.learner.learner_num=3", "policy.cuda=true")
    config, spaces = experiment(*overrides)
    rows = table(plan(config, spaces, 6))
    assert [row[1] for row in rows] == ["coordinator", *["learner"] * 3, *["collector"] * 2]
    assert [row[2] for row in rows] == ["cpu", "cuda:0", "cuda:1", "cuda:2", "cpu", "cpu"]
    row_bytes = row_size(config, spaces)
    # 150,000 items in three parts; a ring has 1.25 rows an item and room for two blocks
    block = 150_000 // 3 // 4
    ring = (50_000 * 5 // 4 + 2 * block) * row_bytes
    assert memory_of("learner", config, row_bytes) == ring
    assert {row[5] for row in rows[1:4]} == {human_bytes(ring)}
    alone, _ = experiment("policy.cuda=true")
    assert memory_of("learner", alone, row_bytes) == 3 * ring


def test_memory_follows_the_buffer_and_the_blocks() -> None:
    """40 bytes a row: the ring has 1.25 rows an item and room for two blocks."""
    config, _ = experiment("policy.other.replay_buffer.replay_buffer_size=100000")
    full_block = 4 * MiB // 40
    assert full_block > 100_000 // 4  # so a quarter of the buffer is what counts
    assert memory_of("learner", config, 40) == (125_000 + 2 * 25_000) * 40
    assert memory_of("collector", config, 40) == 6 * 25_000 * 40
    assert memory_of("coordinator", config, 40) == memory_of("coordinator", config, 4000)
    config, _ = experiment("system.storage.block_bytes=40000")
    assert memory_of("collector", config, 40) == 6 * 40_000


def test_memory_follows_the_rows_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 of 80 transitions and a last row: the plan named a twentieth of what the learner takes."""
    size = "policy.other.replay_buffer.replay_buffer_size=4000"
    config, spaces = experiment("policy.type=r2d2", "policy.collect.n_sample=80", size)
    assert memory_of("learner", config, 40) == (int(4_000 * 20.3) + 2 * 1_000) * 40
    monkeypatch.setattr("hpcdi.run.sizes.free_bytes", lambda: 4 << 20)
    rows = row_size(config, spaces)
    (problem,) = does_not_fit(config, spaces)
    assert f"is 4,000: 4,000 sequences of {human_bytes(20.25 * rows)} take " in problem.message
    assert f"{int((4 << 20) / (40.5 * rows)):,} would take half of that" in problem.message


@pytest.mark.parametrize(
    ("overrides", "blocks_per_s"),
    [
        ((), "2.7"),  # two collectors, a block each 0.75 s
        (("system.storage.seal_seconds=10",), "1.1"),  # the block is full before
        # a block is at most a quarter of the replay buffer: 1000 rows, 20 of them a second
        (("policy.other.replay_buffer.replay_buffer_size=4000",), "40.0"),
        (("system.storage.block_bytes=4096",), "404"),
    ],
)
def test_blocks_a_second(overrides: tuple[str, ...], blocks_per_s: str) -> None:
    text = "\n".join(plan(*experiment(*overrides), 4))
    assert f"about {blocks_per_s}" in text
    assert ("load a cluster's file system" in text) == (float(blocks_per_s) > 250)


def test_files_of_a_job_beside_those_that_can_still_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, spaces = experiment()
    an_hour = 3600 * 20_000 * row_size(config, spaces) / (64 * MiB)
    text = "\n".join(plan(config, spaces, 4))
    assert f"about {an_hour:.0f} shards an hour of each collector, " in text
    assert f"{2 * an_hour:.0f} in 01:00:00 (slurm.time)" in text
    large = ("system.storage.file_bytes=1000000000000", "slurm.time='10:00:00'")
    text = "\n".join(plan(*experiment(*large), 4))
    assert "about 1 shards an hour of each collector, 23 in 10:00:00" in text, "4096 blocks in each"
    large = ("system.storage.seal_seconds=100", "system.storage.block_bytes=100000000")
    slow = ("system.storage.file_bytes=1000000000000", "slurm.time='10:00:00'")
    text = "\n".join(plan(*experiment(*large, *slow), 4))
    assert "about 1 shards an hour of each collector, 20 in 10:00:00" in text, "one at least"
    assert "shards an hour of each collector, " not in "\n".join(
        plan(*experiment("system.storage.keep_data=false"), 4)
    )
    option = ("slurm.options=['--time=2:00:00']",)
    assert f"{4 * an_hour:.0f} in 2:00:00 (slurm.time)" in "\n".join(plan(*experiment(*option), 4))
    quotas = (Quota("user", "bytes", 1, 2), Quota("user", "files", 99_950, 100_000))
    monkeypatch.setattr("hpcdi.commands.plan.quotas_of", lambda *_: quotas)
    text = "\n".join(plan(*experiment(), 4))
    assert f"warning: about {an_hour:.0f} shards" in text
    assert "but only 50 files can still be made here: remove small files" in text


@pytest.mark.parametrize("time", ["UNLIMITED", "infinite", "-1", "0"])
def test_files_of_a_job_without_a_time_limit(time: str) -> None:
    text = "\n".join(plan(*experiment(f"slurm.time='{time}'"), 4))
    assert "shards an hour of each collector\n" in text


def test_what_becomes_of_the_shards() -> None:
    assert "shards are kept" in "\n".join(plan(*experiment(), 4))
    text = "\n".join(plan(*experiment("system.storage.keep_data=false"), 4))
    assert "shards are removed when neither buffer nor snapshots need them" in text


def test_more_ranks_than_cores_are_warned_of() -> None:
    assert "warning: 4000 ranks share" in "\n".join(plan(*experiment(), 4000))


def test_a_world_too_small_is_refused() -> None:
    with pytest.raises(LaunchError, match="1 missing") as caught:
        plan(*experiment(), 2)
    assert caught.value.exit_code == EXIT_USAGE


def test_each_player_that_learns_has_a_whole_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they shared one, a league was let begin that ran out of memory hours later."""
    compiled, spaces = load_experiment("configs/tictactoe_exploiter.yaml", ())
    both, players = compiled.config, {"main": "main"}
    changes = {"learn.learner.learner_num": 1, "other.commander.league.players": players}
    alone = replaced(both, {"policy": replaced(both.policy, changes)})
    rows = row_size(both, spaces)
    assert memory_of("learner", both, rows) == memory_of("learner", alone, rows)
    assert memory_of("coordinator", both, rows) == 2 * memory_of("coordinator", alone, rows)
    free = int(1.5 * memory_of("learner", both, rows))
    monkeypatch.setattr("hpcdi.run.sizes.free_bytes", lambda: free)
    assert does_not_fit(alone, spaces) == []
    assert "each of 2 learners" in does_not_fit(both, spaces)[0].message


@pytest.mark.parametrize("command", ["serial", "train"])
def test_a_buffer_that_does_not_fit_is_refused_with_numbers(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hpcdi.run.sizes.free_bytes", lambda: 4 << 20)
    assert cli.main([command, CONFIG]) == EXIT_USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "policy.other.replay_buffer.replay_buffer_size: is 150,000: 150,000 transitions" in said
    assert "4.0 MiB are free on this host; 51,150 would take half of that" in said
    short = ["policy.other.commander.max_env_step=1000"]
    assert does_not_fit(*experiment(*short)) == []
    with monkeypatch.context() as patch:
        patch.setattr("hpcdi.run.sizes.promised_bytes", lambda: 4 << 20)
        assert len(does_not_fit(*experiment(*short))) == 1, "a ring that is no array of this host"
    lines = plan(*experiment(), 4)
    assert any(line.startswith("warning: policy.other.replay_buffer") for line in lines)


def test_a_limit_of_steps_bounds_a_buffer_of_nothing_but_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, spaces = experiment("policy.other.commander.max_env_step=1000")
    steps = 1000 * row_size(short, spaces)
    copied = replaced(short, {"policy.hindsight.goals": 3})
    given = replaced(short, {"data": ("runs/another",)})
    for free, fits in ((steps, [short]), (4 * steps, [short, copied])):
        monkeypatch.setattr("hpcdi.run.sizes.free_bytes", lambda free=free: free)
        assert [each for each in (short, copied, given) if not does_not_fit(each, spaces)] == fits
