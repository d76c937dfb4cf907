"""The training loop."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hpcdi.config.compat import Configurable, component_class
from hpcdi.errors import GroupBrokenError, PolicyError
from hpcdi.utils.metrics import ScalarMonitor
from hpcdi.utils.registry import LEARNER_REGISTRY
from hpcdi.worker.learner.checkpointing import (
    checkpoint_name,
    save_learner,
    shared_state,
    take_shared_state,
)
from hpcdi.worker.learner.dataloader import SampleLoader
from hpcdi.worker.learner.hooks import LogPolicyHook
from hpcdi.worker.learner.learner_hook import (
    POSITIONS,
    LearnerHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
)
from hpcdi.worker.learner.learner_view import LearnerIdentity, LearnerState, LearnerView
from hpcdi.worker.learner.port import LearnerPort
from hpcdi.worker.learner.settings import LearnerConfig
from hpcdi.worker.learner.update_log import for_forward, read_logs, tell_priorities


@LEARNER_REGISTRY.register("base")
class BaseLearner(LearnerView, Configurable):
    """Lets a policy update from batches, with hooks around.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        policy: a learn mode; may be set later.
        tb_logger: TensorBoard writer; in a parallel run rank 0 has it, not the learner.
        dist_info: rank in the learners' group, and its size.
        exp_name: name of the experiment.
        instance_name: prefix of TensorBoard tags.
        port: to the message side; needed by `start`.
        ckpt_dir: folder of the checkpoints; None: ``<exp_name>/ckpt``, followed by the instance's
            name where that is not "learner".
    """

    Config: ClassVar[type] = LearnerConfig

    _cfg: Any

    def __init__(
        self,
        cfg: Any = None,
        policy: Any = None,
        tb_logger: Any = None,
        dist_info: Sequence[int] | None = None,
        exp_name: str = "default_experiment",
        instance_name: str = "learner",
        *,
        port: LearnerPort | None = None,
        ckpt_dir: Path | None = None,
    ) -> None:
        self._cfg = self.parse_config(cfg)
        rank, world_size = dist_info if dist_info is not None else (0, 1)
        suffix = "" if instance_name == "learner" else f"_{instance_name}"
        folder = Path(ckpt_dir if ckpt_dir is not None else f"{exp_name}/ckpt{suffix}")
        self._identity = LearnerIdentity(exp_name, instance_name, rank, world_size, folder)
        self._port, self._policy = port, policy
        self._tb_logger = tb_logger
        self._state = LearnerState(monitor=ScalarMonitor() if self.shows_log else None)
        self._loader: SampleLoader | None = None
        self._hooks = build_learner_hook_by_cfg(self._cfg.hook)
        for hook in itertools.chain.from_iterable(self._hooks.values()):
            self._meet(hook)
        if self._cfg.log_policy:
            self.register_hook(LogPolicyHook())

    def start(self) -> None:
        """Iterate until all iterations are done or no more data come, then close."""
        if self._loader is None:
            self.setup_dataloader()
        try:
            self.call_hook("before_run")
            left = max(0, self._cfg.train_iterations - self.train_iter)
            for data in itertools.islice(self._loader or (), left):
                while not self._train_with_others(data):
                    pass
            self.call_hook("after_run")
        finally:
            self.close()

    def train(
        self, data: Any, envstep: int = -1, policy_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """One iteration.

        Args:
            data: a batch as the policy takes it; its attribute ``unique_ids``, if it has one, names
                the samples for their priorities. With several tasks, a list of them.
            envstep: environment steps of the run so far; -1: not known.
            policy_kwargs: for the policy's forward.

        Raises:
            PolicyError: there is no policy; or the loss is not finite any more; or what the policy
                gives does not fit the batch.
        """
        policy, is_multitask = self._the_policy(), self._cfg.is_multitask_pipeline
        if envstep >= 0:
            self._state.collector_envstep = envstep
        self.call_hook("before_iter")
        outputs = policy.forward(
            for_forward(data, is_multitask=is_multitask), **(policy_kwargs or {})
        )
        logs = read_logs(outputs, data, is_multitask=is_multitask)
        for log in logs:
            log.check(self.train_iter + 1)
        self._state.priority_info = tell_priorities(logs)
        if self._state.monitor is not None:
            for log in logs:
                self._state.monitor.add(log.scalars())
        self._state.last_iter.add(1)
        self.call_hook("after_iter")

    def _train_with_others(self, data: Any) -> bool:
        """One iteration; false where another learner has died meanwhile, and it is to be redone."""
        try:
            self.train(data, getattr(data, "env_steps", -1))
        except GroupBrokenError as broken:
            if self._port is None:
                raise
            return not self._port.regroup(broken)
        return True

    def setup_dataloader(self) -> None:
        """Batches from the message side, one after the other."""
        if self._port is None:
            raise PolicyError("a learner without a port has no data to start with; use train()")
        port, size = self._port, int(self._the_policy().get_attribute("batch_size"))
        self._loader = SampleLoader(lambda: port.get_data(size), self._cfg.dataloader.num_workers)

    def close(self) -> None:
        """Let go of what the loading of samples and the hooks hold; again: nothing."""
        if self._loader is not None:
            self._loader.close()
        for hook in itertools.chain.from_iterable(self._hooks.values()):
            hook.close()

    def call_hook(self, name: str) -> None:
        """Call the hooks of a position."""
        for hook in self._hooks[name]:
            hook(self)

    def register_hook(self, hook: LearnerHook) -> None:
        """Add a hook."""
        add_learner_hook(self._hooks, hook)
        self._meet(hook)

    def save_checkpoint(self, ckpt_name: str | None = None) -> None:
        """Write a checkpoint; of a group, the first learner does.

        A disk that is full is told, and does not end the run.

        Args:
            ckpt_name: its name, e.g. ``ckpt_best.pth.tar``, whose ending is dropped; None: that of
                `ckpt_name`, or else by the iteration.

        Raises:
            ValueError: the name is no plain one.
        """
        given = ckpt_name if ckpt_name is not None else self.ckpt_name
        name = checkpoint_name(given, self.train_iter)
        self._the_policy()
        if self.rank == 0:
            save_learner(self, name, self._cfg.keep_checkpoints)

    def state_to_share(self) -> dict[str, Any]:
        """Weights, optimizer and counters, for the other learners of its group."""
        return shared_state(self)

    def take_shared_state(self, state: Mapping[str, Any]) -> None:
        """Be as the learner that gave `state_to_share`, but for random numbers."""
        take_shared_state(self, state)

    def move(self, rank: int, world_size: int) -> None:
        """Have another rank in the learners' group."""
        self._identity = dataclasses.replace(self._identity, rank=rank, world_size=world_size)
        if self.shows_log and self._state.monitor is None:
            self._state.monitor = ScalarMonitor()

    def offer_policy(self, *, force: bool) -> None:
        """Publish the policy if somebody waits for it, or in any case."""
        if self._port is not None and (force or self._port.wants_policy(self.train_iter)):
            self._port.send_policy(self._policy.state_dict())

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Tell the coordinator."""
        if self._port is not None:
            self._port.send_learn_info(learn_info)

    @property
    def shows_log(self) -> bool:
        """Whether it writes a log: of a group, only the first learner does, if not told to."""
        return self.rank == 0 or not self._cfg.only_monitor_rank0

    @property
    def learn_info(self) -> dict[str, Any]:
        """``learner_step, priority_info, learner_done`` and the latest averaged scalars."""
        return {
            "learner_step": self.train_iter,
            "priority_info": self.priority_info,
            "learner_done": self.train_iter >= self._cfg.train_iterations,
            "scalars": dict(self.log_buffer),
        }

    def _the_policy(self) -> Any:
        if self._policy is None:
            raise PolicyError("the learner has no policy; set `learner.policy` before training")
        return self._policy

    def _meet(self, hook: LearnerHook) -> None:
        """Keep a log where a hook needs one that nobody is shown."""
        if getattr(hook, "needs_monitor", False) and self._state.monitor is None:
            self._state.monitor = ScalarMonitor()

    def __repr__(self) -> str:
        counts = {position: len(self._hooks[position]) for position in POSITIONS}
        return f"{type(self).__name__}(iterations={self.train_iter}, hooks={counts})"


def create_learner(cfg: Any, **kwargs: Any) -> BaseLearner:
    """The learner that ``cfg.type`` names; other arguments go to its constructor.

    Raises:
        UnknownTypeError: no learner has that type (it is a KeyError).
    """
    learner: BaseLearner = component_class(LEARNER_REGISTRY, cfg)(cfg, **kwargs)
    return learner
