"""How fast a learner updates: DQN, PPO and SAC beside the same updates written out in one file.

Networks, batches, losses and optimizers are the same. What is written out is in torch alone, in
float32, and reads its losses every 100 updates, as single-file implementations do; hpcdi's updates
come with all that a learner asks of them: logs, schedules, precision, any number of learners. Both
take turns; figures are medians over the rounds, ratios medians of those within a round. On a core
they are of one thread and of its CPU time, so that other work on the machine hardly changes them.
On a GPU batches lie there already, where a learner's feed puts them ahead of time; hpcdi's updates
are CUDA graphs there where they can be, and the whole update is also written out as one, as in
LeanRL, which no call of Python slows down.

    python tools/bench_updates.py               on a core, some minutes
    python tools/bench_updates.py --quick       about a minute
    python tools/bench_updates.py --cuda        on a GPU, with a batch of 1,024 and compiled
    python tools/bench_updates.py --only DQN    cases whose names have the word in them
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from figures import Row, parser, show

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

from hpcdi.policy.create import create_policy

Batch = dict[str, Tensor]
Update = Callable[[Batch], Any]

LOG_EVERY, TARGET_EVERY = 100, 200
EPOCHS, TRANSITIONS = 4, 1024  # of PPO
ACTIONS = 6
PIXELS = (4, 84, 84)


@dataclass(frozen=True)
class Case:
    """An algorithm with a network.

    Attributes:
        name: of the row.
        settings: of the policy, without its section `learn`.
        written_out: the same update in plain torch, of a policy's networks.
        data: a batch of so many transitions, in host memory.
        sizes: of batches (of PPO: of minibatches); those above 256 only on a GPU.
        learn: that section.
        is_capturable: what is written out takes a batch to be a CUDA graph of, too.
    """

    name: str
    settings: dict[str, Any]
    written_out: Callable[..., Update]
    data: Callable[[int], Batch]
    sizes: tuple[int, ...]
    learn: dict[str, Any] = field(default_factory=dict)
    is_capturable: bool = False


def main() -> None:
    """Measure, and print."""
    command_line = parser(__doc__ or "")
    command_line.add_argument("--cuda", action="store_true", help="on a GPU")
    command_line.add_argument("--only", default="", help="cases whose names have this in them")
    command_line.add_argument("--eager", action="store_true", help="nothing compiled")
    given = command_line.parse_args()
    torch.set_num_threads(1)
    if given.cuda:
        print(f"on {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    variants: dict[str, dict[str, Any]] = {"float32": {}, "bf16": {"precision": "bf16"}}
    if given.cuda:
        variants["float32, no graph"] = {"cuda_graphs": False}
        variants["bf16, no graph"] = {"precision": "bf16", "cuda_graphs": False}
    if given.cuda and not given.eager:
        variants |= {
            "float32, compiled": {"compile": True},
            "bf16, compiled": {"precision": "bf16", "compile": True},
        }
    for case in cases():
        if given.only not in case.name:
            continue
        sizes = [size for size in case.sizes if given.cuda or size <= 256]
        for size in sizes[:1] if given.quick and not given.cuda else sizes:
            rows = measured(case, size, variants, given.cuda, quick=given.quick)
            show(rows, given.json)


def measured(
    case: Case, size: int, variants: dict[str, dict[str, Any]], cuda: bool, *, quick: bool
) -> Iterator[Row]:
    """A row a variant, and one of what is written out."""
    learn = {"learning_rate": 1e-4, "batch_size": size, **case.learn}
    batch = case.data(size)
    if cuda:
        torch.compiler.reset()  # beyond some compiled networks torch would compile no more
        batch = {name: column.cuda() for name, column in batch.items()}
    policies = {
        name: create_policy({**case.settings, "cuda": cuda, "learn": {**learn, **more}}, ["learn"])
        for name, more in variants.items()
    }
    plain = policies["float32"]
    ways: dict[str, Update] = {name: policy.learn_mode.forward for name, policy in policies.items()}
    ways["written out"] = case.written_out(plain, learn)
    set_up(ways.values(), batch)
    if cuda and case.is_capturable:
        ways["written out, CUDA graph"] = case.written_out(plain, learn, batch)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3 if quick else 7):
        for name, update in ways.items():
            rates[name].append(rate(update, batch, cuda, 0.3 if quick else 1.0))
    peer = rates["written out"]
    for name, found in rates.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(found, peer, strict=True))
        yield Row(
            f"{case.name}, batch {size}, {name}", statistics.median(found), "updates/s",
            ratio=None if found is peer else ratio, peer="" if found is peer else "written out",
        )  # fmt: skip


def set_up(ways: Iterable[Update], batch: Batch) -> None:
    """Have all allocated, chosen, compiled and recorded that is so at first."""
    for update in ways:
        for _ in range(5):
            update(batch)


def rate(update: Update, batch: Batch, cuda: bool, block_s: float) -> float:
    """Calls a second (of CPU time on a core), over a block of them."""
    clock = time.perf_counter if cuda else time.process_time
    done, start = 0, clock()
    while clock() - start < block_s or done < 2:
        update(batch)
        done += 1
    if cuda:
        torch.cuda.synchronize()
    return done / (clock() - start)


# ------------------------------------------------------------------------------------------- cases


def cases() -> list[Case]:
    """The algorithms, each with the networks that it is used with."""
    pixels = {"obs_shape": list(PIXELS), "encoder_hidden_size_list": [512]}
    dqn = {"action_shape": ACTIONS}
    ppo = {"action_shape": ACTIONS, "action_space": "discrete"}
    ppo_learn = {"epoch_per_collect": EPOCHS, "entropy_weight": 0.01, "grad_clip_norm": 0.5}
    box = {"action_shape": [3], "action_low": [-1.0] * 3, "action_high": [1.0] * 3}
    hidden = {"obs_shape": 11, "encoder_hidden_size_list": [256, 256]}
    return [
        *(
            Case(
                f"DQN, {encoder}",
                {"type": "dqn", "model": {**pixels, **dqn, "encoder": encoder}},
                written_out_dqn, lambda size: replayed(PIXELS, size), sizes, is_capturable=True,
            )
            for encoder, sizes in (("nature_cnn", (32, 256, 1024)), ("impala_cnn", (32, 256)))
        ),
        Case(
            f"PPO, nature_cnn, {EPOCHS} passes over {TRANSITIONS}",
            {"type": "ppo", "model": {**pixels, **ppo, "encoder": "nature_cnn",
                                      "share_encoder": True}},
            written_out_ppo, lambda _: collected(PIXELS), (256,), ppo_learn,
        ),
        Case(
            f"PPO, 2 x 64 units, {EPOCHS} passes over {TRANSITIONS}",
            {"type": "ppo", "model": {**ppo, "obs_shape": 11,
                                      "encoder_hidden_size_list": [64, 64]}},
            written_out_ppo, lambda _: collected((11,)), (64,), ppo_learn,
        ),
        Case(
            "SAC, 2 x 256 units", {"type": "sac", "model": {**hidden, **box}},
            written_out_sac, lambda size: replayed((11,), size, box=3), (256,), is_capturable=True,
        ),
    ]  # fmt: skip


def observations(shape: tuple[int, ...], count: int) -> Tensor:
    """Bytes of pictures, or floats."""
    if len(shape) > 1:
        return torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    return torch.randn(count, *shape)


def replayed(shape: tuple[int, ...], count: int, box: int = 0) -> Batch:
    """A batch of a replay buffer; `box`: components of its continuous actions."""
    return {
        "observation": observations(shape, count),
        "next_observation": observations(shape, count),
        "action": torch.rand(count, box) if box else torch.randint(0, ACTIONS, (count,)),
        "n_step_return": torch.randn(count),
        "bootstrap_discount": torch.full((count,), 0.99),
    }


def collected(shape: tuple[int, ...]) -> Batch:
    """An on-policy batch, of a policy that was nearly uniform."""
    return {
        "observation": observations(shape, TRANSITIONS),
        "action": torch.randint(0, ACTIONS, (TRANSITIONS,)),
        "log_prob": 0.01 * torch.randn(TRANSITIONS) - math.log(ACTIONS),
        **{name: torch.randn(TRANSITIONS) for name in ("value", "advantage", "return")},
    }


# ------------------------------------------------------------------------- the updates, written out


def plain(network: nn.Module) -> nn.Module:
    """A copy with tensors in torch's usual order, which its convolutions leave when they learn."""
    return copy.deepcopy(network).eval().requires_grad_(True)


def stepper(
    parameters: Any, learn: dict[str, Any], *, is_captured: bool = False
) -> Callable[[Tensor], None]:
    """One step of Adam down the gradient of a loss."""
    parameters = list(parameters)
    optimizer = torch.optim.Adam(parameters, lr=learn["learning_rate"], capturable=is_captured)
    clip = learn.get("grad_clip_norm")

    def step(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()

    return step


def captured(once: Callable[[Batch], Tensor], like: Batch) -> Callable[[Batch], Tensor]:
    """The same on a GPU as a CUDA graph: one launch."""
    held, stream = {name: column.clone() for name, column in like.items()}, torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            once(held)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = once(held)

    def replay(batch: Batch, _optimizers_of: object = once) -> Tensor:
        for name, column in held.items():
            column.copy_(batch[name], non_blocking=True)
        graph.replay()  # into the optimizers' memory, too, so somebody has to keep them
        return loss

    return replay


def written_out_dqn(policy: Any, learn: dict[str, Any], like: Batch | None = None) -> Update:
    """Double DQN with the Huber loss; as a CUDA graph where there is a batch like the others."""
    device, network = policy._device, plain(policy._model)
    target = copy.deepcopy(network).requires_grad_(False)
    step = stepper(network.parameters(), learn, is_captured=like is not None)
    counter = itertools.count(1)

    def once(batch: Batch) -> Tensor:
        batch = {name: column.to(device, non_blocking=True) for name, column in batch.items()}
        with torch.no_grad():
            action = network(batch["next_observation"], {})[0].argmax(dim=1, keepdim=True)
            following = target(batch["next_observation"], {})[0].gather(1, action).squeeze(1)
            wanted = batch["n_step_return"] + batch["bootstrap_discount"] * following
        values = network(batch["observation"], {})[0]
        value = values.gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, wanted)
        step(loss)
        return loss.detach()

    learn_once = once if like is None else captured(once, like)

    def update(batch: Batch) -> None:
        loss, done = learn_once(batch), next(counter)
        if done % TARGET_EVERY == 0:
            target.load_state_dict(network.state_dict())
        if done % LOG_EVERY == 0:
            loss.item()

    return update


def written_out_ppo(policy: Any, learn: dict[str, Any]) -> Update:
    """PPO with a clipped ratio, advantages normalised in each minibatch."""
    device, network = policy._device, plain(policy._model)
    step, size = stepper(network.parameters(), learn), learn["batch_size"]

    def update(batch: Batch) -> None:
        batch = {name: column.to(device, non_blocking=True) for name, column in batch.items()}
        for _ in range(EPOCHS):
            for chosen in torch.randperm(TRANSITIONS, device=device).split(size):
                part = {name: column[chosen] for name, column in batch.items()}
                (logits, value), _ = network(part["observation"], {})
                drawn = torch.distributions.Categorical(logits=logits, validate_args=False)
                advantage = part["advantage"]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = (drawn.log_prob(part["action"]) - part["log_prob"]).exp()
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                error = (value - part["return"]).square().mean()
                loss = 0.5 * error - gain - learn["entropy_weight"] * drawn.entropy().mean()
                step(loss)
        loss.item()

    return update


def written_out_sac(policy: Any, learn: dict[str, Any], like: Batch | None = None) -> Update:
    """SAC with two critics and a temperature that is learnt; see `written_out_dqn`."""
    device = policy._device
    actor, critics = plain(policy._model), plain(policy._critics)
    targets = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = torch.zeros((), device=device, requires_grad=True)
    actor_step, critic_step, alpha_step = (
        stepper(parameters, learn, is_captured=like is not None)
        for parameters in (actor.parameters(), critics.parameters(), [log_alpha])
    )
    counter = itertools.count(1)

    def sampled(observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(observation, {})[0].chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False)
        raw = normal.rsample()
        of_tanh = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
        return raw.tanh(), (normal.log_prob(raw) - of_tanh).sum(dim=1)

    def once(batch: Batch) -> Tensor:
        batch = {name: column.to(device, non_blocking=True) for name, column in batch.items()}
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = sampled(batch["next_observation"])
            following = targets(batch["next_observation"], action).amin(dim=0) - alpha * log_prob
            wanted = batch["n_step_return"] + batch["bootstrap_discount"] * following
        values = critics(batch["observation"], batch["action"])
        critic_loss = (values - wanted).square().sum(dim=0).mean()
        critic_step(critic_loss)
        action, log_prob = sampled(batch["observation"])
        value = critics(batch["observation"], action).amin(dim=0)
        actor_step((alpha * log_prob - value).mean())
        alpha_step(-(log_alpha.exp() * (log_prob.detach() - batch["action"].shape[1])).mean())
        with torch.no_grad():
            for mine, theirs in zip(targets.parameters(), critics.parameters(), strict=True):
                mine.lerp_(theirs, 0.005)
        return critic_loss.detach()

    learn_once = once if like is None else captured(once, like)

    def update(batch: Batch) -> None:
        critic_loss = learn_once(batch)
        if next(counter) % LOG_EVERY == 0:
            critic_loss.item()

    return update


if __name__ == "__main__":
    main()
