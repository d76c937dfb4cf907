"""Gymnasium's environments, by their id, and classes of your own, as ``module:Class``."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from hpcdi.config.env import EnvConfig, GymnasiumConfig
from hpcdi.env.arguments import is_numbered, make_numbered, numbered
from hpcdi.env.base import EnvFailure, EnvType
from hpcdi.env.contract import objection_to
from hpcdi.env.old_gym import as_gymnasium, made_by, parameters_of
from hpcdi.env.wrappers import ActionMasks, Checked, without_reward_wrappers, wrap
from hpcdi.errors import ConfigError, EnvError, Problem
from hpcdi.utils.answers import answer_of
from hpcdi.utils.log import LOGGER
from hpcdi.utils.registry import import_module, missing_module, named_in_module


class GymnasiumEnv(EnvType):
    """Makes gymnasium's environments, single ones and vectors of them; never instantiated."""

    Config = GymnasiumConfig

    @classmethod
    def for_evaluation(cls, cfg: GymnasiumConfig) -> GymnasiumConfig:
        """Returns the settings of an evaluation: without wrappers that only change rewards."""
        kept = without_reward_wrappers(cfg.wrappers)
        return cfg if kept == cfg.wrappers else dataclasses.replace(cfg, wrappers=kept)

    @classmethod
    def has_vector(cls, cfg: GymnasiumConfig) -> bool:
        """Decides whether to step a vector environment, and not single ones.

        Raises:
            ConfigError: gymnasium does not know the id, or a package that it needs is missing.
        """
        if cfg.vectorization != "auto":
            if is_numbered(cfg.kwargs):
                message = "must be 'auto' where env.kwargs have '{index}': each is made by itself"
                raise ConfigError([Problem("env.vectorization", message)])
            return True
        if cfg.wrappers or cfg.action_mask or is_numbered(cfg.kwargs):
            return False
        with _config_errors(cfg.env_id):
            spec = _spec_of(cfg.env_id)  # vectors do without its wrappers
            return spec.vector_entry_point is not None and not spec.additional_wrappers

    @classmethod
    def has_single(cls, cfg: GymnasiumConfig) -> bool:
        """Decides whether there are single environments, and not vectors alone."""
        with _config_errors(cfg.env_id):
            return _spec_of(cfg.env_id).entry_point is not None

    @classmethod
    def make_single(cls, cfg: GymnasiumConfig) -> Any:
        """Returns one environment.

        Raises:
            ConfigError: gymnasium does not know the id, or a package that it needs is missing.
        """
        import_module(cfg.import_names)  # again in a child process
        with _config_errors(cfg.env_id):
            spec, kwargs = _called(cfg)
            # values are checked where they are copied, those of all kinds of environments
            env = gymnasium.make(spec, **{"disable_env_checker": True, **kwargs})
        return cls._wrapped(cfg, env)

    @classmethod
    def make_vector(cls, cfg: GymnasiumConfig, env_num: int) -> VectorEnv[Any, Any, Any]:
        """Returns a vector environment of `env_num` copies.

        An environment's own form that cannot be stepped, or made by these arguments, or that has
        other spaces, is left for single ones together (sync), unless it is asked for.

        Raises:
            ConfigError: gymnasium does not know the id, or a package that it needs is missing; or
                the environment's own form cannot be stepped, and must be.
        """
        is_free = cfg.vectorization == "auto" and cls.has_single(cfg)
        try:
            env = cls._made_together(cfg, env_num)
        except ConfigError as error:
            if not is_free:
                raise
            wrong = error.problems[0].message
        else:
            wrong = objection_to(env, env_num) or (cls._difference(cfg, env) if is_free else "")
            if not wrong:
                return env
            with contextlib.suppress(Exception):  # it is not wanted any more
                env.close()
            if not is_free:
                wrong += "; set it to sync, for single ones" * cls.has_single(cfg)
                raise ConfigError([Problem("env.vectorization", wrong)])
        singles = cls._made_together(dataclasses.replace(cfg, vectorization="sync"), env_num)
        LOGGER.info("%s; single ones are taken (env.vectorization: sync)", wrong)
        return singles

    @classmethod
    def _difference(cls, cfg: GymnasiumConfig, env: VectorEnv[Any, Any, Any]) -> str:
        """Returns by which space a vector is of another environment than single ones; "": by none.

        So Atari's preprocesses pictures and clips rewards, and the one of its id does not.
        """
        try:
            single = cls.make_single(cfg)
        except Exception:  # whatever it raises: the vector is what there is
            return ""
        try:
            for kind in ("observation", "action"):
                of_vector = getattr(env, f"single_{kind}_space")
                of_single = getattr(single, f"{kind}_space")
                if of_vector != of_single:
                    return (
                        f"the vector form of {cfg.env_id!r} is another environment: its {kind}s "
                        f"are {of_vector}, and those of a single one {of_single}"
                    )
        finally:
            with contextlib.suppress(Exception):  # nor is this one
                single.close()
        return ""

    @classmethod
    def _made_together(cls, cfg: GymnasiumConfig, env_num: int) -> VectorEnv[Any, Any, Any]:
        """Returns a vector environment, whether or not it can be stepped."""
        if cfg.vectorization == "sync":
            first = numbered("{index}")
            makes = [
                partial(make_numbered, partial(cls._checked, cfg, row), first + row)
                for row in range(env_num)
            ]
            autoreset = AutoresetMode[(cfg.autoreset or "next_step").upper()]
            return SyncVectorEnv(makes, autoreset_mode=autoreset)
        mode = None if cfg.vectorization == "auto" else cfg.vectorization
        with _config_errors(cfg.env_id):
            spec, kwargs = _called(cfg)
            return gymnasium.make_vec(spec, num_envs=env_num, vectorization_mode=mode, **kwargs)

    @classmethod
    def _checked(cls, cfg: GymnasiumConfig, row: int) -> Any:
        return Checked(cls.make_single(cfg), row)

    @classmethod
    def _wrapped(cls, cfg: GymnasiumConfig, env: object) -> Any:
        env = wrap(as_gymnasium(env), numbered(cfg.wrappers))
        if not cfg.action_mask:
            return env
        try:
            return ActionMasks(env, cfg.action_mask)
        except EnvError as error:
            raise ConfigError([Problem("env.action_mask", str(error))]) from error


def reward_threshold(env_id: str) -> float | None:
    """Returns the mean return at which its makers call an environment solved; None: they do not."""
    with contextlib.suppress(gymnasium.error.Error, ModuleNotFoundError):  # who makes it says so
        return gymnasium.spec(env_id).reward_threshold
    return None


_OF_MAKE = ("id", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
"""Names of arguments of `gymnasium.make` and `make_vec`, which an environment may have, too."""
_LIMIT = "max_episode_steps"
_IMPORTS_S = 300.0
"""Seconds that a fresh interpreter has to import modules."""


def _called(cfg: GymnasiumConfig) -> tuple[EnvSpec | str, dict[str, Any]]:
    """Returns what gymnasium makes, and the keyword arguments for it."""
    spec, given = _class_spec(cfg.env_id), numbered(cfg.kwargs)
    kwargs = {name: value for name, value in given.items() if name not in _OF_MAKE}
    others = {name: given[name] for name in given.keys() - kwargs.keys()}
    if not others and _LIMIT not in given:
        return spec or cfg.env_id, kwargs
    spec = copy.deepcopy(spec or _spec_of(cfg.env_id))
    entry: Any = spec.entry_point
    entry = load_env_creator(entry) if isinstance(entry, str) else entry
    called = entry.args[0] if isinstance(entry, partial) and entry.func is made_by else entry
    if _LIMIT in given and _LIMIT in (parameters_of(called) or ()):
        others[_LIMIT] = given[_LIMIT]  # gymnasium keeps to it, and does not tell the environment
    if not others:
        return spec, kwargs
    spec.entry_point = partial(entry, **others)
    return spec, kwargs


def registered_spec(cfg: EnvConfig) -> EnvSpec | None:
    """Returns the spec by which gymnasium makes the same environment without arguments.

    None: it cannot make it so.
    """
    if not isinstance(cfg, GymnasiumConfig) or cfg.wrappers or ":" in cfg.env_id:
        return None
    with contextlib.suppress(Exception):  # of vectors alone, or arguments that no text can say
        spec, kwargs = _called(cfg)
        spec = gymnasium.spec(spec) if isinstance(spec, str) else spec
        limit = kwargs.pop(_LIMIT, None) or spec.max_episode_steps
        spec = dataclasses.replace(
            spec, kwargs={**spec.kwargs, **kwargs}, max_episode_steps=None if limit == -1 else limit
        )
        spec.to_json()
        gymnasium.make(spec).close()
        return spec
    return None


def entry_of(env_id: str) -> tuple[str, str] | None:
    """Returns the module and the name of what makes the environments of an id; None: no such id."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old versions: who makes one says so
            spec = gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError):
        return None
    entry: Any = spec.vector_entry_point if spec.entry_point is None else spec.entry_point
    while isinstance(entry, partial):
        entry = entry.func
    if isinstance(entry, str):
        module, _, name = entry.partition(":")
        return module, name
    return getattr(entry, "__module__", ""), getattr(entry, "__name__", "")


def _settings_of_gym(env_id: str) -> dict[str, Any] | None:
    """Returns the settings by which an id of gym's is made by its class; None: no such id.

    Gym is not imported: who registers an id has done so.
    """
    registry: Any = getattr(sys.modules.get("gym.envs.registration"), "registry", {})
    spec = getattr(registry, "env_specs", registry).get(env_id)  # before gym 0.26 it is no dict
    entry = getattr(spec, "entry_point", None)
    if entry is None:
        return None
    name = getattr(entry, "__qualname__", "")
    if not (isinstance(entry, str) or name.isidentifier()):  # made by none that a name leads to
        return None
    named = entry if isinstance(entry, str) else f"{entry.__module__}:{name}"
    kwargs = dict(getattr(spec, "kwargs", None) or getattr(spec, "_kwargs", None) or {})
    if (limit := getattr(spec, _LIMIT, None)) is not None:
        kwargs[_LIMIT] = limit
    return {"env_id": named, **({"kwargs": kwargs} if kwargs else {})}


_KNOWS = """
import importlib, json, sys
env_id, imported, tried, folders = json.loads(sys.argv[1])
sys.path += folders
import gymnasium

def imports(name):
    try:
        importlib.import_module(name)
    except (Exception, SystemExit):
        pass

def knows():
    try:
        return bool(gymnasium.spec(env_id))
    except (gymnasium.error.Error, ImportError):
        return False

for name in imported:
    imports(name)
for number, name in enumerate([None, *tried], -1):
    if name is not None:
        imports(name)
    if knows():
        print("\\nhpcdi:", number)
        break
else:
    print("\\nhpcdi: none")
"""


def first_that_registers(
    env_id: str, imported: Sequence[str], tried: Sequence[str], folders: Sequence[str]
) -> int | None:
    """Returns which module registers an id, as a fresh interpreter sees it that imports them.

    Args:
        env_id: the id.
        imported: modules that it imports first.
        tried: modules that it imports then, one after the other.
        folders: that it looks for modules in, after all that are installed.

    Returns:
        Its number among `tried`; -1: there is no need of one; None: there is none.
    """
    given = json.dumps([env_id, [*imported], [*tried], [*folders]])
    answer = answer_of(sys.executable, "-P", "-c", _KNOWS, given, limit_s=_IMPORTS_S)
    for line in answer.out.splitlines():
        if line.startswith("hpcdi: "):
            said = line.removeprefix("hpcdi: ")
            return None if said == "none" else int(said)
    return -1  # it cannot say: it has not come to its end


def _spec_of(env_id: str) -> EnvSpec:
    """Returns the specification of an id, or of ``module:Class``."""
    return _class_spec(env_id) or gymnasium.spec(env_id.rpartition(":")[2])


def _class_spec(env_id: str) -> EnvSpec | None:
    """Returns the specification of ``module:Class``, None for an id; imports its module."""
    module, _, name = env_id.rpartition(":")
    if not module:
        return None
    if name.isidentifier():  # an id has a version: -v0
        named_in_module(env_id, "env.env_id")
    if name.isidentifier() or hasattr(importlib.import_module(module), name):
        found = load_env_creator(env_id)
        return EnvSpec(f"{name}-v0", entry_point=partial(made_by, found))
    return None


@contextlib.contextmanager
def _config_errors(env_id: str) -> Iterator[None]:
    """Turn errors of making an environment into a ConfigError of the setting that is wrong."""
    try:
        with errors_of_making(env_id):
            yield
    except gymnasium.error.Error as error:
        raise cannot_make(env_id, str(error)) from error
    except ModuleNotFoundError as error:
        wanted = env_id.partition(":")[0]  # "module:id" has gymnasium import the module
        raise cannot_make(env_id, missing_module(wanted, error)) from error


@contextlib.contextmanager
def errors_of_making(env_id: str) -> Iterator[None]:
    """Turn errors of an environment's call into one of its arguments, or of its own code."""
    try:
        yield
    except TypeError as error:
        if (place := place_within(error)) is None:
            raise ConfigError([Problem("env.kwargs", str(error))]) from error
        raise failed_in_making(env_id, error, place) from error
    except SystemExit as error:
        raise failed_in_making(env_id, error, place_within(error)) from error


def place_within(error: BaseException) -> str | None:
    """Returns the file and line in which an environment's code raised; None: its call did."""
    trace, place = _raised_first(error).__traceback__, None
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if module not in ("gymnasium", "pettingzoo", "hpcdi", "importlib"):
            place = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def failed_in_making(env_id: str, error: BaseException, place: str | None) -> EnvError:
    """Returns the error of an environment whose own code fails when it is made."""
    cause = EnvFailure.of(_raised_first(error)).cause
    where = f" ({place})" if place else ""
    return EnvError(f"{env_id!r} cannot be made: {cause}{where}")


def _raised_first(error: BaseException) -> BaseException:
    """Returns an error as it was raised: gymnasium raises some again, with words of its own."""
    first = error.__context__
    return first if first is not None and type(first) is type(error) else error


_PACKAGES = {
    "ale_py": (r"(ale_py:)?ALE/|.*NoFrameskip|.*-ram", "'hpcdi[atari]'"),
    "minigrid": (r"(minigrid:)?(MiniGrid|BabyAI)-", "minigrid"),
    "gymnasium_robotics": (
        r"Fetch|Hand|Adroit|AntMaze|PointMaze|FrankaKitchen",
        "gymnasium-robotics",
    ),
    "highway_env": (r"(highway|merge|roundabout|parking|intersection|racetrack)-", "highway-env"),
}
"""Packages that register environments when imported: their ids, and what pip calls them."""
_EXTRAS = {"Box2D": "box2d", "MuJoCo": "mujoco"}


def cannot_make(env_id: str, reason: str) -> ConfigError:
    """Returns the error of an environment that cannot be made, with what to type."""
    for module, (ids, package) in _PACKAGES.items():
        if re.match(ids, env_id) and module not in sys.modules:
            is_missing, is_named = importlib.util.find_spec(module) is None, f"{module}:" in env_id
            lines = [f"pip install {package}"] * is_missing
            lines += [f"set env.import_names: [{module}]"] * (not is_named)
            reason = f"{reason.rstrip('.')}; {', and '.join(lines)}"
    if (settings := _settings_of_gym(env_id)) is not None:
        reason = f"gym has registered it, and gymnasium has not: set env: {settings}"
    for name, extra in _EXTRAS.items():
        if f"{name} is not installed" in reason:
            swig = "swig && pip install " if extra == "box2d" else ""
            reason = f"{name} is not installed here; pip install {swig}'gymnasium[{extra}]'"
    return ConfigError([Problem("env.env_id", f"{env_id!r} cannot be made: {reason}")])
