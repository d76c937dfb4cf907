"""`hpcdi new`: the beginning of an algorithm or an environment of one's own, with a test."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Sequence
from pathlib import Path

import hpcdi.policy.create  # noqa: F401  (registers the built-in policies)
from hpcdi.commands.new_solver import FILES as SOLVER_FILES
from hpcdi.commands.options import make_parser
from hpcdi.errors import EXIT_DONE, LaunchError
from hpcdi.store.disk_full import or_refuse
from hpcdi.utils.log import say
from hpcdi.utils.registry import POLICY_REGISTRY

HELP = """\
Write an algorithm or an environment to begin from: NAME.py, an experiment that uses it, and a test,
which passes at once. Guides: hpcdi/policy/README.md, hpcdi/env/README.md and MPI.md.

  hpcdi new policy my_a2c        then: python -m pytest test_my_a2c.py (pip install pytest);
                                       hpcdi train my_a2c.yaml
  hpcdi new env my_walk
  hpcdi new env my_flow --mpi          on several MPI ranks, in Python; --mpi c, --mpi fortran
"""


def main(arguments: Sequence[str]) -> int:
    """Write the files into the present folder; returns the exit code.

    Raises:
        LaunchError: the name is no new module's, or a file is there already.
    """
    parser = make_parser("new", HELP)
    parser.add_argument("kind", choices=_FILES)
    parser.add_argument("name", metavar="NAME", help="of the module: letters, digits and _")
    parser.add_argument(
        "--mpi", nargs="?", const="python", choices=SOLVER_FILES, metavar="LANGUAGE",
        help="an environment that is an MPI program, in python (default), c or fortran",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.mpi and options.kind != "env":
        parser.error("--mpi is for environments: hpcdi new env NAME --mpi")
    name = options.name
    if not name.isidentifier() or keyword.iskeyword(name):
        raise LaunchError(f"{name!r} is no name of a Python module: use letters, digits and _")
    files = SOLVER_FILES[options.mpi] if options.mpi else _FILES[options.kind]
    texts = {pattern.format(name): text for pattern, text in files.items()}
    existing = [file for file in texts if Path(file).exists()]
    if existing:
        raise LaunchError(f"{', '.join(existing)} is there already; nothing was written")
    if importlib.util.find_spec(name) is not None or name in POLICY_REGISTRY:
        raise LaunchError(f"there is a module or a policy {name} already; choose another name")
    kind = _class_for(name, "".join(texts.values()))
    for file, text in texts.items():
        with or_refuse(file):
            named = text.replace("NAME", name).replace("CLASS", kind)
            Path(file).write_text(named)
        say(f"  written      {file}")
    look = f"hpcdi rehearse {name}.yaml; " if options.kind == "env" and not options.mpi else ""
    say(f"  then         {look}hpcdi train {name}.yaml")
    missing = "" if importlib.util.find_spec("pytest") else "pip install pytest; "
    say(f"  test         {missing}python -m pytest test_{name}.py")
    return EXIT_DONE


def _class_for(name: str, text: str) -> str:
    """Returns the name of a module's class, which is none of the names in its text."""
    made = name.title().replace("_", "")
    is_free = made.isidentifier() and not keyword.iskeyword(made)
    return made if is_free and not re.search(rf"\b{made}\b", text) else f"Own{made}"


_POLICY = '''\
"""NAME: an on-policy actor-critic to begin from (A2C, Mnih et al. 2016), for actions of all spaces.

`hpcdi/policy/README.md` says what else there is: replay buffers, memories, masks, variants of DQN.
"""

from hpcdi.dataclass import dataclass

from hpcdi.config.algorithms import ActorCriticModelConfig
from hpcdi.config.fields import section, setting
from hpcdi.config.policy import LearnConfig, TorchPolicyConfig
from hpcdi.policy import gradient_step, networks
from hpcdi.policy.base import TrainColumns
from hpcdi.policy.distributions import ActionDistribution
from hpcdi.policy.returns import gae
from hpcdi.policy.spaces import action_leaves
from hpcdi.policy.torch_policy import TorchPolicy
from hpcdi.utils.registry import POLICY_REGISTRY


@dataclass(frozen=True)
class CLASSLearnConfig(LearnConfig):
    """Settings of the update: policy.learn.* in the YAML file."""

    entropy_weight: float = setting(0.01, "weight of the entropy bonus", minimum=0)
    value_weight: float = setting(0.5, "weight of the value's loss", minimum=0)


@POLICY_REGISTRY.register("NAME")  # policy.type
class CLASSPolicy(TorchPolicy):
    """One object in each process: it learns, collects or evaluates there."""

    @dataclass(frozen=True)
    class Config(TorchPolicyConfig):
        """Settings: policy.* in the YAML file; and what the algorithm can act in."""

        ACTIONS = ("discrete", "continuous", "multi_discrete", "mixed")
        TAKES_MASKS = True

        type: str = "NAME"
        on_policy: bool = True  # each transition is learnt from once, by the policy that made it
        model: ActorCriticModelConfig = section(ActorCriticModelConfig, "the network")
        learn: CLASSLearnConfig = section(CLASSLearnConfig, "the update")

    def make_network(self):
        """observation, state -> (parameters of the actions' distribution, value), state."""
        self._actions = ActionDistribution(action_leaves(self._cfg.model))
        return networks.make_network(self._cfg.model, "actor_critic")

    # ----------------------------------------------------------------------------------- acting

    def prepare_acting(self):
        """What `act` needs beside the network."""
        self._rng = self.random(1)

    def act(self, observation, setting, rows=None):
        """Actions [rows, ...]; what is returned is stored with the step."""
        *policy, value = self.infer(observation)
        drawn = self._actions.sample(policy, self._rng, observation.get("action_mask"))
        return {**drawn, "value": value}

    def greedy(self, output, legal=None):
        """The best actions by the network's output, for evaluations and `hpcdi export`."""
        return (self._actions.greedy(output[:-1], legal),)

    def train_columns(self, transitions, item_len, last_observation):
        """Columns to add before transitions are stored; items are pieces of episodes."""
        reward, terminated, value = (transitions[k] for k in ("reward", "terminated", "value"))
        last, gamma = self.infer(last_observation)[-1], self._cfg.discount_factor
        advantage, returns = gae(reward, terminated, value, last, item_len, gamma, 1.0)
        return TrainColumns({"advantage": advantage, "return": returns})

    # ---------------------------------------------------------------------------------- learning

    def update(self, batch):
        """Learn from tensors [samples, ...]; return numbers for the log."""
        learn = self._learn  # the section `learn`, as its schedules have it by now
        count = gradient_step.rows_per_learner(len(batch["advantage"]))  # of several learners

        def loss_of(part):  # of the batch, or of a part of it (policy.learn.accumulate)
            (*policy, value), _ = self._forward(networks.observation_of(part), {})
            legal = part.get("action_mask")
            log_prob, entropy = self._actions.log_prob_entropy(policy, part, legal)
            losses = -part["advantage"] * log_prob - learn.entropy_weight * entropy
            losses = losses + learn.value_weight * (value - part["return"]).square()
            return gradient_step.mean_share(losses, count)

        loss = self._step.gradients(batch, loss_of)  # averaged over all learners
        self._step.apply()
        self._updates += 1
        return {"total_loss": loss.item(), "cur_lr": learn.learning_rate}
'''

_POLICY_YAML = """\
# CartPole-v1 by NAME: hpcdi train NAME.yaml, or in one process hpcdi serial NAME.yaml.
exp_name: NAME
seed: 0
env:
  type: gymnasium
  env_id: CartPole-v1
  collector_env_num: 8
  evaluator_env_num: 8
  evaluator_episode_num: 1
  stop_value: 195
policy:
  type: NAME
  import_names: [NAME]  # NAME.py: beside this file, or on PYTHONPATH of all ranks
  discount_factor: 0.99
  learn: {learning_rate: 0.001}
  collect:
    n_sample: 32        # steps of each environment between two updates
    collector: {collector_num: 2}
  eval:
    every: 10000 env_steps
  other:
    commander: {max_env_step: 500000}
"""

_ENV = '''\
"""NAME: an environment to begin from; hpcdi/env/README.md has spaces, masks and wrappers."""

import gymnasium
import numpy as np


class CLASS(gymnasium.Env):
    """A walk on a line: its right end pays 1, each step costs 0.01.

    Args:
        length: from the middle to an end; env.kwargs in the YAML file.
    """

    metadata = {"render_modes": []}

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-length, length, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.render_mode, self._length, self._at = render_mode, length, 0

    def reset(self, *, seed=None, options=None):
        """Begin an episode; all random numbers come from self.np_random."""
        super().reset(seed=seed)
        self._at = int(self.np_random.integers(-1, 2))
        return self._observation(), {}

    def step(self, action):
        """Observation, reward, terminated (an end), truncated (a limit of time), info."""
        self._at += 2 * int(action) - 1
        reward = 1.0 if self._at == self._length else -0.01
        return self._observation(), reward, abs(self._at) == self._length, False, {}

    def _observation(self):
        return np.array([self._at], np.float32)
'''

_ENV_YAML = """\
# PPO on NAME: hpcdi train NAME.yaml, or in one process hpcdi serial NAME.yaml.
exp_name: NAME
seed: 0
env:
  type: gymnasium
  env_id: "NAME:CLASS"  # NAME.py: beside this file, or on PYTHONPATH of all ranks
  kwargs: {length: 5, max_episode_steps: 100}
  collector_env_num: 8
  evaluator_env_num: 8
  evaluator_episode_num: 1
  stop_value: 0.9
policy:
  type: ppo
  learn: {batch_size: 128}
  collect:
    n_sample: 64          # steps of each environment between two updates
    collector: {collector_num: 2}
  eval:
    every: 5000 env_steps
  other:
    commander: {max_env_step: 200000}
"""

_TEST = '''\
"""NAME trains and is evaluated: pytest test_NAME.py."""

from pathlib import Path

from hpcdi.cli import main

EXPERIMENT = Path(__file__).with_name("NAME.yaml")


def test_it_trains_and_is_evaluated(tmp_path):
    """Three iterations in one process; then its newest policy is evaluated."""
    run_dir = tmp_path / "run"
    few = "policy.other.commander.max_train_iter=3"
    assert main(["serial", str(EXPERIMENT), few, "--run-dir", str(run_dir)]) == 0
    assert (run_dir / "policies" / "best.safetensors").exists()
'''

_ENV_TEST = '''

def test_it_keeps_the_contract():
    """Gymnasium's own check of spaces, seeds and returned values."""
    from gymnasium.utils.env_checker import check_env

    from NAME import CLASS

    check_env(CLASS(), skip_render_check=True)
'''

_FILES = {
    "policy": {"{}.py": _POLICY, "{}.yaml": _POLICY_YAML, "test_{}.py": _TEST},
    "env": {"{}.py": _ENV, "{}.yaml": _ENV_YAML, "test_{}.py": _TEST + _ENV_TEST},
}
