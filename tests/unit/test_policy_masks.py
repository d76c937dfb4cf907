"""DQN where not every action is legal in every state."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from hpcdi.policy.create import create_policy
from hpcdi.policy.exploration import epsilon_greedy, uniform_legal
from hpcdi.worker.dict_envs import BaseEnvTimestep
from hpcdi.worker.dict_form import columns_of_samples

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ACTIONS = 4
DOUBLE = pytest.mark.parametrize("double", [True, False])


def policy(*modes: str, seed: int = 0, **settings: Any) -> Any:
    cfg = {
        "type": "dqn",
        "model": {"obs_shape": 3, "action_shape": ACTIONS, "encoder_hidden_size_list": [16]},
        "discount_factor": 0.5,
        **settings,
    }
    return create_policy(cfg, modes, seed=np.random.SeedSequence(seed))


def masked(observation: Any, mask: Any, dtype: Any = np.int8) -> dict[str, Any]:
    return {
        "observation": np.asarray(observation, np.float32),
        "action_mask": np.array(mask, dtype),
    }


RNG = np.random.default_rng(0)
MASKS = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [1, 1, 1, 1]])
OBSERVATIONS = RNG.standard_normal((4, 3), dtype=np.float32)


@pytest.mark.parametrize("dtype", [np.int8, bool, np.float32])
@pytest.mark.parametrize("mode", ["collect", "eval"])
def test_the_best_legal_action_is_taken(mode: str, dtype: Any) -> None:
    built = policy("collect", "eval", seed=2)
    values = built._model(torch.from_numpy(OBSERVATIONS), {})[0].numpy()
    best = np.where(MASKS == 1, values, -np.inf).argmax(axis=1)
    assert (best != values.argmax(axis=1)).any(), "the seed should prefer an illegal action"
    data = {env: masked(OBSERVATIONS[env], MASKS[env], dtype) for env in range(4)}
    outputs = getattr(built, f"{mode}_mode").forward(data)
    assert [int(outputs[env]["action"]) for env in range(4)] == best.tolist()


def test_tensors_do_as_arrays_do() -> None:
    built = policy("collect")
    data = {env: masked(OBSERVATIONS[env], MASKS[env]) for env in range(4)}
    tensors = {
        env: {name: torch.tensor(value, dtype=torch.float32) for name, value in obs.items()}
        for env, obs in data.items()
    }
    assert built.collect_mode.forward(tensors) == built.collect_mode.forward(data)


@pytest.mark.parametrize("eps", [0.3, 1.0])
def test_exploring_is_legal_too(eps: float) -> None:
    built = policy("collect")
    data = {env: masked(OBSERVATIONS[env], MASKS[env]) for env in range(4)}
    for _ in range(200):
        for env, output in built.collect_mode.forward(data, eps=eps).items():
            assert MASKS[env, output["action"]] == 1


def test_legal_actions_are_as_likely() -> None:
    legal = np.repeat(MASKS == 1, 10_000, axis=0)
    drawn = uniform_legal(legal, np.random.default_rng(0)).reshape(4, -1)
    assert drawn.dtype == np.int64
    for row, mask in zip(drawn, MASKS, strict=True):
        shares = np.bincount(row, minlength=ACTIONS) / len(row)
        np.testing.assert_allclose(shares, mask / mask.sum(), atol=0.02)
    greedy = np.full(len(legal), 7)
    explored = epsilon_greedy(greedy, 0.25, ACTIONS, np.random.default_rng(0), legal)
    assert (explored != 7).mean() == pytest.approx(0.25, abs=0.01)


def test_observations_without_a_mask_are_as_before() -> None:
    built = policy("eval")
    plain = built.eval_mode.forward({0: OBSERVATIONS[0]})
    inner = built.eval_mode.forward({0: {"observation": OBSERVATIONS[0]}})
    assert plain == inner


# ------------------------------------------------------------------------------------------ samples


def transition(k: int, done: bool) -> dict[str, Any]:
    mode = policy("collect", nstep=2).collect_mode
    info = {"terminated": done, "truncated": False}
    after = masked([k + 1] * 3, [0] * ACTIONS if done else MASKS[k + 1])
    step = BaseEnvTimestep(after, float(2**k), done, info)
    made: dict[str, Any] = mode.process_transition(
        masked([k] * 3, MASKS[k]), {"action": np.int64(0)}, step
    )
    return made


def test_samples_look_n_steps_ahead_with_their_masks() -> None:
    mode = policy("collect", nstep=2).collect_mode
    samples = mode.get_train_sample(
        [transition(0, False), transition(1, False), transition(2, True)]
    )
    assert [sample["reward"] for sample in samples] == [1 + 0.5 * 2, 2 + 0.5 * 4, 4]
    assert [sample["value_gamma"] for sample in samples] == [0.25, 0.25, 0.5]
    nexts = [sample["next_obs"] for sample in samples]
    assert [obs["observation"][0] for obs in nexts] == [2, 3, 3]
    assert [obs["action_mask"].tolist() for obs in nexts] == [MASKS[2].tolist(), [0] * 4, [0] * 4]
    assert [sample["obs"]["observation"][0] for sample in samples] == [0, 1, 2]
    columns = columns_of_samples(samples, 0.25)
    assert columns["observation"].shape == columns["next_observation"].shape == (3, 3)
    assert columns["next_action_mask"].tolist() == [
        (MASKS[2] == 1).tolist(),
        [False] * 4,
        [False] * 4,
    ]
    assert columns["bootstrap_discount"].tolist() == [0.25, 0, 0]


def test_samples_without_masks_have_no_column_of_them() -> None:
    plain = [
        {**transition(0, False), "obs": np.zeros(3), "next_obs": np.zeros(3)} for _ in range(2)
    ]
    assert "next_action_mask" not in columns_of_samples(plain, 0.5)


# ------------------------------------------------------------------------------------------- target


def sample(mask: Any, done: bool = False) -> dict[str, Any]:
    return {
        "obs": masked([1, 0, 0], MASKS[3]), "next_obs": masked([0, 1, 0], mask),
        "action": np.int64(0), "reward": np.float32(0), "done": done,
    }  # fmt: skip


@DOUBLE
@pytest.mark.parametrize("legal", range(ACTIONS))
def test_the_target_is_the_best_legal_value(double: bool, legal: int) -> None:
    built = policy("learn", priority=True, learn={"double": double, "loss": "mse"})
    mask = np.eye(ACTIONS, dtype=np.int8)[legal]
    with torch.no_grad():
        value = built._model(torch.tensor([[1.0, 0, 0]]), {})[0][0, 0].item()
        after = built._model(torch.tensor([[0.0, 1, 0]]), {})[0][0].tolist()
    error = built.learn_mode.forward([sample(mask)])["priority"][0]
    assert error == pytest.approx(abs(0.5 * after[legal] - value), rel=1e-5)


@DOUBLE
def test_an_end_where_nothing_is_legal_is_a_number(double: bool) -> None:
    built = policy("learn", priority=True, learn={"double": double, "loss": "mse"})
    with torch.no_grad():
        value = built._model(torch.tensor([[1.0, 0, 0]]), {})[0][0, 0].item()
    info = built.learn_mode.forward([sample([0] * ACTIONS, done=True)])
    assert info["priority"][0] == pytest.approx(abs(value), rel=1e-5)
    assert np.isfinite(info["total_loss"])
    assert all(torch.isfinite(p).all() for p in built._model.parameters())


@DOUBLE
def test_masks_that_allow_all_change_nothing(double: bool) -> None:
    settings: Any = {"learn": {"double": double}}
    masked_samples = [sample(MASKS[3])] * 3
    plain = [
        {**s, "obs": s["obs"]["observation"], "next_obs": s["next_obs"]["observation"]}
        for s in masked_samples
    ]
    told = [policy("learn", **settings).learn_mode.forward(s) for s in (masked_samples, plain)]
    assert told[0] == told[1]


# ------------------------------------------------------------------------------------ a small game


@dataclasses.dataclass
class Shop:
    """Two counters. At the second one, action 3 would give 10, but is not for sale; 1 gives 1.

    At the first, action 0 ends it with 0.7 and action 1 leads to the second. Who believes in the
    10, or in the value that the network happens to give to 3, goes on; by half the 1, one does not.
    """

    place: int = 0

    def observe(self) -> dict[str, Any]:
        legal = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]][self.place]
        return masked(np.eye(3)[self.place], legal)

    def step(self, action: int) -> BaseEnvTimestep:
        assert self.observe()["action_mask"][action] == 1, "an illegal action was taken"
        reward = [[0.7, 0.0], [0.0, 1.0]][self.place][action]
        done = self.place == 1 or action == 0
        self.place = 2 if done else 1
        return BaseEnvTimestep(self.observe(), reward, done, {"terminated": done})


@DOUBLE
def test_a_game_whose_illegal_action_has_the_highest_value(double: bool) -> None:
    built = policy("learn", "collect", "eval", learn={
        "learning_rate": 0.01, "target_update_freq": 20, "double": double,
    })  # fmt: skip
    with torch.no_grad():  # illegal actions are never learnt: their values stay what they are
        built._model.advantage.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 10.0]))
        built._target.load_state_dict(built._model.state_dict())
    samples: list[dict[str, Any]] = []
    for _ in range(60):
        game, done = Shop(), False
        while not done:
            obs = game.observe()
            output = built.collect_mode.forward({0: obs}, eps=1.0)[0]
            step = game.step(int(output["action"]))
            samples += built.collect_mode.get_train_sample(
                [built.collect_mode.process_transition(obs, output, step)]
            )
            done = step.done
    columns = columns_of_samples(samples, 0.5)
    batch = {name: torch.from_numpy(column) for name, column in columns.items()}
    for _ in range(300):
        built.learn_mode.forward(batch)
    values = built._model(torch.eye(3), {})[0].detach().numpy()
    np.testing.assert_allclose(values[0, :2], [0.7, 0.5], atol=0.05)
    np.testing.assert_allclose(values[1, :2], [0.0, 1.0], atol=0.05)
    assert values[1, 3] > 5
    game = Shop()
    assert int(built.eval_mode.forward({0: game.observe()})[0]["action"]) == 0
