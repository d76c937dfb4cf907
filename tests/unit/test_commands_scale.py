"""`hpcdi scale` without a run: what it refuses, and what rank 0 takes from the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fakes.experiments import experiment
from hpcdi import cli
from hpcdi.comm.messages import ScaleCollectors
from hpcdi.commands import scale
from hpcdi.config.compiled import compile_config
from hpcdi.errors import EXIT_FAILED, EXIT_USAGE, LaunchError
from hpcdi.run.placement import check_world, default_world_size, working_collectors
from hpcdi.run.run_lock import RunLock
from hpcdi.run.signals import ScaleFile
from hpcdi.store.layout import RunLayout

ROLES = ("coordinator", "learner", "collector", "collector")


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """A run that calls itself running, of this process, with two collectors."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))  # no queue
    found = RunLayout(tmp_path / "run")
    found.root.mkdir()
    write(found.run_file, state="running", pid=os.getpid(), host=os.uname().nodename,
          placement=[{"rank": rank, "role": role} for rank, role in enumerate(ROLES)])  # fmt: skip
    tell(found, 2)
    configure(found)
    return found


def write(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(values))


def tell(layout: RunLayout, wanted: int | None) -> None:
    collectors = {"working": 1, "there": 2, "wanted": wanted}
    write(layout.status_file, phase="running", collectors=collectors)


def configure(layout: RunLayout, **settings: Any) -> None:
    mapping = {"env": {"env_id": "CartPole-v1"}, **settings}
    layout.config_file.write_text(json.dumps(mapping))  # JSON is YAML


def asked(layout: RunLayout, count: object) -> int:
    with RunLock(layout):
        return cli.main(["scale", str(layout.root), str(count)])


def test_rank_0_is_told_and_its_answer_shown(
    layout: RunLayout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(layout, 2) == 0
    assert json.loads(layout.scale_file.read_text()) == {"collectors": 2, "of": 2}
    assert capsys.readouterr().out.startswith("1 of 2 collectors work\n  hpcdi status ")


def test_a_silent_rank_0_is_said(
    layout: RunLayout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "_ANSWER_S", 0.1)
    assert asked(layout, 1) == EXIT_FAILED
    assert "rank 0 has not answered" in capsys.readouterr().err


def league_of_two(layout: RunLayout) -> None:
    """Two players learn, on a rank each."""
    configure(
        layout,
        env={"type": "pettingzoo", "env_id": "classic.tictactoe_v3"},
        policy={
            "type": "dqn",
            "learn": {"learner": {"learner_num": 2}},
            "other": {
                "commander": {
                    "type": "one_vs_one",
                    "learner_task_space": 2,
                    "league": {"players": {"main": "main", "exploiter": "main_exploiter"}},
                }
            },
        },
    )


def test_what_rank_0_has_raised_is_an_answer(
    layout: RunLayout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    league_of_two(layout)
    tell(layout, None)
    monkeypatch.setattr(scale, "wait_s", lambda _s: tell(layout, 2))
    assert asked(layout, 1) == 0
    said = "1 of 2 collectors work, not 1: each player that learns needs one\n"
    assert capsys.readouterr().out.startswith(said)


def test_a_grant_that_changes_nothing_is_an_answer_once_it_is_new(
    layout: RunLayout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    league_of_two(layout)
    monkeypatch.setattr(scale, "_ANSWER_S", 0.1)
    assert asked(layout, 1) == EXIT_FAILED, "the status may be older than what was asked"
    monkeypatch.setattr(scale, "_ANSWER_S", 30.0)
    later = layout.scale_file.stat().st_mtime + 60
    monkeypatch.setattr(scale, "wait_s", lambda _s: os.utime(layout.status_file, (later, later)))
    assert asked(layout, 1) == 0
    assert "not 1: each player that learns needs one" in capsys.readouterr().out


def test_more_than_the_run_needs_is_no_answer(
    layout: RunLayout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has asked for more at the same time."""
    monkeypatch.setattr(scale, "_ANSWER_S", 0.1)
    tell(layout, None)
    monkeypatch.setattr(scale, "wait_s", lambda _s: tell(layout, 2))
    assert asked(layout, 1) == EXIT_FAILED
    assert "rank 0 has not answered" in capsys.readouterr().err


def test_more_than_there_are_ranks(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(layout, 5) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "has 2 collector ranks, and none can be added while it runs" in said
    assert "-n 7" in said
    assert not layout.scale_file.exists()
    solver = {"type": "mpi", "env_id": "x.c", "ranks": 3, "collector_env_num": 2}
    spaces = {"observation": {"size": 1}, "action": {"size": 1, "low": -1, "high": 1}}
    configure(layout, env={**solver, **spaces}, policy={"type": "sac"})
    assert asked(layout, 3) == EXIT_USAGE
    assert "-n 23" in capsys.readouterr().err, "each collector has 6 solver ranks beside it"
    configure(layout)
    facts = json.loads(layout.run_file.read_text())
    write(layout.run_file, **{**facts, "placement": [{"rank": 0, "role": "serial"}]})
    assert asked(layout, 3) == EXIT_USAGE
    assert "-n 5" in capsys.readouterr().err, "of one process, too, the learner needs a rank"


def test_a_run_that_does_not_run(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    write(layout.run_file, state="done", reason="solved")
    assert asked(layout, 1) == EXIT_USAGE
    assert "is done, and only a running run can be scaled" in capsys.readouterr().err


def test_a_deterministic_run(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    configure(layout, system={"deterministic": True})
    assert asked(layout, 1) == EXIT_USAGE
    assert "is deterministic" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "-1", "many", "1.5"])
def test_a_number_is_asked_for(layout: RunLayout, count: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["scale", str(layout.root), count])
    assert ended.value.code == EXIT_USAGE


# ------------------------------------------------------------------------------------ rank 0's side


class Looks:
    """Rank 0's turns; time passes between them."""

    def __init__(self, layout: RunLayout, ranks: int = 4) -> None:
        self.asked: Any = None
        self.file = ScaleFile(layout, ranks, lambda: self.asked)

    def take(self) -> Any:
        self.file._due = float("-inf")
        return self.file.take()


def test_what_was_written_is_taken_once_each_time(
    layout: RunLayout, caplog: pytest.LogCaptureFixture
) -> None:
    rank0 = Looks(layout)
    assert rank0.take() is None
    with caplog.at_level("INFO", logger="hpcdi"):
        for count in (3, 1):
            write(layout.scale_file, collectors=count, of=4)
            assert [rank0.take(), rank0.take()] == [ScaleCollectors(count), None]
    assert caplog.messages == [f"collectors that are wanted: {count}" for count in (3, 1)]


def test_other_requests_come_first(layout: RunLayout) -> None:
    rank0 = Looks(layout)
    write(layout.scale_file, collectors=3, of=4)
    rank0.asked = "stop"
    assert rank0.take() == "stop"


def test_what_was_wanted_of_another_world_is_forgotten(layout: RunLayout) -> None:
    write(layout.scale_file, collectors=3, of=4)
    assert Looks(layout, 8).take() is None
    assert Looks(layout, 4).take() == ScaleCollectors(3)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"collectors": true}', '{"collectors": 0}'])
def test_what_is_no_number_is_ignored_with_a_word(
    layout: RunLayout, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    rank0 = Looks(layout)
    layout.scale_file.write_text(text)
    with caplog.at_level("WARNING", logger="hpcdi"):
        assert [rank0.take(), rank0.take()] == [None, None]
    assert caplog.text.count("does not say how many collectors are wanted") <= 1


# ------------------------------------------------------------------------------------ before a run


def with_spare(collectors: int, most: int | None, **policy: Any) -> Any:
    return compile_config({
        "env": {"env_id": "CartPole-v1"},
        "policy": {
            "collect": {"collector": {"collector_num": collectors, "collector_max": most}}, **policy
        },
    }).config  # fmt: skip


def test_spare_collectors_are_ranks_too() -> None:
    config = with_spare(2, 5)
    assert default_world_size(config) == 7
    assert working_collectors(7, config) == 2
    assert working_collectors(3, config) == 1
    assert working_collectors(7, experiment(1, 2)) == 5, "without spare ones all work"


def test_fewer_than_work_at_first_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "configs/cartpole_dqn.yaml", "--collectors-max", "1"]) == EXIT_USAGE
    assert "collector_max: must be at least collector_num, 2, or empty" in capsys.readouterr().err


def test_a_plan_shows_who_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "configs/cartpole_dqn.yaml", "--collectors-max", "4"]) == 0
    out = capsys.readouterr().out
    assert "6 ranks" in out
    assert "2 of the collectors wait until they are needed" in out
    assert "if each of 2 collectors" in out


def test_on_policy_each_learner_needs_a_collector_that_works() -> None:
    config = with_spare(1, 3, type="ppo", learn={"learner": {"learner_num": 2}})
    assert config.policy.on_policy
    with pytest.raises(LaunchError, match="of 3 collectors 1 would work at first"):
        check_world(6, config)
