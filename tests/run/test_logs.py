from __future__ import annotations

import asyncio
import os

from hypothesis import given
from hypothesis import strategies as st

from closeranks.run.logs import LINE_CHARS_MAX, LineCutter, Output, clean


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
