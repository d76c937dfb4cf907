"""A policy that a run has saved: finding it with its configuration, and acting with it."""

from __future__ import annotations

import os
import pwd
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.run_state import newest_below
from hpcdi.config.compiled import show_notes
from hpcdi.config.load import misplaced, read_mapping
from hpcdi.config.modules import folders_of_modules, holds_modules, modules_beside, named_code
from hpcdi.config.schema import ExperimentConfig
from hpcdi.dataclass import dataclass
from hpcdi.errors import CheckpointError, LaunchError
from hpcdi.policy.base import ColumnarActor, actor_of
from hpcdi.run import run_folder
from hpcdi.run.experiment import load_experiment
from hpcdi.run.parts import columnar_policy, why_not_loaded
from hpcdi.run.run_folder import short
from hpcdi.run.serial import set_threads
from hpcdi.store.checkpoints import MANIFEST, POLICY_FILE, checkpoint_names, open_checkpoint
from hpcdi.store.files import check_entry
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, read_policy
from hpcdi.types import Spaces

_SUFFIX = ".safetensors"
_NAMES = "a run folder, a checkpoint's folder or a policy's .safetensors file"


@dataclass(frozen=True)
class SavedPolicy:
    """A policy on disk, checksum verified.

    Attributes:
        file: its path.
        title: "the run's best policy", "checkpoint", ...
        image: its parameters and version.
        config_file: the experiment that it was trained with.
        home: folder for videos: the run folder, or else the file's own.
    """

    file: Path
    title: str
    image: PolicyImage
    config_file: Path
    home: Path

    def __str__(self) -> str:
        return f"{short(self.file)}: {self.title}, train iteration {self.image.version}"


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy that can act.

    Attributes:
        config: the experiment, overrides applied.
        spaces: of its environment.
        mode: the policy's eval mode.
        seed: for environments and players; training drew nothing from it.
        stand_in: acts in place of the mode; None: nothing does.
    """

    config: ExperimentConfig
    spaces: Spaces
    mode: Any
    seed: np.random.SeedSequence
    stand_in: ColumnarActor | None = None

    @property
    def actor(self) -> ColumnarActor:
        """What acts for the mode, or in its place."""
        return actor_of(self.mode) if self.stand_in is None else self.stand_in


def find_policy(
    path: str, which: str | None = None, config: str | None = None, *, trust: bool = False
) -> SavedPolicy:
    """Find a policy and verify its checksum; writes nothing.

    Args:
        path: a run folder, a checkpoint's folder, or a policy's file.
        which: of a run's policies, "best" or "latest"; None: the best, or else the latest.
        config: the experiment's file; None: the run's own.
        trust: the run's own may name code to import, whoever has written it.

    Raises:
        LaunchError: the path does not lead to a policy, or no configuration is found for it; or
            somebody else's names code to import.
        StoreError: the policy, or the checkpoint that holds it, is torn.
        OSError: it cannot be read: it is somebody else's.
    """
    place = Path(path).absolute()
    check_entry(place)  # or it would be said not to be there
    if not place.exists():
        raise LaunchError(f"there is no {short(place)}{misplaced(path) or f'; name {_NAMES}'}")
    layout = RunLayout(place)
    is_run = layout.run_file.is_file() or layout.latest_policy.is_file()
    if which is not None and not is_run:
        raise LaunchError(f"--policy chooses among a run's policies, and {short(place)} is no run")
    if is_run:
        file, title = _of_run(layout, which)
    elif place.is_dir():
        file, title = _of_checkpoint(place), "checkpoint"
    else:
        file, title = place, "policy"
    if file.suffix != _SUFFIX:
        raise LaunchError(f"{short(file)} is no policy; name {_NAMES}")
    image = read_policy(file)
    if config is not None:
        config_file = Path(config)
    else:
        config_file = _config_of(file)
        layout = RunLayout(config_file.parent)
        change = run_folder.change_of_config(layout) if layout.run_file.is_file() else ""
        if change:
            sys.stderr.write(f"hpcdi: warning: {short(config_file)}: {change}: is it the run's?\n")
        if not trust:
            check_trusted(config_file)
    return SavedPolicy(file, title, image, config_file, _home_of(file))


def load_policy(
    saved: SavedPolicy, overrides: Sequence[str], seed: int | None = None
) -> LoadedPolicy:
    """Build a policy from its configuration, whose notes are shown, and load its parameters.

    Args:
        saved: the policy.
        overrides: ``key=value``.
        seed: root of the seeds; None: the experiment's.

    Raises:
        ConfigError: the configuration is wrong. LaunchError: the parameters do not fit it.
    """
    compiled, spaces = load_experiment(str(saved.config_file), overrides, over_ranks=None)
    config = compiled.config
    set_threads(config.policy, spaces)
    # a key of its own: training spawns its seeds without one, or by role and rank
    root = np.random.SeedSequence(config.seed if seed is None else seed, spawn_key=(2**32 - 1,))
    mode = columnar_policy(config.policy, ["eval"], seed=root.spawn(1)[0]).eval_mode
    difference = why_not_loaded(mode, saved.image.state_dict())
    if difference:
        raise LaunchError(
            f"{short(saved.file)} does not fit {short(saved.config_file)}: {difference}; name the "
            "settings that it was trained with, by key=value or --config"
        )
    show_notes(compiled.notes)
    return LoadedPolicy(config, spaces, mode, root)


def _of_run(layout: RunLayout, which: str | None) -> tuple[Path, str]:
    files = {"best": layout.best_policy, "latest": layout.latest_policy}
    saved = [name for name, file in files.items() if file.is_file()]
    wanted = [name for name in saved if which in (None, name)]
    if not wanted:
        instead = f"; there is --policy {saved[0]}" if saved else _elsewhere_in(layout)
        kind = f" {which}" if which else ""
        raise LaunchError(f"the run {short(layout.root)} holds no{kind} policy{instead}")
    return files[wanted[0]], f"the run's {wanted[0]} policy"


def _elsewhere_in(layout: RunLayout) -> str:
    """Returns a part of a message: which checkpoints have the weights of a run without policies."""
    folders = [
        short(folder / name)
        for folder in (layout.checkpoints_dir, layout.snapshots_dir)
        for name in checkpoint_names(folder)
        if (folder / name / POLICY_FILE).is_file()
    ]
    return f"; name one of {', '.join(folders)}" if folders else ": it has not saved any yet"


def _of_checkpoint(path: Path) -> Path:
    if not (path / MANIFEST).is_file():
        newest = newest_below(path)
        hint = f"; name {_NAMES}" if newest is None else f"; did you mean {short(newest)}?"
        raise LaunchError(
            f"{short(path)} is neither a run (it has no run.json) nor a checkpoint (it has no "
            f"{MANIFEST}){hint}"
        )
    file = open_checkpoint(path).file(POLICY_FILE)
    if not file.is_file():
        others = [short(one) for one in sorted(path.glob(f"*{_SUFFIX}"))]
        hint = f"; name one of {', '.join(others)}" if others else ""
        raise CheckpointError(path, f"holds no {POLICY_FILE}{hint}")
    return file


def _config_of(file: Path) -> Path:
    """Returns the configuration of the run that a file belongs to."""
    for folder in file.absolute().parents:
        if RunLayout(folder).config_file.is_file():
            return RunLayout(folder).config_file
    raise LaunchError(
        f"no config.yaml lies in the folders above {short(file)}; name the experiment that it was "
        "trained by: --config FILE"
    )


def check_trusted(config_file: Path) -> None:
    """Check that a configuration which somebody else may have written names no code to import.

    Raises:
        LaunchError: it does.
    """
    writer, settings = _other_writer(config_file), read_mapping(config_file)
    if not writer:
        _check_modules(config_file, settings)
        return
    names = sorted(set(named_code(settings)))
    if holds_modules(config_file.absolute().parent):
        names.append(f"modules in {short(config_file.absolute().parent)}")
    if names:
        raise LaunchError(
            f"{short(config_file)} may have been written by {writer}, and names code that would "
            f"run as you: {', '.join(names)}. Read it; if you trust it, add --trust, or name the "
            "experiment that you trust by --config FILE"
        )


def _check_modules(config_file: Path, settings: Mapping[str, Any]) -> None:
    """Check that modules which a configuration names are not of somebody else.

    Raises:
        LaunchError: one lies in a folder in which somebody else may write.
    """
    for folder, modules in modules_beside(settings, folders_of_modules(config_file)).items():
        for module in modules:
            writer = _other_writer(module)
            if writer:
                raise LaunchError(
                    f"{short(config_file)} names a module that is found in {short(folder)}, and "
                    f"{short(module)} may have been written by {writer}. It would run as you: if "
                    "you trust it, add --trust, or go to another folder"
                )


def _other_writer(file: Path) -> str:
    """Returns who else may have written a file: not its reader and not root; empty: nobody."""
    for path in (file, file.parent):
        state = path.stat()
        if state.st_uid not in (os.geteuid(), 0):
            return f"its owner, user {_name_of(state.st_uid)}"
        if state.st_mode & stat.S_IWOTH:
            return f"everybody ({short(path)} is writable by all)"
    return ""


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _home_of(file: Path) -> Path:
    """Returns the folder of the run that a file belongs to; of none: its own."""
    above = file.absolute().parents
    runs = (layout.root for layout in map(RunLayout, above) if layout.run_file.is_file())
    return next(runs, above[0])
