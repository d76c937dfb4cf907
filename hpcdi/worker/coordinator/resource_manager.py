"""Which workers are free."""

from __future__ import annotations

from typing import Any


class NaiveResourceManager:
    """Workers by kind ("collector", "learner").

    Of free ones that goes first which has worked last: its environments are made.
    """

    def __init__(self) -> None:
        self._free: dict[str, dict[str, Any]] = {"collector": {}, "learner": {}}
        self._assigned: dict[str, dict[str, Any]] = {"collector": {}, "learner": {}}

    def assign_collector(self, collector_task: Any = None) -> dict[str, Any] | None:  # noqa: ARG002
        """``{"collector_id", "resource_info"}`` of a free collector; None where there is none."""
        return self._assign("collector")

    def assign_learner(self, learner_task: Any = None) -> dict[str, Any] | None:  # noqa: ARG002
        """``{"learner_id", "resource_info"}`` of a free learner; None where there is none."""
        return self._assign("learner")

    def have_assigned(self, name: str, id_: str) -> bool:
        """Whether a worker is given out."""
        return id_ in self._assigned[name]

    def update(self, name: str, id_: str, info: Any) -> None:
        """A worker is free (again), with what it has."""
        self._assigned[name].pop(id_, None)
        self._free[name][id_] = info

    def release(self, name: str, id_: str) -> None:
        """A worker has ended its task: it is free again, as it was."""
        if id_ in self._assigned[name]:
            self._free[name] = {id_: self._assigned[name].pop(id_), **self._free[name]}

    def delete(self, name: str, id_: str) -> bool:
        """Forget a worker; whether it was known."""
        known = id_ in self._free[name] or id_ in self._assigned[name]
        self._free[name].pop(id_, None)
        self._assigned[name].pop(id_, None)
        return known

    def free_count(self, name: str) -> int:
        """Number of free workers of a kind."""
        return len(self._free[name])

    def _assign(self, name: str) -> dict[str, Any] | None:
        if not self._free[name]:
            return None
        id_ = next(iter(self._free[name]))
        info = self._free[name].pop(id_)
        self._assigned[name][id_] = info
        return {f"{name}_id": id_, "resource_info": info}
