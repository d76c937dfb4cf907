"""Callbacks of the user in a run of one process; over ranks the same roles call them."""

from __future__ import annotations

import contextlib
import errno
import math
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hpcdi
from fakes.callbacks import (
    Chooses,
    Climbs,
    Counts,
    Elsewhere,
    Halves,
    Misspelt,
    Raises,
    Rolls,
    Unmade,
)
from fakes.interrupting_env import SMALL, Walk
from fakes.scheduler import Curves
from hpcdi.config.compiled import compile_config
from hpcdi.errors import CallbackError, ConfigError, LaunchError
from hpcdi.policy.create import create_policy
from hpcdi.roles.callbacks import Callbacks, Context, EarlyStop, Video
from hpcdi.roles.collector.user_callbacks import UserCallbacks
from hpcdi.roles.coordinator.curriculum import Curriculum
from hpcdi.roles.coordinator.user_callbacks import UserCallbacks as CallbacksOnRank0
from hpcdi.roles.coordinator.view import RunRecord
from hpcdi.roles.coordinator.workers import Evaluated
from hpcdi.roles.learner.user_callbacks import UserCallbacks as CallbacksOnLearner
from hpcdi.store.atomic import read_json, write_json
from hpcdi.store.checkpoints import load_tensors, tensors_writer
from hpcdi.store.layout import RunLayout
from hpcdi.store.state_file import load_state, save_state
from hpcdi.utils.curves import read_curves
from hpcdi.utils.event_file import _files_of
from hpcdi.utils.progress import Evaluation

pytestmark = pytest.mark.usefixtures("same_process_state")


def train(*callbacks: Any, settings: Any = None, **others: Any) -> hpcdi.Run:
    env = {} if "resume" in others else {"env": Walk, "policy": "ppo"}
    given = {**(SMALL if env else {}), **(settings or {})}
    return hpcdi.train(**env, settings=given, callbacks=callbacks, **others)


def last() -> Counts:
    """The one that was called last; others are made to be checked."""
    return next(one for one in reversed(Counts.seen) if one.calls)


def config_of(*callbacks: str) -> Any:
    types = [{"type": f"fakes.callbacks:{name}"} for name in callbacks]
    return compile_config({"env": {"env_id": "CartPole-v1"}, "callbacks": types}).config


def test_they_are_called_stop_the_run_and_are_resumed(tmp_path: Path) -> None:
    Counts.seen.clear()
    halves = {"type": Halves, "stop": 5}
    run = train(Counts, halves, {"type": "histograms", "every": 2}, run_dir=tmp_path / "run")
    assert (run.state, run.reason) == ("done", "stopped by Halves: 5 iterations")
    counts = last()
    assert counts.calls[:2] == ["start 0", "snapshot"]
    assert counts.calls[-2:] == ["snapshot", "end"]
    assert counts.evaluations == len(run.returns) > 0
    assert counts.updates > 0
    assert run.curve("detail/callbacks/episodes")[1][-1] == counts.episodes > 5
    folder = RunLayout(run.folder).tensorboard_dir
    kinds = {
        value.tag: value.WhichOneof("value")
        for _, events in _files_of(folder)
        for event in events
        for value in event.summary.value
    }
    assert kinds["callbacks_step/returns"] == "histo"
    assert kinds["callbacks_step/picture"] == "image"
    drawn = {tag.split("/")[1] for tag in kinds if tag.startswith("callbacks_iter/")}
    assert drawn == {"weights", "gradients"}

    class Watches(hpcdi.Callback):
        """Is written into the run folder."""

    paths = run.config["system"]["import_path"]
    assert paths
    again = train(Watches, {"type": Halves, "stop": 8}, resume=run)
    assert again.reason == "stopped by Halves: 8 iterations"
    names = [entry["type"].rpartition(":")[2] for entry in run.config["callbacks"]]
    assert names == ["Watches", "Halves", "Counts", "histograms", "early_stop"]
    assert {str(run.folder / "code"), *paths} <= {*run.config["system"]["import_path"]}
    assert last().calls[0] == f"start {run.figures['env_steps'] - 3 * 32}"
    assert last().episodes > counts.episodes


def test_what_one_has_set_gives_way_to_what_is_configured_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = config_of()
    model = {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [8]}

    def learning(rate: float, **learn: Any) -> Callbacks:
        cfg = {"type": "dqn", "model": model, "learn": {"learning_rate": rate, **learn}}
        context = Context(config, 1, "learner", None)
        context.policy = create_policy(cfg, ["learn"]).learn_mode
        return Callbacks(context, lambda _name, _value: None)

    first = learning(0.25)
    first.context.set("policy.learn.learning_rate", 0.125)
    state = first.state_dict()
    schedule = [{"key": "learning_rate", "env_steps": 900}]
    for rate, learn, kept in ((0.25, {}, True), (0.5, {}, False), (0.25, schedule, False)):
        again = learning(rate, **({"schedule": learn} if learn else {}))
        again.load_state_dict(state)
        assert again.state_dict()["set"] == (state["set"] if kept else {})
    assert caplog.messages[0] == (
        "policy.learn.learning_rate, which a callback had set to 0.125, is 0.5 as configured now"
    )


def test_collectors_call_theirs_and_keep_their_state(tmp_path: Path) -> None:
    run = train({"type": Rolls, "stop": 8}, run_dir=tmp_path / "run")
    assert (run.state, run.reason) == ("done", "stopped by Rolls: 8 episodes")
    (file,) = (run.folder / "callbacks").glob("*.json")
    name = file.stem.replace("rank0000", "own_episodes_rank")
    assert run.curve(f"detail/callbacks/{name}")[1][:8].tolist() == [*range(1, 9)]
    (kept,) = read_json(file)["states"]
    assert kept["state"]["calls"] == ["start with 0", "end"]
    steps = read_json(file)["env_steps"]
    assert steps >= kept["state"]["episodes"]
    train({"type": Rolls, "stop": 40}, resume=run, settings={"callbacks": []})  # no early stop
    assert [entry["stop"] for entry in run.config["callbacks"]] == [40]
    (kept_then,) = read_json(file)["states"]
    before = kept["state"]["episodes"]
    assert kept_then["state"]["calls"] == ["start with 0", "end", f"start with {before}", "end"]
    assert kept_then["state"]["episodes"] >= 40
    assert kept_then["state"]["begun_at"] == [0, steps]


@pytest.fixture
def on_collector(tmp_path: Path) -> Iterator[UserCallbacks]:
    """A collector's callback, `Rolls`; of rank 2."""
    link, config = SimpleNamespace(rank=2), config_of("Rolls")
    place: Any = SimpleNamespace(config=config, layout=RunLayout(tmp_path), link=link, restarts=0)
    with UserCallbacks(place, lambda _message: None) as made:
        made.begin()
        yield made


def test_a_learner_s_callbacks_see_all_numbers_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, float] = {}
    monkeypatch.setattr(Raises, "on_update", lambda _self, _context, scalars: seen.update(scalars))
    link, config = SimpleNamespace(rank=1), config_of("Raises")
    place: Any = SimpleNamespace(config=config, layout=RunLayout(tmp_path), link=link)
    training: Any = SimpleNamespace(train_iter=1, env_steps=5, policy=None, monitor=None)
    log = {
        "a": np.float32(0.5), "b": np.int64(3), "c": np.array(2.0), "d": 1,
        "text": "x", "priority": np.ones(3),
    }  # fmt: skip
    with contextlib.closing(CallbacksOnLearner(place, lambda _message: None)) as made:
        made.on_update(training, log)
    assert seen == {"a": 0.5, "b": 3.0, "c": 2.0, "d": 1.0}


def test_a_rank_s_own_curves_are_over_iterations_on_rank_0_too(tmp_path: Path) -> None:
    context = Context(config_of(), 0, "coordinator", tmp_path)
    context.env_steps = context.step = 500
    context.train_iter = 7
    with Callbacks(context, lambda _name, _value: None):
        context.add_scalar("x", 1.0)
    (curve,) = read_curves([RunLayout(tmp_path).callbacks_curves(0)]).values()
    assert [point.step for point in curve] == [7]


def test_tensors_that_numpy_has_no_type_for_are_logged(tmp_path: Path) -> None:
    context = Context(config_of(), 1, "learner", tmp_path)
    curves: list[tuple[str, float]] = []
    with Callbacks(context, lambda name, value: curves.append((name, value))):
        context.log("norm", torch.tensor(0.5, dtype=torch.bfloat16))
        context.log("weights", torch.ones(3, dtype=torch.bfloat16))
    assert curves == [("callbacks/norm", 0.5)]
    written = _files_of(RunLayout(tmp_path).tensorboard_dir)
    (histogram,) = (v.histo for _, events in written for e in events for v in e.summary.value)
    assert (histogram.num, histogram.sum) == (3, 3)


@pytest.mark.parametrize(("over_iterations", "at"), [(False, 500), (True, 7)])
def test_on_rank_0_points_are_where_the_run_s_curves_are(
    tmp_path: Path, *, over_iterations: bool, at: int
) -> None:
    groups = SimpleNamespace(env_steps=500, main=SimpleNamespace(train_iter=7))
    commander = SimpleNamespace(curriculum=Curriculum([]))
    run: Any = SimpleNamespace(groups=groups, commander=commander)
    curves = Curves()
    record = RunRecord(curves, over_iterations=over_iterations)
    evaluation = Evaluation(1.0, 0.0, 1.0, 1.0, 1, 1, 1)
    with CallbacksOnRank0(config_of("Counts"), RunLayout(tmp_path), record, run) as made:
        made._call("on_episode", {"length": 1.0, "return": 1.0})
        made.observe(Evaluated(evaluation))
    assert curves.points == [("callbacks/episodes", 1.0, at)]
    steps = {
        event.step
        for _, events in _files_of(RunLayout(tmp_path).tensorboard_dir)
        for event in events
        if event.summary.value
    }
    assert steps == {at}


def test_a_full_disk_ends_no_collector(
    on_collector: UserCallbacks, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("hpcdi.roles.collector.user_callbacks.write_json", full)
    on_collector.end()
    assert "no state of callbacks could be written: " in caplog.text


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({1, 2}, r"state\['calls'\] is a set"),
        ({3: 1j}, r"state\['calls'\]\[3\] is a complex"),
        ({(1, b"x"): 0}, r"state\['calls'\], key \(1, b'x'\),\[1\] is a bytes"),
        ([1, {"a": np.zeros(2)}], r"state\['calls'\]\[1\]\['a'\] is a ndarray"),
    ],
)
def test_a_collector_s_state_is_plain_data(
    on_collector: UserCallbacks, odd: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rolls, "state_dict", lambda _: {"episodes": np.int64(3), "calls": odd})
    whole = rf"Rolls.state_dict on rank 2 \(collector\): {said}; a state has .* tensors, too$"
    with pytest.raises(CallbackError, match=whole):
        on_collector.end()


@pytest.mark.parametrize("role", ["coordinator", "learner", "collector"])
def test_a_state_comes_back_equal_whatever_file_has_kept_it(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: dict[str, Any] = {
        "best": -math.inf, "mean": np.mean([1.0, 2.0]), "count": np.int64(3), "is": np.bool_(True),
        "rate": torch.tensor(0.5), "by_level": {1: 2.0, (2, "b"): None}, "is a": "tuple",
        "pair": (1, [math.inf]), "empty": {}, "a.b/c": [{}], "text": "x", "big": 1 << 70,
    }  # fmt: skip
    array, weights = np.arange(3.0), torch.ones(2, requires_grad=True) / 3
    if role == "learner":
        state |= {"weights": {"a.b": weights}, "arrays": (array,)}
    loaded: list[Any] = []
    monkeypatch.setattr(Raises, "runs_on", role)
    monkeypatch.setattr(Raises, "on_update", hpcdi.Callback.on_update)
    monkeypatch.setattr(Raises, "state_dict", lambda _: state)
    monkeypatch.setattr(Raises, "load_state_dict", lambda _, given: loaded.append(given))
    ours = Callbacks(Context(config_of("Raises"), 1, role, None), lambda _name, _value: None)
    file = tmp_path / "state"
    if role == "coordinator":
        save_state(file, "test", 1, {"callbacks": ours.state_dict()})
        ours.load_state_dict(load_state(file, "test", 1)["callbacks"])
    elif role == "learner":
        tensors_writer(ours.state_dict())(file)
        ours.load_state_dict(load_tensors(file))
    else:
        write_json(file, ours.state_dict())
        ours.load_state_dict(read_json(file))
    (again,) = loaded
    if role == "learner":
        assert torch.equal(again.pop("weights")["a.b"], state.pop("weights")["a.b"])
        assert np.array_equal(*again.pop("arrays"), *state.pop("arrays"))
    assert again == state
    kinds = [type(again[name]) for name in ("mean", "count", "is", "rate", "pair")]
    assert kinds == [float, int, bool, float, tuple]


def test_a_curriculum_is_chosen(tmp_path: Path) -> None:
    schedule = {"env.schedule": {"level": {"values": [1, 2], "when": "callback"}}}
    run = train(Climbs, settings=schedule, run_dir=tmp_path / "run")
    assert run.reason == "stopped by Climbs: level 2"
    with pytest.raises(CallbackError, match=r"set_env\(level=7\): env.schedule.level must name it"):
        train({"type": Climbs, "level": 7}, settings=schedule, run_dir=tmp_path / "other")


def test_what_one_raises_ends_the_run(tmp_path: Path) -> None:
    said = r"callback Raises.on_update on rank 1 \(learner\): ValueError\('too hot'\) \(callbacks"
    with pytest.raises(CallbackError, match=said):
        train(Raises, run_dir=tmp_path / "run")
    assert hpcdi.Run(tmp_path / "run").state == "failed"


@pytest.mark.parametrize(
    ("callback", "error", "said"),
    [
        ("early", ConfigError, "callbacks.0.type: is 'early': neither one of early_stop, histogr"),
        ("fakes.callbacks:Count", ConfigError, "did you mean 'fakes.callbacks:Counts'"),
        ({"type": "early_stop", "n": 3}, ConfigError, "callbacks.0: .*argument 'n'"),
        ({"type": Walk}, ConfigError, "callbacks.0: .* derive it from hpcdi.Callback"),
        ("fakes.callbacks:made", ConfigError, "callbacks.0: .*Counts.*: name a class, and derive"),
        (Chooses, ConfigError, "callbacks.0: .*Chooses.*; the class's runs_on is coordinator"),
        ({"type": "video", "every": 0}, ConfigError, "callbacks.0: every must be 1 or more"),
        (
            {"type": Misspelt},
            ConfigError,
            "Misspelt.on_epsiode is never called; did you mean on_ep",
        ),
        (
            Elsewhere,
            ConfigError,
            "Elsewhere.on_update is not called on a collector: runs_on = 'coor",
        ),
        (Unmade, ConfigError, r"callbacks.0: Unmade raises KeyError\('gone'\) in .*callbacks.py:"),
        (Counts(), LaunchError, "each rank makes its own; give the class"),
    ],
)
def test_wrong_ones_are_refused(callback: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        train(callback)


def test_a_film_that_is_not_done_in_time_is_given_up_once(caplog: pytest.LogCaptureFixture) -> None:
    context, video = Context(None, 0, "coordinator", None), Video(wait_s=0.1)  # type: ignore[arg-type]
    video.on_evaluation(context, Evaluation(1.0, 0.0, 1.0, 1.0, 1, 1, 1))
    video._filming = subprocess.Popen(["sleep", "60"], stderr=subprocess.PIPE, text=True)
    video.on_end(context)
    assert caplog.messages == ["the film is not done after 0.1 s, and is given up"]


def test_early_stop_waits_for_a_better_evaluation() -> None:
    context, stop = Context(None, 0, "coordinator", None), EarlyStop(evaluations=2)  # type: ignore[arg-type]
    for mean in (1.0, 0.5, 2.0, 2.0):
        stop.on_evaluation(context, Evaluation(mean, 0.0, mean, mean, 1, 1, 1))
    assert context.asks == []
    again = EarlyStop(evaluations=2)
    again.load_state_dict(stop.state_dict())
    again.on_evaluation(context, Evaluation(1.0, 0.0, 1.0, 1.0, 1, 1, 1))
    assert context.asks == ["stopped by : no better evaluation than 2 in 2"]
    assert again.state_dict()["in_vain"] == 0  # a run that is resumed has as many again


@pytest.mark.parametrize("is_other", [False, True])
def test_early_stop_forgets_returns_of_other_evaluations(*, is_other: bool) -> None:
    """A run that went on in a harder environment ended before it had learnt anything there."""

    context, stop = started(None)
    assert evaluated(context, stop, 5.0, 4.0) == []
    state = dict(stop.state_dict())
    changed = {"kwargs": {"hard": True}} if is_other else {"seeds": [1]}
    assert bool(evaluated(*started(state, **changed), 1.0, 2.0)) is not is_other


def test_early_stop_waits_for_a_rise_again_in_another_environment() -> None:
    context, stop = started(None, after_rise=True)
    assert evaluated(context, stop, 1.0, 1.0, 5.0) == []
    again = started(stop.state_dict(), after_rise=True, kwargs={"hard": True})
    assert evaluated(*again, 0.0, 0.0, 0.0, 0.0) == []


def started(
    state: Mapping[str, Any] | None, *, after_rise: bool = False, **env: Any
) -> tuple[Context, EarlyStop]:
    """An early stop after two evaluations in vain, of a run that begins or, by a state, goes on."""
    config = compile_config({"env": {"env_id": "x", **env}}).config
    context, stop = Context(config, 0, "coordinator", None), EarlyStop(2, after_rise=after_rise)
    if state is not None:
        stop.load_state_dict(state)
    stop.on_start(context)
    return context, stop


def evaluated(context: Context, stop: EarlyStop, *means: float) -> list[str]:
    """What it asks for after evaluations of these means."""
    for mean in means:
        stop.on_evaluation(context, Evaluation(mean, 0.0, mean, mean, 1, 1, 1))
    return context.asks


@pytest.mark.parametrize(
    ("untrained", "risen", "ends"),
    [
        ([], -150.0, False),  # means of 25 episodes differ by 2 x 20 x sqrt(2 / 25) = 11 by chance
        ([], -90.0, True),
        ([-148.0, -152.0], -146.0, False),
        ([-170.0, -180.0], -152.0, True),  # the first evaluation has risen already
    ],
)
def test_early_stop_may_wait_for_a_rise(
    untrained: list[float], risen: float, *, ends: bool
) -> None:
    context, stop = Context(None, 0, "coordinator", None), EarlyStop(3, after_rise=True)  # type: ignore[arg-type]

    def evaluated(by: EarlyStop, *means: float) -> None:
        for mean in means:
            by.on_evaluation(context, Evaluation(mean, 20.0, mean, mean, 25, 1, 1))

    for total in untrained:
        stop.on_episode(context, {"return": total, "length": 9.0})
    evaluated(stop, -152.0, -145.0, -160.0, -160.0, -160.0, -160.0, risen)
    again = EarlyStop(3, after_rise=True)
    again.load_state_dict(stop.state_dict())
    evaluated(again, *[-160.0] * 3)
    assert bool(context.asks) is ends


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        (
            {"settings": {"policy.eval.every": "20000 env_steps"}},
            "after 1M env steps, or once 12 evaluations in a row are no better than the best one",
        ),
        ({"max_env_step": 64}, "after 64 env steps\n"),
        ({"stop_value": -5}, "at a mean return of -5, or after 1M env steps\n"),
        ({"settings": {"policy": {"other": {"commander": {"max_train_iter": 1}}}}},
         "after 1M env steps, or after 1 train iterations\n"),
        ({"callbacks": [{"type": "early_stop", "evaluations": 1}, {"type": Halves, "stop": 1}]},
         "after 1M env steps, or once 1 evaluations in a row"),
        ({"stop_value": math.inf, "max_env_step": math.inf}, "when you stop it (Ctrl-C)"),
    ],
)  # fmt: skip
def test_a_run_says_when_it_ends(
    given: dict[str, Any],
    ends: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Begun(Exception): ...

    def begin(*_: Any) -> None:
        raise Begun

    monkeypatch.setattr("hpcdi.run.serial._train", begin)
    others = {"callbacks": [{"type": Halves, "stop": 1}], **given}
    settings = {**SMALL, **others.pop("settings", {})}
    with pytest.raises(Begun):
        hpcdi.train(Walk, "ppo", settings=settings, run_dir=tmp_path / "run", **others)
    assert f"  ends         {ends}" in capsys.readouterr().out
