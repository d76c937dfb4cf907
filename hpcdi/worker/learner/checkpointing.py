"""A learner's checkpoints: what is in them, and how one is taken up.

::

    <ckpt_dir>/iteration_000010000/     or ckpt_best, ckpt_final, or a name of the caller's; the
                                        ckpt_best of a run over ranks has no learner.pt
      policy.safetensors                the weights, as collectors and `hpcdi inspect` read them
      learner.pt                        optimizer, target network, counters, torch's random numbers
      manifest.json                     checksums; train iteration, environment steps, versions

The first learner of a group writes; all of them read. A snapshot of a whole run holds the same
files, and of each other learner one with its random numbers: torch's, and what its policy keeps
under ``rng``. Tensors go by the CPU, so a checkpoint of a GPU is read without one, and the other
way round.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpcdi import __version__
from hpcdi.errors import CheckpointError, StoreError
from hpcdi.store.checkpoints import (
    BEST_CHECKPOINT,
    MANIFEST,
    POLICY_FILE,
    Checkpoint,
    load_tensors,
    open_checkpoint,
    save_checkpoint,
    save_tensors,
)
from hpcdi.store.policies import pack, publish_policy, read_policy
from hpcdi.utils.log import LOGGER
from hpcdi.worker.learner.learner_view import LearnerView

BEST, FINAL = BEST_CHECKPOINT, "ckpt_final"
_BY_ITERATION = "iteration_"
_POLICY, _LEARNER = POLICY_FILE, "learner.pt"
_OF_RANK = "learner_{}.pt"
_OWN = ("rng",)
"""Keys of a policy's state that each learner of a group has for itself."""
_SUFFIXES = (".tar", ".pth", ".pt")


def checkpoint_name(given: str | None, train_iter: int) -> str:
    """A checkpoint's folder: of a name (``ckpt_best.pth.tar`` as well), else of the iteration.

    Raises:
        ValueError: the name is no plain one.
    """
    name = given if given is not None else f"{_BY_ITERATION}{train_iter}"
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"a checkpoint's name must be that of a folder, not {given!r}")
    number = re.fullmatch(rf"{_BY_ITERATION}(\d+)", name)
    return f"{_BY_ITERATION}{int(number[1]):09d}" if number else name


def save_learner(learner: LearnerView, name: str, keep: int) -> Path | None:
    """Write a checkpoint; a disk that is full is told, and does not end the run.

    Args:
        learner: with its policy.
        name: see `checkpoint_name`.
        keep: how many of those by iteration stay.

    Returns:
        Its folder; None where it could not be written.
    """
    facts = {
        "train_iter": learner.train_iter,
        "collector_envstep": learner.collector_envstep,
        "policy_type": _type_of(learner.policy),
        "hpcdi_version": __version__,
        "saved_at": time.time(),
    }
    try:
        return save_checkpoint(
            learner.ckpt_dir, name, learner_files(learner), facts, replace=True,
            among=_BY_ITERATION,
            keep=keep if name.startswith(_BY_ITERATION) else None,
        )  # fmt: skip
    except (StoreError, OSError) as error:
        LOGGER.warning("no checkpoint could be written: %s. Free some space", error)
        return None


def learner_files(learner: LearnerView) -> dict[str, Callable[[Path], None]]:
    """What a learner is at this moment, as files and their writers, which may be called later.

    All of it from the first of a group; from the others, what is their own.
    """
    state = dict(learner.policy.state_dict())
    if learner.rank > 0:
        own = {"policy": {k: state[k] for k in _OWN if k in state}, "random": _random_state()}
        return {_OF_RANK.format(learner.rank): partial(save_tensors, tree=_copied(own))}
    image = pack(state.pop("model"), learner.train_iter)
    rest = {
        "policy": _copied(state),
        "train_iter": learner.train_iter,
        "collector_envstep": learner.collector_envstep,
        "random": _random_state(),
    }
    return {
        _POLICY: partial(publish_policy, image=image),
        _LEARNER: partial(save_tensors, tree=rest),
    }


def path_problem(path: Path) -> str:
    """Why a path cannot be a checkpoint; empty where it can. Nothing is read yet."""
    if not path.exists():
        return (
            f"there is no {str(path)!r}: name a checkpoint's folder or a .safetensors file, or '' "
            "to load nothing"
        )
    if path.is_dir() and not (path / MANIFEST).is_file():
        return f"{str(path)!r} is a folder, but no whole checkpoint: it has no {MANIFEST}"
    if path.is_file() and path.suffix != ".safetensors":
        return f"{str(path)!r} is neither a checkpoint's folder nor a .safetensors file"
    return ""


def load_learner(learner: LearnerView, path: Path, *, load_last_iter: bool | None = None) -> None:
    """Take up a checkpoint, or a policy.

    Args:
        learner: with its policy.
        path: a checkpoint's folder, or a policy's file, which holds weights alone.
        load_last_iter: go on from its iteration, with its optimizer and all; false: take weights
            alone and begin at iteration 0. None: what there is. A policy's file has an iteration
            to go on from, too.

    Raises:
        StoreError: it is missing, torn, or does not fit the present policy.
    """
    problem = path_problem(path)
    if problem:
        raise CheckpointError(path, problem)
    if path.is_dir():
        checkpoint = open_checkpoint(path)
        image = read_policy(checkpoint.file(_POLICY))
        rest = _rest(checkpoint, learner.rank) if load_last_iter is not False else {}
        of_type = checkpoint.facts.get("policy_type", "?")
    else:
        image, of_type = read_policy(path), "?"
        rest = {"train_iter": image.version} if load_last_iter else {}
    try:
        learner.policy.load_state_dict({"model": image.state_dict(), **rest.get("policy", {})})
    except (RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(
            path,
            f"it holds a policy of type {of_type!r} that does not fit the present one, of type "
            f"{_type_of(learner.policy)!r}: {error}",
        ) from error
    learner.last_iter.update(rest.get("train_iter", 0))
    learner.collector_envstep = rest.get("collector_envstep", 0)
    _restore_random_state(rest.get("random", {}))


def shared_state(learner: LearnerView) -> dict[str, Any]:
    """What the learners of a group have in common: weights, optimizer, counters."""
    state = {k: v for k, v in learner.policy.state_dict().items() if k not in _OWN}
    return {
        "policy": state,
        "train_iter": learner.train_iter,
        "collector_envstep": learner.collector_envstep,
    }


def take_shared_state(learner: LearnerView, state: Mapping[str, Any]) -> None:
    """Be as the learner that gave `shared_state`; random numbers stay one's own."""
    learner.policy.load_state_dict(state["policy"])
    learner.last_iter.update(state["train_iter"])
    learner.collector_envstep = state["collector_envstep"]


def _rest(checkpoint: Checkpoint, rank: int) -> dict[str, Any]:
    """What a checkpoint holds beside the weights, for a learner of a group."""
    if not checkpoint.file(_LEARNER).exists():  # weights that a collector has found to be the best
        return {}
    rest: dict[str, Any] = load_tensors(checkpoint.file(_LEARNER))
    if rank > 0:  # random numbers must differ: its own if it was there, else those of its start
        rest["random"] = {}
        for name in _OWN:
            rest["policy"].pop(name, None)
        path = checkpoint.file(_OF_RANK.format(rank))
        if path.exists():
            own = load_tensors(path)
            rest["policy"].update(own["policy"])
            rest["random"] = own["random"]
    return rest


def _copied(tree: Any) -> Any:
    """A nested structure with copies of its tensors, in the memory of the host."""
    if hasattr(tree, "detach"):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, Mapping):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(_copied, tree))
    return tree


def _type_of(policy: Any) -> str:
    try:
        return str(policy.get_attribute("cfg").type)
    except (AttributeError, NotImplementedError):
        return type(policy).__name__


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
