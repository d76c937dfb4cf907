"""One real Slurm cluster for all tests here; without Slurm they are skipped, and say so."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_jobs import TOOL, Cluster, job_variables

from fakes.patience import stretched

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
ACCOUNTING = ("slurmdbd", "mariadbd", "sacct")
SEARCHED = "/usr/sbin:/sbin:/usr/local/sbin"


def is_installed(names: tuple[str, ...]) -> bool:
    return all(shutil.which(name) or shutil.which(name, path=SEARCHED) for name in names)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """4 nodes of 4 CPUs and 2 GPUs that are none; sacct works where slurmdbd is there."""
    if not is_installed(DAEMONS):
        pytest.skip(
            "there is no Slurm on this machine. To run these tests, as root: "
            "tools/slurm_dev_cluster.sh install --accounting"
        )
    has_accounting = is_installed(ACCOUNTING)
    # UNIX sockets want short names, shorter than pytest's
    folder = Path(tempfile.mkdtemp(prefix="hpcdi-", dir="/tmp"))
    options = ["--accounting"] if has_accounting else []
    # the daemons inherit files: a pipe would never be read to its end
    with (folder.parent / f"{folder.name}.log").open("w+") as log:
        command = [TOOL, "up", folder, *options]
        up = subprocess.run(command, stdout=log, stderr=log, timeout=stretched())
        log.seek(0)
        said = log.read()
    try:
        assert up.returncode == 0, said
        yield Cluster(folder, job_variables(folder), has_accounting)
    finally:
        subprocess.run([TOOL, "down", folder, "--remove"], timeout=stretched(), check=False)
        Path(log.name).unlink()
