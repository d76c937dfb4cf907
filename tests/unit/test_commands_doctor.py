"""`hpcdi doctor`: its checks on facts of all ranks, and its report.

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

from fakes.store import write_shard
from hpcdi import cli
from hpcdi.comm.probe import GroupSpeed, LinkSpeed, parse_transports
from hpcdi.commands import quotas
from hpcdi.commands.doctor import checks, command, facts
from hpcdi.commands.doctor.checks import (
    FAIL,
    OK,
    WARN,
    Finding,
    named_ranks,
    over_hosts,
    together,
)
from hpcdi.commands.doctor.examine import ResultTable, Watch
from hpcdi.commands.doctor.facts import Facts, Folder
from hpcdi.commands.quotas import Mount, Quota, quotas_of
from hpcdi.config.load import load
from hpcdi.config.words import dump
from hpcdi.errors import LaunchError, ShardError, StoreError
from hpcdi.run.environment import LaunchEnvironment, is_first
from hpcdi.store import probe
from hpcdi.store.block import Block
from hpcdi.store.layout import RunLayout
from hpcdi.types import ITEM_DTYPE

ROOT = Path(__file__).parent.parent.parent
NODES = [f"node{i:02}" for i in range(1, 41)]
HOSTS = [node for node in NODES for _ in range(4)]  # 160 ranks
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6"}
OPEN_MPI = "Open MPI v5.0.11, package: somebody's"
GIB = 1 << 30
FOLDER = Folder(
    "/scratch/me", "lustre", "/scratch", 0o022, stat.S_IFDIR | 0o755, "", (), 500 * GIB,
    1000 * GIB, 10**7, 10**8,
)  # fmt: skip


def cluster(ranks: int = 160, **common: Any) -> list[Facts]:
    """Facts of ranks, four on a host, all alike."""
    return [Facts(host, **common) for host in HOSTS[:ranks]]


def differing(known: list[Facts], *ranks: int, **other: Any) -> list[Facts]:
    """The same, but for some ranks."""
    return [replace(own, **other) if rank in ranks else own for rank, own in enumerate(known)]


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
    finding = together(checks.check_launcher(cluster(size), launched))
    assert finding.status == status
    assert words in f"{finding.found} {finding.advice}"


def test_variables_that_may_have_been_inherited_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    finding = together(checks.check_launcher(cluster(1), LaunchEnvironment("mpirun", 4)))
    assert finding.found == "4 processes were started, but each is rank 0 of a world of 1"
    assert "start it with `hpcdi doctor`" in finding.advice
    assert "inherited from one: unset PMI_RANK" in finding.advice
    with pytest.raises(LaunchError, match="unset PMI_RANK"):
        command.main(["-n", "4"])


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
    known = cluster(library=OPEN_MPI, thread_level="MULTIPLE", start_s=1.5)
    good = together(checks.check_mpi(known))
    assert good == Finding(OK, "Open MPI v5.0.11, threads MULTIPLE, started in 1.5 s")
    bad = together(checks.check_mpi(differing(known, 4, 5, library="MPICH 4.3")))
    assert bad.status == FAIL
    assert "MPI: MPICH 4.3, threads MULTIPLE on ranks 4-5 (node02), elsewhere Open MPI" in bad.found


def test_versions_that_differ_are_named_with_their_ranks() -> None:
    known = cluster(code="ab12", commit="5e77929a", versions=VERSIONS)
    assert together(checks.check_software(known)).status == OK
    old = {**VERSIONS, "torch": "2.9.1"}
    finding = together(checks.check_software(differing(known, 156, 157, 158, 159, versions=old)))
    assert finding.status == FAIL
    assert "torch: 2.9.1 on ranks 156-159 (node40), elsewhere 2.13.0" in finding.found
    assert "one environment" in finding.advice
    finding = together(checks.check_software(differing(known, 0, code="cd34")))
    assert "hpcdi's files: cd34 on rank 0 (node01), elsewhere ab12" in finding.found


def test_what_is_not_installed_fails() -> None:
    finding = together(
        checks.check_software(cluster(3, versions={**VERSIONS, "torch": "not installed"}))
    )
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
    known = [Facts("node01", library=library, ulfm=state) for state in states]
    finding = together(checks.check_fault_tolerance(known, is_ours=False))
    assert finding.status == status
    assert words in f"{finding.found} {finding.advice}"


def test_runs_that_hpcdi_starts_outlive_a_death_where_that_is_built_in() -> None:
    known = cluster(3, library=OPEN_MPI, ulfm="inactive")
    finding = together(checks.check_fault_tolerance(known, is_ours=True))
    assert (finding.status, finding.advice) == (OK, "")
    absent = cluster(3, library=OPEN_MPI, ulfm="absent")
    assert together(checks.check_fault_tolerance(absent, is_ours=True)).status == WARN


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
    slow = Facts(transports={"on": "sm", "off": "tcp"})
    finding = together(
        checks.check_transport(replace(slow, transport_variables={"OMPI_MCA_btl": "^ofi"}))
    )
    expected = "sm on a host, tcp between hosts; set: OMPI_MCA_btl=^ofi"
    assert finding == Finding(OK, expected)
    assert together(checks.check_transport(replace(slow, has_infiniband=True))).status == WARN
    quick = Facts(transports={"off": "ucx"}, has_infiniband=True)
    assert together(checks.check_transport(quick)).status == OK
    assert "not reported" in together(checks.check_transport(Facts())).found


@pytest.mark.parametrize(
    ("links", "status", "words"),
    [
        ([], OK, "nothing to measure"),
        ([LinkSpeed(4, 2e-6, 10e9)], OK, "rank 0 with rank 4: 64 B 2.0 us"),
        ([LinkSpeed(4, 2e-6, 10e9), LinkSpeed(8, 3e-6, 9e9)], OK, "2 pairs: worst of 64 B 3.0 us"),
        ([LinkSpeed(4, 2e-6, 10e9), LinkSpeed(8, 9e-3, 9e9)], WARN, "rank 8 (node03) answers late"),
        (
            [LinkSpeed(4, 2e-6, 110e6), LinkSpeed(8, 3e-6, 9e9)],
            WARN,
            "rank 4 (node02) is reached as if over",
        ),
        ([LinkSpeed(1, 2e-6, 110e6)], OK, "rank 1"),  # on one host it is no network
    ],
)
def test_speed_of_messages(links: list[LinkSpeed], status: str, words: str) -> None:
    finding = together(checks.check_links(differing(cluster(), 0, links=links)))
    assert finding.status == status
    assert words in f"{finding.found} {finding.advice}"


def test_process_groups() -> None:
    quick, slow = GroupSpeed((0, 1), 2.0, 0.1, 0.005), GroupSpeed((0, 4), 9.0, 8.0, 0.005)
    finding = together(checks.check_groups([[quick], [quick], []], "gloo"))
    assert finding.status == OK
    assert "ranks 0-1: formed in 0.10 s, 4 MB all-reduced in 5.0 ms" in finding.found
    finding = together(checks.check_groups([[quick, slow], [quick], [], [], [slow]], "gloo"))
    assert finding.status == WARN
    assert "ranks 0, 4: formed in 8.00 s" in finding.found
    assert "imported in 9.0 s" in finding.found
    assert "GLOO_SOCKET_IFNAME" in finding.advice
    assert together(checks.check_groups([[]], "gloo")).found == "one rank: skipped"


def test_ranks_of_the_nccl_test_have_a_device_each() -> None:
    one, two = ("H200",), ("H200", "H200")
    assert checks.nccl_members(cluster(3)) == []
    assert checks.nccl_members(differing(cluster(4), 1, 2, 3, gpus=two)) == [1, 2]
    assert checks.nccl_members(cluster(4, gpus=one)) == [0]
    assert checks.nccl_members(cluster(8, gpus=one)) == [0, 4]
    assert together(checks.check_nccl([], [])).found == "no GPU: skipped"
    alone = together(checks.check_nccl([[GroupSpeed((0,), 1.0, 0.1, 0.001)]], [0]))
    assert "no pair was tried" in alone.found


# -------------------------------------------------------------------------------------------- hosts


def on_cores(*masks: tuple[int, ...], usable: int = 8) -> list[Facts]:
    ranks = zip(HOSTS, masks, strict=False)
    return [Facts(host, cores=mask, usable_cores=usable) for host, mask in ranks]


@pytest.mark.parametrize(
    ("known", "status", "words"),
    [
        (on_cores((0,), (1,), (2, 3)), OK, "3 ranks, 1 to 2 cores each, of 8"),
        (on_cores((0, 1), (0, 1), (0, 1), usable=2), OK, "3 ranks, 2 cores each, of 2"),
        (on_cores((0,), (0,), (1,)), FAIL, "ranks 0-1 share 1 core while 6 more are free"),
        (on_cores((1,), (0,), (0,)), FAIL, "ranks 1-2 share 1 core while 6 more are free"),
        (on_cores(*[(0, 1)] * 4, usable=2), WARN, "ranks 0-3 share 2 cores on node01"),
        (on_cores((0, 1), (1, 2), (2, 0), (0, 2), usable=4), FAIL, "ranks 0-3 share 3 cores"),
    ],
)
def test_cores(known: list[Facts], status: str, words: str) -> None:
    finding = together(checks.check_cores(known))
    assert finding.status == status
    assert words in finding.found


def test_the_one_host_of_40_where_ranks_share_a_core_is_named() -> None:
    masks = [(rank % 4,) for rank in range(160)]
    masks[150] = masks[149]
    finding = together(checks.check_cores(on_cores(*masks)))
    assert finding.status == FAIL
    assert finding.found == "ranks 149-150 share 1 core while 5 more are free on node38"
    everywhere = together(checks.check_cores(on_cores(*[(0,)] * 160)))
    assert len(everywhere.found) < 300
    assert "and so on" in everywhere.found


def test_threads() -> None:
    plain = cluster(4, cores=(0, 1), usable_cores=8)
    assert "no thread variable is set" in together(checks.check_threads(plain)).found
    finding = together(checks.check_threads(differing(plain, 1, threads={"OMP_NUM_THREADS": "64"})))
    assert finding.status == WARN
    assert "more threads than cores on rank 1 (node01)" in finding.found
    finding = together(checks.check_threads(cluster(4, cores=(0, 1), asked_cores=4)))
    assert "SRUN_CPUS_PER_TASK" in finding.advice


def test_memory_is_shared_by_the_ranks_of_a_host() -> None:
    rich = cluster(memory_bytes=64 * GIB, shm_bytes=GIB, shm_free_bytes=GIB)
    good = together(checks.check_memory(rich))
    assert good.status == OK
    assert good.found.startswith("least: 16.0 GiB a rank (64.0 GiB free, no cgroup limit) on ")
    poor = differing(rich, 4, 5, 6, 7, memory_limit_bytes=2 * GIB, shm_free_bytes=64 << 20)
    bad = together(checks.check_memory(poor))
    assert bad.status == WARN
    assert bad.found == "512.0 MiB a rank (64.0 GiB free, cgroup limit 2.0 GiB) on node02"
    assert together(checks.check_shm(rich)).status == OK
    shm = together(checks.check_shm(poor))
    assert (shm.status, shm.found) == (WARN, "64.0 MiB of 1.0 GiB of /dev/shm are free on node02")


def test_limits() -> None:
    usual = cluster(open_files=65536, open_files_hard=65536, has_infiniband=True)
    assert together(checks.check_limits(usual)).status == OK
    low = together(checks.check_limits(differing(usual, 9, open_files=256, open_files_hard=4096)))
    assert (low.status, low.advice) == (WARN, "ulimit -n 576")
    assert low.found.startswith("256 open files (ulimit -n)")
    assert "rank 9 (node03) may need 576" in low.found
    stuck = together(checks.check_limits(differing(usual, 9, open_files=256, open_files_hard=300)))
    assert "ask for a hard limit of 576 (now 300)" in stuck.advice
    locked = together(checks.check_limits(cluster(has_infiniband=True, locked_bytes=65536)))
    assert "ulimit -l unlimited" in locked.advice
    assert locked.found.startswith("unlimited open files")
    assert together(checks.check_limits(cluster(locked_bytes=65536))).status == OK


def test_clocks() -> None:
    assert together(checks.check_clocks(cluster(4))) == Finding(OK, "one host, one clock")
    offsets_s = [0.002, -0.004, *[0.0] * 37]
    near = differing(cluster(), 0, offsets_s=offsets_s)
    assert together(checks.check_clocks(near)).found == "at most 4.0 ms apart"
    finding = together(
        checks.check_clocks(differing(cluster(), 0, offsets_s=[*offsets_s[:-1], -3.25]))
    )
    assert finding.status == WARN
    assert finding.found == "up to 3.2 s apart: rank 156 (node40)"


H200 = {"gpus": ("NVIDIA H200",) * 4, "driver": "570.1", "cuda": "12.8"}


@pytest.mark.parametrize(
    ("known", "learners", "must_be", "status", "words"),
    [
        (cluster(4), 1, False, OK, "no GPU: learners compute on cores"),
        (cluster(4), 1, True, FAIL, "no rank sees a CUDA device"),
        (
            cluster(4, **H200), 3, True, OK,
            "4 x NVIDIA H200 a host, driver 570.1, torch for CUDA 12.8",
        ),
        (differing(cluster(4, **H200), 1, gpus=()), 2, True, OK, "2 learners"),  # ranks 2 and 3
        (
            differing(cluster(4, **H200), 1, 3, gpus=()), 2, True, FAIL,
            "rank 1 (node01) will learn, sees none",
        ),
        (
            differing(cluster(4, **H200), 1, 3, gpus=()), 2, False, WARN,
            "rank 1 (node01) will learn, sees none",
        ),
        (cluster(4, gpus=("NVIDIA H200",)), 3, False, WARN, "3 learners share 1 GPU of"),
    ],
)  # fmt: skip
def test_gpus(
    known: list[Facts], learners: int, must_be: bool, status: str, words: str
) -> None:  # fmt: skip
    finding = together(checks.check_gpus(known, learners, must_be=must_be))
    assert finding.status == status
    assert words in finding.found


def test_gpus_that_the_scheduler_has_given_one_to_a_task() -> None:
    one_each = [Facts("node01", gpus=("H200",), visible=str(rank)) for rank in range(4)]
    assert together(checks.check_gpus(one_each, 3, must_be=True)).status == OK


def test_packages() -> None:
    finding = together(checks.check_packages({"numba": True, "onnx": False, "envpool": True}))
    assert finding == Finding(OK, "numba, envpool: there; onnx: not")


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, OK, "/scratch/me is on lustre (/scratch): 500.0 GiB of 1000.0 GiB free, 10M inodes"),
        ({"free_bytes": GIB}, WARN, "little space is left"),
        ({"free_bytes": 1 << 20}, FAIL, "the disk is full"),
        ({"free_inodes": 2_000}, WARN, "little inodes is left"),
        ({"free_inodes": 7}, FAIL, "no more files can be made"),
        ({"free_inodes": 0, "total_inodes": 0}, OK, "free; umask 0022"),
        ({"kind": "tmpfs"}, WARN, "it is memory, no disk"),
        ({"mode": stat.S_IFDIR | 0o2775}, WARN, "umask 0002"),
        ({"mode": stat.S_IFDIR | 0o2775, "umask": 0o002}, OK, "umask 0002"),
    ],
)
def test_the_folder(change: dict[str, Any], status: str, words: str) -> None:
    finding = together(checks.check_folder(replace(FOLDER, **change)))
    assert finding.status == status
    assert words in f"{finding.found} {finding.advice}"


def test_locks_disk_and_sharing() -> None:
    assert together(checks.check_locks(FOLDER)).status == OK
    refused = together(checks.check_locks(replace(FOLDER, lock_error="errno = 37")))
    assert refused.status == WARN
    assert "HDF5_USE_FILE_LOCKING=FALSE" in refused.advice
    assert together(checks.check_disk(0.004, 0.02)).status == OK
    assert together(checks.check_disk(0.004, 1.5)).status == WARN
    assert together(checks.check_sharing(cluster())).status == OK
    seen = differing(differing(cluster(), 4, seen_s=0.01), 8, seen_s=0.02)
    good = together(checks.check_sharing(seen))
    assert (good.status, good.found.split(" by ")[1]) == (
        OK, "a rank of every other host within 20.0 ms",
    )  # fmt: skip
    late = together(checks.check_sharing(differing(seen, 8, seen_s=3.5)))
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
    ("path", "kind", "mount", "device"),
    [
        ("/home/me", "ext4", "/", "/dev/vda"),
        ("/scratch2/me", "ext4", "/", "/dev/vda"),
        ("/scratch/me/runs", "beegfs", "/scratch", "/dev/vdb"),  # mounted over the first one
        ("/scratch/my tmp/x", "tmpfs", "/scratch/my tmp", "tmpfs"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str, mount: str, device: str) -> None:
    assert quotas.mount_of(Path(path), MOUNTS) == (kind, mount, device)


def test_a_probe_is_known_from_another_and_from_none(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"probe.h5: is not seen after 0 s: no such file"):
        probe.await_probe(tmp_path, 0, 0.0)
    times = probe.write_probes(tmp_path, 2)
    assert len(times) == 2
    assert all(probe.await_probe(tmp_path, number, 0.0) >= 0.0 for number in range(2))
    (shard,) = tmp_path.iterdir()
    with pytest.raises(ShardError, match=r"is not seen after 0 s: holds no such block"):
        probe.await_probe(tmp_path, 2, 0.0)
    ones = Block({"x": np.ones(3)}, np.zeros(0, ITEM_DTYPE), {"number": 1})
    write_shard(RunLayout(tmp_path), shard.name, ones)
    with pytest.raises(ShardError, match="another block's data"):
        probe.await_probe(tmp_path, 0, 0.0)


def test_looking_at_a_file_system_leaves_nothing(tmp_path: Path) -> None:
    assert probe.lock_error(tmp_path) == ""
    assert probe.sync_s(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
    assert "unable" in probe.lock_error(tmp_path / "not" / "there").lower()


def test_a_folder_that_can_be_written_is_measured(tmp_path: Path) -> None:
    found = facts.folder(tmp_path, tmp_path / "probes")["folder"]
    assert (found.path, found.lock_error) == (str(tmp_path), "")
    assert 0 < found.free_bytes <= found.total_bytes
    assert list((tmp_path / "probes").iterdir()) == []
    with pytest.raises(StoreError, match="cannot be written"):
        facts.folder(tmp_path, tmp_path / "not" / "there")


def test_a_run_says_how_many_learners_it_has(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("colour: red")  # not a run's
    assert checks.learners_of_run(tmp_path) == 1
    compiled = load(ROOT / "configs" / "cartpole_dqn.yaml", ["policy.learn.learner.learner_num=2"])
    (tmp_path / "config.yaml").write_text(dump(compiled.to_mapping()))
    assert checks.learners_of_run(tmp_path) == 2


# ------------------------------------------------------------------------------------------- quotas

# No kernel here has quotas: programs of those names print what the manuals show.
KIB = 1 << 10
LFS = """\
Disk quotas for usr 500 (uid 500):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
   /mnt/lustre/project
                 302048* 300000  309200 1d2h   1   0   0       -
"""
QUOTA = """\
Disk quotas for user me (uid 500): none
Disk quotas for group us (gid 100):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/home   10240    9000       0       0       2     100     200       0
      /dev/work    5120       0   20480       0     190       0     200       0
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def prints(text: str, code: int = 0) -> str:
    return f"cat <<'END'\n{text}END\nexit {code}"


def test_quotas_of_the_folders_own_file_system(programs: Path) -> None:
    program(programs, "quota", prints(QUOTA, code=1))  # 1: one is exceeded
    assert quotas_of(Path("/"), Mount("ext4", "/work", "/dev/work")) == (
        Quota("group", "bytes", 5120 * KIB, 20480 * KIB), Quota("group", "files", 190, 200),
    )  # fmt: skip
    assert quotas_of(Path("/"), Mount("ext4", "/elsewhere", "/dev/sdb")) == ()


def test_lustre_is_asked_for_the_user_and_the_folders_group(programs: Path, tmp_path: Path) -> None:
    program(programs, "lfs", f'echo "$@" >> {tmp_path}/asked\n' + prints(LFS, code=1))
    (user, group) = quotas_of(tmp_path, Mount("lustre", "", ""))
    assert user == group == Quota("user", "bytes", 302048 * KIB, 300000 * KIB)
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"quota -u {os.getuid()} {tmp_path}", f"quota -g {tmp_path.stat().st_gid} {tmp_path}",
    ]  # fmt: skip


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "exec sleep 30"])
def test_a_quota_command_that_fails_ends_nothing(
    programs: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "_QUOTA_LIMIT_S", 0.2)
    program(programs, "quota", script)
    assert quotas_of(Path("/"), Mount("nfs4", "/", "")) == ()


def test_without_the_command_nothing_is_known(programs: Path) -> None:
    (programs / "quota").unlink(missing_ok=True)
    assert quotas_of(Path("/"), Mount("lustre", "", "")) == ()


@pytest.mark.parametrize(
    ("used", "status", "words"),
    [
        (10 * GIB, OK, "10.0 GiB of 100.0 GiB (user quota)"),
        (95 * GIB, WARN, "free some space, or ask for a larger quota"),
        (100 * GIB, FAIL, "100.0 GiB of 100.0 GiB (user quota)"),
    ],
)
def test_a_quota_is_judged_with_its_folder(used: int, status: str, words: str) -> None:
    finding = together(
        checks.check_folder(replace(FOLDER, quotas=(Quota("user", "bytes", used, 100 * GIB),)))
    )
    assert finding.status == status
    assert words in f"{finding.found}; {finding.advice}"


def test_files_are_counted() -> None:
    finding = checks.check_quota(Quota("group", "files", 190, 200))
    assert (finding.status, finding.found) == (WARN, "190 of 200 files (group quota)")


# ------------------------------------------------------------------------------------- this machine


def test_facts_of_this_process() -> None:
    own = facts.cores({"OMP_NUM_THREADS": "3", "SLURM_CPUS_PER_TASK": "2"})
    assert own["cores"] == tuple(sorted(os.sched_getaffinity(0)))
    assert (own["threads"], own["asked_cores"]) == ({"OMP_NUM_THREADS": "3"}, 2)
    assert 1 <= own["usable_cores"] <= (os.cpu_count() or 1)
    assert facts.cores({"SLURM_CPUS_ON_NODE": "1"})["usable_cores"] == 1
    odd = facts.cores({"SLURM_CPUS_ON_NODE": "1(x2)", "SLURM_CPUS_PER_TASK": "(null)"})
    assert (odd["usable_cores"], odd["asked_cores"]) == (facts.cores({})["usable_cores"], 0)
    assert facts.memory()["memory_bytes"] > 0
    assert facts.software()["versions"]["python"] == platform.python_version()
    assert facts.software()["versions"]["numpy"] == np.__version__
    probes = (own, facts.memory(), facts.software(), facts.limits(), facts.gpus({}))
    Facts(**{name: value for found in probes for name, value in found.items()})


def test_packages_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "OPTIONAL_PACKAGES", ("numpy", "no_such_package"))
    assert facts.packages() == {"packages": {"numpy": True, "no_such_package": False}}


@pytest.mark.parametrize(("listing", "count"), [("0", 1), ("0-3,8", 5), ("2-2,4-5", 3)])
def test_a_kernels_list_of_cores(listing: str, count: int) -> None:
    assert facts.count_cores(listing) == count


# ------------------------------------------------------------------------------- all checks at once


def test_variables_that_change_what_slurm_does_are_named() -> None:
    finding = together(checks.check_slurm(Facts(slurm_variables=("SBATCH_TIMELIMIT",))))
    assert (finding.status, "set: SBATCH_TIMELIMIT" in finding.found) == (WARN, True)
    assert together(checks.check_slurm(Facts())).status == OK


def test_a_probe_that_failed_is_a_row_with_its_ranks_and_advice() -> None:
    known = differing(cluster(4, versions=VERSIONS), 1, 2, errors={"gpus": "no driver"})
    rows = dict(checks.findings(known, 1, cuda=False))
    assert rows["gpus"].found == "ranks 1-2 (node01): no driver"
    assert (rows["gpus"].status, "nvidia-smi" in rows["gpus"].advice) == (FAIL, True)
    assert list(rows)[:3] == ["mpi", "slurm", "software"]
    assert len(rows) == 20


def test_checks_that_make_no_sense_after_a_failed_probe_are_left_out() -> None:
    known = differing(cluster(4), 0, errors={"folder": "/proc: cannot be written"})
    rows = dict(checks.findings(known, 1, cuda=False))
    assert rows["folder"].status == FAIL
    assert not {"hdf5 locks", "disk", "sharing"} & rows.keys()
    known = differing(cluster(4), 0, folder=FOLDER, errors={"disk": "it is full"})
    rows = dict(checks.findings(known, 1, cuda=False))
    assert rows["disk"] == Finding(FAIL, "rank 0 (node01): it is full", rows["disk"].advice)
    assert rows["folder"].status == rows["hdf5 locks"].status == OK
    assert "sharing" not in rows


def test_a_check_that_raises_is_a_row() -> None:
    rows = dict(checks.findings(cluster(8), 1, cuda=False))  # nobody has measured the offsets
    assert rows["clocks"].status == FAIL
    assert rows["clocks"].found.startswith("could not be judged: ValueError: zip() argument 2")


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
    assert named_ranks(ranks, HOSTS).endswith(text)
    assert len(named_ranks(ranks, HOSTS)) < 100


def test_findings_put_together() -> None:
    one, two = Finding(OK, "a"), Finding(WARN, "b", "do c")
    assert together([one, two]) == Finding(WARN, "a; b", "do c")
    by_host = {"n1": one, "n2": Finding(FAIL, "x", "y"), "n3": Finding(FAIL, "x", "y")}
    assert over_hosts(by_host) == Finding(FAIL, "x on n2, n3", "y")


def test_the_table_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    report = ResultTable(is_json=False)
    report.add("launcher", Finding(OK, "srun: 160 ranks"))
    report.add("hdf5 locks", Finding(WARN, "x" * 150 + " and " * 30, "do " * 60))
    report.add("cores", Finding(FAIL, "shared", "bind"))
    assert report.finish() == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2] == "launcher      ok     srun: 160 ranks"
    assert lines[-1] == "NOT fit to run: cores failed; 1 warning"


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = ResultTable(is_json=True)
    report.add("cores", Finding(WARN, "shared", "bind"))
    assert report.finish() == 0
    assert json.loads(capsys.readouterr().out) == {
        "checks": [{"name": "cores", "status": "warn", "found": "shared", "advice": "bind"}],
        "ok": True,
    }


# ------------------------------------------------------------------------------------------ waiting


def test_a_step_that_takes_long_is_reported_and_then_ended() -> None:
    said, ended, over = [], [], threading.Event()

    def end(*step: str) -> None:
        ended.append(step)
        over.set()

    watch = Watch(said.append, end, notice_s=0.0)
    watch.begin("cores", 0.2, "rank 7")
    assert over.wait(30)
    watch.close()
    assert ended == [("cores", "rank 7")]
    assert [line.split(" takes")[0] for line in said] == ["'cores'"]
    assert said[0].endswith("waiting for rank 7")


def test_steps_that_end_are_not_reported() -> None:
    said: list[str] = []
    watch = Watch(said.append, lambda *step: said.append(str(step)), notice_s=30.0)
    for name in ("a", "b"):
        watch.begin(name, 60.0)
        watch.wait_for("rank 1")
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
