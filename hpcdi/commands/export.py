"""`hpcdi export`: a policy as a file that acts without hpcdi, or episodes as a dataset."""

from __future__ import annotations

import dataclasses
import itertools
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.export_data import DATASETS, FILTERS, add_filters, export_dataset
from hpcdi.commands.exported import (
    ATOL,
    RTOL,
    SOURCES,
    ProgramActor,
    as_program,
    compiled,
    difference_of,
    mask_of,
    name_of,
    returns_of,
    starts_of,
)
from hpcdi.commands.options import add_policy, at_least, make_parser
from hpcdi.commands.output_file import output_file, path_of, write_output
from hpcdi.commands.saved_policy import LoadedPolicy, find_policy, load_policy
from hpcdi.config.team import TeamConfig
from hpcdi.data import origin_row
from hpcdi.dataclass import dataclass
from hpcdi.errors import EXIT_DONE, LaunchError, PolicyError, PolicyFileError
from hpcdi.policy.base import ColumnarActor
from hpcdi.policy.programs import PROGRAMS, Act
from hpcdi.policy.source_code import as_source
from hpcdi.run.run_folder import short
from hpcdi.types import ACTION_MASK, Array, Columns, Leaf, Spaces
from hpcdi.utils.log import say
from hpcdi.utils.metrics import human_bytes
from hpcdi.utils.nested import under
from hpcdi.utils.packages import missing

HELP = """\
Write a policy as a file that acts without hpcdi: observations float32 [batch, ...] in (float64
where env.origin is subtracted first), greedy actions out, with the values that the policy computes.
Observations of several arrays are inputs observation/NAME; a memory has inputs state/NAME, zeros at
the start of an episode, and outputs next_state/NAME, which are those of the next step. Where
environments have masks of legal actions, action_mask [batch, n] (true: legal) is an input, n values
of all discrete components one after the other. Actions are what the environment's step takes. PPO
and IMPALA return the distribution's parameters, too: logits (illegal ones are -1e8), mean and
log_std in the environment's units (what is drawn is clipped to the bounds); SAC mean and log_std
before tanh and scaling. The file is read back and must act as the policy does; with --play N it
plays N episodes, and their returns must be those of hpcdi eval (within 0.1 % where actions are
continuous, whose rounding episodes magnify).

Of a team (env.type: team) each policy is a file, FILE_POLICY where there are several, by which one
player acts alone: its inputs are what it sees, observation/own, and its number among those that
share the policy, observation/number. What the team only learns by is left out: the state, a value
of it, what mixes values.

  hpcdi export runs/cartpole_dqn/latest                        cartpole_dqn.pt2, for torch.export
  hpcdi export runs/cartpole_dqn/latest -o policy.onnx         for ONNX
  hpcdi export runs/cartpole_dqn/latest --policy latest --batch 1 -o policy.pt2
  hpcdi export runs/kuramoto_sac/latest --to c                 kuramoto_sac.h and .c, no library
  hpcdi export runs/kuramoto_sac/latest --to fortran -o jets.f90

Source code in C or Fortran computes in double precision what a policy of layers of numbers does,
normalisation included, one observation a call, and NaN of NaN; it knows no masks, discrete actions
count from 0, those of several parts lie one behind the other, and discrete observations,
convolutions and memories have no such form. Where a compiler is there, it is compiled and must act
as the policy does.

ONNX needs the packages onnx and onnxscript: pip install 'hpcdi[onnx]'

Or write the run's whole episodes as a dataset, all or some of them:

  hpcdi export runs/cartpole_dqn/latest --to minari cartpole/dqn-v0     minari.load_dataset(...)
  hpcdi export runs/cartpole_dqn/latest --to minari cartpole/good-v0 --returns 150:
  hpcdi export runs/cartpole_dqn/latest --to parquet -o steps.parquet   a row a step

Minari's (pip install 'hpcdi[minari]') have the environment's own spaces, and its values in the
precision of float32: what rounding puts beyond a bound is clipped to it. In both kinds env.origin
is added to observations again, rewards are float32, and a return is their sum in float64. In
Minari's, masks of legal actions and policy versions are in the infos, collector, environment and
the player that learns from it (main, but in leagues with several) in an episode's metadata, the
run's seed in the description. Of infos a run keeps the numbers that env.keep_infos names (of others
their means, as curves). A seed is the one with which an environment was last reset, `resets` how
many resets ago; there is none where environments share a generator. Minari's datasets lie in
MINARI_DATASETS_PATH, else in ~/.minari/datasets. In Parquet (pip install 'hpcdi[parquet]') actions
count from 0, and values of several numbers are lists. In Python: hpcdi.data.read_episodes(RUN).
"""
FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
"""Format -> suffix of its files."""
_TRIALS, _STEPS = 64, 3
_SHARE = 1e-3  # of a return: an episode makes more of such differences of continuous actions


def main(arguments: Sequence[str]) -> int:
    """Write a policy's greedy actions as a program; returns the exit code.

    Raises:
        LaunchError: there is no such policy, it does not fit its configuration, or a package for
            the format is missing.
        ConfigError: the configuration is wrong.
        StoreError: the policy is torn; or the program, read back, does not act as it does, and then
            nothing has been written.
        PolicyError: the policy has no form that can be exported.
    """
    parser = make_parser("export", HELP)
    add_policy(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="default: <exp_name>.pt2 or .onnx, in this folder"
    )
    parser.add_argument(
        "--format",
        "--to",
        choices=[*FORMATS, *SOURCES, *DATASETS],
        help="default: by FILE's suffix, else torch (torch.export)",
    )
    parser.add_argument(
        "--batch", type=_batch, default=None, metavar="N",
        help="of torch and onnx: observations per call; dynamic (default): any number",
    )  # fmt: skip
    parser.add_argument(
        "--play", type=at_least(1), default=0, metavar="N",
        help="let the file (in C or Fortran compiled) play N episodes, too: its returns must be "
        "those of hpcdi eval",
    )  # fmt: skip
    add_filters(parser)
    options = parser.parse_intermixed_args(arguments)
    kind = _format_of(options.output, options.format)
    _check_options(options, kind)
    if needed := missing(kind):
        raise LaunchError(f"--to {kind} {needed}")
    if kind in DATASETS:
        return export_dataset(kind, options)
    saved = find_policy(options.policy, options.which, options.config, trust=options.trust)
    loaded = load_policy(saved, options.override)
    if getattr(loaded.config.policy.eval, "sample", False):  # what is written is greedy
        loaded = load_policy(saved, [*options.override, "policy.eval.sample=false"])
        say("  note         it takes the likeliest actions; evaluations of this run drew theirs "
            "(policy.eval.sample)")  # fmt: skip
    say(str(saved))
    parts = _parts_of(loaded)
    write = _write_sources if kind in SOURCES else _write_programs
    write(parts, loaded, kind, options)
    return EXIT_DONE


def _write_sources(
    parts: Sequence[_Part], loaded: LoadedPolicy, kind: str, options: Namespace
) -> None:
    """Write the source files of all policies, or none."""
    with ExitStack() as libraries:
        sources = [_source_of(part, kind, options.output, libraries) for part in parts]
        apart = 0.0
        if options.play:
            if any(source.is_masked for source in sources):
                raise LaunchError("--play: source code knows no action masks")
            actors = [source.actor for source in sources if source.actor is not None]
            if len(actors) < len(sources):
                raise LaunchError(f"--play: there is no compiler for {kind} here")
            file = sources[0].folder / [*sources[0].files][-1]
            apart = _play(_together(loaded, actors), loaded, options, file)
    for part, source in zip(parts, sources, strict=True):
        source.write()
        part.say_players()
    if options.play:
        _say_played(options.play, apart)


def _say_played(episodes: int, apart: float) -> None:
    same = f"differ by {100 * apart:.1g} % at most from" if apart else "are equal to"
    say(f"  played       {episodes} episodes: returns {same} the policy's")


def _write_programs(
    parts: Sequence[_Part], loaded: LoadedPolicy, kind: str, options: Namespace
) -> None:
    """Write all programs, or none: each is read back and must act as the policy does."""
    with ExitStack() as files:
        actors, lines = [], []
        for part in parts:
            of, spaces = part.loaded, part.loaded.spaces
            module = _prepared(of, kind)
            program = PROGRAMS[kind].trace(module, spaces.observation[0].shape, options.batch)
            name = f"{loaded.config.exp_name}{part.suffix}{FORMATS[kind]}"
            file = path_of(part.named(options.output), name)
            out = files.enter_context(output_file(file))
            out.write(program.data)
            out.flush()
            read_back = PROGRAMS[kind].load(Path(out.name).read_bytes())
            difference = _compare(read_back, module, of, options.batch, file)
            first, inputs = partial(_first_state, module), partial(_inputs, module, of)
            actors.append(ProgramActor(read_back, first, inputs, spaces, options.batch))
            lines.append((part, file, len(program.data), program.signature, difference, module))
        apart = _play(_together(loaded, actors), loaded, options, file) if options.play else 0.0
    for part, file, size, signature, difference, module in lines:
        part.say_players()
        say(f"  written      {short(file)}, {human_bytes(size)}")
        for name, described in signature:
            say(f"  {name:<12} {described}")
        say(f"  checked      {_TRIALS} observations, largest difference of an action "
            f"{difference:.3g}")  # fmt: skip
        if part.loaded.spaces.is_masked and not getattr(module, "logits", 0):
            say("  note         it knows no action masks: take the legal one of the highest value")
    if options.play:
        _say_played(options.play, apart)


@dataclass(frozen=True)
class _Part:
    """A policy to export: the run's, or one of a team's.

    Attributes:
        loaded: it, with the spaces of what it sees.
        suffix: of the file's name, where there are several.
        players: whom it acts for; none: it is not a team's.
    """

    loaded: LoadedPolicy
    suffix: str = ""
    players: tuple[str, ...] = ()

    def named(self, output: str | None) -> str | None:
        """Returns what `-o` names for this part."""
        if output is None or not self.suffix or Path(output).is_dir():
            return output
        file = Path(output)
        return str(file.with_name(f"{file.stem}{self.suffix}{file.suffix}"))

    def say_players(self) -> None:
        """Say whom it acts for, and by which number they see who they are."""
        names = self.players
        if len(names) > 1 and any(o.name == "number" for o in self.loaded.spaces.observation):
            names = tuple(f"{name} (number {at})" for at, name in enumerate(names))
        if names:
            say(f"  acts for     {', '.join(names)}")


def _parts_of(loaded: LoadedPolicy) -> list[_Part]:
    """Returns the policies to export: of a team each, as a player of it acts alone.

    Raises:
        PolicyError: observations of a team are far from 0.
    """
    if not isinstance(loaded.config.policy, TeamConfig):
        return [_Part(loaded)]
    if loaded.config.env.origins:
        raise PolicyError("a team's policy cannot be exported with env.origin")
    parts = []
    members = loaded.mode.get_attribute("members")
    for member in members:
        alone = dataclasses.replace(loaded, mode=member.mode, spaces=member.spaces)
        names = tuple(player.name for player in member.group.players)
        parts.append(_Part(alone, f"_{member.group.name}" * (len(members) > 1), names))
    return parts


def _together(loaded: LoadedPolicy, actors: Sequence[ProgramActor]) -> Any:
    """Returns what plays the run's environment by programs."""
    if not isinstance(loaded.config.policy, TeamConfig):
        return actors[0]
    return loaded.mode.get_attribute("acting_by")(actors)


def _play(actor: ColumnarActor, loaded: LoadedPolicy, options: Namespace, file: Path) -> float:
    """Let the program play episodes beside the policy.

    Returns:
        The largest share by which a return differs; 0 where all actions are discrete.

    Raises:
        PolicyFileError: its returns differ, by more than rounding where actions are continuous.
    """
    expected, returned = map(np.asarray, returns_of(loaded, actor, options.play))
    share = np.abs(returned - expected) / np.maximum(np.abs(expected), 1e-9)
    is_continuous = any(not leaf.counts for leaf in loaded.spaces.action)
    worst = int(share.argmax())
    if not share[worst] <= (_SHARE if is_continuous else 0.0):  # NaN is as bad
        raise PolicyFileError(
            file,
            f"was not written: in episode {worst} of {options.play} it returns "
            f"{returned[worst]:.9g}, and the policy {expected[worst]:.9g}",
        )
    return float(share[worst])


def _inputs(module: object, loaded: LoadedPolicy, seen: Columns) -> Columns:
    """Returns a program's inputs but its state, of what an actor sees."""
    observed = under(seen, "observation")
    wanted = getattr(module, "inputs", None) or observed  # a state may be the value's alone
    inputs = {n: c for n, c in _from_afar(observed, loaded).items() if n in wanted}
    return {**inputs, **mask_of(seen)} if getattr(module, "logits", 0) else inputs


@dataclass(frozen=True)
class _Source:
    """A policy as source files, which act as it does.

    Attributes:
        folder: where they go.
        files: name -> text.
        difference: the largest of an action; None: there is no compiler to check it.
        is_masked: its environment has masks.
        actor: acts by what they compile to; None as `difference`.
    """

    folder: Path
    files: Mapping[str, str]
    difference: float | None
    is_masked: bool
    actor: ProgramActor | None

    def write(self) -> None:
        """Write them, and say so."""
        for file, text in self.files.items():
            write_output(self.folder / file, text)
            say(f"  written      {short(self.folder / file)}, {human_bytes(len(text))}")
        if self.difference is None:
            say("  NOT CHECKED  there is no compiler here")
        else:
            say(f"  checked      {_TRIALS} observations, largest difference {self.difference:.3g}")
        if self.is_masked:
            say("  note         it knows no action masks")


def _source_of(part: _Part, language: str, output: str | None, libraries: ExitStack) -> _Source:
    """Returns a policy as source files, none of which is written.

    Args:
        part: the policy.
        language: of the files.
        output: what -o names.
        libraries: removes what they compile to.

    Raises:
        LaunchError: the name is wrong.
        PolicyError: it has no such form.
        PolicyFileError: what they compile to does not act as the policy does.
    """
    loaded = part.loaded
    module = _prepared(loaded, language)
    title = f"{loaded.config.exp_name}{part.suffix}"
    folder, name = name_of(part.named(output), title, language)
    files = as_source(module, language, name, f"The policy of {loaded.config.exp_name}")
    drawn = _observations(loaded.spaces, _TRIALS, 0)
    inputs = _from_afar(drawn, loaded)
    flat = [inputs[column].reshape(_TRIALS, -1) for column in module.inputs]
    act = libraries.enter_context(compiled(files, name, language, module))
    difference, actor = None, None
    if act is not None:
        source = f"{name}{SOURCES[language]}"
        difference = difference_of(act, source, module, np.concatenate(flat, axis=1))
        program = as_program(act, module, loaded.spaces)
        first, inputs_of = partial(_first_state, module), partial(_inputs, module, loaded)
        actor = ProgramActor(program, first, inputs_of, loaded.spaces, None)
    return _Source(folder, files, difference, loaded.spaces.is_masked, actor)


def _check_options(options: Namespace, kind: str) -> None:
    """Check that each option that is set means something for a kind of file.

    Raises:
        LaunchError: one does not; names the kinds for which it does.
    """
    of_datasets = {
        f"--{name}": getattr(options, name) != default
        for name, default in {**FILTERS, "player": None}.items()
    }
    programs, policies = tuple(FORMATS), (*FORMATS, *SOURCES)
    of_policies = {"--policy": options.which is not None, "--play": options.play > 0}
    for kinds, flags in (
        (programs, {"--batch": options.batch is not None}),
        (policies, of_policies),
        (tuple(DATASETS), of_datasets),
    ):
        unheard = ", ".join(option for option, is_set in flags.items() if is_set)
        if unheard and kind not in kinds:
            raise LaunchError(
                f"{unheard}: only for --to {' or '.join(kinds)}, and this is --to {kind}"
            )


def _batch(text: str) -> int | None:
    """Reads a number of observations; None: any number."""
    return None if text == "dynamic" else at_least(1)(text)


def _format_of(output: str | None, asked: str | None) -> str:
    if asked == "minari" and output is not None:
        raise LaunchError(f"-o {output}: Minari's datasets are named: --to minari NAME")
    if output is None or Path(output).is_dir():
        return asked or "torch"
    suffix = Path(output).suffix
    endings = {**FORMATS, **SOURCES, "parquet": DATASETS["parquet"]}
    by_name = {ending: kind for kind, ending in endings.items()}.get(suffix)
    if by_name is None or asked not in (None, by_name):
        wanted = endings[asked] if asked else " or ".join(endings.values())
        raise LaunchError(f"-o {output}: the file's name must end in {wanted}")
    return by_name


def _prepared(loaded: LoadedPolicy, kind: str) -> Any:
    """Returns the policy's module, which takes what the environment returns.

    Raises:
        PolicyError: it has none, or knows no origins.
    """
    module, spaces = _module_of(loaded), loaded.spaces
    if "observation" in getattr(module, "inputs", {}):  # the network's own shape may be flat
        module.inputs["observation"] = spaces.observation[0].shape
    origins = loaded.config.env.origins
    if origins and not hasattr(module, "subtract"):
        raise PolicyError("a policy of another form than Greedy knows no env.origin")
    if origins:
        module.subtract(origins)
    if kind in FORMATS and hasattr(module, "take_masks"):
        module.tell()
        module.starts = {leaf.column("action"): leaf.starts for leaf in spaces.action}
        if spaces.is_masked:
            module.take_masks(sum(sum(leaf.counts) for leaf in spaces.action))
    return module


def _module_of(loaded: LoadedPolicy) -> Any:
    try:
        return loaded.mode.get_attribute("export_module")
    except NotImplementedError as error:
        raise PolicyError(
            f"a policy of type {loaded.config.policy.type!r} cannot be exported: "
            "its class needs a method _get_export_module(), see hpcdi.policy.networks.Greedy"
        ) from error


def _compare(act: Act, module: Any, loaded: LoadedPolicy, batch: int | None, file: Path) -> float:
    """Returns the largest difference between the program's actions and the policy's own.

    Raises:
        PolicyFileError: it is too large.
    """
    size, differences = batch or _TRIALS, [0.0]
    numbers, starts = itertools.count(), starts_of(loaded.spaces)
    for _ in range(-(-_TRIALS // size)):
        loaded.mode.reset()
        state: Columns = {}
        for _ in range(_STEPS):  # of episodes, as far as there is a memory
            number = next(numbers)
            seen = _observations(loaded.spaces, size, number)
            if getattr(module, "logits", 0):
                seen[ACTION_MASK] = _masks(loaded.spaces, size, number)
            acted = under(loaded.actor.act(seen, {}), "action")
            expected = {name: acted[name] + starts[name] for name in acted}
            inputs = _inputs(module, loaded, seen)
            returned = act({**inputs, **(state or _first_state(module, size))})
            if batch is None and not state:  # in use it often gets a single observation
                alone = {name: column[:1] for name, column in inputs.items()}
                first = act({**alone, **_first_state(module, 1)})
                returned = {
                    n: np.concatenate([first[n], column[1:]]) for n, column in returned.items()
                }
            differences += [_difference(returned[name], expected[name], file) for name in expected]
            after = [name for name in returned if name.startswith("next_state/")]
            state = {name.removeprefix("next_"): returned[name] for name in after}
            if not state:
                break
    return max(differences)


def _from_afar(rows: Columns, loaded: LoadedPolicy) -> Columns:
    """Returns rows of observations as an environment returns them: far from 0 as float64."""
    inputs: Columns = {name: column.astype(np.float32) for name, column in rows.items()}
    for name, origin in loaded.config.env.origins.items():
        far = rows[name].astype(np.float64)
        inputs[name] = far + origin_row(origin, far)
    return inputs


def _difference(actions: Array, expected: Array, file: Path) -> float:
    if actions.shape != expected.shape:
        raise PolicyFileError(
            file, f"was not written: its actions are {actions.shape}, not {expected.shape}"
        )
    difference = np.abs(actions.astype(np.float64) - expected.astype(np.float64))
    if not np.allclose(actions, expected, rtol=RTOL, atol=ATOL):
        raise PolicyFileError(
            file,
            f"was not written: read back, its actions differ from the policy's by up to "
            f"{difference.max():.3g}",
        )
    return float(difference.max(initial=0.0))


def _first_state(module: object, count: int) -> Columns:
    """What a memory knows at the start of so many episodes; empty where there is none."""
    from hpcdi.policy import memories

    network = getattr(module, "network", None)
    state = {} if network is None else memories.initial_state(network, count)
    return {f"state/{name}": held.numpy(force=True) for name, held in state.items()}


def _observations(spaces: Spaces, count: int, seed: int) -> Columns:
    """Returns random observations of the environment's shapes and dtypes, by column."""
    rng = np.random.default_rng(seed)
    return {leaf.column("observation"): _drawn(leaf, count, rng) for leaf in spaces.observation}


def _masks(spaces: Spaces, count: int, seed: int) -> Array:
    """Returns random masks, bool [count, logits]; of each component some value is legal."""
    rng, columns = np.random.default_rng((seed, 1)), []
    for values in (n for leaf in spaces.action for n in leaf.counts):
        mask = rng.random((count, values)) < 0.5
        mask[np.arange(count), rng.integers(0, values, count)] = True
        columns.append(mask)
    return np.concatenate(columns, axis=1)


def _drawn(leaf: Leaf, count: int, rng: np.random.Generator) -> Array:
    dtype, shape = np.dtype(leaf.dtype), (count, *leaf.shape)
    if leaf.counts:
        first = np.array(leaf.starts or 0)
        drawn = rng.integers(first, first + np.array(leaf.counts), (count, len(leaf.counts)))
        return drawn.reshape(shape).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)
