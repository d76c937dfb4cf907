"""DI-engine's message side of a collector: task dicts at the door, files for data and policies."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdi.errors import CommError
from hpcdi.roles.collector.base_parallel_collector import BaseParallelCollector
from hpcdi.roles.learner.checkpointing import copied
from hpcdi.store.atomic import written_aside
from hpcdi.store.checkpoints import tensors_writer
from hpcdi.store.files import open_file
from hpcdi.store.policies import read_policy
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.threads import BackgroundThread
from hpcdi.worker.collector.comm.base_comm_collector import BaseCommCollector
from hpcdi.worker.slave import Slave

_LOOK_S = 0.1
"""From one look at whether the collector is still at work to the next."""
_WAITING = 1024
"""Metadata that nobody has fetched, at which the collector waits."""


class CollectorSlave(Slave):
    """Hands a coordinator's task dicts to the message side of a collector.

    It is made of an address, which means nothing here, and a ``callback_fn`` that has `CALLBACKS`.
    """

    CALLBACKS = (
        "deal_with_resource",
        "deal_with_collector_start",
        "deal_with_collector_data",
        "deal_with_collector_close",
    )

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Do task ``resource, collector_start_task, collector_data_task, collector_close_task``.

        Data name the task and its buffer, a result the task.

        Raises:
            TaskFail: the task is of another name.
        """
        name, call = task.get("name"), self._callback_fn
        if name == "resource":
            return dict(call["deal_with_resource"]())
        if name == "collector_start_task":
            self._task_info = task["task_info"]
            call["deal_with_collector_start"](self._task_info)
            return {"message": "collector task has started"}
        if name == "collector_data_task":
            data = call["deal_with_collector_data"]()
            return {**self._names(), **data} if data else {}
        if name == "collector_close_task":
            result = dict(call["deal_with_collector_close"]())
            return {**result, "task_id": self._task_info["task_id"]} if result else {}
        raise self._unknown(task, "collector")


class FlaskFileSystemCollector(BaseCommCollector, Closing):
    """A collector on a thread of this process, whose coordinator is the caller.

    `deal_with_collector_start`, then `deal_with_collector_data` for the metadata of each sample, in
    turn, until one says ``collector_done``; then `deal_with_collector_close`. A `CollectorSlave`
    with this object's callbacks is its attribute ``slave``.

    Args:
        cfg: ``path_data`` and ``path_policy``, folders of samples and of policies (default: the
            present one). Its ``host`` and ``port`` mean nothing here.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._path_data = Path(self._cfg.get("path_data", "."))
        self._path_policy = Path(self._cfg.get("path_policy", "."))
        self._metadata: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._read: tuple[dict[str, Any], int] = ({}, 0)
        """The policy that was read last, and its train iteration."""
        self._seen: tuple[str, int, int, int] | None = None
        """Its path, and of its file inode, time of change and size; None: none was read."""
        self._collector: BaseParallelCollector | None = None
        self._thread: BackgroundThread | None = None
        self.slave = CollectorSlave.of(self)

    def close(self) -> None:
        """End the task, if one is under way. Idempotent."""
        self.deal_with_collector_close()
        super().close()

    # ---------------------------------------------------------------- called by the coordinator

    def deal_with_resource(self) -> dict[str, int]:
        """Returns the numbers of GPUs and cores of this process."""
        import torch

        return {"gpu": torch.cuda.device_count(), "cpu": len(os.sched_getaffinity(0))}

    def deal_with_collector_start(self, task_info: Mapping[str, Any]) -> None:
        """Make a collector of a task, and start it on a thread.

        Args:
            task_info: see `_create_collector`.

        Raises:
            CommError: a task is under way.
        """
        if self._thread is not None:
            raise CommError("the collector's last task has not been closed")
        self._metadata = queue.SimpleQueue()
        self._collector = collector = self._create_collector(task_info)
        setattr(collector, "is_full", lambda: self._metadata.qsize() >= _WAITING)  # noqa: B010
        self._thread = BackgroundThread(collector.start, "collector", at_exit=collector.stop)

    def deal_with_collector_data(self) -> dict[str, Any]:
        """Returns the oldest metadata not fetched yet; waits for some while the collector works.

        Empty where there are none and none will come.
        """
        while True:
            is_at_work = self._thread is not None and self._thread.is_alive
            try:
                return dict(self._metadata.get(timeout=_LOOK_S if is_at_work else 0.0))
            except queue.Empty:
                if not is_at_work:
                    if self._thread is not None:
                        self._thread.check()
                    return {}

    def deal_with_collector_close(self) -> dict[str, Any]:
        """End the task; returns its result, see `get_finish_info`; empty without a task."""
        thread, self._thread = self._thread, None
        collector, self._collector = self._collector, None
        if thread is None or collector is None:
            return {}
        collector.stop()
        thread.join()
        info = collector.get_finish_info()
        collector.close()
        thread.check()
        return info

    # -------------------------------------------------------------------- called by the collector

    def get_policy_update_info(self, path: str) -> dict[str, Any] | None:
        """Returns ``{"model", "iter"}`` of a policy's file; None: there is none yet.

        The file is read where it has changed since the last call; until then the tensors are the
        same.

        Args:
            path: below ``path_policy``.

        Raises:
            PolicyFileError: it is torn, or no policy of ours.
        """
        file = self._path_policy / path
        if not path or not file.exists():
            return None
        seen = None
        # opened, as NFS may say old things of a name; `read_policy` says what is wrong with a file
        with contextlib.suppress(OSError), open_file(file) as opened:
            state = os.fstat(opened.fileno())
            seen = (path, state.st_ino, state.st_mtime_ns, state.st_size)
        if seen is None or seen != self._seen:  # it may be asked for every few milliseconds
            image = read_policy(file)
            self._read, self._seen = (image.state_dict(), image.version), seen
        model, version = self._read
        return {"model": dict(model), "iter": version}

    def send_stepdata(self, path: str, stepdata: Any) -> None:
        """Write samples to a file, whole or not at all, for `load_data_fn` of the learner.

        Args:
            path: below ``path_data``.
            stepdata: a list of samples, one sample, or bytes that a compressor made of them. A
                sample is a dict of what `save_tensors` takes; other mappings come back as dicts.

        Raises:
            UnsavableError: it holds something else, e.g. a named tuple; nothing is written.
        """
        write, file = tensors_writer(copied(stepdata)), self._path_data / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(file) as aside:
            write(aside)

    def send_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Queue metadata for `deal_with_collector_data`."""
        self._metadata.put(metadata)
