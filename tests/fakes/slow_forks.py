"""An environment whose process forks on a busy machine; imported before hpcdi's hooks are there."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

from hpcdi.env.toy import CountEnv

if multiprocessing.parent_process() is not None:
    os.register_at_fork(after_in_child=lambda: time.sleep(0.2))


class Terminating(CountEnv):
    """Terminates a process that it has just forked, and says how that has ended."""

    def __init__(self, file: str) -> None:
        super().__init__(3)
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(2.0)
        Path(file).write_text(str(process.exitcode))
        process.kill()
