"""Free and assigned workers, for the seeds' callers; the scheduler asks its own `workers`."""

from __future__ import annotations

from typing import Any


class NaiveResourceManager:
    """Free and assigned workers by kind ("collector", "learner"); who is free longest comes first.

    Nothing of hpcdi calls it.
    """

    def __init__(self) -> None:
        self._free: dict[str, dict[str, Any]] = {"collector": {}, "learner": {}}
        self._assigned: dict[str, dict[str, Any]] = {"collector": {}, "learner": {}}

    def assign_collector(self, collector_task: Any = None) -> dict[str, Any] | None:  # noqa: ARG002
        """Returns ``{"collector_id", "resource_info"}`` of a free collector, or None."""
        return self._assign("collector")

    def assign_learner(self, learner_task: Any = None) -> dict[str, Any] | None:  # noqa: ARG002
        """Returns ``{"learner_id", "resource_info"}`` of a free learner, or None."""
        return self._assign("learner")

    def have_assigned(self, name: str, id_: str) -> bool:
        """Returns whether a worker is assigned."""
        return id_ in self._assigned[name]

    def update(self, name: str, id_: str, info: Any) -> None:
        """Register a free worker and its resources, or free an assigned one."""
        self._assigned[name].pop(id_, None)
        self._free[name][id_] = info

    def delete(self, name: str, id_: str) -> bool:
        """Forget a worker; returns whether it was known."""
        known = id_ in self._free[name] or id_ in self._assigned[name]
        self._free[name].pop(id_, None)
        self._assigned[name].pop(id_, None)
        return known

    def _assign(self, name: str) -> dict[str, Any] | None:
        if not self._free[name]:
            return None
        id_ = next(iter(self._free[name]))
        info = self._free[name].pop(id_)
        self._assigned[name][id_] = info
        return {f"{name}_id": id_, "resource_info": info}
