"""Messages about who takes part: ranks that die, hang or are left, collectors that are wanted.

Who says what::

    link, of a dead rank ──► every rank     RankLost
    any                  ──► coordinator    Heartbeat
    collector            ──► coordinator    TaskReturned
    people               ──► coordinator    ScaleCollectors
    coordinator          ──► learner        Regroup
    learner              ──► learner        GroupAddress
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcdi.comm.messages import Message


@dataclass(frozen=True)
class RankLost(Message):
    """The sender has died. Its link says so in its place, after all that it had sent."""


@dataclass(frozen=True)
class Heartbeat(Message):
    """The sender's work has moved on since it last said so."""

    activity: str
    """What it has done last."""


@dataclass(frozen=True)
class TaskReturned(Message):
    """A collector has no environments left (`reason`): it can do nothing for a while."""

    task_id: str
    reason: str


@dataclass(frozen=True)
class ScaleCollectors(Message):
    """So many collectors should work; others wait until they are needed."""

    count: int


@dataclass(frozen=True)
class Regroup(Message):
    """These learners go on without those that have died: they form their group anew."""

    number: int
    """Rises: a later order makes the earlier ones void."""
    ranks: tuple[int, ...]
    """Members, in order; the first one opens the place where they meet."""
    hosts: tuple[str, ...]
    """Of each member."""


@dataclass(frozen=True)
class GroupAddress(Message):
    """Where the members of a group meet."""

    number: int
    host: str
    port: int
