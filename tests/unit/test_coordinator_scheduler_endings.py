"""Every way in which the scheduler ends a run; rank 1 learns, ranks 2 and 3 collect."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replay import block
from fakes.scheduler import EVERY_S, TIMEOUTS, Run, evaluates, evaluating, reason_of
from hpcdi.comm.messages import (
    AdmitBlock,
    Batches,
    BlockAdmitted,
    CloseTask,
    CollectTask,
    Goodbye,
    LearnInfo,
    LearnResult,
    LearnTask,
    Leave,
    RankLost,
    Stop,
    StopRequest,
    TaskReturned,
    WorkerFailed,
)
from hpcdi.errors import EXIT_FAILED, EXIT_REQUEUE, state_after
from hpcdi.replay.ratio import ReplayRatio
from hpcdi.roles.coordinator.scheduler import Outcome
from hpcdi.roles.coordinator.workers import Evaluated, Order
from hpcdi.types import BLOCK_ID_BITS

FAILURE = WorkerFailed("collector", "host", "EnvError: gone", "Traceback ...")


def stops(reason: str, *ranks: int) -> list[Order]:
    return [Order(rank, Stop(reason)) for rank in ranks or (1, 2, 3)]


def leaves(exit_code: int = 0) -> list[Order]:
    return [Order(rank, Leave(exit_code)) for rank in (1, 2, 3)]


def say_goodbye(run: Run, *ranks: int) -> list[Order]:
    return [order for rank in ranks for order in run.hear(rank, Goodbye())]


# ------------------------------------------------------------------------------------- its reasons


def test_stop_value() -> None:
    run = evaluating()
    reason = "stop value reached: mean return 200.0 of 195"
    assert run.result(2, 6.0, returns=(190.0, 210.0)) == stops(reason)
    assert run.scheduler.outcome == Outcome("done", reason, 0)
    assert not run.scheduler.finished
    assert say_goodbye(run, 3, 1, 2) == leaves()
    assert run.scheduler.finished


@pytest.mark.parametrize("returns", [(194.9,), (), (float("nan"), 300.0)])
def test_an_evaluation_that_does_not_reach_it(returns: tuple[float, ...]) -> None:
    """Below, without an episode, without a number."""
    run = evaluating()
    orders = run.result(2, 6.0, returns=returns)
    assert orders == [Order(2, run.tasks[2])]
    assert run.scheduler.is_on


def test_a_collector_without_environments_leaves_its_work_to_others() -> None:
    run = evaluating()
    evaluation = run.tasks[2].task_id
    orders = run.hear(2, TaskReturned(evaluation, "all are retired"), 6.0)
    assert run.scheduler.is_on
    assert orders == [Order(3, CloseTask(run.tasks[3].task_id))], "it makes room, at once"
    orders = run.result(3, 7.0)
    (task,) = (order.message for order in orders if isinstance(order.message, CollectTask))
    assert task.eval_flag, "the evaluation is done by another"
    assert {order.rank for order in orders} == {3}, "the rank gets nothing any more"


def test_the_last_collector_without_environments_ends_the_run() -> None:
    run = evaluating()
    run.hear(2, TaskReturned(run.tasks[2].task_id, "all are retired"), 6.0)
    orders = run.hear(3, TaskReturned(run.tasks[3].task_id, "env 4: no licence"), 7.0)
    reason = "no collector has environments left; rank 3: env 4: no licence"
    assert orders == stops(reason)
    assert run.scheduler.outcome == Outcome("failed", reason, EXIT_FAILED)
    assert say_goodbye(run, 3, 1, 2) == leaves(EXIT_FAILED)


@pytest.mark.parametrize(("with_ranks", "exit_code"), [(True, EXIT_REQUEUE), (False, EXIT_FAILED)])
def test_the_loss_of_the_last_ranks_is_nobodys_fault(with_ranks: bool, exit_code: int) -> None:
    run = evaluating()
    run.hear(2, TaskReturned(run.tasks[2].task_id, "all are retired"), 6.0)
    said = "all 1 environments are gone"
    run.hear(3, TaskReturned(run.tasks[3].task_id, said, with_ranks), 7.0)
    reason = f"no collector has environments left; rank 3: {said}"
    assert run.scheduler.outcome == Outcome(state_after(exit_code), reason, exit_code)


def test_a_rank_that_can_write_no_more_has_failed() -> None:
    run = evaluating()
    assert run.hear(2, StopRequest("rank 2: the disk is full", 1)) == stops(
        "rank 2: the disk is full"
    )
    assert run.scheduler.outcome == Outcome("failed", "rank 2: the disk is full", 1)


def test_collecting_never_reaches_it() -> None:
    run = Run()
    run.learn_info(10)
    assert run.result(2, 1.0, returns=(500.0,)) == [Order(2, run.tasks[2])]


def test_max_env_step() -> None:
    run = Run(max_env_step=100)
    assert len(run.progress(2, 99)) == 1
    assert run.progress(3, 1) == stops("max_env_step reached: 100 of 100")


def test_at_max_env_step_updates_that_are_due_are_made_first() -> None:
    """As in one process: short runs ended with hundreds of transitions unlearnt."""
    run = Run(max_env_step=20, max_train_iter=9)
    run.main.replay.ratio = ReplayRatio(1.0, slack=100, batch=4)
    run.hear(2, block(1, [10]))
    run.hear(1, BlockAdmitted(1, 0.0))
    closes = [Order(rank, CloseTask(run.tasks[rank].task_id)) for rank in (2, 3)]
    assert run.progress(3, 11)[:2] == closes
    run.progress(3, 4)  # what it had yet
    drawn = 0
    for train_iter in range(6):
        orders = run.ask(1, train_iter)
        drawn += sum(isinstance(order.message, Batches) for order in orders)
    assert drawn == 6, "25 transitions"
    assert run.result(2, 2.0) == run.result(3, 2.0) == []
    assert run.scheduler.may_work
    assert [(order.rank, evaluates(order)) for order in run.ask(1, 6)] == [(3, True)]
    run.result(3, 3.0, returns=(1.0,))
    assert reason_of(run) == "max_env_step reached: 21 of 20"


def at_the_limit(run: Run) -> None:
    """Let rank 2 publish blocks of which 21 samples are due, and can be drawn."""
    run.main.replay.ratio = ReplayRatio(1.0, slack=100, batch=4)
    run.hear(2, block(1, [10]))
    run.hear(1, BlockAdmitted(1, 0.0))
    run.progress(2, 11)


def test_the_block_that_reaches_the_limit_is_learnt_from() -> None:
    """A learner that had too little to learn from until then."""
    run = Run(max_env_step=20)
    run.main.replay.ratio = ReplayRatio(1.0, slack=100, batch=4)
    run.ask(1)
    number = (2 << BLOCK_ID_BITS) + 1
    run.hear(2, block(number, [30]))
    orders = run.hear(1, BlockAdmitted(number, 0.0))
    assert [type(order.message) for order in orders] == [Batches]


def test_a_collector_that_hangs_holds_up_no_end() -> None:
    run = Run(max_env_step=20)
    at_the_limit(run)
    run.result(3, 1.0)
    for train_iter in range(6):
        run.ask(1, train_iter)
    run.tick(TIMEOUTS.collector_task_s - 1)
    assert run.scheduler.may_work
    run.tick(TIMEOUTS.collector_task_s)
    assert not run.scheduler.may_work


def test_updates_that_are_due_are_made_while_a_collector_starts_yet() -> None:
    """As where a run is resumed that was stopped meanwhile."""
    run = Run(ready=False, max_env_step=20)
    run.ready(1)
    run.ready(2)
    at_the_limit(run)
    run.result(2, 1.0)
    orders = [order for train_iter in range(6) for order in run.ask(1, train_iter)]
    assert sum(isinstance(order.message, Batches) for order in orders) == 5
    run.tick(2.0)
    assert not run.scheduler.may_work


@pytest.mark.parametrize("why", ["max_train_iter", "it cannot"])
def test_updates_that_may_not_be_made_hold_up_no_end(why: str) -> None:
    run = Run(max_env_step=20, max_train_iter=3)
    run.main.replay.ratio = ReplayRatio(1.0, slack=100, batch=4)
    if why == "max_train_iter":
        run.hear(2, block(1, [10]))
        run.hear(1, BlockAdmitted(1, 0.0))
        for train_iter in range(3):
            run.ask(1, train_iter)
        run.main.reach(3)
    else:
        run.ask(1)
    run.progress(3, 23)
    if why == "it cannot":
        assert run.scheduler.may_work, "it may, when it has read the block"
        run.hear(1, BlockAdmitted((3 << BLOCK_ID_BITS) + 1, 0.0, "it is torn"))
        run.tick(1.0)
    assert not run.scheduler.may_work


def test_a_run_that_is_resumed_at_its_limit_collects_no_more() -> None:
    run = Run(max_env_step=100, ready=False)
    run.main.env_steps = 100
    orders = [order for rank in run.ranks for order in run.ready(rank)]
    assert [(order.rank, type(order.message)) for order in orders] == [(1, LearnTask)]
    assert run.tick(1.0) == []
    assert run.ask(1) == stops("max_env_step reached: 100 of 100")


@pytest.mark.parametrize("heard", ["info", "demand"])
def test_max_train_iter(heard: str) -> None:
    run = Run(max_train_iter=50)
    assert run.learn_info(49) == []
    orders = run.learn_info(51) if heard == "info" else run.ask(1, train_iter=51)
    check_last_evaluation(run, orders, "max_train_iter reached: 51 of 50")


def check_last_evaluation(run: Run, orders: list[Order], reason: str) -> None:
    """Collecting ends, the first that is free evaluates, and then the run ends."""
    assert orders == [Order(rank, CloseTask(run.tasks[rank].task_id)) for rank in (2, 3)]
    assert run.ask(1, train_iter=51) == [], "nobody learns on"
    assert run.hear(1, LearnInfo(run.tasks[1].task_id, 52, {}, {})) == []
    assert run.scheduler.is_on
    orders = run.result(3, 1.0)
    assert [(order.rank, evaluates(order)) for order in orders] == [(3, True)]
    assert run.result(2, 2.0) == []
    assert run.result(3, 3.0, returns=(1.0,)) == stops(reason)
    assert run.scheduler.outcome == Outcome("done", reason, 0)
    assert run.tick(1e5) == leaves()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_callback_ends_a_run_as_a_limit_does(rank: int) -> None:
    run = Run()
    run.learn_info(51)
    if rank == 0:
        orders = run.note(run.scheduler.end("stopped by Mine: enough", 0.0))
    else:
        orders = run.hear(rank, StopRequest("stopped by Mine: enough", 0))
    check_last_evaluation(run, orders, "stopped by Mine: enough")


def test_a_callback_that_ends_a_run_at_its_last_evaluation_changes_nothing() -> None:
    run = Run(max_train_iter=50)
    run.learn_info(51)
    run.result(3, 1.0)
    run.result(2, 2.0)
    reason = "max_train_iter reached: 51 of 50"
    assert run.result(3, 3.0, returns=(1.0,)) == stops(reason)
    run.main.evaluation.make_due()
    assert run.scheduler.end("stopped by Mine: no better", 4.0) == []
    assert reason_of(run) == reason


def test_a_callback_does_not_cut_the_last_evaluation_short() -> None:
    run = Run()
    run.hear(1, LearnResult(run.tasks[1].task_id, 1234))
    (order,) = run.result(3, 1.0)
    assert evaluates(order)
    assert run.scheduler.end("stopped by Mine: enough", 2.0) == []
    run.result(2, 2.5)
    reason = "the learner has done its iterations: 1234"
    assert run.result(3, 3.0, returns=(1.0,)) == stops(reason)


def test_a_callback_ends_a_run_that_does_not_learn_yet_at_once() -> None:
    run = Run(ready=False)
    run.main.reach(51)  # it is resumed
    assert run.scheduler.end("stopped by Mine: never", 0.0) == stops("stopped by Mine: never")


def test_what_follows_from_an_evaluation_has_what_was_set_at_it() -> None:
    run, values = evaluating(), {"level": (1, 1.0)}

    def observe(_rank: int, message: object) -> None:
        if isinstance(message, Evaluated):
            assert message.evaluation.mean == 3.0
            values["level"] = (2, 2.0)

    run.scheduler._observe = observe
    run.scheduler.commander.scheduled = lambda: dict(values)  # type: ignore[method-assign]
    (order,) = run.result(2, 6.0, returns=(3.0,))
    assert isinstance(order.message, CollectTask)
    assert order.message.scheduled == {"level": (2, 2.0)}


def test_train_iterations() -> None:
    """A learner that has done its iterations ends the run; the predecessor began a new one."""
    run = Run()
    orders = run.hear(1, LearnResult(run.tasks[1].task_id, 1234))
    assert run.main.train_iter == 1234
    check_last_evaluation(run, orders, "the learner has done its iterations: 1234")


def test_the_last_evaluation_may_reach_the_goal() -> None:
    run = Run(max_train_iter=50)
    run.learn_info(51)
    run.result(3, 1.0)
    run.result(3, 2.0, returns=(200.0,))
    assert reason_of(run) == "stop value reached: mean return 200.0 of 195"


def test_an_older_evaluation_under_way_is_followed_by_the_last() -> None:
    run = evaluating()
    run.hear(1, LearnResult(run.tasks[1].task_id, 1234))
    (again,) = run.result(2, 6.0, returns=(1.0,))
    assert (again.rank, evaluates(again)) == (2, True)
    lost = run.hear(2, TaskReturned(run.tasks[2].task_id, "all are retired"), 7.0)
    assert lost == [], "3 is still closing its task"
    (last,) = run.result(3, 8.0)
    assert (last.rank, evaluates(last)) == (3, True)
    assert run.result(3, 9.0, returns=(1.0,)) == stops("the learner has done its iterations: 1234")


def test_an_evaluation_under_way_that_is_of_the_last_policy_is_the_last() -> None:
    run = Run()
    run.learn_info(6)
    run.tick(EVERY_S)
    assert evaluates(*run.result(2, EVERY_S))
    assert run.hear(1, LearnResult(run.tasks[1].task_id, 7)) != []  # results here are of policy 7
    assert run.result(2, 6.0, returns=(1.0,)) == stops("the learner has done its iterations: 7")


def with_a_batch_under_way(**settings: Any) -> Run:
    """Its learners have learnt from one batch, and have been sent another."""
    run = Run(max_env_step=100, **settings)
    count = run.main.learners.size
    for number in range(1, 2 * count + 1):
        ready = block(number, [9])
        run.hear(count + 1, ready)
        for learner in range(1, count + 1):
            run.hear(learner, BlockAdmitted(number, 0.0))
    for train_iter in (0, 1):
        orders = [order for rank in range(1, count + 1) for order in run.ask_by(rank, train_iter)]
        assert sum(isinstance(order.message, Batches) for order in orders) == count
    return run


def test_the_last_evaluation_is_of_the_policy_after_the_last_batch() -> None:
    run = with_a_batch_under_way()
    run.main.evaluated_iter = 1
    run.progress(3, 100)
    assert run.scheduler.is_on, "it learns from one more batch"
    assert run.result(2, 1.0) == run.tick(1.5) == []
    orders = [*run.ask_by(1, 2), *run.tick(2.0)]
    assert [(order.rank, evaluates(order)) for order in orders] == [(2, True)]
    run.result(2, 3.0, returns=(1.0,))
    assert reason_of(run).startswith("max_env_step reached")


def test_an_older_evaluation_ends_no_run_while_a_batch_is_under_way() -> None:
    run = with_a_batch_under_way()
    run.tick(EVERY_S)
    assert any(map(evaluates, run.result(2, EVERY_S)))
    run.main.reach(1)
    run.progress(3, 100)
    run.main.evaluated_iter = 7  # results here are of policy 7
    assert run.result(2, 6.0, returns=(1.0,)) == []
    assert run.scheduler.is_on


@pytest.mark.parametrize("ended", ["died", "done"])
def test_the_last_evaluation_waits_for_no_learner_that_has_ended(ended: str) -> None:
    run = with_a_batch_under_way(learners=2)
    run.progress(4, 100)
    run.result(3, 1.0)
    assert [*run.ask_by(1, 2), *run.tick(2.0)] == [], "the other still learns"
    if ended == "died":
        orders = [*run.hear(2, RankLost(), 3.0), *run.tick(3.0)]
    else:
        orders = [*run.hear(1, LearnResult(run.tasks[1].task_id, 2), 3.0)]
        orders += run.hear(2, LearnResult(run.tasks[2].task_id, 2), 3.0)
    assert [order.rank for order in orders if evaluates(order)] == [3]


def test_a_signal_does_not_wait_for_the_last_evaluation() -> None:
    run = Run(max_train_iter=50)
    run.learn_info(51)
    run.result(3, 1.0)
    assert run.hear(0, StopRequest("SIGTERM", 85)) == stops("SIGTERM")
    assert run.scheduler.outcome == Outcome("stopped", "SIGTERM", 85)


@pytest.mark.parametrize(("reason", "code"), [("SIGINT", 130), ("SIGTERM", 85)])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_signal_on_any_rank(reason: str, code: int, rank: int) -> None:
    run = Run()
    assert run.hear(rank, StopRequest(reason, code)) == stops(reason)
    assert run.scheduler.outcome == Outcome("stopped", reason, code)
    assert say_goodbye(run, 1, 2, 3) == leaves(code)


def test_failure() -> None:
    run = Run()
    assert run.hear(3, FAILURE) == stops("EnvError: gone", 1, 2)
    assert run.scheduler.outcome == Outcome("failed", "EnvError: gone", 1, (3, FAILURE))
    assert say_goodbye(run, 2, 1) == leaves(1)


# ------------------------------------------------------------------------------------ the first one


def test_a_later_result_does_not_undo_the_end() -> None:
    """The predecessor's B1: the flag of the end was assigned from every result that came."""
    run = evaluating()
    run.result(2, 6.0, returns=(300.0,))
    outcome = run.scheduler.outcome
    assert run.result(3, 6.1, returns=(1.0,)) == []
    assert run.result(2, 6.2, returns=(1.0,)) == []
    assert run.hear(1, LearnResult(run.tasks[1].task_id, 99)) == []
    assert run.hear(0, StopRequest("SIGINT", 130)) == []
    assert run.progress(3, 10**9) == []
    assert run.tick(7.0) == []
    assert not run.scheduler.is_on
    assert run.scheduler.outcome == outcome
    assert say_goodbye(run, 1, 2, 3) == leaves()


def test_of_several_limits_at_once_the_first_counts() -> None:
    run = Run(max_env_step=100, max_train_iter=10)
    assert run.progress(2, 100) == stops("max_env_step reached: 100 of 100")
    assert run.learn_info(10) == []


# ------------------------------------------------------------------------------------- on its way


def test_nobody_gets_a_task_while_it_ends() -> None:
    run = Run(collectors=3)
    run.learn_info(10)
    run.hear(0, StopRequest("SIGINT", 130))
    assert run.tick(EVERY_S) == []
    assert run.result(2, 5.0) == []


def test_who_becomes_ready_while_it_ends_gets_nothing() -> None:
    run = Run(ready=False)
    run.ready(1)
    assert run.hear(1, StopRequest("SIGINT", 130)) == stops("SIGINT")
    assert run.ready(2) == []
    assert say_goodbye(run, 1, 2) == []
    assert run.ready(3) == []
    assert say_goodbye(run, 3) == leaves(130)


def test_what_is_published_while_it_ends_still_reaches_the_learner() -> None:
    run = Run()
    run.hear(0, StopRequest("SIGINT", 130))
    orders = run.hear(2, block(1, [5]))
    assert [(order.rank, type(order.message)) for order in orders] == [(1, AdmitBlock)]


@pytest.mark.parametrize(
    ("exit_code", "silent", "expected"),
    [
        (0, {}, ("done", 0)),
        (0, {3: "collector"}, ("done", 0)),
        (0, {1: "learner", 3: "collector"}, ("stopped", 85)),
        (85, {3: "collector"}, ("stopped", 85)),
        (130, {1: "learner"}, ("stopped", 130)),
        (1, {3: "collector"}, ("failed", 1)),
    ],
)
def test_how_a_run_ended_some_of_whose_ranks_are_silent(
    exit_code: int, silent: dict[int, str], expected: tuple[str, int]
) -> None:
    ended = Outcome(state_after(exit_code), "it ended", exit_code).without(silent)
    assert (ended.state, ended.exit_code) == expected
    named = f"; but ranks {list(silent)} did not end in order" if silent else ""
    assert ended.reason == "it ended" + (named if exit_code in (0, 85) else "")


def test_a_late_learner_is_no_error_once_it_ends() -> None:
    run = Run()
    run.hear(0, StopRequest("SIGINT", 130), 0.0)
    orders: Any = run.tick(TIMEOUTS.learner_task_s + 1)
    assert orders == leaves(130)
