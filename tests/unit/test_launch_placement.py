"""Who plays which role where: pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.experiments import experiment
from hpcdi.errors import LaunchError
from hpcdi.launch.placement import (
    Place,
    check_gpus,
    gpu_names,
    groups_of,
    learner_of,
    learner_ranks,
    roles_of,
    table,
)

SHORT = {"coordinator": "C", "learner": "L", "collector": "c"}
FOUR = ("0", "1", "2", "3")


def hosts(*counts: int, gpus: tuple[str, ...] = (), first: str = "node1") -> list[Place]:
    """So many ranks on each of some hosts, one after the other."""
    start = int(first[4:])
    return [Place(f"node{start + i}", gpus) for i, count in enumerate(counts) for _ in range(count)]


def roles(places: list[Place], config: Any) -> str:
    return "".join(SHORT[role] for role in roles_of(places, config))


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
    with pytest.raises(LaunchError, match=r"no rank sees a GPU on node\S+; ask .*cuda=false"):
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


@pytest.mark.parametrize("world", [-1, 0, 1, 2])
def test_a_world_too_small(world: int) -> None:
    with pytest.raises(LaunchError, match="is too small"):
        roles_of(hosts(world), experiment(1))


@pytest.mark.parametrize(
    ("learners", "expected"),
    [(1, [1, 1, 1, 1, 1, 1]), (2, [1, 2, 1, 2, 1, 2]), (3, [1, 2, 3, 1, 2, 3])],
)
def test_collectors_belong_to_the_learners_in_turn(learners: int, expected: list[int]) -> None:
    all_roles = roles_of(hosts(7), experiment(learners))
    assert [learner_of(rank, all_roles) for rank in range(1, 7)] == expected


@given(
    st.integers(1, 8), st.lists(st.sampled_from(["learner", "collector"]), min_size=1, max_size=60)
)
def test_no_learner_has_more_than_its_share(learners: int, others: list[str]) -> None:
    all_roles = ["coordinator", *others, *["learner"] * learners]
    served = [learner_of(r, all_roles) for r, role in enumerate(all_roles) if role == "collector"]
    counts = [served.count(r) for r, role in enumerate(all_roles) if role == "learner"]
    assert sum(counts) == len(served)
    assert max(counts) - min(counts) <= 1


def placed(places: list[Place], config: Any, cores: int = 4) -> list[dict[str, Any]]:
    """What rank 0 knows of every rank, as in run.json."""
    all_roles = roles_of(places, config)
    names = gpu_names(places, all_roles, cuda=config.policy.cuda)
    return [
        {"rank": rank, "host": place.host, "role": role, "cores": list(range(cores)), "gpu": gpu}
        for rank, (place, role, gpu) in enumerate(zip(places, all_roles, names, strict=True))
    ]


def test_each_learner_has_a_gpu_of_its_own() -> None:
    places = hosts(4, 4, gpus=("2", "3"))
    gpus = [place["gpu"] for place in placed(places, on_gpus(4))]
    assert gpus == ["", "2", "3", "", "2", "3", "", ""]
    assert [place["gpu"] for place in placed(places, experiment(4))] == [""] * 8
    one_each = [Place("node1", (str(i),)) for i in range(5)]
    assert [place["gpu"] for place in placed(one_each, on_gpus(3))] == ["", "1", "2", "3", ""]


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


@pytest.mark.parametrize(("learners", "groups"), [(1, {}), (3, {"learners": (1, 2, 3)})])
def test_several_learners_are_a_group_of_ranks(learners: int, groups: dict[str, Any]) -> None:
    assert groups_of(roles_of(hosts(7), experiment(learners))) == groups
