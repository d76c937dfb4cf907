"""What is shown never ends a run, and never acts upon the terminal."""

from __future__ import annotations

import ctypes
import os
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
