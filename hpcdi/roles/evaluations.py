"""Which evaluations of a run are comparable: those before a resume may be of other settings."""

from __future__ import annotations

import dataclasses

from hpcdi.config.compiled import FREE_OF_ENV, checksum
from hpcdi.config.env import EnvConfig, GymnasiumConfig
from hpcdi.config.fields import to_mapping, without
from hpcdi.config.schema import ExperimentConfig

_OF_COLLECTING = ("seeds", "keep_infos", "origin", "schedule")
_OF_PLACES = ("ranks", "spares", "start_timeout", "gpus_per_rank")
"""Settings of `env` that say nothing of the returns of evaluations, beside `FREE_OF_ENV`."""


def evaluates_as(config: ExperimentConfig) -> str:
    """Returns what the returns of evaluations are of, as a checksum: others are not comparable.

    Settings that are as by default are not in it: a later version has more of them.
    """
    env, commander, evaluation = config.env, config.policy.other.commander, config.policy.eval
    free = (*FREE_OF_ENV, *_OF_COLLECTING, *_OF_PLACES)
    by_default = {
        one.name: to_mapping(
            one.default_factory() if callable(one.default_factory) else one.default
        )
        for one in dataclasses.fields(env)
    }
    settings = (
        env.type,
        {
            name: value
            for name, value in without(to_mapping(_seen(env)), free).items()
            if value != by_default[name]
        },
        (evaluation.sample, evaluation.max_steps),
        getattr(commander, "evaluate_against", ""),
    )
    return checksum(settings)


def _seen(env: EnvConfig) -> EnvConfig:
    """Returns the settings of the environments of evaluations, without a user's code.

    A wrapper of the user's own may be heavy, and rank 0 steps no environment: one that only changes
    rewards, which evaluations do without, counts as any other.
    """
    seen = env.for_evaluation()
    if not isinstance(seen, GymnasiumConfig):
        return seen
    names = (each if isinstance(each, str) else str(each.get("type")) for each in seen.wrappers)
    known = [each for each, name in zip(seen.wrappers, names, strict=True) if ":" not in name]
    if not known:
        return seen
    from hpcdi.env.wrappers import without_reward_wrappers  # imports gymnasium, which has these

    kept = without_reward_wrappers(known)
    wrappers = tuple(each for each in seen.wrappers if each not in known or each in kept)
    return dataclasses.replace(seen, wrappers=wrappers)
