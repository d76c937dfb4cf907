"""Room that is set aside before a file is written, and what is not written to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.small_disk import assert_full, mounted
from hpcdi.utils.disk import AppendFile, advice, cut_torn_line, reserve_space, rewrite


def test_the_room_is_there_and_what_was_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"begun")
        file.flush()
        reserve_space(file.fileno(), 1 << 20)
        assert os.fstat(file.fileno()).st_blocks * 512 >= 1 << 20
        reserve_space(file.fileno(), 100)  # less than it has: nothing happens
    assert path.read_bytes() == b"begun" + bytes((1 << 20) - 5)


def test_where_there_is_no_room_nothing_is_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "1m") as disk:
        with (disk.root / "file").open("wb") as file:
            with pytest.raises(OSError, match="No space left") as caught:
                reserve_space(file.fileno(), 2 << 20)
            assert_full(caught.value)
        assert (disk.root / "file").stat().st_size == 0


def test_what_cannot_have_room_is_left_to_the_writing() -> None:
    reading, writing = os.pipe()
    reserve_space(writing, 100)
    os.write(writing, b"x")
    assert os.read(reading, 9) == b"x"
    os.close(reading)
    os.close(writing)


def test_no_bytes_need_no_room(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        reserve_space(file.fileno(), 0)
    assert (tmp_path / "file").read_bytes() == b""


def test_space_is_advised_only_where_it_is_short() -> None:
    assert advice(OSError(errno.ENOSPC, "x")) == ". Free some space"
    assert advice(f"/x: {os.strerror(errno.ENOSPC)}") == ". Free some space"
    assert advice(FileNotFoundError(errno.ENOENT, "the run folder has been moved")) == ""
    assert advice("the run folder has been moved") == ""


def test_a_file_whose_descriptor_has_failed_is_opened_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a file server that was restarted (ESTALE): it was written to no more."""
    path = tmp_path / "log"
    with AppendFile(path, "the log") as file:
        file.add(b"1\n")
        (own,) = (fd for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(path))
        with Path(os.devnull).open("rb") as unwritable:
            os.dup2(unwritable.fileno(), int(own.name))
        file.add(b"2\n")
        assert path.read_bytes() == b"1\n"
        file.add(b"3\n")
    assert path.read_bytes() == b"1\n2\n3\n"
    said = capsys.readouterr().err
    assert f"the log {path} cannot be written: Bad file descriptor; the run goes on" in said
    assert "can be written again" in said


def test_each_time_that_writing_goes_on_its_own_losses_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_file: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with AppendFile(tmp_path / "log", "the log", buffered_bytes=10) as file:
        for count, said in ((3, "can be written again, without 2 records\n"), (1, "again\n")):
            with monkeypatch.context() as context:
                context.setattr(os, "write", full)
                for _ in range(count):
                    file.add(b"123456789\n")
            file.add(b"last\n")
            assert capsys.readouterr().err.endswith(said)


def test_a_file_of_a_folder_that_was_moved_is_written_to_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "run" / "log"
    with AppendFile(path, "the log") as file:
        file.add(b"1\n")
        with monkeypatch.context() as disk:
            disk.setattr(os, "write", full)
            file.add(b"2\n")
        path.parent.rename(tmp_path / "moved")
        file.add(b"3\n")
    assert (tmp_path / "moved" / "log").read_bytes() == b"1\n2\n3\n"
    assert not path.parent.exists()


def test_a_torn_line_is_cut_off_a_file_of_ours_alone(tmp_path: Path) -> None:
    path, link = tmp_path / "curves.csv", tmp_path / "link"
    path.write_text("whole\nto")
    link.symlink_to(path)
    cut_torn_line(link)
    assert path.read_text() == "whole\nto"
    cut_torn_line(path)
    assert path.read_text() == "whole\n"


def test_a_file_is_replaced_by_its_own_content_and_nothing_stays_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "curves.csv", tmp_path / "other"
    other.write_text("somebody else's")
    aside = tmp_path / f".curves.csv.tmp-{os.getpid()}"
    aside.symlink_to(other)
    rewrite(path, b"mine")
    assert (path.read_bytes(), other.read_text()) == (b"mine", "somebody else's")
    assert not path.is_symlink()
    monkeypatch.setattr(Path, "replace", lambda *_: os.close(-1))
    with pytest.raises(OSError, match="Bad file descriptor"):
        rewrite(path, b"new")
    assert (path.read_bytes(), sorted(tmp_path.iterdir())) == (b"mine", [path, other])


@pytest.mark.parametrize(
    "put",
    [
        os.mkfifo,
        lambda path: (os.mkfifo(path), os.open(path, os.O_RDONLY | os.O_NONBLOCK)),
        lambda path: path.symlink_to("others"),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.mkdir(),
    ],
    ids=["pipe", "pipe_with_a_reader", "link", "device", "link_to_itself", "folder"],
)
def test_only_a_regular_file_is_appended_to(
    put: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe would hold the run for ever, by a link it would write to somebody else's file."""
    (tmp_path / "others").write_text("theirs")
    put(tmp_path / "log")
    with AppendFile(tmp_path / "log", "the log") as file:
        file.add(b"a line\n")
    assert (tmp_path / "others").read_text() == "theirs"
    assert capsys.readouterr().err.count("cannot be written") == 1
