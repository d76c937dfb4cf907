"""Values as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def jsonable(value: Any) -> Any:
    """Plain data: numpy scalars are numbers, what is not finite is None, the unknown is text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    is_scalar = getattr(value, "ndim", None) == 0
    return jsonable(value.item()) if is_scalar else str(value)
