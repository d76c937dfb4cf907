"""Runs a test's own file as a program, with DI-engine beside hpcdi: its imports stay there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def answer_of(file: str) -> Any:
    """Returns what the program prints in its last line, as JSON; it must end well."""
    here = Path(__file__).parent
    environment = {"PYTHONPATH": f"{here}:{here.parent.parent}", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, file],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
