"""Frames become files that decode to the same frames."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes.videos import decode_gif, decode_mp4, difference
from hpcdi.utils import video
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.utils.video import as_frame, encode_gif, encode_mp4, encode_video, side_by_side


def moving_bar(frames: int = 6, height: int = 24, width: int = 32) -> Any:
    """A red bar that moves to the right over a grey ground, another picture each time."""
    film = np.full((frames, height, width, 3), 128, np.uint8)
    for t in range(frames):
        film[t, :, 4 * t : 4 * t + 4] = (200, 0, 0)
    return film


def test_a_gif_shows_the_frames_in_their_order() -> None:
    film = moving_bar()
    decoded, shown = decode_gif(encode_gif(film, fps=10))
    assert difference(decoded, film) == 0, "two colours need no rounding"
    assert shown == [100] * 6


def test_a_gif_of_many_colours_is_near() -> None:
    film = np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), dtype=np.uint8)
    decoded, _ = decode_gif(encode_gif(film, fps=10))
    assert difference(decoded, film) < 12


@pytest.mark.parametrize(("fps", "shown_ms"), [(20, 50), (30, 30), (50, 20), (1000, 20), (1, 1000)])
def test_a_gif_keeps_time_as_well_as_it_can(fps: float, shown_ms: int) -> None:
    assert decode_gif(encode_gif(moving_bar(2), fps))[1] == [shown_ms] * 2


def test_frames_that_are_alike_are_shown_as_long() -> None:
    film = moving_bar(3)[[0, 0, 0, 1, 2, 2]]
    _, shown = decode_gif(encode_gif(film, fps=10))
    assert sum(shown) == 600


@pytest.mark.parametrize("size", [(24, 32), (17, 33)])
def test_an_mp4_shows_the_frames_in_their_order(size: tuple[int, int], tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    film = moving_bar(6, *size)
    (tmp_path / "film.mp4").write_bytes(encode_mp4(film, fps=10))
    even = [side + side % 2 for side in size]
    decoded = decode_mp4(tmp_path / "film.mp4", *even)
    assert decoded.shape == (6, *even, 3)
    assert difference(decoded[:, : size[0], : size[1]], film) < 12
    assert difference(decoded[0, : size[0], : size[1]], film[-1]) > 20, "the order can be told"


def test_the_better_format_is_taken() -> None:
    pytest.importorskip("imageio_ffmpeg")
    assert encode_video(moving_bar(), 10)[1] == ".mp4"


def test_without_ffmpeg_it_is_a_gif_and_says_once_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # what import sees as missing
    video._say_once.cache_clear()
    for _ in range(2):
        encoded, suffix = encode_video(moving_bar(), 10)
        assert suffix == ".gif"
        assert encoded.startswith(b"GIF89a")
    (record,) = caplog.records
    assert "pip install 'hpcdi[video]'" in record.message


@pytest.mark.parametrize(
    "frames",
    [np.zeros((0, 4, 4, 3), np.uint8), np.zeros((4, 4, 3), np.uint8), np.zeros((1, 4, 4, 3))],
)
def test_what_is_no_film(frames: Any) -> None:
    with pytest.raises(ValueError, match=r"uint8 \[T, H, W, 3\] with T > 0"):
        encode_gif(frames, 10)


def test_videos_stand_in_a_row() -> None:
    videos = np.stack([moving_bar(), 255 - moving_bar()]).transpose(0, 1, 4, 2, 3)
    row = side_by_side(videos)
    assert row.shape == (6, 24, 64, 3)
    assert (row[:, :, :32] == moving_bar()).all()
    assert (row[:, :, 32:] == 255 - moving_bar()).all()
    grey = side_by_side(videos[:, :, :1])
    assert (grey[..., 0] == grey[..., 2]).all()
    with pytest.raises(ValueError, match=r"uint8 \[N, T, C, H, W\]"):
        side_by_side(videos.transpose(0, 1, 3, 4, 2))


def test_pictures_of_any_kind_become_rgb() -> None:
    rgb = moving_bar()[0]
    alpha = np.concatenate([rgb, np.zeros((24, 32, 1), np.uint8)], axis=2)
    assert (as_frame(alpha) == rgb).all()
    assert as_frame(rgb[..., 0]).shape == as_frame(rgb[..., :1]).shape == rgb.shape
    taken = as_frame(rgb)
    rgb[:] = 0
    assert taken.any(), "the environment may draw over its picture"
    for wrong in (rgb.astype(float), rgb[None], np.zeros((3, 8, 8), np.uint8), None):
        with pytest.raises(ValueError, match=r"must be uint8 \[H, W, 3\]"):
            as_frame(wrong)


@pytest.mark.parametrize(
    ("size", "small"), [((400, 600), (213, 320)), ((600, 400), (320, 213)), ((320, 10), (320, 10))]
)
def test_large_pictures_are_scaled_down(size: tuple[int, int], small: tuple[int, int]) -> None:
    image = np.zeros((*size, 3), np.uint8)
    image[: size[0] // 2] = 200
    frame = as_frame(image, max_size=320)
    assert frame.shape == (*small, 3)
    assert (frame[: small[0] // 2 - 1] == 200).all()
    assert (frame[small[0] // 2 + 2 :] == 0).all()


def test_tensorboard_plays_videos(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    videos = np.stack([moving_bar(), 255 - moving_bar()]).transpose(0, 1, 4, 2, 3)
    writer.add_video("evaluator_iter/video", videos, 7, 10)
    writer.close()
    (event,) = EventAccumulator(str(tmp_path)).Reload().Images("evaluator_iter/video")
    assert (event.step, event.height, event.width) == (7, 24, 64)
    decoded, shown = decode_gif(event.encoded_image_string)
    assert difference(decoded, side_by_side(videos)) == 0
    assert shown == [100] * 6


def test_an_old_caller_needs_no_torch_for_it() -> None:
    code = "import hpcdi.utils.video, hpcdi.worker, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
