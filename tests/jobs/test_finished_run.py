"""What a run over ranks leaves, and what the other commands make of it; nothing here changes it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from browser import CHROMIUM, Page, look
from jobs import CARTPOLE, ROOT, Finished, tensorboard
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpcdi.cli import main
from hpcdi.roles.coordinator.snapshots import STATE_FILE, STATE_KIND, STATE_VERSION
from hpcdi.store.policies import read_policy
from hpcdi.store.state_file import load_state

pytestmark = pytest.mark.job

RANDOM_RETURN = 30.0
"""Acting at random gives 22 in CartPole."""

PLAY = """
import sys
import gymnasium
import torch

act = torch.export.load(sys.argv[1]).module()
env = gymnasium.make_vec("CartPole-v1", num_envs=20, vectorization_mode="sync")
observation, _ = env.reset(seed=1)
alive, total = torch.ones(20, dtype=torch.bool), 0
while alive.any():
    actions, _ = act(torch.from_numpy(observation))
    observation, _, terminated, truncated, _ = env.step(actions.numpy())
    total += int(alive.sum())
    alive &= ~torch.from_numpy(terminated | truncated)
assert "hpcdi" not in sys.modules
print(total / 20)
"""
"""Plays by the exported file alone; prints the mean return."""


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
PICTURES = ROOT / "build" / "pictures"
"""What was seen in a browser is left here."""
RUNS = "[...document.querySelectorAll('runs-data-table tb-data-table-content-row')].length"
FIRST = "document.querySelector('scalar-card')?.innerText.replace(/\\s/g, '')"
LINE = np.array([0x42, 0x50, 0x66]) / 255
"""Colour of the first run's line in TensorBoard."""


def test_it_says_where_everything_is_and_leaves_a_whole_folder(finished: Finished) -> None:
    ended = finished.ended
    ended.check(0, "done")
    assert ended.err == ""
    assert "solved: stop value reached" in ended.out
    for said in ("run folder", "tensorboard --logdir", str(ended.run_dir / "data"), "evaluation 1"):
        assert said in ended.out
    assert [place["role"] for place in ended.run["placement"]] == [
        "coordinator", "learner", "collector", "collector",
    ]  # fmt: skip
    assert ended.run["versions"]["torch"].startswith("2.")
    assert not (ended.run_dir / "run.lock").exists()
    for name in ("latest", "best"):
        assert read_policy(ended.run_dir / "policies" / f"{name}.safetensors").version > 0


def test_shards_are_for_common_tools(finished: Finished) -> None:
    shards = sorted((finished.run_dir / "data").rglob("*.h5"))
    with h5py.File(shards[0]) as first, h5py.File(shards[-1]) as last:
        assert first["observation"].shape[1:] == (4,)
        assert set(np.unique(first["terminated"][:])) <= {False, True}
        # two collectors never see the same random numbers
        rows = min(len(first["observation"]), len(last["observation"]), 100)
        assert not np.array_equal(first["observation"][:rows], last["observation"][:rows])


def test_tensorboard_finds_its_curves(finished: Finished) -> None:
    events = EventAccumulator(str(finished.run_dir / "tb"))
    events.Reload()
    assert {
        "curves/collect_return", "curves/episode_length", "curves/evaluation_return",
        "curves/iterations_per_s", "curves/learner_idle", "curves/loss",
        "curves/samples_per_transition", "curves/staleness", "curves/steps_per_s",
    } == {tag for tag in events.Tags()["scalars"] if tag.startswith("curves/")}  # fmt: skip


def test_priorities_came_back_from_the_learner(finished: Finished) -> None:
    newest = sorted((finished.run_dir / "snapshots").iterdir())[-1]
    state = load_state(newest / STATE_FILE, STATE_KIND, STATE_VERSION)
    main = state["groups"]["main"]
    masses = main["replay"]["partitions"]["rank1"]["buffer"]["index"]["mass"]
    assert len(np.unique(masses[masses > 0])) > 500, "each drawn item has a priority of its own"
    assert 0 < main["train_iter"] <= finished.run["figures"]["train_iter"]


def test_tail_followed_it_to_its_end(finished: Finished) -> None:
    tail = finished.tail
    assert (tail.returncode, tail.stderr) == (0, "hpcdi tail: the run is done\n")
    shown = [json.loads(line) for line in tail.stdout.splitlines()]
    logs = sorted((finished.run_dir / "log").glob("rank*.jsonl"))
    written = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert len(logs) == 4
    assert {(line["rank"], line["role"]) for line in shown} >= {(0, "coordinator"), (1, "learner")}
    assert sorted(shown, key=json.dumps) == sorted(written, key=json.dumps), "each line once"


def test_status_says_that_it_is_done(finished: Finished, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(finished.run_dir), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["state"], told["restarts"]) == ("done", 0)
    assert told["progress"]["env_steps"] == finished.run["figures"]["env_steps"]
    assert told["next"] == [f"hpcdi eval {finished.run_dir}"]


def test_its_folder_is_given_to_no_other_run(
    finished: Finished, capfd: pytest.CaptureFixture[str]
) -> None:
    before = finished.stamps()
    assert main(["train", str(CARTPOLE), "seed=2", "--run-dir", str(finished.run_dir)]) == 2
    assert "holds another run" in capfd.readouterr().err
    assert before == finished.stamps()


def test_its_best_policy_is_worth_what_eval_says(
    finished: Finished, capfd: pytest.CaptureFixture[str]
) -> None:
    before, told = finished.stamps(), []
    for _ in range(2):
        assert main(["eval", str(finished.run_dir), "--json", "--seed", "5"]) == 0
        said = capfd.readouterr()
        assert said.err == ""
        told.append(json.loads(said.out))
    assert told[0]["returns"] == told[1]["returns"]
    assert told[0]["return_mean"] > 1.5 * RANDOM_RETURN
    assert before == finished.stamps()


def test_its_exported_policy_plays_without_hpcdi(finished: Finished, tmp_path: Path) -> None:
    file = tmp_path / "out" / "policy.pt2"
    assert main(["export", str(finished.run_dir), "-o", str(file)]) == 0
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    played = subprocess.run(
        [sys.executable, "-c", PLAY, str(file)], capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stderr
    assert float(played.stdout) > 1.5 * RANDOM_RETURN


@needs_browser
@pytest.mark.slow
def test_tensorboard_opens_on_the_return_and_shows_the_run_once(
    finished: Finished, tmp_path: Path
) -> None:
    async def see(page: Page) -> None:
        assert (await page.value_when(FIRST)).startswith("curves/collect_return")
        assert await page.value(RUNS) == 1
        chart = await page.box("scalar-card line-chart")
        await page.until(lambda shot: drawn(shot, chart) > 20, PICTURES / "tensorboard.png")
        assert page.errors == []

    with tensorboard(finished.run_dir) as url:
        look(url, tmp_path, see)


def drawn(shot: bytes, box: tuple[int, int, int, int]) -> int:
    """Pixels of a picture that have the line's colour, in a box (left, top, right, bottom)."""
    pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB").crop(box)) / 255
    return int((np.abs(pixels - LINE).max(axis=2) < 0.08).sum())


@needs_browser
def test_a_report_needs_no_network(finished: Finished, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert main(["report", str(finished.run_dir), "-o", str(report)]) == 0

    async def see(page: Page) -> None:
        assert await page.value_when("document.querySelector('h1')?.innerText") == "cartpole_dqn"
        assert await page.value("document.querySelectorAll('svg polyline').length") >= 5
        await page.picture(PICTURES / "report.png")
        assert page.errors == []

    look(report.as_uri(), tmp_path / "browser", see)
