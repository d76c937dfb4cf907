"""Every path in a run folder.

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
        policies/best.json                   its mean return (of a serial run)
        policies/exploiter.safetensors       the newest one of another player that learns (leagues)
        league/main_000003.safetensors       a frozen player of a league; league.json its results
        checkpoints/iteration_000010000/     of a learner, and ckpt_final, ckpt_best
        checkpoints1/                        of the second player's learner (battles, leagues)
        snapshots/snapshot_000007/           of the whole run: what it resumes from
        profile/rank0.json                   where a learner's time goes, where that was asked for
        videos/iter_..._seed_0.mp4           films, where they were asked for
        callbacks/rank00002.json             states of callbacks that run on a collector
        log/rank00002.jsonl                  each rank's log
        solvers/env00003/                    working folder of an environment that is an MPI
                                             program; rank00000.log, ...: what its ranks print
        tb/events.out.tfevents...            TensorBoard, written by rank 0
        loggers/wandb/, mlruns/, curves.csv  the same curves, of `system.loggers`
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from hpcdi.dataclass import dataclass
from hpcdi.errors import StoreError
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


def name_of(rank: int) -> str:
    """Returns what folders and files of a rank are called by."""
    return f"rank{rank:05d}"


def _run_of(path: Path) -> Path:
    """Returns the run folder that a path leads to: itself, or that of which `latest` is a view."""
    try:
        place = path.resolve() if path.is_symlink() else path.absolute()
    except (OSError, RuntimeError):  # no file can have that name; or a link to itself
        return path
    return place.parent.parent / place.name if place.parent.name == VIEWS else path


@dataclass(frozen=True)
class RunLayout:
    """Paths of one run; `root` is the run folder, also where `latest` was given."""

    root: Path

    def __post_init__(self) -> None:
        """Go from `latest` to the run: a file that is replaced there would replace a link."""
        object.__setattr__(self, "root", _run_of(self.root))

    def names(self) -> set[str]:
        """Returns the names of what may lie in a run folder, and of what else does."""
        paths = (getattr(self, name) for name, each in vars(RunLayout).items()
                 if isinstance(each, property))  # fmt: skip
        ours = {path.relative_to(self.root).parts[0] for path in paths if isinstance(path, Path)}
        return {*ours, self.checkpoints_of(1).name, *(path.name for path in self.root.glob("*"))}

    @property
    def lock_file(self) -> Path:
        """Which process the run belongs to, while it runs."""
        return self.root / "run.lock"

    @property
    def config_file(self) -> Path:
        """The compiled experiment."""
        return self.root / "config.yaml"

    @property
    def run_file(self) -> Path:
        """State and facts of the run."""
        return self.root / "run.json"

    @property
    def reserve_file(self) -> Path:
        """Space that is given back at the end, see `run_folder.end`."""
        return self.root / ".reserve"

    @property
    def submit_dir(self) -> Path:
        """Scripts submitted to a batch system, and output of its jobs."""
        return self.root / "submit"

    @property
    def submit_file(self) -> Path:
        """Facts of the submitted job: its id, its user, versions."""
        return self.submit_dir / "submit.json"

    @property
    def next_job_file(self) -> Path:
        """The job that continues the run, submitted by one that may not be requeued."""
        return self.root / "next_job.json"

    @property
    def status_file(self) -> Path:
        """How the run goes, written anew about once a second."""
        return self.root / "status.json"

    @property
    def scale_file(self) -> Path:
        """Number of working collectors that `hpcdi scale` asked for."""
        return self.root / "scale.json"

    @property
    def guests_dir(self) -> Path:
        """Messages between a run and its guests; there while the run takes guests."""
        return self.root / "guests"

    @property
    def welcome_file(self) -> Path:
        """What a guest must know of the run before it writes to it."""
        return self.guests_dir / "welcome.json"

    @property
    def guests_config_file(self) -> Path:
        """The experiment by which guests work: that of this start."""
        return self.guests_dir / "config.yaml"

    @property
    def data_dir(self) -> Path:
        """All shards."""
        return self.root / "data"

    @property
    def callbacks_dir(self) -> Path:
        """States of the user's callbacks on collectors."""
        return self.root / "callbacks"

    def callbacks_file(self, rank: int) -> Path:
        """States of the user's callbacks on a collector."""
        return self.callbacks_dir / f"{name_of(rank)}.json"

    @property
    def videos_dir(self) -> Path:
        """Films."""
        return self.root / "videos"

    @property
    def profile_dir(self) -> Path:
        """Traces of learners, of hooks that profile them."""
        return self.root / "profile"

    @property
    def tensorboard_dir(self) -> Path:
        """TensorBoard events."""
        return self.root / "tb"

    @property
    def loggers_dir(self) -> Path:
        """Curves of `system.loggers`, and by which names trackers know the run."""
        return self.root / "loggers"

    @property
    def latest_policy(self) -> Path:
        """Newest policy on disk."""
        return self.root / "policies" / "latest.safetensors"

    def latest_policy_of(self, player: str) -> Path:
        """Newest policy on disk of a player that learns, see `latest_policy`."""
        name = "latest" if player == MAIN else player
        return self.latest_policy.with_name(f"{name}.safetensors")

    @property
    def best_policy(self) -> Path:
        """Policy with the best evaluation."""
        return self.root / "policies" / "best.safetensors"

    @property
    def league_dir(self) -> Path:
        """Policies of frozen players, of a run that is a league."""
        return self.root / "league"

    @property
    def league_file(self) -> Path:
        """Players, ratings and results of a league, new about every second."""
        return self.root / "league.json"

    @property
    def cross_play_file(self) -> Path:
        """Games of all players of a league against each other; beside it is the picture, .png."""
        return self.root / "cross_play.json"

    @property
    def snapshots_dir(self) -> Path:
        """Snapshots of the whole run, one folder each."""
        return self.root / "snapshots"

    @property
    def checkpoints_dir(self) -> Path:
        """Checkpoints of the learner."""
        return self.checkpoints_of(0)

    def checkpoints_of(self, agent: int) -> Path:
        """Checkpoints of an agent: of a serial battle, or a league's player."""
        return self.root / f"checkpoints{agent or ''}"

    @property
    def results(self) -> list[Path]:
        """Folders of all that a run makes but its logs."""
        folders = (
            self.data_dir,
            self.latest_policy.parent,
            self.league_dir,
            self.snapshots_dir,
            self.tensorboard_dir,
            self.loggers_dir,
        )
        return [*folders, *self.root.glob("checkpoints*")]

    @property
    def log_dir(self) -> Path:
        """Logs of all ranks."""
        return self.root / "log"

    def log_file(self, rank: int) -> Path:
        """JSONL log of one rank."""
        return self.log_dir / f"{name_of(rank)}.jsonl"

    @property
    def code_dir(self) -> Path:
        """Modules written for what a notebook has given to `hpcdi.train`."""
        return self.root / "code"

    @property
    def solvers_dir(self) -> Path:
        """Folders of environments that are MPI programs."""
        return self.root / "solvers"

    def solver_dir(self, environment: int) -> Path:
        """Working folder of one of them, by its number in the run."""
        return self.solvers_dir / f"env{environment:05d}"

    def shard_path(self, rank: int, number: int, now: float | None = None) -> str:
        """Path of the shard that a collector begins with a block of this number.

        It is relative to the run folder; see `shard_numbers`. A shard lies in the folder of the
        hour in which it was begun, and is full at the latest when that is over.
        """
        hour = time.strftime("%Y%m%dT%H", time.gmtime(now))
        return f"data/{name_of(rank)}/{hour}/{number:06d}.h5"

    def take_guest_rank(self) -> int:
        """Returns the rank of a new guest, by making its folder of shards: nobody else has it.

        Raises:
            OSError: the folder cannot be made.
        """
        while True:
            names = (path.name.removeprefix("rank") for path in self.data_dir.glob("rank*"))
            ranks = [int(name) for name in names if name.isdigit()]
            rank = max([FIRST_GUEST, *ranks]) + 1
            with contextlib.suppress(FileExistsError):
                (self.data_dir / name_of(rank)).mkdir(parents=True)
                return rank

    def shard_numbers(self, of: int | None = None) -> dict[str, tuple[int, int]]:
        """Every shard that is there: rank, and number of its first block.

        By its path relative to the run folder, in the order of their numbers.

        Args:
            of: rank of a collector; None: of all.
        """
        numbers = {}
        for path in self.data_dir.glob(f"{'rank*' if of is None else name_of(of)}/*/*.h5"):
            rank, number = path.parent.parent.name.removeprefix("rank"), path.stem
            if rank.isdigit() and number.isdigit():
                numbers[str(path.relative_to(self.root))] = int(rank), int(number)
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
