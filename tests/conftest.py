"""Fixtures for all tests: every test leaves the process as it found it."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

pytest.register_assert_rewrite("fakes")  # before anything imports them

hypothesis.settings.register_profile(  # a busy machine is no failure
    "hpcdi", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("hpcdi")

ROOT = Path(__file__).parent.parent

# variables that libraries set when they are first imported, once and for all
_SET_BY_LIBRARIES = (
    "KMP_",
    "TORCH",
    "CUDA_",
    "PYGAME_",
    "OMPI_",
    "PMIX_",
    "PYTEST_",
    "SDL_",
    "TF_",
    "GRPC_",
)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: some tests wait."""
    affinity = getattr(os, "sched_getaffinity", None)
    return 1 + (len(affinity(0)) if affinity else os.cpu_count() or 1)


# Eight thousand tests of 60,000 lines cost each process seconds before the first begins.


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made here stays: it is looked through for garbage once, and never again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Each process begins at another file: what one has compiled is there for the others."""
    report = yield
    number, count = _share()
    if isinstance(collector, pytest.Dir):
        at = len(report.result) * number // count
        report.result = [*report.result[at:], *report.result[:at]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All processes have the same order; none waits at the end for what takes longest."""
    if _share()[1] > 1:
        items.sort(key=lambda item: (item.get_closest_marker("early") is None, item.path))


def _share() -> tuple[int, int]:
    """Which of pytest-xdist's processes this is, and of how many."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(worker.removeprefix("gw")), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def pytest_collection_finish() -> None:
    """Pytest adds its handlers, for each part of each test, to each logger that does not propagate.

    There are dozens in torch.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(autouse=True)
def _no_leaked_thread() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    started = [t for t in threading.enumerate() if t not in before and t.name != "tqdm_monitor"]
    left = [thread for thread in started if _joined_in_vain(thread)]
    assert not left, f"threads are left over: {left}"


def _joined_in_vain(thread: threading.Thread) -> bool:
    thread.join(timeout=20.0)
    return thread.is_alive()


@pytest.fixture(autouse=True)
def _no_leaked_process() -> Iterator[None]:
    before = _children()
    yield
    left = _children() - before
    assert not left, f"child processes are left over: {left}"


def _children() -> set[int]:
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(map(int, listing.read_text().split())) if listing.exists() else set()


@pytest.fixture(autouse=True)
def _no_leaked_variable() -> Iterator[None]:
    before = dict(os.environ)
    yield
    changed = {
        name
        for name in os.environ.keys() | before.keys()
        if os.environ.get(name) != before.get(name) and not name.startswith(_SET_BY_LIBRARIES)
    }
    assert not changed, f"environment variables were changed: {sorted(changed)}"


@pytest.fixture(autouse=True)
def _no_armed_timer() -> Iterator[None]:
    """A watchdog that nobody has closed would end the tests minutes later."""
    yield
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0.0)
    watchdog = sys.modules.get("hpcdi.utils.watchdog")
    for timer in [] if watchdog is None else list(watchdog.TIMERS):
        left_s = left_s or timer.left_s
        timer.set(0.0)
    assert left_s == 0.0, f"a timer is armed: it ends this process in {left_s:.0f} s"


@pytest.fixture(autouse=True)
def _no_leaked_group() -> Iterator[None]:
    yield
    dist = sys.modules.get("torch.distributed")
    assert dist is None or not dist.is_initialized(), "the process group was not left"


@pytest.fixture(autouse=True)
def _no_open_hdf5_file() -> Iterator[None]:
    yield
    h5py = sys.modules.get("h5py")
    if h5py is not None:
        count = h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)
        assert count == 0, f"{count} HDF5 files are open"


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """A small network's results must not hang on how many cores there are."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
