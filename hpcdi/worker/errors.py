"""hpcdi's errors that are also what DI-engine raises in their place, for callers that catch it."""

from __future__ import annotations

from hpcdi.errors import BufferContractError, ConfigError, EnvError, PolicyError, SnapshotError


class UnknownAmountError(ConfigError, RuntimeError):
    """How much to collect is neither an argument nor an attribute of the policy."""


class QuotaError(ConfigError, AssertionError):
    """Too few episodes: the shortest ones would be chosen."""


class NoEnvError(EnvError, AssertionError):
    """There are no environments yet."""


class NoPolicyError(PolicyError, AssertionError):
    """There is no policy yet, or there are too few for a battle."""


class NoModuleError(ConfigError, ModuleNotFoundError):
    """A module that registers a component cannot be imported."""


class NoFileError(SnapshotError, FileNotFoundError):
    """There is no such file of a buffer."""


class NoKeyError(BufferContractError, KeyError):
    """What a buffer is told about its items lacks a key."""

    __str__ = BufferContractError.__str__  # a KeyError shows a text with its quotes


class NoDataError(PolicyError, AttributeError):
    """A learner that is to start has no method that returns batches."""


class NoEpisodeError(EnvError, IndexError, ValueError):
    """No episode has ended yet."""


class ReturnError(EnvError, RuntimeError, ValueError):
    """The return of an episode is not one number."""


class NoReturnError(EnvError, KeyError):
    """An episode has ended without its return."""

    __str__ = EnvError.__str__  # a KeyError shows a text with its quotes


class NoFilmError(EnvError, ValueError):
    """Episodes were not filmed, or their pictures differ in size."""


class HookError(ValueError, AssertionError, AttributeError):
    """A hook has no such position, or is none."""
