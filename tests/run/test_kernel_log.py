"""What the kernel says while a run lasts: told once, and known when the process that it names ends."""

import os

import pytest

from closeranks import faults
from closeranks.diagnose.kernel_line import kernel_word
from closeranks.gather.rulebook import lexicon
from closeranks.run import kernel_log
from closeranks.run.kernel_log import FileLines, KernelLog, lines_of

XID = b"[8123.5] NVRM: Xid (PCI:0000:5e:00): 95, pid=4711, name=python, Uncontained ECC error."
LOST = b"[8123.5] NVRM: Xid (PCI:0000:5e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
KILLED = b"[8200.1] Out of memory: Killed process 4712 (python) total-vm:8923144kB, anon-rss:511920kB"


def added(path, *lines):
    with path.open("ab") as log:
        log.write(b"".join(line + b"\n" for line in lines))


def heard(path, lines):
    told = []
    log = KernelLog(lines, told.append)
    log.catch_up()
    return log, told


def test_what_was_there_before_the_run_is_not_heard_and_what_comes_is(tmp_path):
    path = tmp_path / "kern.log"
    added(path, XID)
    lines = FileLines(path)
    added(path, LOST)
    _, told = heard(path, lines)
    assert [(one.sign, one.drain) for one in told] == [("kernel log: Xid 79 of 0000:5e:00", True)]


def test_a_code_that_comes_again_soon_is_told_once(tmp_path):
    path = tmp_path / "kern.log"
    lines = FileLines(path)
    added(path, XID, XID)
    log, told = heard(path, lines)
    added(path, XID)
    log.catch_up()
    assert len(told) == 1


def test_a_line_is_taken_when_it_is_whole_and_a_file_that_was_replaced_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "kern.log"
    lines = FileLines(path)
    path.write_bytes(XID[:20])
    assert list(lines.new()) == []
    added(path, XID[20:])
    assert list(lines.new()) == [XID]
    path.rename(tmp_path / "kern.log.1")
    added(path, LOST)
    assert list(lines.new()) == [LOST]
    path.write_bytes(b"cut\n")
    assert list(lines.new()) == [b"cut"]


@pytest.mark.parametrize(("line", "pid", "fault"), [(XID, 4711, faults.DEVICE_MEMORY), (KILLED, 4712, faults.OOM_KILL)])
def test_the_end_of_a_process_that_the_kernel_named_is_explained_by_it(tmp_path, line, pid, fault):
    lines = FileLines(tmp_path / "kern.log")
    log, _ = heard(tmp_path, lines)
    added(tmp_path / "kern.log", line)
    hint = log.hint(pid)
    assert hint is not None
    assert hint.fault == fault.name
    assert log.hint(pid + 1000) is None


@pytest.mark.parametrize("line", [b"", b"usb 1-1: new device", b"CUDA error: uncorrectable ECC error", b"\xff" * 9000])
def test_a_line_that_is_no_word_of_the_kernel_about_a_fault_says_nothing(line):
    assert kernel_word(line, lexicon()) is None


def test_a_log_that_cannot_be_read_is_refused_where_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "KMSG", tmp_path / "none")
    with pytest.raises(OSError, match="No such file"):
        lines_of("auto")


def test_the_kernels_own_records_are_read_as_they_come(tmp_path, monkeypatch):
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    monkeypatch.setattr(kernel_log, "KMSG", pipe)
    monkeypatch.setattr(os, "lseek", lambda *_: 0)  # a pipe has no end to go to
    lines = lines_of("auto")
    writer = os.open(pipe, os.O_WRONLY)
    os.write(writer, b"4,1234,5678,-;" + XID + b"\n DEVICE=+pci:0000:5e:00.0\n")
    first = next(lines.new())
    os.close(writer)
    assert first == XID


def test_a_log_that_may_not_be_read_after_it_was_put_in_place_of_closes_no_file_of_others(tmp_path, monkeypatch):
    """The number of the old log went to a file of a worker, which the next look closed."""
    path = tmp_path / "kern.log"
    path.touch()
    lines = FileLines(path)
    path.rename(tmp_path / "kern.log.1")
    added(path, XID)

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as disk:
        disk.setattr(kernel_log.os, "open", refused)
        for _ in range(2):
            assert heard(path, lines)[1] == []
    assert [one.sign for one in heard(path, lines)[1]] == ["kernel log: Xid 95 of 0000:5e:00"]
