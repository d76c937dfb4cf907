"""What a Slurm cluster has, and whether a job fits: said before it is submitted."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdi.config.slurm import SlurmConfig
from hpcdi.errors import LaunchError
from hpcdi.launch.time_limit import seconds_of

_LIMIT_S = 30.0
_FORMAT = "%P|%D|%c|%G|%l"


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that are alike.

    Attributes:
        partition: its name.
        is_default: whether jobs go there that name no partition.
        nodes: how many.
        cpus: of each.
        gpus: of each.
        limit_s: the partition's time limit in seconds; infinite where it has none.
    """

    partition: str
    is_default: bool
    nodes: int
    cpus: int
    gpus: int
    limit_s: float


def parse_sinfo(text: str) -> list[NodeGroup]:
    """Groups of nodes from lines of ``sinfo --exact`` in the format of `node_groups`."""
    groups = []
    for line in text.splitlines():
        name, nodes, cpus, gres, limit = line.split("|")
        gpus = sum(int(count) for count in re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", gres))
        limit_s = float("inf") if limit in ("infinite", "n/a") else seconds_of(_spelled(limit))
        is_default, cores = name.endswith("*"), int(cpus.rstrip("+"))
        groups.append(NodeGroup(name.rstrip("*"), is_default, int(nodes), cores, gpus, limit_s))
    return groups


def node_groups() -> list[NodeGroup]:
    """What the cluster of this host has.

    Raises:
        LaunchError: there is no Slurm here, or it does not answer.
    """
    said = ask_slurm(["sinfo", "--noheader", "--exact", f"--format={_FORMAT}"])
    return parse_sinfo(said)


def objections(slurm: SlurmConfig, groups: Sequence[NodeGroup]) -> list[str]:
    """Why a job can never run on a cluster; nothing where it can.

    Args:
        slurm: what is asked for; `ntasks_per_node` is at least 1.
        groups: what the cluster has.
    """
    names = list(dict.fromkeys(group.partition for group in groups))
    if slurm.partition and slurm.partition not in names:
        return [
            f"slurm.partition: there is no partition {slurm.partition!r}; this cluster has "
            f"{', '.join(names)}"
        ]
    own = [
        g for g in groups if (g.partition == slurm.partition if slurm.partition else g.is_default)
    ]
    if not own:
        return [f"slurm.partition: name one; this cluster has {', '.join(names)}, and no default"]
    where = f"a node of partition {own[0].partition} has at most"
    cores = slurm.ntasks_per_node * slurm.cpus_per_task
    told = []
    if slurm.gpus_per_node > (most := max(group.gpus for group in own)):
        told.append(f"slurm.gpus_per_node: {slurm.gpus_per_node} are asked for, {where} {most}")
    if cores > (most := max(group.cpus for group in own)):
        told.append(
            f"slurm.ntasks_per_node x slurm.cpus_per_task: {cores} cores are asked for, "
            f"{where} {most}"
        )
    fit = sum(g.nodes for g in own if g.gpus >= slurm.gpus_per_node and g.cpus >= cores)
    if not told and slurm.nodes > fit:
        told.append(
            f"slurm.nodes: {slurm.nodes} are asked for, partition {own[0].partition} has {fit} "
            "such nodes"
        )
    if seconds_of(slurm.time) > own[0].limit_s:
        told.append(
            f"slurm.time: {slurm.time} is longer than partition {own[0].partition} lets jobs run, "
            f"{own[0].limit_s / 3600:g} hours"
        )
    return told


def check_fits(slurm: SlurmConfig) -> None:
    """See that a job can run on this cluster.

    Raises:
        LaunchError: it cannot, with every reason; or there is no Slurm here.
    """
    told = objections(slurm, node_groups())
    if told:
        raise LaunchError("\n  - ".join(["this cluster cannot run the job", *told]))


def check_script(script: Path) -> None:
    """Let Slurm look at a script without submitting it.

    Raises:
        LaunchError: it would refuse the job, in its words.
    """
    ask_slurm(["sbatch", "--test-only", str(script)])


def ask_slurm(command: list[str]) -> str:
    """Output of one of Slurm's commands.

    Raises:
        LaunchError: it is not there, fails or does not answer.
    """
    program = shutil.which(command[0])
    if program is None:
        raise LaunchError(
            f"there is no {command[0]} here: type this on a login node of a Slurm cluster. "
            "--local runs the job on this host, --print shows the script"
        )
    try:
        done = subprocess.run(  # noqa: S603 (Slurm's own commands)
            [program, *command[1:]], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]} has not answered within {_LIMIT_S:g} s") from None
    if done.returncode:
        words = " ".join(done.stderr.replace("sbatch: error: ", "").split())
        raise LaunchError(f"Slurm refuses the job ({command[0]}): {words}")
    return done.stdout


def _spelled(limit: str) -> str:
    """A duration of sinfo, which writes minutes:seconds, in the way that `seconds_of` reads."""
    return f"0:{limit}" if limit.count(":") == 1 and "-" not in limit else limit
