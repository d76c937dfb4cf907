"""Evaluation: environments stepped by policies until each has played its quota of episodes.

Life of an evaluator::

    made ──reset_env: launch──► ready ──eval──► env.reset, policy.reset, episodes ──► ready
                                  │                                                     │
                                  └────────────────────── close ◄───────────────────────┘

Among several learners (torch.distributed) rank 0 evaluates and broadcasts the result, so that all
end together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcdi.config.compat import Configurable
from hpcdi.config.roles import (
    BattleEvaluatorConfig,
    EvaluatorConfig,
    InteractionEvaluatorConfig,
    RenderConfig,
)
from hpcdi.errors import Problem
from hpcdi.roles.collector.loop import Loop, PolicyAgent, evaluate
from hpcdi.roles.coordinator.groups import EvaluationClock
from hpcdi.store.atomic import published
from hpcdi.store.disk_full import or_warn
from hpcdi.types import Episodes, Interval, Step
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import PartCurves, evaluation_scalars, human_return
from hpcdi.utils.nested import to_tensors, unflatten
from hpcdi.utils.registry import SERIAL_EVALUATOR_REGISTRY
from hpcdi.utils.timer import EasyTimer
from hpcdi.utils.video import encode_video
from hpcdi.worker.collectives import on_first_rank, place_in_group
from hpcdi.worker.collector.eval_monitor import NAMES, Camera
from hpcdi.worker.collector.eval_monitor import VectorEvalMonitor as VectorEvalMonitor
from hpcdi.worker.dict_envs import ours, to_items
from hpcdi.worker.dict_policy import DictActor, columnar_actor
from hpcdi.worker.errors import NoEnvError, NoPolicyError, QuotaError
from hpcdi.worker.names import TableLog
from hpcdi.worker.registered import KnownClass, class_of


class ISerialEvaluator(Configurable, ABC):
    """Evaluates a policy every so often, and decides when it is good enough."""

    @abstractmethod
    def reset_env(self, _env: Any = None) -> None:
        """Reset the environments; or replace them by others, which it launches.

        Args:
            _env: replaces the current manager, which its owner closes; None: that is reset.

        Raises:
            EnvError: there is none to reset.
        """

    @abstractmethod
    def reset_policy(self, _policy: Any = None) -> None:
        """Reset the policy; or replace it.

        Args:
            _policy: replaces the current one; None: that is reset.

        Raises:
            PolicyError: there is none to reset.
        """

    @abstractmethod
    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """`reset_policy` and `reset_env`; forgets the best result."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments and the TensorBoard writer. Idempotent."""

    @abstractmethod
    def should_eval(self, train_iter: int) -> bool:
        """Returns whether an evaluation is due; the caller is expected to evaluate then.

        True at iteration 0, and once `eval_freq` train iterations have passed since it was true, at
        first since iteration -1; never twice for one iteration.
        """

    @abstractmethod
    def eval(self, save_ckpt_fn: Any = None, train_iter: int = -1, envstep: int = -1) -> Any:
        """Evaluate now.

        Args:
            save_ckpt_fn: called with ``"ckpt_best.pth.tar"`` where the result is the best so far.
            train_iter: train iterations so far; the run is not ended before the first.
            envstep: environment steps so far.

        Returns:
            Whether the run can end, and the result.
        """


def create_serial_evaluator(cfg: Any, **kwargs: Any) -> ISerialEvaluator:
    """Make the evaluator that ``cfg.type`` names; default "interaction".

    Args:
        cfg: settings, a mapping or frozen.
        kwargs: go to its constructor.

    Raises:
        UnknownTypeError: no evaluator has that type. ConfigError: a setting is wrong.
    """
    make = class_of(SERIAL_EVALUATOR_REGISTRY, cfg, "interaction")
    evaluator: ISerialEvaluator = make(cfg, **kwargs)
    return evaluator


BEST_CHECKPOINT = "ckpt_best.pth.tar"


class SerialEvaluator(Closing, ISerialEvaluator):
    """Base of serial evaluators; subclasses implement `eval`.

    Args:
        cfg: settings, a mapping or an instance of `Config`.
        env: manager of the environments, which it launches and closes; None: set by `reset_env`.
            Ranks of a process group other than 0 need none.
        policy: an eval mode; None: set by `reset_policy`.
        tb_logger: TensorBoard writer, which is closed with it; None: nothing is written.
        exp_name: folder of the experiment.
        instance_name: name in tags, log lines and messages.

    Raises:
        ConfigError: a setting is wrong; all problems at once.
    """

    def __init__(
        self,
        cfg: Any,
        env: Any = None,
        policy: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "evaluator",
    ) -> None:
        self._env: Any = None
        self._policy: Any = None
        self.best: Any = None
        """Best result since the last `reset`; None before the first. Settable, to resume."""
        self.scalars: dict[str, Any] = {}
        """Scalars of the last evaluation, as written to TensorBoard."""
        self._curves, self._exp_name = PartCurves(tb_logger, instance_name), exp_name
        config: EvaluatorConfig = self.parse_config(cfg)
        self._cfg = config
        self._evaluated_at = -1
        """Train iteration at which `should_eval` was true last."""
        self.reset(policy, env)

    @classmethod
    def parse_config(cls, cfg: Any) -> Any:
        """See `Configurable.parse_config`; an `eval_freq` below 1 means each iteration."""
        if isinstance(cfg, Mapping) and isinstance(cfg.get("eval_freq"), int):
            cfg = {**cfg, "eval_freq": max(1, cfg["eval_freq"])}
        return super().parse_config(cfg)

    @property
    def env(self) -> Any:
        """Manager of the environments, None where there is none."""
        return self._env

    @property
    def policy(self) -> Any:
        """The policy that is evaluated, None where there is none."""
        return self._policy

    def reset_env(self, _env: Any = None) -> None:
        """See `ISerialEvaluator.reset_env`."""
        if _env is None or _env is self._env:
            self._demand_env().reset()
            return
        self._env = _env  # the old one is its owner's to close
        if getattr(_env, "closed", True):
            _env.launch()
        else:
            _env.reset()

    def reset_policy(self, _policy: Any = None) -> None:
        """See `ISerialEvaluator.reset_policy`."""
        if _policy is not None:
            self._policy = _policy
        self._demand_policy().reset()

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """See `ISerialEvaluator.reset`; a missing policy or manager is skipped."""
        if _env is not None or self._env is not None:
            self.reset_env(_env)
        if _policy is not None or self._policy is not None:
            self.reset_policy(_policy)
        self.best = None
        self._evaluated_at = -1

    def close(self) -> None:
        """See `ISerialEvaluator.close`; `reset_env` opens it again."""
        env, self._env = self._env, None
        if env is not None:
            self._close_env(env)
        self._curves.close()

    def should_eval(self, train_iter: int) -> bool:
        """See `ISerialEvaluator.should_eval`."""
        passed = train_iter - self._evaluated_at
        is_due = passed != 0 and (passed >= self._cfg.eval_freq or train_iter == 0)
        if is_due:
            self._evaluated_at = train_iter
        return is_due

    # For subclasses.

    def _close_env(self, env: Any) -> None:
        env.close()

    def _is_better(self, result: Any, best: Any) -> bool:
        """Returns whether a result is the best so far; `best` is None at first."""
        return not math.isnan(result) and (best is None or result > best)

    def _is_enough(self, result: Any) -> bool:
        """Returns whether a result ends the run."""
        return bool(result >= self._cfg.stop_value)

    def _conclude(
        self,
        result: Any,
        scalars: Mapping[str, Any],
        line: str,
        when: tuple[int, int],
        save_ckpt_fn: Callable[[str], Any] | None,
    ) -> bool:
        """Report a result and keep the best; returns whether the run can end.

        Args:
            result: mean return, or metric; the same on all ranks.
            scalars: for TensorBoard.
            line: for the log.
            when: train iterations and environment steps so far.
            save_ckpt_fn: saves the policy of the best result, on rank 0.
        """
        train_iter, envstep = when
        rank, _ = place_in_group()
        self.scalars = dict(scalars)
        if rank == 0:
            LOGGER.info(
                "%s: %s, train iteration %d, env step %d",
                self._curves.name,
                line,
                train_iter,
                envstep,
                extra={"evaluation": dict(scalars)},
            )
            self._curves.add(scalars, train_iter, envstep)
        if self._is_better(result, self.best):
            self.best = result
            if rank == 0 and save_ckpt_fn is not None:
                save_ckpt_fn(BEST_CHECKPOINT)
        stop = train_iter > 0 and self._is_enough(result)
        if stop and rank == 0:
            LOGGER.info(
                "%s: %s reaches the stop value %s: training can end",
                self._curves.name,
                line,
                self._cfg.stop_value,
            )
        return stop

    def _conclude_returns(
        self,
        scalars: Mapping[str, float],
        info: Mapping[str, Any],
        when: tuple[int, int],
        save_ckpt_fn: Callable[[str], Any] | None,
    ) -> bool:
        """`_conclude`, by the mean return; the means in the episodes' info are curves, too."""
        means = {name: mean for name, mean in info.items() if name.endswith("_mean")}
        line, curves = describe(scalars), {**scalars, **means}
        return self._conclude(scalars["reward_mean"], curves, line, when, save_ckpt_fn)

    def _demand_env(self) -> Any:
        if self._env is None:
            raise NoEnvError(f"{self._name()} has no environment; give it one by reset_env(env)")
        return self._env

    def _demand_policy(self) -> Any:
        if self._policy is None:
            raise NoPolicyError(
                f"{self._name()} has no policy; give it one by reset_policy(policy)"
            )
        return self._policy

    def _name(self) -> str:
        return f"{type(self).__name__} {self._curves.name!r}"


def play_episodes(
    env: Any,
    policies: Any,
    monitor: VectorEvalMonitor,
    *,
    setting: Mapping[str, Any] | None = None,
    camera: Camera | None = None,
    figure_path: str | None = None,
) -> list[list[dict[str, Any]]]:
    """Play until the monitor has its quota of episodes.

    Args:
        env: the environment manager; it is reset.
        policies: an eval mode, or for a battle a list of them, one a player; they are reset. Those
            of dicts get float32 tensors.
        monitor: takes the returns, in a battle the first player's.
        setting: of the policies.
        camera: films the episodes; None: they are not filmed.
        figure_path: where environments that have a method ``enable_save_figure`` are to save what
            they draw, told as each episode ends; None: nowhere.

    Returns:
        Of each episode that counts the last info of each player, see `to_items`. Of a policy of
        columns it has numbers alone.

    Raises:
        EnvError: the manager is done or hangs before the episodes are played, or keeps failing.
        PolicyError: a policy's output lacks an environment or its action.
    """
    player = _player(env, policies)
    envs, played = player.loop.envs, []

    def before() -> None:
        if camera is not None:
            waiting = np.unique(envs.ready.nonzero()[0] % envs.env_num).tolist()
            monitor.update_video(camera.take(env, filter(monitor.is_open, waiting)))

    def after(step: Step, episodes: Episodes) -> None:
        monitor.env_steps += envs.stepped
        for row in [] if step.failed is None else step.failed.nonzero()[0].tolist():
            monitor.drop_episode(row % envs.env_num)
        infos = player.infos(step, episodes)
        for env_id in sorted({row % envs.env_num for row in episodes.rows.tolist()}):
            if figure_path is not None:
                _save_figure(env, env_id, figure_path)
            of_players = [dict(infos[row]) for row in range(env_id, envs.rows, envs.env_num)]
            first = of_players[0]
            total = first["eval_episode_return"]
            more = first.get("episode_info") or {}
            monitor.update_info(env_id, {"eval_episode_return": total, **more})
            monitor.update_reward(env_id, total)
            played.append([to_items(info) for info in of_players])

    evaluate(player.loop, monitor.quota, setting, before, after)
    return played


def _save_figure(env: Any, env_id: int, path: str) -> None:
    """Have an environment save what it draws under a path, if it can."""
    manager = ours(env)
    if manager is not None:
        manager.call(env_id, "enable_save_figure", path)
    elif hasattr(env, "enable_save_figure"):
        env.enable_save_figure(env_id, path)


class _Player(NamedTuple):
    """Plays episodes.

    Attributes:
        loop: keeps nothing.
        infos: of the rows whose episodes ended in a step, with their ``eval_episode_return``.
    """

    loop: Loop
    infos: Callable[[Step, Episodes], Mapping[int, Mapping[str, Any]]]


def _player(env: Any, policies: Any) -> _Player:
    """Returns what plays: by columns, where one policy and the environments have them."""
    is_battle = isinstance(policies, list)
    actor, manager = None if is_battle else columnar_actor(policies), ours(env)
    if actor is not None and manager is not None:
        return _Player(Loop(manager, PolicyAgent(actor)), _numbers)
    dicts = DictActor(policies if is_battle else [policies], to_tensors, is_battle=is_battle)
    envs = dicts.bind(env)

    def infos(step: Step, episodes: Episodes) -> dict[int, Mapping[str, Any]]:
        by_row = {row: one.info for row, one in dicts.view.timesteps(step).items() if one.done}
        stated = dict(zip(episodes.rows.tolist(), episodes.stated.tolist(), strict=True))
        for env_id in {row % envs.env_num for row in stated}:
            for row in range(env_id, envs.rows, envs.env_num):
                if row not in by_row:  # its player had no turn in a game that is over
                    by_row[row] = {
                        "eval_episode_return": stated.get(row, 0.0),
                        **dicts.view.info(row),
                    }
        return by_row

    return _Player(Loop(envs, PolicyAgent(dicts)), infos)


def _numbers(_step: Step, episodes: Episodes) -> dict[int, Mapping[str, Any]]:
    """Infos of episodes by their rows, of numbers alone."""
    ended = zip(episodes.rows.tolist(), episodes.infos, episodes.stated.tolist(), strict=True)
    return {row: {**unflatten(info), "eval_episode_return": stated} for row, info, stated in ended}


class InteractionSerialEvaluator(SerialEvaluator, metaclass=KnownClass):
    """Evaluates a policy by its mean return; see `SerialEvaluator` for the arguments.

    Videos go to TensorBoard, and as files to ``<figure_path>/videos``, or to
    ``<exp_name>/videos`` where there is a `tb_logger` and no `figure_path`. With a `figure_path`,
    environments are told it as each episode ends, by their ``enable_save_figure(path)`` if any.
    """

    Config = InteractionEvaluatorConfig
    _cfg: InteractionEvaluatorConfig

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """See `ISerialEvaluator.reset`."""
        super().reset(_policy, _env)
        self._film_clock = EvaluationClock(Interval("iterations", self._cfg.render.render_freq))

    def eval(
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
        force_render: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[bool, dict[str, list[Any]]]:
        """Play `n_episode` episodes; collective where learners form a process group.

        Args:
            save_ckpt_fn: called on rank 0 with ``"ckpt_best.pth.tar"`` where the mean return is the
                best so far.
            train_iter: train iterations so far; the run is not ended before the first.
            envstep: environment steps so far.
            n_episode: at least one for each environment; None: `Config.n_episode`.
            force_render: film this evaluation, whether it is due or not.
            policy_kwargs: for ``policy.forward``.

        Returns:
            Whether the run can end, and ``eval_episode_return`` and the entries of
            ``info["episode_info"]``: lists with one element an episode, and of numbers their means
            (``eval_episode_return_mean``). The attribute `scalars` has more about the returns.

        Raises:
            EnvError: there are no environments, or they break their contract.
            PolicyError: there is no policy, or it breaks its contract.
            QuotaError: there are fewer episodes than environments, or how many is not said.
        """
        scalars, info = on_first_rank(
            lambda: self._play(n_episode, policy_kwargs or {}, force_render, (train_iter, envstep))
        )
        stop = self._conclude_returns(scalars, info, (train_iter, envstep), save_ckpt_fn)
        return stop, info

    def _play(
        self,
        n_episode: int | None,
        policy_kwargs: Mapping[str, Any],
        force_render: bool,
        when: tuple[int, int],
    ) -> tuple[dict[str, float], dict[str, Any]]:
        camera = self._camera(force_render, *when)
        env = self._demand_env()
        policy = self._demand_policy()
        monitor = VectorEvalMonitor(
            env.env_num,
            episodes_to_play(n_episode, self._cfg.n_episode),
            max_video_bytes=self._cfg.render.memory_mb << 20,
        )
        with EasyTimer() as timer:
            play_episodes(
                env,
                policy,
                monitor,
                setting=policy_kwargs,
                camera=camera,
                figure_path=self._cfg.figure_path,
            )
        if camera is not None and not camera.is_broken:
            or_warn("video", lambda: self._show(monitor, *when))
        return _scalars(monitor, timer.value), monitor.get_episode_info() or {}

    def _camera(self, force: bool, train_iter: int, envstep: int) -> Camera | None:
        """A camera if this evaluation is to be filmed, else None."""
        if not (self._should_render(envstep, train_iter) or force):
            return None
        if self._curves.writer is None and self._cfg.figure_path is None:
            LOGGER.warning(
                "%s makes no video: it has nowhere to go; give the evaluator a tb_logger, or set "
                "figure_path",
                self._curves.name,
            )
            return None
        return Camera(self._cfg.render.max_size)

    def _should_render(self, envstep: int, train_iter: int) -> bool:
        """Returns whether an evaluation is to be filmed, which it then is."""
        render = self._cfg.render
        count = envstep if render.mode == "envstep" else train_iter
        return render.render_freq > 0 and self._film_clock.take(0, count, 0.0)

    def _show(self, monitor: VectorEvalMonitor, train_iter: int, envstep: int) -> None:
        """Write the videos to TensorBoard and to files."""
        videos = monitor.get_video()
        fps = max(1.0, self._cfg.render.fps / monitor.video_stride)
        add_video = getattr(self._curves.writer, "add_video", None)
        if add_video is not None:
            is_step = self._cfg.render.mode == "envstep"
            tag = f"{self._curves.name}_{'step' if is_step else 'iter'}/video"
            add_video(tag, videos, envstep if is_step else train_iter, fps)
        folder = Path(self._cfg.figure_path or self._exp_name) / "videos"
        for name, video in zip(NAMES, videos, strict=True):
            encoded, suffix = encode_video(video.transpose(0, 2, 3, 1), fps)
            with published(folder / f"iter_{max(train_iter, 0):06d}_{name}{suffix}") as file:
                file.write(encoded)

    # By DI-engine's names, for subclasses with an `eval` of their own, as dizoo's
    # `TradingSerialEvaluator`: nothing here asks for these.

    @cached_property
    def _timer(self) -> EasyTimer:
        return EasyTimer()

    @cached_property
    def _logger(self) -> TableLog:
        return TableLog()

    @property
    def _tb_logger(self) -> Any:
        """The TensorBoard writer; made in ``<exp_name>/log`` where there is none."""
        if self._curves.writer is None:
            from hpcdi.utils.event_file import TensorBoardWriter

            self._curves.writer = TensorBoardWriter(f"{self._exp_name}/log/{self._instance_name}")
        return self._curves.writer

    @property
    def _instance_name(self) -> str:
        return self._curves.name

    @property
    def _default_n_episode(self) -> int | None:
        return self._cfg.n_episode

    @property
    def _stop_value(self) -> Any:
        return self._cfg.stop_value

    @property
    def _render(self) -> RenderConfig:
        return self._cfg.render

    @property
    def _max_episode_return(self) -> float:
        return float("-inf") if self.best is None else float(self.best)

    @_max_episode_return.setter
    def _max_episode_return(self, value: float) -> None:
        self.best = value


def episodes_to_play(asked: int | None, setting: int | None) -> int:
    """Episodes of an evaluation: the argument, else the setting.

    Raises:
        QuotaError: there is neither.
    """
    number = setting if asked is None else asked
    if number is None:
        problem = "is neither an argument of eval nor a setting"
        raise QuotaError([Problem("n_episode", problem)], "the evaluation")
    return number


def _scalars(monitor: VectorEvalMonitor, duration_s: float) -> dict[str, float]:
    """Returns an evaluation's curves, by DI-engine's names."""
    returns, steps = monitor.get_episode_return(), monitor.env_steps
    return evaluation_scalars(returns, duration_s) | {
        "envstep_count": steps,
        "avg_envstep_per_episode": steps / len(returns),
        "avg_envstep_per_sec": steps / max(duration_s, 1e-9),
        "avg_time_per_episode": duration_s / len(returns),
    }


def describe(scalars: Mapping[str, float]) -> str:
    """Describe an evaluation in one line."""
    scale = max(abs(scalars["reward_min"]), abs(scalars["reward_max"]))
    mean, std = (human_return(scalars[f"reward_{name}"], scale) for name in ("mean", "std"))
    return (
        f"mean return {mean} ± {std} "
        f"({scalars['reward_min']:g} to {scalars['reward_max']:g}, "
        f"{scalars['episode_count']:.0f} episodes)"
    )


class BattleInteractionSerialEvaluator(SerialEvaluator, metaclass=KnownClass):
    """Evaluates the first of several policies that play together; see `SerialEvaluator`.

    `policy` is a list of eval modes, one a player. Observations and actions of environments are
    lists, one element a player: both are None where that player does not act in this step.
    """

    Config = BattleEvaluatorConfig
    _cfg: BattleEvaluatorConfig

    def should_eval(self, train_iter: int) -> bool:
        """See `ISerialEvaluator.should_eval`; at iteration 0 each time, then counted from there."""
        passed = train_iter - max(self._evaluated_at, 0)
        is_due = train_iter == 0 or passed >= self._cfg.eval_freq
        if is_due:
            self._evaluated_at = train_iter
        return is_due

    def reset_policy(self, _policy: Any = None) -> None:
        """See `ISerialEvaluator.reset_policy`; `_policy` is a list of all policies.

        Raises:
            PolicyError: there are fewer than two, or none to reset.
        """
        if _policy is not None:
            # one mode is a tuple itself
            is_list = isinstance(_policy, Sequence) and not hasattr(_policy, "forward")
            policies = list(_policy) if is_list else [_policy]
            if len(policies) < 2:
                raise NoPolicyError(
                    f"{self._name()} needs a list of two or more policies, one a player, not "
                    f"{len(policies)}; InteractionSerialEvaluator plays alone"
                )
            self._policy = policies
        for policy in self._demand_policy():
            policy.reset()

    def eval(
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, list[list[dict[str, Any]]]]:
        """Play `n_episode` episodes; collective where learners form a process group.

        Args:
            save_ckpt_fn: called on rank 0 with ``"ckpt_best.pth.tar"`` where policy 0's mean return
                is the best so far.
            train_iter: train iterations so far; the run is not ended before the first.
            envstep: environment steps so far.
            n_episode: at least one for each environment; None: `Config.n_episode`.

        Returns:
            Whether the run can end, and for each policy the last info of each episode, in the
            order in which they ended; ``eval_episode_return`` in it is that policy's.

        Raises:
            EnvError: there are no environments, or they break their contract.
            PolicyError: there are no policies, or they break their contract.
            QuotaError: there are fewer episodes than environments, or how many is not said.
        """
        scalars, info, return_info = on_first_rank(lambda: self._play(n_episode))
        stop = self._conclude_returns(scalars, info, (train_iter, envstep), save_ckpt_fn)
        return stop, return_info

    def _play(
        self, n_episode: int | None
    ) -> tuple[dict[str, float], dict[str, Any], list[list[dict[str, Any]]]]:
        env, policies = self._demand_env(), self._demand_policy()
        monitor = VectorEvalMonitor(env.env_num, episodes_to_play(n_episode, self._cfg.n_episode))
        with EasyTimer() as timer:
            played = play_episodes(env, policies, monitor)
        infos = [list(of_policy) for of_policy in zip(*played, strict=True)]
        return _scalars(monitor, timer.value), monitor.get_episode_info() or {}, infos
