"""A policy is as good as its mean return: one policy, some environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdi.config.fields import ComponentConfig, section, setting
from hpcdi.store.atomic import published
from hpcdi.utils.log import LOGGER
from hpcdi.utils.metrics import evaluation_scalars
from hpcdi.utils.nested import to_tensors
from hpcdi.utils.registry import SERIAL_EVALUATOR_REGISTRY
from hpcdi.utils.timer import EasyTimer
from hpcdi.utils.video import encode_video
from hpcdi.worker.collector.base_serial_evaluator import VectorEvalMonitor
from hpcdi.worker.collector.contract import actions_of, episode_return
from hpcdi.worker.collector.episode_videos import NAMES, Camera, RenderConfig
from hpcdi.worker.collector.evaluation import Every, SerialEvaluator
from hpcdi.worker.collector.evaluation_loop import ended_episodes
from hpcdi.worker.collector.learners_group import on_first_rank


@dataclass(frozen=True)
class ReturnsConfig(ComponentConfig):
    """Settings of evaluators that judge by returns."""

    eval_freq: int = setting(50, "train iterations from one evaluation to the next", minimum=1)
    n_episode: int | None = setting(
        None, "episodes of an evaluation; empty: one of each environment", minimum=1
    )
    stop_value: float = setting(float("inf"), "mean return that ends the run")
    transform_obs: bool = setting(False, "policies get float32 tensors, instead of numpy arrays")


@SERIAL_EVALUATOR_REGISTRY.register("interaction")
class InteractionSerialEvaluator(SerialEvaluator):
    """Lets a policy play; see `SerialEvaluator` for the arguments.

    Films go to TensorBoard, and as files to ``<figure_path>/videos``, or to
    ``<exp_name>/videos`` where there is a `tb_logger` and no `figure_path`.
    """

    @dataclass(frozen=True)
    class Config(ReturnsConfig):
        """Settings of an evaluation by interaction."""

        type: str = "interaction"
        eval_freq: int = setting(
            1000, "train iterations from one evaluation to the next", minimum=1
        )
        render: RenderConfig = section(RenderConfig, "when it is filmed, and how")
        figure_path: str | None = setting(
            None, "folder for films; empty: the experiment's, where there is a TensorBoard writer"
        )

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """See `ISerialEvaluator.reset`."""
        super().reset(_policy, _env)
        self._render_due = Every(self._cfg.render.render_freq)

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
            policy_kwargs: go to ``policy.forward``.

        Returns:
            Whether the run can end, and lists: ``eval_episode_return`` and what environments say
            in ``info["episode_info"]`` have one element an episode; ``reward_mean``,
            ``reward_std``, ``reward_max``, ``reward_min``, ``episode_count`` and ``evaluate_time``
            (seconds) have one.

        Raises:
            EnvError: there are no environments, or they break their contract.
            PolicyError: there is no policy, or it breaks its contract.
            ConfigError: there are fewer episodes than environments.
        """
        camera = self._camera(force_render, train_iter, envstep)
        info = on_first_rank(
            lambda: self._play(n_episode, policy_kwargs or {}, camera, (train_iter, envstep))
        )
        scalars = {name: info[name][0] for name in evaluation_scalars([0.0], 0.0)}
        stop = self._conclude(
            scalars["reward_mean"], scalars, describe(scalars), (train_iter, envstep), save_ckpt_fn
        )
        return stop, info

    def _play(
        self,
        n_episode: int | None,
        policy_kwargs: Mapping[str, Any],
        camera: Camera | None,
        when: tuple[int, int],
    ) -> dict[str, list[Any]]:
        env = self._demand_env()
        player = Player(self._demand_policy(), policy_kwargs, self._cfg.transform_obs)
        monitor = VectorEvalMonitor(
            env.env_num,
            episodes_to_play(n_episode, self._cfg.n_episode, env.env_num),
            max_video_bytes=self._cfg.render.memory_mb << 20,
        )
        with EasyTimer() as timer:
            for env_id, step in ended_episodes(env, player, monitor, camera):
                monitor.update_info(env_id, step.info.get("episode_info") or {})
                monitor.update_reward(env_id, episode_return(step.info, env_id))
        if camera is not None and not camera.is_broken:
            self._show(monitor, *when)
        returns = monitor.get_episode_return()
        scalars = evaluation_scalars(returns, timer.value)
        return {
            **monitor.get_episode_info(),
            "eval_episode_return": returns,
            **{name: [value] for name, value in scalars.items()},
        }

    def _camera(self, force: bool, train_iter: int, envstep: int) -> Camera | None:
        """A camera, where this evaluation is to be filmed."""
        render = self._cfg.render
        count = envstep if render.mode == "envstep" else train_iter
        is_due = render.render_freq > 0 and self._render_due.is_due(count)
        if not (is_due or force):
            return None
        if self._report.tb_logger is None and self._cfg.figure_path is None:
            LOGGER.warning(
                "%s makes no video: it has nowhere to go; give the evaluator a tb_logger, or set "
                "figure_path", self._report.instance_name,
            )  # fmt: skip
            return None
        return Camera(render.max_size)

    def _show(self, monitor: VectorEvalMonitor, train_iter: int, envstep: int) -> None:
        """Send the films to TensorBoard and to files."""
        videos = monitor.get_video()
        fps = max(1.0, self._cfg.render.fps / monitor.video_stride)
        add_video = getattr(self._report.tb_logger, "add_video", None)
        if add_video is not None:
            is_step = self._cfg.render.mode == "envstep"
            tag = f"{self._report.instance_name}_{'step' if is_step else 'iter'}/video"
            add_video(tag, videos, envstep if is_step else train_iter, fps)
        folder = Path(self._cfg.figure_path or self._report.exp_name) / "videos"
        for name, video in zip(NAMES, videos, strict=True):
            encoded, suffix = encode_video(video.transpose(0, 2, 3, 1), fps)
            with published(folder / f"iter_{max(train_iter, 0):06d}_{name}{suffix}") as file:
                file.write(encoded)


class Player:
    """One policy in all environments.

    Args:
        policy: an eval mode.
        policy_kwargs: go to its ``forward``.
        transform_obs: it gets float32 tensors, instead of what environments give.
    """

    def __init__(self, policy: Any, policy_kwargs: Mapping[str, Any], transform_obs: bool) -> None:
        self._policy, self._kwargs = policy, policy_kwargs
        self._transform_obs = transform_obs

    def act(self, ready: dict[int, Any]) -> dict[int, Any]:
        """Action for each environment that waits; tensors become arrays.

        Raises:
            PolicyError: the policy's output lacks an environment, or an action.
        """
        seen = to_tensors(ready) if self._transform_obs else ready
        return actions_of(self._policy.forward(seen, **self._kwargs), ready)

    def reset(self, env_ids: list[int] | None = None) -> None:
        """Forget episodes."""
        if env_ids is None:
            self._policy.reset()
        else:
            self._policy.reset(env_ids)


def episodes_to_play(asked: int | None, setting: int | None, env_num: int) -> int:
    """Episodes of an evaluation: what was asked for, else the setting, else one an environment."""
    return next(number for number in (asked, setting, env_num) if number is not None)


def describe(scalars: Mapping[str, float]) -> str:
    """An evaluation in one line."""
    return (
        f"mean return {scalars['reward_mean']:.1f} ± {scalars['reward_std']:.1f} "
        f"({scalars['reward_min']:g} to {scalars['reward_max']:g}, "
        f"{scalars['episode_count']:.0f} episodes)"
    )
