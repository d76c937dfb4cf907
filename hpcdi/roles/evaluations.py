"""Which evaluations of a run are comparable: those before a resume may be of other settings."""

from __future__ import annotations

from hpcdi.config.compiled import FREE_OF_ENV, checksum
from hpcdi.config.fields import to_mapping, without
from hpcdi.config.schema import ExperimentConfig

_OF_COLLECTING = ("seeds", "keep_infos", "origin", "schedule")
_OF_PLACES = ("ranks", "spares", "start_timeout", "gpus_per_rank")
"""Settings of `env` that say nothing of the returns of evaluations, beside `FREE_OF_ENV`."""


def evaluates_as(config: ExperimentConfig) -> str:
    """Returns what the returns of evaluations are of, as a checksum: others are not comparable.

    Settings that are as by default are not in it: a later version has more of them.
    """
    from hpcdi.env.create import of_evaluations  # imports gymnasium, which learners do without

    env, commander, evaluation = config.env, config.policy.other.commander, config.policy.eval
    free = (*FREE_OF_ENV, *_OF_COLLECTING, *_OF_PLACES)
    by_default = to_mapping(type(env)())
    settings = (
        env.type,
        {
            name: value
            for name, value in without(to_mapping(of_evaluations(env)), free).items()
            if value != by_default[name]
        },
        (evaluation.sample, evaluation.max_steps),
        getattr(commander, "evaluate_against", ""),
    )
    return checksum(settings)
