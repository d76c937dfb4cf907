"""`hpcdi serial`: a whole run in this process, with a debugger attached if need be."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpcdi.errors import EXIT_DONE, EXIT_FAILED, HpcdiError, StoreError
from hpcdi.launch import messages, resume, run_folder
from hpcdi.launch.private_folder import own_temporary_folder
from hpcdi.launch.run_lock import RunLock
from hpcdi.launch.signals import SignalFlag


@dataclass(frozen=True)
class SerialArguments:
    """Arguments of the command line."""

    config: str | None
    overrides: tuple[str, ...] = ()
    run_dir: str | None = None
    resume: str | None = None


def serial(arguments: SerialArguments) -> int:
    """Train in this process; returns the exit code.

    Raises:
        ConfigError: the experiment is wrong. LaunchError: the run folder cannot be used.
    """
    chosen_by_user = "OMP_NUM_THREADS" in os.environ
    from hpcdi.launch.experiment import load_experiment
    from hpcdi.store.atomic import stay_in
    from hpcdi.store.layout import RunLayout
    from hpcdi.utils.log import close_log, open_log

    source = resume.config_of(arguments)
    compiled, spaces = load_experiment(source, arguments.overrides, over_ranks=False)
    if not chosen_by_user:
        set_threads(spaces)
    for note in compiled.notes:
        sys.stderr.write(f"hpcdi: note: {note}\n")
    way = resume.way_of(arguments, compiled, os.environ)
    layout = RunLayout(resume.folder_of(arguments, way, compiled.config.exp_name))
    if way is resume.Way.DONE:
        sys.stdout.write(f"hpcdi: {resume.done_line(layout.root)}\n")
        return EXIT_DONE
    with own_temporary_folder(), RunLock(layout), ExitStack() as log:
        stay_in(layout.root)
        placement = [{"rank": 0, "role": "serial", "host": platform.node(), "pid": os.getpid()}]
        restarts = resume.take(layout, way, compiled.to_mapping(), placement, mpi="none")
        flag = SignalFlag("shutting down; press Ctrl-C again to end at once")
        flag.install()
        open_log(layout.log_file(0), 0, "serial", restarts)
        log.callback(close_log)
        return _run(compiled.config, spaces, layout, flag, restarts)


def _run(config: Any, spaces: Any, layout: Any, flag: SignalFlag, restarts: int) -> int:
    """Build the run, see it through, say how it ended."""
    from hpcdi.launch.serial.run import SerialRun
    from hpcdi.store.disk_full import or_warn
    from hpcdi.utils.log import LOGGER, say
    from hpcdi.worker.coordinator.scheduler import Outcome
    from hpcdi.worker.fault import FAULTS

    again = f", restart {restarts}" if restarts else ""
    title = f"one process with {config.env.collector_env_num} environments{again}"
    for line in messages.opening(f"{config.exp_name}, {title}", layout):
        say(line)
    run: SerialRun | None = None
    has_begun = False
    try:
        FAULTS.arm(config.fault, 0, "serial", restarts)
        resumed = _newest(layout, config)
        run = SerialRun(config, spaces, layout, restarts, flag.take)
        with run:
            if resumed is not None:
                _resume(run, resumed, layout)
            has_begun = True
            outcome = run.train()
    except BaseException as error:
        if isinstance(error, StoreError) and not has_begun:  # the run is what it was
            raise
        reason = f"{type(error).__name__}: {error}"
        LOGGER.info("the run failed", exc_info=True)
        if not isinstance(error, HpcdiError):
            traceback.print_exc()
        code = error.exit_code if isinstance(error, HpcdiError) else EXIT_FAILED
        outcome = Outcome("failed", reason, code)
    figures = run.figures() if run is not None else {}
    end = partial(run_folder.end, layout, outcome.state, outcome.reason, outcome.exit_code, figures)
    or_warn("end of the run", end)
    stream = sys.stdout if outcome.exit_code == EXIT_DONE else sys.stderr
    summary = run.summary() if run is not None else []
    for line in messages.closing("hpcdi serial", outcome, summary, layout):
        stream.write(line + "\n")
    stream.flush()
    return outcome.exit_code


def _resume(run: Any, resumed: Any, layout: Any) -> None:
    """Go on from a snapshot; where that cannot be, ``run.json`` is what it was before."""
    from hpcdi.utils.log import say

    try:
        run.resume(resumed)
    except BaseException:
        run_folder.leave(layout)
        raise
    say(f"  resumed      {resumed}")


def _newest(layout: Any, config: Any) -> Any:
    try:
        return resume.newest(layout, repeats=config.system.deterministic)
    except BaseException:
        run_folder.leave(layout)
        raise


def set_threads(spaces: Any) -> None:
    """Let torch compute images by several threads; small networks are fastest by one."""
    import torch

    from hpcdi.policy.spaces import image_axes

    is_image = any(image_axes(leaf) is not None for leaf in spaces.observation)
    torch.set_num_threads(min(len(os.sched_getaffinity(0)), 8) if is_image else 1)
