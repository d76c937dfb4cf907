"""Evaluation: the stepping loop until each environment has played its quota of episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcdi.errors import ConfigError, EnvError, Problem
from hpcdi.roles.collector.loop import Loop
from hpcdi.types import Episodes, Settings, Step

_MAX_FAILURES = 100


def evaluate(
    loop: Loop,
    quota: int | Sequence[int] | None = None,
    setting: Settings | None = None,
    before: Callable[[], None] = lambda: None,
    after: Callable[[Step, Episodes], None] = lambda _step, _episodes: None,
) -> Episodes:
    """Play new episodes until each environment has played its quota.

    An episode in which an environment failed does not count, and another takes its place.

    Args:
        loop: keeps nothing.
        quota: episodes of each environment, one number or one for each; None: as many as its
            environments are made for.
        setting: of the policy, and in a league of the players.
        before: called before each step.
        after: called after each step, with it and the episodes that ended in it.

    Returns:
        The episodes, in the order in which they ended.

    Raises:
        EnvError: environments keep failing.
    """
    loop.begin(quota)
    failures, played = 0, [loop.take_episodes()]
    while not loop.envs.done:
        before()
        loop.once(setting or {})
        played.append(loop.take_episodes())
        after(loop.latest, played[-1])
        if (failed := loop.latest.failed) is not None:
            envs = np.unique(np.flatnonzero(failed) % loop.envs.env_num)
            failures += len(envs)
            if failures > _MAX_FAILURES:
                raise EnvError(
                    f"environments failed {failures} times in one evaluation, environment "
                    f"{envs[-1]} last; their own log says why"
                )
    return Episodes.joined(played)


def quotas(episodes: int, env_num: int) -> list[int]:
    """Returns the episodes of each environment, so many of all together.

    The first `n` episodes that several environments end are more often short ones than long ones,
    and their mean is biased: so each has its quota. The first environments play one more where the
    number is not a multiple.

    Raises:
        ConfigError: there are fewer episodes than environments, or no environment.
    """
    if not 1 <= env_num <= episodes:
        problem = f"{episodes} episodes are too few for {env_num} environments: give each one"
        raise ConfigError([Problem("n_episode", problem)], "the evaluation")
    return [(episodes + env_num - 1 - env) // env_num for env in range(env_num)]
