"""`hpcdi doctor`: what its judges say of the facts of all ranks, and how that is shown.

The facts are literals: clusters of 40 hosts whose faults are known.
"""

from __future__ import annotations

import json
import os
import platform
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.doctor_facts import FOLDER, GIB, ROOM
from hpcdi import cli
from hpcdi.comm.probe_facts import Begun, Link, Reduced
from hpcdi.comm.probe_start import parse_transports
from hpcdi.commands.doctor import facts, files, host, world
from hpcdi.commands.doctor.command import Report
from hpcdi.commands.doctor.facts import Cores, Gpus, Limits, Memory, Software
from hpcdi.commands.doctor.files import place_of
from hpcdi.commands.doctor.report import FAIL, OK, WARN, Finding, over_hosts, ranks_text, together
from hpcdi.config.load import dump, load
from hpcdi.errors import ShardError
from hpcdi.launch.environment import LaunchEnvironment, is_first
from hpcdi.store import probe
from hpcdi.utils.watch import Patience, Watch

ROOT = Path(__file__).parent.parent.parent
NODES = [f"node{i:02}" for i in range(1, 41)]
HOSTS = [node for node in NODES for _ in range(4)]  # 160 ranks
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6"}
SOFTWARE = Software("ab12", "5e77929a", VERSIONS)
OPEN_MPI = "Open MPI v5.0.11, package: somebody's"


def differing(common: Any, other: Any, *ranks: int) -> list[Any]:
    """A fact of 160 ranks: the common one but on some."""
    return [other if rank in ranks else common for rank in range(160)]


# ------------------------------------------------------------------------------- launcher, software


@pytest.mark.parametrize(
    ("launched", "size", "status", "words"),
    [
        (LaunchEnvironment("srun", 160), 160, OK, "on node01, node02, node03 and 37 more"),
        (LaunchEnvironment("mpirun", 1), 160, OK, "up to 4 on each"),  # it did not say how many
        (LaunchEnvironment("srun", 160), 1, FAIL, "srun --mpi=pmix python -m hpcdi doctor"),
        (LaunchEnvironment("mpirun", 4), 1, FAIL, "another MPI library"),
        (LaunchEnvironment("srun", 160), 80, FAIL, "160 processes, the world has 80"),
        (LaunchEnvironment("mpirun", 2), 2, WARN, "a run needs 3 ranks"),
    ],
)  # fmt: skip
def test_the_world_against_the_launchers_promise(
    launched: LaunchEnvironment, size: int, status: str, words: str
) -> None:
    finding = world.judge_launcher(launched, size, HOSTS[:size])
    assert finding.status == status
    assert words in f"{finding.found} {finding.advice}"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "3"}, False),
        ({"SLURM_PROCID": "0", "PMI_RANK": "2"}, False),  # a foreign mpirun in an allocation
        ({"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}, True),
    ],
)
def test_one_of_many_worlds_speaks(variables: dict[str, str], expected: bool) -> None:
    assert is_first(variables) is expected


def test_one_mpi_everywhere() -> None:
    mine, other = Begun(OPEN_MPI, "MULTIPLE", {}, 1.5), Begun("MPICH 4.3", "MULTIPLE", {}, 0.2)
    good = world.judge_mpi([mine] * 160, HOSTS)
    assert good == Finding(OK, "Open MPI v5.0.11, threads MULTIPLE, started in 1.5 s")
    bad = world.judge_mpi(differing(mine, other, 4, 5), HOSTS)
    assert bad.status == FAIL
    assert "MPICH 4.3 MULTIPLE on ranks 4-5 (node02)" in bad.found


def test_versions_that_differ_are_named_with_their_ranks() -> None:
    assert world.judge_software([SOFTWARE] * 160, HOSTS).status == OK
    old = replace(SOFTWARE, versions={**VERSIONS, "torch": "2.9.1"})
    finding = world.judge_software(differing(SOFTWARE, old, 156, 157, 158, 159), HOSTS)
    assert finding.status == FAIL
    assert "torch: 2.9.1 on ranks 156-159 (node40), elsewhere 2.13.0" in finding.found
    assert "one environment" in finding.advice
    edited = replace(SOFTWARE, code="cd34")
    finding = world.judge_software(differing(SOFTWARE, edited, 0), HOSTS)
    assert "hpcdi's files: cd34 on rank 0 (node01), elsewhere ab12" in finding.found


def test_what_is_not_installed_fails() -> None:
    bare = replace(SOFTWARE, versions={**VERSIONS, "torch": "not installed"})
    finding = world.judge_software([bare] * 3, HOSTS[:3])
    assert (finding.status, finding.advice) == (FAIL, "pip install torch")


@pytest.mark.parametrize(
    ("states", "library", "status", "words"),
    [
        (["active"] * 3, OPEN_MPI, OK, "active"),
        (["inactive"] * 3, OPEN_MPI, WARN, "--with-ft ulfm"),
        (["absent"] * 3, OPEN_MPI, WARN, "not built in: a dead rank ends the job; restart resumes"),
        (["active", "inactive", "active"], OPEN_MPI, WARN, "on some ranks only"),
        (["inactive"] * 3, "MPICH Version:      4.3", WARN, "MPICH 4.3: a dead rank ends"),
    ],
)
def test_death_of_a_rank(states: list[str], library: str, status: str, words: str) -> None:
    finding = world.judge_fault_tolerance(states, library, is_ours=False)
    assert finding.status == status
    assert words in f"{finding.found} {finding.advice}"


def test_runs_that_hpcdi_starts_outlive_a_death_where_that_is_built_in() -> None:
    finding = world.judge_fault_tolerance(["inactive"] * 3, OPEN_MPI, is_ours=True)
    assert (finding.status, finding.advice) == (OK, "")
    absent = world.judge_fault_tolerance(["absent"] * 3, OPEN_MPI, is_ours=True)
    assert absent.status == WARN


# ----------------------------------------------------------------------------------------- messages

SUMMARY = """\
Host 0 [node1] ranks 0 - 2
Host 1 [node2] ranks 3 - 3

 host | 0    1
======|===========
    0 : sm   tcp
    1 : tcp  self

Connection summary: (pml)
  on-host:  some connections are sm or self
  off-host: all connections are tcp

"""


def test_what_open_mpi_says_of_its_connections() -> None:
    assert parse_transports(SUMMARY)["off"] == "tcp"
    assert "sm or self" in parse_transports(SUMMARY)["on"]
    assert parse_transports(SUMMARY.replace("all connections are tcp", "n/a")).keys() == {"on"}
    assert parse_transports("MPICH says nothing of the kind") == {}


def test_transports() -> None:
    slow = {"on": "sm", "off": "tcp"}
    finding = world.judge_transport(slow, {"OMPI_MCA_btl": "^ofi"}, False)
    expected = "sm on a host, tcp between hosts; set: OMPI_MCA_btl=^ofi"
    assert finding == Finding(OK, expected)
    assert world.judge_transport(slow, {}, True).status == WARN
    assert world.judge_transport({"off": "ucx"}, {}, True).status == OK
    assert "not told" in world.judge_transport({}, {}, False).found


@pytest.mark.parametrize(
    ("links", "status", "words"),
    [
        ([], OK, "nothing to measure"),
        ([Link(4, 2e-6, 10e9)], OK, "rank 0 with rank 4: 64 B 2.0 us"),
        ([Link(4, 2e-6, 10e9), Link(8, 3e-6, 9e9)], OK, "2 pairs: worst of 64 B 3.0 us"),
        ([Link(4, 2e-6, 10e9), Link(8, 9e-3, 9e9)], WARN, "rank 8 (node03) answers late"),
        ([Link(4, 2e-6, 110e6), Link(8, 3e-6, 9e9)], WARN, "rank 4 (node02) is reached as if over"),
        ([Link(1, 2e-6, 110e6)], OK, "rank 1"),  # on one host it is no network
    ],
)
def test_speed_of_messages(links: list[Link], status: str, words: str) -> None:
    finding = world.judge_links(links, HOSTS)
    assert finding.status == status
    assert words in f"{finding.found} {finding.advice}"


def test_process_groups() -> None:
    quick, slow = Reduced((0, 1), 2.0, 0.1, 0.005), Reduced((0, 4), 9.0, 8.0, 0.005)
    finding = world.judge_groups([[quick], [quick], []], "gloo")
    assert finding.status == OK
    assert "ranks 0-1: formed in 0.10 s, 4 MB all-reduced in 5.0 ms" in finding.found
    finding = world.judge_groups([[quick, slow], [quick], [], [], [slow]], "gloo")
    assert finding.status == WARN
    assert "ranks 0, 4: formed in 8.00 s" in finding.found
    assert "imported in 9.0 s" in finding.found
    assert "GLOO_SOCKET_IFNAME" in finding.advice
    assert world.judge_groups([[]], "gloo").found == "one rank: skipped"


def test_ranks_of_the_nccl_test_have_a_device_each() -> None:
    none, one, two = Gpus(), Gpus(("H200",)), Gpus(("H200", "H200"))
    assert world.nccl_members([none] * 3, HOSTS) == []
    assert world.nccl_members([none, two, two, two], HOSTS) == [1, 2]
    assert world.nccl_members([one, one, one, one], HOSTS) == [0]
    assert world.nccl_members([one] * 8, HOSTS) == [0, 4]
    assert world.judge_nccl([], []).found == "no GPU: skipped"
    alone = world.judge_nccl([[Reduced((0,), 1.0, 0.1, 0.001)]], [0])
    assert "no pair was tried" in alone.found


# -------------------------------------------------------------------------------------------- hosts


def on_cores(*masks: tuple[int, ...], usable: int = 8) -> list[Cores]:
    return [Cores(mask, usable, {}) for mask in masks]


@pytest.mark.parametrize(
    ("cores", "status", "words"),
    [
        (on_cores((0,), (1,), (2, 3)), OK, "3 ranks, 1 to 2 cores each, of 8"),
        (on_cores((0, 1), (0, 1), (0, 1), usable=2), OK, "3 ranks, 2 cores each, of 2"),
        (on_cores((0,), (0,), (1,)), FAIL, "ranks 0-1 share 1 core while 6 more are free"),
        (on_cores((1,), (0,), (0,)), FAIL, "ranks 1-2 share 1 core while 6 more are free"),
        (on_cores(*[(0, 1)] * 4, usable=2), WARN, "ranks 0-3 share 2 cores on node01"),
        (on_cores((0, 1), (1, 2), (2, 0), (0, 2), usable=4), FAIL, "ranks 0-3 share 3 cores"),
    ],
)
def test_cores(cores: list[Cores], status: str, words: str) -> None:
    finding = host.judge_cores(cores, HOSTS[: len(cores)])
    assert finding.status == status
    assert words in finding.found


def test_the_one_host_of_40_where_ranks_share_a_core_is_named() -> None:
    masks = [(rank % 4,) for rank in range(160)]
    masks[150] = masks[149]
    finding = host.judge_cores(on_cores(*masks), HOSTS)
    assert finding.status == FAIL
    assert finding.found == "ranks 149-150 share 1 core while 5 more are free on node38"
    everywhere = host.judge_cores(on_cores(*[(0,)] * 160), HOSTS)
    assert len(everywhere.found) < 300
    assert "and so on" in everywhere.found


def test_threads() -> None:
    plain = Cores((0, 1), 8, {})
    assert "no thread variable is set" in host.judge_threads([plain] * 4, HOSTS).found
    many = replace(plain, threads={"OMP_NUM_THREADS": "64"})
    finding = host.judge_threads([plain, many, plain, plain], HOSTS)
    assert finding.status == WARN
    assert "more threads than cores on rank 1 (node01)" in finding.found
    cut = replace(plain, asked=4)
    finding = host.judge_threads([cut] * 4, HOSTS)
    assert "SRUN_CPUS_PER_TASK" in finding.advice


def test_memory_is_shared_by_the_ranks_of_a_host() -> None:
    rich, poor = Memory(64 * GIB, 0, GIB, GIB), Memory(64 * GIB, 2 * GIB, GIB, 64 << 20)
    good = host.judge_memory([rich] * 160, HOSTS)
    assert good.status == OK
    assert good.found.startswith("least: 16.0 GiB a rank (64.0 GiB free, no cgroup limit) on ")
    facts = differing(rich, poor, 4, 5, 6, 7)
    bad = host.judge_memory(facts, HOSTS)
    assert bad.status == WARN
    assert bad.found == "512.0 MiB a rank (64.0 GiB free, cgroup limit 2.0 GiB) on node02"
    assert host.judge_shm([rich] * 160, HOSTS).status == OK
    shm = host.judge_shm(facts, HOSTS)
    assert (shm.status, shm.found) == (WARN, "64.0 MiB of 1.0 GiB of /dev/shm are free on node02")


def test_limits() -> None:
    usual = Limits(65536, 65536, -1, True)
    assert host.judge_limits([usual] * 160, HOSTS).status == OK
    low = host.judge_limits(differing(usual, Limits(256, 4096, -1, True), 9), HOSTS)
    assert (low.status, low.advice) == (WARN, "ulimit -n 576")
    assert "rank 9 (node03) may need 576" in low.found
    stuck = host.judge_limits(differing(usual, Limits(256, 300, -1, True), 9), HOSTS)
    assert "ask for a hard limit of 576 (now 300)" in stuck.advice
    locked = host.judge_limits([replace(usual, locked_bytes=65536)] * 160, HOSTS)
    assert "ulimit -l unlimited" in locked.advice
    bare = replace(usual, locked_bytes=65536, has_infiniband=False)
    assert host.judge_limits([bare] * 160, HOSTS).status == OK


def test_clocks() -> None:
    offsets: list[float | None] = [None] * 160
    assert host.judge_clocks(offsets, HOSTS) == Finding(OK, "one host, one clock")
    offsets[4], offsets[8] = 0.002, -0.004
    assert host.judge_clocks(offsets, HOSTS).found == "at most 4.0 ms apart"
    offsets[156] = -3.25
    finding = host.judge_clocks(offsets, HOSTS)
    assert finding.status == WARN
    assert finding.found == "up to 3.2 s apart: rank 156 (node40)"


H200 = Gpus(("NVIDIA H200",) * 4, "570.1", "12.8", None)


@pytest.mark.parametrize(
    ("gpus", "learners", "must_be", "status", "words"),
    [
        ([Gpus()] * 4, 1, False, OK, "no GPU: learners compute on cores"),
        ([Gpus()] * 4, 1, True, FAIL, "no rank sees a CUDA device"),
        ([H200] * 4, 3, True, OK, "4 x NVIDIA H200 a host, driver 570.1, torch for CUDA 12.8"),
        ([H200, Gpus(), H200, H200], 2, True, OK, "2 learners"),  # ranks 2 and 3
        ([H200, Gpus(), H200, Gpus()], 2, True, FAIL, "rank 1 (node01) will learn, sees none"),
        ([H200, Gpus(), H200, Gpus()], 2, False, WARN, "rank 1 (node01) will learn, sees none"),
        ([replace(H200, names=("NVIDIA H200",))] * 4, 3, False, WARN, "3 learners share 1 GPU of"),
    ],
)
def test_gpus(
    gpus: list[Gpus], learners: int, must_be: bool, status: str, words: str
) -> None:  # fmt: skip
    finding = host.judge_gpus(gpus, HOSTS[:4], learners, must_be)
    assert finding.status == status
    assert words in finding.found


def test_gpus_that_the_scheduler_has_given_one_to_a_task() -> None:
    one_each = [Gpus(("H200",), "570.1", "12.8", str(rank)) for rank in range(4)]
    assert host.judge_gpus(one_each, HOSTS[:4], 3, True).status == OK


def test_packages() -> None:
    finding = host.judge_packages({"numba": True, "onnx": False, "envpool": True})
    assert finding == Finding(OK, "numba, envpool: there; onnx: not")


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, OK, "/scratch/me is on lustre (/scratch): 500.0 GiB of 1000.0 GiB free, 10M inodes"),
        ({"room": replace(ROOM, free_bytes=GIB)}, WARN, "little space is left"),
        ({"room": replace(ROOM, free_bytes=1 << 20)}, FAIL, "the disk is full"),
        ({"room": replace(ROOM, free_inodes=2_000)}, WARN, "little inodes is left"),
        ({"room": replace(ROOM, free_inodes=7)}, FAIL, "no more files can be made"),
        ({"room": replace(ROOM, free_inodes=0, total_inodes=0)}, OK, "free; umask 0022"),
        ({"kind": "tmpfs"}, WARN, "it is memory, no disk"),
        ({"mode": stat.S_IFDIR | 0o2775}, WARN, "umask 0002"),
        ({"mode": stat.S_IFDIR | 0o2775, "umask": 0o002}, OK, "umask 0002"),
    ],
)
def test_the_folder(change: dict[str, Any], status: str, words: str) -> None:
    finding = files.judge_folder(replace(FOLDER, **change))
    assert finding.status == status
    assert words in f"{finding.found} {finding.advice}"


def test_locks_disk_and_sharing() -> None:
    assert files.judge_locks(FOLDER).status == OK
    refused = files.judge_locks(replace(FOLDER, lock_error="errno = 37"))
    assert refused.status == WARN
    assert "HDF5_USE_FILE_LOCKING=FALSE" in refused.advice
    assert files.judge_disk(0.004, 0.02).status == OK
    assert files.judge_disk(0.004, 1.5).status == WARN
    seen: list[float | None] = [None] * 160
    assert files.judge_sharing(seen, HOSTS).status == OK
    seen[4], seen[8] = 0.01, 0.02
    good = files.judge_sharing(seen, HOSTS)
    assert (good.status, good.found.split(" by ")[1]) == (
        OK, "a rank of every other host within 20.0 ms",
    )  # fmt: skip
    seen[8] = 3.5
    late = files.judge_sharing(seen, HOSTS)
    assert late.status == WARN
    assert "rank 8 (node03) wait for attribute caches" in late.advice


MOUNTS = """\
/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
mds:/fs /scratch lustre rw,flock 0 0
tmpfs /scratch/my\\040tmp tmpfs rw 0 0
/dev/vdb /scratch beegfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind", "mount"),
    [
        ("/home/me", "ext4", "/"),
        ("/scratch2/me", "ext4", "/"),
        ("/scratch/me/runs", "beegfs", "/scratch"),  # mounted over the first one
        ("/scratch/my tmp/x", "tmpfs", "/scratch/my tmp"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str, mount: str) -> None:
    assert probe.mount_of(Path(path), MOUNTS) == (kind, mount)


def test_a_probe_is_known_from_another_and_from_none(tmp_path: Path) -> None:
    probe.write_probe(tmp_path, 1)
    assert probe.await_probe(tmp_path, 1, 0.0) >= 0.0
    with pytest.raises(ShardError, match=r"000002.h5: is not seen after 0 s: no such file"):
        probe.await_probe(tmp_path, 2, 0.0)
    (tmp_path / "000001.h5").rename(tmp_path / "000002.h5")
    with pytest.raises(ShardError, match="another shard's data"):
        probe.await_probe(tmp_path, 2, 0.0)


def test_looking_at_a_file_system_leaves_nothing(tmp_path: Path) -> None:
    assert probe.lock_error(tmp_path) == ""
    assert probe.sync_s(tmp_path) > 0
    room = probe.space(tmp_path)
    assert 0 < room.free_bytes <= room.total_bytes
    assert list(tmp_path.iterdir()) == []
    assert "unable" in probe.lock_error(tmp_path / "not" / "there").lower()


def test_a_folder_that_is_not_there_is_looked_for_above(tmp_path: Path) -> None:
    place = place_of(tmp_path / "not" / "there", cuda=True)
    assert (place.folder, place.learners, place.cuda) == (tmp_path.resolve(), 1, True)
    assert not place.scratch.exists()


def test_a_run_says_how_many_learners_it_has(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("colour: red")  # not a run's
    assert place_of(tmp_path, cuda=False).learners == 1
    compiled = load(ROOT / "configs" / "cartpole_dqn.yaml", ["policy.learn.learner.learner_num=2"])
    (tmp_path / "config.yaml").write_text(dump(compiled.to_mapping()))
    assert place_of(tmp_path, cuda=False).learners == 2


# ------------------------------------------------------------------------------------- this machine


def test_facts_of_this_process() -> None:
    own = facts.cores({"OMP_NUM_THREADS": "3", "SLURM_CPUS_PER_TASK": "2"})
    assert own.mask == tuple(sorted(os.sched_getaffinity(0)))
    assert (own.threads, own.asked) == ({"OMP_NUM_THREADS": "3"}, 2)
    assert 1 <= own.usable <= (os.cpu_count() or 1)
    assert facts.cores({"SLURM_CPUS_ON_NODE": "1"}).usable == 1
    assert facts.memory().available_bytes > 0
    assert facts.software().versions["python"] == platform.python_version()
    assert facts.software().versions["numpy"] == np.__version__


def test_packages_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "OPTIONAL_PACKAGES", ("numpy", "no_such_package"))
    assert facts.optional_packages() == {"numpy": True, "no_such_package": False}


@pytest.mark.parametrize(("listing", "count"), [("0", 1), ("0-3,8", 5), ("2-2,4-5", 3)])
def test_a_kernels_list_of_cores(listing: str, count: int) -> None:
    assert facts.count_cores(listing) == count


# ------------------------------------------------------------------------------------------ showing


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3 (node01)"),
        ([4, 5, 6], "ranks 4-6 (node02)"),
        ([0, 1, 2, 9], "ranks 0-2, 9 (node01, node03)"),
        (list(range(0, 160, 4)), "(node01, node02, node03 and 37 more)"),
    ],
)
def test_ranks_for_people(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks, HOSTS).endswith(text)
    assert len(ranks_text(ranks, HOSTS)) < 100


def test_findings_put_together() -> None:
    one, two = Finding(OK, "a"), Finding(WARN, "b", "do c")
    assert together([one, two]) == Finding(WARN, "a; b", "do c")
    by_host = {"n1": one, "n2": Finding(FAIL, "x", "y"), "n3": Finding(FAIL, "x", "y")}
    assert over_hosts(by_host) == Finding(FAIL, "x on n2, n3", "y")


def test_the_table_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(is_json=False)
    report.add("launcher", Finding(OK, "srun: 160 ranks"))
    report.add("hdf5 locks", Finding(WARN, "x" * 150 + " and " * 30, "do " * 60))
    report.add("cores", Finding(FAIL, "shared", "bind"))
    assert report.finish() == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2] == "launcher      ok     srun: 160 ranks"
    assert lines[-1] == "NOT fit to run: cores failed; 1 warning"


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(is_json=True)
    report.add("cores", Finding(WARN, "shared", "bind"))
    assert report.finish() == 0
    assert json.loads(capsys.readouterr().out) == {
        "checks": [{"name": "cores", "status": "warn", "found": "shared", "advice": "bind"}],
        "ok": True,
    }


# ------------------------------------------------------------------------------------------ waiting


def test_a_step_that_takes_long_is_told_and_then_ended() -> None:
    said, ended, over = [], [], threading.Event()

    def end(*step: str) -> None:
        ended.append(step)
        over.set()

    watch = Watch(Patience(notice_s=0.0), said.append, end)
    watch.begin("cores", 0.2, "rank 7")
    assert over.wait(30)
    watch.close()
    assert ended == [("cores", "rank 7")]
    assert [line.split(" takes")[0] for line in said] == ["'cores'"]
    assert said[0].endswith("waiting for rank 7")


def test_steps_that_end_are_not_told() -> None:
    said: list[str] = []
    watch = Watch(Patience(notice_s=30.0), said.append, lambda *step: said.append(str(step)))
    for name in ("a", "b"):
        watch.begin(name, 60.0)
        watch.rest()
    watch.close()
    assert said == []


# ------------------------------------------------------------------------------------- command line


@pytest.fixture
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMPI_COMM_", "PMI", "PALS_", "MV2_", "SLURM_")):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("_no_launcher")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [([__file__], "is a file"), (["-n", "0"], "must be at least 1, not 0")],
)
def test_what_cannot_be_looked_at(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(["doctor", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("_no_launcher")
def test_the_number_of_ranks_is_the_launchers_to_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert cli.main(["doctor", "-n", "3"]) == 2
    assert "without a launcher" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for words in (
        "srun --mpi=pmix python -m hpcdi doctor",
        "--cuda",
        "--json",
        "1 if a check fails",
    ):
        assert words in out
