"""The training loop: iterations, hooks around them, what it says of itself, when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hpcdi.config.fields import restore, to_mapping
from hpcdi.errors import ConfigError, PolicyError
from hpcdi.roles.learner.training import Batch
from hpcdi.utils.timer import RoleMeter
from hpcdi.worker.learner import BaseLearner, LearnerHook, create_learner
from hpcdi.worker.learner.learner_hook import SendLearnInfoHook, SendPolicyHook


@dataclass
class Policy:
    """A learn mode that gives planned outputs and keeps what it was given."""

    outputs: list[Any] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)

    def forward(self, data: Any, **kwargs: Any) -> Any:
        self.given.append((data, kwargs))
        return self.outputs.pop(0) if self.outputs else {"total_loss": 1.0}

    def get_attribute(self, name: str) -> Any:
        assert name == "batch_size"
        return 7

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"calls": len(self.given)}}


class Port:
    """Gives so many batches; keeps what the learner sends, in order."""

    def __init__(self, batches: int, waiting_at: set[int] | None = None) -> None:
        self.meter = RoleMeter("learner")
        self.left = batches
        self.waiting_at = waiting_at or set()
        self.sent: list[Any] = []
        self.feedback: list[Any] = []

    def get_data(self, batch_size: int) -> Batch | None:
        assert batch_size == 7
        if self.left == 0:
            return None
        self.left -= 1
        ids = np.arange(2) + 10 * self.left
        return Batch({"x": self.left}, ids, 100 + self.left, self.feedback.append)

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        self.sent.append(("policy", state_dict["model"]["calls"]))

    def wants_policy(self, train_iter: int) -> bool:
        return train_iter in self.waiting_at

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        self.sent.append(("info", learn_info["learner_step"], learn_info["learner_done"]))


class NoteHook(LearnerHook):
    """Notes where it was called, and the iteration then."""

    def __init__(self, notes: list[Any], position: str, priority: float = 100) -> None:
        super().__init__("note", priority, position=position)
        self._notes = notes

    def __call__(self, engine: BaseLearner) -> None:
        self._notes.append((self.position, self.priority, engine.train_iter))


QUIET = {"log_show_after_iter": 0, "save_ckpt_after_iter": 0, "save_ckpt_after_run": False}


def learner(policy: Any = None, **cfg: Any) -> BaseLearner:
    return BaseLearner({"hook": QUIET, "log_policy": False, **cfg}, policy or Policy())


def test_an_iteration_takes_data_as_they_come() -> None:
    made = learner()
    data = [{"obs": 1}]
    made.train(data, envstep=5, policy_kwargs={"scale": 2})
    made.train(data)
    assert made.policy.given == [(data, {"scale": 2}), (data, {})]
    assert (made.train_iter, made.last_iter.val, made.collector_envstep) == (2, 2, 5)
    made.collector_envstep = 9
    assert made.collector_envstep == 9


def test_hooks_are_called_around_an_iteration_by_priority() -> None:
    made, notes = learner(), []
    for position, priority in (
        ("after_iter", 50), ("before_iter", 7), ("after_iter", 2), ("before_run", 1)
    ):  # fmt: skip
        made.register_hook(NoteHook(notes, position, priority))
    made.train([])
    made.train([])
    assert notes == [
        ("before_iter", 7, 0), ("after_iter", 2, 1), ("after_iter", 50, 1),
        ("before_iter", 7, 1), ("after_iter", 2, 2), ("after_iter", 50, 2),
    ]  # fmt: skip
    made.call_hook("before_run")
    assert notes[-1] == ("before_run", 1, 2)


def test_each_log_of_several_passes_counts_as_one_iteration() -> None:
    epochs = [{"total_loss": 1.0, "text": "x"}, {"total_loss": 3.0, "once": 5}]
    made = learner(Policy([epochs, {"total_loss": 5.0}]))
    notes: list[Any] = []
    made.register_hook(NoteHook(notes, "after_iter"))
    made.train([])
    made.train([])
    assert made.train_iter == 3
    assert [iteration for *_, iteration in notes] == [1, 2, 3]
    assert made.monitor.take_means() == {"total_loss": 3.0, "once": 5.0}
    assert made.monitor.take_means() == {}


def test_priorities_go_back_with_the_names_of_their_samples() -> None:
    told: list[Any] = []
    batch = Batch({"x": 1}, np.array([4, 2]), 0, told.append)
    made = learner(Policy([{"priority": [0.5, 2.0]}, {"total_loss": 1.0}]))
    made.train(batch)
    assert made.policy.given[0][0] == {"x": 1}, "the policy gets the columns"
    (priorities,) = told
    assert (priorities.tolist(), priorities.dtype) == ([0.5, 2.0], np.float64)
    assert made.priority_info["unique_ids"].tolist() == [4, 2]
    assert made.learn_info["priority_info"]["priority"].tolist() == [0.5, 2.0]
    made.train(batch)
    assert len(told) == 1, "no priority, no word"


# ---------------------------------------------------------------------------------------- start()


def test_start_ends_when_the_iterations_are_done() -> None:
    port = Port(batches=10)
    made = BaseLearner(
        {"hook": QUIET, "log_policy": False, "train_iterations": 3}, Policy(), port=port
    )
    made.start()
    assert (made.train_iter, port.left) == (3, 7), "no batch is taken beyond the last iteration"
    assert made.learn_info["learner_done"]
    made.start()
    assert (made.train_iter, port.left) == (3, 7), "all iterations are done already"


def test_it_is_done_with_the_last_batch_however_many_passes_there_are() -> None:
    made = learner(Policy([[{"total_loss": 1.0}] * 2] * 3), train_iterations=3)
    made.get_data = lambda _size: []  # type: ignore[attr-defined]
    done: list[tuple[int, bool]] = []

    class Done(LearnerHook):
        def __call__(self, engine: BaseLearner) -> None:
            done.append((engine.train_iter, engine.learn_info["learner_done"]))

    made.register_hook(Done("done", position="after_iter"))
    made.start()
    assert done == [(k, k > 4) for k in range(1, 7)]


def test_start_ends_when_the_data_end() -> None:
    port, notes = Port(batches=2), []
    made = BaseLearner({"hook": QUIET, "log_policy": False}, Policy(), port=port)
    for position in LearnerHook.positions:
        made.register_hook(NoteHook(notes, position))
    made.start()
    assert [(position, done) for position, _, done in notes] == [
        ("before_run", 0), ("before_iter", 0), ("after_iter", 1), ("before_iter", 1),
        ("after_iter", 2), ("after_run", 2),
    ]  # fmt: skip
    assert not made.learn_info["learner_done"]
    assert made.collector_envstep == 100, "as the last batch says"


def test_policies_and_words_go_out_by_hooks() -> None:
    """Forced around the run; in between only where somebody waits."""
    port = Port(batches=4, waiting_at={2, 3})
    made = BaseLearner(
        {"hook": QUIET, "log_policy": False, "train_iterations": 4}, Policy(), port=port
    )
    for position in ("before_run", "after_iter", "after_run"):
        made.register_hook(SendPolicyHook(position=position))
    made.register_hook(SendLearnInfoHook(ext_args={"freq": 2}))
    made.start()
    assert port.sent == [
        ("policy", 0), ("policy", 2), ("info", 2, False), ("policy", 3), ("info", 4, True),
        ("policy", 4),
    ]  # fmt: skip


def test_a_learner_may_have_data_of_its_own() -> None:
    class Own(BaseLearner):
        def get_data(self, batch_size: int) -> list[int] | None:
            return [batch_size] if self.train_iter < 3 else None

    policy = Policy([{"total_loss": 1.0}] * 3)
    made = Own({"hook": QUIET, "train_iterations": 10, "log_policy": False}, policy=policy)
    made.setup_dataloader()
    made.start()
    assert made.train_iter == 3


@pytest.mark.parametrize("way", ["start", "update"])
def test_a_subclass_may_train_on_data_alone(way: str) -> None:
    """As DI-engine calls it: `train(data)`."""

    class Own(BaseLearner):
        def get_data(self, _batch_size: int) -> list[int]:
            return [1]

        def train(self, data: Any) -> Any:  # type: ignore[override]
            return super().train(data)

    made = Own({"hook": QUIET, "train_iterations": 1, "log_policy": False}, policy=Policy())
    if way == "start":
        made.start()
    else:
        made.update(Batch({}, (), -1, lambda _priority: None))
    assert made.train_iter == 1


def test_without_a_port_nothing_is_sent() -> None:
    made = learner()
    made.offer_policy(force=True)
    made.send_learn_info({})
    with pytest.raises(PolicyError, match="has no data to start with; use train"):
        made.start()
    assert made.policy.given == []


@pytest.mark.parametrize("port", [None, Port(1)])
def test_without_a_policy(port: Port | None) -> None:
    notes: list[Any] = []
    made = BaseLearner({"hook": QUIET, "log_policy": False}, port=port)
    made.register_hook(NoteHook(notes, "before_iter"))
    with pytest.raises(PolicyError, match=r"has no policy; set `learner.policy`"):
        made.train([])
    if port is not None:
        with pytest.raises(PolicyError, match=r"has no policy; set `learner.policy`"):
            made.start()
    assert notes == []
    made.policy = Policy()
    made.train([])
    assert made.train_iter == 1


# ------------------------------------------------------------------------------------- what it is


def test_learn_info_has_its_keys() -> None:
    made = learner(train_iterations=2)
    assert made.learn_info == {
        "learner_step": 0, "priority_info": {}, "learner_done": False, "scalars": {}
    }  # fmt: skip
    made.scalars["loss"] = 1.5
    info = made.learn_info
    made.scalars["loss"] = 2.5
    assert info["scalars"] == {"loss": 1.5}, "a copy"
    made.scalars, made.priority_info = {"total_loss": 1.0}, {"priority": [0.5]}
    assert made.learn_info["scalars"] == {"total_loss": 1.0}
    assert made.learn_info["priority_info"] == {"priority": [0.5]}


def test_identity_and_log(caplog: pytest.LogCaptureFixture) -> None:
    made = BaseLearner({"hook": QUIET, "log_policy": False}, None, None, (1, 4), "exp", "mine")
    assert (made.rank, made.world_size, made.exp_name, made.instance_name) == (1, 4, "exp", "mine")
    plain = learner()
    assert (plain.rank, plain.world_size) == (0, 1)
    assert (plain.exp_name, plain.instance_name) == ("default_experiment", "learner")
    assert made.tb_logger is None, "the first of a group keeps the log"
    with caplog.at_level("DEBUG", logger=plain.logger.name):
        plain.info("a")
        plain.debug("b")
    assert [record.getMessage() for record in caplog.records] == ["a", "b"]
    plain.register_hook(NoteHook([], "after_run"))
    assert repr(plain) == (
        "BaseLearner(iterations=0, hooks={'before_run': 0, 'after_run': 1, 'before_iter': 0, "
        "'after_iter': 0})"
    )
    plain.close()
    plain.close()


def test_create_learner() -> None:
    frozen = BaseLearner.parse_config({"type": "base", "train_iterations": 5})
    policy = Policy()
    for cfg in (frozen, {"type": "base", "train_iterations": 5}):
        made = create_learner(cfg, policy=policy, exp_name="exp")
        assert made.policy is policy
        assert made.exp_name == "exp"
        assert not made.learn_info["learner_done"]
    with pytest.raises(KeyError, match=r"no learner of type 'bse'.*did you mean 'base'"):
        create_learner({"type": "bse"})
    with pytest.raises(ConfigError, match="train_iterations: must be at least 1"):
        create_learner({"type": "base", "train_iterations": 0})
    with pytest.raises(ConfigError, match="no module 'no_such_module'"):
        create_learner({"type": "base", "import_names": ["no_such_module"]})


@pytest.mark.parametrize("form", ["default", "dict", "parsed", "restored"])
def test_a_subclass_reads_its_hooks_settings_as_attributes(form: str) -> None:
    class Mine(BaseLearner):
        def shows(self) -> int:
            return int(self._cfg.hook.log_show_after_iter)

    changed = {"hook": {"log_show_after_iter": 7}}
    frozen = BaseLearner.parse_config(changed)
    restored = restore(type(frozen), to_mapping(frozen))
    forms = {"default": None, "dict": changed, "parsed": frozen, "restored": restored}
    assert Mine(forms[form], Policy()).shows() == (100 if form == "default" else 7)


def test_default_config_is_the_seeds_mapping() -> None:
    cfg = BaseLearner.default_config()
    assert (cfg.cfg_type, cfg.train_iterations) == ("BaseLearnerDict", int(1e9))
    assert cfg.hook.log_show_after_iter == 100
