"""The base of algorithms in torch: modes, state dicts, spaces, seeds, devices, export.

An algorithm is one file with one class derived from `TorchPolicy` (`ppo.py`), or from
`ReplayPolicy` where it has a replay buffer (`dqn.py`); README.md shows how to write yours::

    Config          its settings
    make_network    observation, state -> output, state; see `networks`
    act             observations -> a collector's actions, and what is stored with them
    greedy          output -> the actions that are evaluated and exported
    train_columns   columns that are added to transitions before they are stored
    prepare_acting, prepare_learning
                    build what is needed beside the network and its optimizer
    saved_parts     what of that checkpoints keep
    update          a batch -> gradient steps, updates of target networks, scalars

Settings are in `hpcdi.config`: rank 0 needs them, and does not import torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from hpcdi.comm import group
from hpcdi.config.policy import LearnConfig, TorchPolicyConfig, no_memory
from hpcdi.errors import GroupBrokenError, PolicyError
from hpcdi.policy import (
    exploration_bonus,
    extra,
    gradient_step,
    graphs,
    memories,
    networks,
    normalization,
    optimizers,
)
from hpcdi.policy.acting.base import ActingPolicy, ReplayActing, RewardTracker
from hpcdi.policy.base import ColumnarActor, LearnMode, TrainColumns
from hpcdi.policy.spaces import action_leaves, as_stored, obs_leaves, rounded
from hpcdi.store.rows import STATES
from hpcdi.types import ACTION_MASK, Array, Columns, Settings
from hpcdi.utils.log import LOGGER
from hpcdi.utils.nested import column_rows, flatten


class TorchPolicy(ActingPolicy):
    """Base of algorithms in torch.

    In each process there is one network: on the learner's device where learning is enabled, else on
    the CPU and without gradients. Equal seeds make equal networks. An algorithm's methods use

    ``_cfg``: its `Config`, with the environment's spaces filled in.
    ``_model``, ``_device``: the network and where it is.
    ``_forward``: when learning: the network compiled and in the configured precision.
    ``_step``: when learning: the `GradientStep` of the network.
    ``_extra``: when learning: adds the `extra_loss`; with ``_extra_layers``, that it learns.
    ``_learn``: when learning: the section `learn` of `_cfg`, as its schedules have it by now.
    ``_updates``: when learning: gradient steps so far, for `update` to count.
    """

    OUTPUTS: ClassVar[tuple[str, ...]] = ("action",)
    """Names of what `greedy` returns."""

    _learn: LearnConfig
    _model: nn.Module
    _normalizer: normalization.Normalizer | None
    """Statistics of observations and rewards, a part of the network; None: there are none."""
    _state: memories.State  # memories of the rows that act now; {}: there is no memory
    _remembers: bool = False  # the network does; without one, as for `data:`, nothing does

    # ------------------------------------------------------------------ what an algorithm defines

    def make_network(self) -> nn.Module:
        """Make the network; torch's random numbers were seeded before.

        See `networks` for what it takes and returns.
        """
        raise NotImplementedError

    def greedy(self, output: Any, legal: Tensor | None = None) -> tuple[Any, ...]:
        """Returns the best actions [batch, ...] by the network's output, and the other `OUTPUTS`.

        An action with several parts is a dict of them.

        Args:
            output: output of the network.
            legal: bool [batch, actions]; None: all actions are legal.
        """
        raise NotImplementedError

    def parameters_of(
        self,
        output: Any,  # noqa: ARG002
        legal: Tensor | None = None,  # noqa: ARG002
    ) -> Mapping[str, Tensor]:
        """Returns the parameters of the distribution of actions, [batch, ...], for `hpcdi export`.

        Arguments are those of `greedy`.
        """
        return {}

    def make_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Returns the configured optimizer of a network's parameters."""
        return optimizers.make_optimizer(network, self._cfg.learn)

    def make_extra(self, features: int | None) -> Any:
        """Make the layers of an `extra_loss`, which learn by the network's optimizer.

        Learners alone have them: they are in checkpoints, and not in what collectors are sent.

        Args:
            features: how many `extra.Outputs` has a row; None: of a network that does not say.

        Returns:
            An `nn.Module`, or None; by default what ``learn.extra_loss`` names.
        """
        setting = self._cfg.learn.extra_loss
        return extra.made(setting, features, self._cfg.model) if setting else None

    def extra_loss(self, batch: Mapping[str, Tensor], outputs: extra.Outputs) -> extra.Found:
        """A loss that is added to the algorithm's; by default what ``learn.extra_loss`` computes.

        Args:
            batch: a part of that of `update`; on-policy with all its columns.
            outputs: of the network for it.

        Returns:
            A scalar made by ``outputs.mean``, and scalars to log, by their names.
        """
        loss: extra.Found = self._extra_layers(batch, outputs)
        return loss

    @property
    def extra_loss_every(self) -> int:
        """Train iterations from one that asks for the extra loss to the next."""
        return 1

    def prepare_learning(self) -> None:
        """Build what `update` needs beside the network and its optimizer."""

    def saved_parts(self) -> dict[str, Any]:
        """Returns what checkpoints keep of `prepare_learning`'s, by name, and restore in place.

        Modules, gradient steps and what else has a ``state_dict``; and generators of numpy.
        """
        return {}

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Any] | list[dict[str, Any]]:
        """Learn from a batch.

        Args:
            batch: name -> [samples, ...], on the learner's device: the columns that are stored,
                the views of `train_columns`, and ``weight``, the importance weight. A network takes
                ``networks.observation_of(batch)``.

        Returns:
            Python scalars for the log, or a list of them where there were several updates, which
            make one train iteration: their means are its log. ``priority`` in the only one is a
            float32 array [samples].
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------- for its methods

    def infer(self, observation: Columns) -> tuple[Array, ...]:
        """The network's output for observations [rows, ...], in numpy."""
        with self._acting():
            output, self._state = self._model(self._network_input(observation), self._state)
        parts = (output,) if isinstance(output, torch.Tensor) else output
        return tuple([part.numpy(force=True) for part in parts])

    def act_greedily(self, observation: Columns) -> Columns:
        """Actions [rows, ...] as `greedy` chooses them, and nothing else."""
        legal = observation.get(ACTION_MASK)
        with self._acting():
            output, self._state = self._evaluate(self._network_input(observation), self._state)
            mask = None if legal is None else torch.from_numpy(legal).to(self._device)
            action = self.greedy(output, mask)[0]
        if isinstance(action, torch.Tensor):
            column = action.numpy(force=True)
            if column.dtype.kind == "f":  # a Box's
                column = rounded(column, action_leaves(self._cfg.model)[0].dtype)
            return {"action": column}
        return {
            leaf.column("action"): as_stored(action[leaf.name].numpy(force=True), leaf)
            for leaf in action_leaves(self._cfg.model)
        }

    def infer_last(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Columns
    ) -> tuple[Array, ...]:
        """Returns the network's output for the observation after each item's last transition.

        Arguments are those of `train_columns`. With a memory the items' last steps are computed
        once more, from the states that were stored with them.
        """
        if not self._remembers:
            return self.infer(last_observation)
        last = np.cumsum(item_len) - 1
        stored = [name for name in transitions if name.startswith(STATES)]
        states = {name: transitions[name][last] for name in stored}
        self._state = memories.state_of(networks.tensors_of(states, self._device))
        self.infer({name: transitions[name][last] for name in last_observation})
        output = self.infer(last_observation)
        self._state = {}
        return output

    def has_sequences(self) -> bool:
        """See `ActingPolicy.has_sequences`."""
        return self._remembers or super().has_sequences()

    def make_step(self, network: nn.Module, *, decays: bool = True) -> gradient_step.GradientStep:
        """The `GradientStep` of a network that learns; `_step` is that of `_model`.

        Its optimizer is `make_optimizer`'s, its learning rate follows the schedule.

        Args:
            network: whose parameters learn.
            decays: the optimizer's weight decay, where it has one, holds for it. False for what is
                no part of the policy: decay would move where it settles.
        """
        optimizer, learn = self.make_optimizer(network), self._cfg.learn
        if not decays:
            for parameters in optimizer.param_groups:
                if "weight_decay" in parameters:
                    parameters["weight_decay"] = 0.0
        step = gradient_step.GradientStep(network, optimizer, learn, self._device)
        self._steps.append(step)
        return step

    def replayed(self, compute: graphs.Compute) -> graphs.Compute:
        """Returns what to call in place of `compute`: on a GPU its CUDA graph, where it can be one.

        All gradient steps of the policy must have been made before.

        Args:
            compute: see `graphs.Replayed`.
        """
        learn, wanted = self._cfg.learn, self._cfg.learn.cuda_graphs
        if wanted is None:  # what a user has written may do more than launch kernels
            has_users_parts = self._cfg.has_own_network or bool(self._extra)
            wanted = not has_users_parts and type(self).__module__.startswith("hpcdi.")
        is_of_rows = not (self._remembers or self._cfg.LEARNS_FROM_SEQUENCES)
        is_fixed = all(schedule.key == "learning_rate" for schedule in learn.schedule)
        can = is_of_rows and is_fixed and all(step.is_recordable for step in self._steps)
        if self._device.type != "cuda" or not wanted or not can:
            return compute
        self._replayed.append(graphs.Replayed(compute, self._steps, self._device))
        return self._replayed[-1]

    def novelty_of(self, transitions: Columns) -> Array:
        """The exploration bonus of transitions [rows, ...], without its weight: [rows]."""
        novelty: Any = self._model.novelty
        with self._acting():
            bonus: Tensor = novelty(self._tensors(transitions))
        return bonus.numpy(force=True)

    def _acting(self) -> contextlib.AbstractContextManager[object]:
        """Within it the network acts: without gradients, and as one that does not learn."""
        return _not_learning(self._parts) if self._model.training else torch.inference_mode()

    def _network_input(self, observation: Columns) -> networks.Observation:
        """Returns observations [rows, ...] as the network takes them: tensors, normalized."""
        return networks.observation_of(self._tensors(observation))

    def _tensors(self, columns: Columns) -> dict[str, Tensor]:
        tensors = networks.tensors_of(columns, self._device)
        normalizer = self._normalizer
        return tensors if normalizer is None else normalizer(tensors)

    # -------------------------------------------------------------------------------------- learn

    @property
    def learn_mode(self) -> LearnMode:
        """Methods for a learner."""
        mode = super().learn_mode
        if self._bonus is not None:
            names = [*self._monitor_vars_learn(), "bonus", "bonus_loss"]
            mode = mode._replace(monitor_vars=lambda: names)
        return mode if self.dict_form is None else self.dict_form(self).learn(mode)

    def _init_learn(self) -> None:
        self._device = networks.learner_device(cuda=self._cfg.cuda)
        self._set_network(gradient_step.placed(self._new_network(), self._device))
        self._learn = self._cfg.learn
        self._steps: list[gradient_step.GradientStep] = []
        self._replayed: list[graphs.Replayed] = []
        self._prepare_step()
        self._updates = self._iterations = self._env_steps = 0
        self._changed_settings: dict[str, Any] = {}  # by `set_setting`
        self._bonus: exploration_bonus.Explorer | None = None
        if self._cfg.exploration_bonus.type != "none":
            self._bonus = exploration_bonus.Explorer(self)
        self.prepare_learning()
        self._step.is_alone = len(self._steps) == 1

    def _prepare_step(self) -> None:
        """Make the network's forward pass and gradient step, with those of an `extra_loss`."""
        network, learn, layers = self._model, self._cfg.learn, None
        has_extra = bool(learn.extra_loss) or type(self).extra_loss is not TorchPolicy.extra_loss
        self._forward = gradient_step.forward_of(network, learn, self._device)
        self._extra = extra.ExtraLoss(None, None)
        if has_extra:
            layers = self.make_extra(extra.features_of(network))
            watched = gradient_step.forward_of(extra.Watched(network), learn, self._device)
            self._forward = watching = extra.Watching(watched)
            self._extra = extra.ExtraLoss(self.extra_loss, watching)
        if isinstance(layers, nn.Module):
            layers = gradient_step.placed(layers, self._device)
            network = nn.ModuleList([network, layers])
        self._extra_layers: Any = layers
        self._step = self.make_step(network)

    def _forward_learn(self, data: Mapping[str, Any], **_kwargs: Any) -> dict[str, Any]:
        moments = [] if self._normalizer is None else [*self._normalizer.buffers()]
        moments += [] if self._bonus is None else self._bonus.statistics()
        copies, iterations = [each.clone() for each in moments], self._iterations
        try:
            return self._learn_once(data)
        except GroupBrokenError:  # the batch is repeated, and counted then; see `Learner._learn`
            self._iterations = iterations
            self._extra.taken()  # what the attempt that is given up has told of itself
            for moment, copy in zip(moments, copies, strict=True):
                moment.copy_(copy)
            raise

    def _learn_once(self, data: Mapping[str, Any]) -> dict[str, Any]:
        self._follow_schedules()
        self._iterations += 1
        is_nested = any(isinstance(column, Mapping) for column in data.values())
        columns = flatten(data) if is_nested else data  # as replay buffers return them
        batch = {n: tensor.to(self._device, non_blocking=True) for n, tensor in columns.items()}
        normalizer, on_policy = self._normalizer, self._cfg.on_policy
        if normalizer is not None and not on_policy:
            normalizer.learn(batch)
        seen = batch if normalizer is None else normalizer.batch(batch)
        logs = self.update(seen if self._bonus is None else self._bonus.added(seen))
        every = self.extra_loss_every
        by = math.ceil(_ASKED_FOR_BY / every) * every
        if self._extra and not self._extra.names and self._iterations == by:
            raise PolicyError(f"{self._cfg.type} has no place for an extra loss in its update")
        if normalizer is not None and on_policy:
            normalizer.learn(batch)  # afterwards: an update normalizes as the acting policy did
        log = logs if isinstance(logs, dict) else _mean_of(logs)
        return log if self._bonus is None else {**log, **self._bonus.learn(seen)}

    def set_setting(self, key: str, value: float) -> None:
        """Learn with another value of a setting from the next iteration on, whatever its schedule.

        Args:
            key: ``policy.learn.NAME``, of those that may have a schedule.
            value: the new one.

        Raises:
            PolicyError: it cannot be changed.
        """
        name, names = key.removeprefix("policy.learn."), self._cfg.learn.SCHEDULED
        if name == key or name not in names:
            changeable = ", ".join(f"policy.learn.{each}" for each in names)
            raise PolicyError(f"{key!r} cannot be changed in a run; these can: {changeable}")
        self._changed_settings[name] = value
        if name != "learning_rate":  # others are numbers that a graph has kept
            for replayed in self._replayed:
                replayed.give_up()

    def configured(self, key: str) -> dict[str, Any]:
        """Returns value and schedule that are configured for what `set_setting` may change."""
        learn, name = self._cfg.learn, key.removeprefix("policy.learn.")
        schedule = [dataclasses.asdict(each) for each in learn.schedule if each.key == name]
        return {"value": getattr(learn, name), "schedule": schedule}

    def _follow_schedules(self) -> None:
        env_steps = self._env_steps  # set by the learner
        if any(schedule.env_steps for schedule in self._cfg.learn.schedule):
            mean = torch.tensor(float(env_steps), dtype=torch.float64, device=self._device)
            group.allreduce_data(mean, "avg")  # equal parameters need equal rates
            env_steps = int(mean.item())
        learn = self._cfg.learn.at(self._iterations, env_steps)
        self._learn = (
            dataclasses.replace(learn, **self._changed_settings)
            if self._changed_settings
            else learn
        )
        for step in self._steps:
            step.set_rate(self._learn.learning_rate)

    def _state_dict_learn(self) -> dict[str, Any]:
        layers, parts = self._extra_layers, self.saved_parts()
        return {
            "model": self._model.state_dict(),
            "updates": self._updates,
            "iterations": self._iterations,
            **({"extra": layers.state_dict()} if isinstance(layers, nn.Module) else {}),
            **({} if self._bonus is None else {"exploration_bonus": self._bonus.state_dict()}),
            **self._step.state_dict(),
            **{name: _state_of(part) for name, part in parts.items()},
        }

    def _load_state_dict_learn(self, state_dict: dict[str, Any]) -> None:
        self._model.load_state_dict(state_dict["model"])
        self._load_step(state_dict)
        if self._bonus is not None:
            self._bonus.load_state_dict(state_dict.get("exploration_bonus", {}))
        self._updates = state_dict.get("updates", 0)
        self._iterations = state_dict.get("iterations", 0)
        for name, part in self.saved_parts().items():
            if name in state_dict:  # else weights of the actor alone
                _restore(part, state_dict[name])
        for replayed in self._replayed:
            replayed.forget()

    def _load_step(self, state_dict: dict[str, Any]) -> None:
        """Load the gradient step, and the layers of an extra loss, where these fit."""
        layers, loaded = self._extra_layers, state_dict.get("extra", {})
        present = layers.state_dict() if isinstance(layers, nn.Module) else {}
        here, there = ({n: t.shape for n, t in each.items()} for each in (present, loaded))
        if here == there:
            if present:
                layers.load_state_dict(loaded)
            self._step.load_state_dict(state_dict)
            return
        LOGGER.warning(
            "the layers of the extra loss are not those of the loaded state (%s there, %s here): "
            "they and the optimizer begin anew",
            ", ".join(there) or "none",
            ", ".join(here) or "none",
        )

    # -------------------------------------------------------------------------- collect, evaluate

    def _init_collect(self) -> None:
        if "learn" not in self._enabled:
            self._device = torch.device("cpu")
            self._set_network(self._new_network().requires_grad_(False).eval())
        self._state = {}
        self._collecting = self._with_memory(self)
        if self._cfg.exploration_bonus.type != "none" and self._cfg.on_policy:
            self._collecting = exploration_bonus.BonusActor(self, self._collecting)
        if self._normalizer is not None and self._normalizer.returns is not None:
            self._collecting = RewardTracker(self._cfg, self._normalizer, self._collecting)
        self.prepare_acting()

    def _with_memory(self, actor: ColumnarActor) -> ColumnarActor:
        return _RememberingActor(self, actor) if self._remembers else actor

    def _reset_eval(self, data_id: list[int] | None = None) -> None:
        if self._remembers:
            self._evaluating.reset(data_id)

    def _state_dict_collect(self) -> dict[str, Any]:
        return {"model": self._model.state_dict()}

    def _load_state_dict_collect(self, state_dict: dict[str, Any]) -> None:
        self._model.load_state_dict(state_dict["model"])

    # ---------------------------------------------------------------------------- spaces, network

    @classmethod
    def try_own_parts(cls, cfg: TorchPolicyConfig) -> None:
        """Make a network and an optimizer once, see `TorchPolicyConfig.own_parts`.

        Args:
            cfg: a `Config` with the environment's spaces.

        Raises:
            PolicyError: they cannot be made, or do not fit.
        """
        if cfg.has_own_network:
            cls(cfg, ["collect"])
        if cfg.has_own_optimizer:
            optimizers.make_optimizer(torch.nn.Linear(1, 1), cfg.learn)

    def _set_network(self, network: nn.Module) -> None:
        """Set the network; look up its optional attributes once, not in each step."""
        self._model, self._evaluate = network, getattr(network, "acting", network)
        self._parts = [*network.modules()]
        self._normalizer = getattr(network, "normalizer", None)
        self._remembers = bool(memories.initial_state(network, 0))

    def _new_network(self) -> nn.Module:
        model = self._cfg.model
        needed = ("obs_shape", "action_shape", "action_space")
        missing = [name for name in needed if getattr(model, name, "") is None]
        missing = [name for name in missing if name != "obs_shape" or not model.obs_leaves]
        if missing:
            raise PolicyError(
                f"policy.model.{', '.join(missing)}: not known; set them, or have "
                "hpcdi.policy.spaces.with_spaces take them from an environment"
            )
        torch.manual_seed(int(self._seed.generate_state(1)[0]))
        network = self.make_network()
        has_memory = bool(memories.initial_state(network, 0))
        if has_memory and not self._cfg.TAKES_MEMORY:
            raise PolicyError(f"policy.model.memory: {no_memory(self._cfg.type)}")
        if has_memory and model.memory == "none" and not self._cfg.LEARNS_FROM_SEQUENCES:
            raise PolicyError(
                f"policy.model.memory: the network {model.type!r} has one, and {self._cfg.type} "
                "learns it from sequences: say its kind here, and set collect.unroll_len"
            )
        if model.memory != "none" and not has_memory:
            raise PolicyError(
                f"policy.model: {model.type!r} has no memory (initial_state(batch)), and "
                f"{self._cfg.type} is to learn one: model.memory is {model.memory}, a slot of the "
                "built-in networks"
            )
        if self._cfg.normalize.observation or self._cfg.normalize.reward:
            network.add_module("normalizer", normalization.Normalizer(self._cfg))
        if self._cfg.exploration_bonus.type != "none":
            novelty = exploration_bonus.NOVELTIES[self._cfg.exploration_bonus.type](self._cfg)
            network.add_module("novelty", novelty)
        return network

    def actor_alone(self) -> tuple[nn.Module, Any, tuple[str, ...]]:
        """Returns what `hpcdi export` writes: a network, settings of what it sees, and `OUTPUTS`.

        Algorithms whose network has parts that only learning needs return one without them.
        """
        return self._model, self._cfg.model, self.OUTPUTS

    def _get_export_module(self) -> nn.Module:
        network, model, outputs = self.actor_alone()
        inputs = {leaf.column("observation"): leaf.shape for leaf in obs_leaves(model)}
        for name, state in memories.initial_state(network, 1).items():
            inputs[STATES + name] = tuple(state.shape[1:])
        parts = [leaf for leaf in getattr(model, "action_leaves", ()) if leaf.name]
        actions = [leaf.column("action") for leaf in parts]
        greedy = networks.Greedy(network, self.greedy, outputs, inputs, actions, self.parameters_of)
        greedy.firsts = {leaf.column("observation"): leaf.starts for leaf in obs_leaves(model)}
        return greedy


class ReplayPolicy(ReplayActing, TorchPolicy):
    """Base of algorithms that learn from a replay buffer by n-step returns."""

    def logged(self, scalars: Tensor, error: Tensor) -> dict[str, Any]:
        """Returns what an update returns.

        Args:
            scalars: `SCALARS` and those of an extra loss.
            error: of each row, its priority.
        """
        names = (*self.SCALARS, *self._extra.names)
        logs: dict[str, Any] = dict(zip(names, scalars.tolist(), strict=True))
        if self._cfg.priority:
            logs["priority"] = error.cpu().numpy()
        return {**logs, "cur_lr": self._learn.learning_rate, **self._step.scalars()}


_ASKED_FOR_BY = 100
"""Train iterations until an update must have asked for its extra loss, or a few more."""


class _RememberingActor:
    """An actor with a memory: keeps each row's state, for an actor without.

    Args:
        policy: the policy, with its network.
        actor: acts by the network and the policy's `_state`.
    """

    def __init__(self, policy: TorchPolicy, actor: ColumnarActor) -> None:
        self._policy, self._actor = policy, actor
        self.states = memories.EpisodeStates(
            lambda batch: memories.initial_state(policy._model, batch)
        )
        self._stacks = tuple(STATES + name for name in memories.stacks(policy._model))

    def train_columns(
        self, transitions: Mapping[str, Array], item_len: Array, last_observation: Columns
    ) -> TrainColumns:
        """See `ColumnarActor.train_columns`."""
        made: TrainColumns = self._actor.train_columns(transitions, item_len, last_observation)
        return dataclasses.replace(made, stacks=self._stacks)

    def act(self, observation: Columns, setting: Settings, rows: Array | None = None) -> Columns:
        """See `Actor.act`; returns also the states before the step, ``state/<name>``."""
        rows = np.arange(column_rows(observation)) if rows is None else rows
        with torch.no_grad():  # the state at an episode's start may be one that is learnt
            before = self._policy._state = self.states.read(rows)
            outputs = self._actor.act(observation, setting, rows)
            self.states.write(rows, self._policy._state)
        self._policy._state = {}
        stored = {STATES + n: state.numpy(force=True) for n, state in before.items()}
        return {**outputs, **stored}

    def reset(self, rows: Sequence[int] | Array | None = None) -> None:
        """New episodes begin; None: in all rows."""
        with torch.inference_mode():
            self.states.reset(rows)


@contextlib.contextmanager
def _not_learning(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Within it modules compute as in evaluations: without dropout, by running statistics."""
    learning = [vars(part) for part in parts if part.training]
    for part in learning:
        part["training"] = False  # at every step: `eval` would take ten times as long
    try:
        with torch.inference_mode():
            yield
    finally:
        for part in learning:
            part["training"] = True


def _state_of(part: Any) -> Any:
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    return part.state_dict()


def _restore(part: Any, state: Any) -> None:
    if isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    else:
        part.load_state_dict(state)


def _mean_of(logs: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each scalar."""
    return {name: statistics.fmean(log[name] for log in logs) for name in logs[0]}
