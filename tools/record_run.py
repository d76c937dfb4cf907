"""Record a run as a picture: its terminal, a rank that is killed while it goes on, its return.

    python tools/record_run.py                      configs/curves/run.svg, that of README
    python tools/record_run.py -o run.svg --kill 4 --after 30

The run is a real one on this machine, in a folder that is removed; the lines are what it prints.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from hpcdi.store.layout import RunLayout
from hpcdi.utils.curves import CurvePoint, read_curves
from hpcdi.utils.metrics import human_count

CONFIG = "configs/cartpole_dqn_475.yaml"
ROOT = Path(__file__).resolve().parent.parent
WIDTH, LINE, CHART = 980, 17, 190  # pixels
TEXT_LENGTH = 118  # letters that fit
INK, PAPER, DIM, RED, GREEN, BLUE = (
    *("#d8dee9", "#1e2430", "#8893a5", "#f2777a", "#99c794", "#6ca6f0"),
)


def main() -> None:
    """Record a run and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "configs/curves/run.svg")
    parser.add_argument("-n", "--ranks", type=int, default=5)
    parser.add_argument("--kill", type=int, default=4, metavar="RANK")
    parser.add_argument("--after", type=float, default=8.0, metavar="SECONDS", help="of learning")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        layout = RunLayout(Path(folder) / "run")
        lines, killed_at = record(layout, options.ranks, options.kill, options.after)
        curves = read_curves(layout.curve_files())
    options.output.write_text(picture(lines, curves, killed_at))
    sys.stdout.write(f"{options.output}: {options.output.stat().st_size / 1024:.1f} KiB\n")


def record(layout: RunLayout, ranks: int, rank: int, after_s: float) -> tuple[list[str], float]:
    """Returns the lines that a run prints, with what is typed, and when the rank was killed."""
    shown = ["hpcdi", "train", CONFIG, "-n", str(ranks)]
    command = [sys.executable, "-m", *shown, "--run-dir", str(layout.root)]
    command += ["system.coordinator.progress_interval=4"]
    lines, killed_at, begun = [f"$ {' '.join(shown)}"], 0.0, 0.0
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            lines.append(line.rstrip().replace(f"{layout.root}", "runs/cartpole_dqn_475/1"))
            begun = begun or (time.monotonic() if line.startswith("[") else 0.0)
            if begun and not killed_at and time.monotonic() - begun >= after_s:
                pid, killed_at = pid_of(rank, layout), time.time()
                os.kill(pid, signal.SIGKILL)
                lines.append(f"$ kill -9 {pid}    # rank {rank}, from another terminal")
    if run.returncode or not killed_at:
        sys.exit("\n".join([*lines, f"the run ended with {run.returncode}, killed: {killed_at}"]))
    return [line for line in lines if line.strip()], killed_at


def pid_of(rank: int, layout: RunLayout) -> int:
    """Returns the process of a rank of Open MPI's on this host, by its environment."""
    mark, folder = f"OMPI_COMM_WORLD_RANK={rank}\0".encode(), str(layout.root).encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if folder in (process / "cmdline").read_bytes():
                found += [int(process.name)] * (mark in (process / "environ").read_bytes())
    return min(found)


def picture(lines: Sequence[str], curves: dict[str, list[CurvePoint]], killed_at: float) -> str:
    """Returns an SVG: the terminal, and below it the return over environment steps."""
    top = 20 + LINE * len(lines)
    height = top + CHART + 30
    rows = [
        f'<text x="14" y="{26 + LINE * number}" fill="{_ink(line)}">{escape(_cut(line))}</text>'
        for number, line in enumerate(lines)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="ui-monospace,\'DejaVu Sans Mono\','
        f'Menlo,Consolas,monospace" font-size="13" xml:space="preserve">'
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>'
        f"{''.join(rows)}{''.join(_chart(curves, killed_at, top + 22))}</svg>\n"
    )


def _chart(curves: dict[str, list[CurvePoint]], killed_at: float, top: int) -> Iterator[str]:
    collected = curves["curves/collect_return"]
    evaluated = curves["curves/evaluation_return"]
    last = max(point.step for point in [*collected, *evaluated])
    high = max(point.value for point in [*collected, *evaluated])
    left, right, bottom = 60, WIDTH - 20, top + CHART - 30

    def at(step: float, value: float) -> str:
        x = left + (right - left) * step / last
        return f"{x:.1f},{bottom - (bottom - top) * value / high:.1f}"

    for value in (0, high / 2, high):
        y = at(0, value).split(",")[1]
        yield f'<path d="M{left} {y}H{right}" stroke="{DIM}" stroke-opacity="0.3"/>'
        yield f'<text x="{left - 8}" y="{y}" fill="{DIM}" text-anchor="end">{value:.0f}</text>'
    line = " ".join(at(point.step, point.value) for point in collected)
    yield f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="1.6"/>'
    for point in evaluated:
        x, y = at(point.step, point.value).split(",")
        yield f'<circle cx="{x}" cy="{y}" r="4" fill="{GREEN}"/>'
    step = max((point.step for point in collected if point.time <= killed_at), default=0)
    x, _ = at(step, 0).split(",")
    yield f'<path d="M{x} {top}V{bottom}" stroke="{RED}" stroke-dasharray="4 3"/>'
    yield f'<text x="{float(x) + 6:.1f}" y="{top + 12}" fill="{RED}">a rank is killed</text>'
    below = bottom + 20
    yield f'<text x="{left}" y="{below}" fill="{BLUE}">return while exploring</text>'
    yield f'<text x="{left + 210}" y="{below}" fill="{GREEN}">return of evaluations</text>'
    yield f'<text x="{right}" y="{below}" fill="{DIM}" text-anchor="end">'
    yield f"{human_count(last)} environment steps</text>"


def _ink(line: str) -> str:
    if line.startswith("$ kill") or "warning" in line or "died" in line:
        return RED
    if ("evaluation" in line and line.startswith("[")) or line.startswith("solved"):
        return GREEN
    return DIM if line.startswith("  ") else INK


def _cut(line: str) -> str:
    return line if len(line) <= TEXT_LENGTH else f"{line[: TEXT_LENGTH - 3]}..."


if __name__ == "__main__":
    main()
