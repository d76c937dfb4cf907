"""Messages between a collector and the ranks of a solver, an environment that is an MPI program.

A message is one buffer: a head of 64 bytes, then doubles, then a text of lines ``name=value``.
``hpcdi/env/mpi/native/hpcdi.c`` has the same. Who says what::

    ASSIGN       collector -> its spare ranks  over the world: which environment they become
    HELLO        rank -> collector             over the world: process, host, doorbell, sizes
    GO           collector -> rank             over the world: how to make the communicators
    RESET, STEP  collector -> all ranks        over the pair (collector and group), numbered
    OBSERVATION  the group's rank 0 -> coll.   the answer, with the order's number
    BYE          the group's rank 0 -> coll.   its program ends
    ABANDON      collector -> all ranks        they end by SIGKILL
    END          collector -> all ranks        the job is over, or needs this group no more
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from hpcdi.dataclass import dataclass
from hpcdi.errors import CommError, LaunchError
from hpcdi.types import Array
from hpcdi.utils.metrics import ranges

PROTOCOL = 1
TEXT_BYTES = 4096
"""Room for the text of a message that is no answer."""
ANSWER_TEXT_BYTES = 1 << 20
"""Room for that of an answer: the numbers of an info."""
WORLD_TAG, ASSIGN_TAG = 18500, 18501
ORDER_TAG, ANSWER_TAG = 1, 2
_MAGIC = 0x53435048  # "HPCS"
_HEAD = struct.Struct("=IHHqqdBB6xqq8x")
"""Magic number, version, kind; number, seed, reward, terminated, truncated; values, text."""
HEAD_BYTES = _HEAD.size
LAST_LINE = "hpcdi: this rank of a solver ends: "
"""What a rank that ends itself prints last, with the reason after it."""
_PREFIX = "HPCDI_SOLVER_"
_NOTHING = np.empty(0)


class Kind(IntEnum):
    """What a message is; see the module's docstring."""

    HELLO = 1
    GO = 2
    RESET = 3
    STEP = 4
    OBSERVATION = 5
    END = 6
    BYE = 7
    ABANDON = 8
    ASSIGN = 9


SPACES_DIFFER = (
    "the spaces of the class's instances are not those that the run was planned with, of one that "
    "was made without ranks: have them follow from env.kwargs alone"
)


class SolverLost(Exception):
    """A group is lost: a rank of it died, it was given up, or its program ended."""


@dataclass(frozen=True)
class Sizes:
    """What a collector and its ranks must agree in.

    Attributes:
        observations, actions: numbers in an observation and in an action; -1: a program that has
            none.
        spaces: a checksum of a class's spaces; "": it has none.
    """

    observations: int = -1
    actions: int = -1
    spaces: str = ""


class SolverMessage(NamedTuple):
    """A message.

    Attributes:
        kind: what it is.
        number: of the order that it is, or answers.
        seed: of a reset.
        values: float64 [n]; an action, or an observation.
        reward, terminated, truncated: of an observation, what the step led to.
        lines: its text: name -> value.
    """

    kind: Kind
    number: int = 0
    seed: int = 0
    values: Array = _NOTHING
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    lines: Mapping[str, str] = MappingProxyType({})

    def numbers(self) -> dict[str, float]:
        """Returns the lines that are numbers."""
        found = {}
        for name, value in self.lines.items():
            with contextlib.suppress(ValueError):
                found[name] = float(value)
        return found


def room_for(values: int, text: int = TEXT_BYTES) -> int:
    """Returns the bytes of the largest message with so many values, and bytes of text."""
    return HEAD_BYTES + 8 * max(values, 0) + text


def pack(message: SolverMessage) -> bytes:
    """Returns a message's bytes.

    Raises:
        CommError: its text is too long, or a line of it is no line.
    """
    text = b""
    if message.lines:
        room = ANSWER_TEXT_BYTES if message.kind is Kind.OBSERVATION else TEXT_BYTES
        text = "".join(f"{name}={value}\n" for name, value in message.lines.items()).encode()
        if lines_of(text, message.kind) != message.lines:
            raise CommError(f"a message of a solver cannot carry the lines {dict(message.lines)}")
        if len(text) >= room:
            raise CommError(
                f"a message of a solver has a text of {len(text)} bytes, and room for {room - 1}"
            )
    kind, number, seed, values, *result, _ = message
    doubles = np.asarray(values, np.float64)
    head = _HEAD.pack(_MAGIC, PROTOCOL, kind, number, seed, *result, doubles.size, len(text))
    return head + doubles.tobytes() + text


def unpack(received: Array) -> SolverMessage:
    """Returns the message of some bytes; its values are a copy.

    Args:
        received: uint8 [n], at least as long as the message.

    Raises:
        CommError: it is none, of another version, or torn.
    """
    if len(received) < HEAD_BYTES:
        raise CommError(f"a solver's message has {len(received)} bytes, and its head alone 64")
    magic, version, kind, number, seed, reward, terminated, truncated, count, size = (
        _HEAD.unpack_from(received.data)
    )
    if magic != _MAGIC or version != PROTOCOL:
        raise CommError(
            f"a solver speaks version {version} of hpcdi's protocol, and this is version "
            f"{PROTOCOL}: compile it with the hpcdi.c of this hpcdi"
        )
    end = HEAD_BYTES + 8 * count
    if count < 0 or size < 0 or end + size > len(received):
        raise CommError(f"a solver's message of {len(received)} bytes claims to have {end + size}")
    try:
        message_kind = Kind(kind)
    except ValueError as error:
        raise CommError(f"a solver sends a message of kind {kind}, which there is not") from error
    values = received[HEAD_BYTES:end].view(np.float64).copy()
    text = received[end : end + size].tobytes()
    lines = lines_of(text, message_kind) if size else {}
    is_end, is_cut = bool(terminated), bool(truncated)
    return SolverMessage(message_kind, number, seed, values, reward, is_end, is_cut, lines)


def lines_of(text: bytes, kind: Kind) -> dict[str, str]:
    """Returns the lines ``name=value`` of a text.

    The names are the user's in an answer, where values are numbers; else values are, such as paths:
    only these have other signs "=" in them.
    """
    cut = str.rpartition if kind is Kind.OBSERVATION else str.partition
    split = (cut(line, "=") for line in text.decode(errors="replace").split("\n"))
    return {name: value for name, sign, value in split if sign}


def as_line(text: str) -> str:
    """Returns a text, such as an error's, as a message can carry it: in a line, cut if it is long.

    Its bytes are at most half of `TEXT_BYTES`.
    """
    line = " ".join(text.split()).encode(errors="replace")
    return line[: TEXT_BYTES // 2].decode(errors="ignore")


def lines_of_numbers(numbers: Mapping[str, float]) -> tuple[dict[str, str], int]:
    """Returns the lines of an info's numbers, and how many of these find no room."""
    lines, left = {}, ANSWER_TEXT_BYTES - 1
    for name, number in numbers.items():
        line, value = name.encode(errors="replace").replace(b"\n", b" "), repr(float(number))
        size = len(line) + len(value) + 2
        if size <= left:
            left -= size
            lines[line.decode()] = value
    return lines, len(numbers) - len(lines)


# ------------------------------------------------------------------------------- who is a solver


@dataclass(frozen=True)
class SolverPlace:
    """A group of ranks that is one environment, told to them by variables of their environment.

    Attributes:
        environment: its number in the job, from 0.
        ranks: of MPI_COMM_WORLD, in the group's order.
        collector: the rank that has it.
        assigner: of spare ranks: the rank that says whose they become, see `Kind.ASSIGN`.
    """

    environment: int
    ranks: tuple[int, ...]
    collector: int = 0
    assigner: int | None = None

    def variables(self) -> dict[str, str]:
        """Returns the variables of the environment of each of its ranks."""
        named = {
            "RANKS": ranks_text(self.ranks),
            "ENVIRONMENT": str(self.environment),
            "COLLECTOR": str(self.collector),
        }
        if self.assigner is not None:
            named["ASSIGNER"] = str(self.assigner)
        return {_PREFIX + name: value for name, value in named.items()}

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Self:
        """Returns the place that variables tell.

        Raises:
            LaunchError: they tell none.
        """
        named = {
            name.removeprefix(_PREFIX): value
            for name, value in variables.items()
            if name.startswith(_PREFIX)
        }
        try:
            assigner = int(named["ASSIGNER"]) if "ASSIGNER" in named else None
            environment, collector = int(named["ENVIRONMENT"]), int(named["COLLECTOR"])
            return cls(environment, ranks_of(named["RANKS"]), collector, assigner)
        except (KeyError, ValueError) as error:
            raise LaunchError(
                f"this process is no rank of a solver: {_PREFIX}* in its environment are {named}"
            ) from error

    def assignment(self) -> SolverMessage:
        """Returns the message that makes spare ranks this one."""
        lines = {
            "environment": str(self.environment),
            "collector": str(self.collector),
            "ranks": ranks_text(self.ranks),
        }
        return SolverMessage(Kind.ASSIGN, lines=lines)


def ranks_text(ranks: Iterable[int]) -> str:
    """Returns ranks as text: ``3-5,8``."""
    return ",".join(ranges(ranks))


def ranks_of(text: str) -> tuple[int, ...]:
    """Returns the ranks of a text of `ranks_text`.

    Raises:
        ValueError: it is none.
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
