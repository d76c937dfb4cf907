"""The roles: coordinator, collectors, learners, and the replay buffers.

Owns: everything that the predecessor's ``ding.worker`` had, under the same names: each package's
`__all__`, in one; modules that are elsewhere here are in `old_paths`. May import: `transport`,
`policy`, `env`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: roles meet by
messages and files only; coordinator, collector and learner never import each other. All five
packages are imported when a name of one is asked for, not before: a rank has one role.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcdi.worker import old_paths

if TYPE_CHECKING:
    from hpcdi.worker import adapter, collector, coordinator, learner, replay_buffer
    from hpcdi.worker.adapter import *  # noqa: F403
    from hpcdi.worker.collector import *  # noqa: F403
    from hpcdi.worker.coordinator import *  # noqa: F403
    from hpcdi.worker.learner import *  # noqa: F403
    from hpcdi.worker.replay_buffer import *  # noqa: F403

    __all__: list[str] = []
    __all__ += adapter.__all__
    __all__ += collector.__all__
    __all__ += coordinator.__all__
    __all__ += learner.__all__
    __all__ += replay_buffer.__all__

_PACKAGES = ("adapter", "collector", "coordinator", "learner", "replay_buffer")

old_paths.register(__name__)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if not name.startswith("_") or name == "__all__":
        packages = [import_module(f"{__name__}.{package}") for package in _PACKAGES]
        if name == "__all__":
            return [public for package in packages for public in package.__all__]
        for package in packages:
            if name in package.__all__:
                return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
