"""A learner's checkpoints, and its part of a run's snapshots.

::

    <ckpt_dir>/iteration_000010000/     or ckpt_best, ckpt_final, or a name of the caller's; the
                                        ckpt_best of a run over ranks has no learner.pt
      policy.safetensors                the weights, as collectors and `hpcdi inspect` read them
      learner.pt                        optimizer, target network, counters, torch's random numbers
      manifest.json                     checksums; train iteration, environment steps, versions

The first learner of a group writes; all of them read. A run's snapshot holds the same files, and
for each other learner one with its random state: torch's, and its policy's, see `is_random`.
Tensors are stored from CPU memory, so that a checkpoint of a GPU can be read without one and vice
versa.
"""

from __future__ import annotations

import copy
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdi import __version__
from hpcdi.comm.messages import SnapshotPart, TakeSnapshot
from hpcdi.errors import CheckpointError, StoreError
from hpcdi.policy.base import attribute_of
from hpcdi.store.checkpoints import (
    MANIFEST,
    POLICY_FILE,
    SUFFIXES,
    Checkpoint,
    load_tensors,
    of_agent,
    open_checkpoint,
    save_checkpoint,
    tensors_writer,
    write_files,
)
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, publish_policy, read_policy
from hpcdi.types import MAIN
from hpcdi.utils.disk import advice
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import LOGGER
from hpcdi.utils.threads import JobThread

if TYPE_CHECKING:
    from hpcdi.roles.learner.training import Training

FINAL = "ckpt_final"
BY_ITERATION = "iteration_"
_LEARNER = "learner.pt"
_OF_RANK = "learner_{}.pt"
_RANDOM = "rng"
_TYPE = "policy_type"
_ITERATIONS = "iterations"  # of a policy, by which its schedules go


def is_random(name: str, value: Any) -> bool:
    """True for the state of a generator, of which each learner has its own; a team has several."""
    if name == _RANDOM:
        return True
    is_mapping = isinstance(value, Mapping) and bool(value)
    return is_mapping and (
        "bit_generator" in value or all(is_random("", v) for v in value.values())
    )


def random_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """What of a policy's state is not shared in a group of learners."""
    return {name: value for name, value in state.items() if is_random(name, value)}


def shared_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """What of a policy's state is shared in a group of learners."""
    return {name: value for name, value in state.items() if not is_random(name, value)}


def checkpoint_name(wanted: str | None, train_iter: int) -> str:
    """Returns a checkpoint's folder name: as wanted (``ckpt_best.pth.tar``), or by iteration.

    Raises:
        ValueError: the name is no plain one.
    """
    name = wanted if wanted is not None else f"{BY_ITERATION}{train_iter}"
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"a checkpoint's name must be that of a folder, not {wanted!r}")
    number = re.fullmatch(rf"{BY_ITERATION}(\d+)", name)
    return f"{BY_ITERATION}{int(number[1]):09d}" if number else name


def save_learner(learner: Training, name: str, keep: int) -> None:
    """Write a checkpoint; a full disk is a warning, and does not end the run.

    Args:
        learner: with its policy.
        name: see `checkpoint_name`.
        keep: how many of those that are named by iteration stay.
    """
    facts = {
        "train_iter": learner.train_iter,
        "collector_envstep": learner.env_steps,
        _TYPE: _type_of(learner.policy),
        "hpcdi_version": __version__,
        "saved_at": time.time(),
    }
    keep_newest = keep if name.startswith(BY_ITERATION) else None
    files = learner_files(learner)
    try:
        save_checkpoint(learner.ckpt_dir, name, files, facts, keep=keep_newest)
    except (StoreError, OSError) as error:
        LOGGER.warning("no checkpoint could be written: %s%s", error, advice(error))


def learner_files(learner: Training, agent: int = 0) -> dict[str, Callable[[Path], None]]:
    """Copy a learner's state; returns file name -> writer, which may be called later.

    The first learner of a group returns all of it, the others what is not the same on each: their
    random state, and that of their callbacks.

    Args:
        learner: with its policy.
        agent: number of its group, in a league with several.

    Raises:
        UnsavableError: a state holds what could not be loaded again.
    """
    state = dict(learner.policy.state_dict())
    own = {"random": _random_state()}
    if states := learner.callback_state():
        own["callbacks"] = copied(states)
    if learner.rank > 0:
        own["policy"] = copied(random_part(state))
        name = of_agent(agent, _OF_RANK.format(learner.rank))
        return {name: tensors_writer(own)}
    image = PolicyImage.of(state.pop("model"), learner.train_iter)
    beside_weights = {
        "policy": copied(state),
        "train_iter": learner.train_iter,
        "collector_envstep": learner.env_steps,
        _TYPE: _type_of(learner.policy),
        **own,
    }
    return {
        of_agent(agent, POLICY_FILE): partial(publish_policy, image=image),
        of_agent(agent, _LEARNER): tensors_writer(beside_weights),
    }


def with_policy_of(snapshot: Checkpoint, donor: Checkpoint) -> dict[str, Callable[[Path], None]]:
    """Returns file name -> writer of a snapshot's learner files, with the policies of another run.

    Weights, target networks and optimizers are the donor's; iterations, environment steps and
    random states stay the snapshot's.

    Args:
        snapshot: the snapshot; it has no learner files if it was taken before learners began.
        donor: a snapshot of a run with the same networks.

    Raises:
        StoreError: a file is torn, or the donor has no learner files.
    """
    if not donor.file(_LEARNER).exists():
        raise CheckpointError(donor.folder, "was taken before its learners began: it has no policy")
    writers: dict[str, Callable[[Path], None]] = {}
    for path in sorted(donor.folder.glob(f"*{_LEARNER}")):
        prefix = path.name.removesuffix(_LEARNER)
        state: dict[str, Any] = {
            "policy": {},
            "train_iter": int(snapshot.facts["train_iter"]),
            "collector_envstep": int(snapshot.facts["env_steps"]),
            "random": {},
        }
        if snapshot.file(path.name).exists():
            state = load_tensors(snapshot.file(path.name))
        donated = load_tensors(path)
        own, taken = random_part(state["policy"]), shared_part(donated["policy"])
        state[_TYPE] = donated[_TYPE]
        taken.pop(_ITERATIONS, None)
        if _ITERATIONS in state["policy"]:
            own[_ITERATIONS] = state["policy"][_ITERATIONS]
        state["policy"] = {**taken, **own}
        weights = read_policy(donor.file(f"{prefix}{POLICY_FILE}")).state_dict()
        image = PolicyImage.of(weights, state["train_iter"])
        writers[f"{prefix}{POLICY_FILE}"] = partial(publish_policy, image=image)
        writers[path.name] = tensors_writer(state)
    return writers


def path_problem(path: Path) -> str:
    """Returns why a path cannot be a checkpoint, empty where it can, without reading it."""
    path = _checkpoint_at(path)
    if not path.exists():
        return (
            f"there is no {str(path)!r}: name a checkpoint's folder or a .safetensors file, or '' "
            "to load nothing"
        )
    if path.is_dir() and not (path / MANIFEST).is_file():
        return f"{str(path)!r} is a folder, but no whole checkpoint: it has no {MANIFEST}"
    if path.is_file() and path.suffix not in (".safetensors", *SUFFIXES):
        return f"{str(path)!r} is neither a checkpoint's folder nor a .safetensors or .pth.tar file"
    return ""


def _checkpoint_at(path: Path) -> Path:
    """Returns the checkpoint that a path names: a folder also by its name with ``.pth.tar``."""
    if path.exists() or path.suffix not in SUFFIXES:
        return path
    folder = path.parent / checkpoint_name(path.name, 0)
    return folder if folder.exists() else path


def load_learner(
    learner: Training, path: Path, *, load_last_iter: bool | None = None, agent: int = 0
) -> None:
    """Load a checkpoint or a policy.

    Args:
        learner: with its policy.
        path: a checkpoint's folder; a policy's file, which holds weights alone; or a file of
            DI-engine's, with one of the endings `SUFFIXES`: a policy's state and counters.
        agent: see `learner_files`.
        load_last_iter: True: also iteration, optimizer and all other state; False: weights alone,
            from iteration 0; None: all that there is, of a policy's file the weights alone.

    Raises:
        StoreError: it is missing, torn, or does not fit the present policy.
    """
    problem = path_problem(path)
    if problem:
        raise CheckpointError(path, problem)
    path = _checkpoint_at(path)
    if path.is_file() and path.suffix in SUFFIXES:
        _load_file(learner, path, is_whole=load_last_iter is not False)
        return
    if path.is_dir():
        checkpoint = open_checkpoint(path)
        image = read_policy(checkpoint.file(of_agent(agent, POLICY_FILE)))
        state = {}
        if load_last_iter is not False:
            state = _state_beside_weights(checkpoint, learner.rank, agent)
        of_type = checkpoint.facts.get(_TYPE) or state.get(_TYPE, "")
    else:
        image, of_type = read_policy(path), ""
        state = {"train_iter": image.version} if load_last_iter else {}
    _set_policy(learner, {"model": image.state_dict(), **state.get("policy", {})}, path, of_type)
    learner.train_iter = state.get("train_iter", 0)
    learner.env_steps = state.get("collector_envstep", 0)
    learner.load_callback_state(state.get("callbacks", {}))
    _restore_random_state(state.get("random", {}))


def _load_file(learner: Training, path: Path, *, is_whole: bool) -> None:
    """Load a file of DI-engine's: a policy's state and counters, or the weights alone."""
    state = load_tensors(path)
    is_of_learner = isinstance(state, dict) and is_whole and "last_iter" in state
    if not is_of_learner and (not isinstance(state, dict) or "model" not in state):
        raise CheckpointError(path, "it has no key 'model': it is no policy's checkpoint")
    train_iter, env_steps = (state.pop(name, 0) for name in ("last_iter", "last_step"))
    _set_policy(learner, state if is_whole else {"model": state["model"]}, path)
    if is_whole:
        learner.train_iter, learner.env_steps = train_iter, env_steps


def _set_policy(learner: Training, state: dict[str, Any], path: Path, of_type: str = "") -> None:
    """Load a policy's state that was read from a file.

    Args:
        learner: with its policy.
        state: what the policy's learn mode loads.
        path: path of the file, for the error.
        of_type: type of the policy in the file; empty: it does not say.

    Raises:
        CheckpointError: it does not fit the present policy.
    """
    try:
        learner.policy.load_state_dict(state)
    except (RuntimeError, KeyError, ValueError) as error:
        what = f" of type {of_type!r}" if of_type else ""
        said = " ".join(str(error.args[0] if error.args else error).split())
        raise CheckpointError(
            path,
            f"it holds a policy{what} that does not fit the present one, of type "
            f"{_type_of(learner.policy)!r}: {said}",
        ) from error


class SnapshotPartWriter(Closing):
    """Writes a learner's part of run snapshots, on a thread that starts with the first one.

    The learner waits only while its state is copied.

    Args:
        layout: the run folder.
        announce: sends a part's announcement to rank 0.
        group: name of the learner's group.
    """

    def __init__(
        self, layout: RunLayout, announce: Callable[[SnapshotPart], None], group: str = MAIN
    ) -> None:
        self._layout, self._announce, self._group = layout, announce, group
        self._jobs = JobThread("snapshot-part")

    def keep(self, learner: Training, order: TakeSnapshot, agent: int = 0) -> None:
        """Copy the learner's present state; the files are written later; see `learner_files`."""
        began = time.perf_counter()
        files = learner_files(learner, agent)
        stall_s = time.perf_counter() - began
        self._jobs.submit(partial(self._write, order, files, learner.train_iter, stall_s))

    def close(self) -> None:
        """Write all parts that wait, then end the thread."""
        self._jobs.close()

    def _write(
        self,
        order: TakeSnapshot,
        files: dict[str, Callable[[Path], None]],
        train_iter: int,
        stall_s: float,
    ) -> None:
        error = ""
        try:
            written = write_files(self._layout.inside(order.folder), files)
        except (OSError, StoreError) as problem:
            written, error = {}, str(problem)
        part = SnapshotPart(order.name, written, train_iter, stall_s, error, self._group)
        self._announce(part)


def _state_beside_weights(checkpoint: Checkpoint, rank: int, agent: int) -> dict[str, Any]:
    """Returns everything but the weights of a checkpoint, for a learner of a group."""
    file = of_agent(agent, _LEARNER)
    if not checkpoint.file(file).exists():  # the best policy of a run over ranks
        return {}
    state: dict[str, Any] = load_tensors(checkpoint.file(file))
    if rank > 0:
        # learners' random numbers must differ: a learner that was in the group has a file with its
        # random state; a new one keeps that of its start
        state["random"] = {}
        state["policy"] = shared_part(state["policy"])
        path = checkpoint.file(of_agent(agent, _OF_RANK.format(rank)))
        if path.exists():
            of_rank = load_tensors(path)
            state["policy"].update(of_rank["policy"])
            state["random"] = of_rank["random"]
            state["callbacks"] = of_rank.get("callbacks", {})
    return state


def copied(tree: object) -> Any:
    """Returns a copy of a nested structure, with its tensors in CPU memory; mappings are dicts."""
    if hasattr(tree, "detach"):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, OrderedDict):  # a module's, which torch's readers may ask for its metadata
        same = copy.copy(tree)
        same.update({key: copied(value) for key, value in tree.items()})
        return same
    if isinstance(tree, Mapping):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        items = map(copied, tree)
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, deque):
        return deque(map(copied, tree), tree.maxlen)
    return tree.copy() if isinstance(tree, np.ndarray | set) else tree


def _type_of(policy: Any) -> str:
    cfg = attribute_of(policy, "cfg", None)
    return str(getattr(cfg, "type", type(policy).__name__))


def _random_state() -> dict[str, Any]:
    import torch

    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random_state(state: dict[str, Any]) -> None:
    import torch

    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
