"""Calls of what the user names by `module:name`: networks, parts of networks, losses."""

from __future__ import annotations

from typing import Any

from hpcdi.errors import PolicyError
from hpcdi.utils.registry import named_in_module, raised


def call_named(name: str, path: str, how: str, *args: Any, **kwargs: Any) -> Any:
    """Returns what the function or class ``module:name`` of the user returns.

    Args:
        name: as `named_in_module` takes it.
        path: of the setting, for the messages.
        how: how it is called, for the message.
        *args: of the call.
        **kwargs: of the call.

    Raises:
        ConfigError: it cannot be imported.
        PolicyError: it raises an error of any kind; says where.
    """
    call = named_in_module(name, path)
    try:
        return call(*args, **kwargs)
    except Exception as error:
        raise PolicyError(f"{path}: {name} {raised(error)}. {how}") from error
