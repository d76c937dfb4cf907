"""`hpcdi export --to minari|parquet`: a run's episodes as a dataset of other tools.

Episodes are read and written one after the other: memory holds what one needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
import time
import warnings
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.commands.output_file import output_file, path_of
from hpcdi.commands.run_state import find_run
from hpcdi.commands.saved_policy import check_trusted
from hpcdi.config.env import EnvConfig
from hpcdi.config.load import load
from hpcdi.config.schema import ExperimentConfig
from hpcdi.data import Episode, read_episodes, warn_of
from hpcdi.dataclass import dataclass
from hpcdi.env.gymnasium import registered_spec
from hpcdi.env.mpi.launch import located
from hpcdi.env.probe import EpisodeValues
from hpcdi.errors import EXIT_DONE, LaunchError, ShardError
from hpcdi.run.run_folder import short
from hpcdi.store.atomic import temporary_beside
from hpcdi.store.disk_full import or_refuse
from hpcdi.store.layout import RunLayout
from hpcdi.store.minari_file import write_episodes
from hpcdi.types import ACTION_MASK, Columns
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.log import say
from hpcdi.utils.metrics import counted, human_bytes
from hpcdi.utils.nested import unflatten

DATASETS = {"minari": "", "parquet": ".parquet"}
"""Kind of dataset -> suffix of its files."""
_ROWS_AT_A_TIME = 65_536


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float = -np.inf
    high: float = np.inf

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


FILTERS = dict.fromkeys(("returns", "steps", "versions"), Range())
"""Options that choose episodes by a number -> what they are where they are not given."""


def add_filters(parser: ArgumentParser) -> None:
    """Add which episodes are wanted: ``returns``, ``steps``, ``versions``, ``player``."""
    for name, what in (
        ("returns", "sum of rewards"),
        ("steps", "number of steps"),
        ("versions", "policy version at its first step"),
    ):
        parser.add_argument(
            f"--{name}",
            type=_range,
            default=FILTERS[name],
            metavar="LOW:HIGH",
            help=f"of a dataset: only episodes with this {what} (--{name}=LOW: or :HIGH, too)",
        )
    parser.add_argument(
        "--player",
        metavar="NAME",
        help="of a league's dataset: only episodes that this player learns from (default: of all)",
    )


def export_dataset(kind: str, options: Namespace) -> int:
    """Write a run's episodes as a dataset; returns the exit code.

    Args:
        kind: a key of `DATASETS`.
        options: of `hpcdi export`.

    Raises:
        LaunchError: there is no such run, its name is taken or wrong, or no episode is wanted.
            StoreError: it holds no data.
    """
    run = find_run(options.policy)
    names = [word for word in options.override if "=" not in word]
    if kind != "minari" and names:
        raise LaunchError(f"-o FILE names a {kind} file; {names[0]!r} has no meaning here")
    overrides = [word for word in options.override if "=" in word]
    config_file = Path(options.config) if options.config else RunLayout(run).config_file
    if not config_file.is_file():
        raise LaunchError(f"there is no {short(config_file)}; name the experiment: --config FILE")
    if options.config is None and not options.trust:
        check_trusted(config_file)
    config = load(str(config_file), overrides).config
    config = dataclasses.replace(config, env=located(config.env, config_file.parent))
    episodes = _Chosen(run, options)
    began = time.monotonic()
    if kind == "minari":
        name = _dataset_name(names, config.exp_name)
        size = _write_minari(name, run, config, episodes)
        where = f"{name} (minari.load_dataset)"
    else:
        file = path_of(options.output, f"{config.exp_name}{DATASETS[kind]}")
        with output_file(file) as out:
            _write_parquet(Path(out.name), episodes)
        size, where = file.stat().st_size, short(file)
    took = max(time.monotonic() - began, 1e-9)
    say(f"  written      {where}, {human_bytes(size)} in {took:.1f} s")
    say(
        f"  episodes     {episodes.count:,} of {episodes.seen:,}, {episodes.steps:,} steps, mean "
        f"return {episodes.total / episodes.count:.4g}"
    )
    if episodes.damaged:
        say(f"  left out     {counted(episodes.damaged, 'damaged block')}")
    return EXIT_DONE


@dataclass
class _Chosen(Iterable[Episode]):
    """The whole episodes of a run that are wanted; counts them as they are read.

    Attributes:
        run: its folder.
        options: of `hpcdi export`.
        seen: whole episodes so far.
        count, steps, total: of those that are wanted, and the sum of their returns.
        damaged: blocks that are left out, and shards that cannot be read.
    """

    run: Path
    options: Namespace
    seen: int = field(default=0, init=False)
    count: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    total: float = field(default=0.0, init=False)
    damaged: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[Episode]:
        def leave_out(error: ShardError) -> None:
            self.damaged += 1
            warn_of(error)

        player = self.options.player
        for episode in read_episodes(self.run, player=player, left_out=leave_out):
            self.seen += 1
            wanted = (
                episode.total in self.options.returns
                and len(episode) in self.options.steps
                and int(episode.columns["policy_version"][0]) in self.options.versions
            )
            if wanted:
                self.count += 1
                self.steps += len(episode)
                self.total += episode.total
                yield episode
        if not self.count:
            of_player = f" of {self.options.player}" if self.options.player else ""
            why = ", and none is wanted by --returns, --steps and --versions" * bool(self.seen)
            raise LaunchError(f"{short(self.run)} has {self.seen} whole episodes{of_player}{why}")


def _range(text: str) -> Range:
    low, colon, high = text.partition(":")
    try:
        wanted = Range(float(low or -np.inf), float(high or np.inf))
    except ValueError:
        wanted = Range(np.inf, -np.inf)
    if not colon or not wanted.low <= wanted.high:  # NaN is no bound
        raise ArgumentTypeError(f"must be LOW:HIGH, LOW: or :HIGH, not {text!r}")
    return wanted


# ----------------------------------------------------------------------------------------- Minari


def _dataset_name(names: list[str], exp_name: str) -> str:
    from minari.dataset.minari_dataset import parse_dataset_id

    if len(names) > 1:
        raise LaunchError(f"a dataset has one name, and {' '.join(names)} are several")
    name = names[0] if names else f"hpcdi/{exp_name}-v0"
    try:
        parse_dataset_id(name)
    except (ValueError, TypeError) as error:  # a TypeError where it has no version
        raise LaunchError(
            f"{name!r} is no name of Minari's: NAME-v0, or NAMESPACE/NAME-v0"
        ) from error
    return name


def _write_minari(
    name: str, run: Path, config: ExperimentConfig, episodes: Iterable[Episode]
) -> int:
    """Write a dataset into Minari's folder; returns its bytes. What fails leaves nothing."""
    import minari
    from minari.storage import get_dataset_path

    with or_refuse(f"{name}, a folder of Minari's"):
        folder = Path(get_dataset_path(name))
        is_taken = folder.exists()
    if is_taken:
        raise LaunchError(f"{folder} exists; name another version, such as {_next_version(name)}")
    values = _Rounded(config.env)
    with or_refuse(short(folder)), _removed_if_it_fails(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody has said who the author is
        dataset = minari.create_dataset_from_buffers(
            name,
            [],
            env=registered_spec(config.env),
            algorithm_name=config.policy.type,
            observation_space=values.observation_space,
            action_space=values.action_space,
            description=f"episodes of the run {run.parent.name}/{run.name}, seed {config.seed}",
            jpeg_encoding=False,
        )
        count, steps = write_episodes(
            dataset.storage.data_path, (_as_minari_has_it(e, values) for e in episodes)
        )
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        megabytes = round(size / 1e6, 1)
        dataset.storage.update_metadata(
            {"total_episodes": count, "total_steps": steps, "dataset_size": megabytes}
        )
    return size


class _Rounded(EpisodeValues):
    """Values of which none is beyond the bounds of its space because it was stored in float32."""

    def __init__(self, cfg: EnvConfig) -> None:
        super().__init__(cfg)
        self._bounds = {**self._seen.bounds(), **self._acts.bounds()}

    def observations(self, columns: Columns) -> Any:
        """See `EpisodeValues.observations`."""
        return super().observations(self._within(columns))

    def actions(self, columns: Columns) -> Any:
        """See `EpisodeValues.actions`."""
        return super().actions(self._within(columns))

    def _within(self, columns: Columns) -> Columns:
        """Returns columns, those that are rounded to within their bounds in float64."""
        within = dict(columns)
        for name in columns.keys() & self._bounds.keys():
            low, high, slack = self._bounds[name]
            column = columns[name].astype(np.float64).reshape(len(columns[name]), *low.shape)
            clipped = column.clip(low, high)
            with np.errstate(invalid="ignore"):  # of NaN, and of bounds that are infinite
                within[name] = np.where(np.abs(column - clipped) <= slack, clipped, column)
        return within


def _as_minari_has_it(episode: Episode, values: _Rounded) -> dict[str, Any]:
    own = ("policy_version", ACTION_MASK)
    infos = {name: episode.columns[name] for name in own if name in episode.columns}
    metadata = {"collector": episode.collector, "env": episode.env, "player": episode.player}
    if episode.seed is not None:
        metadata |= {"generator_seed": episode.seed, "generator_resets": episode.resets}
        metadata |= {"seed": episode.seed} if not episode.resets else {}
    return {
        "observations": values.observations(episode.observations),
        "actions": values.actions(episode.columns),
        "rewards": episode.reward,
        "terminations": episode.columns["terminated"],
        "truncations": episode.columns["truncated"],
        "infos": {**unflatten(episode.infos), **infos},
        "metadata": metadata,
    }


def _next_version(name: str) -> str:
    base, _, version = name.rpartition("-v")
    return f"{base}-v{int(version) + 1}"


@contextlib.contextmanager
def _removed_if_it_fails(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


# ---------------------------------------------------------------------------------------- Parquet


def _write_parquet(file: Path, episodes: Iterable[Episode]) -> None:
    """Write a row a step: where it was made, and its columns, those of several numbers as lists."""
    with _ParquetFile(file) as out:
        for tables in _groups(map(_table, itertools.count(), episodes)):
            out.write(tables)


class _ParquetFile(Closing):
    """Writes tables whose columns may differ to a Parquet file; null is what a table lacks.

    Args:
        path: of the file, which may be there; it is then replaced in place.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, tables: list[Any]) -> None:
        """Append the rows of tables; a column that is new is null in all rows before."""
        import pyarrow as pa

        schemas = [] if self._writer is None else [self._writer.schema]
        schema = pa.unify_schemas([*schemas, *(table.schema for table in tables)])
        if self._writer is None:
            self._begin(schema)
        elif len(schema) > len(self._writer.schema):
            self._widen(schema)
        self._append(tables)

    def close(self) -> None:
        """Write out the file. Idempotent."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begin(self, schema: Any) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(self._path, schema, compression="zstd")

    def _append(self, tables: list[Any]) -> None:
        import pyarrow as pa

        whole = [self._writer.schema.empty_table(), *tables]  # first, for the order of columns
        self._writer.write_table(pa.concat_tables(whole, promote_options="default"))

    def _widen(self, schema: Any) -> None:
        """Write the file anew with more columns: a run was resumed with other settings."""
        import pyarrow.parquet as pq

        self.close()
        narrow = temporary_beside(self._path)
        try:
            shutil.copyfile(self._path, narrow)
            self._begin(schema)
            with pq.ParquetFile(narrow) as before:
                for number in range(before.num_row_groups):
                    self._append([before.read_row_group(number)])
        finally:
            narrow.unlink(missing_ok=True)


def _groups(tables: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields tables together, so many that they are worth a row group."""
    group: list[Any] = []
    rows = 0
    for table in tables:
        group.append(table)
        rows += len(table)
        if rows >= _ROWS_AT_A_TIME:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _table(number: int, episode: Episode) -> Any:
    import pyarrow as pa

    steps = len(episode)
    columns: dict[str, Any] = {
        "collector": pa.array([episode.collector] * steps, pa.string()),
        "env": np.full(steps, episode.env, np.int32),
        "player": pa.array([episode.player] * steps, pa.string()),
        "episode": np.full(steps, number, np.int64),
        "step": np.arange(steps, dtype=np.int32),
    }
    columns |= {name: seen[:-1] for name, seen in episode.observations.items()}
    columns |= {f"next_{name}": seen[1:] for name, seen in episode.observations.items()}
    columns |= episode.columns
    columns["seed"] = pa.array([episode.seed] * steps, pa.int64())
    columns["resets"] = np.full(steps, episode.resets, np.int32)
    return pa.table({name: _arrow(column) for name, column in columns.items()})


def _arrow(column: object) -> Any:
    import pyarrow as pa

    if not isinstance(column, np.ndarray) or column.ndim == 1:
        return column
    numbers = pa.array(np.ascontiguousarray(column).ravel())
    if not column.size:  # lists of no numbers, whose count `numbers` does not say
        return pa.ListArray.from_arrays(pa.array(np.zeros(len(column) + 1, np.int32)), numbers)
    return pa.FixedSizeListArray.from_arrays(numbers, column.size // len(column))
