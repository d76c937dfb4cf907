"""A collector that stands in for a real one in tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.config.schema import SystemConfig
from hpcdi.errors import CommError
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.transport import open_transport
from hpcdi.types import ITEM_DTYPE, Columns

_FILES = 20
_STEPS = 16


class NaiveCollector:
    """Publishes twenty shards of random steps, one a data task, then reports that it is done.

    Args:
        layout: the run folder; anything else, such as an address: the present folder.
        prefix: goes before the task's name in the shards' paths.
        seed: of the random steps.
    """

    def __init__(self, layout: Any = None, *_args: Any, prefix: str = "", seed: int = 0) -> None:
        layout = layout if isinstance(layout, RunLayout) else RunLayout(Path.cwd())
        self._transport, self._prefix = open_transport(SystemConfig(), layout), prefix
        self._rng = np.random.default_rng(seed)
        self._task: dict[str, Any] = {}
        self._count = 0

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Run task ``resource, collector_start_task, collector_data_task, collector_close_task``.

        Raises:
            CommError: the task has another name, or comes before a start.
        """
        name = task.get("name")
        if name == "resource":
            return {"gpu": 0, "cpu": 1}
        if name == "collector_start_task":
            self._task, self._count = dict(task["task_info"]), 0
            return {"message": "collector task has started"}
        if name == "collector_data_task" and self._task:
            return self._next_data()
        if name == "collector_close_task" and self._task:
            self._task = {}
            return {"collector_done": True, "step_count": self._count * _STEPS}
        raise CommError(f"a naive collector cannot do {name!r} now")

    def _next_data(self) -> dict[str, Any]:
        names = {key: self._task[key] for key in ("task_id", "buffer_id")}
        if self._count == _FILES:
            return {"collector_done": True, "cur_step": self._count * _STEPS, **names}
        self._count += 1
        path = f"data/naive/{self._prefix}{self._task['task_id']}/{self._count:06d}.h5"
        publisher = self._transport.publisher(lambda _shard, _block: None)
        publisher.submit(path, self._get_timestep())
        publisher.close()
        return {"collector_done": False, "data_id": path, "unroll_len": _STEPS, **names}

    def _get_timestep(self) -> Block:
        """Random steps of one environment, as one item."""
        items = np.zeros(1, dtype=ITEM_DTYPE)
        items["item_len"] = _STEPS
        columns: Columns = {
            "obs": self._rng.random((_STEPS, 4), dtype=np.float32),
            "action": self._rng.integers(0, 2, _STEPS),
            "reward": self._rng.random(_STEPS, dtype=np.float32),
            "done": np.zeros(_STEPS, dtype=bool),
        }
        return Block(columns, items)
