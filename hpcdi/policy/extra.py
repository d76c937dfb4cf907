"""A loss of one's own beside an algorithm's: what it is given, how it is added and told of.

``policy.learn.extra_loss`` names it, or a subclass of an algorithm overrides
`TorchPolicy.extra_loss` and, where layers are to learn with it, `TorchPolicy.make_extra`; VARY.md
shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hpcdi.dataclass import dataclass
from hpcdi.errors import PolicyError
from hpcdi.policy.gradient_step import mean_share
from hpcdi.policy.named import call_named
from hpcdi.policy.sequences import means_of

Found: TypeAlias = tuple[Tensor, Mapping[str, Tensor | float]]
"""The loss, a scalar, and scalars to log: shares of a part in the batch's, see `Outputs.mean`."""
LOSS = "extra_loss"
_SETTING = "policy.learn.extra_loss"
_WATCHED = ("features", "memory")


@dataclass(frozen=True)
class Outputs:
    """What an update has computed of a part of a batch; what an algorithm does not have is None.

    Attributes:
        output: the network's, as `greedy` takes it, with gradients.
        features: what its head was given, float32 [rows, n], with gradients: outputs of the
            network's module ``memory`` (of the built-in ones), or ``features``; None: it has none.
        log_prob: of the actions taken, or by SAC drawn, [rows].
        entropy: of the distributions of actions, [rows].
        value: of the observation (PPO, IMPALA) or of the action taken, [rows].
        is_learnt: R2D2, whose rows are [sequences, steps]: those learnt from, bool.
        count: rows of the whole batch of this learner; on-policy: the mean of all learners'.
    """

    output: Any
    features: Tensor | None
    count: float
    log_prob: Tensor | None = None
    entropy: Tensor | None = None
    value: Tensor | None = None
    is_learnt: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        """The share that these rows' values [rows] have in the mean over the whole batch.

        A batch may be computed in parts (`learn.accumulate`), and several learners may have parts
        of one: shares add up to the mean. Of an empty part it is 0.
        """
        if self.is_learnt is not None:
            values = means_of(values, self.is_learnt)
        return mean_share(values, self.count)

    def share(self, batch: Mapping[str, Tensor]) -> float:
        """The share of these rows in the batch: a factor of what is computed of no row."""
        return len(next(iter(batch.values()))) / (self.count or 1)


class ExtraLoss:
    """Adds a loss to an algorithm's, and keeps its scalars until they are logged.

    Args:
        compute: `TorchPolicy.extra_loss`; None: there is none, and nothing is added.
        watching: the forward pass whose output the loss is given.
    """

    def __init__(self, compute: Callable[..., Found] | None, watching: Watching | None) -> None:
        self.names: tuple[str, ...] = ()
        self._compute, self._watching = compute, watching
        self._kept: list[Tensor] = []

    def __bool__(self) -> bool:
        return self._compute is not None

    def added(
        self, loss: Tensor, batch: Mapping[str, Tensor], count: float, **outputs: Any
    ) -> Tensor:
        """The loss of a part of a batch, and the user's.

        Args:
            loss: the algorithm's.
            batch: the part.
            count: see `Outputs`.
            outputs: see `Outputs`; `output` and `features` are those that the network has last
                computed with gradients.

        Raises:
            PolicyError: the user's is no scalar, its scalars have other names than before, or it
                asks for a column that there is not.
        """
        if self._compute is None or self._watching is None:
            return loss
        known = {"output": self._watching.output, "features": self._watching.features}
        try:
            found = self._compute(batch, Outputs(count=count, **{**known, **outputs}))
        except KeyError as error:
            if error.args[:1] == () or error.args[0] in batch:
                raise
            raise PolicyError(
                f"extra_loss(batch, outputs) asked for {error.args[0]!r}; the batch of this "
                f"algorithm and environment has {', '.join(sorted(batch))}"
            ) from error
        more, scalars = _checked(found)
        names = (LOSS, *sorted(scalars))
        if self.names and names != self.names:
            raise PolicyError(
                f"extra_loss(batch, outputs) returned scalars {names[1:]}, and {self.names[1:]} "
                "before: return the same ones each time, 0 where there is nothing to say"
            )
        self.names = names
        if not count:  # the batch has no rows: a mean of none is NaN
            self._kept.append(loss.new_zeros(len(names)))
            return loss
        row = [torch.as_tensor(found) for found in (more, *(scalars[n] for n in names[1:]))]
        self._kept.append(torch.stack([each.detach().to(loss) for each in row]))
        return loss + more

    @property
    def features(self) -> Tensor | None:
        """Those of the last forward pass with gradients, see `Outputs`."""
        return None if self._watching is None else self._watching.features

    def taken(self) -> list[Tensor]:
        """Scalars of the `names`, of all parts since the last call."""
        if not self._kept:
            return []
        row, self._kept = torch.stack(self._kept).sum(dim=0), []
        return list(row.unbind())

    def logs(self) -> dict[str, float]:
        """The same as numbers, by their names."""
        return {name: one.item() for name, one in zip(self.names, self.taken(), strict=True)}


def _checked(found: object) -> Found:
    """Returns what an `extra_loss` has returned.

    Raises:
        PolicyError: it is no scalar with a dict of scalars.
    """
    more, scalars = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    if not isinstance(more, Tensor) or more.dim() or not isinstance(scalars, Mapping):
        what = f"a tensor {list(more.shape)}" if isinstance(more, Tensor) else type(more).__name__
        raise PolicyError(
            f"extra_loss(batch, outputs) returned {what}, not a scalar tensor and a dict of "
            "scalars to log: return outputs.mean(losses), {}"
        )
    return more, scalars


class Watched(nn.Module):
    """A network that also returns what its head was given, for `Watching`.

    Args:
        network: any network, see `networks`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._features: Any = None
        self._is_called = False  # not a part of another call of the network
        part = part_with_features(network)
        if part is not None:
            part.register_forward_hook(self._keep)

    def forward(self, observation: object, state: object) -> Any:
        """As the network's, its output being a pair of that and features."""
        self._is_called = True
        output, state = self.network(observation, state)
        self._is_called = False
        features, self._features = self._features, None
        return (output, features), state

    def _keep(self, _part: nn.Module, _given: object, returned: object) -> None:
        if self._is_called:
            self._features = returned[0] if isinstance(returned, tuple) else returned


class Watching:
    """A forward pass that keeps what it has last computed with gradients.

    Args:
        forward: of a `Watched`.
    """

    def __init__(self, forward: Callable[[Any, Any], Any]) -> None:
        self.output: Any = None
        self.features: Tensor | None = None
        self._forward = forward

    def __call__(self, observation: object, state: object) -> Any:
        """As the network's."""
        (output, features), state = self._forward(observation, state)
        if torch.is_grad_enabled():
            self.output, self.features = output, features
        return output, state


def part_with_features(network: nn.Module) -> nn.Module | None:
    """The module of a network whose outputs its head is given; None: it does not say."""
    parts = (getattr(network, name, None) for name in _WATCHED)
    return next((part for part in parts if isinstance(part, nn.Module)), None)


def features_of(network: nn.Module) -> int | None:
    """How many features `part_with_features` makes; None: it does not say."""
    size = getattr(part_with_features(network), "out_features", None)
    return size if isinstance(size, int) else None


def made(setting: Mapping[str, Any], features: int | None, model: object) -> Any:
    """What ``policy.learn.extra_loss`` names, called with features, model and its arguments.

    Raises:
        ConfigError: it cannot be imported.
        PolicyError: it raises an error of any kind, or returns nothing to call.
    """
    arguments = dict(setting)
    path = str(arguments.pop("type"))
    how = (
        f"It is called with the number of features ({features}), policy.model and "
        f"{', '.join(arguments) or 'no arguments'}"
    )
    loss = call_named(path, _SETTING, how, features, model, **arguments)
    if not callable(loss):
        raise PolicyError(f"{_SETTING}: {path} returned {loss!r}, nothing to call")
    return loss
