"""Batches of samples that are still to be loaded, and lists of dicts made of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hpcdi.store.rows import transitions
from hpcdi.transport.base import Transport
from hpcdi.types import Columns
from hpcdi.utils.nested import share_tensors
from hpcdi.worker.dict_samples import weighted_samples_of


class SampleLoader(Iterator[Any]):
    """Yields batches, one after the other.

    A batch may be a list of functions without arguments, each of which returns a sample (from a
    file, perhaps), or be such a function itself.

    Args:
        get_batch: returns the next batch; None when no more will come.
        num_workers: threads that call the functions of a batch; 0: it is done here, in order.
    """

    def __init__(self, get_batch: Callable[[], Any], num_workers: int = 0) -> None:
        self._get_batch, self._num_workers = get_batch, num_workers
        self._pool: ThreadPoolExecutor | None = None

    def __next__(self) -> Any:
        """Returns the next batch, all samples in their order; errors of loading one come here."""
        batch = self._get_batch()
        if batch is None:
            raise StopIteration
        batch = _loaded(batch)
        if not isinstance(batch, list) or not any(map(callable, batch)):
            return batch
        if self._num_workers == 0:
            return list(map(_loaded, batch))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_workers, "sample-loader")
        return list(self._pool.map(_loaded, batch))

    def close(self) -> None:
        """End the threads; the next batch would start them again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _loaded(sample: Any) -> Any:
    return sample() if callable(sample) else sample


# ------------------------------------------------------------------------------- lists of dicts


def takes_columns(policy: Any) -> bool:
    """Returns whether a learn mode takes tensors by column."""
    try:
        return bool(policy.get_attribute("columnar"))
    except (NotImplementedError, AttributeError, KeyError):
        return False


def batch_of_blocks(
    transport: Transport, data: Sequence[Mapping[str, Any]], *, as_columns: bool
) -> Any:
    """Returns one batch of all transitions of some blocks.

    Args:
        transport: fetches the blocks.
        data: metadata of each block, for each of its transitions: ``data_id`` names it, ``IS`` is
            the weight.
        as_columns: name -> tensor; else a list of dicts, in which metadata go over a transition's
            keys.
    """
    blocks: list[tuple[Columns, Mapping[str, Any]]] = [
        (transitions(transport.fetch_named(meta["data_id"])), meta) for meta in data
    ]
    names = list(blocks[0][0])
    columns = {name: np.concatenate([block[name] for block, _ in blocks]) for name in names}
    metas = [meta for block, meta in blocks for _ in range(len(block[names[0]]))]
    weights = np.array([meta.get("IS", 1.0) for meta in metas], dtype=np.float32)
    batch = share_tensors({**columns, "weight": weights})
    if as_columns:
        return batch
    return [{**item, **meta} for item, meta in zip(weighted_samples_of(batch), metas, strict=True)]
