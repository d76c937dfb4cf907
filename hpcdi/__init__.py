"""hpcdi: distributed reinforcement learning as one MPI program.

    run = hpcdi.train(env="CartPole-v1", policy="ppo", ranks=4)
    action = run.policy.act(observation)
    policy = hpcdi.load("runs/cartpole_v1_ppo/latest")

`train`, `load`, `Run` and `Policy` are `hpcdi.api`'s, which is imported when one of them is used,
`Callback` is `hpcdi.roles.callbacks`'.
Importing this package imports neither mpi4py nor torch nor gymnasium: it works on a login node, in
a container without MPI, and in well under 0.3 s.

Glossary
    rank            one process of the MPI world; rank 0 is the coordinator
    role            what a rank does: coordinator, learner or collector; "serial" does all in one
    worker          a learner or collector, as the coordinator sees it
    task            work that the coordinator assigns to a worker: collect, evaluate or learn
    commander       decides which tasks there are, and with which settings
    transition      one environment step: observation, action, reward, terminated, truncated, ...
    trajectory      consecutive transitions of one episode
    rollout         what a collector collects in one go: the trajectories of all its environments
    item            what a replay buffer samples: a transition, or a fixed number in a row
    row, column     of arrays with one leading axis: a row per transition (while environments are
                    stepped: per seat of each), a column per key
    seat            a player's place in an environment
    block           rows that a collector seals and publishes together, with their table of items
    shard           an HDF5 file of blocks, to which one collector appends until it is full
    partition       the part of the replay buffer that one learner samples from
    staleness       how many policy versions (train iterations) the data are older than the policy
    policy version  the train iteration at which a learner published the policy
    policy file     published weights: latest and best, as safetensors
    publish         make a file appear whole, or announce data or a policy to other ranks
    checkpoint      a learner's weights, optimizer and counters, in its own folder
    snapshot        everything that a run is resumed from: checkpoints, counters, buffer index
    restart         one more start of a run from its snapshot; counted from 0
    group           learners that average their gradients, and so learn one policy
    round           one step of a run that works in turns: perhaps evaluate, collect, learn
    heartbeat       a worker's regular message; its last one says what it was doing
    link, pump      the connection to other ranks; the thread that moves its messages
    manager         steps the environments of one collector
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Callback", "Policy", "Run", "__version__", "load", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:  # type checkers read __init__.pyi
    """Imports a public name, or the module `hpcdi.data`, when it is first used."""
    if name == "data":
        return import_module("hpcdi.data")
    if name not in __all__:
        raise AttributeError(f"module 'hpcdi' has no attribute {name!r}")
    module = "hpcdi.roles.callbacks" if name == "Callback" else "hpcdi.api"
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "data"})
