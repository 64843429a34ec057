from __future__ import annotations

import subprocess
import sys

import pytest

from closeranks.run.descendants import Stat, descendants, parse_stat, read_stat


def stat(pid: int, parent: int) -> Stat:
    return Stat(pid=pid, parent=parent, session=pid, state="S", cpu_ticks=0, start_ticks=0)


def test_a_name_with_blanks_and_parentheses_is_read_over():
    text = "42 (a (b) c) R 7 40 41 0 -1 4194304 1 2 3 4 50 60 70 80 20 0 1 0 99 1000"
    assert parse_stat(text) == Stat(pid=42, parent=7, session=41, state="R", cpu_ticks=110, start_ticks=99)


def test_descendants_are_found_at_every_depth_and_strangers_are_not():
    table = {s.pid: s for s in (stat(1, 0), stat(2, 1), stat(3, 2), stat(4, 3), stat(9, 1))}
    assert sorted(found.pid for found in descendants(2, table)) == [3, 4]
    assert descendants(4, table) == ()


def test_a_process_that_is_gone_has_no_state():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert read_stat(child.pid) is None


# Forks children that fork children, some in sessions of their own and one that ignores all it may; then hunts them.
HUNT = """
import os, signal, sys, time
from closeranks.run.descendants import descendants, kill_descendants, read_table
from closeranks.run.linux import become_subreaper
become_subreaper()
read, write = os.pipe()
def child(depth):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if depth % 2:
        os.setsid()
    for _ in range(2 if depth else 0):
        if os.fork() == 0:
            child(depth - 1)
    os.write(write, b"x")
    if depth == 1:
        os._exit(0)  # its children are orphans now
    while True:
        signal.pause()
if os.fork() == 0:
    child(3)
count = 0
while count < 15:
    count += len(os.read(read, 64))
before = time.monotonic()
left = kill_descendants()
print(left, descendants(os.getpid(), read_table()), time.monotonic() - before < 2)
"""


@pytest.mark.process
def test_children_of_children_in_their_own_sessions_and_orphans_are_ended():
    done = subprocess.run([sys.executable, "-c", HUNT], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("() () True\n", "")
