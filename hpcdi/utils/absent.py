"""Names of the predecessor for which there is nothing here: each says what to use."""

from __future__ import annotations

from typing import Any, ClassVar

from hpcdi.errors import CommError


class Absent:
    """A class that cannot be made; subclasses say why, and what to use.

    Raises:
        CommError: always.
    """

    instead: ClassVar[str]

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise CommError(f"{type(self).__name__}: {self.instead}")
