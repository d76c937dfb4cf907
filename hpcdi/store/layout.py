"""The paths in a run folder; `RunLayout` has all of them.

::

    runs/<exp_name>/
      latest -> .latest/<time>      the newest run, without its tb/: links into the run folder,
                                    see `hpcdi.run.latest`
      <time>/                       one run
        config.yaml                 the compiled experiment
        run.json                    state, versions, host, placement, result
        submit/                     of a run that was submitted: script, experiment, output of jobs
        status.json                 how it goes: steps, rates, last evaluation; new every second
        next_job.json               the job that continues the run, if the last one was not requeued
        run.lock                    while it runs: host, Slurm job and process that it runs in
        data/rank00002/<hour>/000001.h5      shards: one folder a collector and hour; a file
                                             is named by the number of its first block; from
                                             rank100000 on they are guests'
        guests/rank100003/                   of a guest that is there: its messages and heart-beat
        policies/latest.safetensors          the newest policy; best.safetensors the best evaluated
        policies/exploiter.safetensors       the newest one of another player that learns (leagues)
        league/main_000003.safetensors       a frozen player of a league; league.json its results
        checkpoints/iteration_000010000/     of a learner, and ckpt_final, ckpt_best
        checkpoints1/                        of the second player's learner (battles, leagues)
        snapshots/snapshot_000007/           of the whole run: what it resumes from
        profile/rank0.json                   where a learner's time goes, where that was asked for
        videos/iter_..._seed_0.mp4           films, where they were asked for
        callbacks/rank00002.json             states of callbacks that run on a collector, and
                                             rank00002.csv: curves that they log
        log/rank00002.jsonl                  each rank's log
        solvers/env00003/                    working folder of an environment that is an MPI
                                             program; rank00000.log, ...: what its ranks print
        curves.csv                  every curve: curve, step, time, value; commands read it
        tb/events.out.tfevents...            the same curves for TensorBoard, and pictures
        loggers/wandb/, mlruns/              the same curves, of `system.loggers`
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from hpcdi.dataclass import dataclass
from hpcdi.errors import StoreError
from hpcdi.store.files import names_in
from hpcdi.types import FIRST_GUEST, MAIN

_NUMBER_MARK = "#"
VIEWS = ".latest"
"""Folder beside runs: in it, by a run's name, what `latest` shows of it."""


def block_name(shard: str, number: int) -> str:
    """Returns the name of a block: ``data/rank00002/20261121T23/000001.h5#3``."""
    return f"{shard}{_NUMBER_MARK}{number}"


def split_name(name: str) -> tuple[str, int | None]:
    """Returns the shard and the number of a block in it; None: the name is that of a shard."""
    shard = shard_of(name)
    return shard, None if shard == name else int(name[len(shard) + 1 :])


def shard_of(name: str) -> str:
    """Returns the shard of a block's name; see `split_name`."""
    shard, _, number = name.rpartition(_NUMBER_MARK)
    return shard if shard and number.isdecimal() else name


def shard_place(path: Path) -> tuple[int, int] | None:
    """Returns the rank of a shard's collector, and the number of its first block, by its path.

    None: the path is not that of a run's shard, see `RunLayout.shard_path`.
    """
    before, _, rank = path.parent.parent.name.partition("rank")
    is_place = not before and rank.isdecimal() and path.stem.isdecimal()
    return (int(rank), int(path.stem)) if is_place else None


def rank_name(rank: int) -> str:
    """Returns what folders and files of a rank are called by."""
    return f"rank{rank:05d}"


def of_run(path: Path) -> Path:
    """Returns a path: itself, or in the run folder, where it leads into a view of `latest`."""
    try:
        place = path.resolve()
    except (OSError, RuntimeError):  # no file can have that name; or a link to itself
        return path
    for above in (place, *place.parents):
        if above.parent.name == VIEWS and above.is_dir():
            return above.parent.parent / above.name / place.relative_to(above)
    return path


class _Entry:
    """A file or folder that may be in a run folder: `RunLayout` has its path.

    Args:
        name: its path from the run folder.
    """

    def __init__(self, name: str) -> None:
        self._name, self.top = name, name.partition("/")[0]

    def __get__(self, layout: RunLayout, owner: object = None) -> Path:
        return layout.root / self._name


@dataclass(frozen=True)
class RunLayout:
    """Paths of one run; `root` is the run folder, also where `latest` was given."""

    root: Path

    def __post_init__(self) -> None:
        """Go from `latest` to the run: a file that is replaced there would replace a link."""
        object.__setattr__(self, "root", of_run(self.root))

    def names(self) -> set[str]:
        """Returns the names of what may lie in a run folder, and of what else does."""
        ours = {each.top for each in vars(RunLayout).values() if isinstance(each, _Entry)}
        return {*ours, self.checkpoints_of(1).name, *(path.name for path in self.root.glob("*"))}

    lock_file = _Entry("run.lock")
    """Which process the run belongs to, while it runs."""

    config_file = _Entry("config.yaml")
    """The compiled experiment."""

    run_file = _Entry("run.json")
    """State and facts of the run."""

    reserve_file = _Entry(".reserve")
    """Space that is given back at the end, see `run_folder.end`."""

    submit_dir = _Entry("submit")
    """Scripts submitted to a batch system, and output of its jobs."""

    submit_file = _Entry("submit/submit.json")
    """Facts of the submitted job: its id, its user, versions."""

    next_job_file = _Entry("next_job.json")
    """The job that continues the run, submitted by one that may not be requeued."""

    status_file = _Entry("status.json")
    """How the run goes, written anew about once a second."""

    scale_file = _Entry("scale.json")
    """Number of working collectors that `hpcdi scale` asked for."""

    guests_dir = _Entry("guests")
    """Messages between a run and its guests; there while the run takes guests."""

    welcome_file = _Entry("guests/welcome.json")
    """What a guest must know of the run before it writes to it."""

    guests_config_file = _Entry("guests/config.yaml")
    """The experiment by which guests work: that of this start."""

    data_dir = _Entry("data")
    """All shards."""

    callbacks_dir = _Entry("callbacks")
    """States of the user's callbacks on collectors."""

    def callbacks_file(self, rank: int) -> Path:
        """States of the user's callbacks on a collector."""
        return self.callbacks_dir / f"{rank_name(rank)}.json"

    videos_dir = _Entry("videos")
    """Films."""

    profile_dir = _Entry("profile")
    """Traces of learners, of hooks that profile them."""

    tensorboard_dir = _Entry("tb")
    """TensorBoard events."""

    curves_file = _Entry("curves.csv")
    """Every curve that rank 0 knows, a row a point."""

    def callbacks_curves(self, rank: int) -> Path:
        """Curves that callbacks on a collector log, over train iterations."""
        return self.callbacks_dir / f"{rank_name(rank)}.csv"

    def curve_files(self) -> list[Path]:
        """All curves: rank 0's, then those of callbacks on collectors."""
        return [self.curves_file, *sorted(self.callbacks_dir.glob("*.csv"))]

    loggers_dir = _Entry("loggers")
    """Curves of `system.loggers`, and by which names trackers know the run."""

    latest_policy = _Entry("policies/latest.safetensors")
    """Newest policy on disk."""

    def latest_policy_of(self, player: str) -> Path:
        """Newest policy on disk of a player that learns, see `latest_policy`."""
        name = "latest" if player == MAIN else player
        return self.latest_policy.with_name(f"{name}.safetensors")

    best_policy = _Entry("policies/best.safetensors")
    """Policy with the best evaluation."""

    def policy_files(self) -> list[Path]:
        """The newest and best policies that are there, of all players that learn."""
        return sorted(self.latest_policy.parent.glob("*.safetensors"))

    league_dir = _Entry("league")
    """Policies of frozen players, of a run that is a league."""

    def frozen_files(self) -> list[Path]:
        """The policies of frozen players that are there."""
        return sorted(self.league_dir.glob("*.safetensors"))

    league_file = _Entry("league.json")
    """Players, ratings and results of a league, new about every second."""

    cross_play_file = _Entry("cross_play.json")
    """Games of all players of a league against each other; beside it is the picture, .png."""

    snapshots_dir = _Entry("snapshots")
    """Snapshots of the whole run, one folder each."""

    checkpoints_dir = _Entry("checkpoints")
    """Checkpoints of the learner."""

    def checkpoints_of(self, agent: int) -> Path:
        """Checkpoints of an agent: of a serial battle, or a league's player."""
        return self.checkpoints_dir.with_name(f"checkpoints{agent or ''}")

    def checkpoint_dirs(self) -> list[Path]:
        """The folders of checkpoints that are there, of all agents."""
        return sorted(self.root.glob("checkpoints*"))

    @property
    def results(self) -> list[Path]:
        """Folders and files of all that a run makes but its logs."""
        paths = (
            self.status_file,
            self.data_dir,
            self.latest_policy.parent,
            self.league_dir,
            self.league_file,
            self.cross_play_file,
            self.cross_play_file.with_suffix(".png"),
            self.snapshots_dir,
            self.curves_file,
            self.callbacks_dir,
            self.videos_dir,
            self.profile_dir,
            self.tensorboard_dir,
            self.loggers_dir,
        )
        return [*paths, *self.checkpoint_dirs()]

    log_dir = _Entry("log")
    """Logs of all ranks."""

    def log_file(self, rank: int) -> Path:
        """JSONL log of one rank."""
        return self.log_dir / f"{rank_name(rank)}.jsonl"

    code_dir = _Entry("code")
    """Modules written for what a notebook has given to `hpcdi.train`."""

    solvers_dir = _Entry("solvers")
    """Folders of environments that are MPI programs."""

    def solver_dir(self, environment: int) -> Path:
        """Working folder of one of them, by its number in the run."""
        return self.solvers_dir / f"env{environment:05d}"

    def shard_path(self, rank: int, number: int, now: float | None = None) -> str:
        """Path of the shard that a collector begins with a block of this number.

        It is relative to the run folder; see `shard_numbers`. A shard lies in the folder of the
        hour in which it was begun, and is full at the latest when that is over.
        """
        hour = time.strftime("%Y%m%dT%H", time.gmtime(now))
        return f"data/{rank_name(rank)}/{hour}/{number:06d}.h5"

    def take_guest_rank(self) -> int:
        """Returns the rank of a new guest, by making its folder of shards: nobody else has it.

        Raises:
            OSError: the folder cannot be made.
        """
        while True:
            names = (path.name.removeprefix("rank") for path in self.data_dir.glob("rank*"))
            ranks = [int(name) for name in names if name.isdecimal()]
            rank = max([FIRST_GUEST, *ranks]) + 1
            with contextlib.suppress(FileExistsError):
                (self.data_dir / rank_name(rank)).mkdir(parents=True)
                return rank

    def shard_numbers(self, of: int | None = None) -> dict[str, tuple[int, int]]:
        """Every shard that is there: rank, and number of its first block.

        By its path relative to the run folder, in the order of their numbers.

        Args:
            of: rank of a collector; None: of all.

        Raises:
            OSError: a folder cannot be read.
        """
        ranks = names_in(self.data_dir) if of is None else [rank_name(of)]
        hours = [
            self.data_dir / rank / hour for rank in ranks for hour in names_in(self.data_dir / rank)
        ]
        numbers = {}
        for path in (hour / name for hour in hours for name in names_in(hour)):
            if path.suffix == ".h5" and (place := shard_place(path)) is not None:
                numbers[str(path.relative_to(self.root))] = place
        return dict(sorted(numbers.items(), key=lambda item: item[1]))

    def inside(self, relative: str) -> Path:
        """Absolute path of a relative one, or of a block's shard, that came in a message.

        Raises:
            StoreError: it leads out of the run folder.
        """
        try:
            path = (self.root / shard_of(relative)).resolve()
        except RuntimeError as error:  # Python's own error of a link to itself
            raise StoreError(self.root / relative, "is a link to itself") from error
        if not path.is_relative_to(self.root.resolve()):
            raise StoreError(relative, f"leads out of the run folder {self.root}")
        return path
