"""Number of ranks, roles, GPUs, and how ranks share a host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.experiments import experiment
from hpcdi.config.algorithms import DQNConfig
from hpcdi.config.compat import parse
from hpcdi.config.fields import replaced
from hpcdi.config.team import TeamConfig
from hpcdi.errors import EXIT_USAGE, LaunchError
from hpcdi.run.environment import thread_variables
from hpcdi.run.experiment import load_experiment
from hpcdi.run.placement import (
    COLLECTOR_NICENESS,
    HostShare,
    Place,
    RankPlace,
    check_gpus,
    check_world,
    communicators,
    default_world_size,
    learner_count,
    learner_groups,
    learner_ranks,
    learners_for,
    niceness_of,
    placement_of,
    roles_of,
    share_of_host,
    table,
    threads_of,
    useful_threads,
)

PICTURES = {"obs_shape": (4, 84, 84)}
SHORT = {"coordinator": "C", "learner": "L", "collector": "c"}
FOUR = ("0", "1", "2", "3")


def hosts(*counts: int, gpus: tuple[str, ...] = (), first: str = "node1") -> list[Place]:
    """So many ranks on each of some hosts, one after the other."""
    start = int(first[4:])
    return [Place(f"node{start + i}", gpus) for i, count in enumerate(counts) for _ in range(count)]


def roles(places: list[Place], config: Any) -> str:
    return "".join(SHORT[role] for role in roles_of(places, config))


def policy_of(learn: dict[str, Any] | None = None, **model: Any) -> DQNConfig:
    """Settings of DQN, with these of learning and of the network."""
    return parse(DQNConfig, {"type": "dqn", "model": model, "learn": learn or {}}, "policy")


def on_gpus(learners: int) -> Any:
    config = experiment(learners)
    return replace(config, policy=replace(config.policy, cuda=True))


@pytest.mark.parametrize(
    ("world", "learners", "expected"),
    [
        (3, 1, "CLc"),
        (4, 1, "CLcc"),
        (8, 1, "CLcccccc"),
        (4, 2, "CLLc"),
        (7, 3, "CLLLccc"),
        (6, 4, "CLLLLc"),
    ],
)
def test_without_gpus_the_first_ranks_learn(world: int, learners: int, expected: str) -> None:
    assert roles(hosts(world), experiment(learners)) == expected
    assert roles(hosts(2, world - 2, gpus=FOUR), experiment(learners)) == expected
    assert roles(hosts(world), on_gpus(learners)) == expected  # nobody sees any: the first ranks


@pytest.mark.parametrize(
    ("places", "learners", "expected"),
    [
        # two nodes of 4 GPUs: the first is filled first; rank 0 needs none
        (hosts(6, 6, gpus=FOUR), 4, "CLLLLccccccc"),
        (hosts(6, 6, gpus=FOUR), 6, "CLLLLcLLcccc"),
        (hosts(6, 6, gpus=FOUR), 8, "CLLLLcLLLLcc"),
        # a node without GPUs before the ones with
        (hosts(4) + hosts(3, 3, gpus=("0", "1"), first="node2"), 3, "CcccLLcLcc"),
        # one GPU a node
        (hosts(3, 3, 3, gpus=("0",)), 3, "CLcLccLcc"),
        # more learners than GPUs share them evenly
        (hosts(4, 4, gpus=("0",)), 4, "CLLcLLcc"),
        # fewer ranks with GPUs than learners: the others go where there is room
        (hosts(3) + hosts(1, gpus=FOUR, first="node2"), 2, "CLcL"),
        # a GPU to each task: rank 0 has one, and the others each their own
        ([Place("node1", (str(i),)) for i in range(4)], 3, "CLLL"),
        ([Place("node1", (str(i % 2),)) for i in range(5)], 2, "CLLcc"),
    ],
)
def test_learners_are_where_gpus_are(places: list[Place], learners: int, expected: str) -> None:
    if expected.count("c") == 0:
        with pytest.raises(LaunchError, match="too small"):
            roles_of(places, on_gpus(learners))
        assert learner_ranks(places, learners, cuda=True) == [1, 2, 3]
    else:
        assert roles(places, on_gpus(learners)) == expected


def test_learners_without_a_gpu_anywhere_are_refused() -> None:
    nowhere, somewhere = hosts(4, 2), hosts(4) + hosts(2, gpus=("0",), first="node2")
    with pytest.raises(LaunchError, match=r"no rank sees a GPU on node\S+; request .*cuda=false"):
        check_gpus(nowhere, cuda=True)
    check_gpus(somewhere, cuda=True)
    check_gpus(nowhere, cuda=False)


def test_in_a_heterogeneous_job_the_second_component_learns() -> None:
    job = [Place("cpu1")] * 3 + [Place("gpu1", component=1)] * 2
    assert roles(job, experiment(1)) == "CccLc"
    assert roles(job, experiment(2)) == "CccLL"
    assert roles(job, experiment(3)) == "CLcLL"
    # where GPUs are needed they decide, whichever component has them
    job = [Place("gpu1", FOUR)] * 3 + [Place("cpu1", component=1)] * 2
    assert roles(job, on_gpus(2)) == "CLLcc"


@given(
    st.lists(
        st.builds(
            Place,
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from([(), ("0",), ("0", "1"), FOUR]),
            st.integers(0, 1),
        ),
        min_size=3,
        max_size=24,
    ),
    st.data(),
)
def test_every_placement_is_sound(places: list[Place], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(places) - 2))
    for cuda in (False, True):
        chosen = learner_ranks(places, count, cuda=cuda)
        assert len(chosen) == count == len(set(chosen))
        assert chosen == sorted(chosen)
        assert 0 not in chosen
    # no rank without a GPU learns while one with a GPU does not
    idle = [r for r in range(1, len(places)) if r not in chosen and places[r].gpus]
    assert not idle or all(places[rank].gpus for rank in chosen)


@pytest.mark.parametrize(
    ("learners", "expected"),
    [(1, [1, 1, 1, 1, 1, 1]), (2, [1, 2, 1, 2, 1, 2]), (3, [1, 2, 3, 1, 2, 3])],
)
def test_collectors_belong_to_the_learners_in_turn(learners: int, expected: list[int]) -> None:
    all_roles = roles_of(hosts(7), experiment(learners))
    ranks = learner_groups(all_roles, experiment(learners))["main"]
    assert [learners_for(rank, all_roles, ranks)[0] for rank in range(1, 7)] == expected


@given(
    st.integers(1, 8), st.lists(st.sampled_from(["learner", "collector"]), min_size=1, max_size=60)
)
def test_no_learner_has_more_than_its_share(learners: int, others: list[str]) -> None:
    all_roles = ["coordinator", *others, *["learner"] * learners]
    ranks = [rank for rank, role in enumerate(all_roles) if role == "learner"]
    collectors = [rank for rank, role in enumerate(all_roles) if role == "collector"]
    served = [learners_for(rank, all_roles, ranks)[0] for rank in collectors]
    counts = [served.count(rank) for rank in ranks]
    assert sum(counts) == len(served)
    assert max(counts) - min(counts) <= 1


def placed(places: list[Place], config: Any, cores: int = 4) -> list[RankPlace]:
    return placement_of([replace(place, cores=tuple(range(cores))) for place in places], config)


def test_each_learner_has_a_gpu_of_its_own() -> None:
    places = hosts(4, 4, gpus=("2", "3"))
    gpus = [place.gpu for place in placed(places, on_gpus(4))]
    assert gpus == ["", "2", "3", "", "2", "3", "", ""]
    assert [place.gpu for place in placed(places, experiment(4))] == [""] * 8
    one_each = [Place("node1", (str(i),)) for i in range(5)]
    assert [place.gpu for place in placed(one_each, on_gpus(3))] == ["", "1", "2", "3", ""]


def test_the_table_of_a_few_ranks() -> None:
    places = hosts(2, gpus=("0", "1")) + hosts(2, first="node10")
    assert table(placed(places, on_gpus(1))) == [
        "  rank  host    role         cores  GPU",
        "     0  node1   coordinator      4  -",
        "     1  node1   learner          4  0",
        "     2  node10  collector        4  -",
        "     3  node10  collector        4  -",
    ]


def test_the_table_of_many_ranks_is_short() -> None:
    places = hosts(*[16] * 64, gpus=FOUR)
    assert table(placed(places, on_gpus(128), cores=32)) == [
        "  node1: 11 collectors, 1 coordinator, 4 learners; 32 cores; GPU 0,1,2,3",
        "  node[2-32]: 12 collectors, 4 learners; 32 cores; GPU 0,1,2,3",
        "  node[33-64]: 16 collectors; 32 cores",
    ]


@pytest.mark.parametrize(("learners", "groups"), [(1, {}), (3, {"learners of main": (1, 2, 3)})])
def test_several_learners_are_a_group_of_ranks(learners: int, groups: dict[str, Any]) -> None:
    config = experiment(learners)
    assert communicators(learner_groups(roles_of(hosts(7), config), config)) == groups


# --------------------------------------------------------------------------------- sizes and shares


@pytest.mark.parametrize(
    ("world", "learners", "missing", "needed"),
    [(2, 1, 1, 3), (1, 1, 2, 3), (0, 1, 3, 3), (-4, 1, 7, 3), (3, 2, 1, 4), (1, 3, 4, 5)],
)
def test_a_world_too_small_says_what_is_missing(
    world: int, learners: int, missing: int, needed: int
) -> None:
    config = experiment(learners, collectors=6)
    with pytest.raises(LaunchError) as caught:
        check_world(world, config)
    message = str(caught.value)
    assert f"a world of {world} rank{'s' if world != 1 else ''} is too small" in message
    assert f"{missing} missing" in message
    assert f"start it with -n {needed} or more (it asks for {1 + learners + 6})" in message
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("learners", "collectors", "size"), [(1, 1, 3), (1, 2, 4), (2, 6, 9), (4, 64, 69)]
)
def test_an_experiment_asks_for_a_rank_each(learners: int, collectors: int, size: int) -> None:
    config = experiment(learners, collectors)
    assert default_world_size(config) == size
    assert learner_count(config) == learners


@pytest.mark.parametrize(
    ("role", "cores", "others", "learners", "is_bound", "threads"),
    [
        ("learner", 16, 3, 1, False, 13),  # 3 cores for the 3 others
        ("learner", 16, 3, 1, True, 16),
        ("learner", 16, 4, 3, False, 4),  # three learners divide what is left
        ("learner", 4, 0, 1, False, 4),
        ("learner", 4, 3, 1, False, 1),
        ("learner", 2, 8, 1, False, 1),
        ("learner", 1, 0, 1, True, 1),
        ("coordinator", 16, 3, 1, True, 1),
        ("collector", 16, 3, 1, False, 1),
    ],
)
def test_threads(
    role: str, cores: int, others: int, learners: int, is_bound: bool, threads: int
) -> None:
    share = HostShare(cores, others, learners, is_bound)
    assert threads_of(role, share, policy_of(**PICTURES)) == threads
    assert threads_of(role, share, policy_of(obs_shape=4)) == 1, "small layers"


@pytest.mark.parametrize(
    ("model", "learn", "threads"),
    [
        ({"obs_shape": [4, 84, 84]}, {}, 16),
        ({"obs_shape": 4}, {}, 1),
        ({"obs_shape": 376, "encoder_hidden_size_list": [256, 256]}, {"batch_size": 256}, 1),
        ({"obs_shape": 4, "encoder_hidden_size_list": [1024, 1024]}, {"batch_size": 64}, 4),
        ({"obs_shape": 4, "encoder_hidden_size_list": [2048, 2048]}, {"batch_size": 4096}, 16),
        ({"obs_shape": 4, "type": "mine:make"}, {}, 1),
    ],
)
def test_a_learner_uses_the_threads_that_its_network_gains_from(
    model: dict[str, Any], learn: dict[str, Any], threads: int
) -> None:
    policy = policy_of(learn, **model)
    assert threads_of("learner", HostShare(16, 0, 1, True), policy) == threads
    # on a GPU they gather batches
    on_gpu = replace(policy, cuda=True)
    assert threads_of("learner", HostShare(16, 0, 1, True), on_gpu) == 16


@pytest.mark.parametrize(("name", "threads"), [("meet_mappo", 1), ("twostep_qmix", 1)])
def test_a_team_s_learner_uses_the_threads_that_its_networks_gain_from(
    name: str, threads: int
) -> None:
    """Over ranks it took all cores that others left, in one process one, whatever its networks."""
    path = f"{Path(__file__).parents[2]}/configs/{name}.yaml"
    team = load_experiment(path, ())[0].config.policy
    assert isinstance(team, TeamConfig)
    share = HostShare(16, 2, 1, False)
    assert threads_of("learner", share, team) == useful_threads(team) == threads
    wide = {"model.encoder_hidden_size_list": [2048, 2048], "learn.batch_size": 4096}
    policies = {key: replaced(one, wide) for key, one in team.policies.items()}
    large = replaced(replace(team, policies=policies), {"learn.batch_size": 4096})
    assert threads_of("learner", share, large) == 14 < useful_threads(large)


def test_a_learner_leaves_cores_to_the_solvers_of_its_host() -> None:
    places = placement_of([Place("a", cores=tuple(range(16)))] * 3, experiment(1))
    pictures = policy_of(**PICTURES)
    assert threads_of("learner", share_of_host(places[1], places), pictures) == 14
    assert threads_of("learner", share_of_host(places[1], places, 8), pictures) == 6


@pytest.mark.parametrize(
    ("role", "cores", "others", "learners", "is_bound", "steps_back"),
    [
        ("collector", 2, 3, 1, False, True),
        ("learner", 2, 3, 1, False, False),
        ("coordinator", 2, 3, 1, False, False),
        ("collector", 2, 3, 1, True, False),  # cores of its own
        ("collector", 3, 3, 1, False, False),  # rank 0 needs little
        ("collector", 2, 8, 0, False, False),  # nobody here learns
    ],
)
def test_collectors_step_back_where_it_is_crowded(
    role: str, cores: int, others: int, learners: int, is_bound: bool, steps_back: bool
) -> None:
    niceness = niceness_of(role, HostShare(cores, others, learners, is_bound))
    assert niceness == (COLLECTOR_NICENESS if steps_back else 0)


def test_threads_are_told_to_every_library() -> None:
    assert thread_variables(3) == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
        "NUMEXPR_NUM_THREADS": "3",
    }


def place(role: str, host: str, *cores: int) -> RankPlace:
    return RankPlace(host, cores=cores, role=role)


@pytest.mark.parametrize(
    ("placement", "threads"),
    [
        # all share the cores of one host: the learner takes what the others leave
        ([("coordinator", "a", *range(8)), ("learner", "a", *range(8))], 7),
        # each bound to cores of its own
        ([("coordinator", "a", 0), ("learner", "a", 1, 2, 3), ("collector", "a", 4)], 3),
        # one neighbour overlaps: the cores are not the learner's alone
        ([("coordinator", "a", 0, 1), ("learner", "a", 1, 2, 3), ("collector", "a", 4)], 1),
        # the others are on another host: same numbers, other cores
        ([("coordinator", "a", 0, 1), ("learner", "b", 0, 1), ("collector", "a", 0, 1)], 2),
    ],
)
def test_a_learner_computes_with_the_cores_that_are_left(
    placement: list[tuple[Any, ...]], threads: int
) -> None:
    places = [place(*who) for who in placement]

    def told(p: RankPlace) -> int:
        return threads_of(p.role, share_of_host(p, places), policy_of(**PICTURES))

    assert [told(p) for p in places if p.role == "learner"] == [threads]
    assert all(told(p) == 1 for p in places if p.role != "learner")
