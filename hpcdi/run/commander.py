"""The commander of a run; `hpcdi.worker` is imported only where that has it."""

from __future__ import annotations

from hpcdi.config.schema import ExperimentConfig
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.groups import Groups

_BUILT_IN = ("solo", "one_vs_one")


def make_commander(config: ExperimentConfig, groups: Groups) -> Commander:
    """Make the commander that ``policy.other.commander.type`` names.

    Raises:
        UnknownTypeError: no commander has that type.
    """
    if config.policy.other.commander.type in _BUILT_IN:
        return Commander(config, groups)
    from hpcdi.worker.coordinator import create_parallel_commander

    return create_parallel_commander(config, groups)
