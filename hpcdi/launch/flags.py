"""Flags that several commands have."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(minimum: int) -> Callable[[str], int]:
    """Reads an integer that is not below `minimum`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer from {minimum}, not {text!r}")
        return int(text)

    return read


def add_short_settings(parser: argparse.ArgumentParser) -> None:
    """Add flags that are short for settings; they are found in ``short``, as ``key=value``."""
    parser.add_argument(
        "--collectors-max", metavar="N", dest="short", action="append", default=[],
        type=lambda text: f"policy.collect.collector.collector_max={at_least(1)(text)}",
        help="start so many collectors; collector_num of them work at first, the others when one "
        "is lost or `hpcdi scale` wants more (policy.collect.collector.collector_max)",
    )  # fmt: skip
    parser.add_argument(
        "--survive", dest="short", action="append_const",
        const="system.survival.on_worker_error=continue",
        help="where a learner or collector raises, go on with the others (Open MPI 5); short for "
        "system.survival.on_worker_error=continue",
    )  # fmt: skip


def experiment_of(given: argparse.Namespace) -> tuple[str | None, tuple[str, ...]]:
    """Configuration and settings; with --resume, what looks like a setting is one."""
    config, overrides = given.config, (*given.override, *getattr(given, "short", ()))
    if given.resume is not None and config is not None and "=" in config:
        return None, (config, *overrides)
    return config, overrides
