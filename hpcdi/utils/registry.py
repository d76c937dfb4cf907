"""Registries: the `type` of a configuration -> the class that implements it, and its settings.

Tables here name the built-in types, so that neither torch nor an environment's library is imported
before a component is made; only its settings are, from `hpcdi.config`. A class of yours registers
its type names with a decorator::

    @POLICY_REGISTRY.register("my_a2c")
    class A2CPolicy: ...

and is found through ``import_names``, which names its module beside the ``type``.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hpcdi.errors import ConfigError, Problem, UnknownTypeError

T = TypeVar("T", bound=type)


class BuiltIn(NamedTuple):
    """Where to import a built-in type from, as ``module:Name``.

    Attributes:
        component: its class.
        settings: class of its settings; empty: the component's attribute `Config`.
        core: the part of it that is enough for a run, imported without the rest: of a policy its
            acting half, without torch; of a commander the run's, without DI-engine's methods;
            empty: it has none.
    """

    component: str
    settings: str = ""
    core: str = ""


class Registry:
    """Type names -> classes, for one kind of component.

    Args:
        kind: name of the kind in messages.
        built_in: the built-in types.
    """

    def __init__(self, kind: str, built_in: Mapping[str, BuiltIn] | None = None) -> None:
        self.kind = kind
        self._built_in = built_in or {}
        self._classes: dict[str, type] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Decorator that registers a class; re-importing the same class replaces it.

        Raises:
            ValueError: another class has one of these names.
        """

        def add(cls: T) -> T:
            path = _path_of(cls)
            for name in names:
                owner = path
                if name in self._classes:
                    owner = _path_of(self._classes[name])
                elif name in self._built_in:
                    owner = self._built_in[name].component
                if owner != path:
                    raise ValueError(
                        f"{self.kind} type {name!r} is already {owner.replace(':', '.')}"
                    )
                self._classes[name] = cls
            return cls

        return add

    def get(self, name: object) -> Any:
        """Returns the class of a type name.

        Args:
            name: as registered, or ``my_module:Class``.

        Raises:
            UnknownTypeError: no class is registered as `name`; suggests the nearest name.
            ConfigError: there is no such module, or no such class in it.
        """
        if isinstance(name, str):
            if name in self._classes:
                return self._classes[name]
            if name in self._built_in:
                return load_object(self._built_in[name].component)
            if ":" in name:
                return named_in_module(name, "type")
        raise UnknownTypeError(self.explain(name))

    def settings(self, name: object) -> Any:
        """Returns the class of a type's settings; of a built-in type without importing the type.

        Raises:
            UnknownTypeError: no class is registered as `name`; suggests the nearest name.
        """
        settings = self.settings_apart(name)
        return settings if settings is not None else self.get(name).Config

    def settings_apart(self, name: object) -> Any:
        """Returns the class of a built-in type's settings, imported without the type.

        None if that is impossible: the type's attribute `Config` has them.
        """
        built_in = self._built_in.get(name) if isinstance(name, str) else None
        return load_object(built_in.settings) if built_in and built_in.settings else None

    def core(self, name: object) -> Any:
        """Returns the class of a built-in type's core, see `BuiltIn`; None: it has none."""
        if name in self._classes or not isinstance(name, str) or name not in self._built_in:
            return None
        core = self._built_in[name].core
        return load_object(core) if core else None

    def is_built_in(self, name: object) -> bool:
        """Returns whether a type is hpcdi's own."""
        return name in self._built_in

    def explain(self, name: object) -> str:
        """Returns the message for an unknown `name`, with the nearest known one."""
        known = list(self)
        near = [
            match for text in (str(name), str(name).lower())
            for match in difflib.get_close_matches(text, known, n=1)
        ]  # fmt: skip
        guess = f"; did you mean {near[0]!r}?" if near else ""
        # without those in DI-engine's spelling
        names = ", ".join(sorted(n for n in known if not n.endswith("_command"))) or "none"
        return (
            f"no {self.kind} of type {name!r} is registered{guess} (known: {names}; "
            "a type of your own needs its module in import_names)"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._classes or name in self._built_in

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._built_in, *self._classes]))


def _path_of(cls: type) -> str:
    """Returns ``module:Name`` of a class; of one in the script, as other processes import it."""
    module = cls.__module__
    if module == "__main__":
        script = sys.modules[module]
        spec, file = (getattr(script, name, None) for name in ("__spec__", "__file__"))
        module = spec.name if spec is not None else Path(file).stem if file else module
    return f"{module}:{cls.__qualname__}"


def load_object(path: str) -> Any:
    """Imports an object of a module, ``module:Name``."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _algorithm(module: str, prefix: str, acting: str = "") -> BuiltIn:
    return BuiltIn(
        f"hpcdi.policy.{module}:{prefix}Policy",
        f"hpcdi.config.algorithms:{prefix}Config",
        f"hpcdi.policy.acting.{acting}" if acting else "",
    )


_ALGORITHMS = {
    "dqn": _algorithm("dqn", "DQN", "dqn:DenseDQN"),
    "c51": _algorithm("c51", "C51", "dqn:DenseC51"),
    "qrdqn": _algorithm("qrdqn", "QRDQN", "dqn:DenseQRDQN"),
    "r2d2": _algorithm("r2d2", "R2D2"),
    "sac": _algorithm("sac", "SAC", "boxes:DenseSAC"),
    "tqc": _algorithm("tqc", "TQC", "boxes:DenseSAC"),
    "discrete_sac": _algorithm("discrete_sac", "DiscreteSAC", "discrete_sac:DenseDiscreteSAC"),
    "td3": _algorithm("td3", "TD3", "boxes:DenseTD3"),
    "cql": _algorithm("cql", "CQL", "boxes:DenseSAC"),
    "discrete_cql": _algorithm("cql", "DiscreteCQL", "dqn:DenseDQN"),
    "iql": _algorithm("iql", "IQL", "boxes:DenseIQL"),
    "bc": _algorithm("bc", "BC", "bc:DenseBC"),
    "ppo": _algorithm("ppo", "PPO", "actor_critic:DensePPO"),
    "impala": _algorithm("impala", "IMPALA", "actor_critic:DenseIMPALA"),
    "vdn": _algorithm("mixing", "VDN", "dqn:DenseVDN"),
    "qmix": _algorithm("mixing", "QMIX", "dqn:DenseVDN"),
}
POLICY_REGISTRY = Registry(
    "policy",
    {
        **_ALGORITHMS,
        # DI-engine's names for what rank 0 makes
        **{f"{name}_command": built_in for name, built_in in _ALGORITHMS.items()},
        "team": BuiltIn("hpcdi.policy.team:TeamPolicy", "hpcdi.config.team:TeamConfig"),
        "ding": BuiltIn("hpcdi.worker.ding.policy:DingPolicy"),
    },
)
_GYMNASIUM = BuiltIn("hpcdi.env.gymnasium:GymnasiumEnv", "hpcdi.config.env:GymnasiumConfig")
ENV_REGISTRY = Registry(
    "environment",
    {
        "gymnasium": _GYMNASIUM,
        "gym": _GYMNASIUM,
        "envpool": BuiltIn("hpcdi.env.envpool:EnvPoolEnv", "hpcdi.config.env:EnvPoolConfig"),
        "pettingzoo": BuiltIn(
            "hpcdi.env.pettingzoo:PettingZooEnv", "hpcdi.config.env:PettingZooConfig"
        ),
        "team": BuiltIn("hpcdi.env.team:TeamEnv", "hpcdi.config.env:TeamEnvConfig"),
        "mpi": BuiltIn("hpcdi.env.mpi.environment:MpiEnv", "hpcdi.config.mpi_env:MpiEnvConfig"),
        "ding": BuiltIn("hpcdi.worker.ding.env:DingEnv"),
    },
)
_IN_PROCESS = BuiltIn("hpcdi.env.create:BaseEnvManager", "hpcdi.config.env:ManagerConfig")
ENV_MANAGER_REGISTRY = Registry(
    "environment manager",
    {
        "base": _IN_PROCESS,
        "gym": _IN_PROCESS,
        "subprocess": BuiltIn(
            "hpcdi.env.create:SubprocessEnvManager", "hpcdi.config.env:ChildConfig"
        ),
        "mpi": BuiltIn(
            "hpcdi.env.mpi.manager:SolverEnvManager", "hpcdi.config.mpi_env:SolverManagerConfig"
        ),
    },
)
BUFFER_REGISTRY = Registry(
    "replay buffer",
    {
        "advanced": BuiltIn(
            "hpcdi.worker.replay_buffer.advanced_buffer:AdvancedReplayBuffer",
            "hpcdi.config.replay:AdvancedBufferConfig",
        ),
        "deque": BuiltIn(
            "hpcdi.worker.replay_buffer.advanced_buffer:DequeReplayBuffer",
            "hpcdi.config.replay:DequeBufferConfig",
        ),
        "naive": BuiltIn("hpcdi.worker.replay_buffer.naive_buffer:NaiveReplayBuffer"),
        "elastic": BuiltIn("hpcdi.worker.replay_buffer.naive_buffer:ElasticReplayBuffer"),
        "sequence": BuiltIn("hpcdi.worker.replay_buffer.naive_buffer:SequenceReplayBuffer"),
        "episode": BuiltIn("hpcdi.worker.replay_buffer.episode_buffer:EpisodeReplayBuffer"),
    },
)
LEARNER_REGISTRY = Registry(
    "learner",
    {
        "base": BuiltIn(
            "hpcdi.worker.learner.base_learner:BaseLearner", "hpcdi.config.roles:LearnerConfig"
        )
    },
)
HOOK_REGISTRY = Registry(
    "learner hook",
    {
        name: BuiltIn(f"hpcdi.worker.learner.learner_hook:{cls}Hook")
        for name, cls in {
            "log_policy": "LogPolicy",
            "log_reduce": "LogReduce",
            "log_show": "LogShow",
            "send_policy": "SendPolicy",
            "send_learn_info": "SendLearnInfo",
            "load_ckpt": "LoadCkpt",
            "save_ckpt": "SaveCkpt",
            "profiler": "Profiler",
        }.items()
    },
)
_COMM_LEARNER = BuiltIn(
    "hpcdi.worker.learner.comm.mpi_fs_learner:MPIFileSystemLearner",
    "hpcdi.config.roles:CommConfig",
)
COMM_LEARNER_REGISTRY = Registry(
    "comm learner", {"mpi_fs": _COMM_LEARNER, "flask_fs": _COMM_LEARNER}
)
_COMM_COLLECTOR = BuiltIn(
    "hpcdi.roles.collector.mpi_fs_collector:MPIFileSystemCollector",
    "hpcdi.config.roles:CommConfig",
)
COMM_COLLECTOR_REGISTRY = Registry(
    "comm collector", {"mpi_fs": _COMM_COLLECTOR, "flask_fs": _COMM_COLLECTOR}
)
PARALLEL_COLLECTOR_REGISTRY = Registry(
    "parallel collector",
    {
        "zergling": BuiltIn(
            "hpcdi.roles.collector.base_parallel_collector:ZerglingParallelCollector",
            "hpcdi.config.roles:ZerglingCollectorConfig",
        ),
        "marine": BuiltIn(
            "hpcdi.roles.collector.base_parallel_collector:ZerglingParallelCollector",
            "hpcdi.config.roles:MarineCollectorConfig",
        ),
    },
)
_RUNS_COMMANDER = "hpcdi.roles.coordinator.commander:Commander"
PARALLEL_COMMANDER_REGISTRY = Registry(
    "parallel commander",
    {
        "solo": BuiltIn(
            "hpcdi.worker.coordinator.commanders:SoloCommander",
            "hpcdi.config.roles:SoloCommanderConfig",
            _RUNS_COMMANDER,
        ),
        "naive": BuiltIn(
            "hpcdi.worker.coordinator.commanders:NaiveCommander",
            "hpcdi.config.roles:NaiveCommanderConfig",
        ),
        "one_vs_one": BuiltIn(
            "hpcdi.worker.coordinator.commanders:OneVsOneCommander",
            "hpcdi.config.league:OneVsOneCommanderConfig",
            _RUNS_COMMANDER,
        ),
    },
)
_SERIAL_COLLECTORS = "hpcdi.worker.collector.serial_collectors"
SERIAL_COLLECTOR_REGISTRY = Registry(
    "serial collector",
    {
        "sample": BuiltIn(
            f"{_SERIAL_COLLECTORS}:SampleSerialCollector",
            "hpcdi.config.roles:SampleCollectorConfig",
        ),
        "sample_1v1": BuiltIn(
            f"{_SERIAL_COLLECTORS}:BattleSampleSerialCollector",
            "hpcdi.config.roles:BattleSampleCollectorConfig",
        ),
        "episode": BuiltIn(f"{_SERIAL_COLLECTORS}:EpisodeSerialCollector"),
        "episode_1v1": BuiltIn(f"{_SERIAL_COLLECTORS}:BattleEpisodeSerialCollector"),
    },
)
_EVALUATION = "hpcdi.worker.collector.evaluation"
SERIAL_EVALUATOR_REGISTRY = Registry(
    "serial evaluator",
    {
        "interaction": BuiltIn(
            f"{_EVALUATION}:InteractionSerialEvaluator",
            "hpcdi.config.roles:InteractionEvaluatorConfig",
        ),
        "battle_interaction": BuiltIn(
            f"{_EVALUATION}:BattleInteractionSerialEvaluator",
            "hpcdi.config.roles:BattleEvaluatorConfig",
        ),
        "metric": BuiltIn("hpcdi.worker.collector.metric_serial_evaluator:MetricSerialEvaluator"),
    },
)


def import_module(names: str | Iterable[object]) -> None:
    """Import modules for the classes that they register.

    Raises:
        ConfigError: modules, or what they import, are not installed; names all of them.
    """
    problems = []
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            problems.append(Problem("import_names", f"{name!r} is not the name of a module"))
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            problems.append(Problem("import_names", missing_module(name, error)))
        except Exception as error:
            # a library is missing: of the system's, or what gymnasium has an error of its own for
            is_missing = isinstance(error, ImportError | OSError)
            if not is_missing and type(error).__name__ != "DependencyNotInstalled":
                raise
            problems.append(Problem("import_names", f"importing {name!r} {raised(error)}"))
    if problems:
        raise ConfigError(problems)


def named_in_module(name: str, path: str) -> Any:
    """Returns what ``module:name`` names.

    Args:
        name: the module, a colon, and a name in it.
        path: of the setting, for the message.

    Raises:
        ConfigError: there is no such module, it raises an error, or there is nothing of that name
            in it: says what there is.
    """
    module_name, _, attribute = name.rpartition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        stem = module_name.removesuffix(".py").strip("./").replace("/", ".")
        message = f"{name!r} begins with no name of a module; did you mean '{stem}:{attribute}'?"
        raise ConfigError([Problem(path, f"{message} Put the module's folder on PYTHONPATH")])
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError([Problem(path, missing_module(module_name, error))]) from error
    except Exception as error:  # whatever a module of the user's raises
        raise ConfigError([Problem(path, f"importing {module_name!r} {raised(error)}")]) from error
    if hasattr(module, attribute):
        return getattr(module, attribute)
    defined = [
        key
        for key, value in vars(module).items()
        if str(getattr(value, "__module__", "")).startswith(module_name) and key[0] != "_"
    ]
    near = difflib.get_close_matches(attribute, defined, n=1)
    guess = f"; did you mean '{module_name}:{near[0]}'?" if near else "."
    names = f" It has {', '.join(defined)}" if defined else " It defines nothing"
    raise ConfigError([Problem(path, f"module {module_name!r} has no {attribute!r}{guess}{names}")])


def raised(error: Exception) -> str:
    """Returns what was raised, and where, for a message."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"raises {error!r} in {at.filename}:{at.lineno}"


def missing_module(wanted: str, error: ModuleNotFoundError) -> str:
    """Returns the message for a module that cannot be imported: which one, and what to do."""
    missing = error.name or wanted
    needed = "" if missing == wanted else f" (needed by {wanted!r})"
    return (
        f"there is no module {missing!r}{needed}; install it into this environment, "
        "or put its folder on PYTHONPATH"
    )
