"""Guests of a run, which are killed again and again: the run goes on, and counts what there is."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import CARTPOLE, ENDLESS, HPCDI, ONE_COLLECTOR, Running, hpcdi, transitions

from hpcdi.store.layout import RunLayout
from hpcdi.store.shards import survey
from hpcdi.types import FIRST_GUEST

pytestmark = [pytest.mark.job, pytest.mark.slow]


@pytest.fixture
def guests() -> Iterator[list[subprocess.Popen[str]]]:
    """Takes guests; sees that none is left."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        kill(process)


def kill(guest: subprocess.Popen[str]) -> None:
    """Kill a guest with -9."""
    guest.kill()
    guest.communicate()


def test_guests_are_killed_again_and_again(
    start: Callable[..., Running], guests: list[subprocess.Popen[str]]
) -> None:
    job = start(CARTPOLE, *ENDLESS, ONE_COLLECTOR, "system.guests.timeout_s=5")
    job.until_learning()

    def come() -> None:
        command = [*HPCDI, "join", str(job.run_dir)]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        guests.append(subprocess.Popen(command, text=True, **both))

    def of_guests(name: str) -> int:
        said = json.loads((job.run_dir / "status.json").read_text()).get("guests", {})
        value = said.get(name, 0)
        return len(value) if isinstance(value, dict) else int(value)

    come(), come()
    job.until(lambda: of_guests("here") == 2 and of_guests("env_steps") > 0)
    assert f"guests       2 here ({FIRST_GUEST + 1} on" in hpcdi("status", job.run_dir).out
    dice = random.Random(0)
    for _ in range(3):
        time.sleep(dice.uniform(0.0, 1.0))
        kill(guests.pop(dice.randrange(2)))
        come()
    while guests:
        kill(guests.pop())
    job.until(lambda: of_guests("here") == 0)
    reached = transitions(job.run_dir)
    come()
    job.until(lambda: transitions(job.run_dir) > reached and of_guests("here") == 1)
    job.send_signal(15)
    ended = job.wait()
    ended.check(85, "stopped")
    assert ended.run["figures"]["env_steps"] == transitions(job.run_dir)
    check_once(job.run_dir)
    out = guests[-1].stdout
    assert out is not None
    said = [out.readline() for _ in range(3)]
    assert "has left" in said[1]
    assert "waits for" in said[2], "the run may come back"


def check_once(run_dir: Path) -> None:
    """No transition lies there twice."""
    layout, items = RunLayout(run_dir), list[int]()
    for path in layout.shard_numbers():
        for _, block in survey(layout.inside(path), path).blocks:
            items += block.items["item_id"].tolist()
    assert len(set(items)) == len(items)
