"""The commander of a run; `hpcdi.worker` is imported only where that has it."""

from __future__ import annotations

from hpcdi.config.schema import ExperimentConfig
from hpcdi.roles.coordinator.commander import Commander
from hpcdi.roles.coordinator.groups import Groups
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY


def make_commander(config: ExperimentConfig, groups: Groups) -> Commander:
    """Make the commander that ``policy.other.commander.type`` names.

    Raises:
        UnknownTypeError: no commander has that type.
    """
    core = PARALLEL_COMMANDER_REGISTRY.core(config.policy.other.commander.type)
    if core is not None:
        commander: Commander = core(config, groups)
        return commander
    from hpcdi.worker.coordinator import create_parallel_commander

    return create_parallel_commander(config, groups)
