"""hpcdi's errors that are also what DI-engine raises in their place, for callers that catch it."""

from __future__ import annotations

from hpcdi.errors import ConfigError, EnvError, PolicyError, SnapshotError


class UnknownAmountError(ConfigError, RuntimeError):
    """How much to collect is neither an argument nor an attribute of the policy."""


class QuotaError(ConfigError, AssertionError):
    """Too few episodes: the shortest ones would be chosen."""


class NoEnvError(EnvError, AssertionError):
    """There are no environments yet."""


class NoPolicyError(PolicyError, AssertionError):
    """There is no policy yet, or there are too few for a battle."""


class NoFileError(SnapshotError, FileNotFoundError):
    """There is no such file of a buffer."""


class NoDataError(PolicyError, AttributeError):
    """A learner that is to start has no method that returns batches."""


class NoEpisodeError(EnvError, IndexError, ValueError):
    """No episode has ended yet."""


class ReturnError(EnvError, RuntimeError, ValueError):
    """The return of an episode is not one number."""


class NoFilmError(EnvError, ValueError):
    """Episodes were not filmed, or their pictures differ in size."""


class HookError(ValueError, AssertionError, AttributeError):
    """A hook has no such position, or is none."""
