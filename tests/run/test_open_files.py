"""A node with many seats, where the user's limit of open files is low."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from closeranks.run.folder import claim
from closeranks.run.options import RunOptions, Start, Target

GUARD = """
import sys
from pathlib import Path
from closeranks.run.guardian import guard
sys.exit(guard(Path(sys.argv[1]), 12))
"""
SCRIPT = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"


@pytest.mark.process
@pytest.mark.parametrize("kind", [Target.COMMAND, Target.SCRIPT])
def test_the_supervisor_takes_as_many_open_files_as_it_needs_and_workers_have_the_users_limit(tmp_path, kind):
    """With fifty seats and the usual limit of 1,024 the run ended before it began."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    target, args = ("sh", ("-c", "ulimit -Sn")) if kind is Target.COMMAND else (str(script), ())
    options = RunOptions(target=target, args=args, kind=kind, seats=12, start=Start.SPAWN, max_restarts=0)
    folder = claim(tmp_path / "r", options, ())
    command = ["sh", "-c", 'ulimit -Sn 100; exec "$@"', "sh", sys.executable, "-c", GUARD, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert [(folder / "logs" / f"p{number}.out").read_text() for number in range(1, 13)] == ["100\n"] * 12


FAR = """
import fcntl, os, resource, socket, sys
from types import SimpleNamespace
from closeranks import messages
from closeranks.checkpoint import keeper
from closeranks.train.control import Control

def far(end):
    return fcntl.fcntl(end.detach(), fcntl.F_DUPFD, 1500)

resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
ours, theirs = socket.socketpair()
Control(far(theirs), SimpleNamespace(needs_waking=False, poison=None)).start()
ours.sendall(messages.encode(messages.Ping(nonce=7)))
ours.settimeout(60)
print(*messages.Decoder(messages.WorkerMessage).feed(ours.recv(2**16)), flush=True)
gone, theirs = socket.socketpair()
gone.close()
print(keeper.main([str(far(theirs))]), flush=True)
os._exit(0)
"""


@pytest.mark.process
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2000, reason="so many files may not be open here")
def test_workers_and_the_keeper_listen_on_whatever_number_they_are_given():
    """A spawned process gets the supervisor's number of its socket; select() takes none beyond 1,023."""
    done = subprocess.run([sys.executable, "-c", FAR], capture_output=True, text=True, timeout=110, check=False)
    assert (done.stdout, done.stderr) == ("Pong(nonce=7)\n0\n", "")
