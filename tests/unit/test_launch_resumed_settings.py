"""Which settings may change when a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdi.config.load import load
from hpcdi.run.resume import BINDING, FREE, SAME, Difference, differences, is_below

CONFIG = Path(__file__).parent.parent.parent / "configs" / "cartpole_dqn.yaml"
TEAM = CONFIG.with_name("speaker_listener_ppo.yaml")
R2D2 = CONFIG.with_name("memory_len_r2d2.yaml")
TD3 = CONFIG.with_name("pendulum_td3.yaml")


def mapping(*overrides: str) -> dict[str, Any]:
    return load(CONFIG, overrides).to_mapping()


@pytest.mark.parametrize(
    "override",
    [
        "env.stop_value=475", "env.collector_env_num=4", "env.manager.type=subprocess",
        "policy.learn.learning_rate=1e-4", "policy.learn.batch_size=64",
        "policy.learn.learner.learner_num=2", "policy.eval.every=9 seconds",
        "policy.other.commander.max_train_iter=7", "policy.collect.collector.collector_num=5",
        "policy.other.eps.decay=1", "system.snapshot_s=7", "policy.other.replay_buffer.alpha=0.5",
    ],
)  # fmt: skip
def test_harmless_settings_may_differ(override: str) -> None:
    assert mapping(override) != mapping()
    assert differences(mapping(), mapping(override)) == []
    assert differences(mapping(), mapping(override), (*SAME, *BINDING)) == []


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("env.env_id=Acrobot-v1", ("env.env_id", "CartPole-v1", "Acrobot-v1")),
        ("env.kwargs.x=3", ("env.kwargs.x", "nothing", 3)),
        ("policy.nstep=3", ("policy.nstep", 5, 3)),
        ("policy.priority=true", ("policy.priority", False, True)),
        ("policy.exploration_bonus.type=rnd", ("policy.exploration_bonus.type", "none", "rnd")),
        ("policy.exploration_bonus.features=9", ("policy.exploration_bonus.features", 64, 9)),
        (
            "policy.model.encoder_hidden_size_list=[64]",
            ("policy.model.encoder_hidden_size_list", [128, 128], [64]),
        ),
        (
            "policy.other.replay_buffer.replay_buffer_size=9000",
            ("policy.other.replay_buffer.replay_buffer_size", 150000, 9000),
        ),
    ],
)
def test_what_a_snapshot_depends_on_may_not(
    override: str, difference: tuple[str, Any, Any]
) -> None:
    found = differences(mapping(), mapping(override))
    assert Difference(*difference) in found
    assert str(found[-1] if "kwargs" in override else found[0]).startswith(f"{difference[0]}: ")


def test_another_seed_is_another_experiment_whose_snapshots_fit() -> None:
    assert differences(mapping(), mapping("seed=1")) == []
    assert differences(mapping(), mapping("seed=1"), SAME) == [Difference("seed", 0, 1)]


def test_every_key_of_the_list_is_one() -> None:
    def has(tree: Any, key: str) -> bool:
        for name in key.split("."):
            if name not in tree:
                return False
            tree = tree[name]
        return True

    whole = mapping(), *(load(each).to_mapping() for each in (TEAM, R2D2, TD3))
    listed = (*BINDING, *FREE, *SAME)
    assert [key for key in listed if not any(has(each, key) for each in whole)] == []


def test_values_that_r2d2_has_learnt_keep_their_meaning() -> None:
    """They are of the rescaled kind: with another slope each target is another number."""
    after = load(R2D2, ["policy.learn.rescale=1"]).to_mapping()
    assert differences(load(R2D2).to_mapping(), after) == [
        Difference("policy.learn.rescale", 1e-3, 1)
    ]


def test_of_a_team_each_policy_has_what_must_stay() -> None:
    def differing(override: str) -> list[str]:
        team = load(TEAM).to_mapping(), load(TEAM, [override]).to_mapping()
        return [each.key for each in differences(*team)]

    one = "policy.policies.speaker"
    assert differing(f"{one}.learn.learning_rate=1e-4") == []
    assert differing(f"{one}.model.layer_norm=true") == [f"{one}.model.layer_norm"]
    assert differing("policy.numbers=false") == ["policy.numbers"]


def test_a_name_frees_what_is_below_it() -> None:
    keys = ["policy.model", "seed"]
    assert is_below("policy.model.a.b", keys)
    assert not is_below("policy.models", keys)
