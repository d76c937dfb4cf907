"""One policy, some environments: ours, and foreign ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hpcdi.env.toy  # noqa: F401  (registers hpcdi/Count-v0)
from fakes.evaluator_parts import DuckPolicy, Manager, Step
from hpcdi.env.create import create_env_manager
from hpcdi.errors import EnvError, PolicyError
from hpcdi.policy.base import EvalMode
from hpcdi.worker import InteractionSerialEvaluator
from hpcdi.worker.collector import evaluation


def count_manager(length: int = 5, env_num: int = 3, **changes: Any) -> Any:
    cfg = {"env_id": "hpcdi/Count-v0", "kwargs": {"length": length}, "evaluator_env_num": env_num}
    cfg = {"type": "gymnasium", "vectorization": "sync", **cfg, **changes}
    return create_env_manager(cfg, evaluate=True, seed=np.random.SeedSequence(1))


def evaluate(env: Any, policy: Any = None, cfg: Any = None, **kwargs: Any) -> dict[str, list[Any]]:
    with InteractionSerialEvaluator(cfg or {}, env, policy or DuckPolicy()) as evaluator:
        stop, info = evaluator.eval(**kwargs)
        assert stop is False
        return info


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("length", [1, 5])
def test_the_return_of_counting_is_known(autoreset: str, length: int) -> None:
    manager = count_manager(length, autoreset=autoreset, evaluator_episode_num=3)
    info = evaluate(manager, n_episode=7)
    assert info["eval_episode_return"] == [length * (length + 1) / 2] * 7
    assert info["reward_mean"] == info["reward_max"] == info["reward_min"]
    assert info["reward_std"] == [0.0]
    assert info["episode_count"] == [7]
    assert info["evaluate_time"][0] > 0


def test_our_managers_can_evaluate_again_and_again() -> None:
    manager = count_manager(evaluator_episode_num=1)
    with InteractionSerialEvaluator({}, manager, DuckPolicy()) as evaluator:
        for _ in range(3):
            assert evaluator.eval()[1]["eval_episode_return"] == [15.0] * 3


def test_a_mode_of_a_policy() -> None:
    duck = DuckPolicy()
    mode = EvalMode(duck.forward, duck.reset, None, None, None, None)
    assert evaluate(count_manager(), mode)["reward_mean"] == [15.0]
    assert sorted(env for reset in duck.resets if reset for env in reset) == [0, 1, 2]


def test_the_number_of_episodes_is_an_argument_or_a_setting_or_one_each() -> None:
    manager = Manager([[(2, 1.0)]] * 3)
    with InteractionSerialEvaluator({"n_episode": 4}, manager, DuckPolicy()) as evaluator:
        assert len(evaluator.eval(n_episode=8)[1]["eval_episode_return"]) == 8
        assert len(evaluator.eval()[1]["eval_episode_return"]) == 4
    assert len(evaluate(manager)["eval_episode_return"]) == 3


def test_actions_of_torch_become_arrays() -> None:
    manager = Manager([[(2, 1.0)]])
    evaluate(manager, DuckPolicy(torch.tensor([1.5], requires_grad=True)))
    for actions in manager.actions:
        assert isinstance(actions[0], np.ndarray)
        assert actions[0].tolist() == [1.5]
    manager = Manager([[(1, 1.0)]])
    nested = {"move": torch.tensor(2), "args": (torch.tensor([1.0]), "left")}
    evaluate(manager, DuckPolicy(nested))
    action = manager.actions[0][0]
    assert isinstance(action["move"], np.ndarray)
    assert isinstance(action["args"][0], np.ndarray)
    assert action["args"][1] == "left"
    assert evaluate(count_manager(), DuckPolicy(torch.tensor(1)))["reward_mean"] == [15.0]


def test_what_is_no_tensor_stays_as_it_is() -> None:
    manager = Manager([[(1, 1.0)]])
    evaluate(manager, DuckPolicy(3))
    assert type(manager.actions[0][0]) is int


def test_a_policy_may_want_tensors() -> None:
    evaluate(Manager([[(2, 1.0)]]), DuckPolicy(wants=torch.Tensor), {"transform_obs": True})


def test_settings_of_the_policy_are_handed_on() -> None:
    policy = DuckPolicy()
    evaluate(Manager([[(2, 1.0)]]), policy, policy_kwargs={"temperature": 0.5})
    assert policy.kwargs == [{"temperature": 0.5}] * 2


def test_what_environments_say_of_episodes_is_given() -> None:
    info = evaluate(Manager([[(2, 1.0), (4, 3.0)], [(3, 5.0)]]), n_episode=3)
    assert info["eval_episode_return"] == [1.0, 3.0, 5.0]
    assert info["length"] == [2, 4, 3]
    assert info["episode"] == [0, 1, 0]
    numbers = [info[f"reward_{name}"] for name in ("mean", "std", "max", "min")]
    assert numbers == [[3.0], [pytest.approx((8 / 3) ** 0.5)], [5.0], [1.0]]
    assert info["episode_count"] == [3]


@pytest.mark.parametrize("form", [lambda x: np.array([x]), lambda x: torch.tensor([x])])
def test_returns_may_be_arrays_or_tensors(form: Any) -> None:
    class Wrapped(Manager):
        def ended(self, env_id: int, total: float) -> Any:
            return {"eval_episode_return": form(total)}

    returns = evaluate(Wrapped([[(1, 2.5)]]))["eval_episode_return"]
    assert returns == [2.5]
    assert type(returns[0]) is float


# --------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("together", [None, 1, 2])
def test_an_episode_that_failed_does_not_count(renews: bool, together: int | None) -> None:
    """Episode 0 of environment 1 fails at its step 2; the next one takes its place."""
    episodes = [[(2, 1.0), (2, 2.0)], [(3, 10.0), (3, 20.0), (3, 30.0)]]
    manager = Manager(episodes, together=together, failing={1: [2, 4]}, renews=renews)
    policy = DuckPolicy()
    info = evaluate(manager, policy, n_episode=4)
    assert info["eval_episode_return"] == [1.0, 2.0, 30.0, 10.0]
    assert manager.resets == ([] if renews else [1, 1]), "who resets itself is not reset again"
    ended = [reset[0] for reset in policy.resets if reset]
    assert ended.count(1) == 4, "two failures, two ends"


def test_an_environment_that_always_fails_is_given_up() -> None:
    manager = Manager([[(3, 1.0)]], failing={0: range(10_000)})
    with pytest.raises(EnvError, match=r"failed 101 times in one evaluation, environment 0 last"):
        evaluate(manager)


def test_a_manager_that_is_done_too_early() -> None:
    class Finite(Manager):
        @property
        def ready_obs(self) -> dict[int, Any]:
            return {} if self.done else super().ready_obs

        @property
        def done(self) -> bool:
            return self.begun[0] >= 2

    with pytest.raises(EnvError, match=r"done after 2 episodes .*episode_num is too low"):
        evaluate(Finite([[(2, 1.0)]]), n_episode=3)
    with pytest.raises(EnvError, match=r"done after 3 episodes .*episode_num is too low"):
        evaluate(count_manager(evaluator_episode_num=1), n_episode=4)


def test_a_manager_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Manager):
        ready_obs = {}  # noqa: RUF012

        def step(self, actions: Any) -> dict[int, Step]:
            return {}

    monkeypatch.setattr(evaluation, "_PATIENCE_S", 0.05)
    with pytest.raises(EnvError, match="no environment has stepped for 0 s; do they hang"):
        evaluate(Hanging([[(1, 1.0)]]))


def test_an_episode_without_its_return() -> None:
    class Silent(Manager):
        def ended(self, env_id: int, total: float) -> Any:
            return {"TimeLimit": True}

    with pytest.raises(EnvError, match=r"environment 0 .*without info\['eval_episode_return'\]"):
        evaluate(Silent([[(1, 1.0)]]))


@pytest.mark.parametrize("outputs", [{}, {0: {}}, {0: {"action": 1}}, None, {0: 1, 1: 1}], ids=repr)
def test_a_policy_that_does_not_say_what_to_do(outputs: Any) -> None:
    policy = DuckPolicy()
    policy.forward = lambda data, **kwargs: outputs  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match=r"asked about environments \[0, 1\] and must return"):
        evaluate(Manager([[(1, 1.0)]] * 2), policy)


def test_a_policys_own_error_is_not_dressed_up() -> None:
    policy = DuckPolicy()
    policy.forward = lambda data: {}  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="unexpected keyword"):
        evaluate(Manager([[(1, 1.0)]]), policy, policy_kwargs={"eps": 1})


def test_a_mean_that_is_no_number_is_not_the_best() -> None:
    saved: list[str] = []
    episodes = [[(1, float("nan"))]]
    with InteractionSerialEvaluator({"stop_value": 0}, Manager(episodes), DuckPolicy()) as judge:
        assert judge.eval(saved.append, train_iter=1)[0] is False
        episodes[0][0] = (1, -5.0)
        judge.eval(saved.append, train_iter=2)
        episodes[0][0] = (1, float("nan"))
        judge.eval(saved.append, train_iter=3)
        assert judge.best == -5.0
    assert len(saved) == 1
