"""Lists of hosts, as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdi.errors import LaunchError
from hpcdi.run.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("login", ["login"]),
        ("n1,n2", ["n1", "n2"]),
        ("node[001-003]", ["node001", "node002", "node003"]),
        (
            "a[001-003,7],b-[1-2]-ib0",
            ["a001", "a002", "a003", "a7", "b-1-ib0", "b-2-ib0"],
        ),
        ("gpu[01-02],cpu[01-02]", ["gpu01", "gpu02", "cpu01", "cpu02"]),
        ("r[0-1]n[09-10]", ["r0n09", "r0n10", "r1n09", "r1n10"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("node[5]", ["node5"]),
        ("login\n", ["login"]),
    ],
)
def test_expand(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3",
        "n1-3]",
        "n[1-x]",
        "n[]",
        "n[1,,2]",
        "n1,,n2",
        ",",
        "n1,",
        "n[[1]]",
        "n 1",
        "n[-3]",
        "a[5-3]",
    ],
)
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(LaunchError, match="is no list of hosts"):
        expand(text)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["n1"], "n1"),
        ([f"node{i}" for i in range(1, 65)], "node[1-64]"),
        (["a001", "a002", "a7", "b1"], "a[001-002,7],b1"),
        (["n9", "n10", "n09", "n8"], "n[9-10,09,8]"),
    ],
)
def test_compress(hosts: list[str], text: str) -> None:
    assert compress(hosts) == text


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,6}", fullmatch=True)
NUMBERED = st.builds(
    lambda prefix, first, count, width: [
        f"{prefix}{str(number).zfill(width)}" for number in range(first, first + count)
    ],
    st.sampled_from(["n", "gpu", "rack1-n"]), st.integers(0, 1200), st.integers(1, 30),
    st.integers(1, 4),
)  # fmt: skip


@given(st.lists(st.one_of(NAMES.map(lambda name: [name]), NUMBERED), max_size=8))
def test_what_is_compressed_expands_to_the_same(groups: list[list[str]]) -> None:
    hosts = [host for group in groups for host in group]
    assert expand(compress(hosts)) == hosts


def reads(text: str) -> list[str] | None:
    """Hosts of a text; None where it is no list."""
    try:
        return expand(text)
    except LaunchError:
        return None


@given(st.text("n1-[],09 ", max_size=12))
def test_any_text_is_a_list_or_told_to_be_none(text: str) -> None:
    assert all(host and not set(host) & set("[], ") for host in reads(text) or [])
