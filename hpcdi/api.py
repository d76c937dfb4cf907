"""hpcdi from a script or a notebook: train, look at the run, act by its policy.

    import hpcdi

    run = hpcdi.train(env="CartPole-v1", policy="ppo", ranks=4, seed=3)
    run.curves().plot()
    action = run.policy.act(observation)
    policy = hpcdi.load("runs/cartpole_v1_ppo/latest")
    policy.evaluate(episodes=100).mean

A run is the same as that of ``hpcdi serial`` (``ranks=1``: in this process) or ``hpcdi train``
(mpirun is started here): the same folder, resumed by either.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hpcdi.config.fields import key_of
from hpcdi.config.load import read_mapping
from hpcdi.config.modules import folders_of_modules
from hpcdi.config.words import dump, literal
from hpcdi.data import Episode, read_episodes
from hpcdi.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    ConfigError,
    EnvValueError,
    HpcdiError,
    LaunchError,
    PolicyError,
    Problem,
    RunError,
)
from hpcdi.roles.callbacks import Callback
from hpcdi.run import run_folder
from hpcdi.run.beginnings import early_stop_of, settings_of
from hpcdi.run.environment import detect, if_inherited
from hpcdi.run.own_code import named, registering
from hpcdi.run.private_folder import own_folder
from hpcdi.run.request import Ended, RunRequest
from hpcdi.run.resume import is_below
from hpcdi.run.start import start
from hpcdi.store.layout import RunLayout
from hpcdi.types import Array
from hpcdi.utils.backoff import idle_threads_sleep
from hpcdi.utils.curves import Curves, read_curves
from hpcdi.utils.nested import dotted, unflatten

if TYPE_CHECKING:
    import pandas

    from hpcdi.commands.eval import EvalResult
    from hpcdi.commands.saved_policy import LoadedPolicy, SavedPolicy
    from hpcdi.env.contract import MaskLayout, Space
    from hpcdi.env.team import Team
    from hpcdi.policy.base import Actor

Env: TypeAlias = str | Callable[..., Any] | Mapping[str, Any]
"""An environment's id, a class or a function that makes one, or settings: ``env`` of the YAML."""
_ENDS = (".stop_value", ".max_env_step", ".max_train_iter")
"""Ends of the paths of settings that say when a run ends."""
_IMPORT_PATH = "system.import_path"
_GOES_ONLINE = "policy.other.commander.offline_iterations"
_FILES = (".yaml", ".yml", ".py")


def train(
    env: Env | None = None,
    policy: str | Mapping[str, Any] | None = None,
    *,
    ranks: int = 1,
    seed: int | None = None,
    max_env_step: float | None = None,
    stop_value: float | None = None,
    exp_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[str | type[Callback] | Mapping[str, Any]] = (),
    run_dir: str | Path | None = None,
    resume: str | Path | Run | None = None,
    time_limit: str | int | None = None,
) -> Run:
    """Train to the end, and print progress.

    An id, a class or a function comes with settings for the algorithm (`hpcdi.run.beginnings`), and
    ends at the return at which the environment's makers call it solved, where they name one. Else,
    with no `stop_value` or `max_env_step` either, it ends where evaluations have become no better
    for long (`hpcdi.run.beginnings.early_stop_of`). ``stop_value=float("inf")`` trains on.

    A class of a notebook, a prompt or a function, and one of a script whose call is not below
    ``if __name__ == "__main__":``, is written into the run folder by cloudpickle; any other is
    imported by its file. So is what registers an id (``env.import_names`` is set), or it is
    refused. Players of a class of PettingZoo's learn together (``ParallelEnv``: ``env.type`` is
    team) or play each other (``AECEnv``: pettingzoo); functions need the type set.

    Args:
        env: an environment's id, a class or function that makes one, settings (``env`` of the
            YAML file), or a whole experiment's file, ``configs/x.yaml``.
        policy: the algorithm, None: ``"ppo"``; or settings (``policy`` of the YAML file) with
            ``type`` and, for one of yours, ``import_names``. With a file: None.
        ranks: 1: in this process; 3 or more: that many, of which 1 coordinates and 1 learns.
        seed: of all random numbers.
        max_env_step: environment steps at which the run ends.
        stop_value: mean return of an evaluation at which it ends.
        exp_name: names the folder, ``runs/<exp_name>/<time>``.
        settings: any other ones, by their paths: ``{"policy.learn.learning_rate": 1e-3}``.
        callbacks: classes of `hpcdi.Callback`, names of shipped ones, or mappings with ``type``
            (one of these) and arguments: ``{"type": "early_stop", "evaluations": 5}``. Each rank
            makes its own; classes reach it as `env` does. They come to those that the file, the
            resumed run or `settings` have, in the place of any of the same name: a class's name.
        run_dir: the run folder.
        resume: a run, or its folder, to go on with from its newest snapshot.
        time_limit: ``90`` (minutes), ``"1:30:00"``: a last snapshot is taken before.

    Returns:
        The run. Also of one that was interrupted, at a prompt or in a notebook.

    Raises:
        ConfigError: the experiment is wrong; holds all problems.
        LaunchError: it cannot be started.
        RunError: it failed, or a signal ended it; errors of hpcdi in this process come as they are.
        KeyboardInterrupt: in a script; the run was ended in order, and can be resumed.
    """
    _check_place(ranks)
    by_path = {
        "seed": seed,
        "exp_name": exp_name,
        "env.stop_value": stop_value,
        "policy.other.commander.max_env_step": max_env_step,
    }
    chosen: dict[str, Any] = {path: value for path, value in by_path.items() if value is not None}
    chosen |= settings or {}
    resumed = resume.folder if isinstance(resume, Run) else resume
    place = run_dir if resumed is None else resumed
    _check_arguments(env, policy, run_dir, resumed)
    experiment: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        is_there = resumed is not None or "SLURM_JOB_ID" in os.environ
        code_folder = _CodeFolder(None if place is None else Path(place), stack, is_there=is_there)
        if resumed is not None or _is_file(env):
            config = None if env is None else str(env)
            code_folder.name = exp_name or Path(config or "").stem
        else:
            experiment = _experiment(env, policy, chosen, code_folder)
            folders = dict(dotted(chosen)).get(_IMPORT_PATH)
            if isinstance(folders, list | tuple):  # what is none is refused by its name
                chosen[_IMPORT_PATH] = [*experiment.get(_IMPORT_PATH, ()), *folders]
            config = _written(experiment, stack)
        if resumed is None and config is not None:
            given = _settings_in(config, tuple(_overrides(chosen)))
            chosen |= _registration(given, folders_of_modules(Path(config)))
        if callbacks:
            file = config or RunLayout(Path(resumed or "")).config_file
            before = experiment or _settings_in(file, tuple(_overrides(chosen)))
            chosen |= _callback_settings(callbacks, code_folder, {**before, **dict(dotted(chosen))})
        request = RunRequest(
            config,
            tuple(_overrides(chosen)),
            None if code_folder.folder is None or resumed is not None else str(code_folder.folder),
            None if resumed is None else str(resumed),
            None if ranks == 1 else ranks,
            None if time_limit is None else str(time_limit),
        )
        try:
            with idle_threads_sleep():
                return _run_of(start(request, over_ranks=ranks > 1))
        except ConfigError as error:
            if not experiment or error.source != config:
                raise
            raise ConfigError(error.problems, f"the experiment {experiment['exp_name']}") from None


def load(
    run: str | Path | Run,
    *,
    which: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Policy:
    """Returns a policy that acts and is evaluated as in training.

    Args:
        run: a run, its folder, a checkpoint's folder, or a policy's ``.safetensors`` file.
        which: of a run's policies, ``"best"`` or ``"latest"``; None: the best, if there is one.
        config: the experiment's file; None: that of the run.
        settings: to change, by their paths.
        trust: import the modules that a run of somebody else names.

    Raises:
        LaunchError: there is no such policy, or it does not fit its configuration.
        ConfigError: the configuration is wrong. StoreError: the policy's file is torn.
        OSError: it cannot be read: it is somebody else's.
    """
    with idle_threads_sleep():
        from hpcdi.commands.saved_policy import find_policy

    place = run.folder if isinstance(run, Run) else run
    file = None if config is None else str(config)
    saved = find_policy(str(place), which, file, trust=trust)
    return Policy(saved, settings)


class Policy:
    """A trained policy, without exploration.

    Args:
        saved: where it is; see `hpcdi.load`.
        settings: to change, by their paths.

    Attributes:
        file: its parameters.
        train_iter: train iteration at which the learner published it.
    """

    def __init__(self, saved: SavedPolicy, settings: Mapping[str, Any] | None = None) -> None:
        from hpcdi.commands.saved_policy import load_policy

        self._saved = saved
        self._overrides = _overrides(settings or {})
        self._loaded: LoadedPolicy = load_policy(saved, self._overrides)
        self.file, self.train_iter = saved.file, saved.image.version

    def __repr__(self) -> str:
        return f"Policy({self._saved})"

    def act(self, observation: Any, *, mask: Any = None) -> Any:
        """Returns the action for one observation, as the environment takes it.

        A policy with a memory remembers the observations before: `reset` at an episode's begin.

        Args:
            observation: as the environment returns it: an array of the space's shape, a number, or
                a dict or tuple of them. It is the wrapped one where the run has wrappers: see
                `make_env`. Of a team also a dict, player -> observation, as PettingZoo's
                ``ParallelEnv`` returns it: the answer has an action of each.
            mask: of legal actions, as the environment's info has it, where it is not in the
                observation itself; where that is a dict of players, one, too.

        Raises:
            EnvValueError: the observation is not as the space says, or a number of it is none
                (NaN), or infinite, also in float32; or the mask is not of the actions.
            PolicyError: there is a mask, and the run's environment has none.
        """
        actor, (seen, acts, masks) = self._actor, self._spaces
        keys = set(observation) if isinstance(observation, Mapping) else set()
        if self._team is not None and not {"players", "observation"} & keys:
            actions = self.act(self._team.seen_by(observation, mask))
            return {name: actions[name] for name in observation}
        if mask is not None:
            if not seen.mask_size:
                raise PolicyError(
                    "mask: the run's environment has no masks of actions, so that its policy knows "
                    "none; train with env.action_mask, which says where they are"
                )
            inner = observation
            if not isinstance(inner, Mapping) or seen.fields[0].path[:1] == ("observation",):
                inner = {"observation": observation}
            observation = {**inner, "action_mask": masks.flat(mask)}
        elif self._mask_key and isinstance(observation, Mapping) and self._mask_key in observation:
            others = {key: part for key, part in observation.items() if key != self._mask_key}
            observation = {**others, "action_mask": self._layout.flat(observation[self._mask_key])}
        columns = seen.zeros(1)
        seen.put(columns, 0, observation)
        for name, column in columns.items():
            if not np.isfinite(column).all():
                number = column[~np.isfinite(column)][0]
                raise EnvValueError(f"{name}: {number}, and a policy acts on finite numbers alone")
        return acts.value(actor.act(columns, {}), 0)

    def reset(self) -> None:
        """An episode begins: forget the one before."""
        forget = getattr(self._loaded.actor, "reset", None)
        if forget is not None:
            forget(None)

    def make_env(self, **kwargs: Any) -> Any:
        """Returns an environment as the run evaluates in, wrapped, with gymnasium's methods.

        Args:
            kwargs: for its class, such as ``render_mode="human"``.

        Raises:
            ConfigError: it cannot be made.
        """
        from hpcdi.env.create import of_evaluations, single_env_fns

        (make,) = single_env_fns(of_evaluations(self._loaded.config.env), [0])
        return make(kwargs=kwargs) if kwargs else make()

    def evaluate(
        self, env: Env | None = None, episodes: int = 20, *, seed: int | None = None
    ) -> EvalResult:
        """Play whole episodes, as ``hpcdi eval``; the same ones in each call.

        Args:
            env: another environment of the same spaces; None: that of the run.
            episodes: how many.
            seed: of the environments; None: the experiment's.

        Returns:
            ``returns`` and ``lengths`` of each episode, ``mean``, ``std``, ``figures()``.

        Raises:
            LaunchError: episodes are below 1. ConfigError: the environment cannot be made.
            EnvError: it breaks its contract.
        """
        from hpcdi.commands.eval import played
        from hpcdi.commands.saved_policy import load_policy

        loaded = self._loaded
        with contextlib.ExitStack() as stack:
            draws = loaded.config.policy.eval.sample  # on from where its last call has ended
            if draws or env is not None or seed is not None:
                code_folder = partial(stack.enter_context, own_folder())
                changes = {} if env is None else _env_settings(env, code_folder)[0]
                loaded = load_policy(self._saved, self._overrides + _overrides(changes), seed)
            result = played(loaded, episodes)
        self.reset()
        return result

    @cached_property
    def _actor(self) -> Actor:
        if hasattr(self._loaded.actor, "bind"):
            raise PolicyError(f"a policy of type {self._loaded.config.policy.type!r} acts in the "
                              "environments of a run only: use evaluate()")  # fmt: skip
        return self._loaded.actor

    @cached_property
    def _team(self) -> Team | None:
        """One environment, where all its players act as one."""
        if self._loaded.config.env.type != "team":
            return None
        team: Team = self.make_env().unwrapped
        return team

    @property
    def _mask_key(self) -> str:
        """The key of the environment's observations under which masks are; "": there is none."""
        source = getattr(self._loaded.config.env, "action_mask", None) or ""
        return "" if source == "info" else source

    @cached_property
    def _layout(self) -> MaskLayout:
        """Of the masks under that key."""
        with contextlib.closing(self.make_env()) as env:
            layout: MaskLayout = env.get_wrapper_attr("mask_layout")
        return layout

    @cached_property
    def _spaces(self) -> tuple[Space, Space, MaskLayout]:
        """Observations into columns, and columns into actions; masks that are given beside them."""
        from hpcdi.env.contract import MaskLayout, Space
        from hpcdi.env.probe import look_at

        cfg = self._loaded.config.env
        facts = look_at(cfg)
        seen = Space.of_observations(facts.observation_space, origin=cfg.origins)
        acts = facts.action_space
        return seen, Space.of_actions(acts), MaskLayout(acts, "mask")


class Run:
    """A run, finished or not: what its folder says now.

    Args:
        folder: its run folder.

    Raises:
        LaunchError: it holds no run.
    """

    def __init__(self, folder: str | Path) -> None:
        self._layout = RunLayout(Path(folder).resolve())
        self.folder = self._layout.root
        if not run_folder.read(self.folder):
            raise LaunchError(f"{folder} holds no run: name a run folder, runs/<exp_name>/<time>")

    def __repr__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"Run({run_folder.short(self.folder)}, {self.state}{reason})"

    @property
    def state(self) -> str:
        """``"done"``, ``"stopped"``, ``"failed"``, ``"starting"``, ``"running"`` or ``"dead"``.

        A dead one was killed; one that is dead or stopped can be resumed.
        """
        return self._end[0]

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self._end[1]

    @property
    def _end(self) -> tuple[str, str]:
        from hpcdi.commands.run_state import end_of

        return end_of(self.folder)

    @property
    def solved(self) -> bool:
        """True if an evaluation has reached the stop value."""
        return self.state == "done" and self.reason.startswith("stop value")

    @property
    def figures(self) -> dict[str, Any]:
        """What it has done: environment steps, train iterations, seconds ..., by name."""
        return dict(run_folder.read(self.folder).get("figures", {}))

    @property
    def config(self) -> dict[str, Any]:
        """Its settings, all of them, as nested dicts."""
        return read_mapping(self._layout.config_file)

    @property
    def returns(self) -> Array:
        """Mean returns of its evaluations, one after the other, float64 [evaluations]."""
        with contextlib.suppress(KeyError):
            return self.curve("curves/evaluation_return")[1]
        return np.zeros(0)

    @cached_property
    def policy(self) -> Policy:
        """Its best policy, or the latest if none was evaluated.

        Raises:
            LaunchError: it has not saved any.
        """
        return load(self.folder)

    def curve(self, name: str) -> tuple[Array, Array]:
        """Returns a curve: its steps, int64 [points], and its values, float64 [points].

        Args:
            name: as in TensorBoard, ``"curves/evaluation_return"``.

        Raises:
            KeyError: there is no such curve; says which there are.
        """
        points = self._points()
        if name not in points:
            there = f"there are {', '.join(sorted(points))}" if points else "the run has none yet"
            raise KeyError(f"no curve is named {name!r}; {there}")
        steps = np.array([point.step for point in points[name]], np.int64)
        return steps, np.array([point.value for point in points[name]], np.float64)

    def curves(self) -> pandas.DataFrame:
        """Returns its curves as a table: a row a step, a column a curve.

        Steps are environment steps; of a run that begins offline, train iterations: the index is
        named ``env_step``, or ``train_iteration``.

        Where a curve has no point at a step there is NaN: ``run.curves()[name].dropna()``.

        Raises:
            LaunchError: pandas is not installed; `curve` needs it not.
        """
        from hpcdi.commands import run_state

        try:
            import pandas
        except ImportError as error:
            raise LaunchError(
                "run.curves() makes a pandas.DataFrame: pip install pandas; without it, "
                "run.curve('curves/evaluation_return') returns arrays"
            ) from error
        columns = {
            name: pandas.Series({point.step: point.value for point in points}, dtype=np.float64)
            for name, points in sorted(self._points().items())
        }
        table = pandas.DataFrame(columns).sort_index()
        table.index.name = run_state.axis_of(run_state.settings_of(self._layout)).replace(" ", "_")
        return table

    def _points(self) -> Curves:
        return read_curves(self._layout.curve_files())

    def episodes(self, *, unfinished: bool = False, player: str | None = None) -> Iterator[Episode]:
        """Yields the episodes that it has collected, see `hpcdi.data.read_episodes`."""
        return read_episodes(self.folder, unfinished=unfinished, player=player)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write one HTML file of it, as ``hpcdi report``; returns its path.

        Raises:
            LaunchError: it cannot be written.
        """
        from hpcdi.commands.output_file import write_output
        from hpcdi.commands.report.page import page_of
        from hpcdi.commands.report.runs import grouped, read_run

        write_output(Path(path), page_of(grouped([read_run(self.folder)]), None))
        return Path(path)


# ------------------------------------------------------------------------------- the experiment


def _is_file(env: Env | None) -> bool:
    return isinstance(env, str | Path) and Path(env).suffix in _FILES


def _experiment(
    env: Env | None,
    policy: str | Mapping[str, Any] | None,
    chosen: Mapping[str, Any],
    code_folder: _CodeFolder,
) -> dict[str, Any]:
    """Returns the settings of an experiment by their paths.

    Args:
        env: see `train`.
        policy: see `train`.
        chosen: settings of the call, by their paths: they take the place of what this returns.
        code_folder: gets the run's name; makes the folder for modules that have to be written.
    """
    if env is None:
        raise LaunchError("name an environment: env='CartPole-v1', a class, or an experiment.yaml")
    name = str(chosen.get("exp_name", ""))
    algorithm = policy if isinstance(policy, Mapping) else {"type": policy or "ppo"}
    over = dict(dotted(chosen))
    policy_type = str(over.get("policy.type") or algorithm.get("type", "dqn"))
    if not name:
        name = re.sub(r"\W+", "_", f"{_title_of(env)}_{policy_type}").strip("_").lower()
    code_folder.name = name
    settings, gymnasium_id = _env_settings(env, code_folder)
    settings |= {f"policy.{path}": value for path, value in dotted(algorithm)}
    if "env.stop_value" not in settings and gymnasium_id:
        from hpcdi.env.gymnasium import reward_threshold

        threshold = reward_threshold(gymnasium_id)
        settings |= {} if threshold is None else {"env.stop_value": threshold}
    with_chosen = settings | over
    remembers = with_chosen.get("policy.model.memory", "none") != "none"
    goes_online = with_chosen.get(_GOES_ONLINE, math.inf) != math.inf
    is_offline = bool(with_chosen.get("data")) and not goes_online
    begins = settings_of(policy_type, remembers=remembers, is_offline=is_offline)
    if not any(path == "callbacks" or path.endswith(_ENDS) for path in with_chosen):
        settings["callbacks"] = [early_stop_of(begins | with_chosen)]
    parts = dict(dotted(begins))  # those of a section that is said whole are not in it
    begins = {path: value for path, value in parts.items() if not is_below(path, settings)}
    return {"exp_name": name, **begins, **settings}


class _CodeFolder:
    """Makes the folder for modules that have to be written, in the run folder, when called.

    Args:
        folder: the run folder; None: a new one is made, if it is needed.
        stack: removes it, if the run does not begin.
        is_there: whether a run in the folder is to go on; else the folder must be free.

    Attributes:
        folder: see there.
        name: of the experiment, for a new run folder; set before it is called.
    """

    def __init__(self, folder: Path | None, stack: contextlib.ExitStack, *, is_there: bool) -> None:
        self.folder, self.name, self._stack, self._is_there = folder, "", stack, is_there

    def __call__(self) -> Path:
        if self.folder is None:
            self.folder = run_folder.choose(self.name, None)
        elif not self._is_there:
            run_folder.check_free(self.folder)
        self._is_there = True
        self._stack.callback(_drop, self.folder)
        return RunLayout(self.folder).code_dir.absolute()


def _registration(settings: Mapping[str, Any], searched: Sequence[Path]) -> dict[str, Any]:
    """Returns the settings by which other processes know an id that a module or script registers.

    Args:
        settings: all that are given, by their paths; with modules of the environment's, they stay.
        searched: folders in which modules are looked for, besides.

    Raises:
        ConfigError: they cannot know it.
    """
    env_id, kind = settings.get("env.env_id"), settings.get("env.type", "gymnasium")
    if kind != "gymnasium" or not isinstance(env_id, str) or settings.get("env.import_names"):
        return {}
    imported, folders = (_texts(settings.get(key)) for key in ("policy.import_names", _IMPORT_PATH))
    found = registering(env_id, imported, [*folders, *map(str, searched)])
    if found is None:
        return {}
    folders += [folder for folder in found.folders if folder not in folders]
    return {"env.import_names": [found.name], **({_IMPORT_PATH: folders} if folders else {})}


def _texts(value: object) -> list[str]:
    """Returns the texts of a list, or one alone; what is none is refused by its name."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        return []
    return [each for each in values if isinstance(each, str)]


def _callback_settings(
    callbacks: Sequence[str | type[Callback] | Mapping[str, Any]],
    code_folder: Callable[[], Path],
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the settings that name callbacks: the new ones, and those before of other names.

    Args:
        callbacks: see `train`.
        code_folder: makes the folder for modules that have to be written.
        before: the settings that there are, by their paths.
    """
    folders, entries = _texts(before.get(_IMPORT_PATH)), list[dict[str, Any]]()
    for each in callbacks:
        entry = dict(each) if isinstance(each, Mapping) else {"type": each}
        if callable(cls := entry.get("type")):
            name, new_folders = named(cls, code_folder)
            entry["type"] = name
            folders += [folder for folder in new_folders if folder not in folders]
        if not isinstance(entry.get("type"), str):
            raise LaunchError(
                f"{each!r} is no callback's class: each rank makes its own; give the class, or "
                '{"type": the class, and its arguments}'
            )
        entries.append(entry)
    names = {_name_of(entry) for entry in entries}
    kept = [entry for entry in before.get("callbacks") or () if _name_of(entry) not in names]
    return {"callbacks": entries + kept, **({_IMPORT_PATH: folders} if folders else {})}


def _name_of(callback: object) -> str:
    """Returns a callback's name, by which its state is known: its class may be defined anew."""
    kind = callback.get("type", "") if isinstance(callback, Mapping) else ""
    return str(kind).rpartition(":")[2]


def _settings_in(file: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the settings of a YAML file, with overrides, by their paths; none if it is not there.

    A ``${`` in them is text, and escaped, as in settings that are given.
    """
    is_there = Path(file).suffix != ".py" and Path(file).is_file()  # whoever starts it says so
    return dict(dotted(literal(read_mapping(file, overrides)))) if is_there else {}


def _written(experiment: Mapping[str, Any], stack: contextlib.ExitStack) -> str:
    """Returns a YAML file of settings by their paths, removed with the stack."""
    file = stack.enter_context(own_folder()) / "experiment.yaml"
    plain = {path: _as_plain(value) for path, value in experiment.items()}
    file.write_text(dump(unflatten(plain, "."), is_resolved=False), encoding="utf-8")
    return str(file)


def _title_of(env: Env) -> str:
    """Returns what an environment is called in the name of an experiment."""
    if isinstance(env, str):
        return env.rpartition(":")[2]
    if isinstance(env, Mapping):
        return _title_of(env.get("env_id") or env.get("type", "env"))
    return getattr(env, "__name__", "env")


def _env_settings(env: Env, code_folder: Callable[[], Path]) -> tuple[dict[str, Any], str]:
    """Returns settings of an environment by their paths; and its id, if gymnasium may know it.

    Raises:
        LaunchError: it is no environment's name, class or function.
    """
    if isinstance(env, Mapping):
        section, of_class = dict(env), dict[str, Any]()
        if callable(section.get("env_id")):
            of_class, _ = _env_settings(section.pop("env_id"), code_folder)
        is_gymnasium = section.get("type", "gymnasium") == "gymnasium"
        settings = of_class | {f"env.{path}": value for path, value in dotted(section)}
        return settings, section.get("env_id", "") if is_gymnasium else ""
    if isinstance(env, str):
        return {"env.type": "gymnasium", "env.env_id": env}, env
    if not callable(env):
        raise LaunchError(
            f"{env!r} is an environment already, and each rank makes its own: give its class, "
            f"{type(env).__name__}, or a function that makes one"
        )
    name, folders = named(env, code_folder)
    settings = {"env.type": _type_of(env), "env.env_id": name}
    return settings | ({_IMPORT_PATH: [*folders]} if folders else {}), ""


def _type_of(made_by: Callable[..., Any]) -> str:
    """Returns ``env.type`` of a class: PettingZoo's have players."""
    pettingzoo = sys.modules.get("pettingzoo")  # whose class it is has imported it
    if pettingzoo is not None and isinstance(made_by, type):
        if issubclass(made_by, pettingzoo.ParallelEnv):
            return "team"
        if issubclass(made_by, pettingzoo.AECEnv):
            return "pettingzoo"
    return "gymnasium"


def _overrides(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings by their paths as they stand on a command line."""
    return [f"{path}={_as_yaml(value)}" for path, value in settings.items()]


def _as_yaml(value: object) -> str:
    """Returns a setting's value as YAML in one line.

    Raises:
        ConfigError: it is no number, text, list or mapping of these.
    """
    return _yaml_of(_as_plain(value))


def _yaml_of(plain: Any) -> str:
    if isinstance(plain, dict):
        return f"{{{', '.join(f'{_yaml_of(key)}: {_yaml_of(one)}' for key, one in plain.items())}}}"
    if isinstance(plain, list):
        return f"[{', '.join(map(_yaml_of, plain))}]"
    if isinstance(plain, float) and not math.isfinite(plain):
        return ".nan" if math.isnan(plain) else ".inf" if plain > 0 else "-.inf"
    if isinstance(plain, str):  # a letter beyond U+FFFF is two in JSON, which YAML takes for two
        letters = (one if one > "\uffff" else json.dumps(one)[1:-1] for one in plain)
        return f'"{"".join(letters)}"'
    return json.dumps(plain)


def _as_plain(value: object) -> Any:
    """Returns a setting's value as dicts, lists, texts, numbers, truths and None alone.

    Raises:
        ConfigError: it is no number, text, list or mapping of these.
    """
    try:
        return _plain(value)
    except TypeError as error:
        problem = Problem("", f"{value!r} is no setting: {error}")
        raise ConfigError([problem], "settings") from error


def _plain(value: object) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key_of(_plain(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of an Enum its value
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    raise TypeError(f"a {type(value).__name__} is no number, text, list or mapping")


def _drop(folder: Path) -> None:
    """Remove the folder of a run that has not begun."""
    if not RunLayout(folder).run_file.exists():
        shutil.rmtree(RunLayout(folder).code_dir, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


# ------------------------------------------------------------------------------- its start and end


def _check_place(ranks: int) -> None:
    """Check that a run can be started here.

    Raises:
        LaunchError: this is a rank, a process of an environment, or no main thread; or there are
            too few ranks.
    """
    if detect(os.environ).is_world:
        raise LaunchError(
            "hpcdi.train starts its own ranks, and this process is one: start the script without "
            "mpirun and srun; and where ranks import it, call hpcdi.train below if __name__ == "
            f'"__main__":\n{if_inherited(os.environ)}'
        )
    if threading.current_thread() is not threading.main_thread():
        raise LaunchError("hpcdi.train handles signals: call it in the main thread")
    if ranks < 1 or ranks == 2:
        raise LaunchError(
            f"ranks={ranks}: 1 trains in this process, 3 or more over ranks, of which one "
            "coordinates, one learns, and the others collect"
        )


def _check_arguments(
    env: Env | None, policy: object, run_dir: object, resumed: str | Path | None
) -> None:
    """Check that the arguments of `train` go together.

    Raises:
        LaunchError: a run goes on, or a file has a policy, and another one is given.
    """
    is_file = _is_file(env)
    if resumed is not None and not (policy is run_dir is None and (env is None or is_file)):
        raise LaunchError(
            "resume goes on with the run's own environment, policy and folder: leave env, "
            "policy and run_dir out"
        )
    if is_file and policy is not None:
        raise LaunchError(f"{env} names its policy: leave policy out, or change settings")


def _run_of(ended: Ended) -> Run:
    """Returns a run that has ended, or raises why it failed.

    Raises:
        RunError: it failed, or a signal ended it; or what it has raised, if that is hpcdi's.
        KeyboardInterrupt: in a script.
    """
    facts = run_folder.read(ended.folder)
    if ended.exit_code == EXIT_DONE:
        return Run(ended.folder)
    if isinstance(ended.error, HpcdiError):
        raise ended.error
    was_interrupted = ended.exit_code == EXIT_INTERRUPTED
    early = "interrupted" if was_interrupted else f"see above (exit code {ended.exit_code})"
    reason = facts.get("reason") or f"it has not begun: {early}"
    place = str(run_folder.from_here(ended.folder))
    next_step = f"; go on by hpcdi.train(resume={place!r})" if facts else ""
    if was_interrupted:
        if facts and hasattr(sys, "ps1"):  # a prompt, a notebook
            return Run(ended.folder)
        raise KeyboardInterrupt(f"{reason}{next_step}")
    message = f"the run {facts.get('state', 'failed')}: {reason}{next_step}"
    if facts:
        message += f", logs are in {run_folder.short(RunLayout(ended.folder).log_dir)}"
    raise RunError(message, ended.folder, ended.exit_code) from ended.error
