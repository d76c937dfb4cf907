"""Experiments that ask for so many ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcdi.config.schema import ExperimentConfig


def experiment(learners: int, collectors: int = 2) -> Any:
    """An experiment that asks for so many ranks."""
    config = ExperimentConfig()
    learn, collect = config.policy.learn, config.policy.collect
    learn = replace(learn, learner=replace(learn.learner, learner_num=learners))
    collect = replace(collect, collector=replace(collect.collector, collector_num=collectors))
    return replace(config, policy=replace(config.policy, learn=learn, collect=collect))
