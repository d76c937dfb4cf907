"""What a learner needs of the side that talks to the other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hpcdi.errors import GroupBrokenError
from hpcdi.utils.timer import RoleMeter


class LearnerPort(Protocol):
    """What a learner in a parallel run may ask of the message side."""

    @property
    def meter(self) -> RoleMeter:
        """Where the rank's time goes."""
        ...

    def get_data(self, batch_size: int) -> Any:
        """The next batch; None when no more will come."""
        ...

    def regroup(self, broken: GroupBrokenError) -> bool:
        """Another learner is gone: go on with the rest.

        Args:
            broken: what threw this one out of its batch.

        Returns:
            Whether the batch is to be done again; else the others have done it.

        Raises:
            GroupBrokenError: the run does not go on.
        """
        ...

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Publish a policy."""
        ...

    def wants_policy(self, train_iter: int) -> bool:
        """Whether somebody waits for a policy."""
        ...

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Tell the coordinator."""
        ...
