"""One serial run: its parts, its snapshots, what it shows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hpcdi.comm.messages import StopRequest
from hpcdi.config.schema import ExperimentConfig
from hpcdi.errors import EXIT_DONE, CheckpointError
from hpcdi.launch.resume import NewSettings, has_snapshot, newest_snapshot
from hpcdi.launch.serial.parts import PartsMaker, load_student_state, student_state
from hpcdi.launch.serial.pipeline import SerialPipeline, Student
from hpcdi.store.atomic import write_json
from hpcdi.store.checkpoints import (
    load_tensors,
    save_checkpoint,
    save_tensors,
)
from hpcdi.store.disk_full import or_warn
from hpcdi.store.layout import RunLayout
from hpcdi.store.policies import PolicyImage, pack, publish_policy
from hpcdi.store.status import StatusFile
from hpcdi.types import Spaces
from hpcdi.utils.curves import TensorBoardWriter, drop_events_after
from hpcdi.utils.lifetime import Closing
from hpcdi.utils.metrics import Rate, human_count, human_time
from hpcdi.utils.progress import Status, StatusLine
from hpcdi.worker.fault import FAULTS

_BUFFER, _LEARNER, _POLICY = "buffer{}.h5", "learner{}.pt", "policy{}.safetensors"


class SerialRun(Closing):
    """A run in this process, from its parts to its last snapshot.

    A snapshot is of the whole run, which goes on from it; checkpoints are a learner's own.

    Args:
        config: the experiment.
        spaces: of its environment.
        layout: the run folder.
        restarts: how often the run has been taken up again: random numbers are others each time.
    """

    def __init__(
        self, config: ExperimentConfig, spaces: Spaces, layout: RunLayout, restarts: int
    ) -> None:
        self._config, self._layout = config, layout
        self._curves = TensorBoardWriter(layout.tensorboard_dir)
        parts = PartsMaker(config, spaces, self._curves, layout, restarts).make()
        self.pipeline = SerialPipeline(config, parts, self._keep_best)
        self._watch = _Watch(config, self.pipeline, layout)
        self._snapshot_due = time.monotonic() + config.system.snapshot_s
        self._settings = NewSettings(layout, config)

    def train(self, take_stop: Callable[[], StopRequest | None]) -> tuple[str, str, int]:
        """Train to the end; gives state, reason and exit code.

        Args:
            take_stop: gives, once, what a signal asked for.
        """
        stopped: list[StopRequest] = []

        def stop() -> str | None:
            now = time.monotonic()
            self._watch.look(now)
            FAULTS.reach(self.pipeline.env_steps)
            if now >= self._snapshot_due:
                or_warn("snapshot", self.save)
                self._snapshot_due = time.monotonic() + self._config.system.snapshot_s
            request = take_stop()
            if request is not None:
                stopped.append(request)
            return request.reason if request is not None else None

        for student in self.pipeline.parts.students:
            student.learner.call_hook("before_run")
        reason = self.pipeline.run(stop)
        if not stopped:
            self.pipeline.evaluate_at_end()
        self._watch.look(time.monotonic(), at_once=True)
        for student in self.pipeline.parts.students:
            student.learner.call_hook("after_run")
        or_warn("snapshot", self.save)
        if stopped:
            return "stopped", reason, stopped[0].exit_code
        return "done", reason, EXIT_DONE

    def save(self) -> None:
        """Write a snapshot: policy, optimizer, counters, random numbers, replay buffer."""
        pipeline, parts = self.pipeline, self.pipeline.parts
        publish_policy(self._layout.latest_policy, _image(parts.students[0]))
        writers: dict[str, Callable[[Path], None]] = {}
        for number, student in enumerate(parts.students):
            writers[_POLICY.format(number)] = partial(_write_policy, student)
            writers[_LEARNER.format(number)] = partial(_write_state, student)
            if not pipeline.is_on_policy:
                writers[_BUFFER.format(number)] = student.buffer.save_data
        facts = {
            "train_iter": pipeline.train_iter,
            "env_steps": pipeline.env_steps,
            "totals": parts.collector.totals,
            "evaluated_at": pipeline.evaluated_at,
            "best": parts.evaluator.best,
            "saved_at": time.time(),
        }
        # data that are collected before the first iteration are worth a snapshot, too
        name = f"iteration_{pipeline.train_iter:09d}_step_{pipeline.env_steps:012d}"
        save_checkpoint(
            self._layout.snapshots_dir, name, writers, facts,
            keep=self._config.system.keep_snapshots,
        )  # fmt: skip
        self._settings.look(time.monotonic(), at_once=True)

    def resume(self) -> str:
        """Go on from the newest whole snapshot; says which it is.

        Raises:
            CheckpointError: there is none, or the configuration has changed too much.
        """
        snapshot = newest_snapshot(self._layout)
        parts, facts = self.pipeline.parts, snapshot.facts
        for number, student in enumerate(parts.students):
            state = load_tensors(snapshot.file(_LEARNER.format(number)))
            try:
                load_student_state(student, state)
            except (RuntimeError, KeyError, ValueError) as error:
                raise CheckpointError(
                    snapshot.folder, f"does not fit the present configuration: {error}"
                ) from error
            held = snapshot.file(_BUFFER.format(number))
            if held.exists():
                student.buffer.load_data(held)
        parts.collector.totals = facts["totals"]
        if facts["evaluated_at"] >= 0:  # the next evaluation is counted from there
            parts.evaluator.should_eval(facts["evaluated_at"])
            self.pipeline.evaluated_at = facts["evaluated_at"]
        parts.evaluator.best = self._best_of(facts["best"])
        drop_events_after(self._layout.tensorboard_dir, facts["saved_at"])
        return (
            f"{snapshot.folder.name}: env step {human_count(facts['env_steps'])}, "
            f"buffer {human_count(parts.students[0].buffer.count())}"
        )

    @property
    def has_snapshot(self) -> bool:
        """Whether the run can be gone on with."""
        return has_snapshot(self._layout)

    def summary(self) -> list[str]:
        """Closing lines for people."""
        return self._watch.summary()

    def figures(self) -> dict[str, Any]:
        """Closing figures for programs: plain data."""
        return self._watch.figures()

    def close(self) -> None:
        """Close environments and curves; again: nothing."""
        parts = self.pipeline.parts
        for student in parts.students:
            student.learner.close()
            student.buffer.close()  # it has a last word for the curves, which the others close
        parts.collector.close()
        parts.evaluator.close()
        self._curves.close()

    def _keep_best(self, name: str) -> None:
        """Keep the policy that is judged, which is the first student's."""
        student = self.pipeline.parts.students[0]
        student.learner.save_checkpoint(name)

        def publish() -> None:
            publish_policy(self._layout.best_policy, _image(student))
            write_json(self._best_file, {"reward_mean": self.pipeline.parts.evaluator.best})

        or_warn("file of the best policy", publish)

    def _best_of(self, best: float | None) -> float | None:
        """The best result: of a checkpoint, or of the best policy, which may be a newer one."""
        known = [value for value in (best, _read_best(self._best_file)) if value is not None]
        return max(known, default=None)

    @property
    def _best_file(self) -> Path:
        return self._layout.best_policy.with_suffix(".json")


def _read_best(path: Path) -> float | None:
    """What the best policy's evaluation gave; None where that is not known."""
    try:
        return float(json.loads(path.read_text())["reward_mean"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _image(student: Student) -> PolicyImage:
    return pack(student.policy.state_dict()["model"], student.learner.train_iter)


def _write_policy(student: Student, path: Path) -> None:
    publish_policy(path, _image(student))


def _write_state(student: Student, path: Path) -> None:
    save_tensors(path, student_state(student))


class _Watch:
    """What is shown of a run, and counted for its end."""

    def __init__(
        self, config: ExperimentConfig, pipeline: SerialPipeline, layout: RunLayout
    ) -> None:
        self._pipeline = pipeline
        self._started = time.monotonic()
        self._rates = (Rate(), Rate())
        commander = config.policy.other.commander
        limits = (commander.max_env_step, commander.max_train_iter)
        self._line = StatusLine(
            is_terminal=os.isatty(1),
            interval_s=config.system.coordinator.progress_interval,
            limits=limits,
            started=self._started,
        )
        self._file = StatusFile(layout.status_file, limits, config.env.stop_value)

    def look(self, now: float, *, at_once: bool = False) -> None:
        pipeline = self._pipeline
        self._rates[0].add(now, pipeline.env_steps)
        self._rates[1].add(now, pipeline.train_iter)
        self._line.refresh(self._status, pipeline.evaluations, now)
        self._file.refresh(self._status, pipeline.evaluations, now, at_once=at_once)

    def summary(self) -> list[str]:
        pipeline, elapsed_s = self._pipeline, time.monotonic() - self._started
        lines = [
            f"  {human_count(pipeline.env_steps)} env steps and "
            f"{human_count(pipeline.train_iter)} train iterations; {human_time(elapsed_s)}"
        ]
        if pipeline.train_iter == 0:
            lines.append("  nothing was learnt: the run ended before the first train iteration")
        if pipeline.evaluations:
            best = max(pipeline.evaluations, key=lambda evaluation: evaluation.mean)
            lines.append(f"  best evaluation: {best}")
        return lines

    def figures(self) -> dict[str, Any]:
        pipeline = self._pipeline
        return {
            "env_steps": pipeline.env_steps,
            "train_iter": pipeline.train_iter,
            "elapsed_s": time.monotonic() - self._started,
            "ended_at": time.time(),
            "evaluations": [vars(evaluation) for evaluation in pipeline.evaluations],
        }

    def _status(self) -> Status:
        pipeline, buffer = self._pipeline, self._pipeline.parts.students[0].buffer
        evaluations = pipeline.evaluations
        before, blocked, facts = list[str](), "", dict[str, Any](phase="running")
        if not pipeline.is_on_policy:
            held, size, blocked = buffer.count(), buffer.replay_buffer_size, buffer.blocked
            facts["buffer"] = {"held": held, "capacity": size, "blocked": blocked}
            before.append(f"buffer {human_count(held)}/{human_count(size)}")
        return Status(
            (pipeline.env_steps, self._rates[0].per_second()),
            (pipeline.train_iter, self._rates[1].per_second()),
            pipeline.parts.collector.recent_returns,
            evaluations[-1].mean if evaluations else None,
            (before, [blocked] if blocked else []),
            facts,
        )
