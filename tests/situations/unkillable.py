"""``closeranks run`` whose SIGKILL does not reach the first process of seat 1, as in uninterruptible sleep.

A supervisor without a guardian: the process that started this one has its place.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from closeranks.run import exits, guardian
from closeranks.run.folder import claim
from closeranks.run.options import parse
from closeranks.run.worker import Worker

UNKILLABLE = "s1.1"
really_kill = exits.Exits.kill


def kill(self: exits.Exits, worker: Worker) -> None:
    if worker.name != UNKILLABLE:
        really_kill(self, worker)


def main(argv: list[str]) -> int:
    options = parse(argv)
    os.environ |= guardian.supervisor_environment(os.environ, options.seats)
    from closeranks.run import supervisor

    exits.Exits.kill = kill
    exits.UNKILLABLE_S = 0.5
    folder = claim(Path(str(options.run_dir)), options, ("closeranks", "run", *argv))
    lifeline, _alive = os.pipe()
    return supervisor.main([str(folder), str(lifeline), str(os.getppid())])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
