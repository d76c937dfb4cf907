"""Python in a process of its own, for what must not happen in that of the tests."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def python(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these words; returns how it has ended, and what it has said."""
    given = {"capture_output": True, "text": True, "check": False, **how}
    return subprocess.run([sys.executable, *map(str, words)], **given)
