"""Flow around a cylinder in two dimensions, on a grid of ranks; two jets have to reduce its drag.

A lattice-Boltzmann method (D2Q9, two relaxation times, Ginzburg et al. 2008) in numpy: each rank
has a block of the channel and exchanges its edge cells with its neighbours. The two jets sit at the
top and at the bottom of the cylinder; what one blows out the other sucks in (Rabault et al. 2019,
J. Fluid Mech. 865).

Observation: velocities at probes behind the cylinder and at its sides, over that of the inflow.
Action: the jets' velocity, in shares of a quarter of that of the inflow. Reward: drag coefficient
without control minus that of the step, less 0.2 of the lift coefficient's absolute value. Episodes
begin in the fully developed vortex street, at a phase that the seed chooses, and are cut after 80
steps.

``hpcdi train configs/cylinder_sac.yaml`` trains it; the class needs only numpy, gymnasium and a
communicator. A film of an exported policy, the first half of it without control, by as many
ranks as it was trained with (they say in which order the probes come)::

    hpcdi export runs/cylinder_sac/latest -o jets.pt2
    mpirun -n 4 python configs/solvers/cylinder.py jets.pt2 jets.gif
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

WIDTH, HEIGHT, DIAMETER = 96, 48, 8
CENTRE = (20.0, 23.6)
"""Not in the middle, so that vortices begin to shed by themselves."""
SPONGES = (10, 24)
"""Columns at the inflow and at the outflow in which the flow is drawn to the undisturbed one."""
INFLOW, REYNOLDS = 0.1, 100
STEPS_PER_ACTION, STEPS_PER_EPISODE, WARM_UP, PERIOD = 30, 80, 8000, 420
STRONGEST = 0.25
PROBES = [(x, y) for x in (28, 32, 38, 46) for y in (18, 21, 24, 27, 30)] + [(20, 17), (20, 30)]

C = np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [-1, 1], [-1, -1], [1, -1]])
"""Directions (x, y)."""
W = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
BACK = np.array([0, 3, 4, 1, 2, 7, 8, 5, 6])
"""The opposite of each direction."""
EQUILIBRIA = W[:, None] * np.stack(
    [
        np.ones(9),
        3 * C[:, 0],
        3 * C[:, 1],
        4.5 * C[:, 0] ** 2 - 1.5,
        9 * C[:, 0] * C[:, 1],
        4.5 * C[:, 1] ** 2 - 1.5,
    ],
    axis=1,
)
"""Of `products`."""


class Cylinder:
    """The environment; all ranks call its methods."""

    observation_space = spaces.Box(-np.inf, np.inf, (2 * len(PROBES),))
    action_space = spaces.Box(-1.0, 1.0, (1,))
    assembled = True

    def __init__(self, drag: float = 2.124, warm_up: int = WARM_UP) -> None:
        self._drag = drag  # about that without control, which is 2.125 on the average
        self._warm_up = warm_up
        self._developed: Any = None  # the flow that episodes begin with
        self._steps = 0

    def reset(self, seed: int, comm: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the first one develops the flow."""
        if self._developed is None:
            self._flow = Flow(comm)
            self._flow.advance(0.0, self._warm_up)
            self._developed = self._flow.cells.copy()
        self._flow.cells[:] = self._developed
        self._flow.advance(0.0, int(np.random.default_rng(seed).integers(PERIOD)))
        self._steps = 0
        return self._flow.probes(), {}

    def step(self, action: Any, comm: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Blow and suck for `STEPS_PER_ACTION` steps of time."""
        velocity = STRONGEST * INFLOW * float(np.clip(action[0], -1, 1))
        own = self._flow.advance(velocity, STEPS_PER_ACTION)
        drag, lift = comm.allreduce(own) / (0.5 * INFLOW**2 * DIAMETER)
        self._steps += 1
        reward = self._drag - drag - 0.2 * abs(lift)
        is_first = comm.Get_rank() == 0  # rewards of all ranks are summed
        is_over = self._steps == STEPS_PER_EPISODE
        info = {"drag": drag, "lift": lift}
        return self._flow.probes(), reward if is_first else 0.0, False, is_over, info

    def render(self, comm: Any) -> Any:  # noqa: ARG002 (all ranks call it)
        """Returns the vorticity as a picture, uint8 [height, width, 3]; None but on rank 0."""
        return self._flow.picture()


class Flow:
    """One rank's block of the channel.

    Args:
        comm: its ranks.

    Attributes:
        cells: populations [9, y, x].
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm.Create_cart(_shape(comm.Get_size()), periods=(True, False))
        (rows, columns), _, (row, column) = self._comm.Get_topo()
        height, width = HEIGHT // rows, WIDTH // columns
        if rows * height != HEIGHT or columns * width != WIDTH:
            raise ValueError(f"{rows} x {columns} ranks do not divide {HEIGHT} x {WIDTH} cells")
        (self._above, self._below), (self._before, self._after) = (
            self._comm.Shift(axis, 1) for axis in (0, 1)
        )
        self._y, self._x = np.mgrid[
            row * height : (row + 1) * height, column * width : (column + 1) * width
        ]
        self._solid = _is_solid(self._x, self._y)
        self._links = [self._links_of(direction) for direction in range(9)]
        self._keep, self._approach = relaxation(INFLOW * DIAMETER / REYNOLDS)
        velocity = np.stack([INFLOW * ~self._solid, np.zeros((height, width))])
        self.cells = equilibrium(np.ones((height, width)), velocity)
        self._undisturbed = equilibrium(np.ones((1, 1)), np.array([[[INFLOW]], [[0.0]]]))
        into = np.maximum((SPONGES[0] - self._x[0]) / SPONGES[0], 0)
        out = np.maximum((self._x[0] + 1 + SPONGES[1] - WIDTH) / SPONGES[1], 0)
        self._sponge = np.maximum(into, out) ** 3  # 1 at the ends
        self._edged = np.zeros((9, height + 2, width + 2))  # with the neighbours' cells around

    def _links_of(self, direction: int) -> tuple[Any, Any, Any]:
        """Fluid cells whose neighbour in a direction is the cylinder, and which of them are jets'.

        Returns:
            Rows and columns of the block, and 1 where a jet blows.
        """
        x, y = self._x + C[direction, 0], self._y + C[direction, 1]
        rows, columns = np.nonzero(~self._solid & _is_solid(x, y))
        aside = np.abs(x[rows, columns] - CENTRE[0])
        return rows, columns, (aside < DIAMETER / 6).astype(float)

    def advance(self, jet: float, steps: int) -> Any:
        """Go so many steps; returns the mean force on the cylinder in this block, (drag, lift).

        Args:
            jet: velocity upwards at the top and at the bottom of the cylinder.
            steps: of time.
        """
        force = np.zeros(2)
        for _ in range(steps):
            collided = self._collide()
            self._exchange(collided)
            self._stream()
            force += self._bounce(collided, jet)
            self._meet_ends()
        return force / max(steps, 1)

    def _collide(self) -> Any:
        """Returns the populations after relaxing to their equilibria."""
        f = self.cells.reshape(9, -1)
        collided = self._keep @ f + self._approach @ products(*moments(f))
        return collided.reshape(self.cells.shape)

    def _exchange(self, collided: Any) -> None:
        """Fill the edges from the neighbours: first aside, then up and down with the corners."""
        cells, comm = self._edged, self._comm
        cells[:, 1:-1, 1:-1] = collided
        for axis, before, after in ((2, self._before, self._after), (1, self._above, self._below)):
            for source, to, end, edge in ((before, after, -2, 0), (after, before, 1, -1)):
                sent = np.ascontiguousarray(np.take(cells, end, axis=axis))
                received = np.empty_like(sent)
                comm.Sendrecv(sent, to, recvbuf=received, source=source)
                if source >= 0:
                    np.moveaxis(cells, axis, 0)[edge] = received

    def _stream(self) -> None:
        height, width = self.cells.shape[1:]
        for direction, (x, y) in enumerate(C):
            self.cells[direction] = self._edged[
                direction, 1 - y : 1 - y + height, 1 - x : 1 - x + width
            ]

    def _bounce(self, before: Any, jet: float) -> Any:
        """Throw back what has streamed from the cylinder; returns the force on it."""
        force = np.zeros(2)
        for direction, (rows, columns, is_jet) in enumerate(self._links):
            if len(rows):
                hit = before[direction, rows, columns]
                thrown = hit - 6 * W[direction] * C[direction, 1] * jet * is_jet
                self.cells[BACK[direction], rows, columns] = thrown
                force += C[direction] * (hit + thrown).sum()
        self.cells[:, self._solid] = W[:, None]  # nobody reads what is in the cylinder
        return force

    def _meet_ends(self) -> None:
        """Draw the flow to the undisturbed one near both ends, which so swallow sound too."""
        self.cells += self._sponge * (self._undisturbed - self.cells)

    def probes(self) -> Any:
        """Returns the velocities at the probes of this block, over that of the inflow."""
        _, velocity = moments(self.cells)
        y, x = self._y[0, 0], self._x[0, 0]
        own = [
            velocity[:, py - y, px - x] / INFLOW
            for px, py in PROBES
            if 0 <= px - x < velocity.shape[2] and 0 <= py - y < velocity.shape[1]
        ]
        return np.concatenate(own) if own else np.empty(0)

    def picture(self) -> Any:
        """Returns the vorticity, blue to red, uint8 [height, width, 3]; None but on rank 0."""
        _, velocity = moments(self.cells)
        blocks = self._comm.gather(((self._y[0, 0], self._x[0, 0]), velocity * ~self._solid))
        if blocks is None:
            return None
        whole = np.zeros((2, HEIGHT, WIDTH))
        for (y, x), block in blocks:
            whole[:, y : y + block.shape[1], x : x + block.shape[2]] = block
        curl = np.gradient(whole[1], axis=1) - np.gradient(whole[0], axis=0)
        shade = np.clip(curl / (0.4 * INFLOW), -1, 1)
        colours = np.stack([1 + np.minimum(shade, 0), 1 - np.abs(shade), 1 - np.maximum(shade, 0)])
        return np.repeat(np.repeat((255 * colours).astype(np.uint8), 4, 1), 4, 2).transpose(1, 2, 0)


def moments(f: Any) -> tuple[Any, Any]:
    """Returns density [...] and velocity [2, ...] of populations [9, ...]."""
    sums = (np.stack([np.ones(9), *C.T]) @ f.reshape(9, -1)).reshape(3, *f.shape[1:])
    return sums[0], sums[1:] / sums[0]


def products(density: Any, velocity: Any) -> Any:
    """Returns what equilibria are linear in, [6, ...]."""
    x, y = velocity
    return density * np.stack([np.ones_like(x), x, y, x * x, x * y, y * y])


def equilibrium(density: Any, velocity: Any) -> Any:
    """Returns the populations [9, ...] of a density [...] and a velocity [2, ...]."""
    of = products(density, velocity)
    return (EQUILIBRIA @ of.reshape(6, -1)).reshape(9, *density.shape)


def relaxation(viscosity: float) -> tuple[Any, Any]:
    """Returns the matrices of a collision: of populations [9, 9], and of `products` [9, 6]."""
    even = 3 * viscosity + 0.5
    odd = 1 / (12 * (even - 0.5)) + 0.5  # 1 / 4 instead of 1 / 12 is unstable on so few cells
    swapped = np.eye(9)[BACK]
    rate = 0.5 * ((np.eye(9) + swapped) / even + (np.eye(9) - swapped) / odd)
    return np.eye(9) - rate, rate @ EQUILIBRIA


def _is_solid(x: Any, y: Any) -> Any:
    return np.hypot(x - CENTRE[0], y - CENTRE[1]) < DIAMETER / 2


def _shape(ranks: int) -> list[int]:
    """Rows and columns of ranks."""
    rows = max(n for n in (1, 2, 3, 4) if ranks % n == 0 and n * n <= ranks)
    return [rows, ranks // rows]


def film(policy: Path, file: Path) -> None:
    """Write two episodes as a film: without control, then by an exported policy.

    All ranks call it. Needs torch and imageio.
    """
    import imageio.v3 as imageio
    import torch
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    act = torch.export.load(policy).module()
    flow, pictures = Cylinder(), []
    for half, name in enumerate(("without control", "by the policy")):
        drags = []
        own, _ = flow.reset(0, comm)
        for _ in range(STEPS_PER_EPISODE):
            seen = np.concatenate(comm.allgather(own)).astype(np.float32)
            action = act(torch.from_numpy(seen[None]))[0][0].numpy() * half
            own, _, _, _, info = flow.step(comm.bcast(action), comm)
            drags.append(info["drag"])
            pictures.append(flow.render(comm))
        if comm.Get_rank() == 0:
            sys.stdout.write(f"{name}: mean drag coefficient {np.mean(drags):.3f}\n")
    if comm.Get_rank() == 0:
        imageio.imwrite(file, pictures, duration=60, loop=0)


if __name__ == "__main__":
    film(*map(Path, sys.argv[1:]))
