"""hpcdi's dataclasses behave as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from hpcdi.dataclass import dataclass

standard = dataclasses.dataclass


def family(decorator: Any) -> tuple[type[Any], type[Any]]:
    @decorator(frozen=True)
    class Base:
        """A class."""

        kind: ClassVar[str] = "base"
        a: int
        b: list[int] = field(default_factory=list)

        @property
        def double(self) -> int:
            return 2 * self.a

    @decorator(frozen=True)
    class Derived(Base):
        """One that changes a default and adds a field."""

        b: tuple[int, ...] = ()  # type: ignore[assignment]
        c: float = field(default=0.5, metadata={"about": "c"})

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError(f"{self.a} is below 0")

    return Base, Derived


@pytest.fixture(params=[0, 1], ids=["base", "derived"])
def twins(request: pytest.FixtureRequest) -> tuple[type[Any], type[Any]]:
    return family(dataclass)[request.param], family(standard)[request.param]


def test_fields_defaults_and_signature_are_the_same(twins: tuple[type[Any], type[Any]]) -> None:
    ours, theirs = twins
    keys = ("name", "type", "default", "default_factory", "metadata", "init", "compare", "kw_only")
    told = [
        [{key: getattr(each, key) for key in keys} for each in dataclasses.fields(cls)]
        for cls in twins
    ]
    assert told[0] == told[1]
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__match_args__ == theirs.__match_args__
    assert hasattr(ours, "b") == hasattr(theirs, "b")


def test_objects_are_shown_compared_copied_and_replaced_the_same(
    twins: tuple[type[Any], type[Any]],
) -> None:
    for cls in twins:
        one, other = cls(1, (2,)), cls(b=(2,), a=1)
        assert one == other
        assert hash(one) == hash(other)
        assert one != cls(1, (3,))
        assert one != (1, (2,))
        assert dataclasses.replace(one, a=4) == cls(4, (2,))
        assert copy.deepcopy(one) == one
        assert one.double == 2
    shown = [repr(cls(1)) for cls in twins]
    assert shown[0] == shown[1]
    assert dataclasses.asdict(twins[0](1)) == dataclasses.asdict(twins[1](1))


def test_each_object_has_its_own_default() -> None:
    base, _ = family(dataclass)
    base(1).b.append(3)
    assert base(1).b == []


def test_wrong_arguments_and_assignments_are_refused(twins: tuple[type[Any], type[Any]]) -> None:
    texts = []
    for cls in twins:
        for wrong in ((), (1, 2, 3, 4)):
            with pytest.raises(TypeError) as error:
                cls(*wrong)
            texts.append(str(error.value).split(".")[-1])
        for change in (lambda each: setattr(each, "a", 2), lambda each: delattr(each, "a")):
            with pytest.raises(dataclasses.FrozenInstanceError) as refusal:
                change(cls(1))
            texts.append(str(refusal.value))
    assert texts[: len(texts) // 2] == texts[len(texts) // 2 :]


def test_what_follows_the_init_is_called() -> None:
    with pytest.raises(ValueError, match="below 0"):
        family(dataclass)[1](-1)


def test_a_users_own_dataclass_may_derive_from_one_and_the_other_way_round() -> None:
    base, _ = family(dataclass)

    @standard(frozen=True)
    class Theirs(base):  # type: ignore[misc, valid-type]
        """A user's."""

        d: int = 7

    @dataclass(frozen=True)
    class Again(Theirs):
        """One of ours."""

        e: int = 8

    assert Again(1, [2], 3, 4) == Again(a=1, b=[2], d=3, e=4)
    assert Again(1).d == 7


@dataclass(frozen=True)
class Sent:
    """One that is pickled."""

    a: int


def test_one_that_arrives_by_pickle_before_any_was_made_here() -> None:
    sent = pickle.dumps(Sent(1))
    assert pickle.loads(sent) == Sent(1)
