"""Results of games, as a block states them: counts by pairs of players in one short text.

They lie in the same record as the block's steps: a game counts when its block does, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcdi.types import GameCounts

MOST_PAIRS = 12
"""Pairs of players in one block: its record has room for so many, and is as long from the first."""
_TEXT = 560  # characters: 12 pairs of names of 12 characters, and counts of 5 digits


class GameTally:
    """Counts of games by pairs of players."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}

    def add(self, games: Iterable[GameCounts]) -> None:
        """Add games."""
        for one, other, *counts in games:
            sums = self._counts.setdefault((one, other), [0, 0, 0])
            for i, count in enumerate(counts):
                sums[i] += count

    def takes(self, games: Sequence[GameCounts]) -> bool:
        """Returns whether these fit into a block that has what was added so far."""
        new = {(one, other) for one, other, *_ in games} - self._counts.keys()
        return not self._counts or len(self._counts) + len(new) <= MOST_PAIRS

    def __str__(self) -> str:
        rows = [" ".join(map(str, (*pair, *counts))) for pair, counts in self._counts.items()]
        return ";".join(rows).ljust(_TEXT)


def parse_games(text: str) -> tuple[GameCounts, ...]:
    """Results in a tally's text.

    Raises:
        ValueError: it is no such text.
    """
    games = []
    for row in filter(None, text.strip().split(";")):
        one, other, wins, draws, losses = row.split(" ")
        games.append((one, other, int(wins), int(draws), int(losses)))
    return tuple(games)
