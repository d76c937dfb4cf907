"""Containers of DI-engine's serial collectors, and transitions as tensors."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from hpcdi.types import Transition
from hpcdi.utils.nested import to_tensors


class CachePool:
    """The last value of each environment, e.g. its observation or its policy's output.

    Of several players it is a list, one value a player, None where a player has none yet.

    Args:
        name: for messages.
        env_num: environments.
        deepcopy: keep copies, for environments that write each value over the one before.
    """

    def __init__(self, name: str, env_num: int, deepcopy: bool = False) -> None:
        self._name, self._deepcopy = name, deepcopy
        self._values: list[list[Any] | None] = [None] * env_num

    def update(self, data: Mapping[int, Any] | list[Mapping[int, Any]]) -> None:
        """Set values by environment: of one player, or of each of several.

        Raises:
            TypeError: `data` is neither a mapping nor a list of such.
        """
        of_players: Sequence[object] = data if isinstance(data, list) else [data]
        for player, values in enumerate(of_players):
            if not isinstance(values, Mapping):
                message = f"{self._name} takes values by environment"
                raise TypeError(f"{message}, not a {type(values).__name__}")
            for env, value in values.items():
                kept = [*(self._values[env] or ())]
                if len(kept) != len(of_players):
                    kept = [None] * len(of_players)
                kept[player] = copy.deepcopy(value) if self._deepcopy else value
                self._values[env] = kept

    def __getitem__(self, env: int) -> Any:
        values = self._values[env]
        return values[0] if values is not None and len(values) == 1 else values

    def reset(self, idx: int) -> None:
        """Forget an environment's value."""
        self._values[idx] = None


class TrajBuffer(list[Any]):
    """The newest `maxlen` transitions of a trajectory.

    Args:
        maxlen: how many; None or infinity: all.
        args: first items, an iterable.
        deepcopy: keep copies.
    """

    def __init__(
        self,
        maxlen: float | None,
        *args: Iterable[Any],
        deepcopy: bool = False,
    ) -> None:
        super().__init__(*args)
        self.maxlen, self._deepcopy = maxlen, deepcopy
        self._shorten()

    def append(self, data: Any) -> None:
        """Append an item; the oldest is dropped where there are too many."""
        super().append(copy.deepcopy(data) if self._deepcopy else data)
        self._shorten()

    def extend(self, data: Iterable[Any]) -> None:
        """Append several items; see `append`."""
        super().extend(copy.deepcopy(list(data)) if self._deepcopy else data)
        self._shorten()

    def __iadd__(self, items: Iterable[Any]) -> Self:  # type: ignore[misc]  # as extend: any items
        self.extend(items)
        return self

    def _shorten(self) -> None:
        if self.maxlen is not None and len(self) > self.maxlen:
            del self[: len(self) - int(self.maxlen)]


def to_tensor_transitions(
    data: list[Transition],
    shallow_copy_next_obs: bool = True,
) -> list[Transition]:
    """Transitions of one trajectory with torch tensors for arrays.

    Doubles become float32, other dtypes stay; a list or tuple of numbers becomes one tensor. Single
    numbers, truth values, texts and tensors stay as they are; see `to_tensors`.

    Args:
        data: consecutive transitions, each with ``obs`` and ``next_obs``, where the next
            observation of one is the observation of the next.
        shallow_copy_next_obs: let ``next_obs`` of each share the memory of the next one's ``obs``:
            an observation is held once.
    """
    as_tensors = partial(to_tensors, as_floats=False)
    if not shallow_copy_next_obs or not data or "next_obs" not in data[0]:
        return [as_tensors(item) for item in data]
    converted = [
        as_tensors({key: value for key, value in item.items() if key != "next_obs"})
        for item in data[:-1]
    ]
    converted.append(as_tensors(data[-1]))
    for item, successor in itertools.pairwise(converted):
        item["next_obs"] = successor["obs"]
    return converted
