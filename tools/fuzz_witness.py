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
    ("update", "<i8"), ("id", "<i8"), ("seen", "<i8"), ("acted", "<i8"), ("next", "<i8"),
    ("reward", "<f4"), ("n_step_return", "<f4"), ("bootstrap_discount", "<f4"),
])  # fmt: skip
"""A row of a batch; observations and actions as checksums of their columns, by name."""
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
        if context.folder is None or context.config.policy.samples_sequences:
            return
        folder = Path(context.folder).parent / FOLDER
        folder.mkdir(exist_ok=True)
        path, update, rank = folder / str(os.getpid()), Training.update, context.rank

        @wraps(update)
        def watched(training: Training, batch: Any, **forward: Any) -> Any:
            columns = batch.columns
            if isinstance(columns, dict) and "reward" in columns:
                with path.with_suffix(f".{rank}").open("ab") as file:
                    if file.tell() < MOST * ROW.itemsize:
                        file.write(
                            rows_of(columns, batch.unique_ids, training.train_iter).tobytes()
                        )
            return update(training, batch, **forward)

        Training.update = watched  # type: ignore[method-assign]


def rows_of(columns: Mapping[str, Any], ids: Any, train_iter: int) -> np.ndarray[Any, Any]:
    """Returns the rows of a batch."""
    arrays = {name: column.detach().cpu().numpy() for name, column in columns.items()}
    rows = np.zeros(len(arrays["reward"]), ROW)
    rows["update"] = train_iter
    if len(ids) == len(rows):
        rows["id"] = ids
    for name, root in (("seen", "observation"), ("acted", "action"), ("next", "next_observation")):
        if any(key.partition("/")[0] == root for key in arrays):
            rows[name] = checksums(arrays, root)
    for name in ("reward", "n_step_return", "bootstrap_discount"):
        if name in arrays:
            rows[name] = arrays[name]
    return rows
