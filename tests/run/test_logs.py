from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from closeranks.run.logs import LINE_CHARS_MAX, TAIL_BYTES, LineCutter, Output, clean


def test_lines_are_cut_where_they_end_and_a_rest_waits():
    cutter = LineCutter()
    assert cutter.feed(b"one\ntw") == ["one"]
    assert cutter.feed("o\nthré".encode()[:-1]) == ["two"]
    assert cutter.feed("é".encode()[1:]) == []
    assert cutter.flush() == ["thré"]
    assert cutter.flush() == []


def test_what_could_move_the_cursor_is_not_shown():
    assert clean("\x1b[2J\x1b[1;31mred\x1b[0m \x1b]0;title\x07tail") == "red tail"
    assert clean("a\x00b\x9bc\x08d") == "a\ufffdb\ufffdc\ufffdd"
    assert clean("10%\r50%\r100%\r") == "100%"
    assert clean("left \u202e thgir") == "left \ufffd thgir"
    assert clean("tab\tstays") == "tab\tstays"


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_no_bytes_make_the_console_leave_its_line(chunks):
    cutter = LineCutter()
    lines = [line for chunk in chunks for line in cutter.feed(chunk)] + cutter.flush()
    assert all(ord(char) >= 32 or char == "\t" for line in lines for char in line)
    assert not any("\x7f" <= char <= "\x9f" for line in lines for char in line)


def test_an_endless_line_is_shown_in_bounded_pieces():
    cutter = LineCutter()
    lines = [line for _ in range(100) for line in cutter.feed(b"x" * 1000)]
    assert lines
    assert all(len(line) <= LINE_CHARS_MAX + 80 for line in lines)
    assert len(cutter.feed(b"y" * 10**6 + b"\n")[0]) <= LINE_CHARS_MAX + 80


def test_the_file_keeps_what_the_console_hides(tmp_path):
    async def copy() -> list[str]:
        read, write = os.pipe()
        os.set_blocking(read, False)
        shown: list[str] = []
        output = Output(read, tmp_path / "log", shown.append)
        os.write(write, b"\x1b[31mred\x1b[0m\xff\npartial")
        os.close(write)
        output.close()
        os.close(read)
        return shown

    assert asyncio.run(copy()) == ["red\ufffd", "partial"]
    assert (tmp_path / "log").read_bytes() == b"\x1b[31mred\x1b[0m\xff\npartial"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def said(path, *words, fails=lambda: None):
    async def copy() -> bytes:
        read, write = os.pipe()
        os.set_blocking(read, False)
        output = Output(read, path, lambda _line: None, tail_bytes=TAIL_BYTES)
        for word in words:
            os.write(write, word)
            output.drain()
        os.close(write)
        fails()
        output.close()
        os.close(read)
        return output.tail

    return asyncio.run(copy())


def test_a_disk_that_tells_only_at_the_close_that_it_is_full_is_no_defect(tmp_path, monkeypatch):
    """A network file system takes what is written into memory: the run ended over the log of a worker that had."""

    def full(fd):
        its_log = Path(f"/proc/self/fd/{fd}").readlink() == tmp_path / "log"
        really(fd)
        if its_log:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    really = os.close
    with monkeypatch.context() as disk:
        assert said(tmp_path / "log", b"x\n", fails=lambda: disk.setattr(os, "close", full)) == b"x\n"


def test_the_end_of_what_was_said_is_kept_where_the_file_keeps_nothing():
    """The diagnosis read the log, of which a full disk had taken nothing."""
    said_last = b"OSError: [Errno 28] No space left on device\n"
    tail = said("/dev/full", *[b"x" * 50_000] * 3, said_last)
    assert tail == b"x" * (TAIL_BYTES - len(said_last)) + said_last
