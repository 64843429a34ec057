import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from closeranks.log_file import open_log


def where(fd):
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    finally:
        os.close(fd)


def test_a_log_is_continued_and_is_its_owners_alone(tmp_path):
    path = tmp_path / "hook.log"
    for line in (b"first\n", b"second\n"):
        fd = open_log(path)
        os.write(fd, line)
        os.close(fd)
    assert path.read_bytes() == b"first\nsecond\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_the_disk_takes_no_more_files_what_is_printed_goes_nowhere(tmp_path):
    """A hook was not called, and a spare not rehearsed, because the disk of the run folder was full."""
    assert where(open_log(tmp_path / "no such folder" / "hook.log")) == os.devnull


@pytest.mark.parametrize(("free_bytes", "kept"), [(2**20 - 4096, False), (2**20, True)])
def test_where_the_disk_is_nearly_full_who_prints_does_not_fail(tmp_path, monkeypatch, free_bytes, kept):
    disk = SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda _fd: disk)
    assert where(open_log(tmp_path / "hook.log")) == (str(tmp_path / "hook.log") if kept else os.devnull)


def test_where_the_disk_does_not_say_what_is_left_what_is_printed_goes_nowhere(tmp_path, monkeypatch):
    def gone(_fd):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "fstatvfs", gone)
    assert where(open_log(tmp_path / "hook.log")) == os.devnull
