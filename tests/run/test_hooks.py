from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from closeranks.events import IncidentOpened
from closeranks.run.hooks import Hook

OPENED = IncidentOpened(incident=1, seats=(0,), summary="s0.1 was ended by SIGKILL")

pytestmark = pytest.mark.process


def called(folder, command, **more):
    (folder / "logs").mkdir()
    ran, process = Hook(command, {"PATH": os.environ["PATH"]}, folder, **more).run(OPENED)
    assert process.wait(30) == 0
    return ran.problem, (folder / "logs" / "hook.log").read_text()


def test_a_hook_has_the_users_own_limit_of_open_files(tmp_path):
    assert called(tmp_path, "ulimit -Sn; echo $CLOSERANKS_INCIDENT_EDGE", open_files=100) == ("", "100\nopened\n")


def test_a_hook_whose_log_tells_at_its_close_that_the_disk_is_full_was_called(tmp_path, monkeypatch):
    """It ran, and was told to have failed; nobody waited for it."""

    def full(fd):
        its_log = Path(f"/proc/self/fd/{fd}").readlink() == tmp_path / "logs" / "hook.log"
        really(fd)
        if its_log:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    really = os.close
    with monkeypatch.context() as disk:
        disk.setattr(os, "close", full)
        assert called(tmp_path, "echo called") == ("", "called\n")
