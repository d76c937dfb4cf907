"""Policies for many collectors: one of each host asks the learners, and hands them to the others.

A learner that answers each of thousands of collectors ten times a second would do nothing else.
So where more collect than ``system.relay_policies_above``, the first collector of a host is the
relay of the others there: a learner answers as many as there are hosts, and a policy crosses the
network once for each. A relay asks for what it is asked for, no more often than for itself.
Evaluations, which need the learner's policy of that moment, ask the learner; so do all of a host
whose relay has died, or is silent.
"""

from __future__ import annotations

from collections.abc import Callable

from hpcdi.comm.messages import PolicyRequest, PolicyUpdate
from hpcdi.roles.collector.channels import PolicySubscriber


class PolicyRelay:
    """Answers the other collectors of a host; all calls are made on the communication thread.

    Args:
        subscriber: of this rank, to the policies of one group.
        send: sends an answer to a rank.
        player: the group's name.
    """

    def __init__(
        self,
        subscriber: PolicySubscriber,
        send: Callable[[int, PolicyUpdate], None],
        player: str,
    ) -> None:
        self._subscriber, self._send, self._player = subscriber, send, player
        self._waiting: dict[int, int] = {}  # rank -> version that it has

    def request(self, rank: int, request: PolicyRequest) -> None:
        """Take a collector's request; it is answered as soon as there is a newer policy here."""
        self._waiting[rank] = request.have_version
        self.look()

    def look(self) -> None:
        """Answer who can be answered, and ask the learner for the others when that is due."""
        image = self._subscriber.image
        if image is not None:
            for rank in [rank for rank, have in self._waiting.items() if have < image.version]:
                del self._waiting[rank]
                self._send(rank, PolicyUpdate.of(image.version, image.data, self._player))
        if self._waiting:
            self._subscriber.ask_when_due()

    def forget(self, rank: int) -> None:
        """A collector has died."""
        self._waiting.pop(rank, None)
