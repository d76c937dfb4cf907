"""Films of evaluations: when, where to, of what, and what if it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.evaluator_parts import DuckPolicy, Manager
from fakes.small_disk import mounted
from fakes.videos import decode_gif, difference
from hpcdi.env.create import create_env_manager, make_env_manager
from hpcdi.env.toy import CountEnv
from hpcdi.utils import video
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.worker import InteractionSerialEvaluator
from hpcdi.worker.collector.eval_monitor import Camera

EPISODES = [[(2, 1.0), (4, 5.0)], [(3, 3.0)]]


@pytest.fixture
def _only_gif(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> bytes:
        raise ImportError("planted")

    monkeypatch.setattr(video, "encode_mp4", missing)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.*"))


@pytest.mark.usefixtures("_only_gif")
def test_worst_median_and_best_become_files(tmp_path: Path) -> None:
    cfg = {"figure_path": str(tmp_path), "render": {"fps": 10}}
    with InteractionSerialEvaluator(cfg, Manager(EPISODES), DuckPolicy()) as evaluator:
        evaluator.eval(train_iter=123, n_episode=3, force_render=True)
    expected = {"worst": (0, 0, 2), "median": (1, 0, 3), "best": (0, 1, 4)}
    assert names(tmp_path / "videos") == sorted(f"iter_000123_{name}.gif" for name in expected)
    for name, (env_id, episode, steps) in expected.items():
        frames, shown = decode_gif((tmp_path / f"videos/iter_000123_{name}.gif").read_bytes())
        true = np.stack(
            [np.full((12, 16, 3), [env_id, episode, t], np.uint8) for t in range(steps)]
        )
        assert difference(frames, true) == 0
        assert sum(shown) == 400, "the shorter ones stand still until the longest has ended"


def test_mp4_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    cfg = {"figure_path": str(tmp_path), "n_episode": 2}
    with InteractionSerialEvaluator(cfg, Manager(EPISODES), DuckPolicy()) as evaluator:
        evaluator.eval(force_render=True)
    assert names(tmp_path) == [f"iter_000000_{n}.mp4" for n in ("best", "median", "worst")]


@pytest.mark.parametrize("figure_path", [None, "there"])
def test_environments_save_figures_as_episodes_end(figure_path: str | None) -> None:
    class Saving(Manager):
        told: ClassVar[list[Any]] = []

        def enable_save_figure(self, env_id: int, path: str) -> None:
            self.told.append((env_id, path))

    cfg = {"figure_path": figure_path, "n_episode": 3}
    with InteractionSerialEvaluator(cfg, Saving(EPISODES), DuckPolicy()) as evaluator:
        evaluator.eval()
    assert sorted(Saving.told) == (
        [(0, "there"), (0, "there"), (1, "there")] if figure_path else []
    )


class Drawing(CountEnv):
    """Says where it is to save figures."""

    def enable_save_figure(self, path: str) -> None:
        with Path(path).open("a") as file:
            file.write("told\n")


@pytest.mark.parametrize("env", [CountEnv, Drawing])
def test_environments_of_ours_save_figures_if_they_can(env: Any, tmp_path: Path) -> None:
    told = tmp_path / "figures"
    cfg = {"figure_path": str(told), "n_episode": 3}
    manager = make_env_manager({"type": "base"}, [lambda: env(2)])
    with InteractionSerialEvaluator(cfg, manager, DuckPolicy()) as evaluator:
        evaluator.eval()
    if env is Drawing:
        assert told.read_text() == 3 * "told\n"


@pytest.mark.usefixtures("_only_gif")
@pytest.mark.parametrize(("mode", "axis"), [("train_iter", "iter"), ("envstep", "step")])
def test_films_are_made_every_so_often(mode: str, axis: str, tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path / "tb")
    cfg = {"render": {"render_freq": 10, "mode": mode}, "n_episode": 2}
    made = {"tb_logger": writer, "exp_name": str(tmp_path / "exp")}
    with InteractionSerialEvaluator(cfg, Manager(EPISODES), DuckPolicy(), **made) as evaluator:
        for count in (0, 5, 10, 11, 25, 34):
            when = {"train_iter": count, "envstep": 7} if axis == "iter" else {"envstep": count}
            evaluator.eval(**when)
        evaluator.eval(**when, force_render=True)
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    films = events.Images(f"evaluator_{axis}/video")
    assert [film.step for film in films] == [0, 10, 25, 34]
    assert (films[0].height, films[0].width) == (12, 3 * 16)
    if axis == "iter":
        assert names(tmp_path / "exp")[0] == "iter_000000_best.gif"
        assert len(names(tmp_path / "exp")) == 4 * 3


@pytest.mark.usefixtures("_only_gif")
def test_no_film_unless_asked_for(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path / "tb")
    cfg = {"figure_path": str(tmp_path / "exp"), "n_episode": 2}
    with InteractionSerialEvaluator(cfg, Manager(EPISODES), DuckPolicy(), writer) as evaluator:
        evaluator.eval(train_iter=1)
    assert EventAccumulator(str(tmp_path / "tb")).Reload().Tags()["images"] == []
    assert not (tmp_path / "exp").exists()


def test_a_film_that_could_go_nowhere_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with InteractionSerialEvaluator({"n_episode": 2}, Manager(EPISODES), DuckPolicy()) as evaluator:
        evaluator.eval(force_render=True)
    assert list(tmp_path.iterdir()) == []
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "evaluator makes no video: it has nowhere to go; give the evaluator a tb_logger, or set "
        "figure_path"
    ]


@pytest.mark.usefixtures("_only_gif")
def test_a_film_for_which_the_disk_has_no_room_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An evaluation is worth more."""
    cfg = {"figure_path": str(tmp_path / "disk"), "n_episode": 2}
    with (
        mounted(tmp_path / "disk", "1m") as disk,
        InteractionSerialEvaluator(cfg, Manager(EPISODES), DuckPolicy()) as evaluator,
    ):
        disk.fill()
        _, info = evaluator.eval(train_iter=3, force_render=True)
        assert info["eval_episode_return"] == [1.0, 3.0]
        disk.free()
        evaluator.eval(train_iter=4, force_render=True)
        assert "iter_000004_best.gif" in names(tmp_path)
    (warning,) = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith("no video could be written: ")
    assert "No space left on device" in warning


@pytest.mark.usefixtures("_only_gif")
def test_memory_that_is_short_makes_films_coarser(tmp_path: Path) -> None:
    class Large(Manager):
        def ready_imgs(self, render_mode: str = "rgb_array") -> list[Any]:
            return [
                np.full((512, 512, 3), self.steps[env_id], np.uint8)
                for env_id in range(self.env_num)
            ]

    cfg = {"figure_path": str(tmp_path), "render": {"memory_mb": 1, "max_size": 256, "fps": 40}}
    with InteractionSerialEvaluator(cfg, Large([[(20, 1.0)]]), DuckPolicy()) as evaluator:
        evaluator.eval(n_episode=1, force_render=True)
    frames, shown = decode_gif((tmp_path / "videos/iter_000000_best.gif").read_bytes())
    assert frames.shape == (5, 256, 256, 3), "192 KiB a picture: 5 fit"
    assert frames[:, 0, 0, 0].tolist() == [0, 4, 8, 12, 16]
    assert shown == [100] * 5, "as long as it took: 40 steps a second, every fourth shown"


@pytest.mark.usefixtures("_only_gif")
def test_an_episode_that_failed_is_not_seen(tmp_path: Path) -> None:
    manager = Manager([[(3, 1.0), (3, 2.0)]], failing={0: [2]})
    cfg = {"figure_path": str(tmp_path)}
    with InteractionSerialEvaluator(cfg, manager, DuckPolicy()) as evaluator:
        evaluator.eval(n_episode=1, force_render=True)
    frames, _ = decode_gif((tmp_path / "videos/iter_000000_best.gif").read_bytes())
    assert frames[:, 0, 0].tolist() == [[0, 1, t] for t in range(3)]


@pytest.mark.usefixtures("_only_gif")
@pytest.mark.parametrize("together", [1, 2])
def test_asynchronous_managers_are_filmed_a_picture_a_step(together: int, tmp_path: Path) -> None:
    manager = Manager([[(3, 1.0)], [(4, 2.0)], [(2, 3.0)]], together=together)
    cfg = {"figure_path": str(tmp_path)}
    with InteractionSerialEvaluator(cfg, manager, DuckPolicy()) as evaluator:
        evaluator.eval(n_episode=3, force_render=True)
    frames, _ = decode_gif((tmp_path / "videos/iter_000000_median.gif").read_bytes())
    assert frames[:, 0, 0].tolist() == [[1, 0, t] for t in range(4)]


def cannot_raise(render_mode: str) -> Any:
    raise NotImplementedError("no display")


@pytest.mark.parametrize(
    ("ready_imgs", "why"),
    [
        (cannot_raise, "NotImplementedError: no display"),
        (lambda render_mode: [None, None], "ValueError: a picture must be"),
        (lambda render_mode: [], "KeyError: 0"),
        (None, "TypeError"),
    ],
)
def test_what_cannot_be_drawn_is_said_once_and_evaluated(
    ready_imgs: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = Manager(EPISODES)
    manager.ready_imgs = ready_imgs  # type: ignore[method-assign]
    cfg = {"figure_path": str(tmp_path)}
    with InteractionSerialEvaluator(cfg, manager, DuckPolicy()) as evaluator:
        _, info = evaluator.eval(n_episode=3, force_render=True)
    assert info["eval_episode_return"] == [1.0, 5.0, 3.0]
    assert list(tmp_path.iterdir()) == []
    (warning,) = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith("this evaluation goes on without video: Manager cannot draw")
    assert why in warning


def test_cameras_take_properties_and_mappings() -> None:
    class Old:
        ready_imgs = {3: np.full((4, 4, 3), 7, np.uint8)}  # noqa: RUF012

    assert list(Camera(2).take(Old(), [3])) == [3]
    assert Camera(2).take(Old(), [3])[3].shape == (2, 2, 3)


@pytest.mark.usefixtures("_only_gif")
def test_a_cart_and_its_pole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    cfg = {"type": "gymnasium", "env_id": "CartPole-v1", "kwargs": {"render_mode": "rgb_array"}}
    cfg |= {"vectorization": "sync", "evaluator_env_num": 2, "evaluator_episode_num": 9}
    env = create_env_manager(cfg, evaluate=True, seed=np.random.SeedSequence(1))
    settings = {"figure_path": str(tmp_path)}
    with InteractionSerialEvaluator(settings, env, DuckPolicy(1)) as evaluator:
        _, info = evaluator.eval(n_episode=4, force_render=True)
    frames, shown = decode_gif((tmp_path / "videos/iter_000000_best.gif").read_bytes())
    steps = max(info["eval_episode_return"])
    assert frames.shape[1:] == (213, 320, 3)
    assert sum(shown) == 50 * steps
    dark = (frames < 60).all(axis=3)  # the cart, and a thin line that it runs on
    centre = [np.nonzero(picture)[1].mean() for picture in dark]
    assert centre[-1] > centre[0] + 2, "it was pushed to the right"
