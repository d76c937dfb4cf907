"""Hooks of a learner: their order, how configurations name them, and the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from hpcdi.errors import CheckpointError, ConfigError
from hpcdi.roles.learner.callbacks import SaveCheckpoint
from hpcdi.roles.learner.training import TrainingCallback
from hpcdi.utils.event_file import TensorBoardWriter
from hpcdi.worker.learner import (
    BaseLearner,
    LearnerHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
    merge_hooks,
    register_learner_hook,
)
from hpcdi.worker.learner.base_learner import TickMonitor
from hpcdi.worker.learner.learner_hook import (
    POSITIONS,
    LoadCkptHook,
    LogReduceHook,
    LogShowHook,
    SaveCkptHook,
    SendLearnInfoHook,
    SendPolicyHook,
    hook_mapping,
    no_hooks,
    show_hooks,
    simplified_hook_mapping,
)


class NoteHook(LearnerHook):
    """Notes that it was called."""

    def __init__(self, name: str, priority: float = 100, **kwargs: Any) -> None:
        super().__init__(name, priority, position=kwargs["position"])
        self.ext_args = kwargs.get("ext_args", {})
        self.calls = 0

    def __call__(self, engine: Any) -> None:
        self.calls += 1


@pytest.fixture
def _note() -> Iterator[None]:
    register_learner_hook("test_note", NoteHook)
    yield
    del hook_mapping["test_note"]


def hook(name: str, priority: float = 100, position: str = "after_iter") -> NoteHook:
    return NoteHook(name, priority, position=position)


def names(hooks: dict[str, list[LearnerHook]], position: str = "after_iter") -> list[str]:
    return [added.name for added in hooks[position]]


def test_positions_are_the_seeds() -> None:
    expected = ["before_run", "after_run", "before_iter", "after_iter"]
    assert LearnerHook.positions == expected == list(POSITIONS)
    made = hook("a", 3, "before_run")
    assert (made.name, made.priority, made.position) == ("a", 3, "before_run")
    with pytest.raises(ValueError, match=r"one of \('before_run'.*not 'during_run'"):
        hook("a", position="during_run")


@given(st.lists(st.integers(0, 3)))
def test_hooks_stand_by_priority_and_among_equals_in_the_order_of_coming(
    priorities: list[int],
) -> None:
    hooks = no_hooks()
    for number, priority in enumerate(priorities):
        add_learner_hook(hooks, hook(str(number), priority))
    expected = sorted(range(len(priorities)), key=lambda number: priorities[number])
    assert names(hooks) == [str(number) for number in expected]


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_merging_keeps_the_order_and_puts_the_first_ones_first(
    first: list[int], second: list[int]
) -> None:
    parts = [no_hooks(), no_hooks()]
    for number, (part, priority) in enumerate(
        [*((0, p) for p in first), *((1, p) for p in second)]
    ):
        add_learner_hook(parts[part], hook(str(number), priority))
    both = [*first, *second]
    merged = merge_hooks(*parts)
    assert names(merged) == [str(n) for n in sorted(range(len(both)), key=lambda n: both[n])]
    assert names(parts[0]) == [str(n) for n in sorted(range(len(first)), key=lambda n: first[n])]


@pytest.mark.parametrize("others", [{}, {"after_run": []}, {**no_hooks(), "soon": []}])
def test_hooks_of_other_positions_are_not_merged(others: dict[str, list[LearnerHook]]) -> None:
    for pair in ((no_hooks(), others), (others, no_hooks())):
        with pytest.raises(AssertionError, match="have different positions"):
            merge_hooks(*pair)


def test_no_priority_is_below_zero() -> None:
    assert hook("a", 0).priority == 0
    with pytest.raises(AssertionError, match="at least 0, not -1"):
        hook("a", -1)
    whole = {"type": "log_show", "position": "after_iter", "priority": -1}
    with pytest.raises(ConfigError, match=r"hook.a: .*at least 0, not -1"):
        build_learner_hook_by_cfg({"a": whole})


def test_a_hook_may_say_what_it_is_by_properties() -> None:
    """As DI-engine's base class does."""

    class Named(NoteHook):
        @property
        def name(self) -> str:
            return f"my {self._name}"

        @property
        def priority(self) -> float:
            return 5

        @property
        def position(self) -> str:
            return "before_run"

    made = Named("hook", np.int64(3), position="after_iter")
    assert (made.name, made.priority, made.position) == ("my hook", 5, "before_run")
    hooks = no_hooks()
    add_learner_hook(hooks, made)
    assert names(hooks, "before_run") == ["my hook"]
    assert hook("a", np.int64(3)).priority == 3


def test_only_hooks_of_learners_can_be_registered() -> None:
    with pytest.raises(AssertionError, match="not a subclass of LearnerHook"):
        register_learner_hook("odd", int)
    assert "odd" not in hook_mapping


def test_show_hooks(capsys: pytest.CaptureFixture[str]) -> None:
    hooks = no_hooks()
    for made in (hook("late", 100), hook("early", 2.5), hook("first", position="before_run")):
        add_learner_hook(hooks, made)
    show_hooks(hooks)
    assert capsys.readouterr().out.splitlines() == [
        "before_run: first(100)",
        "after_run: ",
        "before_iter: ",
        "after_iter: early(2.5), late(100)",
    ]


# ------------------------------------------------------------------------------ those of a learner


class Forward:
    """Its loss is the number of its updates."""

    def __init__(self) -> None:
        self.calls = 0.0

    def forward(self, _data: Any) -> dict[str, Any]:
        self.calls += 1
        return {"loss": self.calls, "[scalars]by": {"a": 1.0}}


class Tags:
    """Keeps the points of curves."""

    def __init__(self) -> None:
        self.points: dict[str, list[float]] = {}

    def add_scalar(self, tag: str, value: float, _step: int) -> None:
        self.points.setdefault(tag, []).append(value)

    def add_scalars(self, tag: str, values: dict[str, float], _step: int) -> None:
        self.points.setdefault(tag, []).extend(values.values())


def learner_with(cls: type[BaseLearner] = BaseLearner, every: int = 1, **given: Any) -> BaseLearner:
    cfg = {
        "log_policy": False,
        "hook": {"log_show_after_iter": every, "save_ckpt_after_run": False},
    }
    return cls(cfg, Forward(), **given)


def assigned(learner: BaseLearner, made: LearnerHook) -> None:
    learner._hooks["after_iter"] = [made]


def merged(learner: BaseLearner, made: LearnerHook) -> None:
    learner._hooks = merge_hooks(learner._hooks, {**no_hooks(), "after_iter": [made]})


def removed(learner: BaseLearner, made: LearnerHook) -> None:
    learner.register_hook(made)
    learner._hooks["after_iter"].remove(made)


def cleared(learner: BaseLearner, made: LearnerHook) -> None:
    learner.register_hook(made)
    learner._hooks["after_iter"].clear()


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        (lambda learner, made: learner._hooks["after_iter"].append(made), 1),
        (lambda learner, made: add_learner_hook(learner._hooks, made), 1),
        (lambda learner, made: learner.register_hook(made), 1),
        (assigned, 1), (merged, 1), (removed, 0), (cleared, 0),
    ],
)  # fmt: skip
def test_a_learners_lists_of_hooks_say_what_is_called(change: Any, calls: int) -> None:
    learner, made = learner_with(), hook("mine", 5)
    change(learner, made)
    learner.train([])
    assert made.calls == calls
    assert names(learner._hooks).count("mine") == calls


def test_hooks_are_called_in_the_order_of_their_list_and_callbacks_by_priority() -> None:
    called: list[str] = []

    class Says(LearnerHook):
        def __call__(self, engine: Any) -> None:
            called.append(self.name)

    class Callback(TrainingCallback):
        priority = 15

        def on_update(self, training: Any, log: Any) -> None:
            called.append(f"callback of {dict(log)}")

    learner = learner_with(every=0)
    learner.add(Callback())
    for priority in (20, 10):
        learner.register_hook(Says(str(priority), priority, position="after_iter"))
    learner._hooks["after_iter"].append(Says("late", 1, position="after_iter"))
    learner.train([])
    assert called == ["10", "callback of {'loss': 1.0, '[scalars]by': {'a': 1.0}}", "20", "late"]


def test_an_overridden_call_hook_is_called_at_each_position() -> None:
    called: list[str] = []

    class Learner(BaseLearner):
        def call_hook(self, name: str) -> None:
            called.append(name)
            super().call_hook(name)

    learner = learner_with(Learner)
    learner.begin()
    learner.train([])
    learner.end()
    assert called == ["before_run", "before_iter", "after_iter", "after_run"]


def put_in(engine: Any) -> None:
    engine.log_buffer["scalar"] |= {"mine": 7.0, "loss": 2 * engine.log_buffer["scalar"]["loss"]}


def replaced(engine: Any) -> None:
    loss = 2 * engine.train_iter
    engine.log_buffer = {"scalar": {"mine": 7.0, "loss": loss}, "kind of its own": {"loss": 5.0}}


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("change", [put_in, replaced])
def test_curves_show_what_hooks_make_of_the_log(change: Any, every: int) -> None:
    class Changes(LearnerHook):
        def __call__(self, engine: Any) -> None:
            change(engine)

    tags = Tags()
    learner = learner_with(every=every, tb_logger=tags)
    learner.register_hook(Changes("changes", 5, position="after_iter"))
    for _ in range(2):
        learner.train([])
    assert tags.points["learner_iter/loss_avg"] == ([2.0, 4.0] if every == 1 else [3.0])
    assert tags.points["learner_iter/mine_avg"] == [7.0] * (2 // every)
    assert ("learner_iter/by" in tags.points) == (change is put_in)


@pytest.mark.parametrize("every", [1, 2])
def test_curves_show_the_log_of_a_train_that_is_written_as_di_engines(every: int) -> None:
    class Learner(BaseLearner):
        def train(self, data: Any, *_: Any) -> Any:
            self.call_hook("before_iter")
            self.log_buffer["scalar"].update(loss=self.policy.forward(data)["loss"])
            self.last_iter.add(1)
            self.call_hook("after_iter")

    tags = Tags()
    learner = learner_with(Learner, every=every, tb_logger=tags)
    for _ in range(2):
        learner.train([])
    assert tags.points == {"learner_iter/loss_avg": [1.0, 2.0] if every == 1 else [1.5]}


class Adds(LearnerHook):
    """Adds a value to the log of its position."""

    def __call__(self, engine: Any) -> None:
        engine.log_buffer["scalar"][self.name] = 7.0


class AddsAround(BaseLearner):
    """Adds values to the log before and after its updates."""

    def train(self, data: Any, *given: Any) -> Any:
        self.log_buffer["scalar"]["before"] = 3.0
        logs = super().train(data, *given)
        self.log_buffer["scalar"]["after"] = 5.0
        return logs


@pytest.mark.parametrize(
    ("position", "priority"), [("before_iter", 5), ("after_iter", 5), ("after_iter", 90)]
)
def test_what_is_added_to_the_log_is_shown_once(position: str, priority: int) -> None:
    """In this iteration, or in the next one where it comes after ``log_show``."""
    tags = Tags()
    learner = learner_with(AddsAround, tb_logger=tags)
    adds = Adds("mine", priority, position=position)
    learner.register_hook(adds)
    for _ in range(3):
        learner.train([])
    learner._hooks[position].remove(adds)
    learner.train([])
    assert tags.points["learner_iter/mine_avg"] == [7.0] * 3
    assert tags.points["learner_iter/before_avg"] == [3.0] * 4
    assert tags.points["learner_iter/after_avg"] == [5.0] * 3
    assert tags.points["learner_iter/loss_avg"] == [1.0, 2.0, 3.0, 4.0]
    assert learner.log_buffer["scalar"] == {"loss": 4.0, "after": 5.0}


@pytest.mark.parametrize("every", [1, 2])
def test_curves_of_a_call_hook_that_is_written_as_di_engines(every: int) -> None:
    class Learner(BaseLearner):
        def call_hook(self, name: str) -> None:
            for one in self._hooks[name]:
                one(self)

    tags = Tags()
    learner = learner_with(Learner, every=every, tb_logger=tags)
    for _ in range(4):
        learner.train([])
    points = [1.0, 2.0, 3.0, 4.0] if every == 1 else [1.5, 3.5]
    assert tags.points["learner_iter/loss_avg"] == points


def test_any_function_in_a_list_of_hooks_is_called() -> None:
    learner, called = learner_with(), list[Any]()
    learner._hooks["after_iter"].append(called.append)  # type: ignore[arg-type]
    learner.train([])
    assert called == [learner]
    assert learner.callback_state() == {}
    learner.close()


class CountHook(LearnerHook):
    """Counts its calls; a snapshot keeps how many."""

    def __init__(self, name: str) -> None:
        super().__init__(name, position="after_iter")
        self.calls = 0

    def __call__(self, engine: Any) -> None:
        self.calls += 1

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls} if self.calls else {}

    def load_state_dict(self, training: Any, state: Any) -> None:
        self.calls = state["calls"]


def test_hooks_of_one_class_keep_a_state_each() -> None:
    """All went on from the last one's; or from the next one's, after one without a state."""
    learner, again = BaseLearner({}, Forward()), BaseLearner({}, Forward())
    counts, after = ([CountHook(name) for name in "abc"] for _ in range(2))
    for calls, (hook, same) in enumerate(zip(counts, after, strict=True)):
        hook.calls = calls
        learner.register_hook(hook)
        again.register_hook(same)
    again.load_callback_state(learner.callback_state())
    assert [hook.calls for hook in after] == [0, 1, 2]


def test_a_checkpoint_that_a_run_begins_with_is_loaded_before_it(tmp_path: Path) -> None:
    loads = LoadCkptHook(ext_args={"load_path": tmp_path / "none"})
    learner = BaseLearner({}, Forward())
    learner.register_hook(loads)
    with pytest.raises(CheckpointError):
        learner.load_named()


def test_the_monitor_of_ones_own_has_the_newest_value_and_the_mean() -> None:
    monitor = TickMonitor("a clock", expire=2)
    assert monitor.val["loss"]() == 0.0
    for loss in (1.0, 2.0, 6.0):
        monitor.loss = loss
    assert (monitor.avg["loss"](), monitor.val["loss"](), monitor.loss) == (4.0, 6.0, 6.0)
    assert monitor.time == "a clock"
    with pytest.raises(AttributeError, match="'lr'"):
        _ = monitor.lr


# ------------------------------------------------------------------------------- by configuration


def test_entries_of_the_mappings_are_configured_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hook_mapping, "test_put", NoteHook)
    monkeypatch.setitem(simplified_hook_mapping, "test_after_iter", lambda n: hook("short", n))
    whole = {"type": "test_put", "position": "before_iter"}
    cfg = {"hook": {"mine": whole, "test_after_iter": 3}}
    learner = BaseLearner(cfg, Forward())
    assert names(learner._hooks, "before_iter") == ["mine"]
    assert learner._hooks["after_iter"][0].priority == 3
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="has 2 problems"):
        BaseLearner(cfg, Forward())
    simplified_hook_mapping.update(test_after_iter=lambda n: hook("short", n))
    assert build_learner_hook_by_cfg({"test_after_iter": 3})["after_iter"]
    simplified_hook_mapping.pop("test_after_iter")
    with pytest.raises(ConfigError, match="test_after_iter"):
        build_learner_hook_by_cfg({"test_after_iter": 3})


@pytest.mark.usefixtures("_note")
def test_arguments_of_a_hook_are_attributes_too() -> None:
    whole = {"type": "test_note", "position": "after_iter", "ext_args": {"freq": 3}}
    (made,) = build_learner_hook_by_cfg({"mine": whole})["after_iter"]
    assert made.ext_args.freq == made.ext_args["freq"] == 3  # type: ignore[attr-defined]


def test_a_hook_reads_the_last_update_by_kind() -> None:
    """As DI-engine's learners keep it; their monitor's means, too."""
    read: list[Any] = []

    class Reads(LearnerHook):
        def __call__(self, engine: Any) -> None:
            buffer, mean = engine.log_buffer, engine.monitor.avg["loss"]()
            read.append((mean, *(buffer[kind] for kind in ("scalar", "scalars", "histogram"))))

    class Logs:
        def forward(self, data: float) -> dict[str, Any]:
            several = {"[scalars]by": {"a": 1.0}, "[histogram]q": [1.0, 2.0]}
            return {"loss": data, "priority": [2.0], **several}

    learner = BaseLearner({"log_policy": False}, Logs())
    learner.register_hook(Reads("reads", 0, position="after_iter"))
    assert learner.train(1.0)[0]["loss"] == 1.0
    learner.train(3.0)
    kinds = {"by": {"a": 1.0}}, {"q": [1.0, 2.0]}
    assert read == [(1.0, {"loss": 1.0}, *kinds), (2.0, {"loss": 3.0}, *kinds)]
    with pytest.raises(KeyError):
        learner.log_buffer["no such name"]


def test_simplified_keys() -> None:
    hooks = build_learner_hook_by_cfg({"log_show_after_iter": 5})
    (made,) = hooks["after_iter"]
    assert isinstance(made, LogShowHook)
    assert made.priority == 20
    for off in (0, -1):
        assert build_learner_hook_by_cfg({"log_show_after_iter": off}) == no_hooks()
    for each in (1e4, np.int64(10_000), np.float32(1e4)):
        (made,) = build_learner_hook_by_cfg({"save_ckpt_after_iter": each})["after_iter"]
        assert isinstance(made, SaveCkptHook)
        assert isinstance(made.callback, SaveCheckpoint)
        assert (made.callback.every, type(made.callback.every)) == (10_000, int)
    assert build_learner_hook_by_cfg({}) == no_hooks()


@pytest.mark.usefixtures("_note")
def test_whole_hooks_by_their_type() -> None:
    hooks = build_learner_hook_by_cfg(
        {
            "mine": {"type": "test_note", "position": "before_run", "ext_args": {"a": 1}},
            "other": {
                "type": "test_note", "name": "named", "priority": 3, "position": "after_iter"
            },
            "log_show_after_iter": 1,
        }
    )  # fmt: skip
    (mine,) = hooks["before_run"]
    assert isinstance(mine, NoteHook)
    assert (mine.name, mine.priority, mine.ext_args) == ("mine", 100, {"a": 1})
    assert names(hooks) == ["named", "log_show"]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("log_shw", 5, "is neither one of .*log_show_after_iter.* nor a hook of type .*log_show"),
        ("mine", {"type": "no_such"}, "is neither"),
        ("mine", {"type": "log_show"}, "position is one of"),
        ("mine", {"type": "log_show", "position": "after_all"}, "not 'after_all'"),
        ("log_show_after_iter", "often", "must be a number of iterations, or false, not 'often'"),
        ("save_ckpt_after_iter", 0.5, "must be a number of iterations"),
        ("save_ckpt_after_run", "always", "must be true or false, not 'always'"),
        ("profile_after_iter", "soon", "must be a number of iterations to wait"),
        ("load_ckpt_before_run", 5, "must be the path of a checkpoint, not 5"),
        ("load_ckpt_before_run", "no/such", "there is no 'no/such'"),
        ("mine", {"type": "log_show", "postion": "after_iter"}, "unknown key 'postion'"),
        (
            "mine",
            {"type": "log_show", "position": "after_iter", "priority": "high"},
            "priority is a number, not 'high'",
        ),
        (
            "mine",
            {"type": "log_show", "position": "after_iter", "ext_args": {"frq": 1}},
            "unknown argument 'frq'; it has freq",
        ),
        ("mine", {"type": "log_reduce", "position": "before_iter"}, r"one of \['after_iter'\]"),
        ("mine", {"type": "load_ckpt", "position": "after_run"}, r"one of \['before_run'\]"),
        (
            "mine",
            {"type": "profiler", "position": "after_iter", "ext_args": {"active": 0}},
            "active must be at least 1, not 0",
        ),
        (
            "mine",
            {"type": "log_show", "position": "after_iter", "ext_args": {"freq": 0}},
            "freq must be at least 1, not 0",
        ),
    ],
)
def test_wrong_configurations(key: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"hook.{key}: .*{problem}"):
        BaseLearner.parse_config({"hook": {key: value}})


@pytest.mark.parametrize("hook_type", [SaveCkptHook, LogReduceHook, LogShowHook])
def test_a_hook_without_arguments_acts_at_each_iteration(hook_type: Any) -> None:
    """As DI-engine's do; keys of a configuration have defaults of their own."""
    assert hook_type("mine", 20, position="after_iter").callback.every == 1


def test_a_whole_hook_may_go_by_a_simplified_key() -> None:
    whole = {
        "name": "save", "type": "save_ckpt", "priority": 30, "position": "after_iter",
        "ext_args": {"freq": 7},
    }  # fmt: skip
    (hook,) = build_learner_hook_by_cfg({"save_ckpt_after_iter": whole})["after_iter"]
    assert isinstance(hook, SaveCkptHook)
    assert isinstance(hook.callback, SaveCheckpoint)
    assert (hook.name, hook.priority, hook.callback.every) == ("save", 30, 7)


def test_a_hook_of_the_users_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a second instance opened, nobody would close."""
    made: list[str] = []

    class Opens(NoteHook):
        def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
            super().__init__(name, *args, **kwargs)
            made.append(name)

    monkeypatch.setitem(hook_mapping, "test_opens", Opens)  # to be removed again
    register_learner_hook("test_opens", Opens)
    whole = {"type": "test_opens", "position": "after_iter"}
    assert len(BaseLearner({"hook": {"mine": whole}}, Policy())._hooks["after_iter"]) == 3
    assert made == ["mine"]
    for wrong, said in (({"position": "soon"}, "not 'soon'"), ({"name_": "a"}, "key 'name_'")):
        with pytest.raises(ConfigError, match=f"hook.mine: .*{said}"):
            BaseLearner.parse_config({"hook": {"mine": {**whole, **wrong}}})
    assert made == ["mine"]


@pytest.mark.parametrize(
    ("wrong", "said"), [({"priority": -1}, "at least 0"), ({"position": ""}, "not ''")]
)
def test_a_hook_of_the_users_is_checked_by_the_constructor_that_it_inherits(
    wrong: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inherits(LearnerHook):
        def __call__(self, engine: Any) -> None:
            """Do nothing."""

    monkeypatch.setitem(hook_mapping, "test_inherits", Inherits)  # to be removed again
    register_learner_hook("test_inherits", Inherits)
    whole = {"type": "test_inherits", "position": "after_iter", **wrong}
    with pytest.raises(ConfigError, match=f"hook.mine: .*{said}"):
        BaseLearner.parse_config({"hook": {"mine": whole}})


def test_hooks_are_checked_with_the_rest_of_the_configuration() -> None:
    """Before the run starts, not when the learner is built."""
    with pytest.raises(ConfigError) as caught:
        BaseLearner.parse_config({"hook": {"a": 1, "b": 2}, "learner_num": 0})
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"hook.a", "hook.b", "learner_num"}


# ------------------------------------------------------------------------------------- built-in


class Policy:
    """A learn mode whose scalars are the number of its calls, and 1."""

    def __init__(self) -> None:
        self.calls = 0

    def forward(self, data: Any) -> dict[str, Any]:
        self.calls += 1
        return {"total_loss": float(self.calls), "one": 1, "priority": [0.5]}


@pytest.mark.parametrize("every_s", [0.0, 1000.0])
def test_log_show_averages_over_its_iterations_and_writes_them(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    every_s: float,
) -> None:
    writer = TensorBoardWriter(tmp_path)
    learner = BaseLearner({"hook": {"log_show_after_iter": 2}}, Policy(), writer)
    with caplog.at_level("INFO", logger="hpcdi"):
        for _ in range(5):
            learner.train([])
            monkeypatch.setattr("hpcdi.roles.learner.callbacks.LOG_EVERY_S", every_s)
    writer.close()
    assert learner.scalars == {"total_loss": 3.5, "one": 1.0}
    assert learner.learn_info["scalars"] == learner.scalars
    logged = [(record.train_iter, record.scalars) for record in caplog.records]
    lines = [(2, {"total_loss": 1.5, "one": 1.0}), (4, {"total_loss": 3.5, "one": 1.0})]
    assert logged == (lines if every_s == 0 else lines[:1])
    (file,) = tmp_path.iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
    curve = [(event.summary.value[0].tag, event.step) for event in events]
    assert curve == [
        ("learner_iter/total_loss_avg", 2),
        ("learner_iter/one_avg", 2),
        ("learner_iter/total_loss_avg", 4),
        ("learner_iter/one_avg", 4),
    ]


class Engine:
    """What the sending hooks need of a learner."""

    def __init__(self) -> None:
        self.train_iter = 0
        self.sent: list[Any] = []

    @property
    def learn_info(self) -> int:
        return self.train_iter

    def offer_policy(self, *, force: bool) -> None:
        self.sent.append((self.train_iter, force))

    def send_learn_info(self, learn_info: int) -> None:
        self.sent.append(learn_info)


def test_send_policy_offers_at_its_frequency_and_forces_around_the_run() -> None:
    engine = Engine()
    often = SendPolicyHook(ext_args={"send_policy_freq": 3})
    for engine.train_iter in range(1, 7):
        often(engine)
    SendPolicyHook(position="after_run", ext_args={"send_policy_freq": 4})(engine)
    assert engine.sent == [(3, False), (6, False), (6, True)]


def test_send_learn_info_tells_at_its_frequency() -> None:
    engine = Engine()
    tell = SendLearnInfoHook(ext_args={"freq": 2})
    for engine.train_iter in range(1, 6):
        tell(engine)
    assert engine.sent == [2, 4]
