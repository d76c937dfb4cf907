"""Population based training: who copies whom, and how a decision goes through files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes.serial_runs import COUNT, ROOT
from hpcdi import cli
from hpcdi.commands.sweep import population as population_module
from hpcdi.commands.sweep.here import command_of
from hpcdi.commands.sweep.pbt import Copy, Member, Space, decide, explored
from hpcdi.commands.sweep.population import Generations, History, path_of, population_of
from hpcdi.commands.sweep.runs import PAUSED, Population, Sweep, keep, look, make, read
from hpcdi.config.load import load
from hpcdi.errors import CheckpointError, LaunchError
from hpcdi.roles.learner.checkpointing import with_policy_of
from hpcdi.run import run_folder
from hpcdi.run.request import RunRequest
from hpcdi.run.resume import newest_snapshot
from hpcdi.run.start import start
from hpcdi.store.checkpoints import load_tensors, open_checkpoint
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import read_policy

CONFIG = str(ROOT / "configs" / "cartpole_dqn.yaml")
RATE_KEY = "policy.learn.learning_rate"
RATE = Space("lr", ("1e-3", "1e-5"))
OFFLINE = [
    f"data=[{ROOT}]", "policy.other.commander.max_train_iter=9", "policy.eval.every='9 iterations'"
]  # fmt: skip

# --------------------------------------------------------------------------------------- decisions


def members(*scores: float | None, over: tuple[int, ...] = ()) -> list[Member]:
    return [Member(i, score, {}, i in over) for i, score in enumerate(scores)]


def pairs(copies: list[Copy]) -> list[tuple[int, int]]:
    return [(copy.index, copy.donor) for copy in copies]


@pytest.mark.parametrize(
    ("scores", "share", "over", "expected"),
    [
        ((5.0, 1.0, 9.0, 7.0, 3.0), 0.2, (), [(1, 2)]),
        ((5.0, 1.0, 9.0), 0.2, (), [(1, 2)]),  # one at least
        ((4.0, 4.0, 4.0), 0.2, (), []),  # nobody is better
        ((5.0, None, 9.0, math.nan, 3.0), 0.2, (), [(1, 2), (3, 2), (4, 2)]),  # all that failed
        ((5.0, 1.0, 9.0), 0.2, (1,), []),  # it is done
        ((5.0, 1.0, 9.0), 0.2, (2,), [(1, 2)]),  # what is done can be copied
        ((None, None), 0.5, (), []),  # there is nothing to copy
    ],
)
def test_who_copies_whom(
    scores: tuple[float | None, ...],
    share: float,
    over: tuple[int, ...],
    expected: list[tuple[int, int]],
) -> None:
    copies = decide(members(*scores, over=over), (), share, np.random.default_rng(0))
    assert pairs(copies) == expected


def test_donors_are_drawn_from_the_best() -> None:
    population = members(1.0, 2.0, 3.0, 8.0, 9.0, 7.0)
    drawn = [pairs(decide(population, (), 0.34, np.random.default_rng(i))) for i in range(50)]
    assert {index for copies in drawn for index, _ in copies} == {0, 1}
    assert {donor for copies in drawn for _, donor in copies} == {3, 4}
    assert drawn == [
        pairs(decide(population, (), 0.34, np.random.default_rng(i))) for i in range(50)
    ]


def test_a_copy_has_the_donors_settings_and_not_its_own() -> None:
    population = [Member(0, 1.0, {"lr": "1e-5"}), Member(1, 9.0, {"lr": "4e-4"})]
    found = {
        decide(population, (RATE,), 0.5, np.random.default_rng(i))[0].settings["lr"]
        for i in range(100)
    }
    assert found == {"0.00032", "0.00048", "1e-3", "1e-5"}


@pytest.mark.parametrize(
    ("value", "listed", "expected"),
    [
        ("1e-3", ("1e-3", "1e-5"), {"1e-3", "1e-5", "0.001", "0.0008"}),  # bounded
        ("64", ("32", "64", "128"), {"32", "64", "128", "51", "77"}),
        ("1", ("1", "8"), {"1", "8", "2"}),  # whole, and it moves
        ("0", ("-2", "3"), {"-2", "3", "-1", "1"}),
        ("0", ("0", "8"), {"0", "8", "1"}),
        ("1.6e1", ("8", "16"), {"8", "16", "12"}),  # as a donor's may be written
        ("true", ("true", "false"), {"true", "false"}),
        ("[64]", ("[64]", "[8,8]"), {"[64]", "[8,8]"}),
        ("1.5", ("1.5", "auto"), {"1.5", "auto"}),
        ("-1.0", ("-2.0", "-0.5"), {"-2.0", "-0.5", "-0.8", "-1.2"}),
    ],
)
def test_what_is_explored(value: str, listed: tuple[str, ...], expected: set[str]) -> None:
    space = Space("key", listed)
    assert {explored(value, space, np.random.default_rng(i)) for i in range(200)} == expected


# ------------------------------------------------------------------------------------------- files

SMALL = (
    *COUNT, "policy.other.commander.max_env_step=192", "policy.learn.learning_rate=1e-3,1e-4",
    "seed=0,1", "policy.learn.replay_ratio=16",
)  # fmt: skip


def make_population(root: Path, *settings: str, every: int = 64, share: float = 0.25) -> Sweep:
    made, experiments = make(CONFIG, [*SMALL, *settings], None, 0, serial=True)
    population = population_of(made, experiments, every, share)
    made = replace(made, root=root, population=population)
    keep(made, experiments)
    return read(root)


def run(root: Path, index: int) -> None:
    """The run to its mark, in this process."""
    command = command_of(read(root), index)
    config, where, folder = command[command.index("serial") + 1 :]
    resumes = where == "--resume"
    request = RunRequest(
        config, run_dir=None if resumes else folder, resume=folder if resumes else None
    )
    assert start(request, over_ranks=False).exit_code == 0


def weights(root: Path, index: int) -> list[float]:
    snapshot = newest_snapshot(RunLayout(root / f"{index:03d}"))
    model = read_policy(snapshot.file("policy.safetensors")).state_dict()
    return torch.cat([tensor.reshape(-1) for _, tensor in sorted(model.items())]).tolist()


def test_what_a_population_is(tmp_path: Path) -> None:
    made = make_population(tmp_path / "s")
    spaces = (Space("policy.learn.learning_rate", ("1e-3", "1e-4")),)
    assert made.population == Population(64, 192, 0.25, 0, spaces)
    assert [made.population.mark(generation) for generation in range(4)] == [64, 128, 192, 192]


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("policy.learn.batch_size=1.3e1,21", ("13", "21")),  # an integer, however it is written
        ("policy.learn.replay_ratio=16,3e1", ("16.0", "3e1")),
        ("env.stop_value=100,1e3", ("100.0", "1e3")),
    ],
)
def test_the_settings_type_says_whether_it_stays_whole(
    tmp_path: Path, setting: str, values: tuple[str, ...]
) -> None:
    population = make_population(tmp_path / "s", setting).population
    assert population is not None
    space = next(s for s in population.spaces if s.key == setting.partition("=")[0])
    assert space.values == values


def test_a_setting_of_either_type_is_no_whole_number() -> None:
    texts = [population_module._as_typed(text, {int, float}) for text in ("1", "2.5", "auto")]
    assert texts == ["1.0", "2.5", "auto"]


@pytest.mark.parametrize(
    ("env_steps", "mark", "best", "pauses"),
    [
        (63, 64, 0.0, False),  # it was stopped before
        (100, 64, 0.0, True),
        (100, 64, 9.0, False),  # solved
        (191, 128, 0.0, True),
        (200, 128, 0.0, False),  # one rollout took it over the end
        (192, 192, 0.0, False),
    ],
)
def test_which_run_pauses(env_steps: int, mark: int, best: float, pauses: bool) -> None:
    progress = {
        "env_steps": env_steps,
        "limits": {"env_steps": mark, "stop_value": 5.0},
        "best_evaluation": {"mean": best},
    }
    assert Population(64, 192, 0.25, 0, ()).pauses(progress) is pauses


def trained(sweep: Sweep, index: int, env_steps: int, mark: int) -> None:
    """A run that has trained to its mark, and somewhat further."""
    root = sweep.run_dir(index)
    layout = RunLayout(root)
    if not layout.run_file.exists():
        run_folder.claim(root, {"exp_name": "x"}, [{"role": "serial"}], mpi="none")
    run_folder.end(layout, "done", "so it is", 0, {"env_steps": env_steps, "train_iter": 7})
    evaluation = {
        "mean": float(index), "std": 0.5, "lowest": 0.0, "highest": 20.0, "episodes": 5,
        "policy_version": 3, "env_steps": env_steps,
    }  # fmt: skip
    progress = {
        "started_at": 10.0, "written_at": 12.5, "env_steps": env_steps, "env_steps_per_s": 1.0,
        "train_iter": 1, "train_iters_per_s": 1.0, "evaluations": 1, "evaluation": evaluation,
        "best_evaluation": evaluation, "limits": {"env_steps": mark, "stop_value": 1e9},
    }  # fmt: skip
    layout.status_file.write_text(json.dumps(progress))


def test_every_run_trains_between_two_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout is longer than the interval: 122 steps against 32, and the end is at 192."""
    made = make_population(tmp_path / "s", every=32)
    monkeypatch.setattr(population_module, "_copy_policy", lambda _sweep, _copy: True)
    assert made.population is not None
    rounds = Generations(made.root, made.population).rounds()
    for rollout, mark in ((1, 32), (2, 128)):
        assert next(rounds) == [0, 1, 2, 3]
        assert load(made.experiment(3)).config.policy.other.commander.max_env_step == mark
        for index in range(4):
            trained(made, index, 122 * rollout, mark)
    assert list(rounds) == []
    (decision,) = History.read(made).decisions
    assert (decision.env_steps, decision.next_mark) == (32, 128)
    sweep, _ = look(read(made.root))
    assert [element.state for element in sweep.elements] == ["done"] * 4
    assert cli.main(["sweep", "status", str(made.root)]) == 0


def test_settings_that_do_not_go_together_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_population(tmp_path / "s")
    monkeypatch.setattr(population_module, "_copy_policy", lambda _sweep, _copy: True)
    monkeypatch.setattr(
        population_module,
        "decide",
        lambda *_: [Copy(0, 3, {RATE_KEY: "-1"}), Copy(1, 3, {RATE_KEY: "2e-4"})],
    )
    assert made.population is not None
    rounds = Generations(made.root, made.population).rounds()
    next(rounds)
    for index in range(4):
        trained(made, index, 64, 64)
    assert next(rounds) == [0, 1, 2, 3]
    rates = [element.settings[RATE_KEY] for element in read(made.root).elements]
    assert rates == ["1e-4", "2e-4", "1e-4", "1e-4"]  # the donor's, and what was explored


@pytest.mark.parametrize(
    ("settings", "every", "said"),
    [
        (["policy.nstep=1,3"], 64, "differ in policy.nstep"),
        (["policy.learn.optimizer.type=Adam,SGD"], 64, "differ in policy.learn.optimizer.type"),
        (["policy.other.commander.max_env_step=inf"], 64, "needs one policy.other.commander"),
        ([], 192, "larger than 192"),
        (["policy.other.commander.max_env_step=100,200"], 64, "it is 100, 200"),
        (OFFLINE, 64, "a run that learns from its data alone makes none"),
    ],
)
def test_what_cannot_be_a_population(
    tmp_path: Path, settings: list[str], every: int, said: str
) -> None:
    with pytest.raises(LaunchError, match=said):
        make_population(tmp_path / "s", *settings, every=every)
    assert list(tmp_path.iterdir()) == []


def test_a_team_differs_in_its_policies_settings_as_a_policy_does(tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(
        'env: {type: team, env_id: "hpcdi.env.games:TwoStep"}\n'
        "policy: {type: team, policies: {all: {type: qmix}}, "
        "other: {commander: {max_env_step: 400}}}\n"
    )
    for key in ("policy.policies.all.nstep", "policy.policies.all.learn.target_update_freq"):
        made, experiments = make(str(file), [f"{key}=1,3"], None, 0, serial=True)
        if "nstep" in key:
            with pytest.raises(LaunchError, match=f"differ in {key}"):
                population_of(made, experiments, 64, 0.25)
        else:
            assert population_of(made, experiments, 64, 0.25).spaces == (Space(key, ("1", "3")),)


@pytest.mark.slow
def test_a_decision_survives_a_kill_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of four runs copy; the disk fails between the first copy and the second."""
    root = tmp_path / "s"
    made = make_population(root, share=0.5)
    scores = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}  # by the environment all would be equal
    monkeypatch.setattr(
        population_module, "score_of", lambda _state, status: scores[int(status.layout.root.name)]
    )
    assert made.population is not None
    rounds = Generations(root, made.population).rounds()
    assert next(rounds) == [0, 1, 2, 3]
    for index in range(4):
        run(root, index)
    assert [element.state for element in look(read(root))[0].elements] == [PAUSED] * 4
    before = [weights(root, index) for index in range(4)]
    real, copied = population_module._copy_policy, []

    def fails_at_the_second(sweep: Sweep, copy: Copy) -> bool:
        copied.append(copy.index)
        if len(copied) == 2:
            raise OSError(28, "No space left on device")
        return real(sweep, copy)

    monkeypatch.setattr(population_module, "_copy_policy", fails_at_the_second)
    with pytest.raises(LaunchError, match="No space left"):
        next(rounds)
    (decision,) = History.read(read(root)).decisions
    assert [copy.index for copy in decision.copies] == [0, 1]
    assert History.read(read(root)).generation == 0

    monkeypatch.setattr(population_module, "_copy_policy", real)
    own = newest_snapshot(RunLayout(root / "001"))
    rounds = Generations(root, made.population).rounds()
    assert next(rounds) == [0, 1, 2, 3]
    assert History.read(read(root)) == History((decision,), 1)
    assert "at 64 environment steps run 1 (2.00) copies run" in capsys.readouterr().out
    for copy in decision.copies:
        assert weights(root, copy.index) == before[copy.donor] != before[copy.index]
        overrides = read(root).elements[copy.index].overrides
        lr = copy.settings["policy.learn.learning_rate"]
        assert overrides == (f"policy.learn.learning_rate={lr}", f"seed={copy.index}")
        config = load(read(root).experiment(copy.index)).config
        assert config.policy.learn.learning_rate == float(lr)
        assert config.policy.other.commander.max_env_step == 128
    assert weights(root, 2) == before[2]
    new = newest_snapshot(RunLayout(root / "001"))
    assert new.facts["env_steps"] == own.facts["env_steps"]  # its own counters and data
    assert new.file("coordinator.h5").read_bytes() == own.file("coordinator.h5").read_bytes()

    run(root, 0)
    assert f"policy of {decision.copies[0].donor:03d}/snapshot_" in capsys.readouterr().out
    facts = json.loads((root / "000" / "run.json").read_text())
    assert facts["figures"]["env_steps"] >= 128
    assert cli.main(["sweep", "status", str(root)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[1].split()[-1] == "copied"
    assert table[2].endswith(f"  {decision.copies[0].donor}@64")
    assert table[-2] == "  generation   2 of 3, to 128 environment steps"
    assert cli.main(["sweep", "resume", str(root), "--local", "--index", "1"]) == 2


def test_a_population_ends_where_nothing_is_left_to_compare(tmp_path: Path) -> None:
    made = make_population(tmp_path / "s")
    assert made.population is not None
    rounds = Generations(made.root, made.population).rounds()
    assert next(rounds) == [0, 1, 2, 3]
    assert list(rounds) == []  # none of them has begun: they have all failed
    path_of(made).write_text('{"decisions": [{}], "generation": 0}')
    with pytest.raises(LaunchError, match="damaged"):
        History.read(made)


def test_a_policy_is_taken_with_its_optimizer(tmp_path: Path) -> None:
    root = tmp_path / "s"
    made = make_population(root)
    assert made.population is not None
    next(Generations(root, made.population).rounds())
    run(root, 0)
    run(root, 1)
    first, second = (RunLayout(root / name) for name in ("000", "001"))
    own, donor = newest_snapshot(first), newest_snapshot(second)
    for name, write in with_policy_of(own, donor).items():
        write(tmp_path / name)
    taken, kept, theirs = (
        load_tensors(path)
        for path in (tmp_path / "learner.pt", own.file("learner.pt"), donor.file("learner.pt"))
    )
    assert taken["train_iter"] == kept["train_iter"]
    assert torch.equal(taken["random"]["torch"], kept["random"]["torch"])
    assert str(taken["policy"]["optimizer"]) == str(theirs["policy"]["optimizer"])
    assert str(taken["policy"]["optimizer"]) != str(kept["policy"]["optimizer"])
    beginning = open_checkpoint(first.snapshots_dir / "snapshot_000001")
    assert with_policy_of(beginning, donor).keys() == {"learner.pt", "policy.safetensors"}
    with pytest.raises(CheckpointError, match="before its learners began"):
        with_policy_of(own, beginning)
