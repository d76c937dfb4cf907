"""Fault injection: who suffers faults, when, and that nobody has them by accident."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcdi.config.compiled import compile_config
from hpcdi.config.load import load
from hpcdi.config.schema import FaultConfig, check_faults, check_over_ranks, check_serial
from hpcdi.config.words import dump
from hpcdi.errors import ConfigError, ShardError
from hpcdi.roles import fault
from hpcdi.roles.fault import FAULTS, Faults, InjectedFault, hang_environment, tear
from hpcdi.store.atomic import pretend_full, write_text
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import Appender, read_blocks
from hpcdi.types import ITEM_DTYPE

REPOSITORY = Path(__file__).parent.parent.parent


def compiled(fault: Any) -> Any:
    return compile_config({"env": {"env_id": "CartPole-v1"}, "fault": fault}).config


def armed(
    *faults: FaultConfig, rank: int = 2, role: str = "collector", restarts: int = 0
) -> Faults:
    made = Faults()
    made.arm(faults, rank, role, restarts)
    return made


def raises(**given: Any) -> FaultConfig:
    return FaultConfig(kind="raise", **given)


# ------------------------------------------------------------------------------------ configuration


def test_there_are_none_by_default() -> None:
    assert compile_config({"env": {"env_id": "CartPole-v1"}}).config.fault == ()
    FAULTS.advance(10**9, "learner")
    FAULTS.reach(10**9, "learner")


def test_a_run_without_any_can_be_given_one(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump(compile_config({"env": {"env_id": "CartPole-v1"}}).to_mapping()))
    one = load(path, ["fault.kind=raise", "fault.rank=1", "fault.at_step=5"]).config.fault
    assert one == (raises(rank=1, at_step=5),)
    several = "fault=[{kind: kill, rank: 2, at_step: 5}, {kind: raise, rank: 1, after_s: 1}]"
    assert len(load(path, [several]).config.fault) == 2
    assert load(path, ["fault=[]"]).config.fault == load(path).config.fault == ()
    path.write_text(dump(load(path, [several]).to_mapping()))
    with pytest.raises(ConfigError, match="fault is a list; give it whole"):
        load(path, ["fault.kind=raise"])


def test_one_is_a_mapping_and_several_are_a_list() -> None:
    one = {"kind": "kill", "rank": 2, "at_step": 1000}
    other = {"kind": "enospc", "role": "collector", "after_s": 2.5, "seconds": 4, "every": 30}
    assert compiled(one).fault == (FaultConfig("kill", rank=2, at_step=1000),)
    both = compiled([one, other])
    assert both.fault[1] == FaultConfig(
        "enospc", role="collector", after_s=2.5, seconds=4.0, every=30.0
    )
    again = compile_config({"env": {"env_id": "CartPole-v1"}, "fault": [one, other]})
    assert again.to_mapping()["fault"][0]["rank"] == 2


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"kind": "explode", "rank": 1, "at_step": 1}, "fault.kind: must be one of 'kill'"),
        ({"rank": 1}, "fault.at_step: name either at_step or after_s"),
        ({"rank": 1, "at_step": 1, "after_s": 1}, "fault.at_step: name either"),
        ({"at_step": 1}, "fault.rank: name either a rank or a role"),
        ({"rank": 1, "role": "learner", "at_step": 1}, "fault.rank: name either"),
        ({"role": "worker", "at_step": 1}, "fault.role: must be one of None, 'coordinator'"),
        ({"kind": "torn_shard", "role": "learner", "at_step": 1}, "is for collectors, not for a"),
        ({"rank": 1, "at_stp": 1}, "did you mean 'at_step'"),
        ([{"rank": 1, "at_step": 1}, {"rank": 1}], r"fault\[1\].at_step: name either"),
        ("kill", "fault: must be a mapping of settings"),
    ],
)
def test_what_is_wrong_is_told(fault: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        compiled(fault)


def test_they_are_refused_where_nobody_has_allowed_them() -> None:
    config = compiled({"rank": 2, "at_step": 1})
    (problem,) = check_faults(config, {})
    assert problem.path == "fault"
    assert "HPCDI_ALLOW_FAULTS=1" in problem.message
    assert "fault=[]" in problem.message, "a run's config.yaml has it, too: --resume needs a word"
    assert check_faults(config, {"CI": "true"}) == []
    assert check_faults(config, {"HPCDI_ALLOW_FAULTS": "1"}) == []
    assert check_faults(compiled([]), {}) == []


def test_the_guides_fault_leaves_a_collector() -> None:
    """It killed all of them, by their role: the run ended where it was said to go on."""
    guide = (REPOSITORY / "guides" / "FAULTS.md").read_text()
    (command,) = re.findall(r"^HPCDI_ALLOW_FAULTS=1 hpcdi train (.*)$", guide, flags=re.MULTILINE)
    path, *overrides = shlex.split(command)
    config = load(REPOSITORY / path, overrides).config
    ranks = range(2, 2 + config.policy.collect.collector.collector_num)
    (planned,) = config.fault
    dead = [rank for rank in ranks if rank == planned.rank or planned.role == "collector"]
    assert 0 < len(dead) < len(ranks)


@pytest.mark.usefixtures("same_process_state")
def test_the_command_refuses_them(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CI", "HPCDI_ALLOW_FAULTS"):
        monkeypatch.delenv(name, raising=False)
    given = ("fault.kind=raise", "fault.rank=0", "fault.at_step=1", "--run-dir")
    config = REPOSITORY / "configs" / "cartpole_dqn.yaml"
    told = refused("serial", config, *given, str(tmp_path / "run"))
    assert "fault: kills or disturbs ranks on purpose" in told
    assert not (tmp_path / "run").exists()


def test_who_cannot_have_them_is_told() -> None:
    assert check_serial(compiled({"role": "learner", "at_step": 1}))
    assert check_serial(compiled({"kind": "env_hang", "rank": 0, "at_step": 1}))
    assert not check_serial(compiled({"role": "serial", "at_step": 1}))
    assert check_over_ranks(compiled({"role": "serial", "at_step": 1}))


# ----------------------------------------------------------------------------------------- striking


@pytest.mark.parametrize(
    ("fault", "strikes"),
    [
        ({"rank": 2}, True),
        ({"rank": 3}, False),
        ({"role": "collector"}, True),
        ({"role": "learner"}, False),
        ({"rank": 2, "restart": 1}, False),
    ],
)
def test_they_strike_those_that_are_named(fault: dict[str, Any], strikes: bool) -> None:
    faults = armed(raises(at_step=10, **fault))
    faults.advance(9, "collector")
    if strikes:
        with pytest.raises(InjectedFault, match="injected fault, at step 12"):
            faults.advance(3, "collector")
    faults.advance(10**6, "collector")


def test_after_a_restart_only_those_of_the_restart() -> None:
    one, other = raises(rank=2, at_step=1), raises(rank=2, at_step=5, restart=2)
    faults = armed(one, other, restarts=2)
    faults.reach(4, "collector")
    with pytest.raises(InjectedFault):
        faults.reach(5, "collector")


def test_only_steps_of_the_role_count() -> None:
    """Where roles share a process, those of one of them."""
    faults = Faults()
    faults.arm([raises(role="serial", at_step=5)], 0, "serial", 0, counts="collector")
    faults.reach(10**9, "learner")
    faults.reach(10**9, "coordinator")
    with pytest.raises(InjectedFault, match="at step 6"):
        faults.advance(6, "collector")


def test_again_and_again() -> None:
    faults = armed(raises(rank=2, at_step=10, every=5))
    struck = []
    for step in range(31):
        try:
            faults.reach(step, "collector")
        except InjectedFault:
            struck.append(step)
    assert struck == [10, 15, 20, 25, 30]


def test_by_the_clock(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(fault, "time", SimpleNamespace(monotonic=lambda: now[0]))
    faults = armed(raises(rank=2, after_s=5.0))
    now[0] += 4.9
    faults.reach(10**9, "collector")
    now[0] += 0.1
    with caplog.at_level("WARNING", "hpcdi"), pytest.raises(InjectedFault):
        faults.reach(0, "collector")
    assert "injected fault: raise" in caplog.text


def test_what_the_role_makes_itself_is_owed_once() -> None:
    faults = armed(FaultConfig("torn_shard", rank=2, at_step=1))
    assert not faults.requests("torn_shard")
    faults.advance(1, "collector")
    assert not faults.requests("env_hang")
    assert faults.requests("torn_shard")
    assert not faults.requests("torn_shard")


def test_a_hang_can_end() -> None:
    began = time.monotonic()
    armed(FaultConfig("hang", rank=2, at_step=1, seconds=0.2)).advance(1, "collector")
    assert time.monotonic() - began >= 0.2


def test_writes_find_no_room_for_a_while(tmp_path: Path) -> None:
    armed(FaultConfig("enospc", rank=2, at_step=0, seconds=3600)).reach(0, "collector")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_text(tmp_path / "x", "x")
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())
    pretend_full(-1.0)
    write_text(tmp_path / "x", "x")
    assert (tmp_path / "x").read_text() == "x"


KILLED = """
from hpcdi.config.schema import FaultConfig
from hpcdi.roles.fault import FAULTS
FAULTS.arm([FaultConfig("kill", rank=1, at_step=3)], 1, "learner", 0)
for step in range(5):
    print(step, flush=True)
    FAULTS.reach(step, "learner")
"""


def test_a_kill_is_one() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["0", "1", "2", "3"]


def test_an_environment_stands_still_and_a_shard_is_torn(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        hang_environment([child.pid])
        assert os.waitpid(child.pid, os.WUNTRACED)[1] >> 8 == signal.SIGSTOP
    finally:
        child.kill()
        child.wait()
    appender = Appender(RunLayout(tmp_path), 1 << 20, fsync=False)
    items = np.ones(1, ITEM_DTYPE)
    blocks = [Block({"x": np.full(4, number)}, items) for number in (1, 2, 3)]
    refs = [appender.write("a.h5", block) for block in blocks]
    tear(tmp_path / "a.h5", refs[1])
    found = list(read_blocks(tmp_path / "a.h5"))
    assert [isinstance(block, ShardError) for block in found] == [False, True, False]
