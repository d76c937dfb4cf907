"""VDN and QMIX: action values of a team's players, learnt as one (Sunehag 2017, Rashid 2018).

Each player chooses by values of its own, and the team's value is a mixture of those that its
players have chosen: their sum (VDN, Sunehag et al. 2017, "Value-decomposition networks"), or a
function of them and of the state that grows with each (QMIX, Rashid et al. 2018, "QMIX: monotonic
value function factorisation"). So what is best for each is best for the team. What is not here is
DQN's; rows are those of whole teams, see `players`.

Network: observation -> value of each action, float32 [rows, actions]; of QMIX with ``mixer``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpcdi.config.algorithms import QMIXConfig, QMIXModelConfig, VDNConfig
from hpcdi.policy import networks
from hpcdi.policy.dqn import DQNPolicy, taken, values_network
from hpcdi.policy.memories import initial_state
from hpcdi.policy.players import ACTS
from hpcdi.policy.sequences import Sequences
from hpcdi.policy.spaces import STATE, obs_leaves, without


class VDNPolicy(DQNPolicy):
    """VDN, for discrete actions, with or without masks of legal ones.

    A team's reward is the mean of its players'.
    """

    Config: ClassVar[type] = VDNConfig
    _cfg: VDNConfig

    def losses(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Of the team's value: each of its players' rows has the team's; see `DQNPolicy.losses`.

        With a memory a row is a player's sequence, and loss, value and priority are means over its
        steps.
        """
        if self._remembers:
            return self._losses_of_sequences(batch)
        target = self.td_target(batch)
        output, _ = self._forward(networks.observation_of(batch), {})
        mixed = self.mixed(self._model, taken(output, batch["action"]), batch)
        value = mixed.repeat_interleave(self._cfg.players)
        return self.td_losses(value, target), value, (target - value).abs()

    def _losses_of_sequences(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        cfg = self._cfg
        begin = initial_state(self._model, 1)
        sequences = Sequences(batch, cfg.learn.burn_in, cfg.sequence, begin, cfg.players)
        values = sequences.unrolled(self._forward)
        with torch.no_grad():
            following = self.following_each(sequences, values, batch)
            bootstrap = sequences.ahead(self._mixed_each(self._target, following, batch))
            target = batch["n_step_return"] + batch["bootstrap_discount"] * bootstrap
        value = self._mixed_each(self._model, taken(values, batch["action"]), batch)
        if self._extra:
            self._of_sequences = sequences.outputs_for(values, value, self._extra.features)
        error = (target - value).detach().abs()
        means = sequences.means
        return means(self.td_losses(value, target)), means(value), means(error)

    def _mixed_each(
        self, network: nn.Module, values: Tensor, batch: Mapping[str, Tensor]
    ) -> Tensor:
        """The team's value in each step, for each of its players' sequences, [rows, steps].

        Args:
            network: the network, or the target network.
            values: of the actions chosen, [rows, steps].
            batch: columns [rows, steps, ...].
        """

        def by_step(column: Tensor) -> Tensor:  # players of one step beside each other
            return self._by_team(column).transpose(1, 2).flatten(0, 2)

        seen = networks.observation_of(batch) if self._cfg.sees_state else {}
        columns = {f"observation/{n}": c for n, c in dict(seen).items()} | {ACTS: batch[ACTS]}
        of_steps = {name: by_step(column) for name, column in columns.items()}
        mixed = self.mixed(network, by_step(values), of_steps).view(-1, values.shape[1])
        return mixed.repeat_interleave(self._cfg.players, dim=0)

    def td_target(self, batch: Mapping[str, Tensor]) -> Tensor:
        """See `DQNPolicy.td_target`: of the team, for each of its players' rows, [rows]."""
        with torch.no_grad():
            output, action = self.following(batch)
            bootstrap = self.mixed(self._target, taken(output, action), batch, "next_")
            bootstrap = bootstrap.repeat_interleave(self._cfg.players)
            target: Tensor = batch["n_step_return"] + batch["bootstrap_discount"] * bootstrap
        return target

    def mixed(
        self,
        network: nn.Module,  # noqa: ARG002
        values: Tensor,
        batch: Mapping[str, Tensor],
        of: str = "",
    ) -> Tensor:
        """The teams' values [teams], of those of their players' actions.

        Args:
            network: the network, or the target network.
            values: of the actions chosen, [teams * players].
            batch: with the states, and who was there.
            of: "" or "next_": which of them.
        """
        total: Tensor = self._by_team(values * batch[of + ACTS]).sum(dim=1)
        return total

    def _by_team(self, column: Tensor) -> Tensor:
        return column.view(-1, self._cfg.players, *column.shape[1:])


class QMIXPolicy(VDNPolicy):
    """QMIX; see the module."""

    Config: ClassVar[type] = QMIXConfig
    _cfg: QMIXConfig

    def make_network(self) -> nn.Module:
        """See the module's docstring."""
        model = self._cfg.model
        network = values_network(without(model, (STATE,)))
        network.add_module("mixer", Mixer(model, self._cfg.players))
        return network

    def actor_alone(self) -> tuple[nn.Module, Any, tuple[str, ...]]:
        """Values of a player's actions: what mixes them is left out."""
        network = copy.deepcopy(self._model)
        del network.mixer
        return network, without(self._cfg.model, (STATE,)), self.OUTPUTS

    def mixed(
        self, network: nn.Module, values: Tensor, batch: Mapping[str, Tensor], of: str = ""
    ) -> Tensor:
        """See `VDNPolicy.mixed`."""
        seen = networks.observation_of(batch, f"{of}observation")
        first = torch.arange(0, len(values), self._cfg.players, device=values.device)
        mixer: Any = network.mixer
        by_team = self._by_team(values * batch[of + ACTS])
        total: Tensor = mixer(by_team, networks.rows_of(seen, first))
        return total


class Mixer(nn.Module):
    """Mixes values of players to that of their team, growing with each (Rashid 2018, 4, fig. 2).

    ``Q_tot = w2(s) elu(w1(s) q + b1(s)) + b2(s)``, w1 and w2 made absolute. They are networks of
    the state s without or, as the authors' later code has it, with a hidden layer; b1 is one
    without, b2 one with a hidden layer.

    Args:
        model: the settings, with the state among the arrays of an observation.
        players: of a team.
    """

    def __init__(self, model: QMIXModelConfig, players: int) -> None:
        super().__init__()
        leaves = [leaf for leaf in obs_leaves(model) if leaf.name.partition("/")[0] == STATE]
        parts: list[Any] = [networks.vector_of(leaf, model) for leaf in leaves]
        self._names = [leaf.name for leaf in leaves]
        self.parts = nn.ModuleList(parts)
        size = sum(part.out_features for part in parts)
        hidden, mixing = model.hypernet_size, model.mixing_size

        def made(out: int) -> nn.Module:
            if not hidden:
                return nn.Linear(size, out)
            return nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, out))

        self.first, self.last = made(players * mixing), made(mixing)
        self.bias = nn.Linear(size, mixing)
        self.value = nn.Sequential(nn.Linear(size, mixing), nn.ReLU(), nn.Linear(mixing, 1))

    def forward(self, values: Tensor, observation: networks.Observation) -> Tensor:
        """The value of each team, [teams], of those of its players, [teams, players].

        Args:
            values: of the actions chosen.
            observation: with the state's arrays, [teams, ...].
        """
        arrays: Any = networks.as_floats(observation)
        seen = [part(arrays[name]) for name, part in zip(self._names, self.parts, strict=True)]
        state = torch.cat(seen, dim=1)
        weights = self.first(state).abs().view(len(values), values.shape[1], -1)
        hidden = nn.functional.elu((values.unsqueeze(1) @ weights).squeeze(1) + self.bias(state))
        mixed: Tensor = (hidden * self.last(state).abs()).sum(dim=1) + self.value(state).squeeze(1)
        return mixed
