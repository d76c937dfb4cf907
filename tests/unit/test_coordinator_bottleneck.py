"""What is said of a run that something holds back, and of one that nothing does."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from hpcdi.config.algorithms import PPOConfig
from hpcdi.config.compiled import compile_config
from hpcdi.config.team import TeamConfig
from hpcdi.roles.coordinator.bottleneck import Rank, Ranks, RunSeen, Used, advice_on

CARTPOLE = {
    "policy": {"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2}},
    "env": {"type": "gymnasium", "env_id": "CartPole-v1"},
}


FALLS_EARLY = {
    "other": {
        "eps": {"type": "linear", "start": 1.0, "end": 0.05, "decay": 500},
        "replay_buffer": {"min_fill": 2000},
    }
}


def seen(
    learner: dict[str, float],
    collectors: dict[str, float],
    *,
    coordinator: float = 0.1,
    cpu: tuple[float, float] = (1.0, 1.0),
    policy: dict[str, Any] | None = None,
    elapsed_s: float = 100.0,
    evaluating_s: float = 0.0,
    evaluations: int = 2,
    slowest_env: dict[str, float] | None = None,
    **facts: Any,
) -> RunSeen:
    """A run of a learner and two collectors, by their shares of time, on sixteen cores."""
    mapping = {**CARTPOLE, "policy": {**CARTPOLE["policy"], **(policy or {})}}
    ranks = [
        Rank("coordinator", {"wait": 1 - coordinator, "schedule": coordinator}, coordinator),
        Rank("learner", learner, cpu[0]),
        *[Rank("collector", collectors, cpu[1], slowest_env or {})] * 2,
    ]
    used = Used(elapsed_s, Ranks.of(dict(enumerate(ranks))), evaluating_s, evaluations)
    return RunSeen(compile_config(mapping).config, used, **{"cores": 16, **facts})


BUSY = {"train": 0.95, "wait": 0.05}
STEPS = {"env": 0.7, "policy": 0.2, "record": 0.05, "wait": 0.05}


@pytest.mark.parametrize(
    ("run", "kind", "words"),
    [
        (seen({"wait": 0.8, "train": 0.2}, STEPS), "learner_waits", "stepping environments"),
        (
            seen({"wait": 0.7, "train": 0.3}, {"env": 0.1, "policy": 0.8}),
            "learner_waits",
            "env.collector_env_num",
        ),
        (seen(BUSY, {"wait": 0.7, "env": 0.3}), "collectors_wait", "learner_num"),
        (seen({"wait": 0.6, "train": 0.4}, {"disk": 0.5, "env": 0.5}), "disk", "fsync"),
        (seen(BUSY, STEPS, evaluating_s=120.0), "evaluation", "60%"),
        (seen(BUSY, STEPS, evaluating_s=120.0), "evaluation", "(policy.eval.every), or fewer"),
        (
            seen(BUSY, STEPS, evaluating_s=120.0, policy={"eval": {"every": "9 seconds"}}),
            "evaluation",
            "(policy.eval.every=9 seconds), or fewer",
        ),
        (
            seen(
                BUSY, STEPS, samples_per_transition=190.0,
                policy={"learn": {"update_per_collect": 10}},
            ),
            "overtrains",
            "replay_ratio",
        ),
        (seen(BUSY, STEPS, coordinator=0.9), "messages", "block_bytes"),
        (seen(BUSY, STEPS, cores=1, cpu=(0.3, 0.33)), "oversubscribed", "-n 3"),
        (
            seen(
                {"wait": 0.9, "train": 0.1}, STEPS,
                slowest_env={"env": 3, "step_s": 0.02, "others_s": 0.001},
            ),
            "slow_environment",
            "environment 3 of rank 2 takes 20 ms",
        ),
        (
            seen(BUSY, STEPS, losses=[1.0, 2.0, 1.5, 1.0, 50.0, 4e3, 6e4, 7e5, 8e5]),
            "loss_explodes",
            "learning_rate",
        ),
        (
            seen(BUSY, STEPS, losses=[1e8] * 9, largest_return=100.0),
            "loss_explodes",
            "grad_clip_norm",
        ),
        (seen(BUSY, STEPS, policy=FALLS_EARLY), "exploration_ends_early", "eps.decay"),
    ],
)  # fmt: skip
def test_what_holds_a_run_back_is_named(run: RunSeen, kind: str, words: str) -> None:
    said = advice_on(run)
    assert list(said) == [kind]
    assert any(word in said[kind] for word in words.split("|"))


@pytest.mark.parametrize(("names", "said"), [(["all"], "all"), (["hare", "fox"], "NAME")])
def test_a_team_is_told_of_settings_that_its_policies_have(names: list[str], said: str) -> None:
    run = seen(BUSY, STEPS, losses=[1e8] * 9, largest_return=100.0)
    team = TeamConfig(policies={name: PPOConfig() for name in names})
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, policy=team))
    assert advice_on(run)["loss_explodes"] == (
        f"the loss is 1e+08: lower policy.policies.{said}.learn.learning_rate, or set "
        f"policy.policies.{said}.learn.grad_clip_norm"
    )


@pytest.mark.parametrize(
    "run",
    [
        seen(BUSY, STEPS),
        seen(BUSY, STEPS, slowest_env={"env": 3, "step_s": 0.002, "others_s": 0.001}),
        seen({"wait": 0.3, "train": 0.7}, STEPS, evaluating_s=20.0),
        seen(BUSY, STEPS, evaluating_s=120.0, evaluations=1),
        seen({"wait": 0.9, "train": 0.1}, STEPS, elapsed_s=10.0),
        seen({"wait": 0.9, "train": 0.1}, STEPS, cores=3),
        seen({"wait": 0.9, "train": 0.1}, STEPS, takes_turns=True),
        seen(BUSY, {"wait": 0.9, "env": 0.1}, updates_per_s=160.0),
        seen({"wait": 0.9, "train": 0.1}, STEPS, has_learnt=False),
        seen(BUSY, STEPS, losses=[1e6] * 9, largest_return=500.0),
        seen(BUSY, STEPS, losses=[5.0, 3.0, 4.0, 1.0, 60.0, 2.0, 1.0, 3.0, 2.0]),
        seen({}, {}, cpu=(math.nan, math.nan)),
    ],
)
def test_a_healthy_run_gets_no_advice(run: RunSeen) -> None:
    assert advice_on(run) == {}


def test_given_data_fill_the_buffer_before_exploration_begins() -> None:
    run = seen(BUSY, STEPS, policy=FALLS_EARLY)
    config = dataclasses.replace(run.config, data=("runs/before",))
    assert advice_on(dataclasses.replace(run, config=config)) == {}


def test_the_time_before_learning_began_does_not_count() -> None:
    def used(elapsed_s: float, waited_s: float, cpu_s: float) -> Used:
        rank = Rank("learner", {"wait": waited_s / elapsed_s}, cpu_s / elapsed_s)
        ranks = Ranks.of({1: rank})
        return Used(elapsed_s, ranks, elapsed_s / 2, evaluations=int(elapsed_s), under_way=1)

    later = used(100.0, 46.0, 50.0).since(used(40.0, 40.0, 2.0))
    assert (later.elapsed_s, later.evaluating_s) == (60.0, 30.0)
    assert (later.evaluations, later.under_way) == (60, 1), "that of the beginning is among them"
    assert later.ranks.shares["wait"] == pytest.approx(0.1)
    assert later.ranks.cpu == pytest.approx(0.8)
    unseen = used(100.0, 46.0, 50.0).since(
        Used(40.0, Ranks.of({}))
    )  # it had not reported when learning began
    assert unseen.ranks.shares["wait"] == pytest.approx(46 / 60)
