"""What rank 0 does before a run begins: the experiment, the run folder, the role of each rank."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from hpcdi.comm.failure import requeued_if_machine_fails
from hpcdi.comm.world import library_version
from hpcdi.config.compiled import restore_config, show_notes
from hpcdi.config.fields import to_mapping
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import HpcdiError, LaunchError
from hpcdi.run import resume
from hpcdi.run.placement import Place, placement_of
from hpcdi.run.request import RunRequest
from hpcdi.run.run_lock import RunLock
from hpcdi.run.run_start import RunStart
from hpcdi.run.signals import end_of
from hpcdi.run.solver_ranks import world_of
from hpcdi.store.layout import RunLayout
from hpcdi.types import Spaces


def prepare(
    request: RunRequest,
    handed_over: Mapping[str, Any] | None,
    places: list[Place],
    stack: ExitStack,
) -> RunStart:
    """Take the run folder, and choose the role of each rank.

    Args:
        request: the command line.
        handed_over: the experiment, if this job's launcher has checked it.
        places: where the ranks run.
        stack: holds the lock of the run folder.
    """
    try:
        with requeued_if_machine_fails():  # a full disk, too, is not the user's error
            ends_at = end_of(request.time_limit, os.environ, time.time())
            config, spaces = _experiment(request, handed_over)
            placement = tuple(placement_of(places, config))
            ranks = world_of(len(placement), config)
            if request.ranks not in (None, ranks):
                raise LaunchError(
                    f"-n {request.ranks} was given, but the launcher has started {ranks} ranks; "
                    "set the number of ranks there"
                )
            mode = resume.start_mode(request, config, os.environ)
            path = resume.folder_of(request, mode, config.exp_name)
            if mode is resume.StartMode.DONE:
                return RunStart({}, "", placement, error=resume.done_line(path))
            if spaces is not None and mode is not resume.StartMode.RESUME:
                from hpcdi.run.experiment import check_data

                check_data(config, spaces)
            stack.enter_context(RunLock(RunLayout(path)))
            restarts = resume.take(RunLayout(path), mode, config, placement, mpi=library_version())
    except HpcdiError as error:
        return RunStart({}, "", (), error=str(error), exit_code=error.exit_code)
    return RunStart(to_mapping(config), str(path), placement, restarts, ends_at)


def _experiment(
    request: RunRequest, handed_over: Mapping[str, Any] | None
) -> tuple[ExperimentConfig, Spaces | None]:
    """Returns the experiment, and the environment's spaces if it is checked here.

    That is so where srun or the user's own mpirun has started the ranks.
    """
    if handed_over is not None:
        return restore_config(handed_over), None
    from hpcdi.run.experiment import load_experiment  # with it gymnasium

    compiled, spaces = load_experiment(resume.config_of(request), resume.overrides_of(request))
    show_notes([*compiled.notes, *resume.changes(request, compiled.config)])
    return compiled.config, spaces
