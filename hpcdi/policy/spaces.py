"""Filling a policy's settings from its environment's spaces, and what networks ask of these."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from hpcdi.config.algorithms import ActorCriticModelConfig
from hpcdi.config.policy import (
    ContinuousModelConfig,
    ModelConfig,
    ReplayPolicyConfig,
    TorchPolicyConfig,
)
from hpcdi.errors import Problem
from hpcdi.types import Array, Leaf, Spaces
from hpcdi.utils.registry import POLICY_REGISTRY

P = TypeVar("P", bound=TorchPolicyConfig)
Model = TypeVar("Model", bound=ModelConfig)

SMALLEST_IMAGE = 36
"""Pixels that the convolutions need in height and width."""
MOST_ONE_HOT = 50_000
"""Values of a discrete observation beyond which it is not one-hot."""
NO_BOUND = 1e30
"""Bounds from here on say that there are none."""
STATE = "state"
"""The part of an observation that is the whole team's."""
_MOST_WHOLE, _MOST_WHOLE_DOUBLE = 1 << 24, 1 << 53
KINDS = {
    "discrete": "Discrete",
    "continuous": "a Box",
    "multi_discrete": "MultiDiscrete or MultiBinary",
    "mixed": "a Dict or Tuple",
}
"""Kinds of action spaces, see `Spaces.action_kind`."""


def as_shape(shape: int | Sequence[int] | None) -> tuple[int, ...]:
    """A shape; a number is that of a vector, and None, which says nothing, that of a number."""
    return (shape,) if isinstance(shape, int) else tuple(shape or ())


def box_of(low: Sequence[float], high: Sequence[float]) -> tuple[Array, Array]:
    """Middle and half of the width of each component, float32: -1..1 is between the bounds."""
    bounds = np.array([low, high], dtype=np.float64)
    middle, half = bounds.mean(axis=0), (bounds[1] - bounds[0]) / 2
    return middle.astype(np.float32), half.astype(np.float32)


def bounds_of(low: Sequence[float], high: Sequence[float], dtype: str = "") -> tuple[Array, Array]:
    """Bounds of each component in float32; of other dtypes the widest within those of the Box."""
    given = np.array([low, high], np.float64)
    with np.errstate(over="ignore"):
        lower, upper = given.astype(np.float32)
    if dtype in ("", "float32"):
        return lower, upper
    # whole numbers from here on are not all in float64: what is given may be beyond the Box, too
    is_coarse = (np.abs(given) >= _MOST_WHOLE_DOUBLE) & is_whole(dtype)
    infinite = np.float32(np.inf)
    return (
        np.where((lower < given[0]) | is_coarse[0], np.nextafter(lower, infinite), lower),
        np.where((upper > given[1]) | is_coarse[1], np.nextafter(upper, -infinite), upper),
    )


def is_bounded(leaf: Leaf) -> bool:
    """Returns whether a part of an action is discrete, or has bounds that mean something."""
    has_bounds = len(leaf.low) == math.prod(leaf.shape)
    return bool(leaf.counts) or (
        has_bounds and np.abs([leaf.low, leaf.high]).max(initial=0) < NO_BOUND
    )


def with_bounds(spaces: Spaces) -> Spaces:
    """Returns spaces in which all actions have bounds, to be drawn at random.

    Components without bounds are from -1 to 1; with one bound, in a range of 2 as near to that.
    """
    action = tuple(leaf if is_bounded(leaf) else _bounded(leaf) for leaf in spaces.action)
    return dataclasses.replace(spaces, action=action)


def _bounded(leaf: Leaf) -> Leaf:
    """See `with_bounds`."""
    n = math.prod(leaf.shape)
    given = (leaf.low, leaf.high) if len(leaf.low) == n else ((-np.inf,) * n, (np.inf,) * n)
    low, high = np.array(given, np.float64)
    has_both = (low > -NO_BOUND) & (high < NO_BOUND)
    middle = np.clip(0.0, low + 1.0, high - 1.0)
    least = np.where(has_both, low, np.maximum(low, middle - 1.0))
    most = np.where(has_both, high, np.minimum(high, middle + 1.0))
    return dataclasses.replace(leaf, low=tuple(least.tolist()), high=tuple(most.tolist()))


def is_whole(dtype: str) -> bool:
    """Returns whether a dtype is of whole numbers, or of truths; "" is not."""
    return np.dtype(dtype or "float32").kind in "biu"


def rounded(action: Array, dtype: str) -> Array:
    """Returns a Box's part of actions, float32, as environments of a dtype get it.

    So what is stored is what the environment got: whole numbers, or those that float16 has.
    """
    if is_whole(dtype):
        return np.rint(action)
    return action.astype(np.float16).astype(np.float32) if dtype == "float16" else action


def as_stored(action: Array, leaf: Leaf) -> Array:
    """Returns actions [rows, ...] of an environment's as a policy's own are stored beside them.

    Discrete ones are int64. A Box's are float32, within its bounds where they are known, and such
    as its environment gets (`rounded`).
    """
    if leaf.counts:
        return action.astype(np.int64)
    stored = action.astype(np.float32)
    if leaf.low:
        low, high = bounds_of(leaf.low, leaf.high, leaf.dtype)
        flat = stored.reshape(len(stored), math.prod(stored.shape[1:]))
        stored = flat.clip(low, high).reshape(stored.shape)
    return rounded(stored, leaf.dtype)


def image_axes(leaf: Leaf, smallest: int = SMALLEST_IMAGE) -> tuple[int, ...] | None:
    """How the axes of a picture become [..., channels, height, width]; None: it is no picture.

    A picture has three axes, channels first or last, or four where some are stacked, and at least
    `smallest` pixels in height and width.
    """
    if leaf.counts or len(leaf.shape) not in (3, 4):
        return None
    *stack, first, middle, last = leaf.shape
    axes = tuple(range(len(stack)))
    # fewer channels than rows, unless height and width are equal
    is_last = first == middle if (first == middle) != (middle == last) else last < first
    if min(*((first, middle) if is_last else (middle, last))) < smallest:
        return None
    n = len(stack)
    return (*axes, n + 2, n, n + 1) if is_last else (*axes, n, n + 1, n + 2)


def encoder_objection(name: str, leaves: Sequence[Leaf]) -> str:
    """Says why an encoder of hpcdi cannot take observations; empty: it can, or is not hpcdi's."""
    first = leaves[0]
    if name in ("", "auto", "multi") or ":" in name:
        return ""
    if len(leaves) > 1 or first.name:
        return (
            f"{name} takes one array, and observations have several, {_said(leaves)}: use auto, "
            "multi or one of your own"
        )
    if name == "mlp":
        return ""
    if len(first.shape) not in (3, 4):
        return f"observations of shape {first.shape} are no pictures; use encoder: mlp"
    axes = image_axes(first, smallest=1) or tuple(range(len(first.shape)))
    if name == "nature_cnn" and min(first.shape[axis] for axis in axes[-2:]) < SMALLEST_IMAGE:
        return (
            f"observations of shape {first.shape} are taken for images, and the convolutions need "
            f"at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} pixels; resize or flatten them, or use "
            "encoder: impala_cnn"
        )
    return ""


def _encoder_problems(model: ModelConfig) -> Iterator[Problem]:
    """What encoders of hpcdi cannot take, before torch makes any."""
    leaves = obs_leaves(model)
    if said := encoder_objection(model.encoder, leaves):
        yield Problem("model.encoder", said)
    is_multi = model.encoder == "multi" or len(leaves) > 1 or bool(leaves[0].name)
    if not is_multi or model.encoder not in ("auto", "multi"):
        return
    named = {leaf.name: leaf for leaf in leaves}
    for name, encoder in model.leaf_encoders.items():
        leaf = named.get(name)
        said = (
            f"there is no {name} in {_said(leaves)}" if leaf is None
            else encoder_objection(encoder, [dataclasses.replace(leaf, name="")])
        )  # fmt: skip
        if said:
            yield Problem(f"model.leaf_encoders.{name}", said)


def obs_leaves(model: ModelConfig) -> tuple[Leaf, ...]:
    """The arrays that networks get: ``model.obs_leaves``, or the one of ``model.obs_shape``."""
    if model.obs_leaves:
        return model.obs_leaves
    shape = as_shape(model.obs_shape)
    return (Leaf("", shape, "uint8" if len(shape) == 3 else "float32"),)


def without(model: Model, names: Sequence[str]) -> Model:
    """Returns the settings of a network that sees no arrays of these names, nor below them."""
    if not names:
        return model
    leaves = tuple(leaf for leaf in obs_leaves(model) if leaf.name.partition("/")[0] not in names)
    encoders = {
        leaf: encoder
        for leaf, encoder in model.leaf_encoders.items()
        if leaf.partition("/")[0] not in names
    }
    return dataclasses.replace(model, obs_leaves=leaves, leaf_encoders=encoders)


def action_leaves(model: ModelConfig) -> tuple[Leaf, ...]:
    """The parts of an action: ``model.action_leaves``, or the one that ``action_space`` says.

    Settings that do not say it are those of continuous actions, or of discrete ones.
    """
    is_discrete = getattr(model, "action_space", None) == "discrete"
    if is_discrete or not isinstance(model, ContinuousModelConfig):
        return (Leaf("", (), "int64", counts=as_shape(model.action_shape)),)
    if isinstance(model, ActorCriticModelConfig) and model.action_leaves:
        return model.action_leaves
    low, high, dtype = model.action_low, model.action_high, model.action_dtype or "float32"
    return (Leaf("", as_shape(model.action_shape), dtype, low=low, high=high),)


def one_hot_places(leaf: Leaf) -> Array | None:
    """Where each component's value 0 is in a one-hot vector, int64 [components]; None: it has none.

    Arrays that are not discrete have none, and truths are numbers as they are.
    """
    if not leaf.counts or (not leaf.starts and set(leaf.counts) == {2}):
        return None
    counts = np.array(leaf.counts)
    places: Array = counts.cumsum() - counts - np.array(leaf.starts or [0] * len(counts))
    return places


def scale_of(leaf: Leaf) -> float | None:
    """What bytes are divided by, so that they become 0..1; None: it is none of bytes."""
    if leaf.dtype != "uint8" or leaf.counts:
        return None
    return max(leaf.high, default=255.0) or 1.0


def is_board(leaf: Leaf) -> bool:
    """True if an array has three axes and is no picture: the planes of a board, say."""
    return len(leaf.shape) == 3 and leaf.dtype != "uint8" and max(leaf.shape) < SMALLEST_IMAGE


def is_normalised(leaf: Leaf) -> bool:
    """True if running statistics make sense of an array.

    They make none of pictures of bytes, of discrete arrays, and of those without a number.
    """
    is_picture = leaf.dtype == "uint8" and len(leaf.shape) > 1
    return not leaf.counts and not is_picture and math.prod(leaf.shape) > 0


def needs_leaves(spaces: Spaces) -> bool:
    """True if the shape alone does not say what observations are."""
    first = spaces.observation[0]
    if len(spaces.observation) > 1 or first.name or first.counts:
        return True
    if is_board(first):
        return True
    if len(first.shape) < 3:
        return first.dtype == "uint8"
    return first.dtype != "uint8" or bool(first.high) or image_axes(first) != (0, 1, 2)


def network_shape(spaces: Spaces) -> tuple[int, ...] | None:
    """Shape of observations as a network is to take them: boards are vectors to it.

    None where there are several arrays.
    """
    first = spaces.observation[0]
    if len(spaces.observation) > 1 or first.name:
        return None
    return (math.prod(first.shape),) if is_board(first) else first.shape


def with_spaces(cfg: P, spaces: Spaces, *, of_team: bool = False) -> tuple[P, list[Problem]]:
    """Fill empty settings from the environment; say where given ones contradict it.

    Args:
        cfg: a policy's settings; its section ``model`` has, where actions may be others than
            Discrete, ``action_space, action_low, action_high, action_dtype, action_leaves``.
        spaces: of the environment.
        of_team: the policy is one of a team's.

    Returns:
        The filled settings, and the problems.
    """
    if cfg.normalize.observation is None:
        has_any = any(map(is_normalised, spaces.observation))
        chosen = dataclasses.replace(cfg.normalize, observation=has_any)
        cfg = dataclasses.replace(cfg, normalize=chosen)
    model, kind = cfg.model, spaces.action_kind
    problems = list(_observation_problems(cfg, spaces))
    if kind not in cfg.ACTIONS:
        problems.append(
            Problem(
                "type",
                f"{cfg.type} takes actions that are {' or '.join(KINDS[k] for k in cfg.ACTIONS)}, "
                f"and this environment's are {KINDS[kind]}, {_said(spaces.action)}; "
                f"{_algorithms_for(kind, of_team=of_team)} would",
            )
        )
    found = {"action_space": kind, **_of_actions(spaces)}
    found = {name: value for name, value in found.items() if hasattr(model, name)}
    if kind in cfg.ACTIONS:
        problems += _action_problems(model, found)
    for leaf in spaces.action:
        if sum(leaf.counts) > MOST_ONE_HOT and not model.type:
            said = (
                f"actions are {leaf}: a network with an output for each of {sum(leaf.counts):,} "
                "hardly learns; have several components, such as digits, in a MultiDiscrete, or "
                "name a network of yours"
            )
            problems.append(Problem("model.type", said))
    if spaces.is_masked and not cfg.TAKES_MASKS:
        others = _algorithms_for(kind, masked=True, of_team=of_team)
        said = f"{cfg.type} knows no action masks; {others} do"
        problems.append(Problem("type", said))
    if isinstance(cfg, ReplayPolicyConfig) and cfg.hindsight.goals:
        problems += _goal_problems(spaces)
    if cfg.normalize.observation and not any(map(is_normalised, spaces.observation)):
        said = (
            f"has nothing to do: observations are {_said(spaces.observation)}, which encoders "
            "scale themselves"
        )
        problems.append(Problem("normalize.observation", said))
    if cfg.BOUNDED and not all(map(is_bounded, spaces.action)):
        problems.append(Problem("type", f"{cfg.type} needs actions bounded on both sides"))
    cfg = dataclasses.replace(cfg, model=_seeing(cfg, spaces, **found))
    return cfg, problems or list(_problems_of_filled(cfg))


def _seeing(cfg: TorchPolicyConfig, spaces: Spaces, **found: Any) -> ModelConfig:
    """Returns the settings of a network that sees an environment, with what else was found.

    One of the user's is told the dtype that the shape does not say.
    """
    seen, shape = _as_seen(cfg, spaces), network_shape(spaces)
    model = dataclasses.replace(cfg.model, obs_shape=shape, obs_leaves=(), **found)
    is_other = bool(model.type) and obs_leaves(model)[0].dtype != seen[0].dtype
    if needs_leaves(spaces) or is_other:
        model = dataclasses.replace(model, obs_leaves=seen)
    return model


def _problems_of_filled(cfg: TorchPolicyConfig) -> Iterator[Problem]:
    """What rules and limits say, once the environment's values are known to them."""
    yield from cfg.problems()
    for spec in dataclasses.fields(cfg.model):  # a file that hpcdi writes is one that it reads
        bounds = spec.metadata.get("bounds")
        if bounds and (said := bounds.objection(getattr(cfg.model, spec.name))):
            yield Problem(f"model.{spec.name}", said)
    if not cfg.model.type:
        yield from _encoder_problems(cfg.model)
    for problem in cfg.model.problems():
        yield dataclasses.replace(problem, path=f"model.{problem.path}")


def _goal_problems(spaces: Spaces) -> Iterator[Problem]:
    """What an environment lacks for hindsight experience replay."""
    leaves = {leaf.name: leaf for leaf in spaces.observation}
    achieved, desired = (leaves.get(f"{word}_goal") for word in ("achieved", "desired"))
    if achieved is None or desired is None:
        said = (
            "needs observations with achieved_goal and desired_goal, as gymnasium-robotics' have "
            f"them, and these are {_said(spaces.observation)}"
        )
        yield Problem("hindsight.goals", said)
    elif (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        yield Problem("hindsight.goals", f"{achieved} and {desired} are not of one kind")


def _algorithms_for(kind: str, *, masked: bool = False, of_team: bool = False) -> str:
    """Names of the algorithms that take actions of a kind, and masks of legal ones if need be.

    Of those by which a policy of a team learns, where it is one.
    """
    names = sorted(
        name
        for name in POLICY_REGISTRY
        if kind in getattr(cls := POLICY_REGISTRY.settings(name), "ACTIONS", ())
        and (cls.TAKES_MASKS or not masked)
        and not (cls.IMITATES or cls.WHOLE_TEAMS or name.endswith("_command"))
        and not (of_team and (cls.LEARNS_FROM_SEQUENCES or cls.CORRECTS_STALENESS))
    )
    *others, last = names or ["no algorithm"]
    return f"{', '.join(others)} and {last}" if others else last


def _said(leaves: Sequence[Leaf]) -> str:
    return ", ".join(map(str, leaves))


def _of_actions(spaces: Spaces) -> dict[str, Any]:
    """What the settings of a model say of actions; `action_shape` of several parts is outputs."""
    first, kind = spaces.action[0], spaces.action_kind
    if kind == "discrete":
        (count,) = first.counts
        return {"action_shape": count, "action_low": (), "action_high": ()}
    if kind == "continuous":
        of_box = {"action_low": first.low, "action_high": first.high, "action_dtype": first.dtype}
        return {"action_shape": first.shape, **of_box}
    outputs = sum(sum(leaf.counts) or math.prod(leaf.shape) for leaf in spaces.action)
    return {"action_shape": outputs, "action_leaves": spaces.action}


def _action_problems(model: ModelConfig, found: dict[str, Any]) -> Iterator[Problem]:
    kind, shape = getattr(model, "action_space", None), model.action_shape
    if kind not in (None, found.get("action_space")):
        said = f"is {kind}, the environment's are {found['action_space']}"
        yield Problem("model.action_space", said)
    elif shape is not None and as_shape(shape) != as_shape(found["action_shape"]):
        said = f"is {shape}, the environment's is {found['action_shape']}"
        yield Problem("model.action_shape", said)
    for name in ("action_low", "action_high", "action_dtype", "action_leaves"):
        given = getattr(model, name, ())
        if given and given != found.get(name):
            yield Problem(f"model.{name}", f"is {given}, the environment's is {found.get(name)}")


def _as_seen(cfg: TorchPolicyConfig, spaces: Spaces) -> tuple[Leaf, ...]:
    """The arrays that a network gets: those that are normalised before are float32 to it.

    Those of hpcdi ask for bytes alone, and policies by dicts take other whole numbers as they are.
    """
    return tuple(
        dataclasses.replace(leaf, dtype="float32", high=())
        if cfg.normalize.observation
        and is_normalised(leaf)
        and (cfg.model.type or leaf.dtype == "uint8")
        else leaf
        for leaf in spaces.observation
    )


def _observation_problems(cfg: TorchPolicyConfig, spaces: Spaces) -> Iterator[Problem]:
    model = cfg.model
    roots = {leaf.name.partition("/")[0] for leaf in spaces.observation}
    of_value = set(getattr(model, "value_only", ()))
    if unknown := of_value - roots:
        said = f"there is no {', '.join(sorted(unknown))} in {_said(spaces.observation)}"
        yield Problem("model.value_only", said)
    elif roots <= of_value:
        said = f"leaves the policy nothing to see: it names all of {_said(spaces.observation)}"
        yield Problem("model.value_only", said)
    for leaf in spaces.observation:
        if sum(leaf.counts) > MOST_ONE_HOT and not model.embedding_size and not model.type:
            yield Problem(
                "model.embedding_size",
                f"{leaf} would be {sum(leaf.counts):,} numbers, of which {len(leaf.counts)} are 1; "
                "set it to 32, say, and that many are learnt of each value",
            )
    for leaf in spaces.observation:
        starts = leaf.starts or (0,) * len(leaf.counts)
        values = [*zip(starts, leaf.counts, strict=True)]
        if max((abs(start) + count for start, count in values), default=0) > _MOST_WHOLE:
            is_far = max(leaf.counts) <= _MOST_WHOLE
            advice = "have it count from 0" if is_far else "make it several components, as digits,"
            said = (
                f"{leaf} counts from {starts[0]:,}: networks see float32, which tells whole "
                f"numbers apart to {_MOST_WHOLE:,}; {advice} by a wrapper"
            )
            yield Problem("model.encoder", said)
    given, shape = model.obs_shape, network_shape(spaces)
    first = spaces.observation[0]
    if given is not None and (shape is None or as_shape(given) not in (shape, first.shape)):
        said = f"the environment's is {_said(spaces.observation) if shape is None else first.shape}"
        yield Problem("model.obs_shape", f"is {as_shape(given)}, {said}")
    if model.obs_leaves and model.obs_leaves not in (_as_seen(cfg, spaces), spaces.observation):
        said = f"is {_said(model.obs_leaves)}, the environment's is {_said(spaces.observation)}"
        yield Problem("model.obs_leaves", said)
