"""A node with many seats, where the user's limit of open files is low."""

from __future__ import annotations

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
