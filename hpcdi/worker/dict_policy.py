"""Policies of dicts, DI-engine's form, as ones of columns.

A policy of DI-engine's contract (`CollectMode`, `EvalMode`) takes ``{env_id: observation}`` and
returns ``{env_id: {"action": ...}}``; it makes transitions by ``process_transition`` and training
samples by ``get_train_sample``, and learns from lists of samples. `columnar_policy` wraps it once
into one that acts and learns by columns, for runs; `DictActor` acts for it, `DictRecorder` has it
make its samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from hpcdi.env.base import Envs
from hpcdi.env.manager import EnvManager
from hpcdi.errors import EnvError, PolicyError
from hpcdi.policy.base import TrainColumns, attribute_of
from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import RANDOM
from hpcdi.store.segment import Segment
from hpcdi.types import (
    ITEM_DTYPE,
    NO_SEED,
    Array,
    Columns,
    Games,
    Step,
    Transition,
)
from hpcdi.utils.nested import to_ndarrays, to_tensors
from hpcdi.worker.dict_envs import BaseEnvTimestep, ForeignEnvs, View, open_envs, ours, to_arrays
from hpcdi.worker.dict_form import RandomPolicy
from hpcdi.worker.dict_samples import columns_of, weighted_samples_of

# ---------------------------------------------------------- a policy of dicts as one of columns


def columnar_policy(
    cfg: Any,
    enable_field: Sequence[str] | None = None,
    *,
    seed: Any = None,
) -> Any:
    """Returns the policy that ``cfg.type`` names; one of dicts as one of columns.

    See `create_policy`.
    """
    policy = create_policy(cfg, enable_field, seed=seed)
    return policy if attribute_of(policy, "columnar", False) else PolicyOfDicts(policy)


def columnar_actor(mode: Any) -> Any:
    """Returns what acts for a policy's mode by columns; None: it wants dicts."""
    actor = attribute_of(mode, "columnar", None)
    return actor if hasattr(actor, "act") else None


class PolicyOfDicts:
    """A policy of dicts, whose modes act and learn by columns.

    Args:
        policy: has DI-engine's modes.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    @property
    def collect_mode(self) -> Any:
        """It acts by its attribute ``columnar``, which brings a recorder of its own."""
        mode = self._policy.collect_mode
        return _Mode(mode, {"columnar": DictActor([mode], to_tensors)})

    @property
    def eval_mode(self) -> Any:
        """See `collect_mode`."""
        mode = self._policy.eval_mode
        return _Mode(mode, {"columnar": DictActor([mode], to_tensors)})

    @property
    def learn_mode(self) -> Any:
        """Its batches stay on the CPU: a policy of dicts moves its samples itself."""
        mode = self._policy.learn_mode

        def forward(columns: Mapping[str, Any], **kwargs: Any) -> Any:
            return mode.forward(weighted_samples_of(columns), **kwargs)

        return _Mode(mode, {"columnar": True, "device": "cpu"}, forward)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


class _Mode:
    """A mode of a policy, with some attributes, and maybe a method, of its own."""

    def __init__(self, mode: Any, attributes: Mapping[str, Any], forward: Any = None) -> None:
        self._mode, self._attributes = mode, dict(attributes)
        if forward is not None:
            self.forward = forward

    def get_attribute(self, name: str) -> Any:
        """See `Policy.get_attribute`."""
        if name in self._attributes:
            return self._attributes[name]
        return self._mode.get_attribute(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mode, name)


class DictActor:
    """What acts for policies of dicts: for one, or for several, one a player of a battle.

    Args:
        policies: modes.
        convert: what observations and rewards become before a policy gets them; None: they stay.
        present: what these observations become where a policy acts on them, not where it makes
            transitions of them; None: they stay.
        is_battle: whether they are a battle's players.

    A policy whose settings say ``type: dreamer_command`` has no memory of its own: it is called
    with ``state``, the list of its outputs' last ``state``, None at first, and with ``reset``, true
    where an environment's episode has begun since, bool [environments]. One of the type
    ``ngu_command`` gets the environment's number as the fourth argument of ``process_transition``.

    Attributes:
        seen, outputs: by row, since its last turn.
        view: values of the environments that it acts in; see `bind`.
        passes_state: whether such a policy is called so; not where actions are random.
    """

    view: View
    passes_state = True

    def __init__(
        self,
        policies: Sequence[Any],
        convert: Callable[[Any], Any] | None = None,
        present: Callable[[Any], Any] | None = None,
        *,
        is_battle: bool = False,
    ) -> None:
        self.policies, self.is_battle = list(policies), is_battle
        self._convert, self._present = convert, present
        self._to_arrays: Callable[[Any], Any] = to_arrays
        self.env_num = 0
        self._manager: EnvManager | None = None
        self._random: RandomPolicy | None = None
        self.seen: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}
        self._states: dict[int, Any] = {}  # by row, of policies without a memory
        self._begun: set[int] = set()  # rows
        self._is_reset: set[int] = set()  # rows, since the loop reset some

    def bind(self, manager: Any) -> Envs:
        """Act in the environments of a manager; returns them as the stepping loop has them."""
        envs, self.view = open_envs(manager, len(self.policies) if self.is_battle else 0)
        self.env_num = envs.env_num
        # the spaces of our own say what an action is; others may ask a number for its `item()`
        self._to_arrays = to_ndarrays if isinstance(envs, ForeignEnvs) else to_arrays
        self._manager = ours(manager)
        return envs

    def _random_policy(self, policy: Any) -> RandomPolicy:
        """Returns what acts at random in place of a policy.

        Its seed is the environments', and what torch draws: no loop repeats another's actions.

        Raises:
            EnvError: the environments are foreign: their spaces are not known.
        """
        if self._random is None:
            if self._manager is None:
                raise EnvError(
                    "random actions (random=True) need one of hpcdi's managers, which knows its "
                    "spaces; or collect at random without a policy: the environments choose then"
                )
            import torch

            words = [*torch.randint(2**32, (2,)).tolist(), self._manager.seeds.actions()]
            seed = np.random.SeedSequence(words)
            self._random = RandomPolicy(self._manager.spaces, policy, seed)
        return self._random

    def act(self, observation: Columns, setting: Any, rows: Array | None = None) -> Columns:
        """See `Actor.act`; actions alone. `setting` may be a list, one a player.

        Raises:
            PolicyError: a policy's output lacks an environment or its action.
        """
        values = self.view.seen(observation)
        numbers = range(len(values)) if rows is None else rows.tolist()
        seen = {row: self.converted(value) for row, value in zip(numbers, values, strict=True)}
        settings = setting if isinstance(setting, list) else [setting] * len(self.policies)
        actions: dict[int, Any] = {}
        for player, policy in enumerate(self.policies):
            of_player = {row: seen[row] for row in seen if row // self.env_num == player}
            if of_player:
                actions |= self._act_for(policy, of_player, settings[player] or {})
        self.seen.update(seen)
        return self.view.columns({row: actions[row] for row in numbers})

    def _act_for(
        self, policy: Any, seen: Mapping[int, Any], setting: Mapping[str, Any]
    ) -> dict[int, Any]:
        """Returns the actions of a player's policy by row, and notes its outputs."""
        present = self._present if self._present is not None else lambda value: value
        by_env = {row % self.env_num: present(value) for row, value in seen.items()}
        acting = self._random_policy(policy) if setting.get(RANDOM) else policy
        state = self._state_of(policy, list(seen))
        outputs = acting.forward(by_env, **setting, **state)
        chosen = actions_of(outputs, by_env, self._to_arrays)
        for row in seen:
            self.outputs[row] = outputs[row % self.env_num]
            if state:
                self._states[row] = self.outputs[row]["state"]
        return {row: chosen[row % self.env_num] for row in seen}

    def _state_of(self, policy: Any, rows: Sequence[int]) -> dict[str, Any]:
        """Returns the arguments ``state`` and ``reset`` of some rows, where a policy has them."""
        if _type_of(policy) != "dreamer_command" or not self.passes_state:
            return {}
        states = [self._states.get(row) for row in rows]
        has_begun = np.array([row in self._begun for row in rows])
        self._begun -= set(rows)
        is_first = any(state is None for state in states)
        return {"reset": has_begun, "state": None if is_first else states}

    def train_columns(self, *_given: Any) -> TrainColumns:
        """See `ColumnarActor.train_columns`: none, policies of dicts make samples themselves."""
        return TrainColumns({})

    def converted(self, value: Any) -> Any:
        """Returns an observation or a reward as policies make transitions of it."""
        return value if value is None or self._convert is None else self._convert(value)

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """New episodes begin in these rows; None: in all."""
        if rows is None:
            for memory in (self.seen, self.outputs, self._states, self._begun, self._is_reset):
                memory.clear()
            for policy in self.policies:
                policy.reset()
            return
        self.reset_early([int(row) for row in rows if int(row) not in self._is_reset])
        self._is_reset.clear()

    def reset_early(self, rows: Iterable[int]) -> None:
        """Reset rows before the loop does, which then leaves them alone."""
        for row in rows:
            self.policies[row // self.env_num].reset([row % self.env_num])
            self.seen.pop(row, None)
            self.outputs.pop(row, None)
            self._begun.add(row)
            self._is_reset.add(row)

    def recorder(self, envs: Envs, length: int) -> DictRecorder:
        """Returns a recorder of a parallel collector; see `policy_loop`."""
        (policy,) = self.policies
        settings = getattr(attribute_of(policy, "cfg", None), "collect", None)
        n_episode = getattr(settings, "n_episode", None)
        if n_episode:
            recorder = TrajectoryRecorder(
                envs.env_num,
                math.inf,
                policy.get_train_sample,
                opens="drop",
                quota=[math.ceil(n_episode / envs.env_num)] * envs.env_num,
            )
            return DictRecorder(self, [recorder])
        piece = trajectory_length(policy, length * envs.env_num, envs.env_num)
        needs_next = attribute_of(policy, "gae_lambda", None) is not None
        is_sequence = int(attribute_of(policy, "unroll_len", 1)) > 1
        opens: Literal["keep", "drop", "finish"] = "finish"
        if attribute_of(policy, "on_policy", False) and not math.isinf(piece):
            opens = "drop"
        elif math.isinf(piece) or is_sequence or needs_next:
            opens = "keep"
        recorder = TrajectoryRecorder(
            envs.env_num, piece, policy.get_train_sample, length, opens=opens
        )
        return DictRecorder(self, [recorder])


def _type_of(policy: Any) -> str:
    """Returns the type in a policy's settings, by which DI-engine knows some policies."""
    return getattr(attribute_of(policy, "cfg", None), "type", "")


def actions_of(
    outputs: Mapping[int, Any], envs: Iterable[int], convert: Callable[[Any], Any]
) -> dict[int, Any]:
    """Action for each of `envs`, converted.

    Raises:
        PolicyError: the policy's output lacks an environment or its action.
    """
    try:
        return {env: convert(outputs[env]["action"]) for env in envs}
    except (KeyError, IndexError, TypeError) as error:
        raise PolicyError(
            f"the policy was asked about environments {sorted(envs)} and must return "
            f"{{env_id: {{'action': ...}}}} for each; it returned {outputs!r:.200}"
        ) from error


def trajectory_length(policy: Any, target: int, env_num: int) -> float:
    """Transitions that the policy makes samples of at once: an environment's share of the target.

    At least its ``unroll_len``; without end, up to whole episodes, where its settings say
    ``traj_len_inf``.
    """
    if getattr(attribute_of(policy, "cfg", None), "traj_len_inf", False):
        return math.inf
    return max(math.ceil(target / env_num), int(attribute_of(policy, "unroll_len", 1)))


class DictRecorder:
    """Has policies of dicts make transitions of steps, for a recorder of each.

    Args:
        actor: which has acted for them.
        recorders: of each player's transitions; None: a player's are not kept.
    """

    def __init__(self, actor: DictActor, recorders: Sequence[TrajectoryRecorder | None]) -> None:
        self.actor, self.of = actor, list(recorders)
        self.mark: Callable[[int], Transition] | None = None
        """Environment -> what is added to its transitions; None: nothing."""
        self.infos: list[list[dict[str, Any]]] = [[] for _ in recorders]
        """In a battle by player, infos of the environments at the ends of episodes, in order."""

    def record(
        self, _columns: Columns, _live: Array, step: Step, _games: Games | None = None
    ) -> None:
        """Add a step, environment by environment; see `Recorder.record`.

        As with DI-engine, policies are reset where an episode ended before they get the next
        environment's transition.
        """
        actor, env_num = self.actor, self.actor.env_num
        ended = np.flatnonzero(step.ended).tolist() if actor.is_battle else []
        last = {row: dict(actor.view.info(row)) for row in ended}
        for row, info in last.items():  # first, as the loop has counted these episodes
            self.infos[row // env_num].append(info)
        timesteps = actor.view.timesteps(step)
        over = set(np.flatnonzero(step.over).tolist())
        failed = set() if step.failed is None else set(np.flatnonzero(step.failed).tolist())
        by_env: dict[int, list[int]] = {}
        for row in sorted({*timesteps, *over, *last}):
            by_env.setdefault(row % env_num, []).append(row)
        for env, rows in sorted(by_env.items()):
            for row in rows:
                self._record_row(row, timesteps.get(row), has_failed=row in failed)
                if row in last and (recorder := self.of[row // env_num]) is not None:
                    recorder.note(env, last[row])
            if failed.intersection(rows):
                actor.view.restart(env)
            actor.reset_early(over.intersection(rows))

    def take_infos(self) -> list[list[dict[str, Any]]]:
        """Take `infos`."""
        taken, self.infos = self.infos, [[] for _ in self.of]
        return taken

    def _record_row(self, row: int, timestep: BaseEnvTimestep | None, *, has_failed: bool) -> None:
        """Add the transition that a row completed, or drop its trajectory."""
        actor, env_num = self.actor, self.actor.env_num
        player, env = row // env_num, row % env_num
        recorder = self.of[player]
        if recorder is None:
            return
        if has_failed:
            recorder.drop(env)
        elif timestep is not None:
            converted = timestep._replace(
                obs=actor.converted(timestep.obs), reward=actor.converted(timestep.reward)
            )
            policy = actor.policies[player]
            more = (env,) if _type_of(policy) == "ngu_command" else ()
            transition = policy.process_transition(
                actor.seen[row], actor.outputs[row], converted, *more
            )
            if self.mark is not None:
                transition.update(self.mark(env))
            recorder.add(env, transition, ended=bool(timestep.done))

    @property
    def is_full(self) -> bool:
        """See `Recorder.is_full`."""
        return any(recorder is not None and recorder.is_full for recorder in self.of)

    def drop(self) -> None:
        """Drop all running episodes; their trajectories that are finished stay."""
        for recorder in filter(None, self.of):
            for env in range(len(recorder.open)):
                recorder.drop(env)

    def cut(self, _next_observation: Columns, policy_version: int) -> Segment | None:
        """See `Recorder.cut`: of a single player."""
        recorder = self.of[0]
        return None if recorder is None else recorder.cut(policy_version)


class Trajectory(NamedTuple):
    """Consecutive transitions of one episode, as the samples that a policy made of them."""

    env: int
    episode: int
    samples: list[Transition]
    transitions: int
    is_whole: bool
    """Whether its episode ended with it."""
    info: dict[str, Any] | None = None
    """Of the environment where the episode ended, in a battle; see `DictRecorder.infos`."""


class TrajectoryRecorder:
    """Records transitions of a policy of dicts, which makes samples of each finished trajectory.

    A trajectory is finished when its episode ends, or when it has `length` transitions.

    Args:
        env_num: environments.
        length: transitions of one environment; infinite: whole episodes.
        make_samples: the policy's ``get_train_sample``.
        rollout: samples for each environment with which it is full; if `opens` is "finish",
            transitions; None: `length`.
        opens: what a cut does with unfinished trajectories: "keep": they go on, for samples that
            are sequences of `length`, or advantages, which need the value of the next transition;
            "drop": another policy acts from there on, and they are no samples of it; "finish": they
            are samples, however short they are, so that slow environments hold nothing back.
        quota: see below.
        shape: changes an environment's trajectory before samples are made of it; None: nothing.

    Attributes:
        open: by environment, transitions of the unfinished trajectory.
        quota: by environment, whole episodes after which it is full: the first that end are more
            often short ones, so that each has its quota, and further ones are dropped; None: it is
            full after a rollout.
    """

    def __init__(
        self,
        env_num: int,
        length: float,
        make_samples: Callable[[list[Transition]], list[Transition]],
        rollout: float | None = None,
        *,
        opens: Literal["keep", "drop", "finish"] = "finish",
        quota: Sequence[int] | None = None,
        shape: Callable[[int, list[Transition]], list[Transition]] | None = None,
    ) -> None:
        self.length = length
        self._opens, self.quota = opens, quota
        self._make_samples, self._shape = make_samples, shape
        self._rollout = rollout
        self.open: list[list[Transition]] = [[] for _ in range(env_num)]
        self._episode = [0] * env_num  # number of the running episode
        self._finished: list[Trajectory] = []
        self._is_tail = [False] * env_num  # the running episode's beginning was dropped
        self._without_samples = 0  # transitions that no cut has counted yet
        self._samples = [0] * env_num  # of the running episode
        self._samples_of_ended = 0

    @property
    def open_transitions(self) -> int:
        """Transitions of unfinished trajectories."""
        return sum(map(len, self.open))

    @property
    def finished(self) -> int:
        """Trajectories that `take` would return."""
        return len(self._finished)

    @property
    def is_full(self) -> bool:
        """True if it must be cut before the next step: it holds a rollout of all environments."""
        if self.quota is not None:
            return all(self._ended(env) >= most for env, most in enumerate(self.quota))
        if self._opens == "finish":
            kept = sum(trajectory.transitions for trajectory in self._finished)
            kept += self.open_transitions
        else:  # as DI-engine counts: samples; a piece without any is as one, so that this ends
            kept = sum(max(1, len(trajectory.samples)) for trajectory in self._finished)
        rollout = self.length if self._rollout is None else self._rollout
        return kept >= rollout * len(self.open)

    def add(self, env: int, transition: Transition, *, ended: bool) -> None:
        """Add an environment's transition, with which its episode may have ended."""
        self.open[env].append(transition)
        if ended or len(self.open[env]) >= self.length:
            self._finish(env, is_whole=ended)

    def note(self, env: int, info: dict[str, Any]) -> None:
        """Note the info of an environment's episode that has ended, on its trajectory.

        Of whole episodes, one in which this player never acted is a trajectory without transitions.
        """
        of_env = [k for k, trajectory in enumerate(self._finished) if trajectory.env == env]
        last = self._finished[of_env[-1]] if of_env else None
        # one that has an info is of an episode before, in which this player acted last
        if last is not None and last.is_whole and last.info is None:
            self._finished[of_env[-1]] = last._replace(info=info)
        elif math.isinf(self.length) and (self.quota is None or len(of_env) < self.quota[env]):
            episode = self._episode[env] * len(self.open) + env
            self._finished.append(Trajectory(env, episode, [], 0, True, info))
            self._episode[env] += 1

    def drop(self, env: int) -> None:
        """Drop an environment's unfinished trajectory: its episode failed, or a reset ended it."""
        self.open[env], self._is_tail[env] = [], False
        self._episode[env] += 1
        self._samples[env] = 0

    def take(self, most: int | None = None) -> list[Trajectory]:
        """Take the finished trajectories, oldest first, at most so many."""
        taken = self._finished[:most]
        self._finished = self._finished[len(taken) :]
        return taken

    def take_samples_of_ended(self) -> int:
        """Returns how many samples the episodes have that ended since the last call."""
        count, self._samples_of_ended = self._samples_of_ended, 0
        return count

    def drop_open(self) -> None:
        """Drop what was recorded of unfinished trajectories."""
        for env, transitions in enumerate(self.open):
            if transitions:
                made = self._samples[env]
                self.drop(env)
                self._samples[env], self._is_tail[env] = made, True  # its episode goes on

    def cut(self, policy_version: int) -> Segment | None:
        """Take what is finished as a segment of samples.

        Returns:
            A row a sample, see `dict_samples`; None where there are none.
        """
        if self._opens == "finish":
            for env, transitions in enumerate(self.open):
                if transitions:
                    self._finish(env, is_whole=False)
        elif self._opens == "drop":
            self._without_samples += self.open_transitions
            self.drop_open()
        taken = self.take()
        cut = [trajectory for trajectory in taken if trajectory.samples]
        steps = np.array([trajectory.transitions for trajectory in cut], dtype=np.int64)
        self._without_samples += sum(one.transitions for one in taken) - int(steps.sum())
        if not cut:
            return None
        steps[0] += self._without_samples
        self._without_samples = 0
        table = np.zeros(len(cut), dtype=ITEM_DTYPE)
        table["episode_seed"] = NO_SEED
        table["item_len"] = [len(trajectory.samples) for trajectory in cut]
        table["item_start"] = np.cumsum(table["item_len"]) - table["item_len"]
        table["policy_version"] = policy_version
        table["env_id"] = [trajectory.env for trajectory in cut]
        table["episode_id"] = [trajectory.episode for trajectory in cut]
        samples = [one for trajectory in cut for one in trajectory.samples]
        ended = np.array([trajectory.is_whole for trajectory in cut])
        return Segment(columns_of(samples), table, ended=ended, env_steps=steps)

    def _ended(self, env: int) -> int:
        """Returns how many finished trajectories are of an environment."""
        return sum(trajectory.env == env for trajectory in self._finished)

    def _finish(self, env: int, *, is_whole: bool) -> None:
        """Make samples of an environment's trajectory, which may end with its episode."""
        transitions, self.open[env] = self.open[env], []
        is_tail, self._is_tail[env] = self._is_tail[env], self._is_tail[env] and not is_whole
        if self.quota is not None and (is_tail or self._ended(env) >= self.quota[env]):
            self._without_samples += len(transitions)
            self._episode[env] += is_whole
            return
        count = len(transitions)
        if self._shape is not None:
            transitions = self._shape(env, transitions)
        samples = self._make_samples(transitions)
        episode = self._episode[env] * len(self.open) + env
        self._finished.append(Trajectory(env, episode, samples, count, is_whole))
        self._episode[env] += is_whole
        self._samples[env] += len(samples)
        if is_whole:
            self._samples_of_ended += self._samples[env]
            self._samples[env] = 0
