"""How fast one process collects, and what its environment managers cost.

Everything is measured in this process and on one core (but for child processes), in turns with its
alternative: a bare loop of gymnasium and torch that keeps nothing; gymnasium's own vector
environments. A rank's loop (acting in numpy, stepping, recording, cutting rollouts) is measured by
CPU time, beside its vector environment that is stepped by fixed actions.

    python tools/bench_serial.py            about a minute
    python tools/bench_serial.py --quick
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as ranks have it

import gymnasium
import numpy as np
import torch
from figures import Row, at_least, parser, show
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from hpcdi.env.create import create_env_manager, make_env_manager
from hpcdi.policy.create import create_policy
from hpcdi.roles.collector.loop import policy_loop
from hpcdi.worker import SampleSerialCollector

ENV = "CartPole-v1"
HIDDEN = [64, 64]
EPS = {"eps": 0.1}
Work = Callable[[], int]
"""Does something; gives how many environment steps it was."""


def main() -> None:
    """Measure, and print."""
    given = parser(__doc__ or "").parse_args()
    seconds = 0.5 if given.quick else 2.0
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    torch.set_num_threads(1)
    show(collecting(seconds), given.json)
    show(loops(seconds), given.json)
    os.sched_setaffinity(0, everywhere)
    show(managers(seconds), given.json)
    show(uneven(seconds), given.json)


def collecting(seconds: float) -> list[Row]:
    """Collectors beside a bare loop of the same network and environments."""
    lists, columns = collector(8), collector(64)
    rates = in_turns(
        {
            "lists": lambda: len(lists.collect(256, policy_kwargs=EPS)),
            "columns": lambda: len(columns.collect_columns(2048, policy_kwargs=EPS)["reward"]),
            "bare 8": bare(8),
            "bare 64": bare(64),
        },
        seconds,
    )
    lists.close()
    columns.close()
    return [
        at_least(
            "collect, 8 environments, a dict for each transition", rates["lists"], "steps/s",
            20_000, ratio=rates["lists"] / rates["bare 8"], peer="bare loop",
        ),
        at_least(
            "collect_columns, 64 vectorised environments", rates["columns"], "steps/s",
            60_000, ratio=rates["columns"] / rates["bare 64"], peer="bare loop",
        ),
    ]  # fmt: skip


def loops(seconds: float) -> list[Row]:
    """A collector rank's loop beside its vector environment alone, by CPU time."""
    rows = []
    for env_num in (1, 8, 64):
        work = {"loop": rank_loop(env_num), "bare": bare_vector(env_num)}
        rates = in_turns(work, seconds, time.process_time)
        rows.append(
            Row(
                f"a rank's loop, DQN of 128 and 128, {env_num} environments", rates["loop"],
                "steps/s", ratio=rates["loop"] / rates["bare"], peer="bare vector environment",
            )
        )  # fmt: skip
    return rows


def managers(seconds: float) -> list[Row]:
    """Managers of 8 environments beside gymnasium's own, stepped by fixed actions."""
    ours = {
        kind: make_env_manager({"type": kind}, [one_env] * 8) for kind in ("base", "subprocess")
    }
    theirs = {"base": SyncVectorEnv([one_env] * 8), "subprocess": AsyncVectorEnv([one_env] * 8)}
    given = np.arange(8) % 2
    actions = {"action": given}
    work: dict[str, Work] = {}
    for kind in ours:
        ours[kind].launch()
        theirs[kind].reset(seed=0)
        work[f"hpcdi {kind}"] = stepping(lambda manager=ours[kind]: manager.step(actions))
        work[f"gymnasium {kind}"] = stepping(lambda env=theirs[kind]: env.step(given))
    rates = in_turns(work, seconds)
    for kind in ours:
        ours[kind].close()
        theirs[kind].close()
    named = {
        "base": ("in this process", "SyncVectorEnv"),
        "subprocess": ("child processes", "AsyncVectorEnv"),
    }
    return [
        Row(
            f"8 environments, {about}", rates[f"hpcdi {kind}"], "steps/s",
            ratio=rates[f"hpcdi {kind}"] / rates[f"gymnasium {kind}"], peer=peer,
        )
        for kind, (about, peer) in named.items()
    ]  # fmt: skip


class UnevenEnv(gymnasium.Wrapper):
    """Steps take a millisecond, and ten where they draw so, once in twenty."""

    def step(self, action: np.int64) -> tuple:
        """Wait, and step."""
        is_slow = self.unwrapped.np_random.random() < 0.05
        time.sleep(0.01 if is_slow else 0.001)
        return self.env.step(action)


def uneven(seconds: float) -> list[Row]:
    """Child processes of which some are slow now and then; few of them are waited for, or all."""
    settings = {"all": None, "half": 4, "one": 1}
    managers = {
        name: make_env_manager({"type": "subprocess", "wait_num": wait_num}, [uneven_env] * 8)
        for name, wait_num in settings.items()
    }
    actions = {"action": np.arange(8) % 2}
    work: dict[str, Work] = {}
    for name, manager in managers.items():
        manager.launch()
        work[name] = live_steps(lambda manager=manager: manager.step(actions).live)
    rates = in_turns(work, seconds)
    for manager in managers.values():
        manager.close()
    return [
        Row(
            f"8 uneven environments, waiting for {name}", rates[name], "steps/s",
            ratio=rates[name] / rates["all"], peer="waiting for all",
        )
        for name in settings
    ]  # fmt: skip


def uneven_env() -> gymnasium.Env[np.ndarray, np.int64]:
    """One environment."""
    return UnevenEnv(gymnasium.make(ENV))


def collector(env_num: int) -> SampleSerialCollector:
    """A collector of a small DQN."""
    cfg = {"type": "gymnasium", "env_id": ENV, "collector_env_num": env_num}
    envs = create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0))
    model = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": HIDDEN}
    settings = {"type": "dqn", "nstep": 3, "model": model, "collect": {"n_sample": 32 * env_num}}
    policy = create_policy(settings, ["collect"])
    return SampleSerialCollector({}, envs, policy.collect_mode)


def bare(env_num: int) -> Work:
    """Stepping by the same network and keeping nothing."""
    env = gymnasium.make_vec(ENV, num_envs=env_num)
    layers = [torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(64, 2))
    seen, _ = env.reset(seed=0)

    def work() -> int:
        nonlocal seen
        for _ in range(32):
            with torch.inference_mode():
                actions = network(torch.from_numpy(seen)).argmax(dim=1).numpy()
            seen, *_ = env.step(actions)
        return 32 * env_num

    return work


def rank_loop(env_num: int) -> Work:
    """The loop of a collector rank, with a policy that acts without torch."""
    cfg = {"type": "gymnasium", "env_id": ENV, "collector_env_num": env_num}
    envs = create_env_manager(cfg, evaluate=False, seed=np.random.SeedSequence(0))
    envs.launch()
    model = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [128, 128]}
    settings = {"type": "dqn", "nstep": 5, "model": model}
    weights = create_policy(settings, ["learn"]).learn_mode.state_dict()["model"]
    acting = create_policy(settings, ["collect"], gets_weights=True).collect_mode
    acting.load_state_dict({"model": {name: part.numpy() for name, part in weights.items()}})
    loop = policy_loop(envs, acting.get_attribute("columnar"), length=32)

    def work() -> int:
        while not loop.must_cut:
            loop.once(EPS)
        loop.cut(0)
        loop.take_episodes()
        return 32 * env_num

    return work


def bare_vector(env_num: int) -> Work:
    """The vector environment alone, stepped by fixed actions."""
    env = gymnasium.make_vec(ENV, num_envs=env_num)
    actions = [env.action_space.sample() for _ in range(32)]
    env.reset(seed=0)

    def work() -> int:
        for action in actions:
            env.step(action)
        return 32 * env_num

    return work


def stepping(step: Callable[[], object]) -> Work:
    """Steps of eight environments."""

    def work() -> int:
        for _ in range(16):
            step()
        return 16 * 8

    return work


def live_steps(step: Callable[[], np.ndarray]) -> Work:
    """Steps of those environments that made one."""
    return lambda: sum(int(step().sum()) for _ in range(16))


def one_env() -> gymnasium.Env[np.ndarray, np.int64]:
    """One environment."""
    return gymnasium.make(ENV)


def in_turns(
    work: dict[str, Work], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Environment steps a second of each, measured in turns of a fiftieth of the time."""
    steps, spent = dict.fromkeys(work, 0), dict.fromkeys(work, 0.0)
    for do in work.values():
        do()
    while min(spent.values()) < seconds:
        for name, do in work.items():
            begun = clock()
            until = begun + seconds / 50
            while clock() < until:
                steps[name] += do()
            spent[name] += clock() - begun
    return {name: steps[name] / spent[name] for name in work}


if __name__ == "__main__":
    main()
