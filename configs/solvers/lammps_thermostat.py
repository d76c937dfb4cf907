"""A thermostat for a liquid of 256 atoms, which LAMMPS moves on the ranks of its group.

Needs the library of LAMMPS, built for the job's MPI (Debian's liblammps0 with Open MPI), where the
linker finds it, or named by LAMMPS_LIBRARY. Heat flows into all atoms, or out of them, as the
action says; the temperature is to be the target, which is drawn with each episode. Units are those
of Lennard-Jones particles ("lj").
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from gymnasium import spaces

_STEPS_PER_ACTION, _ACTIONS_PER_EPISODE = 20, 25
_MOST_HEAT = 1.5  # per atom and time

_LIQUID = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
mass 1 1.0
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix move all nve
thermo_modify norm yes
timestep 0.005
"""


class Thermostat:
    """Observation: temperature, its last change, target, potential energy an atom and 5."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,))
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, control: bool = True) -> None:
        self._control, self._lammps = control, None

    def reset(self, seed: int, comm: Any) -> tuple[Any, dict[str, Any]]:
        """A crystal at twice a temperature melts to about that; see the module."""
        if self._lammps is None:
            self._lammps = _Lammps(comm, "-screen", "none")
            self._lammps.do(_LIQUID)
        random = np.random.default_rng(seed)
        begin, self._target = random.uniform(0.8, 1.6, 2)
        self._lammps.do(
            f"""
            reset_timestep 0
            delete_atoms group all
            create_atoms 1 box
            velocity all create {2 * begin} {1 + seed % 900_000_000} loop geom
            run 100 post no
            """
        )
        self._steps, self._temperature = 0, self._lammps.thermo("temp")
        return self._seen(), {}

    def step(self, action: Any, comm: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Let heat flow for some steps; the reward is how far off the target it is then."""
        heat = _MOST_HEAT * float(action[0]) * self._control
        self._lammps.do(
            f"""
            fix heat all heat 1 {heat * self._lammps.atoms}
            run {_STEPS_PER_ACTION} post no
            unfix heat
            """
        )
        self._steps += 1
        observation = self._seen()
        off = abs(float(observation[0]) - self._target)
        return observation, -off, False, self._steps == _ACTIONS_PER_EPISODE, {"off": off}

    def close(self) -> None:
        """Let LAMMPS end before MPI does."""
        if self._lammps is not None:
            self._lammps.close()

    def _seen(self) -> Any:
        before, self._temperature = self._temperature, self._lammps.thermo("temp")
        change = 10 * (self._temperature - before)
        return np.array([self._temperature, change, self._target, self._lammps.thermo("pe") + 5])


class _Lammps:
    """The few functions of LAMMPS's C interface that are needed, on the ranks of a communicator."""

    def __init__(self, comm: Any, *arguments: str) -> None:
        from mpi4py import MPI

        self._library = ctypes.CDLL(os.environ.get("LAMMPS_LIBRARY", "liblammps.so.0"))
        words = [word.encode() for word in ("lammps", "-log", "none", *arguments)]
        is_pointer = MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_void_p)  # else MPICH's number
        self._library.lammps_open.restype = ctypes.c_void_p
        self._library.lammps_open.argtypes = [
            ctypes.c_int,
            ctypes.c_char_p * len(words),
            ctypes.c_void_p if is_pointer else ctypes.c_int,
            ctypes.c_void_p,
        ]
        self._library.lammps_get_thermo.restype = ctypes.c_double
        self._library.lammps_get_natoms.restype = ctypes.c_double
        self._lammps = ctypes.c_void_p(
            self._library.lammps_open(
                len(words), (ctypes.c_char_p * len(words))(*words), MPI._handleof(comm), None
            )
        )

    def do(self, commands: str) -> None:
        """Do commands as in an input file; a wrong one ends the job, with its words in the log."""
        self._library.lammps_commands_string(self._lammps, commands.encode())

    def thermo(self, name: str) -> float:
        """A number of the last step, such as temp or pe."""
        return float(self._library.lammps_get_thermo(self._lammps, name.encode()))

    @property
    def atoms(self) -> float:
        """How many there are."""
        return float(self._library.lammps_get_natoms(self._lammps))

    def close(self) -> None:
        """Let it end, before MPI does."""
        self._library.lammps_close(self._lammps)
