"""What `hpcdi new env NAME --mpi` writes: the beginning of a solver, an experiment and a test."""

from __future__ import annotations

PYTHON = '''\
"""NAME: an environment on several MPI ranks to begin from; guide: hpcdi/env/MPI.md."""

import numpy as np
from gymnasium import spaces


class CLASS:
    """A rod that cools at its ends: each rank has a part, whose heater the action sets."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))  # mean, and mean square
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, points=16):
        """The YAML file's env.kwargs; the same on all ranks. MPI is not needed here."""
        self._points = points

    def reset(self, seed, comm):
        """All ranks call it, with a communicator of their own: observation, info."""
        self._rank, self._ranks = comm.Get_rank(), comm.Get_size()
        self._heat = np.random.default_rng([seed, self._rank]).normal(size=self._points)
        self._steps = 0
        return self._observation(comm), {}

    def step(self, action, comm):
        """Observation, reward, terminated, truncated, info; what rank 0 returns counts."""
        left, right = comm.sendrecv(self._heat[-1], dest=(self._rank + 1) % self._ranks,
                                    source=(self._rank - 1) % self._ranks), self._heat[-1]
        padded = np.concatenate([[left], self._heat, [right]])
        self._heat = self._heat + 0.25 * np.diff(padded, 2) + 0.2 * float(action[0])
        self._steps += 1
        seen = self._observation(comm)
        return seen, -float(seen[1]), False, self._steps == 50, {"mean": float(seen[0])}

    def _observation(self, comm):
        sums = comm.allreduce(np.array([self._heat.sum(), (self._heat**2).sum()]))
        return sums / (self._points * self._ranks)
'''

C = """\
/* NAME: an environment on several MPI ranks to begin from; guide: hpcdi/env/MPI.md.
 *
 * A rod: each rank has a part of it. Observation: mean and mean square. Action: a heater. */
#include "hpcdi.h"

#include <math.h>
#include <stdio.h>

enum { POINTS = 16, OBSERVATIONS = 2, ACTIONS = 1 };

int main(void)
{
    double heat[POINTS + 2] = {0}, action[ACTIONS] = {0}, own[2], seen[OBSERVATIONS];
    int order, rank, ranks, steps = 0;
    MPI_Comm comm;
    hpcdi_init(OBSERVATIONS, ACTIONS, &comm); /* comm, and nobody uses MPI_COMM_WORLD */
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    while ((order = hpcdi_recv_action(action)) != HPCDI_END) {
        if (order == HPCDI_RESET) {
            for (int i = 1; i <= POINTS; i++) {
                heat[i] = sin((double)(hpcdi_seed() % 1000) + rank * POINTS + i);
            }
            steps = 0;
        } else {
            double before = 0;
            MPI_Sendrecv(&heat[POINTS], 1, MPI_DOUBLE, (rank + 1) % ranks, 0, &heat[0], 1,
                         MPI_DOUBLE, (rank + ranks - 1) % ranks, 0, comm, MPI_STATUS_IGNORE);
            heat[POINTS + 1] = heat[POINTS];
            before = heat[0];
            for (int i = 1; i <= POINTS; i++) {
                double now = heat[i];
                heat[i] += 0.25 * (before - 2 * now + heat[i + 1]) + 0.2 * action[0];
                before = now;
            }
            steps++;
        }
        own[0] = own[1] = 0;
        for (int i = 1; i <= POINTS; i++) {
            own[0] += heat[i] / (POINTS * ranks);
            own[1] += heat[i] * heat[i] / (POINTS * ranks);
        }
        MPI_Allreduce(own, seen, 2, MPI_DOUBLE, MPI_SUM, comm);
        hpcdi_info("mean", seen[0]);
        hpcdi_send_observation(seen, OBSERVATIONS, -seen[1], 0, steps == 50);
    }
    if (rank == 0) {
        printf("%d ranks, %d steps, mean square %g\\n", ranks, steps, seen[1]);
    }
    hpcdi_finalize();
    return 0;
}
"""

FORTRAN = """\
! NAME: an environment on several MPI ranks to begin from; guide: hpcdi/env/MPI.md.
!
! A rod: each rank has a part of it. Observation: mean and mean square. Action: a heater.
program solver
    use, intrinsic :: iso_fortran_env, only: dp => real64
    use mpi_f08
    use hpcdi
    implicit none

    integer, parameter :: POINTS = 16, OBSERVATIONS = 2, ACTIONS = 1
    type(MPI_Comm) :: comm ! of this environment's ranks; nobody uses MPI_COMM_WORLD
    integer :: order, rank, ranks, i, steps = 0
    real(dp) :: heat(0:POINTS + 1) = 0, action(ACTIONS) = 0, own(OBSERVATIONS), seen(OBSERVATIONS)

    call MPI_Init()
    call hpcdi_init(OBSERVATIONS, ACTIONS, comm%MPI_VAL)
    call MPI_Comm_rank(comm, rank)
    call MPI_Comm_size(comm, ranks)
    do
        order = hpcdi_recv_action(action)
        if (order == HPCDI_END) exit
        if (order == HPCDI_RESET) then
            heat = [(sin(real(mod(hpcdi_seed(), 1000) + rank * POINTS + i, dp)), i = 0, POINTS + 1)]
            steps = 0
        else
            call MPI_Sendrecv(heat(POINTS), 1, MPI_DOUBLE_PRECISION, modulo(rank + 1, ranks), 0, &
                              heat(0), 1, MPI_DOUBLE_PRECISION, modulo(rank - 1, ranks), 0, &
                              comm, MPI_STATUS_IGNORE)
            heat(POINTS + 1) = heat(POINTS)
            heat(1:POINTS) = heat(1:POINTS) + 0.2_dp * action(1) &
                + 0.25_dp * (heat(0:POINTS - 1) - 2 * heat(1:POINTS) + heat(2:POINTS + 1))
            steps = steps + 1
        end if
        own = [sum(heat(1:POINTS)), sum(heat(1:POINTS)**2)] / (POINTS * ranks)
        call MPI_Allreduce(own, seen, 2, MPI_DOUBLE_PRECISION, MPI_SUM, comm)
        call hpcdi_info("mean", seen(1))
        call hpcdi_send_observation(seen, -seen(2), .false., steps == 50)
    end do
    if (rank == 0) then
        print '(i0, a, i0, a, g0.6)', ranks, " ranks, ", steps, " steps, mean square ", seen(2)
    end if
    call hpcdi_finalize()
    call MPI_Finalize()
end program
"""

_YAML = """\
# SAC on NAME, each environment on 2 MPI ranks: hpcdi plan NAME.yaml, hpcdi train NAME.yaml
exp_name: NAME
seed: 0
env:
  type: mpi
  env_id: {env_id}
  ranks: 2
{spaces}  collector_env_num: 1
  evaluator_episode_num: 3
  manager: {{step_timeout: 60}}  # seconds until a step counts as hung
policy:
  type: sac
  random_collect_size: 200
  learn: {{batch_size: 64, replay_ratio: 16}}
  collect:
    n_sample: 10
    collector: {{collector_num: 2}}
  eval:
    every: 1000 env_steps
  other:
    replay_buffer: {{min_fill: 200}}
    commander: {{max_env_step: 20000}}
"""
PYTHON_YAML = _YAML.format(env_id='"NAME:CLASS"  # NAME.py: beside this file', spaces="")
_SPACES = "  observation: {size: 2}\n  action: {size: 1, low: -1, high: 1}\n"
C_YAML = _YAML.format(
    env_id="NAME.c  # beside this file; compiled by MPI's own mpicc", spaces=_SPACES
)
FORTRAN_YAML = _YAML.format(
    env_id="NAME.f90  # beside this file; compiled by MPI's own mpif90, see hpcdi/env/MPI.md",
    spaces=_SPACES,
)

PYTHON_TEST = '''\
"""NAME is stepped on one rank: pytest test_NAME.py. On several: hpcdi train NAME.yaml."""

from pathlib import Path

import numpy as np

from hpcdi.cli import main
from NAME import CLASS


class Alone:
    """A communicator of one rank, without MPI."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def allreduce(self, value):
        return value

    def sendrecv(self, value, dest, source):
        return value


def test_an_episode_ends_and_repeats_by_its_seed():
    env, comm = CLASS(), Alone()
    first, _ = env.reset(7, comm)
    returns = []
    for _ in range(50):
        seen, reward, terminated, truncated, _ = env.step(np.zeros(1, np.float32), comm)
        returns.append(reward)
    assert truncated and not terminated
    assert np.isfinite(returns).all()
    assert (env.reset(7, comm)[0] == first).all()


def test_the_experiment_can_be_planned():
    assert main(["plan", str(Path(__file__).with_name("NAME.yaml"))]) == 0
'''

_TEST = '''\
"""NAME runs alone on two ranks: pytest test_NAME.py. With hpcdi: hpcdi train NAME.yaml."""

import os
import subprocess
from pathlib import Path

from hpcdi.cli import main
from hpcdi.env.mpi.build import compiled
from hpcdi.run.local import mpirun_command, rank_environment


def test_it_compiles_and_runs_alone():
    program = compiled([Path(__file__).with_name("{source}")])
    done = subprocess.run(
        [*mpirun_command(2), str(program)], capture_output=True, text=True, check=True,
        env=rank_environment({{**os.environ, "HPCDI_ALONE_STEPS": "20"}}),
    )
    assert "2 ranks, 20 steps, mean square" in done.stdout


def test_the_experiment_can_be_planned():
    assert main(["plan", str(Path(__file__).with_name("NAME.yaml"))]) == 0
'''

C_TEST = _TEST.format(source="NAME.c")
FORTRAN_TEST = _TEST.format(source="NAME.f90")

FILES = {
    "python": {"{}.py": PYTHON, "{}.yaml": PYTHON_YAML, "test_{}.py": PYTHON_TEST},
    "c": {"{}.c": C, "{}.yaml": C_YAML, "test_{}.py": C_TEST},
    "fortran": {"{}.f90": FORTRAN, "{}.yaml": FORTRAN_YAML, "test_{}.py": FORTRAN_TEST},
}
"""Language -> file names -> texts, as in `hpcdi.commands.new`."""
