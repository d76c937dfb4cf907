"""The replay ratio: learning and collecting in proportion, freely or in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hpcdi.config.schema import ExperimentConfig, offline_iterations


class ReplayRatio:
    """Decides how many batches may be drawn by now, and whether collectors must wait.

    With a ratio of r, ``r * (env_steps - warm_up)`` samples are due after `env_steps` transitions.
    Learners never draw more; collectors wait while many more are due than were drawn. Without a
    ratio learners draw as many as they like; or, where collecting and learning take turns, a number
    of batches after each round.

    Before that, a run may learn offline, from given data, as fast as it can or a batch a round: no
    transitions are due for the samples that it draws meanwhile.

    Args:
        ratio: samples drawn for each transition; None: see above.
        warm_up: transitions before learning begins, for which no samples are due.
        slack: samples that may be due before collectors wait; they go on at half of it.
        updates: returns how many updates follow a round of so many transitions, where there is no
            ratio; None: there are no rounds.
        offline: samples that are drawn before anything is collected.
        batch: samples of an update, of all learners.
        items: from so many in the buffer on it is drawn from: the warm-up ends when they have come
            (`note`), sooner or later than after `warm_up` transitions; 0: as foreseen.
        least: transitions after which the warm-up may end so.
        in_rounds: what comes within a round counts as one (`begin_round`), in whatever order.

    Attributes:
        collectors_wait: whether collectors are to wait.
    """

    def __init__(
        self,
        ratio: float | None = None,
        warm_up: int = 0,
        slack: float = math.inf,
        updates: Callable[[int], int] | None = None,
        offline: float = 0,
        batch: int = 1,
        items: int = 0,
        least: int = 0,
        in_rounds: bool = False,
    ) -> None:
        self.collectors_wait, self._offline, self._batch = False, offline, float(batch)
        self._settings = {"ratio": ratio or 0.0, "offline": offline / batch}
        self._from_steps = self._from_drawn = 0  # of the run when the ratio began to be this one
        self._ratio, self._warm_up, self._slack, self._updates = ratio, warm_up, slack, updates
        self._granted = math.inf if updates is None else 0.0  # batches, where there is no ratio
        self._env_steps = 0
        self._missing, self._least, self._in_rounds = items, least, in_rounds
        self._came_items = self._came_steps = 0  # in the round that is on
        self._beyond = 0  # transitions behind those of the last of these items
        self._ended_at = 0 if items else -1  # transitions of the warm-up; 0: it is on, -1: foreseen

    def note(self, items: int, env_steps: int) -> None:
        """Note that transitions have come, and how many items of the buffer they are."""
        self._came_items += items
        self._came_steps += env_steps
        if not self._in_rounds:
            self._end_warm_up()

    def _end_warm_up(self) -> None:
        """End the warm-up if enough items have come."""
        items, env_steps = self._came_items, self._came_steps
        self._came_items = self._came_steps = 0
        if self._missing <= 0:
            self._beyond += env_steps
            return
        self._missing -= items
        if self._missing <= 0:
            self._beyond = int(env_steps * -self._missing / items)

    def begin_round(self, transitions: int) -> None:
        """Grant the updates that follow a round of `transitions`: at least one, also of none.

        Those that hindsight has copied do not count.
        """
        self._end_warm_up()
        if self._updates is not None:
            self._granted = max(1, self._updates(transitions))

    def is_offline(self, drawn: int) -> bool:
        """Returns whether the run still learns from given data alone."""
        return drawn < self._offline

    def lose_learner(self, left: int, drawn: int) -> None:
        """Note that a learner has died: an update has fewer samples, and `left` learners make it.

        Args:
            left: at least one.
            drawn: samples of the run so far.
        """
        before, self._batch = self._batch, self._batch * left / (left + 1)
        self._resize(before, drawn)

    def _resize(self, before: float, drawn: int) -> None:
        """Keep the number of offline iterations that are left, which had `before` samples each."""
        if self.is_offline(drawn):
            self._offline = drawn + (self._offline - drawn) * self._batch / before

    def batches(self, env_steps: int, drawn: int, batch: int) -> float:
        """Batches that each learner may draw now. Updates `collectors_wait`.

        Args:
            env_steps: transitions of the run so far.
            drawn: samples of the run so far.
            batch: samples that all learners draw at once.
        """
        if self.is_offline(drawn):
            return min(self._granted, max(1.0, (self._offline - drawn) / batch))
        if self._ratio is not None:
            return self.due(env_steps, drawn) / batch
        is_warm = self._updates is None or env_steps >= self._warm_up
        return self._granted if is_warm else 0.0

    def take(self, batches: int) -> None:
        """Note that each learner has drawn `batches`."""
        self._granted -= batches

    def due(self, env_steps: int, drawn: int) -> float:
        """Samples to draw now; infinite without a ratio. Updates `collectors_wait`.

        Args:
            env_steps: transitions of the run so far.
            drawn: samples of the run so far.
        """
        if self._ratio is None or self.is_offline(drawn):
            return math.inf
        self._env_steps = env_steps
        first, samples = self._since(env_steps, drawn)
        due = self._ratio * max(0, env_steps - first) - samples
        if due > self._slack:
            self.collectors_wait = True
        elif due < self._slack / 2:
            self.collectors_wait = False
        return due

    def owes(self, env_steps: int, drawn: int, more: bool) -> bool:
        """Returns whether samples of an update, or more, are due by a ratio.

        Args:
            env_steps: transitions of the run so far.
            drawn: samples of the run so far.
            more: some more transitions are under way: as many samples will be.
        """
        due = self.due(env_steps, drawn)
        return due < math.inf and (more or due >= self._batch)

    def room(self, env_steps: int, drawn: int) -> float:
        """Transitions until collectors must wait, if nothing is drawn meanwhile; may be infinite.

        Args:
            env_steps: transitions of the run so far.
            drawn: samples of the run so far.
        """
        if self._ratio is None or self.is_offline(drawn):
            return math.inf
        first, samples = self._since(env_steps, drawn)
        return first + (self._slack + samples) / self._ratio - env_steps

    def _since(self, env_steps: int, drawn: int) -> tuple[int, float]:
        """Returns after how many transitions samples are due, and how many are drawn for these."""
        if self._missing <= 0 == self._ended_at:  # all of `env_steps` are noted
            self._ended_at = max(self._least, env_steps - self._came_steps - self._beyond)
        warm_up = self._ended_at if self._ended_at > 0 else self._warm_up
        first = max(warm_up, self._from_steps)
        return first, drawn - max(self._offline, self._from_drawn)

    def blocked(self, drawn: int, batch: int) -> str:
        """Returns who waits for whom, and why; empty where nobody waits.

        Args:
            drawn: samples of the run so far.
            batch: samples that all learners draw at once.
        """
        due = self.due(self._env_steps, drawn)
        rule = f"{self._ratio or 0:g} samples are drawn for a transition (replay_ratio)"
        if self.collectors_wait:
            return f"collectors wait: {rule}"
        return f"learners wait: {rule}" if due < batch else ""

    def state_dict(self) -> dict[str, float]:
        """From where on it counts, and by which settings."""
        self._end_warm_up()
        return {
            **self._settings, "until": float(self._offline), "batch": self._batch,
            "from_steps": self._from_steps, "from_drawn": self._from_drawn,
            "missing": self._missing, "beyond": self._beyond, "ended_at": self._ended_at,
        }  # fmt: skip

    def load_state_dict(
        self, state: Mapping[str, float], env_steps: int, drawn: int, train_iter: int
    ) -> None:
        """Count on; with other settings than before, from now on.

        Args:
            state: a `state_dict`.
            env_steps: transitions of the run so far.
            drawn: samples of the run so far.
            train_iter: updates of the run so far.
        """
        self._missing, self._beyond = int(state["missing"]), int(state["beyond"])
        self._ended_at = int(state["ended_at"])
        until, offline, batch = state["until"], state["offline"], int(state["batch"])
        if drawn < until < math.inf:  # all that was drawn is learnt from, heard of or not
            train_iter = max(train_iter, math.ceil(offline - (until - drawn) / batch))
        if {"ratio": state["ratio"], "offline": offline} == self._settings:
            self._offline = until
            self._resize(batch, drawn)
            self._from_steps, self._from_drawn = int(state["from_steps"]), int(state["from_drawn"])
        else:
            self._offline = drawn + max(0.0, self._offline - train_iter * self._batch)
            self._from_steps, self._from_drawn = env_steps, drawn


def warm_up_of(config: ExperimentConfig) -> int:
    """Returns the transitions that are collected before learning begins."""
    if not config.data:
        return config.policy.warm_up
    return 0 if offline_iterations(config) else config.policy.random_collect_size


def replay_ratio_of(
    config: ExperimentConfig, collectors: int = 1, learners: int = 1, *, in_turns: bool = False
) -> ReplayRatio:
    """Returns the replay ratio of an experiment.

    Args:
        config: the experiment.
        collectors: ranks that collect.
        learners: ranks that learn together, each by a batch of its own.
        in_turns: collecting and learning take turns.
    """
    policy = config.policy
    ratio, warm_up = policy.replay_ratio, warm_up_of(config)
    batch = policy.learn.batch_size * learners
    least, items = policy.random_collect_size, 0
    if ratio is not None and not config.data:  # those have filled the buffer
        items = policy.buffer.min_fill
    offline = offline_iterations(config) * batch
    in_rounds = in_turns or config.system.deterministic
    if in_turns:
        fixed = policy.learn.update_per_collect
        updates = policy.usual_updates if fixed is None else lambda _transitions: fixed
        # where nothing is given, the buffer itself holds batches back until it is filled
        if ratio is None and not config.data:
            warm_up = least
        return ReplayRatio(
            ratio, warm_up, updates=updates, offline=offline, batch=batch, items=items, least=least,
            in_rounds=in_rounds,
        )  # fmt: skip
    # with less slack than a few batches, or a rollout of every collector, learners and collectors
    # would wait for each other in turns
    rollouts = collectors * policy.collect.n_sample * config.env.collector_env_num
    slack = max(4 * batch, (ratio or 0.0) * rollouts)
    return ReplayRatio(
        ratio, warm_up, slack, offline=offline, batch=batch, items=items, least=least,
        in_rounds=in_rounds,
    )  # fmt: skip
