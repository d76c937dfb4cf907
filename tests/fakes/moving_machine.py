"""A hypothesis machine over a replay buffer that moves to new buffers, by state and by file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule


class MovingMachine(RuleBasedStateMachine):
    """Subclasses begin with `self.buffer` and `self.folder`; `check` runs after each step."""

    buffer: Any
    folder: TemporaryDirectory[str]

    def make(self, seed: int) -> Any:
        """An empty buffer."""
        raise NotImplementedError

    def fill(self, buffer: Any) -> None:
        """Push what must be gone after a load."""
        raise NotImplementedError

    def follow(self, moved: Any) -> None:
        """See that both draw alike from now on; go on with the moved one."""
        raise NotImplementedError

    def check(self) -> None:
        """See that the buffer and the model agree."""
        raise NotImplementedError

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule(seed=st.integers(0, 1000))
    def move_by_state(self, seed: int) -> None:
        moved = self.make(seed)
        self.fill(moved)
        moved.load_state_dict(self.buffer.state_dict())
        self.follow(moved)

    @rule(seed=st.integers(0, 1000))
    def move_by_file(self, seed: int) -> None:
        path = Path(self.folder.name) / "buffer.h5"
        self.buffer.save_data(path)
        moved = self.make(seed)
        moved.load_data(path)
        self.follow(moved)

    @invariant()
    def is_valid(self) -> None:
        if hasattr(self, "buffer"):
            self.check()
