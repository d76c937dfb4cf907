"""A callback on learners that writes down what each update learns from, for `fuzz_truth`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from odd_envs import digest

import hpcdi
from hpcdi.roles.callbacks import Context
from hpcdi.roles.learner.training import Training

ROW = np.dtype([
    ("update", "<i8"), ("step", "<i8"), ("seen", "<i8"), ("acted", "<i8"), ("next", "<i8"),
    ("reward", "<f4"), ("n_step_return", "<f4"), ("bootstrap_discount", "<f4"),
])  # fmt: skip
"""A row of a batch, and which of its sequence; observations and actions as checksums of columns."""
FOLDER = "learnt"
"""Beside the run folder."""
MOST = 20_000
"""Rows that are written of a rank."""


def checksums(columns: Mapping[str, Any], root: str) -> list[int]:
    """Returns a checksum of each row of the columns of an observation or an action."""
    names = sorted(name for name in columns if name == root or name.startswith(f"{root}/"))
    rows = zip(*(columns[name] for name in names), strict=True)
    return [digest(list(row)) for row in rows]


class Witness(hpcdi.Callback):
    """Writes the rows of batches to a file of its rank."""

    runs_on: ClassVar[str] = "learner"

    def on_start(self, context: Context) -> None:
        """Look at each update from now on."""
        if context.folder is None:
            return
        folder = Path(context.folder).parent / FOLDER
        folder.mkdir(exist_ok=True)
        path, update = folder / f"{os.getpid()}.{context.rank}", Training.update

        @wraps(update)
        def watched(training: Training, batch: Any, **forward: Any) -> Any:
            columns = batch.columns
            is_own = training.policy is context.policy  # in one process there may be others
            if is_own and isinstance(columns, dict) and "reward" in columns:
                with path.open("ab") as file:
                    if file.tell() < MOST * ROW.itemsize:
                        file.write(rows_of(columns, training.train_iter).tobytes())
            return update(training, batch, **forward)

        Training.update = watched  # type: ignore[method-assign]


def rows_of(columns: Mapping[str, Any], train_iter: int) -> np.ndarray[Any, Any]:
    """Returns the rows of a batch; of sequences their steps, without what only fills them."""
    arrays = {name: column.detach().cpu().numpy() for name, column in columns.items()}
    shape = arrays["reward"].shape
    is_step, offsets = np.ones((shape[0], 1), bool), np.zeros(1, np.int64)
    if len(shape) > 1:
        offsets = sum(c for n, c in arrays.items() if n.startswith("bootstrap_offset"))
        is_step = (np.arange(shape[1]) < arrays["sequence_len"][:, :1]) & (offsets > 0)
        arrays = {n: c.reshape(-1, *c.shape[2:]) for n, c in arrays.items() if c.shape[:2] == shape}
    chosen, roots = is_step.ravel().nonzero()[0], ("observation", "action", "next_observation")
    rows = np.zeros(is_step.size, ROW)
    rows["update"] = train_iter
    rows["step"] = np.arange(len(rows)) % is_step.shape[1]
    for name, root in zip(("seen", "acted", "next"), roots, strict=True):
        if any(key.partition("/")[0] == root for key in arrays):
            rows[name] = checksums(arrays, root)
    for name in ("reward", "n_step_return", "bootstrap_discount"):
        if name in arrays:
            rows[name] = arrays[name]
    if len(shape) > 1 and "bootstrap_offset" in arrays:
        ahead = rows["step"] + arrays["bootstrap_offset"]
        at = np.arange(len(rows)) + arrays["bootstrap_offset"]
        rows["next"] = np.where(ahead < shape[1], rows["seen"][at.clip(max=len(rows) - 1)], 0)
    return rows[chosen]
