"""Environments that are MPI programs: their settings, plan, vectors, and what a collector sees."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces

from hpcdi.comm.solver_protocol import (
    LAST_LINE,
    Kind,
    SolverLost,
    SolverMessage,
    SolverPlace,
    lines_of_numbers,
    pack,
    room_for,
    unpack,
)
from hpcdi.commands.plan import programs_of
from hpcdi.config.compat import parse
from hpcdi.config.compiled import compile_config
from hpcdi.config.fields import replaced
from hpcdi.config.mpi_env import MpiEnvConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.env.base import EnvFacts, EnvFailure, RanksLost
from hpcdi.env.contract import Origin, Space, with_ordered_masks
from hpcdi.env.manager import EnvManager
from hpcdi.env.mpi import build, preload
from hpcdi.env.mpi.environment import MpiEnv, facts_of
from hpcdi.env.mpi.launch import Program, last_words, located, log_path
from hpcdi.env.mpi.manager import SolverEnvs, SolverWorker
from hpcdi.env.mpi.pool import CoupledGroup, SolverPool
from hpcdi.env.mpi.python_solver import _Answering, failure_to_close
from hpcdi.env.mpi.solvers import Solver, SolverLimits
from hpcdi.env.mpi.vectors import put_vector, size_of, sizes_of, unrounded, vector_of
from hpcdi.env.process_state import SENT_TO_ALL
from hpcdi.errors import (
    CommError,
    ConfigError,
    EnvError,
    EnvRanksLost,
    EnvValueError,
    LaunchError,
)
from hpcdi.run import solver_ranks
from hpcdi.run.solver_ranks import (
    RankPlan,
    default_ranks,
    gpus_of,
    lines_of,
    plan_ranks,
    world_of,
)

ROOT = Path(__file__).parents[2]
FAR = 5_400_000.3
COUNTER = {"type": "mpi", "env_id": "fakes.python_solvers:Counter", "ranks": 2}


def experiment(**env: Any) -> ExperimentConfig:
    """An experiment with one learner and two collectors."""
    config = compile_config({"env": {**COUNTER, **env}, "policy": {"type": "sac"}}).config
    collector = dataclasses.replace(config.policy.collect.collector, collector_num=2)
    collect = dataclasses.replace(config.policy.collect, collector=collector)
    return dataclasses.replace(config, policy=dataclasses.replace(config.policy, collect=collect))


def parse_env(env: dict[str, Any]) -> MpiEnvConfig:
    return parse(MpiEnvConfig, env, "env")


def problems(**env: Any) -> str:
    with pytest.raises(ConfigError) as error:
        parse_env({**COUNTER, **env})
    return str(error.value)


class FakeGroup:
    """A group that answers each order at once, unless it is told what else to do.

    Observations are {sum of the action, steps, seed}; episodes end after three steps.
    """

    rings = False

    def __init__(self, name: str = "") -> None:
        self.name, self.steps, self.seed, self.is_busy = name, 0, 0, False
        self.is_silent = self.is_dead = False
        self.dead: tuple[int, ...] = ()
        self.given_up, self.released = "", False
        self._answer: SolverMessage | None = None

    def meet(self) -> bool:
        return True

    def order(self, message: SolverMessage, deadline: float) -> None:
        assert not self.is_busy
        self.deadline = deadline
        self.is_busy = True
        self.steps = 0 if message.kind is Kind.RESET else self.steps + 1
        self.seed = message.seed if message.kind is Kind.RESET else self.seed
        seen = np.array([message.values.sum(), self.steps, self.seed], float)
        self._answer = SolverMessage(
            Kind.OBSERVATION, values=seen, reward=1.5, truncated=self.steps == 3,
            lines={"drag": "2.5"},
        )  # fmt: skip

    def has_news(self) -> bool:
        return not self.is_silent

    def take(self) -> SolverMessage:
        if self.is_dead:
            raise SolverLost("rank 7 has died")
        assert self._answer is not None
        self.is_busy = False
        return self._answer

    def look_for_deaths(self) -> None: ...

    def give_up(self, reason: str) -> None:
        self.given_up = reason

    def release(self) -> None:
        self.released = True

    def is_flushed(self) -> bool:
        return True


PROGRAM = {
    "type": "mpi", "env_id": "a.out", "observation": {"size": 3},
    "action": {"size": 2, "low": -1, "high": 1},
}  # fmt: skip


def solver(
    group: FakeGroup,
    *spares: FakeGroup,
    may_die: bool = True,
    folder: Path | None = None,
    **limits: float,
) -> Solver:
    left = list(spares)
    return Solver(
        group, SolverLimits(**limits), folder_of=lambda _group: folder,
        next_group=lambda: left.pop(0) if left else None, may_die=may_die,
    )  # fmt: skip


def manager(
    *solvers: Solver,
    kept: Sequence[str] = (),
    origin: Origin = MappingProxyType({}),
    wait_num: int | None = None,
    another: Callable[[], Solver | None] = lambda: None,
) -> EnvManager:
    facts = facts_of(parse_env(PROGRAM))
    envs = SolverEnvs([SolverWorker(each, facts, another) for each in solvers], wait_num=wait_num)
    envs.origin = origin
    made = EnvManager(envs, seed=np.random.SeedSequence(0))
    made.kept, made.retires = kept, True
    made.launch()
    return made


ACTION = np.array([[0.25, 0.5], [0.0, 1.0]], np.float32)


# --------------------------------------------------------------------------------------------- plan


def test_ranks_after_hpcdis_own_are_groups_of_each_collector_and_its_spares() -> None:
    config = experiment(collector_env_num=2, spares=1)
    plan = plan_ranks(default_ranks(config), config)
    assert plan.own == 4
    assert plan.world == default_ranks(config) == world_of(4, config) == 16
    assert [(g.environment, g.ranks, g.collector, g.assigner) for g in plan.groups] == [
        (0, (4, 5), 2, None), (1, (6, 7), 2, None), (4, (8, 9), 2, 2),
        (2, (10, 11), 3, None), (3, (12, 13), 3, None), (5, (14, 15), 3, 3),
    ]  # fmt: skip
    assert plan.place_of(3) is None
    assert plan.place_of(11) == plan.groups[3]
    assert lines_of(plan)[0] == (
        "  solvers      of rank 2: ranks 4-5 (environment 0), 6-7 (environment 1), 8-9 (spare)"
    )


def test_rank_0_waits_for_solvers_to_leave_for_so_long_and_no_longer() -> None:
    """Collectors wait as long as rank 0 does, whose exit code is the run's."""
    plan = plan_ranks(8, experiment())
    assert solver_ranks.leave_limit_of(plan, 2) is None
    assert solver_ranks.leave_limit_of(None, 0) is None
    limit = solver_ranks.leave_limit_of(plan, 0)
    assert limit is not None
    assert limit.seconds == 60.0 + 20.0
    assert "a solver goes on (one of ranks 4-7)" in limit.cause


def test_gpus_that_no_learner_uses_go_to_solvers_in_turn() -> None:
    """Ranks 0 to 7 are on one host, which has a learner: rank 1."""
    config = experiment(collector_env_num=2)
    plan = plan_ranks(default_ranks(config), config)
    gpus = [gpus_of(range(rank), plan, 1, 2, ["0", "1", "2", "3"]) for rank in (4, 5)]
    assert gpus == [["1", "2"], ["3", "1"]]
    assert gpus_of(range(8, 9), plan, 1, 1, ["0", "1"]) == ["1"]  # of another host
    for count, visible in ((1, ["0"]), (2, ["0", "1"])):  # none twice
        with pytest.raises(LaunchError, match=f"rank is {count}, and of .* learners use 1; set it"):
            gpus_of(range(4), plan, 1, count, visible)


@pytest.mark.parametrize("world", [1, 3, 7, 9])
def test_a_world_that_cannot_be_divided_is_refused_with_one_that_can(world: int) -> None:
    with pytest.raises(
        LaunchError, match=r"cannot be divided.*start it with -n (5|5 or 8|8 or 11)$"
    ):
        plan_ranks(world, experiment())


def test_a_world_with_fewer_collectors_than_learners_is_refused_with_one_that_fits() -> None:
    """On-policy, where each of them needs a rollout; solvers' ranks count, too."""
    config = compile_config({"env": COUNTER, "policy": {"type": "ppo"}}).config
    config = replaced(config, {"policy.learn.learner.learner_num": 2})
    for world in (1, 6, 7):
        with pytest.raises(LaunchError, match=r"each of 2 or more collectors 1 .* with -n 9$"):
            plan_ranks(world, config)
    assert plan_ranks(9, config).own == 5


@pytest.mark.parametrize(("rank", "on_host", "waits"), [(3, 9, False), (4, 9, True), (4, 5, False)])
def test_the_first_rank_of_solvers_on_a_host_says_why_they_refuse(
    rank: int, on_host: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver_ranks, "_REFUSAL_S", 0.1)
    for name, value in (("RANK", rank), ("SIZE", 9), ("LOCAL_SIZE", on_host)):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    began = time.monotonic()
    solver_ranks.let_first_refuse(RankPlan(3))
    assert (time.monotonic() - began >= 0.1) is waits


def test_spaces_that_are_empty_are_refused() -> None:
    program = {"type": "mpi", "env_id": "a.out", "observation": {"size": 1, "low": 1, "high": 0}}
    with pytest.raises(ConfigError) as error:
        parse_env({**program, "action": {"choices": [3, 0]}})
    assert "observation.low: is 1, which is above high: 0" in str(error.value)
    assert "action.choices: each must be at least 1, not 0" in str(error.value)


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert "evaluations share" in problems(evaluator_env_num=2)
    assert "must be 'mpi'" in problems(manager={"type": "subprocess"})
    assert "observation.size: is required" in problems(env_id="a.out")
    assert "are made once" in problems(eval_kwargs={"length": 5})
    assert "cannot start twice" in problems(manager={"type": "mpi", "renew_after": "9 episodes"})
    assert "are for a program" in problems(flags=["-O3"])
    parse_env(PROGRAM)


def test_commands_of_one_process_are_refused() -> None:
    with pytest.raises(ConfigError, match="has ranks of its own: `hpcdi train` runs it"):
        MpiEnv.make_single(parse_env(PROGRAM))


BECOMES = """
import sys
from pathlib import Path
from hpcdi.comm.solver_protocol import SolverPlace
from hpcdi.env.mpi.launch import Program, become_solver
program = Program(("env",), variables={"CASE": "{folder}/case{index}", "PORT": "{index + 5000}"})
become_solver(SolverPlace(3, (5, 6)), program, Path(sys.argv[1]), 6)
"""


def test_variables_of_a_program_have_its_number_and_folder(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", BECOMES, tmp_path], check=True)
    printed = log_path(tmp_path, 1).read_text().splitlines()
    assert {f"CASE={tmp_path}/case3", "PORT=5003"} <= set(printed)


def test_programs_that_are_started_each_as_itself_have_numbers_too() -> None:
    program = {
        "env_id": "env", "arguments": ["-n", 3, "{index}"], "variables": {"CASE": "case{index}"},
    }  # fmt: skip
    config = compile_config({"env": PROGRAM | program}).config
    *_, last = programs_of(config, default_ranks(config), ["-m", "hpcdi"])
    number = re.search("HPCDI_SOLVER_ENVIRONMENT=([0-9]+) ", last)
    assert number is not None
    assert f" CASE=case{number[1]} " in last
    assert last.endswith(f" env -n 3 {number[1]}")


def test_a_source_is_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "flow.c").touch()
    config = parse_env({**PROGRAM, "env_id": "flow.c"})
    assert located(config, tmp_path).env_id == str(tmp_path / "flow.c")
    with pytest.raises(LaunchError, match=r"there is no program a\.out"):
        Program.of(parse_env(PROGRAM)).prepare()
    with pytest.raises(ConfigError, match=r"has no 'Count'; did you mean 'fakes\.python_solvers:C"):
        Program.of(parse_env({**COUNTER, "env_id": "fakes.python_solvers:Count"})).prepare()


def test_initial_states_are_found_like_the_source_and_missing_ones_refused(tmp_path: Path) -> None:
    """Solvers work in folders of their own, where no other path leads to them."""
    (tmp_path / "cold.npz").touch()
    config = parse_env({**COUNTER, "states": ["cold.npz"]})
    assert located(config, tmp_path).states == (str(tmp_path / "cold.npz"),)
    assert located(located(config, tmp_path), Path("elsewhere")).states
    with pytest.raises(
        ConfigError, match=r"no file cold\.npz, neither in the present folder nor in"
    ):
        located(config, tmp_path / "elsewhere")


class Spaceless:
    """A solver but for its spaces."""

    def reset(self, seed: int, comm: Any) -> Any: ...

    def step(self, action: Any, comm: Any) -> Any: ...


class Replaced(Spaceless):
    """A default that an instance replaces by its arguments."""

    observation_space = action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, power: float = 1.0) -> None:
        self.action_space = spaces.Box(-power, power, (1,))


class Property(Spaceless):
    """One space by a property, the other by none."""

    @property
    def observation_space(self) -> Any:
        return spaces.Box(-1, 1, (2,))


class Complete(Property):
    """Both."""

    def __init__(self, power: float = 1.0) -> None:
        self.action_space = spaces.Box(-power, power, (1,))


class Writes(Complete):
    """Writes a file as it is made."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        assert Path(folder).is_absolute()
        (Path(folder) / "log").touch()


class Settled(Spaceless):
    """Nothing needs to be made."""

    observation_space = action_space = spaces.Box(-1, 1, (1,))

    def __init__(self) -> None:
        raise RuntimeError("no licence")


class Unsettled(Settled):
    action_space = None


@pytest.mark.parametrize("name", ["Replaced", "Complete"])
def test_spaces_are_those_of_an_instance_where_the_class_does_not_settle_them(name: str) -> None:
    facts = facts_of(parse_env({**COUNTER, "env_id": f"{__name__}:{name}", "kwargs": {"power": 5}}))
    assert facts.action_space == spaces.Box(-5, 5, (1,))
    assert sizes_of(facts).spaces != sizes_of(facts_of(parse_env(PROGRAM))).spaces


def test_an_instance_that_says_its_spaces_has_a_folder_too() -> None:
    writes = {"env_id": f"{__name__}:Writes", "kwargs": {"folder": "{folder}"}}
    assert facts_of(parse_env({**COUNTER, **writes})).action_space == spaces.Box(-1, 1, (1,))


def test_an_instance_is_made_only_where_the_class_does_not_settle_its_spaces() -> None:
    config = parse_env({**COUNTER, "env_id": f"{__name__}:Settled"})
    assert facts_of(config).action_space == Settled.action_space
    with pytest.raises(ConfigError, match=r"which needs no ranks: it raises .*no licence"):
        facts_of(parse_env({**COUNTER, "env_id": f"{__name__}:Unsettled"}))
    with pytest.raises(ConfigError, match="Property has no action_space that is a space"):
        facts_of(parse_env({**COUNTER, "env_id": f"{__name__}:Property"}))


# ----------------------------------------------------------------------------------------- messages


def test_rows_of_nested_spaces_travel_as_vectors() -> None:
    facts = facts_of(parse_env({**COUNTER, "env_id": "fakes.python_solvers:Controlled"}))
    space = Space.of_actions(facts.action_space)
    columns, back = space.zeros(2), space.zeros(2)
    space.put(columns, 1, {"gear": 3, "jets": np.array([0.5, -0.25])})
    vector = vector_of(space, columns, 1)
    assert (vector.size, sorted(vector)) == (size_of(space), [-0.25, 0.5, 3.0])
    put_vector(space, back, 1, vector)
    assert {n: c.tolist() for n, c in back.items()} == {n: c.tolist() for n, c in columns.items()}


@pytest.mark.parametrize("form", [spaces.Tuple, spaces.Dict])
def test_masks_in_parts_travel_as_one(form: Any) -> None:
    """They ended the run: a flat mask was to be one in parts."""
    parts = {"move": spaces.MultiBinary(3), "attack": spaces.MultiBinary(2)}
    acts = spaces.Dict({"move": spaces.Discrete(3), "attack": spaces.Discrete(2)})  # are sorted
    own: Any = {"move": np.array([1, 0, 0]), "attack": np.array([0, 1])}
    masks = spaces.Dict(**parts)
    if form is spaces.Tuple:
        masks, own = spaces.Tuple([*parts.values()][::-1]), (own["attack"], own["move"])
    observation = spaces.Dict({"observation": spaces.Discrete(2), "action_mask": masks})
    space = Space.of_observations(with_ordered_masks(observation, acts))
    columns, back = unrounded(space), space.zeros(1)
    space.put(columns, 0, {"observation": 1, "action_mask": own})
    put_vector(space, back, 0, vector_of(space, columns, 0))
    assert back["action_mask"].tolist() == [[False, True, True, False, False]]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([7.0], r"observation: 7, the space says int64 from 0 to 4"),
        ([0.9], r"observation: float64"),
        ([float("nan")], r"observation: float64"),
        ([1.0, 2.0], r"returned 2 numbers, and its space has 1"),
    ],
)
def test_numbers_of_a_program_are_checked_as_every_environment_s(
    numbers: list[float], said: str
) -> None:
    space = Space.of_observations(spaces.Discrete(5))
    columns = space.zeros(1)
    put_vector(space, columns, 0, np.array([4.0]))
    with pytest.raises(EnvValueError, match=said):
        put_vector(space, columns, 0, np.array(numbers))
    assert columns["observation"].tolist() == [4]


def test_whole_numbers_that_float64_rounds_are_refused() -> None:
    space = Space.of_observations(spaces.Box(-(2**62), 2**62, (2,), np.int64))
    columns = space.zeros(1)
    put_vector(space, columns, 0, np.array([2.0**53 - 1, -5.0]))
    assert columns["observation"].tolist() == [[2**53 - 1, -5]]
    with pytest.raises(EnvValueError, match=r"observation: 9007199254740992: .*float64"):
        put_vector(space, columns, 0, np.array([0.0, -float(2**53 + 1)]))


def test_a_message_is_the_same_when_it_arrives() -> None:
    sent = SolverMessage(Kind.OBSERVATION, 7, 3, np.arange(4.0), -1.5, False, True, {"a": "1"})
    came = unpack(np.frombuffer(pack(sent), np.uint8))
    np.testing.assert_array_equal(came.values, sent.values)
    assert came._replace(values=sent.values) == sent
    path = SolverMessage(Kind.RESET, lines={"state": "/runs/a=b/c.npz"})
    assert unpack(np.frombuffer(pack(path), np.uint8)).lines == path.lines
    with pytest.raises(CommError, match="speaks version"):
        unpack(np.zeros(64, np.uint8))
    place = SolverPlace(3, (4, 5, 9), 2)
    assert SolverPlace.of(place.variables()) == place


def test_numbers_of_an_info_arrive_whatever_their_names_and_as_many_as_find_room() -> None:
    numbers = {f"station {k}": float(k) for k in range(3000)} | {"x=0.5/drag": 0.1, "two\nlines": 2}
    lines, dropped = lines_of_numbers(numbers)
    assert dropped == 0
    sent = SolverMessage(Kind.OBSERVATION, lines=lines)
    came = unpack(np.frombuffer(pack(sent), np.uint8)).numbers()
    assert came == {name.replace("\n", " "): value for name, value in numbers.items()}
    lines, dropped = lines_of_numbers({f"{k} " + 1000 * "x": 0.0 for k in range(1100)})
    assert dropped > 50
    assert len(pack(SolverMessage(Kind.OBSERVATION, lines=lines))) <= room_for(0, 1 << 20)


class Alone:
    """A rank's place in the group of a Python solver."""

    def __init__(self, number: int) -> None:
        self.comm, self._number = self, number
        self.answered: list[Any] = []

    def Get_rank(self) -> int:
        return self._number

    def answer(self, observation: Any, *_result: Any, **_also: Any) -> None:
        self.answered.append(observation)


class Closed(Replaced):
    def close(self) -> None:
        self.closed = "alone"


class ClosedTogether(Replaced):
    def close(self, comm: Any) -> None:
        self.closed = f"on rank {comm.Get_rank()}"


class ClosedAt(Replaced):
    def close(self, comm: Any = None) -> None:
        self.closed = f"on rank {comm.Get_rank()}"


class ClosedInAWay(Replaced):
    def close(self, remove: bool = False) -> None:
        self.closed = f"remove {remove}"


class ClosedInAnyWay(Replaced):
    def close(self, *ranks: Any) -> None:
        assert ranks, "a coupling was closed without its program's ranks"


class Unclosed(Replaced):
    def close(self, comm: Any) -> None:
        raise OSError("the disk is full")


def test_a_class_writes_its_last_files_and_what_it_raises_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One that took `comm` was never called, and nobody was told what one raised."""
    assert failure_to_close(Replaced(), Alone(1)) == ""
    for made, said in (
        (Closed(), "alone"), (ClosedTogether(), "on rank 1"), (ClosedAt(), "on rank 1"),
        (ClosedInAWay(), "remove False"),
    ):  # fmt: skip
        assert failure_to_close(made, Alone(1)) == ""
        assert made.closed == said
    assert failure_to_close(Unclosed(), Alone(1)) == "OSError: the disk is full"
    assert "in close" in capfd.readouterr().err


@pytest.mark.parametrize("order", [Kind.RESET, Kind.STEP])
@pytest.mark.parametrize("other", [None, (None, None, None, None, None)])
def test_what_other_ranks_than_the_first_return_does_not_count(order: Kind, other: Any) -> None:
    class Rooted(Replaced):
        def reset(self, seed: int, comm: Any) -> Any:
            return other if comm.Get_rank() else ([0.5], {})

        def step(self, action: Any, comm: Any) -> Any:
            return other if comm.Get_rank() else ([0.5], 1.0, False, False, {})

    facts = EnvFacts(Rooted.observation_space, Rooted.action_space)
    for number in (0, 1):
        rank = Alone(number)
        answering = _Answering(rank, Rooted(), facts)
        answering.do(SolverMessage(order, values=np.zeros(1)))
        assert rank.answered == [[0.5]] * (number == 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_class_s_numbers_travel_unrounded(dtype: Any) -> None:
    class Far(Replaced):
        def reset(self, seed: int, comm: Any) -> Any:
            return np.array([FAR]), {}

    rank = Alone(0)
    facts = EnvFacts(spaces.Box(-np.inf, np.inf, (1,), dtype), Far.action_space)
    answering = _Answering(rank, Far(), facts)
    answering.do(SolverMessage(Kind.RESET, values=np.zeros(1)))
    assert rank.answered == [[FAR]]


# --------------------------------------------------------------------------- as a collector sees it


class FarGroup(FakeGroup):
    """Its steps count from far."""

    def take(self) -> SolverMessage:
        message = super().take()
        message.values[1] += FAR
        return message


def test_an_origin_is_subtracted_before_numbers_are_rounded() -> None:
    origin = {"observation": (0.0, FAR, 0.0)}
    with manager(solver(FarGroup()), origin=origin) as envs:
        assert envs.observation["observation"][0, 1] == 0.0
        for number in range(1, 4):
            step = envs.step({"action": ACTION[:1]})
            assert step.successor["observation"][0, 1] == pytest.approx(number)
        assert step.truncated.all()
        assert envs.observation["observation"][0, 1] == 0.0


def test_episodes_of_solvers_are_those_of_other_environments() -> None:
    with manager(solver(FakeGroup()), solver(FakeGroup()), kept=["drag"]) as envs:
        first = envs.observation["observation"].copy()
        for number in range(1, 4):
            step = envs.step({"action": ACTION})
            np.testing.assert_array_equal(step.infos["info/drag"], [2.5] * 2)
            seen = step.successor["observation"]
            np.testing.assert_array_equal(seen[:, :2], [[0.75, number], [1.0, number]])
            np.testing.assert_array_equal(step.truncated, [number == 3] * 2)
        episodes = envs.take_episodes()
        assert episodes.returns.tolist() == [4.5, 4.5]
        assert episodes.infos == [{"drag": 2.5}] * 2
        after = envs.observation["observation"]
        assert (after[:, 1] == 0).all()
        assert (after[:, 2] != first[:, 2]).all()  # each episode has a seed of its own
        for begun, of in ((first, step), (after.copy(), envs.step({"action": ACTION}))):
            assert of.seeds is not None
            seeds, resets = of.seeds.T
            np.testing.assert_array_equal(begun[:, 2], seeds.astype(np.float32))
            assert not resets.any()


class AfterGroup(FakeGroup):
    """Answers when another one has been told to reset."""

    other = FakeGroup()

    def has_news(self) -> bool:
        return self.other.is_busy


def test_solvers_begin_their_episodes_at_the_same_time() -> None:
    """One after the other, a slow reset was one of each, and a death in it took the next along."""
    first, second = AfterGroup(), FakeGroup()
    first.other = second
    with manager(solver(first, start_s=1.0, reset_s=2.0), solver(second)) as envs:
        assert not first.given_up
        assert envs.step({"action": ACTION}).live.all()


class CutGroup(FakeGroup):
    """Its episodes end after so many steps; it notes their seeds, and may answer too few numbers.

    Args:
        length: steps of an episode.
        wrong_at: the step with too few numbers; 0: none.
    """

    def __init__(self, length: int, wrong_at: int = 0) -> None:
        super().__init__()
        self.length, self.wrong_at, self.seeds = length, wrong_at, list[int]()

    def order(self, message: SolverMessage, deadline: float) -> None:
        super().order(message, deadline)
        if message.kind is Kind.RESET:
            self.seeds.append(message.seed)
        assert self._answer is not None
        is_wrong = message.kind is Kind.STEP and self.steps == self.wrong_at
        self._answer = self._answer._replace(
            truncated=self.steps == self.length, values=self._answer.values[: 3 - is_wrong]
        )


def test_a_solver_s_episodes_begin_by_the_same_seeds_however_long_they_are() -> None:
    """A seed was drawn in each step: a policy that plays longer met other episodes."""
    seeds = []
    for length in (1, 3):
        group = CutGroup(length)
        with manager(solver(group)) as envs:
            for number in range(3 * length):
                step = envs.step({"action": ACTION[:1]})
                assert step.seeds is not None
                assert step.seeds[0, 0] == group.seeds[number // length]
        seeds.append(group.seeds)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4


def test_a_solver_s_wrong_number_is_said_with_its_step() -> None:
    groups = CutGroup(4), CutGroup(4, wrong_at=2)
    with manager(*map(solver, groups)) as envs:
        envs.step({"action": ACTION})
        with pytest.raises(EnvValueError, match="environment 1, step 2 of its episode: "):
            envs.step({"action": ACTION})


class LateGroup(FakeGroup):
    """Its steps take five milliseconds."""

    def order(self, message: SolverMessage, deadline: float) -> None:
        super().order(message, deadline)
        self._over = time.monotonic() + 0.005 * (message.kind is Kind.STEP)

    def has_news(self) -> bool:
        return time.monotonic() >= self._over


def test_the_slowest_solver_is_known() -> None:
    with manager(solver(FakeGroup()), solver(LateGroup()), solver(FakeGroup())) as envs:
        for _ in range(20):
            envs.step({"action": ACTION[[0, 1, 0]]})
        slowest = envs.slowest
    assert slowest["env"] == 1
    assert slowest["step_s"] > 0.005 > slowest["others_s"] > 0


def test_an_evaluation_takes_solvers_and_collecting_takes_them_back() -> None:
    shared = solver(FakeGroup())
    with manager(shared) as collecting, manager(shared) as evaluating:
        assert collecting.is_taken
        evaluating.step({"action": ACTION[:1]})
        collecting.reset()
        assert (collecting.is_taken, evaluating.is_taken) == (False, True)
        collecting.step({"action": ACTION[:1]})
        assert collecting.observation["observation"][0, 1] == 1.0


def test_a_step_that_nobody_waits_for_any_more_is_waited_for_by_the_next_reset() -> None:
    group = FakeGroup()
    one = solver(group)
    one.ask_reset(1)
    one.answer()
    one.ask_step(np.zeros(2))
    one.ask_reset(5)
    assert one.answer().observation[2] == 5.0


def test_that_step_may_take_as_long_as_a_step_and_the_start_begins_after_it() -> None:
    """A step longer than start_timeout counted as a hung start at each evaluation."""
    group = LateGroup()
    one = solver(group, start_s=0.002, step_s=10.0, reset_s=10.0)
    one.ask_reset(1)
    one.answer()
    one.ask_step(np.zeros(2))
    one.ask_reset(5)
    assert one.answer().observation[2] == 5.0
    hung = FakeGroup()
    one = solver(hung, start_s=0.05, step_s=0.01)
    one.ask_step(np.zeros(2))
    hung.is_silent = True
    one.ask_reset(0)
    with pytest.raises(EnvFailure, match=r"^a step that was under way took longer than 0\.06 s$"):
        one.answer()


def test_collecting_forgets_a_step_whose_solver_an_evaluation_has_taken() -> None:
    """It waited for an answer that nobody gives, and killed ranks that were fine."""
    slow, fast = LateGroup(), FakeGroup()
    shared = solver(slow, start_s=0.01, step_s=0.05, reset_s=0.05)
    with manager(shared, solver(fast), wait_num=1) as collecting:
        collecting.step({"action": ACTION})
        assert slow.is_busy
        with manager(shared) as evaluating:
            evaluating.step({"action": ACTION[:1]})
        collecting.reset()
        for _ in range(2):
            collecting.step({"action": ACTION})
    assert slow.given_up == ""


def test_an_evaluation_goes_on_with_another_solver_that_lives() -> None:
    """It kept the dead one, and the run ended though collecting had others."""
    first, second = solver(FakeGroup()), solver(FakeGroup())
    with (
        manager(first, second) as collecting,
        manager(first, another=lambda: second) as evaluating,
    ):
        collecting.reset()
        first.group.is_dead = True
        assert collecting.step({"action": ACTION}).live.tolist() == [False, True]
        evaluating.reset()
        assert evaluating.step({"action": ACTION[:1]}).live.all()
        assert collecting.is_taken
        collecting.reset()
        assert not collecting.is_taken
        assert collecting.step({"action": ACTION}).live.tolist() == [False, True]


def test_lost_ranks_are_replaced_by_spare_ones_and_then_the_environment_is_retired() -> None:
    groups = [FakeGroup(str(number)) for number in range(3)]
    other = solver(FakeGroup())
    dying = solver(*groups[:2])
    with manager(dying, other) as envs:
        groups[0].is_dead = True
        step = envs.step({"action": ACTION})
        assert step.failed is not None
        assert step.failed.tolist() == [True, False]
        assert dying.group is groups[1]
        assert [group.released for group in groups] == [True, False, False]  # it may have ended
        groups[1].is_dead = True
        envs.step({"action": ACTION})
        assert envs.health == {"env_failures": 3, "episodes_dropped": 2, "envs_retired": 1}
        envs.step({"action": ACTION})
        other.group.is_dead = True
        with pytest.raises(
            EnvError, match=r"for good: .*rank 7 has died.* env\.spares starts more"
        ):
            envs.step({"action": ACTION})


def test_the_step_that_ends_an_episode_counts_though_no_environment_is_left() -> None:
    """The failure comes in the next call."""
    with manager(solver(DyingAtReset())) as envs:
        for _ in range(3):
            step = envs.step({"action": ACTION[:1]})
        assert step.ended.all()
        assert step.live.all()
        assert not envs.done, "it is no end in order"
        assert envs.take_episodes().lengths.tolist() == [3]
        with pytest.raises(EnvError, match="all 1 environments"):
            envs.step({})


@pytest.mark.parametrize(
    ("last", "is_loss"),
    [("", True), (f"{LAST_LINE}ValueError: no mesh", False), ("hpcdi: it calls MPI_Abort", True)],
)
def test_a_manager_without_ranks_says_so_but_not_of_an_exception(
    tmp_path: Path, last: str, is_loss: bool
) -> None:
    """Rank 0 tells a death by it from a fault of the environment's, which no other job mends."""
    (tmp_path / "rank00000.log").write_text(f"{last}\n")
    dying = solver(FakeGroup(), folder=tmp_path)
    with manager(dying) as envs:
        dying.group.is_dead, dying.group.dead = True, (0,)
        with pytest.raises(EnvError) as error:
            envs.step({"action": ACTION[:1]})
    assert isinstance(error.value, EnvRanksLost) == is_loss


@pytest.mark.parametrize("death", ["rank 4 has died", ""])
def test_a_coupling_that_raises_is_no_death(death: str) -> None:
    fake = CoupledFake(death)
    facts = EnvFacts(Coupling.observation_space, Coupling.action_space)
    group: Any = CoupledGroup(fake, cast("Any", Coupling()), facts)
    one = solver(group)
    one.ask_reset(0)
    with pytest.raises(EnvFailure) as failure:
        one.answer()
    assert isinstance(failure.value, RanksLost) == bool(death)
    with pytest.raises(EnvFailure, match="no spare ranks") as failure:
        one.begin()
    assert isinstance(failure.value, RanksLost) == bool(death)


@pytest.mark.parametrize("said", [LAST_LINE, "hpcdi: rank 1 of environment 0 (process 12): "])
def test_a_failure_says_why_a_rank_has_ended_itself(tmp_path: Path, said: str) -> None:
    """Also one of a program, whose end another job may not have."""
    (tmp_path / "rank00000.log").write_text("episode 1\n")
    (tmp_path / "rank00001.log").write_text(f"episode 1\n{said}ValueError: no mesh\n")
    (tmp_path / "rank00002.log").write_text(f"{LAST_LINE}hpcdi gives this group up\n")
    dying = solver(FakeGroup(), folder=tmp_path)
    dying.group.is_dead, dying.group.dead = True, (1,)
    dying.ask_reset(0)
    why = "rank 7 has died; a log ends with ValueError: no mesh"
    with pytest.raises(EnvFailure, match=f"^{why}$"):
        dying.answer()
    lost = rf"its ranks are lost \({why}\), and there are no spare"
    with pytest.raises(EnvFailure, match=lost) as failure:
        dying.begin()
    assert isinstance(failure.value, RanksLost) == (said != LAST_LINE)


def test_a_wrong_value_that_ends_a_rank_ends_the_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "rank00001.log").write_text(f"{LAST_LINE}EnvValueError: reward: None\n")
    dying = solver(FakeGroup(), FakeGroup(), folder=tmp_path)
    with manager(dying) as envs:
        dying.group.is_dead, dying.group.dead = True, (1,)
        with pytest.raises(EnvValueError, match=r"step 1 of its episode: reward: None$"):
            envs.step({"action": ACTION[:1]})


class Coupling:
    """What speaks with a program that is not changed: here it says what it was made with."""

    observation_space, action_space = Settled.observation_space, Settled.action_space

    def __init__(self, where: str = "") -> None:
        self.where, self.environment = where, os.environ.get("HPCDI_ENV_FOLDER")

    def reset(self, _seed: int, _comm: Any) -> Any:
        raise ConnectionError("nobody answers")


class CoupledFake(FakeGroup):
    """Of which a rank has died, where `death` says so."""

    def __init__(self, death: str = "") -> None:
        super().__init__()
        self.coupled, self.reason, self._death = SimpleNamespace(deadline=0.0), "", death

    def look_for_deaths(self) -> None:
        self.reason = self._death


class Wrong(Coupling):
    """Another shape than its space, and four values."""

    def reset(self, _seed: int, _comm: Any) -> Any:
        return np.zeros(1 if self.where else 2), {}

    def step(self, _action: Any, _comm: Any) -> Any:
        return np.zeros(1), 0.0, False, {}


@pytest.mark.parametrize(
    ("where", "said"),
    [("", "beginning of an episode: observation: .* the space says"), ("a", "step 1 .*4 values")],
)
@pytest.mark.parametrize("may_die", [True, False])
def test_a_coupling_that_returns_what_its_spaces_do_not_have_ends_the_run(
    where: str, said: str, may_die: bool
) -> None:
    fake = CoupledFake()
    facts = EnvFacts(Coupling.observation_space, Coupling.action_space)
    group: Any = CoupledGroup(fake, cast("Any", Wrong(where)), facts)
    worker = SolverWorker(solver(group, may_die=may_die), facts)
    made = EnvManager(SolverEnvs([worker]), seed=np.random.SeedSequence(0))

    def play() -> None:
        made.launch()
        made.step({"action": np.zeros((1, 1), np.float32)})

    with pytest.raises(EnvValueError, match=said):
        play()
    assert fake.given_up == ""


@pytest.mark.parametrize(
    ("death", "said"),
    [
        ("rank 4 has died", r"^rank 4 has died$"),
        ("", r"^its coupling raises ConnectionError\('nobody answers'\) in .*test_env_mpi.py:\d+$"),
    ],
)
def test_a_coupling_that_fails_says_why_and_a_rank_s_death_comes_first(
    death: str, said: str
) -> None:
    fake = CoupledFake(death)
    facts = EnvFacts(Coupling.observation_space, Coupling.action_space)
    group = CoupledGroup(fake, cast("Any", Coupling()), facts)
    with pytest.raises(SolverLost, match=said):
        group.order(SolverMessage(Kind.RESET), 1.0)
    assert re.match(said, fake.given_up)


@pytest.mark.parametrize(
    ("made", "why_killed"),
    [
        (Coupling(), "it is not needed any more"), (Closed(), ""),
        (Unclosed(), "its coupling failed to close: OSError: the disk is full"),
        (ClosedInAnyWay(), ""),
    ],
)  # fmt: skip
def test_a_coupling_is_closed_as_other_classes_are(made: Any, why_killed: str) -> None:
    fake = CoupledFake()
    CoupledGroup(fake, made, EnvFacts(Coupling.observation_space, Coupling.action_space)).release()
    assert fake.given_up == why_killed


def test_a_coupling_is_told_its_environment_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdi.env.mpi.pool.find_class", lambda *_: Coupling)
    pool = SolverPool()
    pool._cfg = parse_env({**PROGRAM, "coupling": "a:B", "kwargs": {"where": "{folder}/out"}})
    made = cast("Any", pool._controller(tmp_path))
    assert (made.where, made.environment) == (f"{tmp_path}/out", str(tmp_path))
    assert "HPCDI_ENV_FOLDER" not in os.environ


class DyingAtReset(FakeGroup):
    """It dies when its second episode is to begin."""

    def order(self, message: SolverMessage, deadline: float) -> None:
        super().order(message, deadline)
        self.is_dead = self.steps == 0 and message.seed != 0 and self.was_stepped
        self.was_stepped = message.kind is Kind.STEP

    was_stepped = False


def test_an_episode_is_complete_though_ranks_die_when_the_next_one_is_to_begin() -> None:
    with manager(solver(DyingAtReset(), FakeGroup())) as envs:
        for _ in range(4):
            step = envs.step({"action": ACTION[:1]})
            assert step.failed is None
            assert step.live.all()
        assert envs.take_episodes().lengths.tolist() == [3]
        assert envs.health == {"env_failures": 1, "episodes_dropped": 0, "envs_retired": 0}


def test_a_resumed_run_does_not_explain_a_death_by_what_a_rank_said_before(tmp_path: Path) -> None:
    for said in (f"{LAST_LINE}ValueError: no mesh", "episode 2"):
        subprocess.run(
            [sys.executable, "-c", "import sys; from pathlib import Path; "
             "from hpcdi.env.mpi.launch import _move_to; _move_to(Path(sys.argv[1]), 0); "
             "print(sys.argv[2])", str(tmp_path), said], check=True, cwd=ROOT,
        )  # fmt: skip
    log = log_path(tmp_path, 0)
    assert "no mesh" in log.read_text()
    assert last_words([log]) == f"{log}:\nepisode 2"


def test_an_order_may_take_as_long_as_the_solver_waits_for_it() -> None:
    """A coupled program's own waits end by it: the first reset and step include the start."""
    group = FakeGroup()
    one = solver(group, start_s=1000.0, step_s=10.0, reset_s=10.0)
    for ask, allowed_s in (
        (lambda: one.ask_reset(0), 1010.0), (lambda: one.ask_step(np.zeros(2)), 1010.0),
        (lambda: one.ask_step(np.zeros(2)), 10.0),
    ):  # fmt: skip
        before_s = time.monotonic()
        ask()
        one.answer()
        assert allowed_s <= group.deadline - before_s < allowed_s + 5.0


def test_a_solver_that_hangs_is_killed_and_without_ulfm_the_run_ends() -> None:
    group = FakeGroup()
    hanging = solver(group, start_s=0.05, step_s=0.01)
    hanging.ask_reset(0)
    hanging.answer()
    group.is_silent = True
    hanging.ask_step(np.zeros(2))
    with pytest.raises(EnvFailure, match="a step took longer than") as failure:
        hanging.answer()
    assert failure.value.is_gone
    assert group.given_up
    dead = solver(FakeGroup(), may_die=False)
    dead.group.is_dead = True
    dead.ask_reset(0)
    with pytest.raises(CommError, match="rank 7 has died"):
        dead.answer()


# ------------------------------------------------------------------------------------------ preload


def test_wrappers_replace_the_world_in_every_function_that_takes_a_communicator() -> None:
    header = """
    int MPI_Send(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm);
    int PMPI_Send(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm);
    int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count);
    int PMPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count);
    int MPI_Comm_spawn(const char *command, MPI_Comm comm);
    int PMPI_Comm_spawn(const char *command, MPI_Comm comm);
    """
    text = preload.wrappers(header)
    assert "return real(buf, count, type, dest, tag, hpcdi_world(comm));" in text
    assert "EXPORTED int PMPI_Send" in text
    assert "MPI_Get_count" not in text
    assert "MPI_Comm_spawn cannot be used below hpcdi: it starts processes" in text
    with pytest.raises(ValueError, match="declares no function"):
        preload.wrappers("int main(void);")


# ------------------------------------------------------------------------------------------ compile

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="NO C COMPILER: compiled solvers are not tested here"
)


@needs_compiler
def test_a_program_is_made_anew_when_a_header_or_a_library_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    source, header, library = (tmp_path / name for name in ("flow.c", "flow.h", "libmesh.a"))
    source.write_text('#include "flow.h"\nint main(void) { return SIZE; }\n')
    header.write_text("#define SIZE 3\n")
    library.write_text("/* mesh 1 */\n")  # to a linker, as good as any
    flags = [f"-L{tmp_path}", "-lmesh"]
    first = build.compiled([source], flags)
    assert build.compiled([source], flags) == first
    header.write_text("#define SIZE 5\n")
    second = build.compiled([source], flags)
    assert [subprocess.run([path], check=False).returncode for path in (first, second)] == [3, 5]
    library.write_text("/* mesh 2 */\n")
    assert build.compiled([source], flags) not in (first, second)


@needs_compiler
@pytest.mark.parametrize("flags", [[], ["-Iinc"]])
def test_equal_sources_of_two_folders_have_each_the_headers_of_its_own(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied experiment ran the program of the one that it was copied from."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    codes = []
    for size in (3, 5):
        folder = tmp_path / str(size)
        source, header = folder / "flow.c", folder / ("inc" if flags else "") / "flow.h"
        header.parent.mkdir(parents=True)
        source.write_text('#include "flow.h"\nint main(void) { return SIZE; }\n')
        header.write_text(f"#define SIZE {size}\n")
        monkeypatch.chdir(folder)
        codes.append(subprocess.run([build.compiled([source], flags)], check=False).returncode)
    assert codes == [3, 5]


INSIDE = r"""
#define _GNU_SOURCE
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* As snprintf is in a program that has set a locale with a decimal comma. */
static int with_comma(char *text, size_t room, const char *format, ...)
{
    va_list given;
    va_start(given, format);
    int length = vsnprintf(text, room, format, given);
    va_end(given);
    for (char *at = text; uselocale((locale_t)0) == LC_GLOBAL_LOCALE && (at = strchr(at, '.'));) {
        *at = ',';
    }
    return length;
}
#undef snprintf
#define snprintf with_comma
#include "hpcdi.c"

int main(void)
{
    int status = 0;
    self.rank = 1;
    hpcdi_info("of another rank", 0.5);
    self.rank = 0;
    hpcdi_info("two\nlines", 0.5);
    printf("%.*s", (int)self.infos_size, self.infos);
    for (int k = 0; k < 3000; k++) {
        hpcdi_info("a station far away", k);
    }
    printf("%d ", self.has_dropped);
    for (int k = 0; k < 100000; k++) {
        hpcdi_info("a station far away", k);
    }
    printf("%d %d\n", self.has_dropped, self.infos_size < ANSWER_TEXT_BYTES);
    fflush(stdout);
    self.has_joined = 1;
    self.process = getpid();
    atexit(die_at_exit);
    if (fork() == 0) {
        exit(7);
    }
    wait(&status);
    self.has_left = 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
"""


@needs_compiler
def test_infos_of_c_have_points_and_room_and_a_fork_may_exit(tmp_path: Path) -> None:
    (tmp_path / "inside.c").write_text(INSIDE)
    subprocess.run(
        [build.mpicc(), f"-I{build.NATIVE}", tmp_path / "inside.c", "-o", tmp_path / "inside"],
        check=True,
    )
    done = subprocess.run([tmp_path / "inside"], capture_output=True, text=True, check=False)
    assert done.stdout == "two lines=0.5\n0 1 1\n"
    assert done.stderr.count("has no room for a station far away in one observation") == 1
    assert done.returncode == 7


TWICE = """
#include "hpcdi.h"

int main(void)
{
    MPI_Comm comm;
    hpcdi_init(1, 1, &comm);
    hpcdi_init(1, 1, &comm);
    return 0;
}
"""


@needs_compiler
def test_a_program_that_joins_twice_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below hpcdi it would wait for a second word that it is needed."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "twice.c").write_text(TWICE)
    program = build.compiled([tmp_path / "twice.c"])
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert "hpcdi_init is called again" in done.stderr


WAITS = r"""
#include "hpcdi.h"
#include <signal.h>

static void own(int number) { (void)number; }

int main(void)
{
    MPI_Comm comm;
    signal(SIGUSR1, own);
    hpcdi_init(1, 1, &comm);
    return 0;
}
"""


@needs_compiler
def test_a_program_that_is_started_without_hpcdi_ignores_signals_to_all_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the file of `hpcdi plan --mpmd` starts it; here it is a spare, and waits for ever."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "waits.c").write_text(WAITS)
    variables = os.environ | {"HPCDI_SOLVER_RANKS": "0", "HPCDI_SOLVER_ASSIGNER": "0"}
    with subprocess.Popen([build.compiled([tmp_path / "waits.c"])], env=variables) as program:
        ignored, caught, expected = set(), set(), {signal.SIGTERM, signal.SIGUSR2}
        deadline = time.monotonic() + 20.0
        while not expected <= ignored and program.poll() is None and time.monotonic() < deadline:
            status = Path(f"/proc/{program.pid}/status").read_text()
            ignored, caught = (
                {each for each in SENT_TO_ALL if int(mask, 16) >> (each - 1) & 1}
                for mask in re.findall(r"Sig(?:Ign|Cgt):\s*(\w+)", status)
            )
        program.kill()
    assert expected <= ignored
    assert signal.SIGUSR1 in caught
