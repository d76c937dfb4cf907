"""Settings that a run is gone on with, from when on they are the run's own."""

from __future__ import annotations

from functools import partial

from hpcdi.config.fields import to_mapping
from hpcdi.config.schema import ExperimentConfig
from hpcdi.launch import run_folder
from hpcdi.store.checkpoints import names
from hpcdi.store.disk_full import or_warn
from hpcdi.store.layout import RunLayout

_EACH_S = 1.0


class NewSettings:
    """Writes ``config.yaml`` anew, once the run has come to a snapshot by the settings of now.

    Until then a restart finds those by which the snapshots came about: a setting with which the run
    cannot even begin is not kept.

    Args:
        layout: the run folder, before anything is written there.
        config: the settings of now.
    """

    def __init__(self, layout: RunLayout, config: ExperimentConfig) -> None:
        self._layout, self._config = layout, config
        self._newest = names(layout.snapshots_dir)[-1:]
        self._is_due = bool(self._newest)  # else the run is new, and so is its config.yaml
        self._looked_at = 0.0

    def look(self, now: float, *, at_once: bool = False) -> None:
        """See whether there is a new snapshot: `at_once`, or if the last look is a second ago.

        Args:
            now: by a clock that only goes forward, in seconds.
            at_once: however long that is.
        """
        if not self._is_due or (now - self._looked_at < _EACH_S and not at_once):
            return
        self._looked_at = now
        if names(self._layout.snapshots_dir)[-1:] != self._newest:
            self._is_due = False
            write = partial(run_folder.keep_config, self._layout, to_mapping(self._config))
            or_warn("config.yaml", write)
