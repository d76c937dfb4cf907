"""Going on with a run: what its folder must hold, and who may."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdi.errors import CheckpointError, LaunchError
from hpcdi.launch import run_folder
from hpcdi.store.layout import RunLayout

if TYPE_CHECKING:
    from hpcdi.store.checkpoints import Checkpoint


def config_of(path: str, role: str, given: str | None = None) -> str:
    """The configuration to go on with: that of the run folder.

    Args:
        path: the run folder.
        role: of its rank 0: "coordinator" of a run over ranks, "serial" of one in a process.
        given: a configuration that was named, too: one too many.

    Raises:
        LaunchError: the folder holds no such run, or another configuration was named.
    """
    facts = run_folder.read(Path(path))
    placement = facts.get("placement") or [{}]
    if placement[0].get("role") != role:
        command, what = _SAID[role]
        raise LaunchError(
            f"{path} holds no {what}: --resume takes the run folder of an `{command}`"
        )
    if given is not None:
        raise LaunchError(
            f"--resume goes on with {path}/config.yaml; leave {given} out, and name the settings "
            "that are to differ as key=value"
        )
    return str(RunLayout(Path(path)).config_file)


_SAID = {
    "serial": ("hpcdi serial", "serial run"),
    "coordinator": ("hpcdi train", "run over ranks"),
}


def ranks_of(path: str) -> int:
    """How many ranks a run had."""
    return len(run_folder.read(Path(path)).get("placement", []))


def newest_snapshot(layout: RunLayout) -> Checkpoint:
    """The newest whole snapshot of a run; torn ones are told, and passed over.

    Raises:
        CheckpointError: there is none.
    """
    from hpcdi.store.checkpoints import newest_checkpoint
    from hpcdi.utils.log import LOGGER

    snapshot, torn = newest_checkpoint(layout.snapshots_dir)
    for error in torn:
        LOGGER.warning("%s; the one before it is taken", error)
    if snapshot is None:
        raise CheckpointError(layout.snapshots_dir, "there is no whole snapshot to go on from")
    return snapshot


def has_snapshot(layout: RunLayout) -> bool:
    """Whether a run can be gone on with."""
    from hpcdi.store.checkpoints import names

    return bool(names(layout.snapshots_dir))


def hint(command: str, layout: Any) -> str:
    """How to go on, for people."""
    return f"  go on with   {command} --resume {run_folder.short(layout.root)}"
