"""What the script prints in its rehearsal goes to a log; a disk that does not take it must not end the rehearsal."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import errno, os, sys
from pathlib import Path
from closeranks.train import rehearsal

def full(fd):
    log = os.readlink(f"/proc/self/fd/{fd}") == sys.argv[1]
    really(fd)
    if log:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

really = os.close
with rehearsal.Rehearsal.output_to(Path(sys.argv[1])):
    print("rehearsed")
    sys.stdout.flush()
    print("not taken")
    if sys.argv[2] == "write":
        nowhere = os.open("/dev/full", os.O_WRONLY)
        os.dup2(nowhere, 1)
    else:
        os.close = full
os.close = really
print("trains")
"""


@pytest.mark.parametrize(
    ("what", "logged", "shown"),
    [("write", "rehearsed\n", "not taken\ntrains\n"), ("close", "rehearsed\nnot taken\n", "trains\n")],
)
def test_a_disk_that_does_not_take_the_output_of_a_rehearsal_ends_nothing(tmp_path, what, logged, shown):
    """Every rank failed at its start, and the streams of the script led to the log from then on."""
    command = [sys.executable, "-I", "-c", CODE, str(tmp_path / "log"), what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (shown, "")
    assert (tmp_path / "log").read_text() == logged
