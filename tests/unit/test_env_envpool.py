"""EnvPool's environments give right data behind the same contract."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from fakes.env_managers import seen, stepped
from fakes.spaces import simple_spaces
from hpcdi.env.create import create_env_manager
from hpcdi.env.envpool import EnvPoolEnv, EnvPoolVector
from hpcdi.env.probe import look_at
from hpcdi.errors import ConfigError, EnvError


def config(**settings: Any) -> Any:
    return EnvPoolEnv.parse_config({"env_id": "CartPole-v1", "collector_env_num": 3, **settings})


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """Its import sets variables of matplotlib: that comes before each test's look at them."""
    if importlib.util.find_spec("envpool") is not None:
        importlib.import_module("envpool")


class TestInstalled:
    """Where EnvPool is installed."""

    @pytest.fixture(autouse=True)
    def _needs_envpool(self) -> None:
        pytest.importorskip("envpool")

    def walk(self, seed: int, steps: int = 120, **settings: Any) -> list[Any]:
        cfg = config(**settings)
        sequence = np.random.SeedSequence(seed)
        taken = []
        with create_env_manager(cfg, evaluate=False, seed=sequence) as manager:
            manager.launch()
            rng = np.random.default_rng(0)
            for _ in range(steps):
                before = seen(manager).copy()
                actions = rng.integers(0, 2, 3)
                taken.append((before, actions, stepped(manager, actions)))
            self.episodes = manager.take_episodes()
        return taken

    def test_spaces(self) -> None:
        assert look_at(config()).spaces == simple_spaces((4,), "float32", 2, ())

    def test_transitions_are_those_of_cartpole(self) -> None:
        """Each live one obeys the dynamics, an episode's last one too; resets are not live."""
        from gymnasium.envs.classic_control import CartPoleEnv

        cartpole = CartPoleEnv()
        ends = 0
        for before, actions, step in self.walk(0):
            for env in np.flatnonzero(step.live):
                cartpole.reset(seed=0)
                cartpole.state = before[env].astype(np.float64)
                after, _, terminated, _, _ = cartpole.step(int(actions[env]))
                np.testing.assert_allclose(step.successor["observation"][env], after, atol=1e-4)
                assert step.terminated[env] == terminated
                assert step.reward[env] == 1.0
                ends += int(step.terminated[env])
            assert not step.truncated.any()
        assert ends > 5
        _, returns, lengths, _ = self.episodes
        assert len(lengths) == ends
        assert returns.tolist() == lengths.tolist()

    def test_a_time_limit_truncates(self) -> None:
        taken = self.walk(0, 3, kwargs={"max_episode_steps": 2})
        assert [step.truncated.all() for *_, step in taken] == [False, True, False]
        assert [step.live.all() for *_, step in taken] == [True, True, False]
        assert not any(step.terminated.any() for *_, step in taken)

    def test_seeds(self) -> None:
        first, again, other = (
            self.walk(seed, 5)[-1][2].successor["observation"].tolist() for seed in (0, 0, 1)
        )
        assert first == again
        assert first != other

    def test_resets_of_single_environments_are_refused(self) -> None:
        seed = np.random.SeedSequence(0)
        with create_env_manager(config(), evaluate=False, seed=seed) as manager:
            manager.launch()
            with pytest.raises(EnvError, match="cannot reset single environments"):
                manager.reset({0: None})

    def test_an_unknown_id(self) -> None:
        with pytest.raises(ConfigError, match="'Whale-v0' cannot be made"):
            look_at(config(env_id="Whale-v0"))

    @pytest.mark.parametrize("env_id", ["Go9x9-v1", "intersection-multi-agent-v0"])
    def test_one_of_several_players_is_refused(self, env_id: str) -> None:
        with pytest.raises(ConfigError, match=rf"env.env_id: '{env_id}' has up to 2 players"):
            look_at(config(env_id=env_id))


def test_child_processes_do_not_go_with_it() -> None:
    with pytest.raises(ConfigError, match=r"manager.type: must be 'base' with envpool"):
        config(manager={"type": "subprocess"})


def test_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"env.type: EnvPool is not installed.*hpcdi\[envpool\]"):
        look_at(config())


def test_what_cannot_be_made_is_closed_quietly() -> None:
    """gymnasium closes it as it is deleted, and said "no attribute '_pool'"."""
    env = EnvPoolVector.__new__(EnvPoolVector)
    with pytest.raises(ZeroDivisionError):
        env.__init__(lambda seed: 1 // seed, 1)  # type: ignore[misc]
    env.close()
