"""Policies, learners and the commander of a run: hpcdi's own, or others by `hpcdi.worker`.

That is imported only where a run has such others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdi.config.fields import ComponentConfig
from hpcdi.config.roles import LearnerConfig
from hpcdi.config.schema import ExperimentConfig
from hpcdi.policy.base import attribute_of
from hpcdi.policy.create import create_policy
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY

if TYPE_CHECKING:
    from hpcdi.roles.context import WorkerContext
    from hpcdi.roles.coordinator.commander import Commander
    from hpcdi.roles.coordinator.groups import Groups
    from hpcdi.roles.message_side import MessageSide


def columnar_policy(
    cfg: Mapping[str, Any] | ComponentConfig,
    enable_field: Sequence[str] | None = None,
    *,
    seed: np.random.SeedSequence | None = None,
    gets_weights: bool = False,
) -> Any:
    """Returns the policy that ``cfg.type`` names; one of dicts as one of columns.

    See `create_policy`.
    """
    policy = create_policy(cfg, enable_field, seed=seed, gets_weights=gets_weights)
    if attribute_of(policy, "columnar", False):
        return policy
    from hpcdi.worker.dict_policy import PolicyOfDicts

    return PolicyOfDicts(policy)


def why_not_loaded(mode: Any, parameters: Mapping[str, Any]) -> str:
    """Loads parameters into a policy's mode; returns why they do not fit, else "".

    Args:
        mode: of a policy.
        parameters: name -> tensor.
    """
    difference = next(_differences(parameters, mode.state_dict().get("model", {})), "")
    if not difference:
        try:
            mode.load_state_dict({"model": parameters})
        except (RuntimeError, KeyError, ValueError) as error:  # of a policy that shows none of them
            difference = " ".join(str(error).split())
    return difference


def _differences(parameters: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Yields the differences of parameters; none if the policy does not list its own."""
    for name, tensor in expected.items():
        if name not in parameters:
            yield f"it lacks the parameter {name} {tuple(tensor.shape)}"
        elif parameters[name].shape != tensor.shape:
            yield (
                f"the parameter {name} is {tuple(parameters[name].shape)} in the file and "
                f"{tuple(tensor.shape)} by the configuration"
            )
    if expected:
        for name in parameters.keys() - expected.keys():
            yield f"the configuration has no parameter {name} {tuple(parameters[name].shape)}"


def make_learner_rank(context: WorkerContext) -> MessageSide:
    """Returns the learner of a rank."""
    side, settings = context.config.system.comm_learner, context.config.policy.learn.learner
    if side.type not in ("mpi_fs", "flask_fs"):
        from hpcdi.worker.learner.comm import create_comm_learner

        return create_comm_learner(side, context)
    from hpcdi.roles.learner.role import Learner, make_training  # with it torch

    if not _names_ding(settings):
        return Learner(context, training=make_training)
    from hpcdi.worker.learner.base_learner import make_learner

    return Learner(context, training=make_learner)


def _names_ding(settings: LearnerConfig) -> bool:
    """Returns whether settings of a learner name what only DI-engine's has.

    That is a learner of the user's, hooks of its form, or its files of checkpoints.
    """
    has_hooks = any(isinstance(hook, Mapping) for hook in settings.hook.values())
    loads_file = str(settings.hook.get("load_ckpt_before_run")).endswith(".tar")
    return settings.type != "base" or has_hooks or loads_file or settings.ckpt_format == "pth.tar"


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
