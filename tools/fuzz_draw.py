"""Draws experiments for `fuzz_runs`: an odd environment, an algorithm for its spaces, settings.

What kind of experiment a number is, chance decides; then some of the settings that its typed model
has take a value of those that they may have, by turns: some hundred numbers come to all of them.
"""

from __future__ import annotations

import dataclasses
import random
import re
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from odd_envs import ACTIONS, BOUNDED, DISCRETE, GOALS, OBSERVATIONS

from hpcdi.config.compiled import compile_config
from hpcdi.errors import ConfigError, HpcdiError
from hpcdi.run.experiment import load_experiment

VALUES = ("dqn", "c51", "qrdqn")
MEMORIES = ("lstm", "gru", "gtrxl")
Settings = dict[str, Any]
STEPS, STEPS_LATER = 300, 600
"""Environment steps of a run, and when it is resumed."""
TRIED = set[str]()
"""Values of settings that experiments had by turns."""
_WALKED = 7
"""Settings that a number changes."""
_LEFT_OUT = re.compile(
    r"(slurm|fault|data|callbacks|seed|exp_name|system\.guests|policy\.eval\.evaluator\.render)\b"
    r"|policy\.(priority|nstep|random_collect_size|policies\.\w+\.model\.value_only)$"
    r"|.*\b(cuda|tf32|compile|pin_memory|deterministic|auto_reset|auto_resume|import_names|import_path|loggers|"
    r"kwargs|eval_kwargs|env_id|keep_infos|origin|action_mask|players|teams|fixed|learners|memory|"
    r"learner_num|collector_num|collector_max|learner_task_space|stop_value|episode_num|on_policy|"
    r"max_(env_step|train_iter|restarts_without_progress)|train_iterations|offline_iterations|"
    r"\w*timeout\w*|disk_patience_s|obs_shape|obs_leaves|action_(shape|low|high|dtype|space|leaves)|"
    r"evaluate_against|freeze_steps|observation|action|is_masked|numbers)$"
)
"""Paths of settings that experiments draw themselves, that need more than a value, or a machine."""
_TEXTS: Mapping[str, Sequence[Any]] = {
    "every": ("90 env_steps", "9 iterations", "0.4 seconds"),
    "seeds": ("0..3", [7, 12]), "eval_seeds": ("0..2", [5]),
    "schedule": ({"scale": {"env_steps": {0: 1.0, 200: 3.0}}},),
    "renew_after": ("2 episodes",), "folder": ("places",), "step_timeout": (60.0,),
    "optimizer": ({"type": "AdamW", "weight_decay": 0.1}, {"type": "RMSprop"}, {"type": "SGD"}),
    "init": ("orthogonal", "xavier_uniform", "kaiming_normal"), "encoder": ("mlp", "multi"),
    "hook": ({"save_ckpt_after_iter": 5}, {"save_ckpt_after_run": False, "log_show_after_iter": 3}),
    "frames": (["observation"],), "replay_ratio": (0.5, 4, None), "head": ("dueling_q",),
    "encoder_hidden_size_list": ([4], [8, 4]), "snapshot_s": (0.3, 1.0),
}  # fmt: skip
"""Values of settings that are no numbers or choices, by their last name."""


def experiment(number: int, folder: Path, given: Callable[[str], Path]) -> Settings:
    """Draw an experiment.

    Args:
        number: of the experiment.
        folder: where journals of its environments go, see `odd_envs`.
        given: makes a run, once, that has data of an action space.
    """
    rng = random.Random(number)
    env, policy = rng.choice([alone, alone, alone, with_goals, team, game, game, offline])(rng)
    env |= {"collector_env_num": rng.choice([1, 3, 4]), "evaluator_env_num": rng.choice([1, 2])}
    env |= {"evaluator_episode_num": rng.choice([1, 2])}
    env["kwargs"]["journal"] = str(folder / "steps")
    env["eval_kwargs"] = {"journal": str(folder / "evaluations")}
    if rng.random() < 0.25 and "Vector" not in env["env_id"]:
        env["manager"] = {"type": "subprocess"}
    policy.setdefault("eval", {"every": "150 env_steps"})
    commander = policy.setdefault("other", {}).setdefault("commander", {})
    drawn: Settings = {"exp_name": "fuzz", "seed": rng.randrange(100), "env": env, "policy": policy}
    if policy["eval"]["every"] != "40 iterations":
        commander["max_env_step"] = STEPS
    else:
        drawn["data"] = [str(given(env["kwargs"]["acts"]))]
    chance = rng.random()
    if chance < 0.35:
        drawn["system"] = {"transport": rng.choice(["files", "memory", "mpi"])}
    elif chance < 0.6 and env["type"] == "gymnasium" and policy["type"] not in ("ppo", "impala"):
        drawn["system"] = {"deterministic": True, "snapshot_rounds": rng.choice([2, 5, 100])}
    if rng.random() < 0.7:
        drawn["callbacks"] = [{"type": "fuzz_witness:Witness"}]
    if rng.random() < 0.1:
        shipped = [{"type": "histograms", "every": 5}, {"type": "early_stop", "evaluations": 3}]
        drawn.setdefault("callbacks", []).append(rng.choice(shipped))
    return walked(number, drawn, folder)


# ------------------------------------------------------------------------------- settings by turns


def walked(number: int, drawn: Settings, folder: Path) -> Settings:
    """Returns an experiment in which some settings, by turns, have other values.

    Those that are refused are left out, one after the other.
    """
    try:
        model = compile_config(drawn).config
    except ConfigError:
        return drawn
    every = sorted(settings_of(model, ""), key=lambda each: _place(each, number))
    chosen: dict[str, Any] = {}
    for path, value in every:
        if len(chosen) < _WALKED:
            chosen.setdefault(path, value)
    file = folder / "walked.yaml"
    while chosen:
        changed = with_values(drawn, chosen)
        file.write_text(yaml.safe_dump(changed, sort_keys=False))
        try:
            for over_ranks in (True, False):
                load_experiment(str(file), [], over_ranks=over_ranks)
        except ConfigError as error:
            said = " ".join(f"{problem.path} {problem.message}" for problem in error.problems)
            blamed = [path for path in chosen if path in said or path.rpartition(".")[2] in said]
            del chosen[(blamed or list(chosen))[-1]]
        except HpcdiError:
            break
        else:
            TRIED.update(map(repr, chosen.items()))
            return changed
    return drawn


def _place(each: tuple[str, Any], number: int) -> int:
    """Returns how far a value is from a number's pointer, which goes round by the golden ratio."""
    return (zlib.crc32(repr(each).encode()) - number * 0x9E3779B9) % (1 << 32)


def with_values(drawn: Settings, chosen: Mapping[str, Any]) -> Settings:
    """Returns settings with others, by their paths."""
    changed: Settings = yaml.safe_load(yaml.safe_dump(drawn, sort_keys=False))
    for path, value in chosen.items():
        *sections, name = path.split(".")
        place = changed
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return changed


def settings_of(config: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields each setting of a typed model by its path, with each of the values to try."""
    hints = typing.get_type_hints(type(config))
    for spec in dataclasses.fields(config):
        at, value = f"{path}.{spec.name}".strip("."), getattr(config, spec.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, at)
        elif "components" in spec.metadata:
            for name, part in value.items():
                yield from settings_of(part, f"{at}.{name}")
        elif "bounds" in spec.metadata and not _LEFT_OUT.match(at):
            for each in values_of(spec, hints[spec.name]):
                if each != value:
                    yield at, each


def values_of(spec: dataclasses.Field[Any], hint: Any) -> list[Any]:
    """Returns values of a setting: all that it may have, or small and large numbers."""
    bounds, kinds = spec.metadata["bounds"], {hint, *typing.get_args(hint)}
    if spec.name in _TEXTS:
        return list(_TEXTS[spec.name])
    values: list[Any] = [*(bounds.choices or ())]
    if not values and bool in kinds:
        values = [True, False]
    elif not values and int in kinds:
        values = [0, 1, 2, 3, 7, 50, max(50, int(bounds.minimum or 0))]
    elif not values and float in kinds:
        values = [0.0, 0.02, 0.5, 1.0, 5.0]
    values += [None] if type(None) in kinds and None not in values else []
    return [value for value in values if value is None or bounds.objection(value) is None]


# ------------------------------------------------------------------------------- kinds


def alone(rng: random.Random) -> tuple[Settings, Settings]:
    """An environment of one player, and a policy for it."""
    acts = rng.choice([*DISCRETE, *DISCRETE, *ACTIONS])
    kwargs: Settings = {"seen": rng.choice(list(OBSERVATIONS)), "acts": acts}
    env: Settings = {"type": "gymnasium", "env_id": "odd_envs:Odd", "kwargs": kwargs}
    env["keep_infos"] = ["key", "step", "scale", "odd/half"]
    kwargs["longest"] = rng.choice([1, 3, 20])
    kinds = ["ppo", "impala"]
    if acts in DISCRETE:
        kinds += [*VALUES, "r2d2", "discrete_sac", "discrete_cql"]
        kwargs["mask"] = rng.choice(["", "", "key", "info"])
        env["action_mask"] = "info" if kwargs["mask"] == "info" else ""
    elif acts in BOUNDED:
        kinds += ["sac", "td3", "tqc", "iql", "cql"]
    if not kwargs.get("mask") and rng.random() < 0.3:
        env["wrappers"] = wrappers(rng, kwargs["seen"])
    elif not kwargs.get("mask") and rng.random() < 0.3:
        env |= {"env_id": "odd_envs:OddVector-v0", "vectorization": "vector_entry_point"}
        kwargs["mode"] = rng.choice(["same_step", "next_step", "disabled"])
    policy = of_kind(rng, rng.choice(kinds))
    with_sequences(rng, policy)
    kind = policy["type"]
    if kind not in ("r2d2", "ppo", "impala"):
        policy["random_collect_size"] = rng.choice([0, 0, 10, 60])
    if kind not in ("r2d2", "iql", "cql", "discrete_cql", "impala") and rng.random() < 0.25:
        policy["exploration_bonus"] = {"type": rng.choice(["rnd", "icm"])}
    return env, policy


def wrappers(rng: random.Random, seen: str) -> list[Any]:
    """Wrappers that fit to observations, one or two."""
    fit: list[Any] = [
        {"type": "ScaleReward", "scale": -2.0}, "SignReward", {"type": "RepeatAction", "times": 2},
        {"type": "ResetOptions", "options": {"level": 3}},
        {"type": "TimeLimit", "max_episode_steps": 4},
    ]  # fmt: skip
    more: list[Any] = [{"type": "FrameStackObservation", "stack_size": 3}]
    if seen == "picture":
        more += ["ChannelsFirst", "GrayscaleObservation"]
    if seen in ("whole", "bytes", "picture"):
        more += [{"type": "AsFloats", "scale": 0.5}]
    if seen in ("dict", "one", "nested", "discrete", "matrix"):
        more = ["FlattenObservation"]
    if seen in ("tuple", "multi_discrete", "bits", "grid", "table", "deep"):
        more = fit
    return [rng.choice(more), rng.choice(fit)][rng.choice([0, 1]) :]


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
    policy.get("normalize", {}).pop("reward", None)
    env = {"type": "gymnasium", "env_id": "odd_envs:OddGoal", "kwargs": kwargs}
    return env | {"keep_infos": ["key", "step", "scale"]}, policy


def offline(rng: random.Random) -> tuple[Settings, Settings]:
    """An environment of which there are data, and a policy that learns from them."""
    acts = rng.choice(["two", "box"])
    kwargs = {"seen": "vector", "acts": acts, "longest": 20}
    kinds = ["bc", *(("discrete_cql", "dqn") if acts == "two" else ("iql", "cql", "sac"))]
    policy = of_kind(rng, rng.choice(kinds))
    if policy["type"] == "bc":
        policy = {**policy, "priority": False, "priority_IS_weight": False}
    policy.setdefault("normalize", {})["reward"] = False
    policy["learn"].pop("replay_ratio", None)
    policy["learn"].pop("schedule", None)
    policy["other"]["replay_buffer"]["replay_buffer_size"] = 1000
    policy["other"]["commander"] = {"max_train_iter": 100}
    policy["eval"] = {"every": "40 iterations"}
    if policy["type"] != "bc" and rng.random() < 0.5:
        policy["other"]["commander"] |= {"offline_iterations": 50, "max_env_step": STEPS}
        policy["learn"]["replay_ratio"] = 4
    env = {"type": "gymnasium", "env_id": "odd_envs:Odd", "kwargs": kwargs}
    return env | {"keep_infos": ["key", "step", "scale"]}, policy


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
        if is_on_policy:
            own["learn"] = {"batch_size": 8}
        if is_on_policy and rng.random() < 0.4:
            own["model"]["value_only"] = ["state"]
        if (is_on_policy or own["type"] in ("vdn", "qmix")) and rng.random() < 0.4:
            remember(rng, own)
        if rng.random() < 0.3:
            own["normalize"] = {"observation": None}
        policies[name] = own
    policy: Settings = {"type": "team", "policies": policies}
    policy["learn"] = {} if is_on_policy else {"batch_size": 8}
    policy["collect"] = {"n_sample": rng.choice([8, 16])}
    if not is_on_policy:
        policy["other"] = {"replay_buffer": {"replay_buffer_size": 500}}
        policy["learn"]["replay_ratio"] = rng.choice([1, 4])
        policy["priority"] = rng.random() < 0.3
    env = {"type": "team", "env_id": "odd_envs:OddTeam", "kwargs": kwargs}
    return env | {"keep_infos": ["key", "step"]}, policy


def game(rng: random.Random) -> tuple[Settings, Settings]:
    """A league: two or more players of one kind, in turns or at once."""
    acts = rng.choice([*DISCRETE, *DISCRETE, *ACTIONS])
    masks, in_turns = acts in DISCRETE and rng.random() < 0.4, rng.random() < 0.6
    groups = {"red": [rng.choice([2, 2, 2, 3]), rng.choice(list(OBSERVATIONS)), acts]}
    kwargs: Settings = {"groups": groups, "longest": rng.choice([1, 4, 12]), "masks": masks}
    kwargs |= {"leaves": rng.random() < 0.3, "blind": True}
    if not (in_turns or kwargs["leaves"]):
        kwargs["comes"] = rng.random() < 0.2
    kinds = ["ppo", "ppo", "impala"]
    if acts in DISCRETE:
        kinds += [*VALUES, "r2d2", "discrete_sac"]
    elif acts in BOUNDED:
        kinds += ["sac", "td3", "tqc"]
    policy = of_kind(rng, rng.choice(kinds))
    with_sequences(rng, policy)
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
    env = {"type": "pettingzoo", "env_id": name, "kwargs": kwargs}
    return env | {"keep_infos": ["key", "step", "player"]}, policy


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
    if rng.random() < 0.25:
        learn["learner"] = {"learner_num": 2}
    if rng.random() < 0.3:
        policy["normalize"] = {"observation": None, "reward": rng.random() < 0.5}
    if rng.random() < 0.2:
        learn["accumulate"] = 2
    if rng.random() < 0.2:
        learn["schedule"] = [{"key": "learning_rate", "end": 1e-4, "env_steps": 200}]
    model |= rng.choice([{}, {}, {"layer_norm": True}, {"embedding_size": 3}])
    return policy


def with_sequences(rng: random.Random, policy: Settings) -> None:
    """Have an algorithm that may learn from sequences do so, with or without a memory."""
    kind = policy["type"]
    if kind == "r2d2" or (kind in ("ppo", "impala") and rng.random() < 0.4):
        remember(rng, policy)
    if kind == "r2d2":
        policy["collect"]["stride"] = 2
        policy["learn"]["burn_in"] = rng.choice([0, 1])
    elif kind == "impala":
        policy["collect"].setdefault("unroll_len", 4)


def remember(rng: random.Random, policy: Settings) -> None:
    """Give a policy a memory."""
    policy["model"] |= {"memory": rng.choice(MEMORIES), "memory_size": 16}
    policy.setdefault("collect", {})["unroll_len"] = rng.choice([2, 4])
