"""A run's data for scripts: whole episodes, read from its shards.

    from hpcdi.data import read_episodes

    for episode in read_episodes("runs/cartpole_dqn/latest"):
        print(len(episode), episode.total, episode.observation.shape)

or, as a table of them: ``pandas.DataFrame(e.facts for e in read_episodes(run))``.

A shard is plain HDF5, and an episode's steps lie over several items of it, perhaps over several
shards; each item is followed by a row that has the observation after it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcdi.errors import ShardError, StoreError
from hpcdi.store.block import Block
from hpcdi.store.layout import name_of
from hpcdi.store.rows import rows_of, transitions
from hpcdi.store.shards import read_blocks
from hpcdi.types import GIVEN, RELABELLED, Array, Columns
from hpcdi.utils.nested import take_rows, under

_OBSERVATION = "observation"


@dataclass(frozen=True)
class Episode:
    """An episode of one environment, or of one player in it.

    Attributes:
        observations: ``observation``, or ``observation/<leaf>``: [steps + 1, ...], the one after
            the last step too.
        columns: everything else that was stored of its steps, [steps, ...]: ``action`` (or
            ``action/<leaf>``), ``reward``, ``terminated``, ``truncated``, ``action_mask``, what the
            policy added, and ``policy_version``.
        collector: rank of its collector.
        env: number of the environment among those of its collector.
        is_whole: it has ended, and nothing of it is missing.
    """

    observations: Columns
    columns: Columns
    collector: str
    env: int
    is_whole: bool

    def __len__(self) -> int:
        """Returns the number of steps."""
        return len(self.columns["reward"])

    @property
    def observation(self) -> Any:
        """Observations [steps + 1, ...]: an array, or of several parts a dict of them."""
        return _grouped(self.observations, _OBSERVATION)

    @property
    def action(self) -> Any:
        """Actions [steps, ...], as policies count them: an array, or a dict of parts."""
        return _grouped(self.columns, "action")

    @property
    def reward(self) -> Array:
        """Rewards [steps]."""
        return self.columns["reward"]

    @property
    def total(self) -> float:
        """Sum of the rewards."""
        return float(self.reward.sum(dtype=np.float64))

    @property
    def facts(self) -> dict[str, Any]:
        """What a table of episodes has in a row."""
        version = self.columns["policy_version"]
        return {
            "collector": self.collector,
            "env": self.env,
            "steps": len(self),
            "return": self.total,
            "terminated": bool(self.columns["terminated"][-1]),
            "truncated": bool(self.columns["truncated"][-1]),
            "policy_version": int(version[0]),
        }


def read_episodes(run: str | Path, *, unfinished: bool = False) -> Iterator[Episode]:
    """Yields the episodes of a run, collector after collector, in the order in which they ended.

    They are those that it has collected, without the `data` that it was given, and without copies
    that have other goals (`policy.hindsight`).

    A collector's open episodes are in memory, nothing else. A run that is on may be read: what is
    published so far.

    Args:
        run: its folder.
        unfinished: also those that were cut: by the run's end, by a failure, or because a shard is
            gone or damaged.

    Raises:
        StoreError: there are no data, or these are no transitions.
    """
    folders = sorted({path.parent for path in (Path(run) / "data").glob("*/*/*.h5")})
    folders = [folder for folder in folders if folder.parent.name != name_of(GIVEN)]
    if not folders:
        raise StoreError(run, "holds no data that it has collected (data/*/*/*.h5)")
    for folder in folders:
        yield from _episodes_of(folder, unfinished=unfinished)


def _episodes_of(folder: Path, *, unfinished: bool) -> Iterator[Episode]:
    """Yields the episodes of one start of a collector."""
    open_episodes, gaps = dict[int, list[_Part]](), _Gaps()
    for path in sorted(folder.glob("*.h5")):
        gaps.at_file(path)
        for block in _blocks(path):
            if isinstance(block, ShardError):
                gaps.count += 1
                continue
            for parts in _ended_in(block, folder, open_episodes, gaps):
                is_whole = parts[0].begins and parts[0].gaps == gaps.count
                if is_whole or unfinished:
                    yield _joined(parts, folder, is_whole=is_whole)
    if unfinished:
        for parts in open_episodes.values():
            yield _joined(parts, folder, is_whole=False)


def _ended_in(
    block: Block, folder: Path, open_episodes: dict[int, list[_Part]], gaps: _Gaps
) -> Iterator[list[_Part]]:
    """Yields the parts of each episode that ends in a block; others stay, or become, open."""
    envs = set[int]()
    for part in _parts_of(block, folder, gaps):
        open_episodes.setdefault(part.episode, []).append(part)
        if part.has_ended:
            envs.add(part.env)
            yield open_episodes.pop(part.episode)
    gaps.ended(envs)


def _blocks(path: Path) -> Iterator[Block | ShardError]:
    try:
        yield from read_blocks(path)
    except ShardError as error:
        yield error


class _Gaps:
    """Where data of a collector are missing: a part of an episode may have been there."""

    def __init__(self) -> None:
        self.count = 0
        self._file = 0
        self._ended: dict[int, int] = {}  # environment -> gaps when one of its episodes ended

    def at_file(self, path: Path) -> None:
        """The next shard: they are numbered from 1."""
        number = int(path.stem) if path.stem.isdigit() else self._file + 1
        self.count += number != self._file + 1
        self._file = number

    def begins(self, env: int) -> bool:
        """Returns whether an episode that is seen from here on begins here.

        Where something was missing that is so when one of the environment has ended since.
        """
        return self._ended.get(env, 0) == self.count

    def ended(self, envs: Iterable[int]) -> None:
        """Episodes of environments have ended in a block."""
        self._ended.update(dict.fromkeys(envs, self.count))


@dataclass
class _Part:
    """An item: consecutive steps of an episode, and the observation after them.

    `gaps` is how many there were before it; `begins` whether it may be its episode's first.
    """

    env: int
    episode: int
    observations: Columns
    after: Columns
    columns: Columns
    gaps: int
    begins: bool

    @property
    def has_ended(self) -> bool:
        return bool(self.columns["terminated"][-1] or self.columns["truncated"][-1])


def _parts_of(block: Block, folder: Path, gaps: _Gaps) -> Iterator[_Part]:
    """Yields the items of a block.

    Raises:
        StoreError: they are no transitions.
    """
    items, columns = block.items, transitions(block)
    seen = under(columns, _OBSERVATION)
    if "reward" not in columns or not seen or not block.tail_rows:
        raise StoreError(folder, "holds no transitions with the observations around them")
    after = rows_of(block, items["item_start"].astype(np.int64) + items["item_len"])
    for_items = {view.name for view in block.views} | {view.offset for view in block.views}
    columns["policy_version"] = np.repeat(items["policy_version"], items["item_len"])
    others = {n: c for n, c in columns.items() if n not in seen and n not in for_items}
    ends = np.cumsum(items["item_len"])
    for number, (start, end) in enumerate(zip(ends - items["item_len"], ends, strict=True)):
        if items["episode_id"][number] == RELABELLED:
            continue
        env = int(items["env_id"][number])
        yield _Part(
            env,
            int(items["episode_id"][number]),
            take_rows(seen, slice(start, end)),
            {name: after[name][number : number + 1] for name in seen},
            take_rows(others, slice(start, end)),
            gaps.count,
            gaps.begins(env),
        )


def _joined(parts: list[_Part], folder: Path, *, is_whole: bool) -> Episode:
    first, last = parts[0], parts[-1]
    return Episode(
        {
            name: np.concatenate([*(part.observations[name] for part in parts), last.after[name]])
            for name in first.observations
        },
        {name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns},
        folder.parent.name,
        first.env,
        is_whole,
    )


def _grouped(columns: Mapping[str, Array], name: str) -> Any:
    if name in columns:
        return columns[name]
    return {path.removeprefix(f"{name}/"): part for path, part in under(columns, name).items()}
