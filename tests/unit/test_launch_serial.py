"""`hpcdi serial` in this process: what a run leaves, how it goes on, how it ends."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from fakes.serial_runs import (
    BATTLE,
    DQN,
    LIMIT,
    PPO,
    ROOT,
    config_of,
    resume,
    serial,
    serial_run,
    train,
)
from hpcdi.cli import main
from hpcdi.comm.messages import BlockAdmitted, StopRequest
from hpcdi.config.load import load
from hpcdi.errors import ConfigError, LaunchError
from hpcdi.replay.manager import create_replay
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.roles.fault import tear
from hpcdi.run.resume import read_newest
from hpcdi.run.serial.run import SerialRun
from hpcdi.store.checkpoints import checkpoint_names, newest_checkpoint, open_checkpoint
from hpcdi.store.inspect import inspect
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import read_policy
from hpcdi.store.rows import RowStore
from hpcdi.store.shards import survey
from hpcdi.transport import open_transport

pytest.importorskip("pettingzoo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PettingZoo
    pytest.mark.usefixtures("same_process_state"),
]

FIVE = f"{LIMIT}.max_train_iter=5"
RUNS = {
    "dqn": ("cartpole_dqn", (*DQN, "policy.priority=true")),
    "ppo": ("cartpole_ppo", PPO),
    "battle": BATTLE,
}
ALL_RUNS = pytest.mark.parametrize(("name", "overrides"), RUNS.values(), ids=RUNS.keys())


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[int, Path]]:
    """Trains by the command's function, in a folder of its own; gives exit code and folder."""

    def start(name: str, *overrides: str) -> tuple[int, Path]:
        run_dir = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        config = str(ROOT / "configs" / f"{name}.yaml")
        return serial(config, overrides, str(run_dir)), run_dir

    return start


def iterations(run_dir: Path) -> list[int]:
    """Train iterations of all snapshots, oldest first; the first is of the run's beginning."""
    folder = run_dir / "snapshots"
    return [open_checkpoint(folder / name).facts["train_iter"] for name in checkpoint_names(folder)]


def facts_of(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "run.json").read_text()))


def same(one: Any, other: Any) -> bool:
    """Whether two trees of tensors, arrays and plain data are equal bit by bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)


def state_of(run: SerialRun) -> dict[str, Any]:
    """All that a run has come to."""
    pipeline = run.pipeline
    return {
        "agents": [agent.policy.state_dict() for agent in pipeline.parts.agents],
        "iterations": [agent.learner.train_iter for agent in pipeline.parts.agents],
        "buffers": [
            {} if run._config.policy.on_policy else agent.buffer.state_dict()
            for agent in pipeline.parts.agents
        ],
        "env_steps": pipeline.env_steps,
        "best": pipeline.parts.evaluator.best,
        "torch": torch.get_rng_state(),
    }


# ------------------------------------------------------------------------------- what a run leaves


def test_a_run_folder(go: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    code, run_dir = go("cartpole_dqn", *DQN, FIVE)
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    assert out.startswith("hpcdi ")
    for said in (
        "cartpole_dqn, one process with 4 environments", f"run folder   {run_dir}",
        "evaluation 1: mean return", "done: max_train_iter reached: 5 of 5",
        "5 train iterations", "best evaluation: ", "policies/best.safetensors",
    ):  # fmt: skip
        assert said in out, said
    assert "resume with" not in out
    facts = facts_of(run_dir)
    assert (facts["state"], facts["exit_code"]) == ("done", 0)
    assert facts["figures"]["train_iter"] == 5
    assert [place["role"] for place in facts["placement"]] == ["serial"]
    assert read_policy(run_dir / "policies" / "latest.safetensors").version == 5
    assert iterations(run_dir) == [0, 5]
    assert checkpoint_names(run_dir / "checkpoints") == ["ckpt_best", "ckpt_final"]
    report = inspect(run_dir)
    assert not report.errors, report.errors
    told = "\n".join(report.lines)
    for said in ("ckpt_final: checkpoint at train iteration", "snapshot at train iteration 5"):
        assert told.count(said) == 1
    assert "samples drawn per transition" in out
    assert {path.parent.parent.name for path in run_dir.rglob("data/*/*/*.h5")} == {"rank00000"}
    shards = [b for p in run_dir.rglob("data/*/*/*.h5") for _, b in survey(p, p.name).blocks]
    assert facts["figures"]["env_steps"] == sum(block.transitions for block in shards)
    assert facts["figures"]["episodes"] == sum(block.facts["episodes"] for block in shards)


def test_a_policy_that_is_good_enough_solves_it(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    code, _ = go("cartpole_dqn", *DQN, "env.stop_value=5", "policy.eval.every=2 iterations")
    assert code == 0
    assert "solved: stop value reached: mean return" in capfd.readouterr().out


# -------------------------------------------------------------------------- learners' checkpoints

HOOK = "policy.learn.learner.hook"


def test_checkpoints_of_learners_stand_apart_from_snapshots(tmp_path: Path) -> None:
    """In a battle each learner has its own; the best one is the first's, who is judged."""
    name, overrides = RUNS["battle"]
    more = (f"{HOOK}.save_ckpt_after_iter=2", "policy.learn.learner.keep_checkpoints=2")
    with serial_run(tmp_path, name, *overrides, f"{LIMIT}.max_train_iter=8", *more) as run:
        train(run)
        count = run.pipeline.train_iter
    last = [f"iteration_{number:09d}" for number in (count - 2, count)]
    assert checkpoint_names(tmp_path / "checkpoints") == ["ckpt_best", "ckpt_final", *last]
    assert checkpoint_names(tmp_path / "checkpoints1") == ["ckpt_final", *last]
    assert iterations(tmp_path) == [0, count]
    finals = [
        read_policy(tmp_path / folder / "ckpt_final" / "policy.safetensors")
        for folder in ("checkpoints", "checkpoints1")
    ]
    assert [final.version for final in finals] == [count, count]
    assert not same(finals[0].state_dict(), finals[1].state_dict())
    assert same(
        finals[0].state_dict(), read_policy(tmp_path / "policies/latest.safetensors").state_dict()
    )


def test_a_run_begins_with_a_checkpoint_and_its_restart_does_not(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    first, second = tmp_path / "first", tmp_path / "second"
    with serial_run(first, name, *overrides, FIVE) as run:
        train(run)
    load = f"{HOOK}.load_ckpt_before_run={first / 'checkpoints' / 'ckpt_final'}"
    settings = (load, "seed=9", "policy.eval.every=null", f"{LIMIT}.max_train_iter=7")
    with serial_run(second, name, *overrides, *settings) as run:
        train(run)
        evaluations = run.pipeline.evaluations
        assert run.pipeline.train_iter == 7
        before = state_of(run)
    assert evaluations[0].policy_version == 5, "it is the loaded policy that is evaluated first"
    more = f"{LIMIT}.max_train_iter=8"
    with serial_run(second, name, *overrides, load, "seed=9", more, restarts=1) as run:
        resume(run)
        assert same(before, state_of(run))
        train(run)
        assert run.pipeline.train_iter == 8


def test_a_checkpoint_that_is_not_there_is_told_before_a_folder_is_made(tmp_path: Path) -> None:
    config = str(ROOT / "configs" / "cartpole_dqn.yaml")
    with pytest.raises(ConfigError, match=rf"{HOOK}\.load_ckpt_before_run: there is no 'no/such'"):
        serial(config, (f"{HOOK}.load_ckpt_before_run=no/such",), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_network_ends_a_run_that_begins_with_it(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    capfd.readouterr()
    load = f"{HOOK}.load_ckpt_before_run={run_dir / 'checkpoints' / 'ckpt_best'}"
    code, other = go("cartpole_dqn", *DQN, load, "policy.model.encoder_hidden_size_list=[9]")
    err = capfd.readouterr().err
    assert code == 1
    assert "ckpt_best: it holds a policy of type 'dqn' that does not fit" in err
    assert facts_of(other)["state"] == "failed"


# -------------------------------------------------------------------------------------- repetition


@ALL_RUNS
def test_the_same_seed_is_the_same_run(
    tmp_path: Path, name: str, overrides: tuple[str, ...]
) -> None:
    states = []
    for number, seed in enumerate((3, 3, 4)):
        with serial_run(
            tmp_path / str(number), name, *overrides, FIVE, f"seed={seed}"
        ) as run:  # fmt: skip
            train(run)
            states.append({**state_of(run), "evaluations": run.figures()["evaluations"]})
    assert same(states[0], states[1])
    assert not same(states[0]["agents"], states[2]["agents"])
    paths = [tmp_path / str(number) / "policies" / "latest.safetensors" for number in range(3)]
    first, again, other = (read_policy(path).state_dict() for path in paths)
    assert same(first, again)
    assert not same(first, other)


def test_the_same_seed_is_the_same_run_of_a_foreign_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes torch's own random numbers, as others do."""
    foreign, states = str(ROOT / "tests" / "fakes" / "foreign_policy.yaml"), []
    for number, seed in enumerate((3, 3, 4)):
        torch.rand(number)
        with serial_run(tmp_path / str(number), foreign, FIVE, f"seed={seed}") as run:
            train(run)
            states.append(state_of(run)["agents"])
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


# ------------------------------------------------------------------------------------------ resume


@ALL_RUNS
def test_a_run_goes_on_where_it_was(tmp_path: Path, name: str, overrides: tuple[str, ...]) -> None:
    with serial_run(tmp_path, name, *overrides, FIVE) as run:
        train(run)
        before = state_of(run)
    assert before["iterations"][0] >= 5
    torch.manual_seed(99)
    more = f"{LIMIT}.max_train_iter=8"
    with serial_run(tmp_path, name, *overrides, more, restarts=1) as run:
        assert not same(before, state_of(run))
        said = resume(run)
        assert same(before, state_of(run))
        assert said.startswith("snapshot_000002: env step ")
        assert train(run).startswith("max_train_iter reached: ")
        after = state_of(run)
    shown = json.loads((tmp_path / "status.json").read_text())
    assert shown["phase"] == "finished"
    assert ("buffer" in shown) is (name != "cartpole_ppo")
    assert after["iterations"][0] >= 8
    assert after["env_steps"] > before["env_steps"]
    assert not same(before["agents"], after["agents"])


def items_of(buffer: Any) -> dict[str, Any]:
    """Columns of all items, priorities and policy versions, the oldest item first."""
    return {**buffer._ring.store.read_columns(buffer._ring.slots()), **marks_of(buffer)}


def marks_of(index: Any) -> dict[str, Any]:
    state = index.state_dict()
    ids = np.arange(state["ring"]["ids"]["first"], state["ring"]["ids"]["pushed"])
    return {**{name: state["index"][name] for name in ("mass", "made_at")}, "ids": ids}


def test_serial_and_train_read_each_other_s_buffer(tmp_path: Path) -> None:
    """The same transitions, ids and priorities, from the shards that a snapshot names."""
    small = "policy.other.replay_buffer.replay_buffer_size=300"  # the oldest items are gone
    blocks = "system.storage.block_bytes=4096"
    more = ("policy.priority=true", small, blocks, f"{LIMIT}.max_train_iter=12")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *more) as run:
        train(run)
        before = items_of(run.pipeline.parts.agents[0].buffer)
        config = run._config
    assert len(before["ids"]) == 300
    assert before["ids"][0] > 0
    resumed = read_newest(RunLayout(tmp_path))
    assert resumed is not None

    over_ranks = create_replay(config)
    over_ranks.load_state_dict(resumed.state["groups"]["main"]["replay"], resumed.published)
    transport, ring = open_transport(config.system, RunLayout(tmp_path)), None
    for rank, order in over_ranks.open(1):
        ring = ring or RowStore(order.ring_rows, views=order.shard.views)
        ring.write(order.first_row, transport.fetch(order.shard))
        over_ranks.admit(rank, BlockAdmitted(order.block_id, 0.0))
    assert ring is not None
    partition = over_ranks.partitions[1]
    there = marks_of(partition.buffer)
    there |= ring.gather(partition.state_dict()["rows"].astype(np.int64))
    assert {name for name in before if not same(before[name], there[name])} == set()

    state = over_ranks.state_dict()
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *more, restarts=1) as run:
        run.pipeline.parts.replay.load_state_dict(state, resumed.published)
        assert same(before, items_of(run.pipeline.parts.agents[0].buffer))

    slow = create_replay(config)  # its learner has read the first shard alone
    orders = slow.open(1)
    for ready in resumed.published.values():
        orders += slow.assign(ready)
    slow.admit(1, BlockAdmitted(orders[0][1].block_id, 0.0))
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *more, restarts=1) as run:
        run.pipeline.parts.replay.load_state_dict(slow.state_dict(), resumed.published)
        items = run.pipeline.parts.replay.figures().items
        assert items == 300, "unread shards are as good as new"


def test_blocks_that_are_torn_cost_their_items_and_later_ones_are_counted(tmp_path: Path) -> None:
    small = ("system.storage.block_bytes=4096",)
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *small, FIVE) as run:
        train(run)
        before = items_of(run.pipeline.parts.agents[0].buffer)
        steps = run.pipeline.env_steps
        run.pipeline.parts.data.collect(5, [{"eps": 1.0}])
        run.pipeline.parts.replay.flush()  # killed before the next snapshot
        later = run.pipeline.env_steps - steps
    resumed = read_newest(RunLayout(tmp_path))
    assert resumed is not None
    assert resumed.later == later > 0
    blocks = resumed.state["groups"]["main"]["replay"]["partitions"]["rank1"]["blocks"]
    lost = sorted(blocks, key=lambda block: block["first_id"])[1]
    tear(RunLayout(tmp_path).inside(lost["path"]), resumed.published[lost["path"]].shard)
    with serial_run(tmp_path, "cartpole_dqn", *DQN, *small, FIVE, restarts=1) as run:
        resume(run)
        assert run.pipeline.env_steps == steps + later
        buffer = run.pipeline.parts.agents[0].buffer
        assert buffer.count() == len(before["ids"]) + later - (lost["end_id"] - lost["first_id"])
        sample = buffer.sample_batch(50, 5)
        assert sample is not None, buffer.blocked
        drawn = sample.drawn.unique_ids
        assert not ((drawn >= lost["first_id"]) & (drawn < lost["end_id"])).any()


def test_a_restart_meets_other_random_numbers(tmp_path: Path) -> None:
    """Else it would collect again what it has collected before."""
    seen = []
    for restarts in (0, 1, 1):
        name, overrides = RUNS["dqn"]
        with serial_run(tmp_path / str(len(seen)), name, *overrides, restarts=restarts) as run:
            run.pipeline.parts.data.collect(0, [{"eps": 1.0}])
            buffer = run.pipeline.parts.agents[0].buffer
            seen.append(buffer.state_dict()["columns"] if "columns" in buffer.state_dict()
                        else buffer.state_dict())  # fmt: skip
    assert same(seen[1], seen[2])
    assert not same(seen[0], seen[1])


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    with serial_run(tmp_path, name, *overrides, FIVE) as run:
        train(run)
    with serial_run(tmp_path, name, *overrides, f"{LIMIT}.max_train_iter=9", restarts=1) as run:
        resume(run)
        train(run)
    assert iterations(tmp_path) == [5, 9]
    torn = tmp_path / "snapshots" / "snapshot_000003" / "learner.pt"
    torn.write_bytes(torn.read_bytes()[:-5])
    with serial_run(tmp_path, name, *overrides, f"{LIMIT}.max_train_iter=9", restarts=2) as run:
        assert resume(run).startswith("snapshot_000002: ")
        assert run.pipeline.train_iter == 5
        train(run)
    checkpoint, errors = newest_checkpoint(tmp_path / "snapshots")
    assert checkpoint is not None
    assert (checkpoint.facts["train_iter"], errors) == (9, [])


def test_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    with serial_run(tmp_path, name, *overrides, restarts=1):
        assert read_newest(RunLayout(tmp_path)) is None


def test_checkpoints_come_by_time(tmp_path: Path) -> None:
    name, overrides = RUNS["dqn"]
    keep = ("system.snapshot_s=1e-9", "system.keep_snapshots=3")
    many = f"{LIMIT}.max_train_iter=100"  # a snapshot begins once the one before is written
    with serial_run(tmp_path, name, *overrides, many, *keep) as run:
        train(run)
    found = iterations(tmp_path)
    assert len(found) == len(set(found)) == 3
    assert (found[-1], found) == (100, sorted(found))


def test_the_command_goes_on(go: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    left = run_dir / "snapshots" / ".snapshot_000006.tmp-elsewhere-1"
    left.mkdir()
    before = facts_of(run_dir)
    config = load(run_dir / "config.yaml").to_mapping()
    capfd.readouterr()
    assert main(["serial", "--resume", str(run_dir), f"{LIMIT}.max_train_iter=8"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    for said in (", restart 1", "resumed      snapshot_000002: env step", "8 train iter"):
        assert said in out, said
    after = facts_of(run_dir)
    assert (after["state"], after["restarts"]) == ("done", 1)
    assert after["figures"]["train_iter"] == 8
    assert after["started"] == before["started"]
    assert after["figures"]["env_steps"] > before["figures"]["env_steps"]
    assert not left.exists()
    config["policy"]["other"]["commander"]["max_train_iter"] = 8
    assert load(run_dir / "config.yaml").to_mapping() == config
    assert iterations(run_dir) == [5, 8]


def test_overrides_stand_before_or_after_resume(go: Callable[..., Any]) -> None:
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    for number, line in enumerate(
        (["a", "--resume", "r", "b"], ["--resume", "r", "a", "b"], ["a", "b", "--resume", "r"])
    ):
        words = {
            "a": f"{LIMIT}.max_train_iter={6 + number}", "b": "policy.learn.learning_rate=1e-4",
            "r": str(run_dir),
        }  # fmt: skip
        assert main(["serial", *(words.get(word, word) for word in line)]) == 0
        assert facts_of(run_dir)["figures"]["train_iter"] == 6 + number


@pytest.mark.parametrize("override", ["policy.lern.batch_size=3", "policy.learn.batch_size=none"])
def test_a_wrong_override_changes_nothing(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], override: str
) -> None:
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    before = (run_dir / "run.json").read_text()
    assert main(["serial", "--resume", str(run_dir), override]) == 2
    assert "has 1 problem" in capfd.readouterr().err
    assert (run_dir / "run.json").read_text() == before


def write_facts(run_dir: Path, **facts: Any) -> None:
    known = facts_of(run_dir) if (run_dir / "run.json").exists() else {}
    (run_dir / "run.json").write_text(json.dumps({**known, **facts}))


@pytest.mark.parametrize("held", ["nothing", "no folder", "text"])
def test_a_folder_that_is_no_run(tmp_path: Path, held: str) -> None:
    path = tmp_path / "run"
    if held != "no folder":
        path.mkdir()
    if held == "text":
        (path / "run.json").write_text("text")
    with pytest.raises(LaunchError, match="holds no run: --resume takes the run folder"):
        serial(None, resume=str(path))
    assert not (path / "log").exists()


def test_nothing_to_train(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="name an experiment's YAML file"):
        serial()


HOLD = """
import sys
from pathlib import Path
from hpcdi.run.run_lock import RunLock
from hpcdi.store.layout import RunLayout

with RunLock(RunLayout(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_run_that_is_still_running(go: Callable[..., Any]) -> None:
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    assert not (run_dir / "run.lock").exists()
    before = facts_of(run_dir)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout
        assert job.stdout.readline() == b"held\n"
        with pytest.raises(LaunchError, match=f"is in use: by process {job.pid} on host"):
            serial(None, resume=str(run_dir))
        assert facts_of(run_dir) == before
        job.kill()
    more = (f"{LIMIT}.max_train_iter=6",)
    assert serial(None, more, resume=str(run_dir)) == 0
    assert not (run_dir / "run.lock").exists()


def test_the_best_policy_stays_the_best_after_a_kill(tmp_path: Path) -> None:
    """The checkpoint that is gone on from may be older than the best policy."""
    with serial_run(tmp_path, "cartpole_dqn", *DQN, FIVE) as run:
        train(run)
        run.pipeline.parts.evaluator.best = 321.0
        run._keep_best("ckpt_best.pth.tar")
    with serial_run(tmp_path, "cartpole_dqn", *DQN, FIVE, restarts=1) as run:
        resume(run)
        assert run.pipeline.parts.evaluator.best == 321.0
        assert run.pipeline.evaluated_at == 5


def test_a_run_whose_process_has_died(go: Callable[..., Any]) -> None:
    """Killed, it could not say so; nor can a process on another host be asked."""
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    more = (f"{LIMIT}.max_train_iter=6",)
    # process 1 is not ours: numbers come again
    for said in ({"pid": 2**22 + 1}, {"pid": 1}, {"pid": os.getppid(), "host": "elsewhere"}):
        write_facts(run_dir, state="running", **{"host": platform.node(), **said})
        assert serial(None, more, resume=str(run_dir)) == 0
    facts = facts_of(run_dir)
    assert (facts["restarts"], facts["pid"], facts["host"]) == (3, os.getpid(), platform.node())


def test_a_run_without_a_checkpoint_stays_what_it_was(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    for path in (run_dir / "snapshots").rglob("manifest.json"):
        path.unlink()
    before = facts_of(run_dir)
    capfd.readouterr()
    for _ in range(2):
        assert main(["serial", "--resume", str(run_dir)]) == 1
        err = capfd.readouterr().err
        assert err.count("there is no whole snapshot to resume from") == 1
        assert "Traceback" not in err
        assert facts_of(run_dir) == before


def test_a_checkpoint_of_another_network_is_refused(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    before = facts_of(run_dir)
    capfd.readouterr()
    other = "policy.model.encoder_hidden_size_list=[9]"
    assert main(["serial", "--resume", str(run_dir), other]) == 1
    err = capfd.readouterr().err
    assert "snapshots/snapshot_000002" in err
    assert "does not fit the present one" in err
    assert "Traceback" not in err
    assert facts_of(run_dir) == before
    more = f"{LIMIT}.max_train_iter=6"
    assert main(["serial", "--resume", str(run_dir), more]) == 0, "as it was, it goes on"
    assert facts_of(run_dir)["restarts"] == 1


def test_a_taken_folder(go: Callable[..., Any]) -> None:
    _, run_dir = go("cartpole_dqn", *DQN, FIVE)
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    config = str(ROOT / "configs" / "cartpole_dqn.yaml")
    with pytest.raises(LaunchError, match="holds another run"):
        serial(config, (), str(run_dir))
    assert before == {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}


# ---------------------------------------------------------------------------------------- its ends


@pytest.mark.parametrize("random", [0, 10**6])
def test_a_stop_leaves_a_checkpoint(tmp_path: Path, random: int) -> None:
    """Also while it begins at random; the word comes once."""
    config, spaces = config_of("cartpole_dqn", *DQN, f"policy.random_collect_size={random}")
    words: list[StopRequest | None] = [None, None, StopRequest("received SIGINT", 130)]
    with SerialRun(
        config, spaces, RunLayout(tmp_path), 0, lambda: words.pop(0) if words else None
    ) as run:
        assert run.train() == Outcome("stopped", "received SIGINT", 130)
        assert run.pipeline.train_iter == (0 if random else 2)
        env_steps = run.pipeline.env_steps
    with SerialRun(config, spaces, RunLayout(tmp_path), 1) as run:
        resume(run)
        assert run.pipeline.env_steps == env_steps
        assert run.pipeline.parts.agents[0].buffer.count() == env_steps


class BrokenEnv(gymnasium.Env[Any, Any]):
    """Every step raises."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        raise ValueError("planted: no such step")


@pytest.fixture
def broken_env() -> Iterator[str]:
    gymnasium.register("test/Broken-v0", entry_point=BrokenEnv)
    yield "test/Broken-v0"
    gymnasium.registry.pop("test/Broken-v0")


def test_an_environment_that_fails_ends_the_run(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], broken_env: str
) -> None:
    code, run_dir = go(
        "cartpole_dqn", *DQN, f"env.env_id={broken_env}", "env.vectorization=sync"
    )  # fmt: skip
    out, err = capfd.readouterr()
    assert code == 1, out + err
    facts = facts_of(run_dir)
    assert (facts["state"], facts["exit_code"]) == ("failed", 1)
    often = "EnvError: an environment failed stepping, 6 times in a row: ValueError: planted: no"
    assert facts["reason"].startswith(often)
    assert err.count(f"FAILED: {often}") == 1
    assert err.count("all 4 are re-created") == 1, "shown once"
    said = "an environment failed (ValueError: planted: no such step)"
    assert f"warning: 5 times: {said}\n" in err
    log = (run_dir / "log" / "rank00000.jsonl").read_text()
    assert log.count("all 4 are re-created") == 5
    assert err.count("Traceback (most recent call last):") == 1


def test_an_environment_that_cannot_even_be_reset_ends_the_run_and_the_process(
    tmp_path: Path,
) -> None:
    """It printed FAILED, and then the process never ended."""
    program = "import fakes.unresettable; from hpcdi.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "serial", str(ROOT / "configs" / "cartpole_dqn.yaml"),
         "env.env_id=test/Unresettable-v0", "env.vectorization=sync", "env.manager.max_retry=1",
         "--run-dir", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "FAILED: EnvError" in done.stderr


def test_a_bug_ends_the_run_with_its_traceback_once(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(self: Any, *_args: Any) -> Any:
        raise RuntimeError("planted in the policy")

    monkeypatch.setattr("hpcdi.policy.dqn.DQNPolicy.act", act)
    code, run_dir = go("cartpole_dqn", *DQN)
    _, err = capfd.readouterr()
    assert code == 1
    assert err.count("Traceback (most recent call last):") == 1
    assert err.count("FAILED: RuntimeError: planted in the policy") == 1
    facts = facts_of(run_dir)
    assert (facts["state"], facts["reason"]) == ("failed", "RuntimeError: planted in the policy")
    log = (run_dir / "log" / "rank00000.jsonl").read_text()
    assert "planted in the policy" in log


def test_a_run_that_fails_before_its_first_snapshot_goes_on_with_what_it_has_collected(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(self: Any, *_args: Any) -> Any:
        raise RuntimeError("planted in the policy")

    with monkeypatch.context() as patched:
        patched.setattr("hpcdi.policy.dqn.DQNPolicy.update", update)
        code, run_dir = go("cartpole_dqn", *DQN, FIVE)
    steps = facts_of(run_dir)["figures"]["env_steps"]
    assert code == 1
    assert steps >= 32
    assert main(["serial", "--resume", str(run_dir)]) == 0
    said = f"snapshot_000001: env step 0, train iteration 0, 1 blocks; {steps} transitions"
    assert said in capfd.readouterr().out
    figures = facts_of(run_dir)["figures"]
    assert (figures["train_iter"], figures["env_steps"] > steps) == (5, True)


def test_a_full_disk_is_told_and_does_not_end_the_run(
    go: Callable[..., Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_state(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcdi.roles.coordinator.snapshots.save_state", save_state)
    code, run_dir = go("cartpole_dqn", *DQN, FIVE, "system.snapshot_s=1e-9")
    _, err = capfd.readouterr()
    assert code == 0
    assert err.count("snapshot_000001 could not be written: ") == 1
    assert "No space left on device" in err
    assert facts_of(run_dir)["state"] == "done"
    assert list((run_dir / "snapshots").iterdir()) == []
    assert (run_dir / "policies" / "best.safetensors").exists()


def test_wrong_settings_are_told_before_a_folder_is_made(tmp_path: Path) -> None:
    config = str(ROOT / "configs" / "cartpole_dqn.yaml")
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        serial(config, ("sead=1",), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
