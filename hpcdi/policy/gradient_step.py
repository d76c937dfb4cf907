"""One update of a learner, as far as it is the same for all algorithms, in torch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hpcdi.comm.gradients import GradientSync, share_state
from hpcdi.comm.group import allreduce_data
from hpcdi.config.policy import StepConfig
from hpcdi.errors import PolicyError
from hpcdi.policy import memories, optimizers
from hpcdi.store.rows import SEQUENCE_LEN

Network = TypeVar("Network", bound=nn.Module)

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def placed(network: Network, device: torch.device) -> Network:
    """The network, moved to `device`; where there are several learners, with learner 0's weights.

    Collective over the learners' process group.
    """
    network = network.to(device)
    share_state(network)
    return network


def cut(columns: Mapping[str, Tensor], parts: int) -> list[Mapping[str, Tensor]]:
    """Columns [batch, ...] in at most `parts` parts of about one size, none of them empty.

    Of sequences each part has whole ones.

    Args:
        columns: of one length, at least one column; or of sequences one after the other, see
            `memories.chosen`.
        parts: how many parts; fewer where there are not so many rows.
    """
    if parts == 1:
        return [columns]
    lengths = columns.get(SEQUENCE_LEN)
    if lengths is not None and lengths.ndim == 1:  # else each row is a sequence
        count = len(lengths)
        return [*memories.split(columns, torch.arange(count), max(1, min(parts, count)))]
    parts = max(1, min(parts, len(next(iter(columns.values())))))
    pieces = zip(*(torch.tensor_split(column, parts) for column in columns.values()), strict=True)
    return [dict(zip(columns, piece, strict=True)) for piece in pieces]


def mean_share(values: Tensor, count: float) -> Tensor:
    """Share that `values` [n] have in the mean of the `count` values that they are a part of.

    Shares of all parts add up to the mean; that of no values is 0.
    """
    return values.mean() if 0 < len(values) == count else values.sum() / (count or 1)


def rows_per_learner(count: int) -> float:
    """The mean number of rows of a learner, whose batch has `count`; on-policy they differ.

    Where each learner divides its sums by it (see `mean_share`), the mean over the learners is the
    mean over all rows. Collective over the learners' process group.
    """
    return float(allreduce_data(float(count), "avg"))


class Follower:
    """Moves a target network after the one that learns (Polyak averaging).

    Args:
        target: has the same parameters, and moves.
        network: that it follows; both keep their parameters' tensors from now on.
    """

    def __init__(self, target: nn.Module, network: nn.Module) -> None:
        self._target, self._network = target, network
        self._parts = list[Tensor](target.parameters()), list[Tensor](network.parameters())
        self._has_buffers = any(True for _ in target.buffers())

    def follow(self, share: float) -> None:
        """Move the target's parameters by `share` of the way to the network's.

        Buffers that both have, such as running statistics, become the network's.
        """
        with torch.no_grad():
            torch._foreach_lerp_(*self._parts, share)
            if not self._has_buffers:
                return
            newest = dict(self._network.named_buffers())
            for name, buffer in self._target.named_buffers():
                new = newest.get(name)
                if new is not None and new.shape == buffer.shape and buffer.is_contiguous():
                    buffer.copy_(new)


def forward_of(
    network: nn.Module, settings: StepConfig, device: torch.device
) -> Callable[[Any, Any], Any]:
    """The network's forward pass, compiled and in the precision of the settings.

    It takes and returns what the network does (see `networks`). Tensors that it returns are float32
    in any case, so that losses are computed in that. The network itself stays what it is: a module
    of the same class and names, which computes in float32.
    """
    if settings.precision == "float32" and not settings.compile:
        return network
    return _Forward(network, settings, device)


class _Forward:
    def __init__(self, network: nn.Module, settings: StepConfig, device: torch.device) -> None:
        self._network = network
        self._compute: Callable[[Any, Any], Any] = network
        self._failures: tuple[type[Exception], ...] = ()
        if settings.compile:
            from torch._dynamo.exc import BackendCompilerFailed  # takes a second to import

            self._compute = torch.compile(network.forward)
            self._failures = (BackendCompilerFailed,)
        self._autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if settings.precision != "float32":
            self._autocast = torch.autocast(device.type, _DTYPES[settings.precision])

    def __call__(self, observation: Any, other: Any) -> Any:
        is_one = isinstance(observation, Tensor)
        first = observation if is_one else next(iter(observation.values()))
        # an empty minibatch, there so that other learners need not wait, is not worth compiling
        compute = self._compute if len(first) else self._network
        try:
            with self._autocast:
                output = compute(observation, other)
        except self._failures as error:
            raise PolicyError(
                "policy.learn.compile is true, but torch.compile cannot build the network here: "
                f"{str(error).strip().splitlines()[0]}. Install a C++ compiler (g++) where "
                "learners run, name one by the variable CXX, or set policy.learn.compile=false"
            ) from error
        return _in_float32(output)


def _in_float32(output: object) -> Any:
    """Tensors, also those in tuples, as float32; a state stays as it is."""
    if isinstance(output, tuple):
        return tuple(map(_in_float32, output))
    return output.float() if isinstance(output, Tensor) else output


class GradientStep:
    """Makes steps of an optimizer from losses, alone or together with other learners.

    One step is `gradients`, then `apply`; what was computed may also be left unapplied::

        zero ─► loss, backward of each part ─► mean over the learners ─► unscale ─► clip ─► step
        └──────────────────── gradients ────────────────────┘           └─────── apply ───────┘

    In a process group of several learners all of them make the same steps: from equal parameters
    (see `placed`) and the mean of their gradients. So a loss that is NaN on one learner makes all
    gradients, and from that step all parameters, NaN on every learner: that one sees it in its loss
    at once, the others in their next one. (With fp16 such a step is skipped on all.)

    A loss may reach other networks: their parameters get no gradients from it.

    Args:
        network: whose parameters learn.
        optimizer: of these parameters.
        settings: see there.
        device: where the network is.

    Attributes:
        is_alone: no other network learns: a loss reaches none. That spares autograd a search.
        skipped_steps: with fp16, how many have overflowed so far.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: StepConfig,
        device: torch.device,
    ) -> None:
        self.optimizer = optimizer
        self.is_alone = False
        self.skipped_steps = 0
        self._parameters = list(network.parameters())
        self._accumulate = settings.accumulate
        self._limit = settings.grad_clip_norm or math.inf
        self._sync = GradientSync(self._parameters)
        self._scaler = torch.amp.GradScaler(device.type) if settings.precision == "fp16" else None
        self._zero = torch.zeros((), device=device)
        self._rate = optimizer.param_groups[0]["lr"]
        self._recorded_rate: Tensor | None = None  # the same, where a graph reads it
        if settings.tf32 and device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True  # of the process: all that it computes
            torch.backends.cudnn.allow_tf32 = True

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self._recorded_rate is not None and self._rate != rate:
            self._recorded_rate.fill_(rate)
        self._rate = rate

    @property
    def is_recordable(self) -> bool:
        """True if its steps can be recorded as parts of a CUDA graph, see `graphs`."""
        return self._scaler is None and optimizers.is_recordable(self.optimizer)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Steps within it are recorded; whenever they are replayed, they follow `set_rate`."""
        groups = self.optimizer.param_groups
        if self._recorded_rate is None:
            self._recorded_rate = torch.tensor(self._rate, device=self._zero.device)
        for group in groups:
            group.update(lr=self._recorded_rate, capturable=True)
        try:
            yield
        finally:
            for group in groups:
                group.update(lr=self._rate, capturable=False)

    def gradients(
        self, batch: Mapping[str, Tensor], loss: Callable[[Mapping[str, Tensor]], Tensor]
    ) -> Tensor:
        """Put the gradient of the batch's loss, the mean over the learners, into ``.grad``.

        The batch is computed in ``settings.accumulate`` parts, one after the other.

        Collective over the learners' process group.

        Args:
            batch: name -> [samples, ...].
            loss: of a part of the batch: a scalar, its share of the batch's loss; see `mean_share`.

        Returns:
            This learner's loss, a scalar without gradients.
        """
        *others, last = cut(batch, self._accumulate)
        self._sync.zero()
        losses = []
        for part in others:
            with self._sync.paused():
                losses.append(self._backward(loss(part)))
        losses.append(self._backward(loss(last)))
        self._sync.finish()
        return torch.stack(losses).sum() if others else losses[0]

    def apply(self, *, measured: bool = False) -> Tensor:
        """Clip the gradient, and make the step.

        Args:
            measured: compute the gradient's norm even where nothing is clipped.

        Returns:
            The gradient's norm before it was clipped, a scalar; 0 where it was not computed, and
            where fp16 has skipped the step.
        """
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        norm = self._zero
        if measured or self._limit < math.inf:
            norm = nn.utils.clip_grad_norm_(self._parameters, self._limit)
        if self._scaler is None:
            optimizers.step(self.optimizer)
            return norm
        scale = self._scaler.get_scale()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        if self._scaler.get_scale() < scale:  # which says that something has overflowed
            self.skipped_steps += 1
            return self._zero
        return norm

    def scalars(self) -> dict[str, int]:
        """For the log: with fp16 ``skipped_steps``, how many have overflowed so far."""
        return {} if self._scaler is None else {"skipped_steps": self.skipped_steps}

    def state_dict(self) -> dict[str, Any]:
        """``optimizer`` and, with fp16, ``scaler`` and ``skipped_steps``."""
        state: dict[str, Any] = {"optimizer": self.optimizer.state_dict()}
        if self._scaler is not None:
            state |= {"scaler": self._scaler.state_dict(), **self.scalars()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what there is of `state_dict`, from any device and precision.

        Settings of the optimizer stay its own; see `optimizers.load_state`.
        """
        if "optimizer" in state:
            optimizers.load_state(self.optimizer, state["optimizer"])
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
            self.skipped_steps = state["skipped_steps"]

    def _backward(self, loss: Tensor) -> Tensor:
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        needing = None
        if not self.is_alone:
            needing = [parameter for parameter in self._parameters if parameter.requires_grad]
        scaled.backward(inputs=needing)  # type: ignore[no-untyped-call]
        return loss.detach()
