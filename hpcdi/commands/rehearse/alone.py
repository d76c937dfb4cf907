"""One environment, made and stepped by a manager of its own, and watched closely."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import numpy as np

from hpcdi.commands.rehearse.apart import Tell
from hpcdi.commands.rehearse.facts import Alone
from hpcdi.commands.rehearse.output import Output, warnings_in
from hpcdi.commands.rehearse.watched import watched
from hpcdi.config.env import EnvConfig
from hpcdi.dataclass import dataclass
from hpcdi.env.contract import Origin, Space, beyond
from hpcdi.env.create import get_env_cls, single_env_fns
from hpcdi.env.in_process import LocalWorker, SingleEnvs
from hpcdi.env.manager import EnvManager
from hpcdi.env.seeds import ScenarioSeeds, SeedStreams
from hpcdi.policy.exploration import RandomActor
from hpcdi.policy.spaces import with_bounds
from hpcdi.roles.collector.loop import Loop, PolicyAgent
from hpcdi.types import Array, Columns
from hpcdi.utils.nested import under
from hpcdi.utils.processes import resident_bytes

_SAMPLE_STEPS, _SAMPLE_S = 25, 1.0
"""Between two samples of memory, whichever comes first."""
_TRACE_STEPS = 100
_SEEN_AT_ONCE, _BYTES_AT_ONCE = 256, 1 << 20
"""Rows and bytes that are looked at together: its own memory is that of the process, too."""


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
            facts.repeats = _difference(_traces(envs, config, seed, budget.seconds))
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


def _traces(
    envs: EnvManager, config: EnvConfig, seed: int, most_s: float
) -> list[list[tuple[Columns, bytes]]]:
    """Returns two traces of one seed and length; see `_trace`."""
    first = _trace(envs, config, seed, _TRACE_STEPS, most_s)
    return [first, _trace(envs, config, seed, len(first) - 1)]


def _trace(
    envs: EnvManager, config: EnvConfig, seed: int, steps: int, most_s: float = math.inf
) -> list[tuple[Columns, bytes]]:
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
    """Copies of what those see who act next."""
    return {name: column[envs.ready] for name, column in envs.observation.items()}


def _difference(traces: list[Any]) -> str:
    """Returns where two traces differ first; "": nowhere."""
    for number, ((seen, results), (again, others)) in enumerate(zip(*traces, strict=True)):
        for name, column in seen.items():
            if not np.array_equal(column, again[name], equal_nan=column.dtype.kind == "f"):
                return f"{name} after {number} steps"
        if results != others:
            return f"rewards or ends in step {number}"
    return ""


def _another(make: Any, config: EnvConfig, *, is_battle: bool) -> str:
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
