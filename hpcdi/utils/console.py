"""What is shown to a person: it never ends a run, and never acts upon the terminal.

`prepare` is called once, before anything is written. A run goes on where its output cannot be
written: the terminal has gone, the reader of a pipe has left, the disk is full, or a character does
not exist in the terminal's encoding. `escaped` is for texts out of files: an escape sequence would
act upon the terminal, and a line break would forge a line of ours.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from hpcdi.utils.threads import BackgroundThread

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PLAIN = {"±": "+-", "…": "...", "→": "->"}
_ERRORS = "hpcdi.plain"
_LOOK_S = 0.1
_PIECE = 1 << 16
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk, or a quota, that is full: it may have room again."""
_PASSING = (*FULL, errno.EAGAIN)
"""Errors of what may be written to later; the last one: its reader is slow, and somebody who shares
it has made it not wait for that."""


def escaped(text: str) -> str:
    """Returns a text of somebody else as one line without control characters."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def can_show(text: str) -> bool:
    """Returns whether standard output's encoding has all characters of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def others_to_stderr(is_wanted: bool = True) -> Iterator[None]:
    """Have what is printed in it, by Python or in C, go to standard error: the result is alone."""
    if not is_wanted:
        yield
        return
    with redirected(2, 1), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def redirected(target: int, *numbers: int) -> Iterator[None]:
    """Have what is written to descriptors, by Python or in C, go to another one.

    Args:
        target: descriptor to write to.
        numbers: of those that are redirected.
    """
    _flush()
    with contextlib.ExitStack() as stack:
        for number in numbers:
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(target, number)
        stack.callback(_flush)
        yield


def _flush() -> None:
    """Have what Python and C hold back written to where it was printed."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)


def prepare(*, is_run: bool) -> None:
    """Make standard output and standard error fit to be written to.

    Closed descriptors are opened on /dev/null: else the next file that is opened would be one of
    them. Characters that the encoding lacks are written in ASCII.

    Args:
        is_run: whether errors of writing are ignored, too; other commands end at a closed pipe.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    codecs.register_error(_ERRORS, _in_ascii)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # Python found it closed
            stream = open(descriptor, "w", closefd=False)  # noqa: SIM115 (until we end)
            setattr(sys, name, stream)
        if type(stream) is not io.TextIOWrapper:  # another one has taken it, as pytest does
            continue
        stream.reconfigure(errors=_ERRORS)
        if is_run or type(stream.buffer) is io.FileIO:  # the latter: `python -u`
            stream = _anew(stream, Unfailing if is_run else io.TextIOWrapper)
        # else an environment that closes it would take it from the run, and give its descriptor
        # to the next file that is opened
        stream.close = stream.flush
        for alias in (name, f"__{name}__"):
            setattr(sys, alias, stream)


def _anew(stream: io.TextIOWrapper, kind: type[io.TextIOWrapper]) -> io.TextIOWrapper:
    """Returns a stream in the place of one that must not be used any more."""
    encoding, is_line_buffered = stream.encoding, stream.line_buffering
    is_through, buffer = stream.write_through, stream.detach()
    if isinstance(buffer, io.FileIO):
        buffer = _Whole(buffer.fileno(), "w", closefd=False)
    return kind(
        buffer,
        encoding=encoding,
        errors=_ERRORS,
        line_buffering=is_line_buffered,
        write_through=is_through,
    )


class _Whole(io.FileIO):
    """An unbuffered file that writes all: a text stream above it ignores that a write was cut.

    A signal cuts one to a terminal, which mpirun gives its ranks, after 2,048 bytes.
    """

    def write(self, data: ReadableBuffer) -> int:
        """Write all; returns how many bytes that was."""
        whole = memoryview(data).cast("B")
        done = 0
        while done < len(whole):
            written = super().write(whole[done:])
            if written is None:
                raise BlockingIOError(errno.EAGAIN, "write could not complete without blocking")
            done += written
        return done


class Unfailing(io.TextIOWrapper):
    """A stream that drops what cannot be written."""

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it."""
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno not in _PASSING:
            forget(self.fileno())


def forget(descriptor: int) -> None:
    """Let what is written to a descriptor vanish from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class Relay:
    """Copies what a child writes to a descriptor of this process, whoever reads that.

    mpirun ends the job, or its ranks' output, when it cannot write; this process does not.

    Args:
        source: end of a pipe to read from; it is closed in the end.
        target: descriptor to write to.
        stream: this process's own for it; one that is no file, of a notebook say, is written to
            instead.
    """

    def __init__(self, source: int, target: int, stream: TextIO | None = None) -> None:
        self._source, self._target = source, target
        self._shown = None if isinstance(stream, io.TextIOWrapper) else stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_over = self._is_gone = False
        self._thread: BackgroundThread | None = BackgroundThread(self._run, f"relay-{target}")

    def close(self) -> None:
        """Copy what is there and end; processes that still hold the pipe are not waited for."""
        if self._thread is not None:
            self._is_over = True
            self._thread.join()
            self._thread = None
            os.close(self._source)

    def _run(self) -> None:
        while True:
            is_over = self._is_over
            if not select.select([self._source], [], [], _LOOK_S)[0]:
                if is_over:
                    return
                continue
            piece = os.read(self._source, _PIECE)
            if not piece:
                return
            self._write(piece)

    def _write(self, piece: bytes) -> None:
        if self._shown is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed, or its own disk full
                self._shown.write(self._decoder.decode(piece))
                self._shown.flush()
            return
        while piece and not self._is_gone:
            try:
                piece = piece[os.write(self._target, piece) :]
            except BlockingIOError:
                select.select([], [self._target], [], _LOOK_S)
            except OSError as error:
                self._is_gone = error.errno not in FULL
                return


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Returns what stands for characters that an encoding lacks; see `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    plain = "".join(_PLAIN.get(c, c.encode("ascii", "backslashreplace").decode()) for c in text)
    return plain, error.end
