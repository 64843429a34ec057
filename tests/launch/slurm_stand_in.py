"""What the stand of Slurm starts in place of ``closeranks``: reads the options as it does, and records them.

In a job's first start it waits for SIGTERM and ends as a run that was stopped; in a later one it completes.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

from closeranks.launch.domains import domains_of
from closeranks.launch.slurm import slurm_defaults
from closeranks.run.options import parse

signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
verb, *words = sys.argv[1:]
assert verb == "run"
options = parse(words, None, lambda given: slurm_defaults(os.environ, given))
restart = os.environ.get("SLURM_RESTART_COUNT", "0")
record = {
    "node_rank": options.node_rank,
    "run_id": options.run_id,
    "resume": options.resume,
    "token": os.environ["CLOSERANKS_TOKEN"],
    "domains": domains_of(options.node, socket.gethostname(), None, os.environ),
}
path = Path(f"task-{options.node_rank}-{restart}.json")
path.with_suffix(".part").write_text(json.dumps(record))
path.with_suffix(".part").rename(path)
if restart == "0":
    signal.pause()
