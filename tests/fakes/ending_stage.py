"""A stage of a rehearsal that does not come to its end; in a module that imports nothing."""

from __future__ import annotations

import os
import time
from typing import Any


def ends(facts: Any, code: int | None, *, tell: Any) -> None:
    """Exits with a code, or hangs."""
    facts.doing = "counting"
    tell(facts)
    if code is None:
        time.sleep(60)
    os._exit(code or 0)
