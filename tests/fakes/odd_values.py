"""Environments of every kind whose values are what a test says, right or wrong, fresh or reused.

One small task (`Task`) says what each step returns: all kinds of environment below are it, so that
all must give the same rows, or the same error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fakes.env_managers import MODES, vector_manager
from hpcdi.env.create import make_env_manager
from hpcdi.env.manager import EnvManager

BYTES = spaces.Box(0, 255, (2,), np.uint8)
FLOATS = spaces.Box(-np.inf, np.inf, (2,), np.float32)

# name -> space of the leaf, a right value, and the value that is to be refused or taken
WRONG: dict[str, tuple[gymnasium.Space[Any], Any, Any]] = {
    "fractions": (BYTES, np.zeros(2, np.uint8), np.array([0.9, 0.0], np.float32)),
    "whole floats": (BYTES, np.zeros(2, np.uint8), np.array([1.0, 0.0])),
    "a list of fractions": (BYTES, np.zeros(2, np.uint8), [0.6, 0.0]),
    "overflow": (BYTES, np.zeros(2, np.uint8), np.array([256, 0])),
    "negative": (BYTES, np.zeros(2, np.uint8), np.array([-1, 0])),
    "beyond int8": (spaces.Box(-9, 9, (2,), np.int8), np.zeros(2, np.int8), np.array([256, 0])),
    "beyond whole bounds": (spaces.Box(0, 3, (2,), int), np.zeros(2, int), np.array([4, 0])),
    "one number": (BYTES, np.zeros(2, np.uint8), np.uint8(7)),
    "short": (BYTES, np.zeros(2, np.uint8), np.zeros(1, np.uint8)),
    "long": (BYTES, np.zeros(2, np.uint8), np.zeros(3, np.uint8)),
    "other order": (
        spaces.Box(0, 255, (3, 4, 2), np.uint8), np.zeros((3, 4, 2), np.uint8),
        np.zeros((4, 2, 3), np.uint8),
    ),
    "spread": (spaces.Box(0, 1, (3, 2)), np.zeros((3, 2), np.float32), np.zeros(2, np.float32)),
    "text": (spaces.Box(0, 1, (1,)), np.zeros(1, np.float32), ["1.0"]),
    "None": (FLOATS, np.zeros(2, np.float32), None),
    "an object": (FLOATS, np.zeros(2, np.float32), np.array([1.0, {}], dtype=object)),
    "a ragged list": (FLOATS, np.zeros(2, np.float32), [1.0, [2.0, 3.0]]),
    "complex": (FLOATS, np.zeros(2, np.float32), np.zeros(2, np.complex64)),
    "a fraction for Discrete": (spaces.Discrete(2), 0, 0.9),
    "beyond Discrete": (spaces.Discrete(2), 0, 2),
    "below Discrete": (spaces.Discrete(2, start=5), 5, np.int64(4)),
    "beyond MultiDiscrete": (spaces.MultiDiscrete([2, 3]), np.array([0, 2]), np.array([2, 0])),
    "below MultiDiscrete": (spaces.MultiDiscrete([2, 3]), np.array([0, 2]), np.array([0, -1])),
    "beyond MultiBinary": (spaces.MultiBinary(2), np.zeros(2, np.int8), np.array([2, 0], np.int8)),
    "a fraction for MultiBinary": (spaces.MultiBinary(2), np.zeros(2, np.int8), np.array([0.9, 0])),
    "two for a truth": (spaces.Box(0, 1, (2,), bool), np.zeros(2, bool), np.array([2, 0])),
}  # fmt: skip
RIGHT: dict[str, tuple[gymnasium.Space[Any], Any, Any]] = {
    "int64 that fit": (BYTES, np.zeros(2, np.uint8), np.array([200, 0])),
    "a list": (BYTES, np.zeros(2, np.uint8), [200, 0]),
    "a column": (BYTES, np.zeros(2, np.uint8), np.array([[200], [0]], np.uint8)),
    "a row": (BYTES, np.zeros(2, np.uint8), np.array([[200, 0]], np.uint8)),
    "whole numbers": (FLOATS, np.zeros(2, np.float32), np.array([200, 0])),
    "float64": (FLOATS, np.zeros(2, np.float32), np.array([200.0, 0.0])),
    "a read-only array": (FLOATS, np.zeros(2, np.float32), np.broadcast_to(np.float32(200), 2)),
    "one of one": (spaces.Box(0, 255, (1,)), np.zeros(1, np.float32), 200.0),
    "an array for Discrete": (spaces.Discrete(201), 0, np.array([200])),
    "from another start": (spaces.Discrete(2, start=199), 199, 200),
}
FORMS = ("bare", "dict", "tuple", "nested", "masked", "only")
COLUMN = {
    "bare": "observation", "dict": "observation/a", "tuple": "observation/0",
    "nested": "observation/arm/a", "masked": "observation", "only": "observation",
}  # fmt: skip


def formed(
    form: str, leaf: Any, other: Any, mask: Any, dicts: Any = dict, tuples: Any = tuple
) -> Any:
    """A value, or a space, of a form; one part is the leaf."""
    return {
        "bare": lambda: leaf,
        "dict": lambda: dicts({"a": leaf, "b": other}),
        "tuple": lambda: tuples((leaf, other)),
        "nested": lambda: dicts({"arm": dicts({"a": leaf}), "b": other}),
        "masked": lambda: dicts({"observation": leaf, "action_mask": mask}),
        "only": lambda: dicts({"observation": leaf}),
    }[form]()  # fmt: skip


class Task:
    """What each step returns: the odd value, reward and end in one step, else right ones.

    Args:
        form: of observations.
        leaf: name in `WRONG` or `RIGHT`; "": a float Box that tells the step.
        at: the step of the odd values; 0: the first observation.
        result: odd ``reward``, ``terminated`` or ``truncated``.
        length: of an episode.
    """

    def __init__(
        self, form: str = "bare", leaf: str = "", at: int = 2, result: Any = None, length: int = 5
    ) -> None:
        self.form, self.at, self.result, self.length = form, at, result or {}, length
        self.space, self.usual, self.odd = {**WRONG, **RIGHT}.get(
            leaf, (FLOATS, np.zeros(2, np.float32), np.zeros(2, np.float32))
        )

    def spaces(self) -> tuple[Any, Any]:
        mask = spaces.MultiBinary(2)
        seen = formed(self.form, self.space, FLOATS, mask, spaces.Dict, spaces.Tuple)
        return seen, spaces.Discrete(2)

    def observation(self, step: int) -> Any:
        leaf = self.odd if step == self.at else self.usual
        return formed(self.form, leaf, np.zeros(2, np.float32), np.ones(2, np.int8))

    def results(self, step: int) -> dict[str, Any]:
        usual = {"reward": 1.0, "terminated": step >= self.length, "truncated": False}
        return {**usual, **self.result} if step == self.at else usual


class Single(gymnasium.Env[Any, Any]):
    """A single environment of a task."""

    def __init__(self, task: Task) -> None:
        self.observation_space, self.action_space = task.spaces()
        self._task = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return self._task.observation(0), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        results = self._task.results(self._step)
        return self._task.observation(self._step), *results.values(), {}


class Old:
    """The same before gymnasium."""

    def __init__(self, task: Task) -> None:
        self.observation_space, self.action_space = task.spaces()
        self._task = task

    def reset(self) -> Any:
        self._step = 0
        return self._task.observation(0)

    def step(self, action: Any) -> Any:
        self._step += 1
        results = self._task.results(self._step)
        return self._task.observation(self._step), results["reward"], results["terminated"], {}


class Players:
    """The same for two players, in PettingZoo's API; both see and get the same."""

    render_mode = None

    def __init__(self, task: Task) -> None:
        self.possible_agents, self.agents = ["a", "b"], []
        self._task = task

    def observation_space(self, _agent: str) -> Any:
        return self._task.spaces()[0]

    def action_space(self, _agent: str) -> Any:
        return self._task.spaces()[1]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._step, self.agents = 0, list(self.possible_agents)
        return self._of_each(self._task.observation(0)), self._of_each({})

    def step(self, actions: Any) -> Any:
        self._step += 1
        results = {name: self._of_each(v) for name, v in self._task.results(self._step).items()}
        seen = self._of_each(self._task.observation(self._step))
        infos = self._of_each({})
        if self._step >= self._task.length:
            self.agents = []
        return seen, *results.values(), infos

    def _of_each(self, value: Any) -> Any:
        return dict.fromkeys(self.possible_agents, value)

    def close(self) -> None:
        """Nothing is open."""


class InTurns(Players):
    """The same in turns: PettingZoo's agent environment cycle."""

    def agent_iter(self) -> None:
        """Its mark."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self.agent_selection = "a"
        self._say({"reward": 0.0, "terminated": False, "truncated": False})

    def _say(self, results: dict[str, Any]) -> None:
        self.rewards, self.terminations, self.truncations = map(self._of_each, results.values())
        self.infos = self._of_each({})

    def observe(self, _agent: str) -> Any:
        return self._task.observation(self._step)

    def step(self, action: Any) -> None:
        if action is None:
            self.agents.remove(self.agent_selection)
            return
        self._step += 1
        self._say(self._task.results(self._step))
        self.agent_selection = {"a": "b", "b": "a"}[self.agent_selection]


class Vector(VectorEnv[Any, Any, Any]):
    """The same, two at a time, in one of the modes; values are stacked where they can be."""

    def __init__(self, task: Task, mode: str, env_num: int = 2) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode[mode.upper()]}
        self.num_envs, self._task = env_num, task
        self.single_observation_space, self.single_action_space = task.spaces()
        self.observation_space = batch_space(self.single_observation_space, env_num)
        self.action_space = batch_space(self.single_action_space, env_num)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._step = 0
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        self._step += 1
        results = [self._many(value) for value in self._task.results(self._step).values()]
        last = np.empty(self.num_envs, dtype=object)
        last[:] = [self._task.observation(self._step)] * self.num_envs
        return self._seen(), *results, {"final_obs": last}

    def _many(self, value: Any) -> Any:
        """As one environment's value, of all."""
        if isinstance(value, dict):
            return {key: self._many(part) for key, part in value.items()}
        if isinstance(value, tuple):
            return tuple(map(self._many, value))
        if hasattr(value, "expand"):  # a tensor
            return value.expand(self.num_envs, *value.shape)
        if isinstance(value, np.ndarray | np.generic | bool | int | float):
            return np.stack([np.asarray(value)] * self.num_envs)
        return [value] * self.num_envs

    def _seen(self) -> Any:
        return self._many(self._task.observation(self._step))


KINDS = ("single", "child", "old", "parallel", "turns", *MODES)


def manager_of(kind: str, task: Task, fn: Callable[[], Any] | None = None) -> EnvManager:
    """A manager of two environments of a kind.

    Args:
        kind: one of `KINDS`.
        task: what they return.
        fn: makes the single environments; None: of the task.
    """
    if kind in MODES:
        return vector_manager(lambda: Vector(task, kind), 2, retry_waiting_time=0.0)
    cls = {"old": Old, "parallel": Players, "turns": InTurns}.get(kind, Single)
    settings = {"type": "subprocess" if kind == "child" else "base", "retry_waiting_time": 0.0}
    return make_env_manager(
        settings, [fn or partial(cls, task)] * 2, battle=kind in ("parallel", "turns")
    )


# ----------------------------------------------------------------------------------- reused arrays


class Tape:
    """Numbers of the episode and the step as observations of a form; ends are of both kinds.

    Args:
        form: of observations.
        reuses: hand out the same arrays each time, and change actions in place.
        rows: environments of a vector; 0: a single one.
    """

    def __init__(self, form: str, reuses: bool, rows: int = 0) -> None:
        self.form, self.reuses, self._rows = form, reuses, rows
        self._kept: dict[str, Any] = {}

    def spaces(self) -> tuple[Any, Any]:
        mask = spaces.MultiBinary(2)
        seen = formed(self.form, FLOATS, FLOATS, mask, spaces.Dict, spaces.Tuple)
        acts = spaces.Discrete(2) if self.form == "masked" else spaces.Box(-9, 9, (2,))
        return seen, acts

    def hand_out(self, name: str, value: Any, dtype: Any) -> Any:
        """A new array of the value; or the same one as before, which has it now."""
        array = np.array(value, dtype)
        if not self.reuses:
            return array
        kept = self._kept.setdefault(name, array)
        kept[...] = array
        return kept

    def observation(self, episode: Any, step: Any, who: str = "") -> Any:
        both = np.stack([episode, step], axis=-1)
        leaf = self.hand_out(f"leaf{who}", both, np.float32)
        other = self.hand_out(f"other{who}", 2 * both, np.float32)
        mask = self.hand_out(f"mask{who}", np.ones_like(both), np.int8)
        return formed(self.form, leaf, other, mask)

    def reward(self, step: Any, action: Any) -> Any:
        """The step and the action's sum; then the action is changed."""
        paid = step + np.reshape(action, (*np.shape(step), -1)).sum(axis=-1)
        if self.reuses and isinstance(action, np.ndarray) and action.ndim:
            action[...] = -5
        return paid

    def ends(self, episode: Any, step: Any) -> tuple[Any, Any]:
        is_over, is_odd = step >= 3 + episode % 3, episode % 2 == 1
        return is_over & is_odd, is_over & ~is_odd


class SingleTape(gymnasium.Env[Any, Any]):
    def __init__(self, form: str, reuses: bool) -> None:
        self._tape, self._episode = Tape(form, reuses), 0
        self.observation_space, self.action_space = self._tape.spaces()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._episode, self._step = self._episode + 1, 0
        return self._tape.observation(self._episode, 0), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        paid = self._tape.reward(self._step, action)
        ends = self._tape.ends(np.int64(self._episode), self._step)
        return self._tape.observation(self._episode, self._step), paid, *ends, {}


class OldTape:
    """The same before gymnasium; it ends by terminations and its info's truncations."""

    def __init__(self, form: str, reuses: bool) -> None:
        self._env = SingleTape(form, reuses)
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space

    def reset(self) -> Any:
        return self._env.reset()[0]

    def step(self, action: Any) -> Any:
        observation, paid, terminated, truncated, _ = self._env.step(action)
        over = terminated or truncated
        return observation, paid, over, {"TimeLimit.truncated": truncated}


class ParallelTape:
    """The same for two players, who act at once."""

    render_mode = None

    def __init__(self, form: str, reuses: bool) -> None:
        self._tape, self._episode = Tape(form, reuses), 0
        self.possible_agents, self.agents = ["a", "b"], []

    def observation_space(self, _agent: str) -> Any:
        return self._tape.spaces()[0]

    def action_space(self, _agent: str) -> Any:
        return self._tape.spaces()[1]

    def _seen(self) -> Any:
        return {
            name: self._tape.observation(self._episode, self._step + 100 * place, name)
            for place, name in enumerate(self.possible_agents)
        }

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._episode, self._step = self._episode + 1, 0
        self.agents = list(self.possible_agents)
        return self._seen(), {name: {} for name in self.agents}

    def step(self, actions: Any) -> Any:
        self._step += 1
        paid = {name: self._tape.reward(self._step, action) for name, action in actions.items()}
        ends = self._tape.ends(np.int64(self._episode), self._step)
        names = list(self.agents)
        if any(ends):
            self.agents = []
        of_each = [dict.fromkeys(names, end) for end in ends]
        return self._seen(), paid, *of_each, {name: {} for name in names}

    def close(self) -> None:
        """Nothing is open."""


class TurnsTape(ParallelTape):
    """The same in turns."""

    def agent_iter(self) -> None:
        """Its mark."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset()
        self.agent_selection = "a"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {name: {} for name in self.agents}

    def observe(self, agent: str) -> Any:
        return self._seen()[agent]

    def step(self, action: Any) -> None:
        if action is None:
            self.agents.remove(self.agent_selection)
            return
        self._step += 1
        self.rewards = dict.fromkeys(self.possible_agents, 0.0)
        self.rewards[self.agent_selection] = self._tape.reward(self._step, action)
        terminated, truncated = self._tape.ends(np.int64(self._episode), self._step)
        self.terminations = dict.fromkeys(self.possible_agents, terminated)
        self.truncations = dict.fromkeys(self.possible_agents, truncated)
        self.agent_selection = {"a": "b", "b": "a"}[self.agent_selection]


class VectorTape(VectorEnv[Any, Any, Any]):
    """The same as a vector environment, whose rewards and ends are reused, too."""

    def __init__(self, form: str, reuses: bool, mode: str, env_num: int = 2) -> None:
        self._mode = AutoresetMode[mode.upper()]
        self.metadata = {"autoreset_mode": self._mode}
        self.num_envs, self._tape = env_num, Tape(form, reuses, env_num)
        self.single_observation_space, self.single_action_space = self._tape.spaces()
        self.observation_space = batch_space(self.single_observation_space, env_num)
        self.action_space = batch_space(self.single_action_space, env_num)
        self._episode, self._step = np.zeros((2, env_num), np.int64)
        self._over = np.zeros(env_num, bool)

    def _begin(self, envs: Any) -> None:
        self._episode[envs] += 1
        self._step[envs] = 0
        self._over[envs] = False

    def _results(self, paid: Any, ends: Any) -> Any:
        hand_out = self._tape.hand_out
        return (
            hand_out("paid", paid, np.float64),
            *(hand_out(name, end, bool) for name, end in zip(("one", "two"), ends, strict=True)),
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self._begin(mask)
        if self._tape.reuses:
            mask[...] = False
            self._results(np.full(self.num_envs, -9.0), np.zeros((2, self.num_envs), bool))
        return self._tape.observation(self._episode, self._step), {}

    def step(self, actions: Any) -> Any:
        begins = self._over.copy()
        if self._mode is AutoresetMode.NEXT_STEP:
            self._begin(begins)
            self._step[begins] = -1
        self._step += 1
        paid = np.where(begins, 0.0, self._tape.reward(self._step, actions))
        ends = self._tape.ends(self._episode, self._step)
        self._over = ends[0] | ends[1]
        info: dict[str, Any] = {}
        if self._mode is AutoresetMode.SAME_STEP and self._over.any():
            last = Tape(self._tape.form, False).observation(self._episode, self._step)
            final = np.full(self.num_envs, None, dtype=object)
            for env in np.flatnonzero(self._over):
                final[env] = _of_row(last, env)
            info = {"final_obs": final, "_final_obs": self._over.copy()}
            self._begin(self._over.copy())
        results = self._results(paid, ends)
        return self._tape.observation(self._episode, self._step), *results, info


def _of_row(value: Any, row: int) -> Any:
    if isinstance(value, dict):
        return {key: _of_row(part, row) for key, part in value.items()}
    return tuple(_of_row(part, row) for part in value) if isinstance(value, tuple) else value[row]


def tape_manager(kind: str, form: str, reuses: bool) -> EnvManager:
    """A manager of two environments of a kind whose arrays are new, or reused."""
    if kind in MODES:
        return vector_manager(lambda: VectorTape(form, reuses, kind), 2)
    cls = {"old": OldTape, "parallel": ParallelTape, "turns": TurnsTape}.get(kind, SingleTape)
    settings = {"type": "subprocess" if kind == "child" else "base"}
    return make_env_manager(
        settings, [partial(cls, form, reuses)] * 2, battle=kind in ("parallel", "turns")
    )
