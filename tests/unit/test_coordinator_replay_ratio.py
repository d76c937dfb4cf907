"""Samples drawn and transitions collected stay in a given proportion."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from fakes.replay import BLOCK_BYTES, block, demand, make_buffer, make_replay, read_all
from fakes.scheduler import EVERY_S, Run, evaluates
from hpcdi.comm.messages import CollectPause
from hpcdi.config.compiled import compile_config
from hpcdi.errors import ConfigError
from hpcdi.replay.manager import ReplayManager, create_replay
from hpcdi.replay.ratio import ReplayRatio, replay_ratio_of
from hpcdi.roles.coordinator.workers import Order


def test_without_a_ratio_nobody_waits() -> None:
    kept = ReplayRatio()
    assert kept.due(10**9, 0) == math.inf
    assert not kept.collectors_wait
    assert not kept.blocked(0, 64)


def test_due_samples_count_from_the_end_of_the_warm_up() -> None:
    kept = ReplayRatio(2.0, warm_up=100, slack=50)
    assert kept.due(100, 0) == 0
    assert kept.due(110, 0) == 20
    assert kept.due(110, 30) == -10
    assert kept.blocked(30, 8).startswith("learners wait: 2 samples")


def test_collectors_wait_from_the_slack_on_until_half_of_it_is_left() -> None:
    kept = ReplayRatio(1.0, slack=100)
    waits = []
    for steps, drawn in ((100, 0), (101, 0), (101, 50), (101, 52), (150, 52), (153, 52)):
        kept.due(steps, drawn)
        waits.append(kept.collectors_wait)
    assert waits == [False, True, True, False, False, True]
    assert kept.blocked(52, 8).startswith("collectors wait: 1 samples")


@pytest.mark.parametrize("learner_speed", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("ratio", [0.25, 2.0, 8.0])
def test_whoever_is_slow_the_ratio_is_kept(ratio: float, learner_speed: float) -> None:
    """Collectors of 10 to 30 steps a turn, learners of so many batches of 16."""
    rng = np.random.default_rng(0)
    kept, steps, drawn = ReplayRatio(ratio, warm_up=50, slack=ratio * 100 + 64), 0, 0
    could = 0.0
    for _ in range(2000):
        kept.due(steps, drawn)
        if not kept.collectors_wait:
            steps += int(rng.integers(10, 30))
        could += learner_speed * rng.random()
        while could >= 1 and kept.due(steps, drawn) >= 16:
            drawn, could = drawn + 16, could - 1
        could = min(could, 5.0)
    due = ratio * (steps - 50)
    assert due - (ratio * 130 + 64) <= drawn <= due


def replay_of(ratio: float, learners: int) -> ReplayManager:
    replay = ReplayManager(
        make_buffer, BLOCK_BYTES, ratio=ReplayRatio(ratio, warm_up=5, slack=8 * learners)
    )
    replay.open(*range(1, learners + 1))
    for number in range(learners):
        read_all(replay, replay.assign(block(number + 1, [10])))
    return replay


@pytest.mark.parametrize("learners", [1, 2])
def test_learners_get_what_is_due_and_wait_for_the_rest(learners: int) -> None:
    replay, steps = replay_of(2.0, learners), 10 * learners
    for part in replay.partitions.values():
        part.demand(demand(50, 4))
    while replay.serve(steps, ()):
        pass
    due = 2 * (steps - 5)
    assert due - 4 * learners < replay.samples_drawn() <= due
    assert replay.blocked.startswith("learners wait: 2 samples")
    assert replay.serve(steps + 2 * learners, ()), "more transitions, more samples"


def test_collectors_do_not_wait_for_a_buffer_that_refuses_to_be_drawn_from() -> None:
    """Else both would wait for each other, for ever."""
    replay = make_replay(min_fill=50)
    replay.ratio = ReplayRatio(2.0, slack=4)
    replay.open(1)
    read_all(replay, replay.assign(block(1, [10])))
    replay.partitions[1].demand(demand(5, 4))
    assert replay.serve(10, ()) == []
    assert not replay.collectors_wait(10)
    replay.partitions[1].buffer = make_buffer("other")
    assert replay.collectors_wait(10)


def test_collectors_wait_for_a_learner_that_reads_its_blocks_first() -> None:
    """As after a resume: it will draw; meanwhile they would be far ahead of it."""
    replay = replay_of(2.0, 1)
    part = replay.partitions[1]
    part.backlog.must_read.add(7)
    part.demand(demand(5, 4))
    assert replay.serve(100, ()) == []
    assert part.blocked == "1 blocks are read first"
    assert replay.collectors_wait(100)


def pauses(orders: list[Order]) -> list[tuple[int, bool]]:
    return [(o.rank, o.message.waits) for o in orders if isinstance(o.message, CollectPause)]


def test_every_collector_is_told_to_wait_and_to_go_on_once() -> None:
    run = Run()
    run.main.replay.ratio = ReplayRatio(1.0, slack=100)
    assert pauses(run.progress(2, 90)) == []
    run.main.env_steps = 200
    assert pauses(run.scheduler.tick(1.0)) == [(2, True), (3, True)]
    assert pauses(run.scheduler.tick(1.1)) == []
    run.groups.partitions[1].samples_drawn = 160
    assert pauses(run.scheduler.tick(1.2)) == [(2, False), (3, False)]


def test_room_is_what_may_come_until_collectors_wait() -> None:
    kept = ReplayRatio(2.0, warm_up=100, slack=50)
    assert kept.room(0, 0) == kept.room(25, 50) == 125
    assert ReplayRatio().room(0, 0) == ReplayRatio(2.0, offline=10).room(0, 9) == math.inf
    kept.due(125, 0)
    assert not kept.collectors_wait
    kept.due(126, 0)
    assert kept.collectors_wait


def beginning(steps: int) -> Run:
    """Two collectors may make 100 transitions before their learner draws; rank 0 knows of some."""
    run = Run(ready=False)
    run.main.replay.ratio = ReplayRatio(1.0, warm_up=60, slack=40)
    orders = [order for rank in run.ranks for order in run.ready(rank)]
    shares = [(o.rank, o.message) for o in orders if isinstance(o.message, CollectPause)]
    assert shares == [(2, CollectPause(True, 51)), (3, CollectPause(True, 51))]
    assert pauses(run.scheduler.tick(0.5)) == []
    run.main.env_steps = steps
    return run


def test_at_first_collectors_make_their_shares_and_wait() -> None:
    run = beginning(102)
    assert pauses(run.scheduler.tick(0.6)) == [(2, True), (3, True)]
    run.groups.partitions[1].samples_drawn = 30
    assert pauses(run.scheduler.tick(0.7)) == [(2, False), (3, False)]


def test_a_late_collector_holds_up_the_others_for_a_second() -> None:
    run = beginning(51)
    assert pauses(run.scheduler.tick(10.0)) == []
    assert pauses(run.scheduler.tick(10.9)) == []
    assert pauses(run.scheduler.tick(11.1)) == [(2, False), (3, False)]


def test_collectors_that_wait_until_they_are_needed_make_no_share() -> None:
    run = Run(4, ready=False)
    run.scheduler.want_collectors(2)
    run.main.replay.ratio = ReplayRatio(1.0, warm_up=60, slack=40)
    for rank in run.ranks:
        run.ready(rank)
    assert run.main.pause == CollectPause(True, 51)


def test_a_run_that_began_offline_shares_out_when_it_begins_to_collect() -> None:
    """Not with the evaluations before: then nothing may come yet."""
    run = Run(ready=False)
    run.main.replay.ratio = ReplayRatio(1.0, slack=40, offline=20)
    for rank in run.ranks:
        run.ready(rank)
    run.learn_info(10)
    assert [o.rank for o in run.tick(EVERY_S) if evaluates(o)] == [2]
    assert run.result(2, EVERY_S, (1.0,)) == []
    run.groups.partitions[1].samples_drawn = 20
    orders = run.tick(EVERY_S + 0.1)
    assert [o.message.after for o in orders if isinstance(o.message, CollectPause)] == [21, 21]


def config(**policy: Any) -> Any:
    return compile_config({"env": {"env_id": "CartPole-v1"}, "policy": policy}).config


def test_an_experiment_without_a_ratio_has_none() -> None:
    free = {"learn": {"replay_ratio": None}}, {"learn": {"update_per_collect": 2}}
    rate = {"thruput_controller": {"push_sample_rate_limit": {"max": 2}}}
    for policy in (*free, {"other": {"replay_buffer": rate}}, {"type": "r2d2"}, {"type": "ppo"}):
        assert replay_ratio_of(config(**policy), 2).due(10**9, 0) == math.inf
    assert replay_ratio_of(config(learn={"replay_ratio": 3}), 2).due(1000, 0) == 3 * 999
    assert replay_ratio_of(config(), 2).due(1000, 0) == 8 * 999, "as DQN's paper has it"


def test_no_samples_are_due_for_the_transitions_of_the_first_sequences() -> None:
    """The buffer is filled to `min_fill` by sequences that are 20 transitions apart."""
    learn, buffer = {"replay_ratio": 2}, {"min_fill": 101}
    collect = {"n_sample": 80}
    kept = replay_ratio_of(
        config(type="r2d2", learn=learn, collect=collect, other={"replay_buffer": buffer})
    )
    assert (kept.due(2001, 0), kept.due(2011, 0)) == (0, 20)
    assert not kept.collectors_wait


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("episode", [5, 30, 80])  # of which there is a sequence, one, three
def test_samples_are_due_from_when_the_first_sequences_are_there(
    episode: int, in_turns: bool
) -> None:
    """Learning waited where episodes were short, or learnt much at once, by what was foreseen."""
    policy = {
        "type": "r2d2",
        "learn": {"replay_ratio": 2, "burn_in": 10, "batch_size": 8},
        "collect": {"n_sample": 80, "unroll_len": 20},
        "other": {"replay_buffer": {"min_fill": 100}},
    }
    replay = create_replay(config(**policy), in_turns=in_turns)
    replay.open(1)
    steps = number = 0
    while replay.count() < 100:
        ready, number, steps = block(number + 1, [episode]), number + 1, steps + episode
        replay.note(ready)
        replay.ratio.begin_round(episode)
        read_all(replay, replay.assign(ready))
    again = replay_ratio_of(config(**policy), in_turns=in_turns)
    again.load_state_dict(replay.ratio.state_dict(), steps, 0, 0)
    begins = episode * 100 // {5: 1, 30: 1, 80: 4}[episode]
    for ratio in (replay.ratio, again):
        ratio.note(1, 10)
        assert ratio.due(steps + 10, 0) == 2 * (steps + 10 - begins)


@pytest.mark.parametrize("in_turns", [False, True])
def test_in_rounds_samples_are_due_in_whatever_order_the_blocks_came(in_turns: bool) -> None:
    """Of a deterministic run: one of long episodes has fewer items, and hindsight's copies more."""
    cfg = config(other={"replay_buffer": {"min_fill": 30}})
    cfg = dataclasses.replace(cfg, system=dataclasses.replace(cfg.system, deterministic=True))
    due = set()
    for blocks in itertools.permutations([(8, 8), (40, 8), (0, 8)]):
        ratio = replay_ratio_of(cfg, in_turns=in_turns)
        for number, (items, env_steps) in enumerate(blocks, 1):
            ratio.note(items, env_steps)
            ratio.blocked(0, 64)  # for people, at any time
            ratio.due(8 * number, 0)
        ratio.begin_round(24)
        due.add(ratio.due(24, 0))
    assert due == {8 * (24 - 15)}


def updates(rounds: int, **policy: Any) -> list[int]:
    """Batches after each of some rounds of 100 transitions, where they are drawn at once."""
    kept, done = replay_ratio_of(config(**policy), in_turns=True), []
    for number in range(1, rounds + 1):
        kept.begin_round(100)
        done.append(int(kept.batches(100 * number, 64 * sum(done), 64)))
        kept.take(done[-1])
        assert not kept.collectors_wait, "they take turns"
    return done


def test_in_turns_there_are_so_many_updates_after_each_round() -> None:
    assert updates(3, learn={"update_per_collect": 7}) == [7, 7, 7]
    assert updates(2, type="r2d2") == [2, 2], "one for 64 transitions, to the nearest"
    assert updates(2, type="sac", learn={"replay_ratio": None}) == [100, 100], "one for each"
    assert updates(2, type="ppo") == [1, 1], "all that there is"
    given = {"learn": {"update_per_collect": 2}, "random_collect_size": 150}
    assert updates(3, **given) == [0, 2, 2], "none before it is warm"
    # 8 samples a transition are 12.5 batches of 64: what is left is due in the next round
    assert updates(3, other={"replay_buffer": {"min_fill": 100}}) == [0, 12, 13]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"learn": {"replay_ratio": 2, "update_per_collect": 3}}, "is set beside replay_ratio"),
        ({"type": "ppo", "learn": {"replay_ratio": 2}}, "each transition is learnt from once"),
        ({"learn": {"replay_ratio": 0}}, "replay_ratio"),
        ({"learn": {"replay_ratio": "papr"}}, "is a number, null or 'paper'"),
    ],
)
def test_ratios_that_mean_nothing_are_refused(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**policy)


def test_a_ratio_that_is_another_one_after_a_resume_counts_from_there() -> None:
    """Nobody waits for what the old one has drawn, or has not."""
    before = ReplayRatio(32.0, warm_up=100, slack=64)
    again, other = (ReplayRatio(ratio, warm_up=100, slack=64) for ratio in (32.0, 1.0))
    again.load_state_dict(before.state_dict(), 1000, 28_000, 280)
    assert again.due(1001, 28_000) == before.due(1001, 28_000) == 832
    other.load_state_dict(before.state_dict(), 1000, 28_000, 280)
    assert [other.due(steps, 28_000) for steps in (1000, 1001, 1100)] == [0, 1, 100]
    later = ReplayRatio(1.0, warm_up=100, slack=64)  # and so it does after a restart
    later.load_state_dict(other.state_dict(), 1100, 28_100, 290)
    assert later.due(1101, 28_100) == 1


def test_offline_iterations_stay_as_many_with_another_batch_size() -> None:
    before, other = (ReplayRatio(1.0, offline=200 * size, batch=size) for size in (128, 16))
    other.load_state_dict(before.state_dict(), 0, 100 * 128, 100)
    assert other.is_offline(100 * 128 + 99 * 16)
    assert not other.is_offline(100 * 128 + 100 * 16)
    assert other.due(10, 100 * 128 + 100 * 16) == 10


def test_offline_iterations_that_rank_0_has_not_heard_of_yet_count() -> None:
    """A snapshot has 16 iterations more than its index: learners had these batches."""
    before, more = ReplayRatio(offline=200 * 8, batch=8), ReplayRatio(offline=300 * 4, batch=4)
    more.load_state_dict(before.state_dict(), 0, 100 * 8, 84)
    assert more.is_offline(100 * 8 + 199 * 4)
    assert not more.is_offline(100 * 8 + 200 * 4)
    forever, no_more = ReplayRatio(offline=math.inf, batch=8), ReplayRatio(offline=90 * 8, batch=8)
    no_more.load_state_dict(forever.state_dict(), 0, 80 * 8, 80)
    assert no_more.is_offline(89 * 8)
    assert not no_more.is_offline(90 * 8)


def test_offline_iterations_stay_as_many_when_a_learner_dies() -> None:
    """Batches of 4 of two learners, then of one; and of two again after a restart."""

    def served(replay: ReplayManager, most: int) -> int:
        """Iterations until it collects, which the learners ask for one by one; at most so many."""
        for done in range(most):
            if not replay.is_offline:
                return done
            for part in replay.partitions.values():
                part.demand(demand(1, 4))
            assert replay.serve(0, ())
        return most

    replay = replay_of(1.0, 2)
    replay.ratio = ReplayRatio(1.0, offline=20 * 8, batch=8)
    assert served(replay, 4) == 4
    read_all(replay, replay.lose(2))
    assert served(replay, 6) == 6
    again = ReplayRatio(1.0, offline=20 * 8, batch=8)
    drawn = replay.samples_drawn()
    again.load_state_dict(replay.ratio.state_dict(), 0, drawn, 10)
    assert again.is_offline(drawn + 9 * 8)
    assert not again.is_offline(drawn + 10 * 8)
    assert served(replay, 100) == 10
