"""One environment, made and stepped by a manager of its own, and watched closely from outside."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from hpcdi.commands.rehearse.apart import Output, Tell, warnings_in
from hpcdi.commands.rehearse.facts import Alone, Habits, Times
from hpcdi.config.env import EnvConfig
from hpcdi.dataclass import dataclass
from hpcdi.env.base import EnvFn
from hpcdi.env.contract import Origin, Space, beyond
from hpcdi.env.create import get_env_cls, single_env_fns
from hpcdi.env.in_process import LocalWorker, SingleEnvs
from hpcdi.env.manager import EnvManager
from hpcdi.env.old_gym import as_gymnasium
from hpcdi.env.pettingzoo import as_battle
from hpcdi.env.process_state import handlers_of_signals
from hpcdi.env.seeds import ScenarioSeeds, SeedStreams
from hpcdi.policy.exploration import RandomActor
from hpcdi.policy.spaces import with_bounds
from hpcdi.roles.collector.loop import Loop, PolicyAgent
from hpcdi.types import ACTION_MASK, Array, Columns
from hpcdi.utils.nested import under
from hpcdi.utils.processes import resident_bytes

_SAMPLE_STEPS, _SAMPLE_S = 25, 1.0
"""Between two samples of memory, whichever comes first."""
_TRACE_STEPS = 100
Trace: TypeAlias = list[tuple[Columns, bytes]]
"""What each step has led to."""
_SEEN_AT_ONCE, _BYTES_AT_ONCE = 256, 1 << 20
"""Rows and bytes that are looked at together: its own memory is that of the process, too."""
_CLOSELY = 500
"""Calls that are watched closely, which takes some time."""
_TIMERS = {
    "ITIMER_REAL": signal.ITIMER_REAL,
    "ITIMER_VIRTUAL": signal.ITIMER_VIRTUAL,
    "ITIMER_PROF": signal.ITIMER_PROF,
}


@dataclass(frozen=True)
class Budget:
    """How long a stage plays: until one of them is spent."""

    steps: int
    seconds: float


def look(
    facts: Alone, config: EnvConfig, budget: Budget, seed: int, *, tell: Tell = lambda _: None
) -> None:
    """Play one environment at random; fills `facts`.

    Args:
        facts: empty ones.
        config: of the environment.
        budget: of random play.
        seed: of everything.
        tell: called before what may take long.
    """
    make = single_env_fns(config, [0])[0]
    is_battle = getattr(get_env_cls(config), "is_battle", False)
    worker = LocalWorker(
        watched(make, facts.habits, is_battle=is_battle), is_battle=is_battle, is_alone=True
    )
    sequence = np.random.SeedSequence(seed)
    single = SingleEnvs([worker])
    single.origin = config.origins
    envs = EnvManager(single, config.manager, seed=sequence)
    envs.seeds = _seeds(config, sequence)

    def now(doing: str) -> None:
        facts.doing = doing
        tell(facts)

    with Output() as output, warnings_in(facts.warnings), envs:
        try:
            now("making and resetting the first environment")
            envs.launch()
            facts.made = output.since()
            facts.limit = getattr(envs.call(0, "get_wrapper_attr", "spec")[1], "max_episode_steps",
                                  None)  # fmt: skip
            now("playing at random")
            _play(facts, envs, config.origins, budget, sequence.spawn(1)[0])
            facts.played = output.since(facts.made)
            now("playing two episodes of one seed")
            first = _trace(envs, config, seed, _TRACE_STEPS, budget.seconds)
            facts.repeats = _difference(first, _trace(envs, config, seed, len(first) - 1))
            now("making a second environment in the same process")
            facts.another = _another(make, config, is_battle=is_battle)
        finally:
            facts.failures = envs.failures


def _play(
    facts: Alone, envs: EnvManager, origin: Origin, budget: Budget, seed: np.random.SeedSequence
) -> None:
    """Play at random until the budget is spent."""
    spaces = envs.spaces
    loop = Loop(envs, PolicyAgent(RandomActor(with_bounds(spaces), seed)))
    bounds = Space.of_observations(envs.facts.observation_space, origin=origin).bounds()
    deadline = time.monotonic() + budget.seconds
    next_sample, next_s = 0, 0.0
    seen: list[Columns] = []
    rewards: list[Array] = []
    n_bytes = 0
    while facts.steps < budget.steps and (now := time.monotonic()) < deadline:
        if facts.steps >= next_sample or now >= next_s:
            facts.memory.add(facts.steps, resident_bytes(os.getpid()))
            next_sample, next_s = facts.steps + _SAMPLE_STEPS, now + _SAMPLE_S
        acting = envs.ready
        seen.append({name: column[acting] for name, column in envs.observation.items()})
        n_bytes += sum(column.nbytes for column in seen[-1].values())
        loop.once({})
        step = loop.latest
        facts.steps += 1
        rewards.append(step.reward[step.live])
        if len(seen) == _SEEN_AT_ONCE or n_bytes >= _BYTES_AT_ONCE:
            facts.see(seen, rewards)
            seen, rewards, n_bytes = [], [], 0
        facts.running = facts.running + 1 if not step.ended.any() else 0
        if step.ended.any():
            episodes = loop.take_episodes()
            facts.lengths += episodes.lengths.tolist()
            facts.returns += episodes.stated.tolist()
    facts.see(seen, rewards)
    for name, of_space in bounds.items():
        numbers = facts.numbers.get(name)
        if numbers is None or not numbers.count:
            continue
        shape = of_space[0].shape
        said = beyond(name, numbers.low.reshape(shape), numbers.high.reshape(shape), of_space)
        if said:
            facts.outside.append(said)


def _seeds(config: EnvConfig, sequence: np.random.SeedSequence) -> SeedStreams:
    """Returns the seeds of one environment's episodes, as a collector has them."""
    scenarios = config.scenarios(evaluate=False)
    return ScenarioSeeds(scenarios, sequence, 1) if scenarios else SeedStreams(sequence, 1)


def _trace(
    envs: EnvManager, config: EnvConfig, seed: int, steps: int, most_s: float = math.inf
) -> Trace:
    """Returns what some steps by the same actions lead to, from a seed: observations, results."""
    deadline = time.monotonic() + most_s
    envs.seeds = _seeds(config, np.random.SeedSequence(seed))
    envs.reset()
    actor = RandomActor(with_bounds(envs.spaces), np.random.SeedSequence(seed))
    trace = [(_seen(envs), b"")]
    while len(trace) <= steps and time.monotonic() < deadline:
        step = envs.step(under(actor.act(envs.observation, {}), "action"))
        results = (step.reward, step.terminated, step.truncated)
        trace.append((_seen(envs), b"".join(each.tobytes() for each in results)))
    envs.take_episodes()
    return trace


def _seen(envs: EnvManager) -> Columns:
    """Returns copies of what those see who act next."""
    return {name: column[envs.ready] for name, column in envs.observation.items()}


def _difference(first: Trace, second: Trace) -> str:
    """Returns where two traces differ first; "": nowhere."""
    for number, ((seen, results), (again, others)) in enumerate(zip(first, second, strict=True)):
        for name, column in seen.items():
            if not np.array_equal(column, again[name], equal_nan=column.dtype.kind == "f"):
                return f"{name} after {number} steps"
        if results != others:
            return f"rewards or ends in step {number}"
    return ""


def _another(make: EnvFn, config: EnvConfig, *, is_battle: bool) -> str:
    """Returns why a second environment cannot be made and reset here; "": it can."""
    second = LocalWorker(make, is_battle=is_battle, is_alone=True)
    sequence = np.random.SeedSequence(1)
    envs = EnvManager(SingleEnvs([second]), seed=sequence)
    envs.seeds = _seeds(config, sequence)
    try:
        with envs:
            envs.launch()
    except Exception as error:  # whatever a second simulator raises
        return str(error).partition("\n")[0]
    return ""


# ---------------------------------------------------------------------------------- watching it


def watched(make: EnvFn, habits: Habits, *, is_battle: bool) -> EnvFn:
    """Returns what makes environments that are watched."""

    def making() -> Watched:
        with _observed(habits, habits.made, is_closely=True):
            env = make()
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                return env  # type: ignore[no-any-return]  # its worker refuses it
        return Watched(as_battle(env) if is_battle else as_gymnasium(env), habits, is_battle)

    return making


class Watched:
    """An environment of gymnasium's API, or a battle of ours; everything else is the inner one's.

    Args:
        env: the environment.
        habits: where what it does is noted.
        is_battle: whether it is a battle.
    """

    def __init__(self, env: Any, habits: Habits, is_battle: bool) -> None:
        self._env, self._habits, self._is_battle = env, habits, is_battle
        self._calls = 0
        self._last: list[tuple[Array, Array]] = []  # arrays that were returned, and copies

    def reset(self, **given: Any) -> Any:
        """Begin an episode."""
        habits, is_closely = self._habits, self._looks_closely()
        with _observed(habits, habits.resets, is_closely=is_closely):
            result = self._env.reset(**given)
        if is_closely and not self._is_battle and isinstance(result, tuple | list) and result:
            self._compare(result[0])
            habits.tells_masks |= isinstance(result[-1], Mapping) and ACTION_MASK in result[-1]
        return result

    def step(self, action: Any) -> Any:
        """Step."""
        habits, is_closely = self._habits, self._looks_closely()
        with _observed(habits, habits.steps, is_closely=is_closely):
            result = self._env.step(action)
        if is_closely and isinstance(result, tuple | list) and result:
            self._compare(result[0])
        return result

    def _looks_closely(self) -> bool:
        self._calls += 1
        return self._calls <= _CLOSELY

    def _compare(self, observation: object) -> None:
        """Look whether the arrays of the last observation are still what they were."""
        if any(not np.array_equal(array, copy) for array, copy in self._last):
            self._habits.reuses_arrays = True
        self._last = [(array, array.copy()) for array in _arrays_in(observation)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _arrays_in(value: object) -> Iterator[Array]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biu":
        yield value
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield np.nan_to_num(value) if np.isnan(value).any() else value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _arrays_in(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _arrays_in(part)


@contextmanager
def _observed(habits: Habits, times: Times, *, is_closely: bool) -> Iterator[None]:
    """Note what is done in it; see `Habits`."""
    before = _state() if is_closely else {}
    handlers = handlers_of_signals() if is_closely and times is not habits.steps else {}
    began = time.perf_counter()
    try:
        yield
    finally:
        times.add(time.perf_counter() - began)
        for name, state in before.items():
            if _state_of[name]() != state:
                habits.generators.add(name)
        after = handlers_of_signals() if handlers else {}
        habits.signals |= {name for name, handler in handlers.items() if after[name] != handler}
        if is_closely:
            habits.timers |= {n for n, which in _TIMERS.items() if any(signal.getitimer(which))}


def _of_torch() -> bytes:
    torch = sys.modules.get("torch")
    return b"" if torch is None else torch.random.get_rng_state().numpy().tobytes()


def _of_numpy() -> tuple[Any, ...]:
    _, words, *rest = np.random.get_state()
    return np.asarray(words).tobytes(), *rest


_state_of: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "np.random": _of_numpy,
    "torch": _of_torch,
}


def _state() -> dict[str, Any]:
    states = {name: get() for name, get in _state_of.items()}
    if not states["torch"]:
        del states["torch"]  # to be imported is no draw
    return states
