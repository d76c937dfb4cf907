"""DI-engine's message side of a learner: task dicts at the door, files for data and policies."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcdi.errors import CheckpointError, CommError
from hpcdi.store.checkpoints import load_tensors
from hpcdi.store.policies import PolicyImage, publish_policy
from hpcdi.store.shards import read_block
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.threads import BackgroundThread
from hpcdi.worker.learner.base_learner import BaseLearner
from hpcdi.worker.learner.comm.base_comm_learner import BaseCommLearner
from hpcdi.worker.learner.learner_hook import LearnerHook, SendLearnInfoHook, SendPolicyHook
from hpcdi.worker.slave import Slave

__all__ = ["FlaskFileSystemLearner", "LearnerSlave", "SendLearnInfoHook", "SendPolicyHook"]

_LOOK_S = 0.1
"""From one look at whether the other side is still there to the next."""


class LearnerSlave(Slave):
    """Hands a coordinator's task dicts to the message side of a learner.

    It is made of an address, which means nothing here, and a ``callback_fn`` that has `CALLBACKS`.
    """

    CALLBACKS = (
        "deal_with_resource",
        "deal_with_learner_start",
        "deal_with_get_data",
        "deal_with_learner_learn",
        "deal_with_learner_close",
    )

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Do a task: ``resource``, or ``learner_*_task`` of ``start, get_data, learn, close``.

        Results name the task and its buffer.

        Raises:
            TaskFail: the task is of another name.
        """
        name, call = task.get("name"), self._callback_fn
        if name == "resource":
            return dict(call["deal_with_resource"]())
        if name == "learner_start_task":
            self._task_info = task["task_info"]
            call["deal_with_learner_start"](self._task_info)
            return {"message": "learner task has started"}
        if name == "learner_get_data_task":
            return {**self._names(), **call["deal_with_get_data"]()}
        if name == "learner_learn_task":
            return {**self._names(), "info": call["deal_with_learner_learn"](task["data"])}
        if name == "learner_close_task":
            call["deal_with_learner_close"]()
            return self._names()
        raise self._unknown(task, "learner")


class FlaskFileSystemLearner(BaseCommLearner, Closing):
    """A learner on a thread of this process, whose coordinator is the caller.

    One after the other: `deal_with_learner_start`, then for each iteration `deal_with_get_data`
    (what the learner asks for) and `deal_with_learner_learn` (metadata of that many samples; it
    returns once they are learnt from), then `deal_with_learner_close`. A `LearnerSlave` with this
    object's callbacks is its attribute ``slave``.

    Args:
        cfg: ``path_data`` and ``path_policy``, folders of samples and of policies (default: the
            present one); ``multi_gpu``; ``send_policy_freq``, iterations between two policies. Its
            ``host``, ``port`` and ``aggregator`` mean nothing here.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._path_data = Path(self._cfg.get("path_data", "."))
        self._path_policy = Path(self._cfg.get("path_policy", "."))
        self._policy_id = ""
        self._demands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._data: queue.SimpleQueue[Sequence[Mapping[str, Any]]] = queue.SimpleQueue()
        self._infos: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._info: Mapping[str, Any] | None = None
        """The last one of the batch that is being learnt from; None where there is no batch."""
        self._learner: BaseLearner | None = None
        self._thread: BackgroundThread | None = None
        self._is_ending = False
        self.slave = LearnerSlave.of(self)

    def close(self) -> None:
        """End the task, if one is under way; leave the process group. Idempotent."""
        self.deal_with_learner_close()
        super().close()

    # ---------------------------------------------------------------- called by the coordinator

    def deal_with_resource(self) -> dict[str, int]:
        """Returns the number of GPUs, one for each learner: ``{"gpu": ...}``."""
        return {"gpu": self._world_size}

    def deal_with_learner_start(self, task_info: Mapping[str, Any]) -> None:
        """Make a learner of a task, and start it on a thread.

        Args:
            task_info: ``policy_id``, the file of its policies below ``path_policy``; and what
                `_create_learner` takes.

        Raises:
            CommError: a task is under way.
        """
        if self._thread is not None:
            raise CommError("the learner's last task has not been closed")
        self._policy_id = str(task_info.get("policy_id", ""))
        learner = self._create_learner(task_info)
        for hook in self.hooks4call:
            learner.register_hook(hook)
        self._demands, self._data, self._infos = (queue.SimpleQueue() for _ in range(3))
        self._learner, self._is_ending, self._info = learner, False, None
        self._thread = BackgroundThread(learner.start, "learner", at_exit=self._end_soon)

    def deal_with_get_data(self) -> dict[str, Any]:
        """Returns what the learner asks for, ``batch_size`` and ``cur_learner_iter``; waits for it.

        Empty where no learner is at work any more.
        """
        return dict(self._next(self._demands) or {})

    def deal_with_learner_learn(self, data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Let the learner learn from a batch; returns its info, see `BaseLearner.learn_info`.

        Of several passes over the batch it is that of the last one.

        Args:
            data: metadata of each sample: ``data_id``, its file below ``path_data``, and what else
                the policy is to find in the sample; see `load_data_fn`.

        Raises:
            CommError: no task has begun.
        """
        if self._thread is None:
            raise CommError("there is no learner task to learn for")
        self._data.put(data)
        info = dict(self._next(self._infos) or self._info or {})
        if info.get("learner_done"):
            self.deal_with_learner_close()
        return info

    def deal_with_learner_close(self) -> None:
        """End the task: the learner stops after its iteration. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._end_soon()
        thread.join()
        self._learner = None
        thread.check()

    def _end_soon(self) -> None:
        """Have the learner end after its iteration."""
        self._is_ending = True

    # --------------------------------------------------------------------- called by the learner

    def get_data(self, batch_size: int) -> list[Callable[[], Any]] | None:
        """Ask the coordinator for samples; returns functions that load them; None: the task ends.

        Args:
            batch_size: number of samples.

        Raises:
            CommError: there is no task, so that nobody would answer.
        """
        if self._learner is None:
            raise CommError("there is no learner task: nobody would answer")
        info, self._info = self._info, None
        if info is not None:
            self._infos.put(info)
        demand = {"batch_size": batch_size, "cur_learner_iter": self._learner.train_iter}
        self._demands.put(demand)
        while not self._is_ending:
            metas = _taken(self._data)
            if metas is not None:
                self._info = {}
                folder, load = self._path_data, self.load_data_fn
                return [partial(load, folder / meta["data_id"], meta, _unchanged) for meta in metas]
        return None

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Write a policy's file, whole or not at all.

        Args:
            state_dict: ``model``, name -> tensor, and ``iter``, its train iteration (default: the
                learner's).

        Raises:
            CommError: no task has said the policy's name.
        """
        if not self._policy_id:
            raise CommError("a task's policy_id names the file of its policies; none has begun")
        now = 0 if self._learner is None else self._learner.train_iter
        image = PolicyImage.of(state_dict["model"], int(state_dict.get("iter", now)))
        self._path_policy.mkdir(parents=True, exist_ok=True)
        publish_policy(self._path_policy / self._policy_id, image, fsync=False)

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Hand progress to `deal_with_learner_learn`, which returns the last one of a batch."""
        self._info = learn_info

    @staticmethod
    def load_data_fn(
        path: str | Path,
        meta: Mapping[str, Any],
        decompressor: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Returns a sample of a file with metadata over it, or a list of them, a sequence.

        Args:
            path: of a file of `FlaskFileSystemCollector.send_stepdata`, or a shard of any run,
                which is one sample, its columns.
            meta: merged over each sample. Of a list of samples ``unroll_split_begin`` is the number
                of the first, and ``unroll_len`` how many: one is a sample, more are a list.
            decompressor: applied to what was read first.

        Raises:
            ShardError: the shard is missing, torn, or not one of ours.
            CheckpointError: the file of samples is torn, or holds something else, as bytes are.
        """
        read = load_tensors(Path(path)) if _holds_samples(Path(path)) else read_block(path).columns
        read = decompressor(read) if decompressor is not None else read
        if isinstance(read, Mapping):
            return {**read, **meta}
        if not isinstance(read, list | tuple):
            raise CheckpointError(
                path, f"holds {type(read).__name__}, no samples: give what decompresses them"
            )
        begin, length = int(meta.get("unroll_split_begin", 0)), int(meta.get("unroll_len", 1))
        samples = [{**sample, **meta} for sample in read[begin : begin + length]]
        return samples[0] if length == 1 else samples

    @property
    def hooks4call(self) -> list[LearnerHook]:
        """Hooks by which the learner writes its policy and reports each iteration."""
        freq = {"send_policy_freq": int(self._cfg.get("send_policy_freq", 1))}
        return [
            SendPolicyHook("send_policy", 100, position="before_run", ext_args=freq),
            SendPolicyHook("send_policy", 100, position="after_iter", ext_args=freq),
            SendLearnInfoHook("send_learn_info", 10, position="after_iter", ext_args={"freq": 1}),
        ]

    def _next(self, messages: queue.SimpleQueue[Any]) -> Any:
        """Returns the next of the learner's messages; None where it has ended; raises its error."""
        while self._thread is not None:
            was_alive = self._thread.is_alive
            message = _taken(messages)
            if message is not None:
                return message
            if not was_alive:
                self._thread.check()
                break
        return None


def _taken(messages: queue.SimpleQueue[Any]) -> Any:
    """Returns the next message, once there is one; None where it takes long."""
    with contextlib.suppress(queue.Empty):
        return messages.get(timeout=_LOOK_S)
    return None


def _unchanged(read: Any) -> Any:
    """The decompressor of files that are not compressed: a subclass may call it."""
    return read


def _holds_samples(path: Path) -> bool:
    """Returns whether a file is one of samples, as `save_tensors` writes it (a zip archive)."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(2) == b"PK"
    return False
