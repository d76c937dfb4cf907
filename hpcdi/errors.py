"""Every error that hpcdi raises on purpose.

The tree, with the exit code of the process that ends by it::

    HpcdiError                      1
    ├── ConfigError                 2   the experiment file, an override, a component's mapping
    ├── UnknownTypeError            2   a `type` that no registry knows
    ├── LaunchError                 2   wrong launcher, world too small, run folder taken
    ├── NoProgressError             1   a run was restarted too often without getting on
    ├── EnvError                    1   an environment broke its contract
    ├── PolicyError                 1   a policy broke its contract
    ├── BufferContractError         1   what was pushed does not fit what the buffer holds
    ├── StoreError                  1   a file is torn, missing, foreign, or cannot be written
    │   ├── ShardError
    │   ├── PolicyFileError
    │   ├── SnapshotError
    │   └── CheckpointError
    └── CommError                   1   messages
        ├── WorkerSilentError           a rank says nothing
        └── GroupBrokenError            a learner has left its group in the middle of a step

An error says what happened, where (rank, path, key), and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REQUEUE = 85
"""A snapshot is taken: whoever started the run may start it again, and it goes on."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class HpcdiError(Exception):
    """Root of the tree; `exit_code` is what a process that ends by it returns."""

    exit_code = EXIT_FAILED


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a configuration, at a dotted path."""

    path: str
    message: str
    is_unknown_key: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(HpcdiError):
    """The configuration has problems; all of them are in `problems`."""

    exit_code = EXIT_USAGE

    def __init__(self, problems: Sequence[Problem], source: str = "the configuration") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = len(self.problems)
        head = f"{source} has {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n  - ".join([head, *map(str, self.problems)]))


class UnknownTypeError(HpcdiError, KeyError):
    """A `type` that no registry knows."""

    exit_code = EXIT_USAGE

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LaunchError(HpcdiError):
    """The program cannot start as it was asked to."""

    exit_code = EXIT_USAGE


class NoProgressError(HpcdiError):
    """A run has been taken up again too often, and has come to nothing since."""


class EnvError(HpcdiError):
    """An environment broke its contract."""


class PolicyError(HpcdiError):
    """A policy broke its contract."""


class BufferContractError(HpcdiError):
    """What was pushed does not fit what the buffer holds."""


class StoreError(HpcdiError):
    """A file is torn, missing, foreign, or cannot be written."""

    def __init__(self, path: str | Path, reason: str) -> None:
        self.path = Path(path)
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class ShardError(StoreError):
    """A shard of collected data cannot be used."""


class PolicyFileError(StoreError):
    """A policy file cannot be used."""


class SnapshotError(StoreError):
    """A snapshot cannot be used."""


class CheckpointError(StoreError):
    """A checkpoint cannot be used."""


class CommError(HpcdiError):
    """Messages between ranks failed."""


class GroupBrokenError(CommError):
    """A member has left the learners' group, or hangs: nothing can be done together any more."""


class WorkerSilentError(CommError):
    """A rank has said nothing for too long."""

    def __init__(self, rank: int, waited_s: float, last: str) -> None:
        self.rank, self.waited_s, self.last = rank, waited_s, last
        super().__init__(
            f"rank {rank} has been silent for {waited_s:.0f} s; last heard from it: {last}. "
            f"Its log is log/rank{rank:05d}.jsonl in the run folder"
        )
