"""Batches whose samples are there: those that come as functions are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class SampleLoader(Iterator[Any]):
    """Batches, one after the other.

    A batch may be a list of functions without arguments, each of which returns a sample (from a
    file, perhaps), or be such a function itself.

    Args:
        get_batch: the next batch; None when no more will come.
        num_workers: threads that call the functions of a batch; 0: it is done here, in order.
    """

    def __init__(self, get_batch: Callable[[], Any], num_workers: int = 0) -> None:
        self._get_batch, self._num_workers = get_batch, num_workers
        self._pool: ThreadPoolExecutor | None = None

    def __next__(self) -> Any:
        """The next batch, all samples in their order; what loading one raises is raised here."""
        batch = self._get_batch()
        if batch is None:
            raise StopIteration
        batch = _made(batch)
        if not isinstance(batch, list) or not any(map(callable, batch)):
            return batch
        if self._num_workers == 0:
            return list(map(_made, batch))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_workers, "sample-loader")
        return list(self._pool.map(_made, batch))

    def close(self) -> None:
        """End the threads; the next batch would start them again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _made(sample: Any) -> Any:
    return sample() if callable(sample) else sample
