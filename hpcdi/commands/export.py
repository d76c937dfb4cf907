"""`hpcdi export`: a policy as a file that acts without hpcdi."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.options import add_policy, at_least, make_parser
from hpcdi.commands.saved_policy import LoadedPolicy, find, load_policy
from hpcdi.errors import EXIT_DONE, LaunchError, PolicyError, PolicyFileError
from hpcdi.launch.run_folder import short
from hpcdi.policy.dict_adapter import actions_of
from hpcdi.store.atomic import published
from hpcdi.store.disk_full import or_refuse
from hpcdi.types import Array, Spaces
from hpcdi.utils.log import say
from hpcdi.utils.metrics import human_bytes

HELP = """\
Write a policy as a file that acts without hpcdi: observations float32 [batch, ...] in, greedy
actions out, with the values that the policy computes. The file is read back and must act as the
policy does.

  hpcdi export runs/cartpole_dqn/latest                        cartpole_dqn.pt2, for torch.export
  hpcdi export runs/cartpole_dqn/latest -o policy.onnx         for ONNX
  hpcdi export runs/cartpole_dqn/latest --policy latest --batch 1 -o policy.pt2

ONNX needs the packages onnx and onnxscript: pip install 'hpcdi[onnx]'
"""
FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
"""Format -> suffix of its files."""
_PACKAGES = {"torch": (), "onnx": ("onnx", "onnxscript")}
_TRIALS = 64
_RTOL, _ATOL = 1e-4, 1e-5  # float32, by other kernels


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
        "--format", choices=FORMATS, help="default: by FILE's suffix, else torch (torch.export)"
    )
    parser.add_argument(
        "--batch", type=_batch, default="dynamic", metavar="N",
        help="observations per call; dynamic (default): any number",
    )  # fmt: skip
    given = parser.parse_intermixed_args(arguments)
    kind = _format_of(given.output, given.format)
    _check_packages(kind)
    saved = find(given.policy, given.which, given.config, trust=given.trust)
    loaded = load_policy(saved, given.override)
    say(str(saved))
    from hpcdi.policy.programs import PROGRAMS

    module = _module_of(loaded)
    program = PROGRAMS[kind].trace(module, _shape_of(loaded.spaces), given.batch)
    file = _file_of(given.output, loaded.config.exp_name + FORMATS[kind])
    with or_refuse(short(file)), published(file) as out:
        out.write(program.data)
        out.flush()
        read_back = PROGRAMS[kind].load(Path(out.name).read_bytes())
        difference = _compare(read_back, loaded, given.batch, file)
    say(f"  written      {short(file)}, {human_bytes(file.stat().st_size)}")
    for name, described in program.signature:
        say(f"  {name:<12} {described}")
    say(f"  checked      {_TRIALS} observations, largest difference of an action {difference:.3g}")
    if loaded.spaces.is_masked:
        say("  note         it knows no action masks: take the legal action of the highest value")
    return EXIT_DONE


def _batch(text: str) -> int | None:
    """Reads a number of observations; None: any number."""
    return None if text == "dynamic" else at_least(1)(text)


def _format_of(output: str | None, asked: str | None) -> str:
    if output is None or Path(output).is_dir():
        return asked or "torch"
    suffix = Path(output).suffix
    by_name = {ending: kind for kind, ending in FORMATS.items()}.get(suffix)
    if by_name is None or asked not in (None, by_name):
        wanted = FORMATS[asked] if asked else " or ".join(FORMATS.values())
        raise LaunchError(f"-o {output}: the file's name must end in {wanted}")
    return by_name


def _check_packages(kind: str) -> None:
    missing = [name for name in _PACKAGES[kind] if importlib.util.find_spec(name) is None]
    if missing:
        raise LaunchError(
            f"--format {kind} needs the packages {' and '.join(_PACKAGES[kind])}, and there is no "
            f"{' and no '.join(missing)} here: pip install 'hpcdi[{kind}]'"
        )


def _file_of(output: str | None, default: str) -> Path:
    if output is None:
        return Path(default)
    return Path(output) / default if Path(output).is_dir() else Path(output)


def _module_of(loaded: LoadedPolicy) -> Any:
    try:
        return loaded.mode.get_attribute("export_module")
    except NotImplementedError as error:
        raise PolicyError(
            f"a policy of type {loaded.config.policy.type!r} cannot be exported: "
            "its class needs a method _get_export_module(), see hpcdi.policy.networks.Greedy"
        ) from error


def _compare(act: Any, loaded: LoadedPolicy, batch: int | None, file: Path) -> float:
    """Returns the largest difference between the program's actions and the policy's own.

    Raises:
        PolicyFileError: it is too large.
    """
    size = batch or _TRIALS
    observations = _observations(loaded.spaces, -(-_TRIALS // size) * size)
    outputs = loaded.mode.forward(dict(enumerate(observations)))
    own = np.stack(list(map(np.asarray, actions_of(outputs, range(len(observations))).values())))
    given = observations.astype(np.float32)
    made = np.concatenate([act(given[k : k + size]) for k in range(0, len(given), size)])
    if batch is None:  # in use it often gets a single observation
        made = np.concatenate([act(given[:1]), made[1:]])
    if made.shape != own.shape:
        raise PolicyFileError(
            file, f"was not written: its actions are {made.shape}, not {own.shape}"
        )
    difference = np.abs(made.astype(np.float64) - own.astype(np.float64))
    if not np.allclose(made, own, rtol=_RTOL, atol=_ATOL):
        raise PolicyFileError(
            file,
            f"was not written: read back, its actions differ from the policy's by up to "
            f"{difference.max():.3g}",
        )
    return float(difference.max())


def _shape_of(spaces: Spaces) -> tuple[int, ...]:
    """Returns the shape of an observation.

    Raises:
        PolicyError: it has several arrays, or an action has.
    """
    for what, leaves in (("observations", spaces.observation), ("actions", spaces.action)):
        if len(leaves) > 1 or leaves[0].name:
            raise PolicyError(
                f"a program takes one array and returns one, and {what} have several, "
                f"{', '.join(map(str, leaves))}: flatten them by a wrapper of the environment"
            )
    return spaces.observation[0].shape


def _observations(spaces: Spaces, count: int) -> Array:
    """Returns random observations of the environment's shape and dtype, always the same ones."""
    (leaf,) = spaces.observation
    rng, shape = np.random.default_rng(0), (count, *leaf.shape)
    dtype = np.dtype(leaf.dtype)
    if leaf.counts:
        first = np.array(leaf.starts or 0)
        drawn = rng.integers(first, first + np.array(leaf.counts), (count, len(leaf.counts)))
        return drawn.reshape(shape).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)
