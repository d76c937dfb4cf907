"""Compiling an experiment for a run: its configuration, checked against its environment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdi.config.load import Compiled, compile_config, load
from hpcdi.config.schema import check_faults, check_over_ranks, check_serial
from hpcdi.env.create import battle_players, get_spaces
from hpcdi.errors import ConfigError, Problem
from hpcdi.policy.create import get_policy_cls
from hpcdi.types import Spaces


def load_experiment(
    path: str, overrides: Sequence[str], *, over_ranks: bool | None = True
) -> tuple[Compiled, Spaces]:
    """Compile a YAML file, make its environment once, and fill what follows from its spaces.

    Args:
        path: the file.
        overrides: ``key=value``.
        over_ranks: the run is one of several ranks, which cannot do everything; or of one, which
            cannot either; None: nothing is to be trained.

    Raises:
        ConfigError: anything is wrong; all problems at once.
    """
    compiled = load(path, overrides)
    spaces = get_spaces(compiled.config.env)
    if over_ranks is not None:
        _see_that_it_can(compiled.config, path, over_ranks=over_ranks)
    policy_cls = get_policy_cls(compiled.config.policy)
    if not hasattr(policy_cls, "with_spaces"):
        return compiled, spaces
    policy, problems = policy_cls.with_spaces(compiled.config.policy, spaces)
    if problems:
        raise ConfigError([Problem(f"policy.{p.path}", p.message) for p in problems], path)
    return dataclasses.replace(
        compiled, config=dataclasses.replace(compiled.config, policy=policy)
    ), spaces


def _see_that_it_can(config: Any, path: str, *, over_ranks: bool) -> None:
    problems = check_over_ranks(config) if over_ranks else check_serial(config)
    problems += check_faults(config, os.environ)
    players = battle_players(config.env)
    if over_ranks and players > 1:
        said = f"has {players} players: battles run in one process, by `hpcdi serial {path}`"
        problems.append(Problem("env.env_id", said))
    if problems:
        raise ConfigError(problems, path)


def from_mapping(mapping: Mapping[str, Any]) -> Any:
    """The experiment of a compiled mapping, as another rank sent it."""
    return compile_config(mapping).config
