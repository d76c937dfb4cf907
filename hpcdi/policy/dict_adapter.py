"""Policies that want lists of dicts, as agents of the stepping loop.

A policy of DI-engine's contract (`CollectMode`, `EvalMode`) takes ``{env_id: observation}`` and
returns ``{env_id: {"action": ...}}``; it makes transitions by ``process_transition`` and training
samples by ``get_train_sample``. The loop knows one kind of data, columns. `DictAgent` is in
between: its columns hold one Python object an environment (dtype object), so that a policy gets
exactly the objects that environments returned, and a learner exactly those that the policy made.

Foreign policies and environments may return actions as tensors, returns as arrays of one element,
and one info for all players of a battle or one for each; the functions below normalise these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.errors import EnvError, PolicyError
from hpcdi.types import Array, Columns, Transition

_ARRAYS = (np.ndarray, np.generic, int)


class DictAgent:
    """One policy, or one policy a player of a battle, as an agent of the stepping loop.

    A transition of a player lasts from its own turn to its next one: battles return no observation
    for players that do not act, and rewards in between are summed. Where all players
    act in every step, and where there is one policy, that is the step itself.

    Args:
        policies: a mode; or for a battle a list of them.
        env_num: environments.
        present: converts observations and rewards before a policy gets them; None: as they are.
    """

    def __init__(
        self, policies: Any, env_num: int, present: Callable[[Any], Any] | None = None
    ) -> None:
        self.is_battle = isinstance(policies, list)
        self.policies: list[Any] = policies if self.is_battle else [policies]
        self.mark: Callable[[int], Transition] | None = None
        """Environment -> what is added to its transitions; None: nothing."""
        self._present = present
        self._converts = self.is_battle or present is not None
        self._env_num = env_num
        # of each player, by environment, since its last turn
        self._seen: list[dict[int, Any]] = [{} for _ in self.policies]
        self._outputs: list[dict[int, Any]] = [{} for _ in self.policies]
        self._rewards: list[dict[int, Any]] = [{} for _ in self.policies]

    def act(
        self, observation: Array, setting: Any = None, forward: Callable[..., Any] | None = None
    ) -> Columns:
        """Have the policies act for the environments that wait.

        Args:
            observation: objects [envs]; None where an environment does not wait for an action. In
                a battle a list with one element a player, None where that player does not act.
            setting: keyword arguments of ``forward``; a list has one mapping a player.
            forward: acts instead of the policies.

        Returns:
            ``action``, objects [envs]; None where an environment does not wait. In a battle a list
            with one element a player.

        Raises:
            PolicyError: a policy's output lacks an environment or its action.
        """
        waiting = [(env, obs) for env, obs in enumerate(observation.tolist()) if obs is not None]
        settings = setting if isinstance(setting, list) else [setting] * len(self.policies)
        chosen = []
        for player, policy in enumerate(self.policies):
            seen = dict(waiting)
            if self._converts:
                seen = {
                    env: self._shown(own)
                    for env, obs in waiting
                    if (own := obs[player] if self.is_battle else obs) is not None
                }
            outputs = (forward or policy.forward)(seen, **(settings[player] or {})) if seen else {}
            chosen.append(actions_of(outputs, seen))
            self._seen[player].update(seen)
            self._outputs[player].update(outputs)
        action = chosen[0]
        if self.is_battle:
            action = {env: [own.get(env) for own in chosen] for env, _ in waiting}
        return {"action": object_column(action, len(observation))}

    def transitions(
        self, player: int, _observation: Array, _outputs: Columns, step: Any
    ) -> tuple[Columns, Array, Array]:
        """Transitions that a step completes for a player.

        Args:
            player: number of its policy.
            step: has ``timesteps``, environment -> `BaseEnvTimestep`.

        Returns:
            ``transition``, objects [envs]; bool [envs], where there is one; bool [envs], where it
            ended its episode.

        Raises:
            EnvError: infos of a battle are not one a player.
        """
        seen, outputs = self._seen[player], self._outputs[player]
        process = self.policies[player].process_transition
        made: dict[int, Transition] = {}
        ended = []
        for env, timestep in step.timesteps.items():
            own = self._own(player, env, timestep) if self._converts else timestep
            if own is None:
                continue
            made[env] = process(seen[env], outputs[env], own)
            if self.mark is not None:
                made[env].update(self.mark(env))
            if timestep.done:
                ended.append(env)
            if self.is_battle:
                self._end_turn(player, env)
        column = object_column(made, self._env_num)
        live = mask_of(made, self._env_num) if self.is_battle else step.live
        return {"transition": column}, live, mask_of(ended, self._env_num)

    def forget(self, step: Any) -> None:
        """Reset the policies for environments whose episode ended or failed in a step."""
        failed = [] if step.abnormal is None else np.flatnonzero(step.abnormal).tolist()
        for env in [env for env, one in step.timesteps.items() if one.done] + failed:
            self.reset([env])

    def reset(self, env_ids: list[int] | None = None) -> None:
        """Reset the policies for some environments; None: for all."""
        for player, policy in enumerate(self.policies):
            if env_ids is None:
                policy.reset()
            else:
                policy.reset(env_ids)
            for env in range(self._env_num) if env_ids is None else env_ids:
                self._end_turn(player, env)

    def _own(self, player: int, env: int, timestep: Any) -> Any:
        """A player's timestep where it completes a transition of its own; else None."""
        if not self.is_battle:
            return timestep._replace(
                obs=self._shown(timestep.obs), reward=self._shown(timestep.reward)
            )
        done = bool(timestep.done)
        info = infos_of(timestep.info, len(self.policies), env, ended=done)[player]
        if env not in self._seen[player]:  # it has not acted in this episode yet
            return None
        reward = self._rewards[player].get(env, np.float32(0.0))
        reward = reward + np.asarray(timestep.reward)[player]
        obs = timestep.obs[player]
        if not done and obs is None:
            self._rewards[player][env] = reward
            return None
        return timestep._replace(obs=self._shown(obs), reward=self._shown(reward), info=info)

    def _end_turn(self, player: int, env: int) -> None:
        for kept in (self._seen, self._outputs, self._rewards):
            kept[player].pop(env, None)

    def _shown(self, value: Any) -> Any:
        return value if value is None or self._present is None else self._present(value)


def object_column(values: Mapping[int, Any], env_num: int) -> Array:
    """Values by environment as a column of Python objects [envs]; None elsewhere."""
    column = np.empty(env_num, dtype=object)
    for env, value in values.items():
        column[env] = value
    return column


def mask_of(envs: Iterable[int], env_num: int) -> Array:
    """Bool [envs]; true for `envs`."""
    mask = np.zeros(env_num, dtype=bool)
    for env in envs:
        mask[env] = True
    return mask


def actions_of(outputs: Mapping[int, Any], envs: Iterable[int]) -> dict[int, Any]:
    """Action for each of `envs`; tensors become arrays, also in nested actions.

    Raises:
        PolicyError: the policy's output lacks an environment or its action.
    """
    try:
        return {env: to_arrays(outputs[env]["action"]) for env in envs}
    except (KeyError, IndexError, TypeError) as error:
        raise PolicyError(
            f"the policy was asked about environments {sorted(envs)} and must return "
            f"{{env_id: {{'action': ...}}}} for each; it returned {outputs!r:.200}"
        ) from error


def to_arrays(tree: Any) -> Any:
    """Torch tensors of a nested mapping, list or tuple as numpy arrays; other values stay."""
    if isinstance(tree, _ARRAYS):  # at once: it is asked for every action
        return tree
    if hasattr(tree, "detach"):
        return tree.detach().cpu().numpy()
    if isinstance(tree, Mapping):
        return {key: to_arrays(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return type(tree)(to_arrays(value) for value in tree)
    return tree


def as_number(value: Any) -> float:
    """A number, or the one element of an array, a tensor or a list.

    Raises:
        EnvError: it is not one number.
    """
    try:
        return float(value.item() if hasattr(value, "item") else np.asarray(value).item())
    except (TypeError, ValueError, RuntimeError) as error:
        raise EnvError(f"the return of an episode must be one number, not {value!r}") from error


def episode_return(info: Mapping[str, Any], env: int) -> Any:
    """The return that an environment reports: a number, or one for each player.

    Raises:
        EnvError: it reports none.
    """
    try:
        return info["eval_episode_return"]
    except KeyError:
        raise EnvError(
            f"environment {env} ended an episode without info['eval_episode_return'], the return "
            f"that it is judged by; its info has {sorted(map(str, info))}"
        ) from None


def infos_of(info: Any, players: int, env: int, *, ended: bool) -> list[dict[str, Any]]:
    """Info of each player; at an episode's end its ``eval_episode_return`` is its own, a float.

    Args:
        info: a sequence, one a player; or one for all, whose ``eval_episode_return`` is a list.
        players: how many.
        env: the environment, for messages.
        ended: whether the episode ended.

    Raises:
        EnvError: it is something else.
    """
    shared = isinstance(info, Mapping)
    each: list[dict[str, Any]] = [dict(info)] * players if shared else list(info)
    if not ended:
        return each
    if shared:
        returns = to_arrays(episode_return(info, env))
    else:
        returns = [episode_return(one, env) for one in info]
    if getattr(returns, "shape", None) == () or not hasattr(returns, "__len__"):
        returns = [returns]
    if len(returns) != players:
        raise EnvError(
            f"environment {env} ended an episode of {players} players with {len(returns)} returns "
            "in info['eval_episode_return']; each player needs its own"
        )
    return [
        {**one, "eval_episode_return": as_number(number)}
        for one, number in zip(each, returns, strict=True)
    ]


def check_players(observation: Mapping[int, Sequence[Any]], players: int) -> None:
    """Check that each environment has as many players as there are policies.

    Raises:
        EnvError: one has not.
    """
    for env, obs in observation.items():
        if len(obs) != players:
            raise EnvError(
                f"environment {env} has observations for {len(obs)} players, and there are "
                f"{players} policies"
            )
