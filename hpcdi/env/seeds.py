"""One stream of seeds for each environment, all from one sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

_LARGEST = 0x7FFFFFFF
"""Of a seed that is drawn: many a simulator takes it as an int of C."""
_ACTIONS = 0x7FFF0000  # spawn key of random actions, far from those that spawn() counts up


class EpisodePlaces:
    """Which episodes each environment plays, of those that all together have to: 0, 1, 2, ...

    An environment has the one at its own number, and each that follows after as many as there are
    environments. What one that is retired has left goes to others.

    Args:
        env_num: environments.

    Attributes:
        now: of each environment the place of its running episode.
    """

    def __init__(self, env_num: int) -> None:
        self._env_num = env_num
        self.restart()

    def restart(self) -> None:
        """All begin anew."""
        self.now = list(range(self._env_num))
        self._own = [0] * self._env_num  # of its own episodes, how many each has begun
        self._taken_over: list[deque[int]] = [deque() for _ in self.now]

    def following(self, env: int) -> int:
        """Returns the place of an environment's next episode."""
        if self._taken_over[env]:
            return self._taken_over[env][0]
        return self._own[env] * self._env_num + env

    def begin(self, env: int) -> None:
        """An environment begins its next episode."""
        if self._taken_over[env]:
            self.now[env] = self._taken_over[env].popleft()
        else:
            self.now[env] = self._own[env] * self._env_num + env
            self._own[env] += 1

    def hand_over(self, env: int, others: Sequence[int]) -> None:
        """Have others play an environment's running episode, and those after it; one each."""
        for other in others:
            self._taken_over[other].append(self.now[env])
            self.begin(env)


class SeedStreams:
    """Seeds for resets; an environment's next one depends only on how often it was reset.

    Args:
        sequence: all seeds come from it.
        env_num: environments.

    Attributes:
        places: of the episodes that begin by these seeds.
    """

    def __init__(self, sequence: np.random.SeedSequence, env_num: int) -> None:
        self._env_num, self._none = env_num, [None] * env_num
        self.places = EpisodePlaces(env_num)
        self._root = sequence
        self._given: dict[int, np.random.SeedSequence] = {}  # own ones of some environments
        self._streams = sequence.spawn(0)
        self._fixed: list[int] | None = None
        self._is_dynamic, self._asked = True, 0  # how often for a seed of actions

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None
    ) -> None:
        """Start the streams over: from one number, or one for each environment.

        Args:
            seed: an integer, a list with one for each environment, or a mapping of some.
            dynamic_seed: False: each environment's episodes all begin with the same seed.

        Raises:
            ValueError: a list of another length.
        """
        if isinstance(seed, Mapping):
            self._given |= {env: np.random.SeedSequence(int(s)) for env, s in seed.items()}
        elif isinstance(seed, Sequence):
            if len(seed) != self._env_num:
                raise ValueError(f"{len(seed)} seeds for {self._env_num} environments")
            self._given = {env: np.random.SeedSequence(int(s)) for env, s in enumerate(seed)}
        else:
            self._root, self._given = np.random.SeedSequence(int(seed)), {}
        self._fixed, self._streams, self._asked = None, [], 0
        self._is_dynamic = dynamic_seed is not False

    def all(self) -> list[int]:
        """Returns a seed for each environment; each call returns others, unless they are fixed."""
        self.places.restart()
        for env in range(self._env_num):
            self.places.begin(env)
        if self._fixed is not None:
            return list(self._fixed)
        parent = self._root.spawn(1)[0]
        seeds = _drawn(parent, self._env_num)
        self._streams = parent.spawn(self._env_num)
        for env, own in self._given.items():
            self._streams[env] = own
            seeds[env] = self._next(env)
        if not self._is_dynamic:
            self._fixed = seeds
        return seeds

    def one(self, env: int) -> int:
        """Returns the next seed of an environment that is reset or created by itself."""
        if not self._streams:  # seeded, and not all reset since
            self.all()
        self.places.begin(env)
        return self.again(env)

    def again(self, env: int) -> int:
        """Returns a seed for an episode in the place of the last one, in which it has failed."""
        return self._next(env) if self._fixed is None else self._fixed[env]

    def following(self) -> Sequence[int | None]:
        """Returns seeds of later episodes; None: the environment's own generator goes on."""
        return self._none if self._fixed is None else self._fixed

    def took(self, envs: Iterable[int]) -> None:
        """Some environments have begun their next episode, by `following`."""
        for env in envs:
            self.places.begin(env)

    def hand_over(self, env: int, others: Sequence[int]) -> None:
        """Have others play the running episode of one that is retired, and those after it.

        Args:
            env: which is retired.
            others: who plays each of these episodes, in order.
        """
        self.places.hand_over(env, others)

    def actions(self) -> int:
        """Returns a seed for random actions, another each time; takes nothing from the streams."""
        key = (*self._root.spawn_key, _ACTIONS, *([self._asked] if self._asked else []))
        self._asked += 1
        sequence = np.random.SeedSequence(self._root.entropy, spawn_key=key)
        return _drawn(sequence)[0]

    def _next(self, env: int) -> int:
        return _drawn(self._streams[env].spawn(1)[0])[0]


def _drawn(sequence: np.random.SeedSequence, count: int = 1) -> list[int]:
    return [int(word) & _LARGEST for word in sequence.generate_state(count)]


class ScenarioSeeds(SeedStreams):
    """The seeds of a set, by turns: no environment plays one again before it has played all.

    Args:
        seeds: the set.
        sequence: the order in which each environment plays them comes from it.
        env_num: environments.
        in_order: all environments together play them in order instead, and begin anew in `all`: an
            evaluation of as many episodes plays each once.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        sequence: np.random.SeedSequence,
        env_num: int,
        *,
        in_order: bool = False,
    ) -> None:
        super().__init__(sequence, env_num)
        self._seeds, self._in_order = seeds, in_order
        self._rngs = [np.random.default_rng(each) for each in sequence.spawn(env_num)]
        self._left: list[list[int]] = [[] for _ in range(env_num)]  # of the set, newest last
        self._following = [0] * env_num
        self._advance(range(env_num))

    def all(self) -> list[int]:
        """Returns a seed for each environment."""
        self.places.restart()
        if self._in_order:
            self._advance(range(self._env_num))
        return [self.one(env) for env in range(self._env_num)]

    def one(self, env: int) -> int:
        """Returns the next seed of an environment."""
        seed = self._following[env]
        self.took([env])
        return seed

    def again(self, env: int) -> int:
        """See `SeedStreams.again`; where all are played in order, it is the same one."""
        return self._at(self.places.now[env]) if self._in_order else self.one(env)

    def following(self) -> Sequence[int]:
        """Returns the seed of each environment's next episode."""
        return self._following

    def took(self, envs: Iterable[int]) -> None:
        """Some environments have begun their next episode."""
        for env in envs:
            self.places.begin(env)
            self._advance([env])

    def hand_over(self, env: int, others: Sequence[int]) -> None:
        """See `SeedStreams.hand_over`."""
        super().hand_over(env, others)
        if self._in_order:
            self._advance(others)

    def _advance(self, envs: Iterable[int]) -> None:
        """Set the next seeds of some environments."""
        for env in envs:
            if self._in_order:
                self._following[env] = self._at(self.places.following(env))
                continue
            if not self._left[env]:
                self._left[env] = self._rngs[env].permutation(self._seeds).tolist()
            self._following[env] = self._left[env].pop()

    def _at(self, place: int) -> int:
        return self._seeds[place % len(self._seeds)]
