"""A small disk and virtual hosts, for the tools that plant faults: real ones, seen by nobody else.

They need root, and what they make is gone with the process, also when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_INSIDE = "HPCDI_PLAYGROUND"
_ADDRESS = "10.77.0.{}"
_CUT = """\
table inet cut {
  chain incoming {
    type filter hook input priority 0; policy accept;
    iifname "wire" drop
  }
  chain outgoing {
    type filter hook output priority 0; policy accept;
    oifname "wire" drop
  }
}
"""


def enter_playground() -> None:
    """Start this program again with mounts of its own, if it has none; returns inside.

    Raises:
        SystemExit: this user may not have any.
    """
    if os.environ.get(_INSIDE) == "1":
        return
    own = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*own, "true"], check=False).returncode:
        raise SystemExit("a real full disk and virtual hosts need root (or CAP_SYS_ADMIN)")
    os.environ[_INSIDE] = "1"
    os.execvp(own[0], [*own, sys.executable, *sys.argv])


@dataclass(frozen=True)
class SmallDisk:
    """A file system of some megabytes, in `enter_playground`.

    Attributes:
        root: its folder.
    """

    root: Path

    def mount(self, size: str) -> None:
        """Make it, as large as mount's option says."""
        self.root.mkdir(parents=True, exist_ok=True)
        made = ["mount", "-t", "tmpfs", "-o", f"size={size}", "hpcdi-small", str(self.root)]
        subprocess.run(made, check=True)

    @property
    def filler(self) -> Path:
        """What takes all room."""
        return self.root / "filler"

    def fill(self) -> None:
        """Leave no room at all."""
        with self.filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        """Give the room back. Idempotent."""
        self.filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Lose all that is on it."""
        subprocess.run(["umount", "--lazy", str(self.root)], check=True)


class Hosts:
    """Two virtual hosts, node1 and node2, with a wire between them and nothing else.

    Each has a network and a host name of its own, held by a process that ends with this one; they
    share the kernel, the files and the process ids.

    Args:
        folder: for files that mpirun needs.
        slots: ranks on each.
    """

    def __init__(self, folder: Path, slots: tuple[int, int]) -> None:
        self._holders = [self._hold(number) for number in (1, 2)]
        pids = [holder.pid for holder in self._holders]
        self._on(0, f"ip link add wire type veth peer name wire netns {pids[1]}")
        for host in (0, 1):
            self._on(host, f"ip addr add {_ADDRESS.format(host + 1)}/24 dev wire")
            self._on(host, "ip link set wire up && ip link set lo up")
        names = folder / "hosts"
        names.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{_ADDRESS.format(number)} node{number}\n" for number in (1, 2))
        )
        for host in (0, 1):
            self._on(host, f"mount --bind {shlex.quote(str(names))} /etc/hosts")
        self._hostfile, self._agent = folder / "hostfile", folder / "agent"
        self._hostfile.write_text("".join(f"node{k + 1} slots={n}\n" for k, n in enumerate(slots)))
        self._agent.write_text(
            "#!/bin/sh\n# mpirun starts its daemon on a host by this, instead of ssh\n"
            f"case $1 in node1) pid={pids[0]} ;; node2) pid={pids[1]} ;; *) exit 1 ;; esac\n"
            'shift\nexec nsenter --target $pid --net --uts --mount sh -c "$*"\n'
        )
        self._agent.chmod(0o755)

    @staticmethod
    def _hold(number: int) -> subprocess.Popen[bytes]:
        """Returns a process that has a host's namespaces, once it has them."""
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c",
             f"hostname node{number} && echo && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise SystemExit("no network namespace can be made here: that needs root")
        return holder

    def _on(self, host: int, command: str, said: str = "") -> None:
        target = ["--target", str(self._holders[host].pid), "--net", "--uts", "--mount"]
        subprocess.run(["nsenter", *target, "sh", "-c", command], check=True, input=said, text=True)

    def prefix(self) -> list[str]:
        """Before a command that is to run on node1."""
        target = str(self._holders[0].pid)
        return ["nsenter", "--target", target, "--net", "--uts", "--mount"]

    def variables(self) -> dict[str, str]:
        """Of a job on both hosts, as in a batch system's allocation that mpirun does not know."""
        return {
            "PBS_JOBID": f"chaos{os.getpid()}", "PBS_NODEFILE": str(self._hostfile),
            "PRTE_MCA_prte_default_hostfile": str(self._hostfile),
            "PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": str(self._agent),
        }  # fmt: skip

    def cut(self) -> None:
        """Drop every packet between the hosts, by a firewall rule on node2."""
        self._on(1, "nft -f -", _CUT)

    def heal(self) -> None:
        """Let packets pass again. Idempotent."""
        self._on(1, "nft add table inet cut && nft delete table inet cut")

    def pids(self) -> list[int]:
        """Processes on the two hosts, without those that hold them."""
        spaces = {Path(f"/proc/{holder.pid}/ns/net").readlink() for holder in self._holders}
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/net").readlink() in spaces:
                    found.append(int(entry.name))
        return [pid for pid in found if pid not in [holder.pid for holder in self._holders]]

    def ranks(self) -> dict[int, int]:
        """Process of each rank on the two hosts."""
        numbers = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                given = [word for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
                if given:
                    numbers[pid] = int(given[0].partition(b"=")[2])
        return {rank: pid for pid, rank in numbers.items() if _parent_of(pid) not in numbers}

    def reboot(self, patience_s: float = 30.0) -> list[int]:
        """What a batch system does after a job: end what it has left; returns what that was.

        Args:
            patience_s: for what ends by itself.
        """
        deadline = time.monotonic() + patience_s
        while (left := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.2)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
