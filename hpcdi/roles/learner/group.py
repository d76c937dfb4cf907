"""The group of learners, and how the survivors regroup when a member dies.

Rank 0 sends the survivors' ranks (`Regroup`). Each survivor reads it between two batches, or when
its batch is interrupted because the dead member's gradients do not arrive. Then::

    leave the old group ──► form the new one ──► who has done the most batches? ──► take its state
                                                                 └─► repeat the batch, or the next

All learners get the same number of batches, and none can end a batch before all others have begun
it. So survivors are at most one batch apart: a batch that one of them has done is skipped by the
others, a batch that none has done is repeated by all (`Learner._learn` says from which state).
An order to begin anew counts as a batch: who has carried it out is ahead of who has not; the others
still have it before them, and carry it out as well, which changes nothing then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hpcdi.comm.messages import GroupAddress, Message, Regroup
from hpcdi.errors import CommError, GroupBrokenError
from hpcdi.roles.context import WorkerContext
from hpcdi.roles.learner.training import Training
from hpcdi.utils.backoff import Backoff
from hpcdi.utils.log import LOGGER
from hpcdi.utils.watchdog import WAITING

_MEET_S = 60.0
"""Seconds for rank 0 to say who is left; and for survivors to come who have ended a batch."""


class Membership:
    """This rank's place in the group of learners.

    Args:
        context: this rank's place in the run; the group's members at the start are in it.
        send: sends a message to a rank.
        is_ending: whether the run ends, asked while this rank waits for the others; it keeps the
            rank's messages going.

    Attributes:
        rank: in the group.
        size: of the group.
        begun: number of batches begun, and of orders to begin anew carried out; the same ones, in
            the same order, on all learners.
    """

    def __init__(
        self,
        context: WorkerContext,
        send: Callable[[int, Message], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self.rank, self.size, self.begun = 0, 1, 0
        self._context, self._send, self._is_ending = context, send, is_ending
        self._ordered: Regroup | None = None  # what is to be carried out
        self._address: GroupAddress | None = None
        # a member that hangs or is frozen is found and killed before the others give up
        self._limit_s = context.config.system.survival.worker_timeout_s + _MEET_S
        self._backend = "nccl" if context.config.policy.cuda else "gloo"
        if context.learners_comm is not None:
            self.rank, self.size = self._join(context.learners_comm)

    def leave(self) -> None:
        """Leave the group, which frees those who wait for this member. Idempotent."""
        if self.size > 1:
            from hpcdi.comm.group import dist_finalize

            dist_finalize()

    # ------------------------------------------------------------------ on the communication thread

    def order(self, regroup: Regroup) -> None:
        """Take rank 0's list of survivors."""
        self._ordered = regroup

    def meet_at(self, address: GroupAddress) -> None:
        """Take the address at which the new group meets."""
        self._address = address

    # ---------------------------------------------------------------------- on the computing thread

    @property
    def is_stale(self) -> bool:
        """True if a member has died and the survivors must regroup."""
        return self._ordered is not None

    def regroup(self, training: Training, broken: GroupBrokenError | None = None) -> bool:
        """Form the group of the survivors.

        Args:
            training: takes the state of the survivor that has done the most batches.
            broken: raised in the batch that the death interrupted; None: between two batches.

        Returns:
            Whether to do the present batch again; False as well where the run ends meanwhile.

        Raises:
            GroupBrokenError: the run does not go on without the dead member.
        """
        error = broken or GroupBrokenError("a learner has died, and this run does not survive it")
        if not self._context.link.ranks_may_die:
            raise error
        done = self.begun - (broken is not None)
        while True:
            self.leave()
            order = self._wait_for_order(error)
            if order is None:
                return False
            try:
                self._form(order)
                behind = self._share(training, done)
            except CommError as problem:  # another one has died meanwhile
                LOGGER.warning("the learners' group could not be formed: %s", problem)
                continue
            facts = {"ranks": order.ranks, "batches_behind": behind}
            LOGGER.info("the learners have regrouped", extra={"group": facts})
            return behind == 0

    def _wait_for_order(self, error: GroupBrokenError) -> Regroup | None:
        """Returns rank 0's list of survivors; None where the run ends."""
        deadline, backoff = time.monotonic() + _MEET_S, Backoff()
        while self._ordered is None:
            if self._is_ending():
                return None
            if time.monotonic() > deadline:
                raise error
            backoff.nap()
        regroup, self._ordered = self._ordered, None
        return regroup

    def _form(self, regroup: Regroup) -> None:
        """Join the new group.

        Raises:
            CommError: not all survivors come.
        """
        from hpcdi.comm.group import Meeting

        self.rank, self.size = regroup.ranks.index(self._context.link.rank), len(regroup.ranks)
        if self.size > 1:
            self._join(Meeting(self.rank, regroup.hosts, partial(self._share_address, regroup)))

    def _join(self, members: Any) -> tuple[int, int]:
        """Join a process group; returns the rank in it, and its size; see `dist_init`.

        Args:
            members: MPI communicator of them, or how else they meet.

        Raises:
            CommError: not all of them come.
        """
        from hpcdi.comm.group import DEFAULT_TIMEOUT_S, dist_init

        timeout_s = max(self._limit_s, DEFAULT_TIMEOUT_S)
        with WAITING:
            return dist_init(self._backend, timeout=timeout_s, group=members)

    def _share(self, training: Training, done: int) -> int:
        """Share the most advanced state; returns how many batches this learner was behind."""
        from hpcdi.comm.group import broadcast_object, gather_objects

        done_by_rank = gather_objects(done)
        most = max(done_by_rank)
        source = done_by_rank.index(most)
        is_source = source == self.rank
        state = training.shared_state() if is_source and self.size > 1 else None
        state = broadcast_object(state, source)
        if not is_source:
            training.take_shared_state(state)
        training.take_place(self.rank, self.size)
        return int(most - done)

    def _share_address(
        self, regroup: Regroup, address: tuple[str, int, str] | None
    ) -> tuple[str, int, str]:
        """Send the new group's address to its members, or return it; see `Meeting.share`.

        Raises:
            GroupBrokenError: its first member does not send it, or has died as well.
        """
        if address is not None:
            for rank in regroup.ranks[1:]:
                self._send(rank, GroupAddress(regroup.number, *address))
            return address
        deadline, backoff = time.monotonic() + self._limit_s, Backoff()
        while self._address is None or self._address.number != regroup.number:
            if self._is_ending() or self._ordered is not None or time.monotonic() > deadline:
                raise GroupBrokenError(f"rank {regroup.ranks[0]} has not opened the new group")
            backoff.nap()
        return self._address.host, self._address.port, self._address.key
