"""Video files from frames: GIF always, MP4 if ``hpcdi[video]`` is installed."""

from __future__ import annotations

import functools
import io

import numpy as np

from hpcdi.types import Array
from hpcdi.utils.log import LOGGER

_GIF_TICK_MS = 10  # a GIF counts time in hundredths of a second
_GIF_FASTEST_MS = 20  # viewers play shorter frames slowly


def encode_video(frames: Array, fps: float) -> tuple[bytes, str]:
    """Returns a video file's bytes and its suffix: ".mp4" if imageio finds ffmpeg, else ".gif".

    Args:
        frames: uint8 [T, H, W, 3].
        fps: frames per second.

    Raises:
        ValueError: `frames` have another shape or dtype, or are empty.
    """
    try:
        return encode_mp4(frames, fps), ".mp4"
    except (ImportError, RuntimeError) as error:  # RuntimeError: no ffmpeg found
        _say_once(f"{type(error).__name__}: {error}")
        return encode_gif(frames, fps), ".gif"


def encode_gif(frames: Array, fps: float) -> bytes:
    """Returns a looping GIF of frames uint8 [T, H, W, 3]; 256 colours, at most 50 per second.

    Equal consecutive frames become one with their total duration.
    """
    from PIL import Image

    frames = _checked(frames)
    shown_ms = max(_GIF_TICK_MS * round(1000 / (fps * _GIF_TICK_MS)), _GIF_FASTEST_MS)
    first, *others = [Image.fromarray(frame) for frame in frames]
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=shown_ms, loop=0)
    return file.getvalue()


def encode_mp4(frames: Array, fps: float) -> bytes:
    """Returns an H.264 MP4 of frames uint8 [T, H, W, 3]; odd sides are padded with their edge.

    Raises:
        ImportError: imageio or imageio-ffmpeg is not installed.
        RuntimeError: imageio finds no ffmpeg.
    """
    import imageio_ffmpeg  # noqa: F401  (imageio reports a missing one late and unclearly)
    from imageio import v3 as imageio

    frames = _checked(frames)
    odd = [(0, side % 2) for side in frames.shape[1:3]]
    if any(map(any, odd)):
        frames = np.pad(frames, [(0, 0), *odd, (0, 0)], mode="edge")
    encoded: bytes = imageio.imwrite(
        "<bytes>",
        frames,
        extension=".mp4",
        plugin="FFMPEG",
        fps=fps,
        codec="libx264",
        macro_block_size=2,
        quality=8,
    )
    return encoded


def side_by_side(videos: Array) -> Array:
    """Returns videos [N, T, C, H, W] side by side as one video: uint8 [T, H, N * W, 3].

    Args:
        videos: uint8, C being 1 (grey) or 3.

    Raises:
        ValueError: they have another shape or dtype.
    """
    videos = np.asarray(videos)
    if videos.ndim != 5 or videos.shape[2] not in (1, 3) or videos.dtype != np.uint8:
        raise ValueError(
            f"videos must be uint8 [N, T, C, H, W] with C 1 or 3, not {videos.dtype} {videos.shape}"
        )
    n, t, c, h, w = videos.shape
    row = videos.transpose(1, 3, 0, 4, 2).reshape(t, h, n * w, c)
    return np.repeat(row, 3, axis=-1) if c == 1 else row


def as_frame(image: object, max_size: int | None = None) -> Array:
    """Returns an image as uint8 [H, W, 3], neither side above `max_size` pixels.

    Args:
        image: uint8 [H, W, 3], [H, W, 4] (alpha is dropped), [H, W, 1] or [H, W].
        max_size: larger images are scaled down, keeping the ratio of sides; None: no limit.

    Raises:
        ValueError: it has another shape or dtype.
    """
    frame = np.asarray(image)
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (1, 3, 4):
        raise ValueError(
            f"a picture must be uint8 [H, W, 3], not {frame.dtype} of shape {frame.shape}"
        )
    frame = np.repeat(frame, 3, axis=2) if frame.shape[2] == 1 else frame[..., :3]
    if max_size is None or max(frame.shape[:2]) <= max_size:
        return np.array(frame)  # a copy: some environments reuse the array
    from PIL import Image

    scale = max_size / max(frame.shape[:2])
    height, width = (max(1, round(side * scale)) for side in frame.shape[:2])
    small = Image.fromarray(np.ascontiguousarray(frame)).resize(
        (width, height), Image.Resampling.BOX
    )
    return np.asarray(small)


def _checked(frames: Array) -> Array:
    frames = np.asarray(frames)
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not frames.size:
        raise ValueError(
            f"frames must be uint8 [T, H, W, 3] with T > 0, not {frames.dtype} {frames.shape}"
        )
    return frames


@functools.cache
def _say_once(reason: str) -> None:
    LOGGER.warning(
        "videos are written as GIF (%s); for MP4: pip install 'hpcdi[video]'", reason.rstrip(".")
    )
