"""Every error that hpcdi raises on purpose.

The tree, with the exit code of a process that ends with it::

    HpcdiError                      1
    ├── ConfigError                 2   the experiment file, an override, a component's mapping
    ├── UnknownTypeError            2   a `type` that is in no registry
    ├── LaunchError                 2   wrong launcher, world too small, run folder in use
    ├── NoProgressError             1   a run was restarted too often without progress
    ├── RunError                    1   a run of `hpcdi.train` failed, or was ended by a signal
    ├── CallbackError               1   a callback of the user has raised
    ├── EnvError                    1   an environment violates its contract
    │   ├── EnvRanksLost                all environments are lost with the ranks they were on
    │   └── EnvValueError               it returned what its spaces do not have; no retry helps
    ├── PolicyError                 1   a policy violates its contract
    ├── BufferContractError         1   pushed items do not match those in the buffer
    ├── StoreError                  1   a file is torn, missing, foreign, or cannot be written
    │   ├── ShardError
    │   ├── PolicyFileError
    │   ├── SnapshotError
    │   └── CheckpointError
    └── CommError                  85   communication between ranks
        ├── WorkerSilentError           a rank sends nothing any more
        ├── RankMissingError            a call of all ranks misses some that have died
        ├── GroupNotFormedError         learners have not found each other
        └── GroupBrokenError            a learner left its group during a step

A message says what happened, where (rank, path, key), and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcdi.dataclass import dataclass

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REQUEUE = 85
"""Not the user's fault: start the run again, and it goes on from its newest snapshot, if any."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def state_after(exit_code: int) -> str:
    """Returns the state of a run that ended with an exit code."""
    if exit_code == EXIT_DONE:
        return "done"
    is_stopped = exit_code in (EXIT_REQUEUE, EXIT_INTERRUPTED, EXIT_TERMINATED)
    return "stopped" if is_stopped else "failed"


class HpcdiError(Exception):
    """Root of the tree; `exit_code` is that of a process that ends with it."""

    exit_code = EXIT_FAILED


def _as_said(error: BaseException) -> list[str]:
    """Returns what IPython shows of an error that says all: our lines would bury it."""
    return [f"{type(error).__name__}: {error}"]


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration, at a dotted path."""

    path: str
    message: str
    is_unknown_key: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(HpcdiError):
    """The configuration is wrong; `problems` holds every problem."""

    exit_code = EXIT_USAGE
    _render_traceback_ = _as_said

    def __init__(self, problems: Sequence[Problem], source: str = "the configuration") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = len(self.problems)
        head = f"{source} has {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n  - ".join([head, *map(str, self.problems)]))


class UnknownTypeError(HpcdiError, KeyError):
    """A `type` that is in no registry."""

    exit_code = EXIT_USAGE

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LaunchError(HpcdiError):
    """The program cannot start with these arguments or in this environment."""

    exit_code = EXIT_USAGE
    _render_traceback_ = _as_said


class NoProgressError(HpcdiError):
    """A run was restarted too often without a newer snapshot."""


class RunError(HpcdiError):
    """A run of `hpcdi.train` failed, or was ended by a signal.

    Args:
        message: how it ended, and what to do next.
        folder: its run folder.
        exit_code: that of the same run from the command line.
    """

    _render_traceback_ = _as_said

    def __init__(self, message: str, folder: Path, exit_code: int) -> None:
        super().__init__(message)
        self.folder, self.exit_code = folder, exit_code


class CallbackError(HpcdiError):
    """A callback of the user has raised, or asked for what cannot be."""


class EnvError(HpcdiError):
    """An environment violates its contract."""

    _render_traceback_ = _as_said


class EnvRanksLost(EnvError):
    """All environments are lost with the ranks that they were on; another job may have them."""


class EnvValueError(EnvError):
    """An environment returned what its spaces, or gymnasium's API, do not have; no retry helps.

    Args:
        message: which part of it, what it is, and what it should be.
        row: of several environments' values: whose it is; None: of all, or there is one.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class PolicyError(HpcdiError):
    """A policy violates its contract."""


class BufferContractError(HpcdiError, AssertionError):
    """Pushed items do not match those in the buffer, or a buffer is used against its contract."""


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
    """Communication between ranks failed."""

    exit_code = EXIT_REQUEUE


class GroupBrokenError(CommError):
    """A member left the learners' group or hangs: collective operations fail until it regroups."""


class GroupNotFormedError(CommError):
    """The learners have not found each other."""


class RankMissingError(CommError):
    """A call of all ranks has returned without what some have to give: they have died."""


class WorkerSilentError(CommError):
    """A rank has sent no message for too long."""

    def __init__(self, rank: int, waited_s: float, last: str) -> None:
        self.rank, self.waited_s, self.last = rank, waited_s, last
        super().__init__(
            f"rank {rank} has been silent for {waited_s:.0f} s; its last message: {last}. "
            f"Its log is log/rank{rank:05d}.jsonl in the run folder"
        )
