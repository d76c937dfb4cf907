"""A picture of who beats whom, with names and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.output_file import output_file
from hpcdi.league.view import heat_map
from hpcdi.types import Array

_CELL, _FONT, _GAP = 36, 13, 6  # pixels
_TITLE = "score in % of the row's player against the column's: blue wins, red loses"


def write_picture(names: Sequence[str], scores: Array, path: Path) -> None:
    """Write scores as a PNG.

    Args:
        names: of the players.
        scores: [players, players], row against column; NaN: they have not played.
        path: of the file.

    Raises:
        LaunchError: it cannot be written, or is a run's own.
    """
    with output_file(path) as file:
        _drawn(names, scores).save(file, "PNG")


def _drawn(names: Sequence[str], scores: Array) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(_FONT)
    cells = Image.fromarray(heat_map(scores, _CELL))
    on_cells = ImageDraw.Draw(cells)
    for (row, column), score in np.ndenumerate(scores):
        if not np.isnan(score):
            middle = ((column + 0.5) * _CELL, (row + 0.5) * _CELL)
            ink = "white" if abs(score - 0.5) > 0.35 else "black"
            on_cells.text(middle, f"{100 * score:.0f}", ink, font, anchor="mm")
    longest = int(max(font.getlength(name) for name in names)) + 2 * _GAP
    labels = Image.new("RGB", (longest, cells.height), "white")
    for row, name in enumerate(names):
        at = (longest - _GAP, (row + 0.5) * _CELL)
        ImageDraw.Draw(labels).text(at, name, "black", font, anchor="rm")
    heads = Image.new("RGB", (longest, cells.width), "white")  # turned, when it is in its place
    for column, name in enumerate(names):
        at = (_GAP, (column + 0.5) * _CELL)
        ImageDraw.Draw(heads).text(at, name, "black", font, anchor="lm")
    top = 2 * _FONT + longest
    width = max(longest + cells.width, int(font.getlength(_TITLE)) + _GAP) + _GAP
    picture = Image.new("RGB", (width, top + cells.height + _GAP), "white")
    ImageDraw.Draw(picture).text((_GAP, _FONT), _TITLE, "black", font, anchor="lm")
    picture.paste(heads.transpose(Image.Transpose.ROTATE_90), (longest, 2 * _FONT))
    picture.paste(labels, (0, top))
    picture.paste(cells, (longest, top))
    return picture
