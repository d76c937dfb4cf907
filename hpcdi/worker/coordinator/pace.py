"""Keeping learning and collecting in a given proportion, so that it depends on no hardware."""

from __future__ import annotations

import math

from hpcdi.config.schema import ExperimentConfig


class Pace:
    """How many samples may be drawn by now, and whether collectors are to wait.

    With a ratio of r, ``r * (env_steps - warm_up)`` samples are due after so many transitions.
    Learners never draw more; collectors wait while many more are due than were drawn.

    Args:
        ratio: samples drawn for each transition; None: both run free.
        warm_up: transitions that none are due for, while the buffer fills.
        slack: samples that may be due before collectors wait; they go on at half of it.

    Attributes:
        collectors_wait: see above.
    """

    def __init__(self, ratio: float | None = None, warm_up: int = 0, slack: float = 0.0) -> None:
        self.collectors_wait = False
        self._ratio, self._warm_up, self._slack = ratio, warm_up, slack
        self._env_steps = 0

    def due(self, env_steps: int, drawn: int) -> float:
        """Samples to draw now; infinite without a ratio. Updates `collectors_wait`.

        Args:
            env_steps: transitions of the run so far.
            drawn: samples of the run so far.
        """
        if self._ratio is None:
            return math.inf
        self._env_steps = env_steps
        due = self._ratio * max(0, env_steps - self._warm_up) - drawn
        if due > self._slack:
            self.collectors_wait = True
        elif due < self._slack / 2:
            self.collectors_wait = False
        return due

    def blocked(self, drawn: int, batch: int) -> str:
        """Who waits for whom; empty where nobody does.

        Args:
            drawn: samples of the run so far.
            batch: samples that all learners draw at once.
        """
        due = self.due(self._env_steps, drawn)
        rule = f"{self._ratio or 0:g} samples are drawn for a transition (replay_ratio)"
        if self.collectors_wait:
            return f"collectors wait: {rule}"
        return f"learners wait: {rule}" if due < batch else ""


def pace_of(config: ExperimentConfig, collectors: int) -> Pace:
    """The pace of an experiment over ranks.

    Some batches and one rollout of every collector may be due: less would make them wait for each
    other in turns.

    Args:
        config: the experiment.
        collectors: ranks that collect.
    """
    policy = config.policy
    ratio = policy.learn.replay_ratio
    if ratio is None or config.system.deterministic:  # which works in turns
        return Pace()
    rollouts = collectors * policy.collect.n_sample * config.env.collector_env_num
    batches = 4 * policy.learn.batch_size * policy.learn.learner.learner_num
    return Pace(ratio, policy.warm_up, max(batches, ratio * rollouts))
