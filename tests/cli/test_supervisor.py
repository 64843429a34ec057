import os
import platform
import subprocess
import time

import pytest

from closeranks.cli.supervisor import Life, life_of
from closeranks.events import Record, RunEnded, RunStarted


def begun(pid, node=None, mono_s=None):
    event = RunStarted(command=("t.py",), seats=1, spares=0, pid=pid, versions={})
    now_s = time.monotonic() if mono_s is None else mono_s
    node = platform.node() if node is None else node
    return [Record(seq=0, wall_s=0, mono_s=now_s, run="r", node=node, term=0, event=event)]


def test_a_process_that_lives_writes_its_journal():
    assert life_of(begun(os.getpid())) is Life.ALIVE


def test_a_zombie_is_gone():
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert life_of(begun(process.pid)) is Life.GONE


def test_a_process_that_began_after_the_record_only_has_the_same_number():
    assert life_of(begun(os.getpid(), mono_s=-1e6)) is Life.GONE


@pytest.mark.parametrize("records", [[], begun(1, node="elsewhere")], ids=["no record", "another node"])
def test_what_cannot_be_seen_from_here_is_unknown(records):
    assert life_of(records) is Life.UNKNOWN


def test_only_the_first_record_of_a_run_names_its_writer():
    ended = Record(
        seq=1, wall_s=0, mono_s=0, run="r", node="n", term=0, event=RunEnded(outcome="x", exit_code=0, reason="")
    )
    assert life_of([ended]) is Life.UNKNOWN
