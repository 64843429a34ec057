"""What a launcher starts in a test in place of training: records how it was started, and does as its script says.

``stand_in(folder)`` makes an interpreter that runs this file where ``closeranks run`` was meant and is a real one for
everything else. Run by itself, this file is that command.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

_RECORDS = "STAND_IN_RECORDS"


def stand_in(folder: Path) -> Path:
    """A program to be used as the interpreter on each node; it records into ``folder``."""
    path = folder / "python"
    path.write_text(
        f"#!/bin/sh\nexport {_RECORDS}={folder}\n"
        f'[ "$3" = closeranks ] && exec {sys.executable} -S {Path(__file__).absolute()} "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


def records(folder: Path) -> dict[int, dict]:
    """By node rank: argv, token, folder."""
    found = (json.loads(path.read_text()) for path in folder.glob("*.json"))
    return {record["node_rank"]: record for record in found}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _main(argv: list[str]) -> int:
    rank = argv[argv.index("--node-rank") + 1]
    record = {
        "node_rank": int(rank),
        "argv": argv,
        "token": os.environ.get("CLOSERANKS_TOKEN"),
        "folder": str(Path.cwd()),
        "pid": os.getpid(),
    }
    path = Path(os.environ[_RECORDS]) / f"{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(record))
    path.with_suffix(".part").rename(path)
    _say(f"this is node {rank}")
    script, *arguments = argv[argv.index("train.py") :]
    assert script
    if arguments[:1] == ["wait"]:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, _: sys.exit(128 + received))
        _say("waiting")
        while True:
            signal.pause()
    if "after" in arguments:
        Path(arguments[arguments.index("after") + 1]).read_text()  # until somebody writes
        _say("and on")
    codes = [word.partition("=") for word in arguments]
    return next((int(code) for node, _, code in codes if node == rank), 0)


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
