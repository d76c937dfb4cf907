"""LAMMPS through its library: configs/solvers/lammps_thermostat.py in two groups at once."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

pytestmark = pytest.mark.mpi


@pytest.fixture
def thermostat(monkeypatch: pytest.MonkeyPatch) -> Any:
    is_built_for_it = "Open MPI" in MPI.Get_library_version()  # Debian's is
    if not (is_built_for_it and ctypes.util.find_library("lammps")):
        pytest.skip("NO liblammps0, or not with Open MPI: LAMMPS's library is not tested here")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "configs" / "solvers")
    from lammps_thermostat import Thermostat

    yield Thermostat()
    sys.modules.pop("lammps_thermostat")


def test_each_group_of_two_ranks_holds_a_temperature(thermostat: Any) -> None:
    """Heat in proportion to what lacks leads to the target; no heat does not."""
    world = MPI.COMM_WORLD
    group = world.Split(world.rank // 2)
    off = {}
    for gain in (0.0, 5.0):
        seen, _ = thermostat.reset(world.rank // 2, group)
        for _ in range(25):
            action = max(-1.0, min(1.0, gain * (seen[2] - seen[0])))
            seen, reward, terminated, truncated, info = thermostat.step([action], group)
        assert (terminated, truncated, info["off"]) == (False, True, -reward)
        off[gain] = info["off"]
    thermostat.close()
    group.Free()
    assert off[5.0] < 0.1
    assert off[0.0] > 0.1
