"""`hpcdi join`: this process lends itself to a running run, as a collector that is no rank of it.

It is the collector's role on another link (`GuestLink`). When the run ends it waits for a next
start of it, such as of a job that was requeued, and joins that one, too, under another rank.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, get_type_hints

import hpcdi
from hpcdi.comm.failure import headline
from hpcdi.comm.messages import PolicyRequest, PolicyUpdate, StopRequest
from hpcdi.config import words
from hpcdi.config.fields import to_mapping
from hpcdi.config.load import load
from hpcdi.config.schema import ExperimentConfig, learners_of, why_no_guests
from hpcdi.errors import EXIT_DONE, LaunchError, StoreError
from hpcdi.roles.context import WorkerContext, role_seed
from hpcdi.run import run_folder
from hpcdi.run.placement import RankPlace
from hpcdi.run.private_folder import own_temporary_folder
from hpcdi.run.signals import SignalFlag, TimeLimit, end_of
from hpcdi.store.atomic import of_types, read_json, stay_in, write_json, write_text
from hpcdi.store.layout import RunLayout
from hpcdi.transport.files import FileTransport
from hpcdi.transport.guests import GuestLink
from hpcdi.utils.backoff import wait_s
from hpcdi.utils.log import close_log, open_log, say
from hpcdi.utils.watchdog import heed_suspensions

_LOOK_S = 0.5
_POLICY_LOOK_S = 0.5


def welcome(context: WorkerContext) -> None:
    """Write what guests must know before they join (rank 0)."""
    layout = context.layout
    write_text(layout.guests_config_file, words.dump(to_mapping(context.config)), fsync=False)
    invitation = Invitation(hpcdi.__version__, context.restarts, context.link.size)
    write_json(layout.welcome_file, invitation._asdict(), fsync=False)


class Invitation(NamedTuple):
    """What a run says to its guests, as its file has it.

    Attributes:
        hpcdi: the run's version of it.
        restarts: how often it has been resumed.
        ranks: of its job.
    """

    hpcdi: str
    restarts: int
    ranks: int


def invitation_of(layout: RunLayout) -> Invitation | None:
    """Returns what a run says to its guests; None while it takes none."""
    facts = of_types(read_json(layout.welcome_file), get_type_hints(Invitation))
    return Invitation(**facts) if facts.keys() == {*Invitation._fields} else None


def join(
    run: Path,
    is_on: Callable[[], bool],
    patience_s: float,
    time_limit: str | None = None,
    check: Callable[[Path], None] = lambda _config: None,
) -> int:
    """Collect for a run until it is done; returns the exit code.

    Args:
        run: the run folder.
        is_on: returns whether a process of the run is there.
        patience_s: so long the run may be away.
        time_limit: of this process, see `end_of`.
        check: called with the experiment's file before anything of it is imported.

    Raises:
        LaunchError: the run takes no guests, or is of another version.
    """
    layout, flag = RunLayout(run), SignalFlag()
    if layout.config_file.exists():  # else it has not begun
        check(layout.config_file)
        why = refusal(layout, load(str(layout.config_file)).config)
        if why:
            raise LaunchError(why)
    flag.install()
    heed_suspensions()
    limit = TimeLimit(end_of(time_limit, os.environ, time.time()), flag.take, lambda: 0.0)
    with own_temporary_folder():
        stay_in(layout.root)
        while True:
            invitation, request = _await(layout, is_on, patience_s, limit.take)
            if invitation is None:
                return EXIT_DONE if request is None else request.exit_code
            if not layout.guests_config_file.exists():  # it has just ended
                continue
            check(layout.guests_config_file)
            config = load(str(layout.guests_config_file)).config
            exit_code = _play(layout, config, invitation, limit.take)
            if exit_code is not None:
                return exit_code


def _await(
    layout: RunLayout,
    is_on: Callable[[], bool],
    patience_s: float,
    take: Callable[[], StopRequest | None],
) -> tuple[Invitation | None, StopRequest | None]:
    """Wait for the run; returns its invitation, or what a signal asked for; neither: it is over.

    Raises:
        LaunchError: the run takes no guests, or is of another version.
    """
    until, has_said = time.monotonic() + patience_s, False
    while True:
        invitation = invitation_of(layout)
        if invitation is not None and is_on():
            if invitation.hpcdi != hpcdi.__version__:
                raise LaunchError(
                    f"{run_folder.short(layout.root)} is of hpcdi {invitation.hpcdi}, and this "
                    f"is {hpcdi.__version__}: guests have the run's own version"
                )
            return invitation, None
        state = run_folder.read_state(layout.root)
        if state in ("done", "failed") or time.monotonic() > until:
            damage = run_folder.damage_of(layout)
            if damage and state == "unknown":
                raise LaunchError(f"{layout.run_file} {damage}")
            seen = "dead" if state == "running" else state  # no process of it is there
            _say(f"{run_folder.short(layout.root)} is {seen}: nothing to join")
            return None, None
        request = take()
        if request is not None:
            return None, request
        if not has_said:
            has_said = True
            _say(f"waits for {run_folder.short(layout.root)}, {patience_s:.0f} s at most")
        wait_s(_LOOK_S)


def refusal(layout: RunLayout, config: ExperimentConfig) -> str:
    """Returns why a run takes no guests; empty: it does."""
    run = run_folder.short(layout.root)
    facts = run_folder.read(layout.root)
    if [place["role"] for place in facts.get("placement", [])] == ["serial"]:
        return f"{run} is a run in one process, whose roles take turns: it takes no guests"
    why = why_no_guests(config)
    return f"{run} takes no guests: {why}" if why else ""


def _play(
    layout: RunLayout,
    config: ExperimentConfig,
    invitation: Invitation,
    take: Callable[[], StopRequest | None],
) -> int | None:
    """Collect until the run ends (returns None), or this process is to (its exit code)."""
    from hpcdi.run.work import work

    rank = layout.take_guest_rank()
    groups = {name: (number,) for number, name in enumerate(learners_of(config), 1)}
    policies = NewestPolicies(layout, {number: name for name, (number,) in groups.items()})
    try:
        link = GuestLink(layout, rank, invitation.ranks, policies.answer)
    except FileNotFoundError:
        return None
    open_log(layout.log_file(rank), rank, "collector", invitation.restarts)
    context = WorkerContext(
        config,
        layout,
        link,
        role_seed(config.seed, "collector", rank, invitation.restarts),
        groups,
        stop_request=take,
        restarts=invitation.restarts,
        transport=FileTransport(layout, config.system.storage, link.check_place),
    )
    _say(f"guest {rank} of {run_folder.short(layout.root)}, on {platform.node()}")
    try:
        exit_code = work(RankPlace(platform.node(), pid=os.getpid(), role="collector"), context)
    finally:
        close_log()
    if link.failure is not None:
        sys.stderr.write(headline(link.failure, rank) + "\n")
        return exit_code
    _say(f"guest {rank} has left")
    return link.exit_code


class NewestPolicies:
    """Answers a collector's requests to learners by their policies' files.

    Args:
        layout: the run folder.
        groups: name of the group that a learner's rank stands for.
    """

    def __init__(self, layout: RunLayout, groups: dict[int, str]) -> None:
        self._files = {rank: layout.latest_policy_of(name) for rank, name in groups.items()}
        self._seen: dict[int, tuple[int, int, int]] = {}
        self._looked: dict[int, float] = {}

    def answer(self, rank: int, request: PolicyRequest) -> PolicyUpdate | None:
        """Returns the policy of a learner's file, or the answer `at_once` that none is newer.

        None: there is no answer yet; it is asked again.
        """
        from hpcdi.store.policies import read_policy

        have, player = request.have_version, request.player
        none_newer = PolicyUpdate.of(have, b"", player) if request.at_once else None
        now = time.monotonic()
        if now - self._looked.get(rank, float("-inf")) < _POLICY_LOOK_S:
            return None
        self._looked[rank] = now
        try:
            state = self._files[rank].stat()
            stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
            if stamp == self._seen.get(rank) and have >= 0:
                return none_newer
            image = read_policy(self._files[rank])
        except (OSError, StoreError):  # none is written yet, or it is being replaced
            return None
        self._seen[rank] = stamp
        if image.version <= have:
            return none_newer
        return PolicyUpdate.of(image.version, image.data, player)


def _say(line: str) -> None:
    say(f"hpcdi join: {line}")
