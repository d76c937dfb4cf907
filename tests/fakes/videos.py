"""Decoders of the videos that hpcdi writes."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence


def decode_gif(data: bytes) -> tuple[Any, list[int]]:
    """Frames uint8 [T, H, W, 3], and milliseconds of each."""
    with Image.open(io.BytesIO(data)) as image:
        shown = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(image)]
        assert image.info["loop"] == 0, "for ever"
    return np.stack(frames), shown


def difference(a: Any, b: Any) -> float:
    assert a.shape == b.shape
    return float(np.abs(a.astype(int) - b.astype(int)).mean())


def decode_mp4(path: Path, height: int, width: int) -> Any:
    """Frames uint8 [T, H, W, 3], by ffmpeg itself."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    command = [ffmpeg, "-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)
