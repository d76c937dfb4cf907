"""The rehearsal: what is wrong with an environment is found, and nothing is invented."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes.battle_envs import ThreeEnv
from fakes.ending_stage import ends
from fakes.planted_envs import Right
from hpcdi import cli
from hpcdi.commands.findings import FAIL, OK, WARN, Finding
from hpcdi.commands.rehearse.alone import Budget, look
from hpcdi.commands.rehearse.apart import apart, run_stage
from hpcdi.commands.rehearse.as_a_run import play
from hpcdi.commands.rehearse.checks import Facts, check_speed, findings
from hpcdi.commands.rehearse.facts import Alone, AsARun, Numbers, Stage
from hpcdi.config.policy import ModelConfig
from hpcdi.errors import ConfigError
from hpcdi.run.experiment import load_experiment
from hpcdi.utils.growth import Memory

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.filterwarnings("ignore:.*WARN:UserWarning")  # gymnasium's own checks
PPO, DQN = str(ROOT / "configs/cartpole_ppo.yaml"), str(ROOT / "configs/cartpole_dqn.yaml")
# class -> row, grade, and what is said
PLANTED = {
    "SilentCast": ("values", FAIL, "observation/camera: float64 [2, 2], the space says uint8"),
    "ReusedArrays": ("arrays", WARN, "arrays are reused"),
    "Endless": ("episodes", FAIL, "none has ended in 2,000 steps"),
    "Leak": ("memory", FAIL, "KiB a step"),
    "SlowReset": ("speed", WARN, "of the time"),
    "GlobalRandom": ("seeds", WARN, "draws from np.random"),
    "Printing": ("output", WARN, "'an episode begins'"),
    "Dots": ("output", WARN, "1 line (5.9 KiB) in 600 steps: '...."),
    "OneBeyondItsSpace": (
        *("values", WARN, "observation[0] is from 0 to 5, and its space says from -1 to 1"),
    ),
    "LargeRewards": ("rewards", WARN, "from 0 to 1e+06"),
    "RareNaN": ("values", FAIL, "1 time in 5,100 steps: environment 0 failed"),
    "TakenSignal": ("signals", WARN, "takes SIGUSR2"),
    "OnlyOne": ("one process", FAIL, "the simulator is initialised already"),
    "OtherEachTime": ("seeds", WARN, "equal seeds do not repeat"),
    "BeyondItsSpace": ("values", WARN, "from 0 to 3, and its space says from 0 to 1"),
    "UnreadMasks": ("spaces", WARN, "masks of legal actions, which the policy does not get"),
    "Codes": ("observations", WARN, "observation from 2 to 8: bytes, which networks divide by 255"),
    "LargeObservations": ("observations", WARN, "observation from 0 to 1e+06"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _same_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


def rehearsed(
    env_id: str, *words: str, steps: int = 600, is_apart: bool = False
) -> dict[str, Finding]:
    """The rows that one environment alone leads to; in this process, or in one of its own."""
    words = (f"env.env_id={env_id}", "env.import_names=[]", *words)
    compiled, spaces = load_experiment(PPO, words, over_ranks=None)
    budget = Budget(steps, 20.0 if is_apart else 600.0)  # here it is steps that end it
    arguments = compiled.config.env, budget, 0
    alone = Alone()
    if is_apart:
        alone = apart(look, alone, *arguments, limit_s=60.0)
    else:
        run_stage(look, alone, *arguments)
    return dict(findings(Facts(compiled.config, spaces, 4, alone, AsARun())))


@pytest.mark.usefixtures("env_helpers")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found_and_no_other(name: str) -> None:
    row, grade, said = PLANTED[name]
    limits = {
        "RareNaN": {"steps": 5_100},
        "SlowReset": {"steps": 50},
        "Endless": {"steps": 2_000},
        # in this process it would first fill what a thousand tests have freed
        "Leak": {"steps": 4_000, "is_apart": True},
    }.get(name, {})
    rows = rehearsed(f"fakes.planted_envs:{name}", **limits)
    assert said in rows[row].found
    assert rows[row].status == grade
    assert rows[row].advice
    assert {other: f for other, f in rows.items() if f.status != OK and other != row} == {}


@pytest.mark.parametrize("env_id", ["fakes.planted_envs:Right", "CartPole-v1", "Pendulum-v1"])
def test_nothing_is_invented(env_id: str) -> None:
    rows = rehearsed(env_id, steps=1_000)
    assert {name: f for name, f in rows.items() if f.status != OK} == {}
    assert "values" in rows
    assert "at random" in rows["episodes"].found


class Embeds(torch.nn.Module):
    """A network of one's own, which is given bytes as they are."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.codes, self.value = torch.nn.Embedding(256, 4), torch.nn.Linear(4, 1)
        self.outputs = torch.nn.Linear(4, int(str(model.action_shape)))

    def forward(self, observation: Any, state: Any) -> Any:
        features = self.codes(observation.flatten(1).int()).mean(1)
        return (self.outputs(features), self.value(features).squeeze(1)), state


@pytest.mark.usefixtures("env_helpers")
def test_of_a_network_of_one_s_own_it_is_not_known_what_it_makes_of_bytes() -> None:
    rows = rehearsed("fakes.planted_envs:Codes", f"policy.model.type={__name__}:Embeds")
    assert "which networks divide" not in rows["observations"].found


class CodesOfATeam(ThreeEnv):
    """Each player sees bytes that are codes."""

    def observation_space(self, name: str) -> Any:
        return spaces.Box(0, 255, (4,), np.uint8)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, told = super().reset(seed, options)
        return {name: np.full(4, 2, np.uint8) for name in seen}, told

    def step(self, actions: dict[str, int]) -> Any:
        seen, *rest = super().step(actions)
        return {name: np.full(4, 2, np.uint8) for name in seen}, *rest


@pytest.mark.usefixtures("env_helpers")
def test_bytes_of_a_team_that_are_codes_are_found() -> None:
    rows = rehearsed(f"{__name__}:CodesOfATeam", "env.type=team")
    assert "which networks divide by 255" in rows["observations"].found


class OfScenarios(Right):
    """Plays what the seeds 3, 4 and 5 name, and there is nothing else."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed in (3, 4, 5), f"there is no scenario {seed}"
        return super().reset(seed=seed, options=options)


@pytest.mark.usefixtures("env_helpers")
def test_scenarios_are_played_by_their_seeds() -> None:
    rows = rehearsed(f"{__name__}:OfScenarios", "env.seeds=3..5", "env.eval_seeds=[4]")
    assert {name: f for name, f in rows.items() if f.status != OK} == {}
    assert rows["seeds"].status == OK


@pytest.mark.usefixtures("env_helpers")
def test_what_the_rehearsal_holds_itself_is_no_leak() -> None:
    """It kept up to 256 observations, and took them for the environment's."""
    rows = rehearsed("fakes.planted_envs:SlowPictures", steps=250, is_apart=True)
    assert (rows["memory"].found, rows["memory"].status) == ("does not grow in 250 steps", OK)


@pytest.mark.usefixtures("env_helpers")
def test_of_what_never_began_nothing_is_said_to_be_right() -> None:
    rows = rehearsed("fakes.planted_envs:FailsInReset")
    assert rows["values"].status == FAIL
    assert not rows.keys() & {"arrays", "memory", "output", "signals", "speed", "seeds"}


@pytest.mark.usefixtures("env_helpers")
def test_what_fails_only_beside_others_is_said_with_its_cause() -> None:
    words = ["env.env_id=fakes.planted_envs:FailsBesideOthers", "env.import_names=[]"]
    compiled, spaces = load_experiment(PPO, words, over_ranks=None)
    alone, run = Alone(steps=100), AsARun()
    run_stage(play, run, compiled.config, spaces, Budget(60, 5.0))
    row = dict(findings(Facts(compiled.config, spaces, 4, alone, run)))["as a run"]
    assert row.status == FAIL
    assert "licence server: too many clients" in row.found


def test_a_warning_of_the_run_is_another_one_if_it_says_something_else() -> None:
    compiled, spaces = load_experiment(PPO, ["env.import_names=[]"])
    alone, run = Alone(warnings=["environment 0: drops 1.5 frames"]), AsARun()
    run.warnings = ["environment 3: drops -2e-05 frames", "environment 3: is retired"]
    found = dict(findings(Facts(compiled.config, spaces, 4, alone, run)))["as a run"].found
    assert found == "environment 3: is retired"


def test_slow_steps_shorten_what_is_compared_of_a_seed() -> None:
    """100 steps, twice, were taken whatever they took: a slow environment 'hangs'."""
    compiled, _ = load_experiment(PPO, ["env.env_id=CartPole-v1", "env.import_names=[]"])
    alone, told = Alone(), list[str]()
    look(alone, compiled.config.env, Budget(5, 0.0), 0, tell=lambda known: told.append(known.doing))
    assert alone.repeats == ""
    assert told[-2:] == [
        "playing two episodes of one seed",
        "making a second environment in the same process",
    ]


def test_memory_that_is_filled_once_is_no_leak() -> None:
    cache, leak, still = Memory(), Memory(), Memory()
    for sample in range(60):
        cache.add(100 * sample, 10**8 + min(sample, 25) * 10**6)
        leak.add(100 * sample, 10**8 + sample * 10**5)
        still.add(100 * sample, 10**8 + sample % 7 * 1_000)
    assert (cache.slope, still.slope) == (0.0, 0.0)
    assert leak.slope == pytest.approx(1_000)
    for sample in range(60, 2_000):  # a long life keeps few samples, evenly spread
        leak.add(100 * sample, 10**8 + sample * 10**5)
    assert leak.slope == pytest.approx(1_000)
    assert len(leak.steps) <= 241


def test_memory_that_comes_and_goes_is_no_leak() -> None:
    """Wherever the samples fall: low ones at the beginning of each third looked like growth."""
    waves = Memory()
    for sample, is_held in enumerate([0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 0, 1]):
        waves.add(20 * sample, 10**8 + is_held * 12 * 10**5)
    assert waves.tells
    assert waves.slope == 0.0


def test_a_slow_leak_is_seen_in_a_long_life() -> None:
    leak = Memory()
    for sample in range(20_000):
        leak.add(100 * sample, 10**8 + sample * 1_000)
    assert leak.slope == pytest.approx(10)
    gaps = np.diff(leak.steps)
    assert set(gaps[:-1]) == {12_800}, "evenly spread"
    assert (leak.steps[-1], leak.n_bytes[-1]) == (1_999_900, 10**8 + 19_999_000), "the newest"


def test_what_never_changes_has_no_deviation() -> None:
    """Nor have numbers far from 0 another one than near it."""
    seen, noise = Numbers.of(2), np.random.default_rng(0).normal(size=(20, 1000))
    for part in noise:
        seen.add(np.c_[np.full(1000, 0.1), 1e9 + part])
    assert seen.deviation[0] == 0
    assert seen.deviation[1] == pytest.approx(noise.std(), rel=1e-4)


def test_a_collector_and_its_evaluation_are_played_as_a_run() -> None:
    compiled, spaces = load_experiment(DQN, [])
    run = AsARun()
    run_stage(play, run, compiled.config, spaces, Budget(400, 600.0))
    assert not run.trouble
    assert (run.env_num, run.steps, run.played) == (8, 400, 20)
    rows = dict(findings(Facts(compiled.config, spaces, 4, None, run, memory_bytes=1 << 40)))
    assert "8 environments" in rows["as a run"].found
    assert "20 episodes of the fresh policy" in rows["evaluation"].found
    assert {finding.status for finding in rows.values()} == {OK}


def test_a_buffer_that_does_not_fit_is_said_with_numbers() -> None:
    config = load_experiment(DQN, ["policy.other.replay_buffer.replay_buffer_size=100000000"])
    facts = Facts(config[0].config, config[1], 4, None, AsARun(), memory_bytes=1 << 30)
    row = dict(findings(facts))["data"]
    assert row.status == FAIL
    assert "1.0 GiB are free here" in row.found
    assert "replay_buffer_size" in row.advice


@pytest.mark.slow
@pytest.mark.usefixtures("env_helpers")
def test_a_process_that_ends_or_hangs_is_named() -> None:
    exits = apart(ends, Stage(), 3, limit_s=60.0)
    assert exits.trouble == "its process exited with code 3 while counting"
    assert "was not over after 2 s" in apart(ends, Stage(), None, limit_s=2.0).trouble


@pytest.mark.parametrize(
    ("name", "said"),
    [("cylinder_sac", "`hpcdi train` runs it"), ("kuramoto_sac", "HPCDI_ALONE_STEPS")],
)
def test_only_programs_changed_by_hpcdi_h_run_alone(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a class, which does not, the same was said."""
    assert cli.main(["rehearse", str(Path(PPO).with_name(f"{name}.yaml"))]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("env_helpers")
def test_the_command_says_all_problems_at_once_and_then_the_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["rehearse", PPO, "env.env_id=fakes.planted_envs:Endless", "-n", "6"]
    words += ["--steps", "2500", "--seconds", "30", "policy.eval.max_steps=50"]
    assert cli.main(words) == 2
    shown = capsys.readouterr().out
    assert "none has ended in 2,500 steps" in shown
    assert "6 ranks" in shown
    assert shown.rstrip().splitlines()[-1].startswith("NOT fit to run: episodes failed")
    assert cli.main(["rehearse", DQN, "--steps", "500", "--seconds", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_numbers_leave_out_what_is_none() -> None:
    alone = Alone()
    alone.see([{"observation": np.array([[1.0], [np.nan]])}], [np.array([2.0])])
    assert alone.numbers["observation"].most == 1.0
    assert alone.reward.most == 2.0


def test_one_simulator_per_process_is_refused_before_anything_starts() -> None:
    words = ["env.env_id=fakes.planted_envs:OnlyOne", "env.import_names=[]"]
    for over_ranks in (True, False):
        with pytest.raises(ConfigError, match=r"makes 28 environments \(8 collect, 20 evaluate\)"):
            load_experiment(PPO, words, over_ranks=over_ranks)
    compiled, _ = load_experiment(PPO, [*words, "env.manager.type=subprocess"])
    assert compiled.config.env.manager.type == "subprocess"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ([], "env.manager: {type: subprocess, wait_num: ...}, or make episodes longer"),
        (["env.manager.type=subprocess"], "set env.manager.wait_num, or make episodes longer"),
        (["env.manager={type: subprocess, wait_num: 2}"], "make episodes longer"),
    ],
)
def test_slow_resets_lead_to_what_is_not_yet_done(words: list[str], advice: str) -> None:
    config = load_experiment(PPO, words, over_ranks=None)[0].config
    alone = Alone()
    alone.steps = 9
    alone.habits.resets.add(1.0)
    alone.habits.steps.add(0.1)
    (found,) = [finding for finding in check_speed(alone, config) if finding.status == WARN]
    assert found.advice.removeprefix("others wait meanwhile: ") == advice


@pytest.mark.usefixtures("env_helpers")
def test_where_there_are_vectors_alone_no_single_one_is_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["rehearse", PPO, "env.env_id=test/CartPoles-v0", "--steps", "200", "--seconds", "3"]
    words += ["env.import_names=[fakes.vectors_alone]", "env.kwargs={}"]
    for how in ("auto", "vector_entry_point"):
        assert cli.main([*words, "--json", f"env.vectorization={how}"]) == 0
        said = capsys.readouterr().out
        assert '"as a run"' in said
        assert '"values"' not in said
