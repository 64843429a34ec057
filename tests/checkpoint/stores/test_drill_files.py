"""The file layers of drills do what they say."""

import errno
import signal
import subprocess
import sys
import textwrap

import pytest

from closeranks.checkpoint.drill_files import CHANGES, FailingFiles, Fault, KillingFiles
from closeranks.checkpoint.stores.directory import DirectoryStore

# Forks, because a thousand starts of the interpreter would take longer than all that is tested here.
SCRIPT = """
    import os, sys
    from pathlib import Path
    from closeranks.checkpoint.drill_files import KillingFiles
    from closeranks.checkpoint.stores.directory import DirectoryStore

    def work(root, event):
        store = DirectoryStore(root, KillingFiles(event, midway=sys.argv[2] == "midway"))
        store.write("data/a/x", [memoryview(b"0123456789")])
        (root / "written").touch()
        store.create("log/1", b"entry")
        (root / "created").touch()

    for event in range(1000):
        child = os.fork()
        if child == 0:
            work(Path(sys.argv[1]) / str(event), event)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(event, status, flush=True)
        if status == 0:
            break
"""


def killed_at_each_event(root, when):
    """Roots of the stores whose process was killed at event 0, 1, ..., and that of the one that ended by itself."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(root), when],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    statuses = [int(line.split()[1]) for line in ran.stdout.splitlines()]
    assert statuses == [-signal.SIGKILL] * (len(statuses) - 1) + [0]
    return [root / str(event) for event in range(len(statuses))]


def test_a_fault_hits_the_chosen_calls_and_no_others(tmp_path):
    fault = Fault(errno=errno.EIO, call="pwrite", below="log", first=1, times=2)
    files = FailingFiles([fault])
    (tmp_path / "log").mkdir()
    answers = []
    for place in ("log/x", "y"):
        fd = files.make(tmp_path / place)
        for n in range(4):
            try:
                answers.append(files.pwrite(fd, memoryview(b"a"), n))
            except OSError as error:
                answers.append(error.errno)
        files.close(fd)
    assert answers == [1, errno.EIO, errno.EIO, 1, 1, 1, 1, 1]
    assert (tmp_path / "log/x").read_bytes() == b"a\0\0a"


def test_a_fault_may_carry_the_call_out_first(tmp_path):
    files = FailingFiles([Fault(errno=errno.EIO, call="mkdir", done=True)])
    with pytest.raises(OSError, match="Input/output error"):
        files.mkdir(tmp_path / "x")
    assert (tmp_path / "x").is_dir()


def test_a_counter_sees_the_calls_that_change_something(tmp_path):
    files = KillingFiles(-1)
    store = DirectoryStore(tmp_path / "store", files)
    store.create("log/1", b"x")
    before = files.seen
    store.read("log/1", 10)
    list(store.list(""))
    assert files.seen == before > 8
    assert {"pwrite", "fsync", "link", "fsync_folder"} <= CHANGES


@pytest.mark.process
@pytest.mark.parametrize("when", ["before", "midway"])
def test_a_store_killed_at_any_event_keeps_what_it_acknowledged(tmp_path, when):
    *killed, whole = killed_at_each_event(tmp_path, when)
    assert len(killed) > 15
    halves = set()
    for root in killed:
        after = DirectoryStore(root)
        image = root / "data/a/x"
        halves |= {image.read_bytes()} if image.exists() else set()
        if (root / "written").exists():
            assert after.read("data/a/x", 100) == b"0123456789"
        assert not (root / "created").exists() or after.read("log/1", 100) == b"entry"
        # Not acknowledged, an entry is whole or absent, and the next one wins the number or finds it.
        assert after.create("log/1", b"other") or after.read("log/1", 100) == b"entry", root.name
    assert (whole / "created").exists()
    assert (b"01234" in halves) == (when == "midway")
