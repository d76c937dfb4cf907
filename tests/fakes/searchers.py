"""A searcher of the user's: its second trial would never end, and is pruned."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdi.search import Searcher, Value

STEPS = "policy.other.commander.max_env_step"


class Planted(Searcher):
    def ask(self, number: int) -> Mapping[str, Value]:
        return {STEPS: "100000000" if number == 1 else "320"}

    def report(self, number: int, step: int, value: float) -> bool:
        return number == 1 and step >= 1000

    def tell(
        self, number: int, settings: Mapping[str, Value], score: float | None, *, is_pruned: bool
    ) -> None:
        with (self.folder / "told.txt").open("a") as file:
            file.write(f"{number} {settings[STEPS]} {score is None} {is_pruned}\n")
