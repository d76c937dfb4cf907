"""Short runs of experiments that are drawn by chance: what is accepted runs, in every mode.

An experiment is drawn by its number: an odd environment (`odd_envs`), alone, with goals, as a
team or a league, an algorithm that takes its spaces, and settings. It runs for some hundred steps
in one process or over ranks; then it is resumed, perhaps in the other mode, evaluated, and exported
as PyTorch, C or Parquet. What ends in another way than well, or by a refusal of the configuration
by name (exit code 2), is printed with what it said, and its folder is kept.

    python tools/fuzz_runs.py                          ten minutes, from number 0
    python tools/fuzz_runs.py --first 500 --minutes 60
    python tools/fuzz_runs.py --only 137               this one, once more
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from odd_envs import ACTIONS, BOUNDED, DISCRETE, GOALS, OBSERVATIONS

LIMIT_S = 120.0
"""Of a command; no experiment needs as long."""
VALUES = ("dqn", "c51", "qrdqn")
MEMORIES = ("lstm", "gru", "gtrxl")
Settings = dict[str, Any]


def main() -> None:
    """Draw, run, and print what fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number to begin with")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long new ones begin (10)")
    parser.add_argument("--only", type=int, metavar="N", help="run one experiment, and say all")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz_runs_"))
    until, number, failed = time.monotonic() + 60 * given.minutes, given.first, 0
    if given.only is not None:
        failed += not passes(given.only, folder, says_all=True)
    else:
        while time.monotonic() < until:
            failed += not passes(number, folder)
            number += 1
        print(f"{number - given.first} experiments, {failed} failed")
    if failed:
        sys.exit(f"what has failed lies in {folder}")
    folder.rmdir()


def passes(number: int, folder: Path, *, says_all: bool = False) -> bool:
    """Run an experiment; returns whether all of its commands ended well."""
    rng, here = random.Random(number), folder / str(number)
    here.mkdir()
    config, run = here / "experiment.yaml", here / "run"
    drawn = experiment(rng)
    config.write_text(yaml.safe_dump(drawn))
    for words in commands(rng, drawn, config, run):
        code, said = hpcdi(words)
        is_well = code == 0 and "Traceback" not in said
        is_refused = code == 2 and str(config) in words and "Traceback" not in said
        if says_all or not (is_well or is_refused):
            print(f"{number}: hpcdi {' '.join(words)}: exit {code}\n{said[-3000:]}", flush=True)
        if is_refused:
            break
        if not is_well:
            return False
    shutil.rmtree(here)
    return True


def commands(rng: random.Random, drawn: Settings, config: Path, run: Path) -> Iterator[list[str]]:
    """Yields the words of each command."""
    learners = drawn["policy"]["learn"].get("learner", {}).get("learner_num", 1)
    ranks = {"serial": [], "train": ["-n", str(learners + 2)]}
    mode = rng.choice(["serial", "train"])
    yield [mode, str(config), "--run-dir", str(run), *ranks[mode]]
    if rng.random() < 0.6:
        mode = rng.choice(["serial", "train"])
        longer = "policy.other.commander.max_env_step=600"
        yield [mode, "--resume", str(run), longer, *ranks[mode]]
    is_league = drawn["env"]["type"] == "pettingzoo"
    after = rng.random()
    if after < 0.4:
        players = ["--player", "main", "--against", "random"] if is_league else []
        yield ["eval", str(run), "--episodes", "2", *players]
    elif after < 0.7:
        yield ["export", str(run), "-o", str(run / "policy.pt2")]
    elif after < 0.8:
        yield ["inspect", str(run)]
    elif is_league:
        yield ["league", str(run), *rng.choice([[], ["--cross-play", "--games", "2"]])]


def hpcdi(words: list[str]) -> tuple[int, str]:
    """Returns the exit code of a command, 124 where it takes too long, and what it has said."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    user = {**os.environ, **root, "PYTHONPATH": str(Path(__file__).parent)}
    job = subprocess.Popen(
        [sys.executable, "-m", "hpcdi", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=user,
    )  # fmt: skip
    try:
        said, _ = job.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        job.terminate()
        said, _ = job.communicate()
        return 124, said
    return job.returncode, said


# ------------------------------------------------------------------------------- what is drawn


def experiment(rng: random.Random) -> Settings:
    """Draw an experiment."""
    env, policy = rng.choice([alone, alone, with_goals, team, game, game])(rng)
    env |= {"collector_env_num": rng.choice([1, 3, 4]), "evaluator_env_num": rng.choice([1, 2])}
    env |= {"evaluator_episode_num": rng.choice([1, 2])}
    if rng.random() < 0.25:
        env["manager"] = {"type": "subprocess"}
    policy["eval"] = {"every": "150 env_steps"}
    policy.setdefault("other", {}).setdefault("commander", {})["max_env_step"] = 300
    drawn: Settings = {"exp_name": "fuzz", "seed": rng.randrange(100), "env": env, "policy": policy}
    if rng.random() < 0.4:
        drawn["system"] = {"transport": rng.choice(["files", "memory", "mpi"])}
    elif rng.random() < 0.2 and policy["type"] in (*VALUES, "sac", "td3"):
        drawn["system"] = {"deterministic": True}
    return drawn


def alone(rng: random.Random) -> tuple[Settings, Settings]:
    """An environment of one player, and a policy for it."""
    acts = rng.choice([*DISCRETE, *DISCRETE, *ACTIONS])
    kwargs = {"seen": rng.choice(list(OBSERVATIONS)), "acts": acts}
    env: Settings = {"type": "gymnasium", "env_id": "odd_envs:Odd", "kwargs": kwargs}
    kwargs["longest"] = rng.choice([1, 3, 20])
    kinds = ["ppo", "impala"]
    if acts in DISCRETE:
        kinds += [*VALUES, "r2d2", "discrete_sac", "discrete_cql"]
        kwargs["mask"] = rng.choice(["", "", "key", "info"])
        env["action_mask"] = "info" if kwargs["mask"] == "info" else ""
    elif acts in BOUNDED:
        kinds += ["sac", "td3", "tqc", "iql", "cql"]
    policy = of_kind(rng, rng.choice(kinds))
    kind, is_replay = policy["type"], policy["type"] not in ("ppo", "impala")
    if kind == "r2d2" or (not is_replay and rng.random() < 0.4):
        remember(rng, policy)
    if kind == "r2d2":
        policy["collect"]["stride"] = 2
        policy["learn"]["burn_in"] = rng.choice([0, 1])
    elif kind == "impala":
        policy["collect"].setdefault("unroll_len", 4)
    elif is_replay:
        policy["random_collect_size"] = rng.choice([0, 0, 10, 60])
    if kind not in ("r2d2", "iql", "cql", "discrete_cql", "impala") and rng.random() < 0.25:
        policy["exploration_bonus"] = {"type": rng.choice(["rnd", "icm"])}
    return env, policy


def with_goals(rng: random.Random) -> tuple[Settings, Settings]:
    """An environment with goals, and a policy that learns from hindsight."""
    acts = rng.choice([*DISCRETE, *BOUNDED])
    kwargs = {
        "goal": rng.choice(GOALS), "seen": rng.choice(["vector", "discrete", "number", "picture"]),
        "acts": acts, "one_by_one": rng.random() < 0.3,
    }  # fmt: skip
    kinds = [*VALUES, "discrete_sac"] if acts in DISCRETE else ["sac", "td3", "tqc"]
    policy = of_kind(rng, rng.choice(kinds))
    policy["hindsight"] = {"goals": rng.choice([1, 4])}
    return {"type": "gymnasium", "env_id": "odd_envs:OddGoal", "kwargs": kwargs}, policy


def team(rng: random.Random) -> tuple[Settings, Settings]:
    """Players of one or two groups, which may leave and come, and a policy for each group."""
    is_on_policy, masks = rng.random() < 0.5, rng.random() < 0.25
    acts = list(DISCRETE) if masks else list(ACTIONS if is_on_policy else {**DISCRETE, **BOUNDED})
    groups = {
        name: [rng.choice([1, 2, 3]), rng.choice(list(OBSERVATIONS)), rng.choice(acts)]
        for name in ["red", "blue"][: rng.choice([1, 2])]
    }
    kwargs = {"groups": groups, "longest": rng.choice([1, 4, 12]), "masks": masks}
    kwargs |= {"leaves": rng.random() < 0.4, "comes": rng.random() < 0.3}
    policies = {}
    for name, (_count, _seen, action) in groups.items():
        kinds = [*VALUES, "vdn", "qmix"] if action in DISCRETE else ["sac", "td3"]
        own: Settings = {"type": "ppo" if is_on_policy else rng.choice(kinds)}
        own["model"] = {"encoder_hidden_size_list": [16]}
        if is_on_policy and rng.random() < 0.4:
            own["model"]["value_only"] = ["state"]
        if is_on_policy and rng.random() < 0.4:
            remember(rng, own)
        if rng.random() < 0.3:
            own["normalize"] = {"observation": None}
        policies[name] = own
    policy: Settings = {"type": "team", "policies": policies, "learn": {"batch_size": 8}}
    policy["collect"] = {"n_sample": rng.choice([8, 16])}
    if not is_on_policy:
        policy["other"] = {"replay_buffer": {"replay_buffer_size": 500}}
        policy["learn"]["replay_ratio"] = rng.choice([1, 4])
        policy["priority"] = rng.random() < 0.3
    return {"type": "team", "env_id": "odd_envs:OddTeam", "kwargs": kwargs}, policy


def game(rng: random.Random) -> tuple[Settings, Settings]:
    """A league: two or more players of one kind, in turns or at once."""
    acts = rng.choice([*DISCRETE, *DISCRETE, *ACTIONS])
    masks, in_turns = acts in DISCRETE and rng.random() < 0.4, rng.random() < 0.6
    groups = {"red": [rng.choice([2, 2, 2, 3]), rng.choice(list(OBSERVATIONS)), acts]}
    kwargs = {"groups": groups, "longest": rng.choice([1, 4, 12]), "masks": masks}
    kwargs["leaves"] = rng.random() < 0.3
    if not in_turns:
        kwargs["comes"] = rng.random() < 0.2
    kinds = ["ppo", "ppo", "impala"]
    if acts in DISCRETE:
        kinds += [*VALUES, "r2d2", "discrete_sac"]
    elif acts in BOUNDED:
        kinds += ["sac", "td3", "tqc"]
    policy = of_kind(rng, rng.choice(kinds))
    kind = policy["type"]
    if kind == "r2d2" or (kind in ("ppo", "impala") and rng.random() < 0.4):
        remember(rng, policy)
    if kind == "r2d2":
        policy["collect"]["stride"] = 2
        policy["learn"]["burn_in"] = rng.choice([0, 1])
    elif kind == "impala":
        policy["collect"].setdefault("unroll_len", 4)
    league: Settings = {
        "matchmaking": rng.choice(["self_play", "fictitious", "pfsp", "variance"]),
        "self_play": rng.choice([0.0, 0.5, 1.0]), "freeze_steps": rng.choice([50, 100, 1000]),
    }  # fmt: skip
    commander: Settings = {"type": "one_vs_one", "collector_task_space": None, "league": league}
    if rng.random() < 0.4:
        roles = rng.choice([["main_exploiter"], ["league_exploiter"], ["main_exploiter"] * 2])
        league["players"] = {"main": "main"} | {f"e{i}": role for i, role in enumerate(roles)}
        league["reset_probability"] = rng.choice([0.0, 1.0])
        commander["learner_task_space"] = 1 + len(roles)
        policy["learn"]["learner"] = {"learner_num": 1 + len(roles)}
    if rng.random() < 0.3:
        league["fixed"] = {"chance": "random"}
    policy.setdefault("other", {})["commander"] = commander
    name = "odd_envs:OddTurns" if in_turns else "odd_envs:OddTeam"
    return {"type": "pettingzoo", "env_id": name, "kwargs": kwargs}, policy


def of_kind(rng: random.Random, kind: str) -> Settings:
    """Draw settings of an algorithm."""
    policy: Settings = {
        "type": kind, "model": {"encoder_hidden_size_list": [16]},
        "learn": {"batch_size": rng.choice([8, 16])}, "collect": {"n_sample": rng.choice([8, 16])},
    }  # fmt: skip
    model, learn = policy["model"], policy["learn"]
    if kind not in ("ppo", "impala"):
        buffer = {"replay_buffer_size": rng.choice([100, 1000]), "min_fill": rng.choice([16, 50])}
        policy["other"] = {"replay_buffer": buffer}
        policy["priority"] = rng.random() < 0.3
        policy["priority_IS_weight"] = policy["priority"] and rng.random() < 0.5
        policy["nstep"] = rng.choice([1, 1, 3])
        learn["replay_ratio"] = rng.choice([1, 8, None])
    if rng.random() < 0.3:
        policy["normalize"] = {"observation": None, "reward": rng.random() < 0.5}
    if rng.random() < 0.2:
        learn["accumulate"] = 2
    if rng.random() < 0.2:
        learn["schedule"] = [{"key": "learning_rate", "end": 1e-4, "env_steps": 200}]
    model |= rng.choice([{}, {}, {"layer_norm": True}, {"embedding_size": 3}])
    return policy


def remember(rng: random.Random, policy: Settings) -> None:
    """Give a policy a memory."""
    policy["model"] |= {"memory": rng.choice(MEMORIES), "memory_size": 16}
    policy.setdefault("collect", {})["unroll_len"] = rng.choice([2, 4])


if __name__ == "__main__":
    main()
