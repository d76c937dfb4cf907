"""Loads an experiment for a run: its configuration, checked against its environment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcdi.config.compiled import Compiled
from hpcdi.config.env import TeamEnvConfig
from hpcdi.config.fields import replaced
from hpcdi.config.league import OneVsOneCommanderConfig
from hpcdi.config.load import load
from hpcdi.config.policy import HindsightConfig, PolicyConfig, TorchPolicyConfig
from hpcdi.config.roles import ReturnEvaluatorConfig
from hpcdi.config.schema import (
    MINARI,
    ExperimentConfig,
    check_faults,
    check_over_ranks,
    check_parts,
    check_serial,
)
from hpcdi.config.team import TeamConfig
from hpcdi.env.mpi.launch import located
from hpcdi.env.probe import look_at
from hpcdi.errors import ConfigError, PolicyError, PolicyFileError, Problem
from hpcdi.policy.create import get_policy_cls
from hpcdi.policy.players import with_players
from hpcdi.policy.spaces import with_spaces
from hpcdi.run.sizes import too_many_files
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import read_policy
from hpcdi.types import Spaces
from hpcdi.utils.metrics import counted
from hpcdi.utils.packages import missing

_TYPES = {
    "policy.collect.collector.type": ("zergling", "marine"),
    "policy.other.commander.type": ("solo", "one_vs_one"),
}
"""Types of the parts of a run over ranks: the default, and what an environment of several players
needs."""
_NO_JUDGE = (
    "needs compute_reward(achieved_goal, desired_goal, info), as gymnasium-robotics' environments "
    "have it, and here there is none: vectorised ones, such as EnvPool's, lack it; single ones "
    "(env.type: gymnasium, vectorization: sync) may have it, or be given it"
)
_SUMS = (
    "cannot go with the wrapper RepeatAction, whose rewards are sums over steps in between, of "
    "which compute_reward(achieved_goal, desired_goal, info) knows nothing: copies with other "
    "goals would have rewards on another scale; have the environment repeat actions itself, and "
    "reward by compute_reward once"
)


def load_experiment(
    path: str, overrides: Sequence[str], *, over_ranks: bool | None = True
) -> tuple[Compiled, Spaces]:
    """Load a YAML file, make its environment to see what it is, and fill in what follows from that.

    It is made once, a second time where a process has several, or for `env.eval_kwargs` and the
    like; what is made is closed again.

    Args:
        path: the file.
        overrides: ``key=value``.
        over_ranks: also apply the rules for a run over several ranks (True) or in one process
            (False); None: nothing is trained.

    Raises:
        ConfigError: something is wrong; holds all problems.
    """
    compiled, trains = load(path, overrides), over_ranks is not None
    config = with_whole_paths(compiled.config, path)
    seed = config.seed if config.env.origin is None else None
    seen = look_at(config.env, trains=trains, seed=seed)
    players, spaces = seen.players if trains else 1, seen.spaces
    if players > 1:
        compiled = load(path, [*_as_a_league(config), *overrides])
        config = with_whole_paths(compiled.config, path)
    notes = list(compiled.notes)
    if config.env.origin is None:
        stacked = config.policy.other.replay_buffer.frames
        origin = _alike_in_frames(seen.origin, spaces, stacked)
        config = replaced(config, {"env.origin": origin})
    if seen.origin:
        far = ", ".join(f"{name} minus {_numbers(of)}" for name, of in config.env.origins.items())
        notes += [f"observations are far from 0, and float32 is coarse there: {far} (env.origin)"]
    config = replaced(config, {"policy": _as_team(config, path)})
    if over_ranks is not None:
        _check_can_train(config, path, players, over_ranks=over_ranks)
        notes += _notes(config, over_ranks=over_ranks)
    config = replaced(config, {"policy": _filled(config.policy, spaces, path, tries=trains)})
    hindsight = getattr(config.policy, "hindsight", HindsightConfig())
    if trains and hindsight.goals and not seen.judges_goals:
        raise ConfigError([Problem("policy.hindsight.goals", _NO_JUDGE)], path)
    if trains and hindsight.goals and seen.sums_rewards:
        raise ConfigError([Problem("policy.hindsight.goals", _SUMS)], path)
    if trains and (problems := list(_source_problems(config.policy, path))):
        raise ConfigError(problems, path)
    return Compiled(config, tuple(notes)), spaces


def _filled(policy: PolicyConfig, spaces: Spaces, path: str, *, tries: bool) -> PolicyConfig:
    """Returns a policy's settings, filled from the environment's spaces.

    Args:
        policy: the settings.
        spaces: of the environment.
        path: of the experiment.
        tries: make networks and optimizers of the user's once.

    Raises:
        ConfigError: they contradict the environment, or cannot be made.
    """
    problems: list[Problem] = []
    learning: Sequence[TorchPolicyConfig] = ()
    if isinstance(policy, TeamConfig):
        policy, problems = with_players(policy, spaces)
        learning = [*policy.policies.values()]
    elif isinstance(policy, TorchPolicyConfig):
        filled, problems = with_spaces(policy, spaces)
        if policy.WHOLE_TEAMS:
            said = f"{policy.type} learns from teams: set env.type: team"
            problems.append(Problem("type", said))
        policy, learning = filled, [filled]
    _check_no_problems(problems, path)
    for each in learning:
        if tries and (each.has_own_network or each.has_own_optimizer):
            try:
                get_policy_cls(each).try_own_parts(each)
            except PolicyError as error:  # which names the setting
                raise ConfigError([Problem("", str(error))], path) from error
    return policy


def _as_team(config: ExperimentConfig, path: str) -> PolicyConfig:
    """Returns the settings of the policy; of one that is to act for a team, those of the team.

    Raises:
        ConfigError: it cannot.
    """
    policy = config.policy
    if not isinstance(config.env, TeamEnvConfig) or not isinstance(policy, TorchPolicyConfig):
        return policy
    team = TeamConfig.of(policy)
    _check_no_problems(list(team.problems()), path)
    return team


def _check_no_problems(of_policy: Sequence[Problem], path: str) -> None:
    """Raise the problems of a policy's settings, if there are any, at their paths in the whole."""
    if of_policy:
        raise ConfigError([Problem(f"policy.{p.path}", p.message) for p in of_policy], path)


def with_whole_paths(config: ExperimentConfig, path: str) -> ExperimentConfig:
    """Returns an experiment that finds its files from anywhere.

    These are its MPI program and states, its data, and the policies of a league's fixed players.
    Data and policies of ``latest`` are those of the run that it is now.

    Args:
        config: the experiment.
        path: of its file, beside which the program, states and policies may lie.

    Raises:
        ConfigError: an initial state is nowhere.
    """
    data = tuple(
        name if name.startswith(MINARI) else str(RunLayout(Path(name).expanduser().resolve()).root)
        for name in config.data
    )
    env = located(config.env, Path(path).parent)
    policy = _with_whole_sources(config.policy, Path(path).parent)
    return dataclasses.replace(config, env=env, policy=policy, data=data)


def _with_whole_sources(policy: PolicyConfig, folder: Path) -> PolicyConfig:
    """Returns a policy whose league finds its players' files from anywhere.

    Args:
        policy: the settings.
        folder: where files lie that are not in the present one.
    """
    commander = policy.other.commander
    if not isinstance(commander, OneVsOneCommanderConfig):
        return policy

    def whole(source: str) -> str:
        if source == "random" or ":" in source:
            return source
        places = (Path(source).expanduser(), folder / source)
        return next((str(_of_run(place)) for place in places if _may_be_file(place)), source)

    fixed = {name: whole(source) for name, source in commander.league.fixed.items()}
    league = dataclasses.replace(commander.league, fixed=fixed)
    against = whole(commander.evaluate_against)
    commander = dataclasses.replace(commander, league=league, evaluate_against=against)
    other = dataclasses.replace(policy.other, commander=commander)
    return dataclasses.replace(policy, other=other)


def _of_run(file: Path) -> Path:
    """Returns the path of a file; of one in ``latest``, in the run that this is now."""
    for above in file.absolute().parents:
        if above.name == "latest":
            return RunLayout(above.resolve()).root / file.absolute().relative_to(above)
    return file.absolute()


def _source_problems(policy: PolicyConfig, path: str) -> Iterator[Problem]:
    """Yields why players that never learn, or the opponent of evaluations, could not play.

    Args:
        policy: the settings, filled, with whole paths.
        path: of the experiment.
    """
    commander = policy.other.commander
    if not isinstance(commander, OneVsOneCommanderConfig):
        return
    key = "policy.other.commander"
    sources = {f"{key}.league.fixed.{n}": source for n, source in commander.league.fixed.items()}
    for name, source in {**sources, f"{key}.evaluate_against": commander.evaluate_against}.items():
        if source == "random":
            continue
        if ":" in source:
            from hpcdi.league.battle_agent import play_of

            try:
                play_of(source, name)
            except ConfigError as error:
                yield from error.problems
        elif _may_be_file(Path(source)):
            if why := _why_unlike(policy, source):
                yield Problem(name, why)
        else:
            yield Problem(
                name,
                f"there is no file {source!r}, neither in the present folder nor in "
                f"{Path(path).parent.absolute()}; name a policy's file, random, or my_module:play",
            )


def _may_be_file(path: Path) -> bool:
    """Returns whether there is a file, or none can be looked for: who reads it is told why."""
    try:
        return path.is_file()
    except OSError:
        return True


def _why_unlike(policy: PolicyConfig, file: str) -> str:
    """Returns why a policy's file cannot be played with by these settings, else ""."""
    from hpcdi.run.parts import columnar_policy, why_not_loaded  # makes one, with torch

    try:
        parameters = read_policy(file).state_dict()
    except PolicyFileError as error:
        return str(error)
    why = why_not_loaded(columnar_policy(policy, ["eval"]).eval_mode, parameters)
    return why and f"{file} does not fit this experiment: {why}"


def check_data(config: ExperimentConfig, spaces: Spaces) -> None:
    """Check that a new run can learn from the data that it is given.

    Raises:
        ConfigError: see `given.check`.
    """
    if config.data:
        from hpcdi.run import given  # with it h5py

        given.check(config, spaces)


def _alike_in_frames(
    origin: Mapping[str, tuple[float, ...]], spaces: Spaces, stacked: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """Returns an origin that is that of the newest frame for each frame of a stack.

    The first ones of an episode may be padding; what is stored once has one origin.
    """
    frames = {
        leaf.column("observation"): leaf.shape[0] for leaf in spaces.observation if leaf.shape
    }
    return {
        name: of[-(len(of) // frames[name]) :] * frames[name]
        if name in stacked and len(of) > 1
        else of
        for name, of in origin.items()
    }


def _numbers(given: Sequence[float]) -> str:
    shown = ", ".join(f"{each:,.15g}" for each in given[:4]) + ", ..." * (len(given) > 4)
    return f"({shown})" if len(given) > 1 else shown


def _check_can_train(
    config: ExperimentConfig, path: str, players: int, *, over_ranks: bool
) -> None:
    problems = check_over_ranks(config) if over_ranks else check_serial(config)
    problems += [
        *check_parts(config.policy),
        *too_many_files(config),
        *check_faults(config, os.environ),
        *_check_league(config, players),
        *(
            Problem("system.loggers", f"{name} {needed}")
            for name in config.system.loggers
            if (needed := missing(name))
        ),
    ]
    if problems:
        raise ConfigError(problems, path)


def _notes(config: ExperimentConfig, *, over_ranks: bool) -> Iterator[str]:
    """Yields what is no error, and hardly meant: a rollout smaller than its minibatches."""
    policy, learn = config.policy, config.policy.learn
    if not hasattr(learn, "epoch_per_collect"):
        return
    collectors = policy.collect.collector.collector_num if over_ranks else 1
    learners = learn.learner.learner_num if over_ranks else 1
    each = policy.collect.n_sample * config.env.collector_env_num * collectors / learners
    if learn.batch_size > each:
        made = f"{policy.collect.n_sample} x {counted(config.env.collector_env_num, 'environment')}"
        yield (
            f"policy.learn.batch_size is {learn.batch_size:,}, and a learner's rollout has "
            f"{each:,.0f} transitions (collect.n_sample {made} x "
            f"{counted(collectors, 'collector')} / {counted(learners, 'learner')}): each pass is "
            "one smaller minibatch"
        )


def evaluation_goal(config: ExperimentConfig) -> tuple[int, float]:
    """Returns the episodes of an evaluation in one process, and the mean return to reach."""
    env, cfg = config.env, config.policy.eval.evaluator
    n_episode, stop_value = env.evaluator_env_num * env.evaluator_episode_num, env.stop_value
    if not isinstance(cfg, ReturnEvaluatorConfig):
        return n_episode, stop_value
    return cfg.n_episode or n_episode, stop_value if np.isinf(cfg.stop_value) else cfg.stop_value


def _types_of(config: ExperimentConfig) -> dict[str, str]:
    """The types of `_TYPES` that an experiment has."""
    parts = (config.policy.collect.collector, config.policy.other.commander)
    return {path: part.type for path, part in zip(_TYPES, parts, strict=True)}


def _as_a_league(config: ExperimentConfig) -> list[str]:
    """Overrides by which an experiment of several players, which says no more, is a league."""
    types = _types_of(config)
    return [f"{p}={league}" for p, (default, league) in _TYPES.items() if types[p] == default]


def _check_league(config: ExperimentConfig, players: int) -> list[Problem]:
    """Battles need a collector and a commander of their own, and only they do."""
    wanted = players > 1
    needs = f"has {players} players: it needs" if wanted else "has one player: it cannot take"
    if isinstance(config.env, TeamEnvConfig):
        needs = (
            "is a team, whose players learn together and without a league (a league of teams: "
            "env.type: pettingzoo with env.teams): it cannot take"
        )
    problems = [
        Problem(path, f"the environment {needs} {_TYPES[path][1]!r} here")
        for path, kind in _types_of(config).items()
        if (kind == _TYPES[path][1]) is not wanted
    ]
    if wanted and config.system.deterministic:
        problems.append(Problem("system.deterministic", "a league cannot be deterministic yet"))
    return problems
