"""What policies and environments give, taken in one way: actions, returns, and each player's part.

Foreign ones keep the contract in their own forms: actions as tensors, returns as arrays of one
element, one info for all players of a battle or one for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdi.errors import EnvError, PolicyError

Observations = Mapping[int, Sequence[Any]]
"""Environment -> observation of each player; None where a player does not act."""


def actions_of(outputs: Mapping[int, Any], envs: Iterable[int]) -> dict[int, Any]:
    """Action for each of `envs`; tensors become arrays, nested ones too.

    Raises:
        PolicyError: the policy's output lacks an environment, or an action.
    """
    try:
        return {env: to_arrays(outputs[env]["action"]) for env in envs}
    except (KeyError, IndexError, TypeError) as error:
        raise PolicyError(
            f"the policy was asked about environments {sorted(envs)} and must give "
            f"{{env_id: {{'action': ...}}}} for each; it gave {outputs!r:.200}"
        ) from error


def to_arrays(tree: Any) -> Any:
    """Torch tensors of a nested mapping, list or tuple as numpy arrays; the rest stays."""
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
    """What an environment says of its ended episode: a number, or one for each player.

    Raises:
        EnvError: it says nothing.
    """
    try:
        return info["eval_episode_return"]
    except KeyError:
        raise EnvError(
            f"environment {env} ended an episode without info['eval_episode_return'], the return "
            f"that it is judged by; its info has {sorted(map(str, info))}"
        ) from None


# ------------------------------------------------------------------------- several players


def check_seats(observation: Observations, players: int) -> None:
    """See that each environment has as many players as there are policies.

    Raises:
        EnvError: one has not.
    """
    for env, obs in observation.items():
        if len(obs) != players:
            raise EnvError(
                f"environment {env} gives observations for {len(obs)} players, and there are "
                f"{players} policies"
            )


def seen_by(player: int, observation: Observations) -> dict[int, Any]:
    """A player's observation in each environment where it is to act."""
    return {env: obs[player] for env, obs in observation.items() if obs[player] is not None}


def joint(actions: Sequence[Mapping[int, Any]], envs: Iterable[int]) -> dict[int, list[Any]]:
    """Environment -> action of each player, from each player's actions; None: it does not act."""
    return {env: [own.get(env) for own in actions] for env in envs}


def infos_of(info: Any, players: int, env: int, *, ended: bool) -> list[dict[str, Any]]:
    """Each player's info; at an episode's end ``eval_episode_return`` in it is its own, a float.

    Args:
        info: a list, one a player; or one for all, whose ``eval_episode_return`` is a list.
        players: how many.
        env: the environment, for messages.
        ended: whether the episode has.

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
