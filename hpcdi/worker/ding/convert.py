"""A configuration of DI-engine (``main_config``, ``create_config``) as an experiment of hpcdi.

The settings of its policy and environment stay whole, under `policy.ding` and `env.ding`. What the
run itself must know becomes hpcdi's settings; notes say what was renamed, rounded or dropped.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpcdi.errors import ConfigError, Problem
from hpcdi.utils.registry import PARALLEL_COMMANDER_REGISTRY
from hpcdi.worker.ding.library import merge

_POLICY_MODULE, _ENV_MODULE = "hpcdi.worker.ding.policy", "hpcdi.worker.ding.env"
_MANAGERS = {"base": "base", "subprocess": "subprocess", "async_subprocess": "subprocess"}
_MANAGER_KEYS = (
    "episode_num",
    "max_retry",
    "retry_type",
    "auto_reset",
    "step_timeout",
    "reset_timeout",
    "retry_waiting_time",
)
_BUFFER_KEYS = (
    "replay_buffer_size",
    "max_use",
    "max_staleness",
    "alpha",
    "beta",
    "anneal_step",
    "thruput_controller",
    "monitor",
)
_HOOKS = (
    "load_ckpt_before_run",
    "log_show_after_iter",
    "save_ckpt_after_iter",
    "save_ckpt_after_run",
)
_SOURCE = "DI-engine's configuration"
_COLLECTOR_KEYS = ("get_train_sample", "reward_shaping")
_USUAL = {"evaluator": "interaction", "learner": "base"}
"""Types that DI-engine's serial entry has, whatever ``create_config`` says."""
_EVAL_FREQ = 1000
"""Iterations from one evaluation to the next, where a configuration does not say."""
_EPISODE_STEPS = 1000
"""Steps of an episode for which there is room in blocks and on rank 0."""
_OWN_PROGRAM = "hpcdi has no run with it; use your own program and ours"
_OFFLINE = "learns from a data set alone, without environments: hpcdi has no such run yet"
_IMITATION = "learns from an expert beside its environments: hpcdi has no such run yet"
_NO_RUN = {
    **dict.fromkeys(
        (
            "bc",
            "bcq",
            "cql",
            "discrete_cql",
            "cql_discrete",
            "dt",
            "edac",
            "ibc",
            "il",
            "iql",
            "pc_bfs",
            "pd",
            "qgpo",
            "td3_bc",
        ),
        _OFFLINE,
    ),
    **dict.fromkeys(("dqfd", "r2d3", "sqil", "sqil_sac"), _IMITATION),
    **dict.fromkeys(("ngu", "dreamer"), "has an entry of its own in DI-engine"),
    "td3_vae": "is trained in two phases by an entry of its own in DI-engine",
}
"""Type of a policy, without ``_command``, that a run would train as something else -> why."""
_EXPERT_KEYS = ("data_path", "data_type", "expert_data_path", "model_path")
"""Of ``policy.collect``: where a data set, or the policy of an expert, lies."""
_SECTIONS = (
    *("main_config.env", "main_config.env.manager", "main_config.policy"),
    *("main_config.policy.learn", "main_config.policy.learn.learner"),
    *("main_config.policy.learn.learner.hook", "main_config.policy.collect"),
    *("main_config.policy.collect.collector", "main_config.policy.eval"),
    *("main_config.policy.eval.evaluator", "main_config.policy.other"),
    *("main_config.policy.other.replay_buffer", "create_config.env", "create_config.env_manager"),
    *("create_config.policy", "create_config.collector", "create_config.replay_buffer"),
    *("create_config.evaluator", "create_config.learner", "create_config.learner.hook"),
)
"""Those that are read here."""
_CREATE_KEYS = {
    *("env", "env_manager", "policy", "collector", "replay_buffer", "evaluator", "learner")
}


def converted(
    main: Mapping[str, Any], create: Mapping[str, Any], policy: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the experiment as a mapping, and notes on keys that are not as they were.

    Args:
        main: ``main_config``.
        create: ``create_config``.
        policy: the policy's settings, ``create.policy`` among them, over the defaults of its class.

    Raises:
        ConfigError: it is of a kind that hpcdi has no run for; holds all problems.
    """
    problems = list(problems_of(main, create))
    if problems:
        raise ConfigError(problems, _SOURCE)
    whole = {"env": {**create["env"], **main["env"]}}
    whole["policy"] = {**create["policy"], **main["policy"]}
    main, create, policy = map(_without_none, (main, create, policy))
    notes: list[str] = []
    experiment: dict[str, Any] = {}
    if "exp_name" in main:
        experiment["exp_name"] = str(main["exp_name"]).strip("./").replace("/", "_")
        if experiment["exp_name"] != main["exp_name"]:
            notes.append(f"exp_name {main['exp_name']!r} is now {experiment['exp_name']!r}")
    if "seed" in main:
        experiment["seed"] = main["seed"]
    experiment["env"] = _env(main["env"], create, notes)
    experiment["policy"] = _policy(main, create, policy, experiment["env"], notes)
    for name, settings in whole.items():
        experiment[name]["ding"] = settings
    return experiment, notes


def _without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that are None: to DI-engine that is as if they were not there."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if value is not None
    }


def _number(
    settings: Mapping[str, Any], path: str, default: float | None = None, *, least: int = 1
) -> int:
    """Returns the whole number that the last key of a path has in settings.

    Raises:
        ConfigError: it is below `least`, no number, or there is neither it nor a default.
    """
    value = settings.get(path.rpartition(".")[2], default)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = least - 1
    if number < least:
        message = f"must be a whole number that is not below {least}, not {value!r:.60}"
        raise ConfigError([Problem(path, message)], _SOURCE)
    return number


_ADDRESSES = re.compile(r"(learner|collector)\d*")
"""Sections of a compiled system that say where its workers listen."""


def is_compiled(system: Mapping[str, Any]) -> bool:
    """Returns whether a system is one that DI-engine's ``compile_config_parallel`` has made."""
    sections = {*system, *system.get("coordinator", {})}
    return any(_ADDRESSES.fullmatch(name) for name in sections)


def has_defaults(tree: Any) -> bool:
    """Returns whether DI-engine has completed settings by its classes' defaults."""
    if not isinstance(tree, Mapping):
        return False
    return "cfg_type" in tree or any(map(has_defaults, tree.values()))


def compiled(main: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the experiment of a configuration that ``compile_config_parallel`` has made.

    Args:
        main: its ``main``, of a solo or naive commander.
        system: its ``system``, whose addresses mean nothing among MPI ranks.

    Raises:
        ConfigError: see `converted`.
    """
    env, policy = main["env"], main["policy"]
    create = {name: {"type": part.get("type")} for name, part in (("env", env), ("policy", policy))}
    experiment, _ = converted(main, create, policy)
    commander = policy["other"].get("commander", {})
    kind = commander.get("type", "solo")
    known = {field.name for field in dataclasses.fields(PARALLEL_COMMANDER_REGISTRY.settings(kind))}
    settings = {key: commander[key] for key in known & commander.keys() if key != "import_names"}
    for key in ("collector_task_space", "learner_task_space"):
        if settings.get(key) == 0:  # workers that come later would each add to it
            del settings[key]
    experiment["policy"].setdefault("other", {})["commander"] = {**settings, "type": kind}
    number = policy["collect"].get("collector", {}).get("collector_num")
    if number is not None:
        experiment["policy"]["collect"]["collector"] = {"collector_num": number}
    rest = {key: value for key, value in system.items() if not _ADDRESSES.fullmatch(key)}
    rank_0 = rest.get("coordinator", {})
    rest["coordinator"] = {k: v for k, v in rank_0.items() if not _ADDRESSES.fullmatch(k)}
    return {**experiment, "system": rest}


def problems_of(main: Mapping[str, Any], create: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields why hpcdi has no run for a configuration; nothing where it has one.

    Neither DI-engine nor anything that it needs is imported.

    Args:
        main: ``main_config``.
        create: ``create_config``.
    """
    odd = list(_no_sections({"main_config": main, "create_config": create}))
    if odd:
        yield from odd
        return
    main, create = _without_none(main), _without_none(create)
    kind = str(create.get("policy", {}).get("type") or "").removesuffix("_command")
    if kind.lower() in _NO_RUN:  # the rest of it fits no run either
        yield Problem("create_config.policy.type", f"{kind!r} {_NO_RUN[kind.lower()]}")
        return
    collect = main.get("policy", {}).get("collect", {})
    for key in filter(collect.get, _EXPERT_KEYS):
        message = f"{collect[key]!r:.60}: an offline or imitation algorithm needs it"
        yield Problem(f"main_config.policy.collect.{key}", f"{message}; {_OWN_PROGRAM}")
    for name, keys in (
        ("create_config", create.keys() - _CREATE_KEYS),
        ("main_config", main.keys() - {"exp_name", "seed", "env", "policy"}),
    ):
        yield from (Problem(f"{name}.{key}", _OWN_PROGRAM) for key in sorted(keys))
    yield from _missing(main, create)
    collector = create.get("collector", {}).get("type", "sample")
    if collector not in ("sample", "episode"):
        message = f"hpcdi runs collectors of samples and of episodes, not {collector!r}"
        yield Problem("create_config.collector.type", f"{message}; that one is for your own code")


def _no_sections(configs: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields which sections are no dicts."""
    for path in _SECTIONS:
        value: Any = configs
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and not isinstance(value, Mapping):
            yield Problem(path, f"must be a dict, not {value!r:.60}")


def _missing(main: Mapping[str, Any], create: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields what is required and not there."""
    parts = ("env", "policy")
    required: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [
        ("main_config", main, parts),
        ("create_config", create, parts),
    ]
    required += [
        (f"create_config.{part}", create[part], ("type",)) for part in parts if part in create
    ]
    if "env" in main:
        env_nums = ("collector_env_num", "evaluator_env_num")
        required.append(("main_config.env", main["env"], env_nums))
    for name, settings, keys in required:
        absent = [key for key in keys if settings.get(key) in (None, "")]
        yield from (Problem(f"{name}.{key}", "is required") for key in absent)


def _env(env: Mapping[str, Any], create: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    env_num = _number(env, "env.evaluator_env_num")
    episodes = _number(env, "env.n_evaluator_episode", env_num)
    each = math.ceil(episodes / env_num)
    if each * env_num != episodes:
        notes.append(
            f"env.n_evaluator_episode {episodes} is rounded to {each * env_num}: each of the "
            f"{env_num} environments makes as many episodes as the others"
        )
    manager = create.get("env_manager", {}).get("type", "base")
    if manager not in _MANAGERS:
        notes.append(f"create_config.env_manager.type {manager!r} is now 'base'")
    settings = {**create.get("env_manager", {}), **env.get("manager", {})}
    kept = _known(settings, _MANAGER_KEYS, "env.manager", notes)
    converted_env: dict[str, Any] = {
        "type": "ding",
        "import_names": [_ENV_MODULE],
        "collector_env_num": _number(env, "env.collector_env_num"),
        "evaluator_env_num": env_num,
        "evaluator_episode_num": each,
    }
    if "stop_value" in env:
        try:
            converted_env["stop_value"] = float(env["stop_value"])
        except (TypeError, ValueError):
            problem = Problem("env.stop_value", f"must be a number, not {env['stop_value']!r:.60}")
            raise ConfigError([problem], _SOURCE) from None
    converted_env["manager"] = {"type": _MANAGERS.get(manager, "base"), **kept}
    return converted_env


def _policy(
    main: Mapping[str, Any],
    create: Mapping[str, Any],
    policy: Mapping[str, Any],
    env: Mapping[str, Any],
    notes: list[str],
) -> dict[str, Any]:
    learn, collect = policy.get("learn", {}), policy.get("collect", {})
    on_policy = _on_policy(policy)
    of_episodes = create.get("collector", {}).get("type") == "episode"
    collector = _written(main, create, "collect.collector", notes, *_COLLECTOR_KEYS)
    if of_episodes:
        _check_episodes(
            {**collect, "collector": collect.get("collector", {}) | collector}, on_policy
        )
    env_num = env["collector_env_num"]
    is_share = of_episodes or not collect.get("n_sample")
    wanted = env_num if is_share else _number(collect, "policy.collect.n_sample")
    share = max(1, math.ceil(wanted / env_num))
    if share * env_num != wanted:
        notes.append(
            f"policy.collect.n_sample {wanted} is rounded to {share * env_num}, {share} of each of "
            f"the {env_num} environments"
        )
    elif not is_share:
        notes.append(
            f"policy.collect.n_sample {wanted} of all {env_num} environments is now {share} of each"
        )
    settings = main["policy"]
    result: dict[str, Any] = {
        "type": "ding",
        "import_names": [_POLICY_MODULE],
        "cuda": bool(policy.get("cuda", False)),
        "on_policy": on_policy,
        "priority": bool(policy.get("priority", False)),
        "traj_len_inf": of_episodes or bool(policy.get("traj_len_inf", False)),
        "random_collect_size": _random_collect(policy, notes),
        "collect": {
            "n_sample": share,
            "unroll_len": _number(collect, "policy.collect.unroll_len", 1),
        },
        "learn": {"batch_size": _number(learn, "policy.learn.batch_size", 64)},
    }
    if of_episodes:
        each = math.ceil(_number(collect, "policy.collect.n_episode") / env_num)
        result["collect"] |= {"n_episode": each * env_num, "n_sample": each * _EPISODE_STEPS}
        notes.append(
            f"policy.collect.n_episode {collect['n_episode']} is of each collector; there is room "
            f"for episodes of {_EPISODE_STEPS} steps: policy.collect.n_sample / {each}"
        )
    path = "policy.learn.update_per_collect"
    has_updates = not on_policy and "update_per_collect" in learn
    result["learn"]["update_per_collect"] = _number(learn, path, least=0) if has_updates else None
    written = _written(main, create, "learn.learner", notes, "hook").get("hook", {})
    hooks = {**learn.get("learner", {}).get("hook", {}), **written}
    hooks = _known(hooks, _HOOKS, "policy.learn.learner.hook", notes)
    if hooks:
        result["learn"]["learner"] = {"hook": hooks}
    evaluator = policy.get("eval", {}).get("evaluator", {})
    evaluator = evaluator | _written(main, create, "eval.evaluator", notes, "eval_freq")
    freq = _number(evaluator, "policy.eval.evaluator.eval_freq", _EVAL_FREQ, least=0)
    result["eval"] = {"every": f"{max(freq, 1)} iterations"}
    if not on_policy:
        buffer = {
            **policy.get("other", {}).get("replay_buffer", {}),
            **create.get("replay_buffer", {}),
            **settings.get("other", {}).get("replay_buffer", {}),
        }
        result["other"] = {"replay_buffer": {"type": "advanced", **_buffer(buffer, notes)}}
        kind = create.get("replay_buffer", {}).get("type", "advanced")
        if kind != "advanced":
            notes.append(
                f"create_config.replay_buffer.type {kind!r} is now 'advanced', which draws "
                "uniformly where policy.priority is false"
            )
    if settings.get("load_path"):
        notes.append(
            "policy.load_path is not read: name a checkpoint by "
            "policy.learn.learner.hook.load_ckpt_before_run"
        )
    if policy.get("multi_gpu"):
        notes.append("policy.multi_gpu is dropped: one learner updates a policy of DI-engine's")
    return result


def _on_policy(policy: Mapping[str, Any]) -> bool:
    """Returns whether a policy learns from its own samples alone.

    Raises:
        ConfigError: nobody says so.
    """
    if "on_policy" not in policy:
        message = "is neither in the configuration nor among its class's defaults: add it"
        raise ConfigError([Problem("policy.on_policy", message)], _SOURCE)
    return bool(policy["on_policy"])


def _check_episodes(collect: Mapping[str, Any], on_policy: bool) -> None:
    """Check that episodes come as training samples, once.

    Raises:
        ConfigError: they do not.
    """
    problems = []
    if not collect.get("n_episode"):
        problems.append(
            Problem("policy.collect.n_episode", "is required by a collector of episodes")
        )
    if not collect.get("collector", {}).get("get_train_sample"):
        message = "must be true: hpcdi has no run whose samples are whole episodes"
        problems.append(Problem("policy.collect.collector.get_train_sample", message))
    if collect.get("collector", {}).get("reward_shaping"):
        message = "hpcdi's runs shape no rewards: the environment itself must"
        problems.append(Problem("policy.collect.collector.reward_shaping", message))
    if not on_policy:
        message = "hpcdi's collectors of episodes are for on-policy policies"
        problems.append(Problem("create_config.collector.type", message))
    if problems:
        raise ConfigError(problems, _SOURCE)


def _written(
    main: Mapping[str, Any], create: Mapping[str, Any], path: str, notes: list[str], *known: str
) -> dict[str, Any]:
    """Known settings of a part of the policy that the configuration itself has; see `_known`.

    Those of ``main_config`` go over those of ``create_config``.
    """
    section, name = path.split(".")
    of_create, of_main = create.get(name, {}), main["policy"].get(section, {}).get(name, {})
    if name in _USUAL and of_create.get("type", _USUAL[name]) != _USUAL[name]:
        notes.append(f"create_config.{name}.type {of_create['type']!r} is now {_USUAL[name]!r}")
    return _known(merge(of_create, of_main), known, f"policy.{path}", notes)


def _random_collect(policy: Mapping[str, Any], notes: list[str]) -> int:
    size = _number(policy, "policy.random_collect_size", 0, least=0)
    if size and policy.get("transition_with_policy_data"):
        notes.append(
            "policy.random_collect_size is dropped: with transition_with_policy_data the policy "
            "itself acts from the start"
        )
        return 0
    return size


def _buffer(settings: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    kept = _known(settings, _BUFFER_KEYS, "policy.other.replay_buffer", notes)
    if "max_staleness" in kept:
        kept["max_staleness"] = max(0, oldest_kept(kept["max_staleness"]))
    return kept


def oldest_kept(max_staleness: float) -> float:
    """Returns the last staleness at which an item is kept.

    Args:
        max_staleness: DI-engine's: the first at which it is dropped.
    """
    return math.ceil(max_staleness) - 1 if math.isfinite(max_staleness) else max_staleness


def _known(
    settings: Mapping[str, Any], known: Iterable[str], path: str, notes: list[str]
) -> dict[str, Any]:
    """Those of the given keys that hpcdi has; notes on the others."""
    kept = {key: settings[key] for key in known if key in settings}
    for key in sorted(settings.keys() - kept.keys() - {"type", "import_names"}):
        notes.append(f"{path}.{key} is dropped: hpcdi has no such setting")
    return kept
