"""The quickstart guide, typed as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import PYTHONPATH, ROOT

pytestmark = [pytest.mark.job, pytest.mark.slow]


def test_the_quickstart_works_as_it_stands(tmp_path: Path) -> None:
    """All its commands, one after the other, in a folder of one's own."""
    text = (ROOT / "guides" / "QUICKSTART.md").read_text()
    (block,) = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env={**os.environ, **PYTHONPATH, **paths},
        check=True,
    )
    assert (tmp_path / "report.html").stat().st_size > 10_000
