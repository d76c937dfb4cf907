"""The predecessor's public package, name by name: what callers of ``ding.worker`` rely on.

Parameters may be added (with a default, after those that were), not renamed, moved or removed. What
is not here on purpose is listed in `LEFT_OUT`, and nowhere else.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import hpcdi.worker
from hpcdi.utils import registry

# Members by class: "name(parameters)", "name(...)" whatever its parameters are, "name" an attribute
# or property, "name=" one that can be set.
_LOGGED = "tb_logger=None, exp_name='default_experiment', instance_name="
_RESETS = "default_config(); reset_env(_env=None); reset_policy(_policy=None)"
_SERIAL = f"{_RESETS}; reset(_policy=None, _env=None); close(); __del__()"
_COLLECTOR = f"__init__(cfg, env=None, policy=None, {_LOGGED}'collector'); {_SERIAL}; envstep="
_EVALUATOR = f"__init__(cfg, env=None, policy=None, {_LOGGED}'evaluator'); {_SERIAL}"
_EVALUATOR += "; should_eval(train_iter); eval(save_ckpt_fn=None, train_iter=-1, envstep=-1"
_COUNTED = "n_sample=None, train_iter=0, drop_extra=True"
_BUFFER = "default_config(); update(info); clear(); count(); save_data(file_name); state_dict()"
_BUFFER += "; load_data(file_name); push(data, cur_collector_envstep)"
_STORED = f"__init__(cfg, {_LOGGED}'buffer'); start(); close(); __del__(); {_BUFFER}"
_STORED += "; replay_buffer_size; push_count"

CLASSES: dict[str, str] = {
    "ISerialCollector": f"{_RESETS}; reset(...); envstep; collect(per_collect_target)",
    "SampleSerialCollector": f"""{_COLLECTOR}; collect({_COUNTED}, random_collect=False,
        record_random_collect=True, policy_kwargs=None, level_seeds=None)""",
    "EpisodeSerialCollector": f"""{_COLLECTOR};
        collect(n_episode=None, train_iter=0, policy_kwargs=None)""",
    "BattleEpisodeSerialCollector": f"""{_COLLECTOR};
        collect(n_episode=None, train_iter=0, policy_kwargs=None)""",
    "BattleSampleSerialCollector": f"{_COLLECTOR}; collect({_COUNTED}, policy_kwargs=None)",
    "ISerialEvaluator": f"{_RESETS}; reset(...); close(); should_eval(train_iter); eval(...)",
    "VectorEvalMonitor": """__init__(env_num, n_episode); is_finished(); get_episode_info();
        update_info(env_id, info); update_reward(env_id, reward); update_video(imgs); get_video();
        get_episode_return(); get_latest_reward(env_id); get_current_episode()""",
    "InteractionSerialEvaluator": f"""{_EVALUATOR}, n_episode=None, force_render=False,
        policy_kwargs=None)""",
    "BattleInteractionSerialEvaluator": f"{_EVALUATOR}, n_episode=None)",
    "MetricSerialEvaluator": f"{_EVALUATOR})",
    "IMetric": "eval(inputs, label); reduce_mean(inputs); gt(metric1, metric2)",
    "BaseParallelCollector": """__init__(cfg); start(); close(); info(s); debug(s); error(s);
        get_finish_info(); policy=; env_manager=; _policy_inference(...); _env_step(...);
        _process_timestep(...); _update_policy(); _iter_after_hook(); _finish_task();
        _setup_timer(); _setup_logger(); _start_thread(); _join_thread(); default_config()""",
    "ZerglingParallelCollector": "__init__(cfg); default_config()",
    "MarineParallelCollector": "__init__(cfg); default_config()",
    # the seeds' abstract `send_stepdata` lacks `path`, which their only implementation has
    "BaseCommCollector": """__init__(cfg); get_policy_update_info(path); send_metadata(metadata);
        send_stepdata(path, stepdata); start(); close(); collector_uid;
        _create_collector(task_info)""",
    "FlaskFileSystemCollector": """__init__(cfg); deal_with_resource(); deal_with_collector_data();
        deal_with_collector_start(task_info); deal_with_collector_close(); start(); close();
        get_policy_update_info(path); send_stepdata(path, stepdata); send_metadata(metadata)""",
    "NaiveCollector": "_process_task(task); _get_timestep()",
    "BaseLearner": """__init__(cfg, policy=None, tb_logger=None, dist_info=None,
        exp_name='default_experiment', instance_name='learner'); default_config();
        train(data, envstep=-1, policy_kwargs=None); start(); setup_dataloader(); close();
        call_hook(name); register_hook(hook); save_checkpoint(ckpt_name=None); info(s); debug(s);
        learn_info; last_iter; train_iter; rank; world_size; monitor; logger; tb_logger; exp_name;
        instance_name; policy=; priority_info; log_buffer; ckpt_name=; collector_envstep=""",
    "BaseCommLearner": """__init__(cfg); send_policy(state_dict); get_data(batch_size); hooks4call;
        send_learn_info(learn_info); start(); close(); _create_learner(task_info)""",
    "FlaskFileSystemLearner": """__init__(cfg); deal_with_resource(); deal_with_get_data();
        deal_with_learner_start(task_info); deal_with_learner_learn(data);
        deal_with_learner_close(); send_policy(state_dict); get_data(batch_size);
        send_learn_info(learn_info); load_data_fn(path, meta, decompressor); hooks4call; start();
        close(); __del__()""",
    "LearnerHook": "__init__(name, priority, *, position); name; priority; position; positions",
    "IBuffer": f"{_BUFFER}; sample(batch_size, cur_learner_iter); load_state_dict(_state_dict)",
    "NaiveReplayBuffer": f"""{_STORED}; load_state_dict(_state_dict);
        sample(size, cur_learner_iter, sample_range=None, replace=False)""",
    "SequenceReplayBuffer": f"""{_STORED}; load_state_dict(_state_dict);
        sample(batch, sequence, cur_learner_iter, sample_range=None, replace=False)""",
    "EpisodeReplayBuffer": f"{_STORED}; load_state_dict(_state_dict); episode_len",
    "AdvancedReplayBuffer": f"""{_STORED}; load_state_dict(_state_dict, deepcopy=False); beta=;
        sample(size, cur_learner_iter, sample_range=None)""",
    "BaseSerialCommander": """__init__(cfg, learner, collector, evaluator, replay_buffer,
        policy=None); step(); policy=; default_config()""",
    "Coordinator": """__init__(cfg); start(); close(); __del__(); default_config(); info(s);
        error(s); state_dict(); load_state_dict(state_dict); system_shutdown_flag;
        deal_with_collector_send_data(task_id, buffer_id, data_id, data);
        deal_with_collector_finish_task(task_id, finished_task);
        deal_with_learner_get_data(task_id, buffer_id, batch_size, cur_learner_iter);
        deal_with_learner_send_info(task_id, buffer_id, info);
        deal_with_learner_finish_task(task_id, finished_task);
        deal_with_collector_judge_finish(task_id, data);
        deal_with_learner_judge_finish(task_id, info);
        deal_with_increase_collector(); deal_with_decrease_collector()""",
    "LearnerAggregator": """__init__(cfg); start(); close(); merge_info(info);
        deal_with_get_resource(); deal_with_learner_start(task); deal_with_get_data(task);
        deal_with_learn(task)""",
}
_OF_CFG = """get_serial_collector_cls create_parallel_collector get_parallel_collector_cls
    create_comm_collector create_comm_learner build_learner_hook_by_cfg get_buffer_cls
    create_parallel_commander get_parallel_commander_cls"""
FUNCTIONS: dict[str, str] = dict.fromkeys(_OF_CFG.split(), "cfg") | {
    "create_serial_collector": "cfg, **kwargs", "create_serial_evaluator": "cfg, **kwargs",
    "create_learner": "cfg, **kwargs", "create_buffer": "cfg, *args, **kwargs",
    "to_tensor_transitions": "data, shallow_copy_next_obs=True", "add_learner_hook": "hooks, hook",
    "register_learner_hook": "name, hook_type", "merge_hooks": "hooks1, hooks2",
}  # fmt: skip

DEFAULTS: dict[str, dict[str, Any]] = {
    "AdvancedReplayBuffer": {
        "type": "advanced", "replay_buffer_size": 4096, "alpha": 0.6, "beta": 0.4,
        "max_use": float("inf"), "max_staleness": float("inf"), "anneal_step": 100_000,
        "enable_track_used_data": False, "deepcopy": False, "thruput_controller": ...,
        "monitor": ...,
    },
    "NaiveReplayBuffer": {
        "type": "naive", "replay_buffer_size": 10000, "deepcopy": False,
        "enable_track_used_data": False, "periodic_thruput_seconds": 60,
    },
    "SequenceReplayBuffer": {"type": "sequence", "replay_buffer_size": 10000},
    "EpisodeReplayBuffer": {"type": "episode", "replay_buffer_size": 10000},
    "BaseLearner": {
        "train_iterations": 10**9, "dataloader": {"num_workers": 0}, "log_policy": True,
        "is_multitask_pipeline": False, "only_monitor_rank0": True, "hook": ...,
    },
    "Coordinator": {
        "collector_task_timeout": 30, "learner_task_timeout": 600, "operator_server": {},
    },
    "InteractionSerialEvaluator": {
        "eval_freq": 1000, "render": ..., "figure_path": None, "n_episode": None,
        "stop_value": float("inf"),
    },
    "BattleInteractionSerialEvaluator": {"eval_freq": 50},
    "MetricSerialEvaluator": {"eval_freq": 50, "multi_gpu": False},
    "SampleSerialCollector": {
        "deepcopy_obs": False, "transform_obs": False, "collect_print_freq": 100,
    },
    "EpisodeSerialCollector": {
        "deepcopy_obs": False, "transform_obs": False, "collect_print_freq": 100,
        "get_train_sample": False, "reward_shaping": False,
    },
    "BattleEpisodeSerialCollector": {
        "deepcopy_obs": False, "transform_obs": False, "collect_print_freq": 100,
        "get_train_sample": False,
    },
    "BattleSampleSerialCollector": {
        "deepcopy_obs": False, "transform_obs": False, "collect_print_freq": 100,
    },
    "ZerglingParallelCollector": {"print_freq": 5, "compressor": "lz4", "update_policy_second": 3},
    "MarineParallelCollector": {"print_freq": 5, "compressor": "lz4", "update_policy_second": 3},
}  # fmt: skip
"""Of built classes; ... is any value."""

TYPES: dict[str, str] = {
    "BUFFER_REGISTRY": "naive elastic sequence advanced episode deque",
    "SERIAL_COLLECTOR_REGISTRY": "sample episode sample_1v1 episode_1v1",
    "LEARNER_REGISTRY": "base",
    "COMM_LEARNER_REGISTRY": "flask_fs mpi_fs",
    "COMM_COLLECTOR_REGISTRY": "flask_fs mpi_fs",
    "PARALLEL_COLLECTOR_REGISTRY": "zergling marine",
    "SERIAL_EVALUATOR_REGISTRY": "interaction battle_interaction metric",
    "PARALLEL_COMMANDER_REGISTRY": "naive solo one_vs_one",
}

MODULES: dict[str, str] = {
    "adapter.learner_aggregator": "LearnerAggregator LearnerAggregatorSlave",
    "coordinator.coordinator": "Coordinator TaskState",
    "coordinator.resource_manager": "NaiveResourceManager",
    "coordinator.base_parallel_commander": """BaseCommander NaiveCommander
        create_parallel_commander get_parallel_commander_cls""",
    "coordinator.base_serial_commander": "BaseSerialCommander",
    "coordinator.solo_parallel_commander": "SoloCommander",
    "collector.base_parallel_collector": """BaseParallelCollector TickMonitor
        create_parallel_collector get_parallel_collector_cls""",
    "collector.base_serial_evaluator": "ISerialEvaluator VectorEvalMonitor create_serial_evaluator",
    "collector.interaction_serial_evaluator": "InteractionSerialEvaluator",
    "collector.battle_interaction_serial_evaluator": "BattleInteractionSerialEvaluator",
    "collector.metric_serial_evaluator": "IMetric MetricSerialEvaluator",
    "collector.base_serial_collector": """ISerialCollector create_serial_collector CachePool
        TrajBuffer get_serial_collector_cls to_tensor_transitions""",
    "collector.sample_serial_collector": "SampleSerialCollector",
    "collector.episode_serial_collector": "EpisodeSerialCollector",
    "collector.battle_sample_serial_collector": "BattleSampleSerialCollector",
    "collector.battle_episode_serial_collector": "BattleEpisodeSerialCollector",
    "collector.zergling_parallel_collector": "ZerglingParallelCollector",
    "collector.comm.base_comm_collector": "BaseCommCollector create_comm_collector",
    "collector.comm.mpi_fs_collector": "MPIFileSystemCollector",
    "collector.comm.slave": "CollectorSlave",
    "collector.comm.utils": "NaiveCollector",
    "collector.comm.flask_fs_collector": "FlaskFileSystemCollector CollectorSlave",
    "collector.marine_parallel_collector": "MarineParallelCollector",
    "coordinator.comm_coordinator": "CommCoordinator",
    "coordinator.one_vs_one_parallel_commander": "OneVsOneCommander",
    "coordinator.operator_server": "OperatorServer",
    "learner.comm.flask_fs_learner": """FlaskFileSystemLearner LearnerSlave SendPolicyHook
        SendLearnInfoHook""",
    "learner.comm.utils": "NaiveLearner",
    "replay_buffer.utils": """UsedDataRemover generate_id SampledDataAttrMonitor
        PeriodicThruputMonitor ThruputController""",
    "learner.base_learner": "BaseLearner create_learner TickMonitor get_simple_monitor_type",
    "learner.learner_hook": """Hook LearnerHook hook_mapping simplified_hook_mapping show_hooks
        LoadCkptHook SaveCkptHook LogShowHook LogReduceHook find_char register_learner_hook
        add_learner_hook merge_hooks build_learner_hook_by_cfg""",
    "learner.comm": "BaseCommLearner LearnerSlave MPIFileSystemLearner create_comm_learner",
    "learner.comm.base_comm_learner": "BaseCommLearner create_comm_learner",
    "replay_buffer.base_buffer": "IBuffer create_buffer get_buffer_cls",
    "replay_buffer.advanced_buffer": "AdvancedReplayBuffer to_positive_index",
    "replay_buffer.elastic_buffer": "ElasticReplayBuffer",
    "replay_buffer.episode_buffer": "EpisodeReplayBuffer",
    "replay_buffer.naive_buffer": """NaiveReplayBuffer ElasticReplayBuffer
        SequenceReplayBuffer""",
    "replay_buffer.sequence_buffer": "SequenceReplayBuffer",
}
"""Deep paths below ``hpcdi.worker``: every public name that a module of ``ding.worker`` defines."""

LEFT_OUT: dict[str, str] = {
    **{
        f"BaseParallelCollector.{name}": "the rank has them; a collector has none of its own"
        for name in ("_join_thread", "_start_thread", "_setup_logger", "_setup_timer")
    },
    "collector.base_parallel_collector:TickMonitor": "a learner has one; the rank's meter has ours",
}
"""Name -> why there is nothing of that name here."""


def expected_names() -> set[str]:
    """Every name that the tables know: X, X.member, X.default_config.key, REGISTRY.type, path:X."""
    names = {*CLASSES, *FUNCTIONS}
    names |= {f"{cls}.{member.rstrip('=')}" for cls in CLASSES for member, _ in members(cls)}
    names |= {f"{cls}.default_config.{key}" for cls, keys in DEFAULTS.items() for key in keys}
    names |= {f"{path}:{name}" for path, text in MODULES.items() for name in text.split()}
    return names | {f"{kind}.{name}" for kind, text in TYPES.items() for name in text.split()}


def members(cls: str) -> list[tuple[str, str | None]]:
    """Members of a class, each with its parameters; None: it is not called."""
    found = []
    for line in CLASSES[cls].split(";"):
        name, bracket, parameters = " ".join(line.split()).partition("(")
        found.append((name.strip(), parameters.removesuffix(")") if bracket else None))
    return found


def is_built(name: str) -> bool:
    """Whether a name of the tables exists."""
    path, colon, attribute = name.partition(":")
    if colon:
        return hasattr(importlib.import_module(f"hpcdi.worker.{path}"), attribute)
    owner, _, member = name.partition(".")
    if owner in TYPES:
        return member in getattr(registry, owner)
    cls = getattr(hpcdi.worker, owner, None)
    if member.startswith("default_config."):
        return cls is not None and member.partition(".")[2] in cls.default_config()
    if cls is None or not member:
        return cls is not None
    if is_attribute(cls, member):
        return True
    # what every object has does not count
    return getattr(cls, member, None) is not getattr(object, member, None)


def is_attribute(cls: type, name: str) -> bool:
    """Whether a class declares an instance attribute, which anybody may set."""
    return any(name in inspect.get_annotations(base) for base in cls.__mro__)


def mismatches(name: str, expected: str, function: Any) -> list[str]:
    """Expected parameters that are not there, in their places, with their defaults."""
    wanted = inspect.signature(eval(f"lambda {expected}: None")).parameters
    given = dict(inspect.signature(function).parameters)
    given.pop("self", None)
    positional = [p.name for p in given.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    first = [p.name for p in wanted.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    found = []
    if positional[: len(first)] != first:
        found.append(f"{name}: takes {positional}, should begin with {first}")
    for key, parameter in wanted.items():
        if key not in given or given[key].kind is not parameter.kind:
            found.append(f"{name}: {key} is {given.get(key)}, should be {parameter.kind}")
        elif parameter.default is not parameter.empty and given[key].default != parameter.default:
            found.append(f"{name}: {given[key]} should be {parameter}")
    for key in given.keys() - wanted.keys():
        added = given[key]
        if added.default is added.empty and added.kind is not added.VAR_KEYWORD:
            found.append(f"{name}: {key} was added and has no default")
    return found


def member_mismatches(cls: str, member: str, parameters: str | None) -> list[str]:
    """The same of a member; an attribute is not called, and can be set where it should be."""
    name = f"{cls}.{member.rstrip('=')}"
    if is_attribute(getattr(hpcdi.worker, cls), member.rstrip("=")):
        return [] if parameters is None else [f"{name}: is not called"]
    found = inspect.getattr_static(getattr(hpcdi.worker, cls), member.rstrip("="))
    if parameters is None:
        if callable(found):
            return [f"{name}: is called"]
        can_be_set = not member.endswith("=") or found.fset is not None
        return [] if can_be_set else [f"{name}: cannot be set"]
    if parameters == "...":
        return []
    return mismatches(name, parameters, getattr(getattr(hpcdi.worker, cls), member))


BUILT = sorted(
    name for name in expected_names() if not {name, name.partition(".")[0]} & LEFT_OUT.keys()
)


def test_what_is_built_is_there() -> None:
    assert [name for name in BUILT if not is_built(name)] == []


def test_nothing_is_listed_as_missing_that_is_there() -> None:
    """Or that nobody expects. Whoever builds a name takes it off the list."""
    assert [name for name in LEFT_OUT if is_built(name)] == []
    assert LEFT_OUT.keys() - expected_names() == set()


def test_functions_take_what_they_took() -> None:
    names = [name for name in FUNCTIONS if name in BUILT]
    assert len(names) > 10
    wrong = [
        line
        for name in names
        for line in mismatches(name, FUNCTIONS[name], getattr(hpcdi.worker, name))
    ]
    assert not wrong, "\n".join(wrong)


def test_members_are_what_they_were() -> None:
    expected = [
        (cls, member, parameters)
        for cls in CLASSES
        for member, parameters in members(cls)
        if f"{cls}.{member.rstrip('=')}" in BUILT
    ]
    assert len(expected) > 200
    wrong = [line for each in expected for line in member_mismatches(*each)]
    assert not wrong, "\n".join(wrong)


def test_defaults_are_what_they_were() -> None:
    wrong = []
    for cls, defaults in DEFAULTS.items():
        config = getattr(hpcdi.worker, cls).default_config()
        if config.cfg_type != f"{cls}Dict":
            wrong.append(f"{cls}: cfg_type is {config.cfg_type}")
        for key, value in defaults.items():
            is_there = f"{cls}.default_config.{key}" in BUILT
            if is_there and value is not ... and config[key] != value:
                wrong.append(f"{cls}: {key} is {config[key]!r}, should be {value!r}")
    assert not wrong, "\n".join(wrong)


def test_file_system_workers_in_a_run_speak_mpi() -> None:
    """In a program of the caller's own they are what the seeds say, see test_seeds.py."""
    worker = hpcdi.worker
    assert issubclass(worker.MPIFileSystemCollector, worker.BaseCommCollector)
    assert issubclass(worker.MPIFileSystemLearner, worker.BaseCommLearner)
    assert registry.COMM_COLLECTOR_REGISTRY.get("flask_fs") is worker.MPIFileSystemCollector
    assert registry.COMM_LEARNER_REGISTRY.get("flask_fs") is worker.MPIFileSystemLearner


def test_exports() -> None:
    assert len(set(hpcdi.worker.__all__)) == len(hpcdi.worker.__all__)
    assert all(hasattr(hpcdi.worker, name) for name in hpcdi.worker.__all__)
    assert set(BUILT) & {*CLASSES, *FUNCTIONS} <= set(hpcdi.worker.__all__)
