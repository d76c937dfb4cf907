"""Compiling an experiment for a run: its configuration, checked against its environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdi.config.load import Compiled, compile_config, load
from hpcdi.env.create import battle_players, get_spaces
from hpcdi.errors import ConfigError, Problem
from hpcdi.policy.create import get_policy_cls
from hpcdi.types import Spaces


def load_experiment(
    path: str, overrides: Sequence[str], *, battles: bool = False
) -> tuple[Compiled, Spaces]:
    """Compile a YAML file, make its environment once, and fill what follows from its spaces.

    Args:
        path: the file.
        overrides: ``key=value``.
        battles: environments of several players are known here.

    Raises:
        ConfigError: anything is wrong; all problems at once.
    """
    compiled = load(path, overrides)
    spaces = get_spaces(compiled.config.env)
    if not battles and (players := battle_players(compiled.config.env)) > 1:
        said = f"has {players} players: battles run in one process, by `hpcdi serial {path}`"
        raise ConfigError([Problem("env.env_id", said)], path)
    policy_cls = get_policy_cls(compiled.config.policy)
    if not hasattr(policy_cls, "with_spaces"):
        return compiled, spaces
    policy, problems = policy_cls.with_spaces(compiled.config.policy, spaces)
    if problems:
        raise ConfigError([Problem(f"policy.{p.path}", p.message) for p in problems], path)
    return dataclasses.replace(
        compiled, config=dataclasses.replace(compiled.config, policy=policy)
    ), spaces


def from_mapping(mapping: Mapping[str, Any]) -> Any:
    """The experiment of a compiled mapping, as another rank sent it."""
    return compile_config(mapping).config
