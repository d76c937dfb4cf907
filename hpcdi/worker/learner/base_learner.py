"""DI-engine's learner: a training with hooks by position, a log by kind, and data of any form.

`BaseLearner.train` takes what its policies take, also lists of dicts and batches of several tasks;
`BaseLearner.start` takes batches from a port, whose samples may be functions that load them.
"""

from __future__ import annotations

import heapq
import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from hpcdi.config.compat import Configurable
from hpcdi.config.fields import setting
from hpcdi.config.roles import LearnerConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import PolicyError
from hpcdi.policy.base import LearnMode
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.learner.checkpointing import (
    BY_ITERATION,
    FINAL,
    checkpoint_name,
    copied,
)
from hpcdi.roles.learner.training import Batch, Log, NoLogError, Training, TrainingCallback
from hpcdi.store.atomic import written_aside
from hpcdi.store.checkpoints import SUFFIXES, save_tensors
from hpcdi.types import Array
from hpcdi.utils.disk import advice
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import CHART, HISTOGRAM, CountVar, CurveWriter, PartCurves, ScalarMonitor
from hpcdi.utils.registry import LEARNER_REGISTRY
from hpcdi.worker.collectives import place_in_group
from hpcdi.worker.errors import HookError, NoDataError, NoPolicyError
from hpcdi.worker.learner.learner_hook import (
    POSITIONS,
    LearnerHook,
    LogPolicyHook,
    SaveCkptHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
    no_hooks,
)
from hpcdi.worker.names import TableLog
from hpcdi.worker.names import TickMonitor as TickMonitor
from hpcdi.worker.names import get_simple_monitor_type as get_simple_monitor_type
from hpcdi.worker.registered import class_of


class LearnerPort(Protocol):
    """A learner's requests to whoever has its batches and takes its policies."""

    @abstractmethod
    def get_data(self, batch_size: int) -> Any:
        """Returns the next batch, None at the end of the run."""
        ...

    @abstractmethod
    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish a policy; ``state_dict["model"]`` holds its parameters."""
        ...

    def wants_policy(self, train_iter: int) -> bool:
        """Returns whether a policy of this iteration should be published."""
        ...

    @abstractmethod
    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Report progress."""
        ...


@dataclass(frozen=True)
class BaseLearnerConfig(LearnerConfig):
    """Settings of a learner in a program of one's own, which writes DI-engine's files, too."""

    ckpt_format: str = setting(
        "pth.tar",
        "'pth.tar': beside each checkpoint, a file that torch.load reads, as DI-engine's",
        choices=("folder", "pth.tar"),
    )


class BaseLearner(Configurable, Training):
    """Updates a policy from batches and calls hooks around each update.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        policy: a learn mode; may be set later.
        tb_logger: TensorBoard writer; in a parallel run rank 0 has it, not the learner.
        dist_info: rank in the learners' group, and its size; None: those of the process group that
            this process has joined. In a program of one's own the learners of such a group average
            their logs in each iteration, unless ``log_reduce_after_iter`` says otherwise.
        exp_name: name of the experiment.
        instance_name: prefix of TensorBoard tags.
        port: where `start` takes batches from, and hooks send policies and progress to.
        ckpt_dir: folder of the checkpoints; None: ``<exp_name>/ckpt``, followed by the instance's
            name where that is not "learner".

    Attributes:
        priority_info: ids and priorities of the last batch, as a replay buffer's `update` takes
            them; empty where the policy returned none; with several tasks one mapping a task.
        ckpt_name: name of the next checkpoint, if it is given none; None: by the iteration.
        log_buffer: what the policy returned last, by kind: scalar, scalars (charts), histogram. The
            curves show what hooks before ``log_show`` make of it; what hooks and callers add is
            part of one iteration, of the next one if it comes later.
        exp_name: name of the experiment.
        logger: what `info` and `debug` write to; lays out values as tables.
    """

    Config = BaseLearnerConfig
    MEAN_SUFFIX = "_avg"
    UNUSED: ClassVar[Mapping[str, Any]] = {
        "learner_type": None,
        "import_module": None,
        "load_path": None,
    }

    policy: Any
    log_buffer: dict[str, dict[str, Any]]
    priority_info: dict[str, Any]
    ckpt_name: str | None
    train_iter: int
    rank: int
    world_size: int
    exp_name: str
    logger: TableLog

    def __init__(
        self,
        cfg: Any = None,
        policy: Any = None,
        tb_logger: CurveWriter | None = None,
        dist_info: Sequence[int] | None = None,
        exp_name: str = "default_experiment",
        instance_name: str = "learner",
        *,
        port: LearnerPort | None = None,
        ckpt_dir: Path | None = None,
    ) -> None:
        config: LearnerConfig = self.parse_config(cfg)
        in_group = place_in_group()
        rank, world_size = dist_info if dist_info is not None else in_group
        hook = dict(config.hook)
        if isinstance(config, BaseLearnerConfig) and min(world_size, in_group[1]) > 1:
            wanted = hook.get("log_reduce_after_iter", True)
            hook["log_reduce_after_iter"] = 1 if wanted is True else wanted
        self._hooks = no_hooks()
        self._monitor: ScalarMonitor | None = None
        self._is_in_monitor = True  # what is in `log_buffer`
        self._returned: Log = {}  # the policy's last log, without priorities
        hooks = build_learner_hook_by_cfg(hook)
        suffix = "" if instance_name == "learner" else f"_{instance_name}"
        super().__init__(
            config,
            policy,
            callbacks=itertools.chain.from_iterable(hooks.values()),
            group=(rank, world_size),
            ckpt_dir=Path(ckpt_dir if ckpt_dir is not None else f"{exp_name}/ckpt{suffix}"),
            name=instance_name,
            curves=tb_logger,
        )
        self.exp_name, self.logger, self.ckpt_name = exp_name, TableLog(), None
        self._callers_curves = tb_logger
        self.priority_info = {}
        self.log_buffer = _by_kind({})
        self._port = port
        self._loader: SampleLoader | None = None
        self._is_saving = False  # its hook calls `save_checkpoint` back
        self._is_finite = True  # all losses so far
        self._missing: int | None = None  # batches that `start` has still to take; None outside it
        if config.log_policy:
            self.register_hook(LogPolicyHook())

    @classmethod
    def parse_config(cls, cfg: Any) -> Any:
        """See `Configurable.parse_config`; settings of a run over ranks are parsed already."""
        return cfg if isinstance(cfg, LearnerConfig) else super().parse_config(cfg)

    @property
    def is_of_run(self) -> bool:
        """True on a rank of a run, which may be resumed; not in a program of one's own."""
        return not isinstance(self._cfg, BaseLearnerConfig)

    def start(self) -> None:
        """Train until all iterations are done or the data end, then close; it may start again.

        A `tb_logger` that it was given is flushed alone: `close` closes it.

        In a program of one's own, iterations of a loaded checkpoint are not counted among them, a
        checkpoint that a hook names is loaded at each start, and an error is raised after a
        checkpoint, ``ckpt_exception``.
        """
        if self._loader is None:
            self.setup_dataloader()
        try:
            self.begin()
            done = 0 if self._port is None else self.train_iter
            self._missing = max(0, self._cfg.train_iterations - done)
            for data in itertools.islice(self._loader or (), self._missing):
                self._missing -= 1
                self._train(data)
            self.end()
        except Exception as error:
            if self._port is None:
                self._save_for(error)
            raise
        finally:
            self._missing = None
            self._rest()

    def _rest(self) -> None:
        """Close what it has opened itself; see `start`."""
        if self._loader is not None:
            self._loader.close()
        super().close()
        if self.curves is not self._callers_curves:
            PartCurves(self.curves, self.name).close()
            self.curves = None
        flush = getattr(self.curves, "flush", None)
        if flush is not None:
            flush()

    def _save_for(self, error: Exception) -> None:
        """Save a checkpoint before an error is raised, which names another one."""
        try:
            self.save_checkpoint("ckpt_exception.pth.tar")
        except Exception as another:
            error.add_note(f"no checkpoint could be written: {another}")

    def train(
        self, data: Any, envstep: int = -1, policy_kwargs: Mapping[str, Any] | None = None
    ) -> list[Log]:
        """Do one iteration; of several passes over a batch each log counts as one.

        Args:
            data: a batch as the policy takes it, or one of a replay buffer or a feed, which has
                ``columns`` and names its samples by ``unique_ids``. With several tasks, a list of
                batches.
            envstep: environment steps of the run so far; -1: not known.
            policy_kwargs: for the policy's forward.

        Returns:
            The policy's logs: one, one for each of several passes, or one a task; scalars alone.

        Raises:
            PolicyError: there is no policy, or priorities do not fit a batch of columns; in a run,
                also a loss that is not finite, which is a warning in a program of one's own.
        """
        self._check_policy()
        self.priority_info = {}
        kwargs = policy_kwargs or {}
        if self._cfg.is_multitask_pipeline:
            logs = self._train_tasks(data, envstep, kwargs)
        else:
            logs = super().update(self._batch_of(data, envstep), **kwargs)
        return [_scalars(log) for log in logs]

    def update(self, batch: Batch, **forward: Any) -> list[Log]:
        """See `Training.update`; a subclass may do an iteration in its own `train`."""
        return self._train(batch, forward)

    def _train(self, data: Any, forward: Mapping[str, Any] | None = None) -> list[Log]:
        """Call `train` with what is known: a subclass may define it for data alone."""
        env_steps = getattr(data, "env_steps", -1)
        if forward:
            return self.train(data, env_steps, forward)
        return self.train(data) if env_steps < 0 else self.train(data, env_steps)

    def check(self, log: Log, train_iter: int, task: str = "") -> None:
        """See `Training.check`; in a program of one's own a loss may be NaN, as PPG's at times."""
        try:
            super().check(log, train_iter, task)
        except NoLogError:
            raise
        except PolicyError as error:
            if self.is_of_run:
                raise
            if self._is_finite:
                LOGGER.warning("%s; further ones are not named", error)
            self._is_finite = False

    def return_priorities(self, log: Log, batch: Batch) -> None:
        """See `Training.return_priorities`; of items, the buffer that takes them checks them."""
        if not isinstance(batch.unique_ids, list):
            super().return_priorities(log, batch)
        elif log.get("priority") is not None:
            batch.feedback(log["priority"])

    def _note(self, log: Log) -> None:
        """Put an iteration's log into `log_buffer`, where others may have added to it already."""
        self._fill_monitor()  # with the last log, where an overridden `call_hook` has not
        log = {name: value for name, value in log.items() if name != "priority"}
        buffered = _as_log(self.log_buffer).items()
        added = {name: value for name, value in buffered if name not in self._returned}
        self.log_buffer = {**self.log_buffer, **_by_kind({**added, **log})}
        self._returned, self._is_in_monitor = log, False

    @property
    def monitor(self) -> ScalarMonitor | None:
        """Scalars since the last look; None: it keeps no log.

        Those in `log_buffer` are added when a hook of ``after_iter`` first asks for it, or after
        these hooks.
        """
        self._fill_monitor()
        return self._monitor

    @monitor.setter
    def monitor(self, monitor: ScalarMonitor | None) -> None:
        self._monitor = monitor

    def _fill_monitor(self) -> None:
        """Add `log_buffer` to the monitor, once; then only what the policy returned stays in it."""
        if self._is_in_monitor:
            return
        buffered = _as_log(self.log_buffer)
        if self._monitor is not None:
            self._monitor.add(buffered)
        stays = {name: value for name, value in buffered.items() if name in self._returned}
        self.log_buffer = {**self.log_buffer, **_by_kind(stays)}
        self._is_in_monitor = True

    def _train_tasks(self, data: Any, envstep: int, kwargs: Mapping[str, Any]) -> list[Log]:
        """Do one iteration on batches of several tasks: the policy returns a log of each."""
        self.prepare(envstep)
        parts = list(data) if isinstance(data, list | tuple) else [data]
        output = self.policy.forward([_columns(part) for part in parts], **kwargs)
        logs = output if isinstance(output, list) else [output]
        if len(parts) != len(logs):
            raise PolicyError(
                f"is_multitask_pipeline: the policy returned {len(logs)} logs of {len(parts)} "
                "batches; it must return a log for each task, in the order of the batches"
            )
        merged: dict[str, Any] = {}
        for place, (log, part) in enumerate(zip(logs, parts, strict=True)):
            task = f"task{log.get('task_id', place)}"
            self.check(log, self.train_iter + 1, task)
            self.return_priorities(log, self._batch_of(part, envstep, task))
            merged |= {_task_name(n, task): value for n, value in log.items() if n != "priority"}
        self.count(merged)
        return logs

    def _batch_of(self, data: Any, env_steps: int, task: str = "") -> Batch:
        """Returns data as a batch whose priorities are noted in `priority_info`."""
        ids = _sample_ids(data)
        passes_on = getattr(data, "feedback", None)

        def feedback(priority: Array) -> None:
            if passes_on is not None:
                passes_on(priority)
            noted = self.priority_info.setdefault(task, {}) if task else self.priority_info
            for name, value in {**ids, "priority": priority}.items():
                noted[name] = _joined(noted[name], value) if name in noted else value

        unique_ids = next(iter(ids.values()), ())
        began_at = getattr(data, "began_at", 0)
        return Batch(_columns(data), unique_ids, env_steps, feedback, began_at)

    def setup_dataloader(self) -> None:
        """Take batches from now on: from its own ``get_data(batch_size)``, or from the port."""
        get_data = getattr(self, "get_data", None) or getattr(self._port, "get_data", None)
        if get_data is None:
            raise NoDataError(
                "a learner without a port and without a method get_data(batch_size) has no data to "
                "start with; use train()"
            )
        self._check_policy()
        size = int(self.policy.get_attribute("batch_size"))
        self._loader = SampleLoader(lambda: get_data(size), self._cfg.dataloader.num_workers)

    def close(self) -> None:
        """Close the loader, the hooks and the TensorBoard writer. Idempotent."""
        self._rest()
        PartCurves(self.curves, self.name).close()
        self.curves = self._callers_curves = None

    # ------------------------------------------------------------------------------------- hooks

    def call_hook(self, name: str) -> None:
        """Call the hooks of a position in the order of their list, and a rank's own callbacks.

        Raises:
            KeyError: there is no such position.
        """
        if name not in POSITIONS:
            raise KeyError(f"a hook's position is one of {POSITIONS}, not {name!r}")
        if name == "after_iter":
            self._is_in_monitor = False
        called: Iterable[Any] = heapq.merge(
            list(self._hooks[name]), self._callbacks, key=lambda one: getattr(one, "priority", 100)
        )
        for one in called:
            if isinstance(one, TrainingCallback) and not isinstance(one, LearnerHook):
                _CALLS[name](one, self)
            else:  # a hook, or any function in its list
                one(self)
        self._fill_monitor()

    def begin(self) -> None:
        """See `Training.begin`."""
        self.call_hook("before_run")

    def end(self) -> None:
        """See `Training.end`."""
        self.call_hook("after_run")

    def _before_update(self) -> None:
        self.call_hook("before_iter")

    def _after_update(self, log: Log) -> None:  # noqa: ARG002 (`log_buffer` has it)
        self.call_hook("after_iter")

    def _place(self, callback: TrainingCallback) -> None:
        if isinstance(callback, LearnerHook):
            add_learner_hook(self._hooks, callback)
        else:
            super()._place(callback)

    def _all_callbacks(self) -> list[TrainingCallback]:
        """See `Training._all_callbacks`."""
        hooks: Iterable[Any] = itertools.chain.from_iterable(self._hooks.values())
        return [*(one for one in hooks if isinstance(one, TrainingCallback)), *self._callbacks]

    def register_hook(self, hook: LearnerHook) -> None:
        """Add a hook.

        Raises:
            HookError: it is none.
        """
        if not isinstance(hook, LearnerHook):
            raise HookError(f"{hook!r} is no LearnerHook")
        self.add(hook)

    def offer_policy(self, *, force: bool) -> None:
        """Publish the policy if a collector waits for it, or in any case with `force`."""
        if self._port is None:
            wants = "send_policy" in vars(self)  # a method that it was given, see `BaseCommLearner`
        else:
            wants = force or self._port.wants_policy(self.train_iter)
        if wants:
            model = self.policy.state_dict()["model"]
            self.send_policy({"model": model, "iter": self.train_iter})

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish a policy: ``model``, name -> tensor, and ``iter``, its train iteration."""
        if self._port is not None:
            self._port.send_policy(state_dict)

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Report progress."""
        if self._port is not None:
            self._port.send_learn_info(learn_info)

    # ------------------------------------------------------------------------------- checkpoints

    def save_checkpoint(self, ckpt_name: str | None = None) -> None:
        """Write a checkpoint, by the hook ``save_ckpt_after_run`` if the user has one of his own.

        Such a hook is called with the learner, whose attribute `ckpt_name` is the name; if it calls
        this method, the checkpoint is written as without it, see `Training.save_checkpoint`.

        With ``ckpt_format: pth.tar`` there is a file beside the folder, e.g. ``ckpt_best.pth.tar``,
        as DI-engine writes it: the policy's state, ``last_iter`` and ``last_step``; and no folder
        where the policy's weights are not name -> tensor. The file has just the name, if that has
        one of the endings `SUFFIXES`, else one with ``.pth.tar``. Beside ``ckpt_final``, which the
        end of a run writes, it has the attribute's name, or else that of the iteration.

        Args:
            ckpt_name: its name; None: that of the attribute, which then ends, or else by the
                iteration.

        Raises:
            ValueError: the name is no plain one.
            UnsavableError: the policy's state holds what could not be loaded again.
        """
        self._check_policy()
        of_attribute, self.ckpt_name = self.ckpt_name, None
        name = ckpt_name if ckpt_name is not None else of_attribute
        last: Iterable[Any] = self._hooks["after_run"]  # functions among them have no name
        hooks = [hook for hook in last if getattr(hook, "name", "") == "save_ckpt_after_run"]
        if hooks and type(hooks[0]) is not SaveCkptHook and not self._is_saving:
            self.ckpt_name, self._is_saving = name, True
            try:
                hooks[0](self)
            finally:
                self.ckpt_name, self._is_saving = None, False
            return
        is_file = self._cfg.ckpt_format == "pth.tar"
        if not is_file or _are_tensors(self.policy.state_dict().get("model")):
            super().save_checkpoint(name)
        if self.rank == 0 and is_file:
            self._save_as_file(of_attribute if name == FINAL else name)

    def _save_as_file(self, wanted: str | None) -> None:
        """Write a file as DI-engine does; a full disk is a warning, and does not end the run."""
        checkpoint_name(wanted, self.train_iter)  # a plain one
        name = wanted if wanted is not None else f"{BY_ITERATION}{self.train_iter}"
        path = self.ckpt_dir / (name if name.endswith(SUFFIXES) else f"{name}.pth.tar")
        counts = {"last_iter": self.train_iter, "last_step": self.env_steps}
        try:
            self.ckpt_dir.mkdir(parents=True, exist_ok=True)
            with written_aside(path) as aside:
                save_tensors(aside, copied({**self.policy.state_dict(), **counts}))
        except OSError as error:
            LOGGER.warning("%s could not be written: %s%s", path, error, advice(error))

    # ----------------------------------------------------------------------- by DI-engine's names

    @property
    def learn_info(self) -> dict[str, Any]:
        """``learner_step, priority_info, learner_done`` and the latest averaged scalars.

        In `start` the learner is done with its last batch, outside it with its last iteration.
        """
        missing = self._missing
        if missing is None:
            missing = self._cfg.train_iterations - self.train_iter
        return {
            "learner_step": self.train_iter,
            "priority_info": self.priority_info,
            "learner_done": missing <= 0,
            "scalars": dict(self.scalars),
        }

    @property
    def last_iter(self) -> CountVar:
        """Iterations that are done, as a counter."""
        return _TrainIter(self)

    @property
    def collector_envstep(self) -> int:
        """Environment steps of the run, as far as this learner knows."""
        return self.env_steps

    @collector_envstep.setter
    def collector_envstep(self, steps: int) -> None:
        self.env_steps = steps

    _collector_envstep = collector_envstep  # hooks that are written as DI-engine's ask for it

    @property
    def tb_logger(self) -> CurveWriter | None:
        """Takes curves; None on learners of a group that keep no log.

        Where the learner was given none, it is made when it is first asked for, in the folder
        ``<exp_name>/log/<instance_name>``, and takes the learner's curves from then on.
        """
        keeps_log = self.rank == 0 or not self._cfg.only_monitor_rank0
        if self.curves is None and keeps_log:
            from hpcdi.utils.event_file import TensorBoardWriter

            self.curves = TensorBoardWriter(f"{self.exp_name}/log/{self.name}")
        return self.curves

    @property
    def instance_name(self) -> str:
        """Prefix of TensorBoard tags."""
        return self.name

    def info(self, s: str) -> None:
        """Log a line."""
        self.logger.info(s)

    def debug(self, s: str) -> None:
        """Log a line for developers."""
        self.logger.debug(s)

    def _check_policy(self) -> None:
        if self.policy is None:
            raise NoPolicyError("the learner has no policy; set `learner.policy` before training")

    def __repr__(self) -> str:
        counts = {position: len(self._hooks[position]) for position in POSITIONS}
        return f"{type(self).__name__}(iterations={self.train_iter}, hooks={counts})"


_CALLS: dict[str, Callable[[TrainingCallback, BaseLearner], None]] = {
    "before_run": lambda callback, learner: callback.on_start(learner),
    "before_iter": lambda callback, learner: callback.on_batch(learner),
    "after_iter": lambda callback, learner: callback.on_update(
        learner, _as_log(learner.log_buffer)
    ),
    "after_run": lambda callback, learner: callback.on_end(learner),
}


class _TrainIter(CountVar):
    """A training's iterations that are done.

    Args:
        training: counts them.
    """

    def __init__(self, training: Training) -> None:
        self._training = training

    @property
    def val(self) -> int:
        """Their number."""
        return self._training.train_iter

    @val.setter
    def val(self, number: int) -> None:
        self._training.train_iter = number


def create_learner(cfg: Any, **kwargs: Any) -> BaseLearner:
    """Returns the learner that ``cfg.type`` names; other arguments go to its constructor.

    Raises:
        UnknownTypeError: no learner has that type (it is a KeyError).
    """
    learner: BaseLearner = class_of(LEARNER_REGISTRY, cfg)(cfg, **kwargs)
    return learner


def make_learner(context: WorkerContext, policy: LearnMode, group: tuple[int, int]) -> BaseLearner:
    """Returns the learner of a run over ranks; see `hpcdi.roles.learner.role.make_training`."""
    return create_learner(
        context.config.policy.learn.learner,
        policy=policy,
        dist_info=group,
        exp_name=context.config.exp_name,
        instance_name=context.learner_name,
        ckpt_dir=context.layout.checkpoints_of(context.agent),
    )


# ---------------------------------------------------------------------------------- data and logs


class SampleLoader(Iterator[Any]):
    """Yields batches, one after the other.

    A batch may be a list of functions without arguments, each of which returns a sample (from a
    file, perhaps), or be such a function itself.

    Args:
        get_batch: returns the next batch; None when no more will come.
        num_workers: threads that call the functions of a batch; 0: it is done here, in order.
    """

    def __init__(self, get_batch: Callable[[], Any], num_workers: int = 0) -> None:
        self._get_batch, self._num_workers = get_batch, num_workers
        self._pool: ThreadPoolExecutor | None = None

    def __next__(self) -> Any:
        """Returns the next batch, all samples in their order; errors of loading one come here."""
        batch = self._get_batch()
        if batch is None:
            raise StopIteration
        batch = _loaded(batch)
        if not isinstance(batch, list) or not any(map(callable, batch)):
            return batch
        if self._num_workers == 0:
            return list(map(_loaded, batch))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_workers, "sample-loader")
        return list(self._pool.map(_loaded, batch))

    def close(self) -> None:
        """End the threads; the next batch would start them again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _loaded(sample: Any) -> Any:
    return sample() if callable(sample) else sample


_MARKS = {"scalar": "", "scalars": CHART, "histogram": HISTOGRAM}
"""Kind of values in a `log_buffer` -> how their names begin in a log."""


def _mark_of(name: str) -> str:
    return next((mark for mark in (CHART, HISTOGRAM) if name.startswith(mark)), "")


def _by_kind(log: Log) -> dict[str, dict[str, Any]]:
    """Returns a log's values by their kinds: scalar, scalars (charts) and histogram."""
    return {
        kind: {n.removeprefix(mark): value for n, value in log.items() if _mark_of(n) == mark}
        for kind, mark in _MARKS.items()
    }


def _as_log(log_buffer: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what `_by_kind` has made of a log as a log; other kinds are a hook's own."""
    of_kinds = [(mark, log_buffer.get(kind, {})) for kind, mark in _MARKS.items()]
    return {f"{mark}{name}": value for mark, values in of_kinds for name, value in values.items()}


def _scalars(log: Log) -> dict[str, Any]:
    """Returns a log's scalars: what is neither priorities, nor a chart, nor a histogram."""
    return {n: value for n, value in log.items() if not _mark_of(n) and n != "priority"}


def _are_tensors(model: Any) -> bool:
    """Returns whether weights are name -> tensor."""
    if not isinstance(model, Mapping):
        return False
    return all(isinstance(name, str) and hasattr(one, "detach") for name, one in model.items())


def _columns(data: Any) -> Any:
    """Returns a batch as the policy's forward takes it."""
    return getattr(data, "columns", data)


def _task_name(name: str, task: str) -> str:
    mark = _mark_of(name)
    return f"{mark}{task}/{name.removeprefix(mark)}"


def _sample_ids(data: Any) -> dict[str, Any]:
    """Returns the ids of a batch's samples, None where a dict has none; empty for other batches."""
    ids = getattr(data, "unique_ids", None)
    if ids is not None:
        return {"unique_ids": ids}
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        names = ("replay_unique_id", "replay_buffer_idx")
        return {name: [item.get(name) for item in data] for name in names}
    return {}


def _joined(one: Any, other: Any) -> Array | list[Any]:
    return np.concatenate([one, other]) if isinstance(one, np.ndarray) else [*one, *other]
