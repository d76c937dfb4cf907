"""The environments of a collector as a run has them, by the fresh policy; then an evaluation."""

from __future__ import annotations

import os
import time
from functools import partial

import numpy as np

from hpcdi.commands.eval import loop_of
from hpcdi.commands.rehearse.alone import Budget
from hpcdi.commands.rehearse.apart import Output, Tell, warnings_in
from hpcdi.commands.rehearse.facts import AsARun
from hpcdi.commands.saved_policy import LoadedPolicy
from hpcdi.config.schema import ExperimentConfig
from hpcdi.env.create import create_env_manager
from hpcdi.env.manager import EnvManager
from hpcdi.policy.base import actor_of
from hpcdi.roles.collector.loop import evaluate, policy_loop, quotas
from hpcdi.run.experiment import evaluation_goal
from hpcdi.run.parts import columnar_policy
from hpcdi.run.serial import set_threads
from hpcdi.types import Episodes, Spaces, Step
from hpcdi.utils.processes import tree_bytes


class _TimeIsOver(Exception):
    """The evaluation would take longer."""


def play(
    facts: AsARun,
    config: ExperimentConfig,
    spaces: Spaces,
    budget: Budget,
    *,
    tell: Tell = lambda _: None,
) -> None:
    """Play as a collector does, then evaluate beside it; fills `facts`.

    Args:
        facts: empty ones.
        config: the experiment.
        spaces: of its environment.
        budget: of collecting; evaluating has as many seconds.
        tell: called before what may take long.
    """

    def now(doing: str) -> None:
        facts.doing = doing
        tell(facts)

    set_threads(config.policy, spaces)
    seeds = np.random.SeedSequence(config.seed).spawn(4)
    policy = columnar_policy(config.policy, ["collect", "eval"], seed=seeds[0])
    make = partial(create_env_manager, config.env, policy=config.policy)
    with Output(), warnings_in(facts.warnings):
        now("making a collector's environments")
        with make(evaluate=False, seed=seeds[1]) as envs:
            began = time.perf_counter()
            envs.launch()
            facts.env_num, facts.launch_s = envs.env_num, time.perf_counter() - began
            loaded = LoadedPolicy(config, spaces, policy.eval_mode, seeds[3])
            now("stepping a collector's environments by the fresh policy")
            _collect(facts, envs, policy, loaded, budget)
            now("making the environments of an evaluation, beside those of the collector")
            with make(evaluate=True, is_endless=True, seed=seeds[2]) as others:
                others.launch()
                facts.memory_bytes = tree_bytes(os.getpid())
                now("evaluating the fresh policy")
                _evaluate(facts, others, loaded, budget.seconds)


def _collect(
    facts: AsARun, envs: EnvManager, policy: object, loaded: LoadedPolicy, budget: Budget
) -> None:
    mode = getattr(policy, "collect_mode")  # noqa: B009 (a policy of any kind)
    setting = {"eps": 0.0}
    if envs.seats < 2:
        loop = policy_loop(envs, actor_of(mode))
    else:
        loop, games = loop_of(loaded, loaded.seed, envs)
        setting |= games
    began = time.perf_counter()
    while facts.steps < budget.steps and facts.step_s < budget.seconds:
        loop.once(setting)
        facts.steps += envs.stepped
        facts.step_s = time.perf_counter() - began
        loop.take_episodes()
    facts.failures = envs.failures


def _evaluate(facts: AsARun, envs: EnvManager, loaded: LoadedPolicy, limit_s: float) -> None:
    facts.wanted = max(envs.env_num, evaluation_goal(loaded.config)[0])
    loop, setting = loop_of(loaded, loaded.seed, envs)
    began = time.perf_counter()

    def note(_step: Step, episodes: Episodes) -> None:
        facts.evaluated_steps += envs.stepped
        facts.played += len(episodes.lengths)
        facts.returns += episodes.stated.tolist()
        facts.evaluated_s = time.perf_counter() - began
        if facts.evaluated_s > limit_s:
            raise _TimeIsOver

    try:
        evaluate(loop, quotas(facts.wanted, envs.env_num), setting, after=note)
    except _TimeIsOver:
        facts.doing = "evaluating"
    facts.failures += envs.failures
