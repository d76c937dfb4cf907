"""A solver whose ranks compute on a GPU, for `tests/jobs/test_gpu.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces


class Rod:
    """Heat in a rod, of which each rank has a half on its GPU: {mean, devices, is on a GPU}."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,))
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, seed: int, comm: Any) -> Any:
        """Begin cold."""
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._heat = torch.zeros(256, device=self._device)
        self._steps = 0
        return self._seen(comm), {}

    def step(self, action: Any, comm: Any) -> Any:
        """Heat one end, and let it flow; the halves exchange what is at their border."""
        self._steps += 1
        rank = comm.Get_rank()
        self._heat[0 if rank == 0 else -1] += float(action[rank])
        border = comm.sendrecv(float(self._heat[-1 if rank == 0 else 0]), dest=1 - rank)
        flow = torch.diff(self._heat)
        self._heat[:-1] += 0.25 * flow
        self._heat[1:] -= 0.25 * flow
        at = -1 if rank == 0 else 0
        self._heat[at] += 0.25 * (border - self._heat[at])
        return self._seen(comm), -self._steps, False, self._steps >= 100, {}

    def _seen(self, comm: Any) -> Any:
        mean = comm.allreduce(float(self._heat.mean())) / comm.Get_size()
        own = (torch.cuda.device_count(), int(self._device.type == "cuda"))
        devices, is_there = zip(*comm.allgather(own), strict=True)
        return np.array([mean, max(devices), min(is_there)])
