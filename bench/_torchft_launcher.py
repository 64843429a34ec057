"""Starts a script under torchft: ``_torchft_launcher.py REPLICAS SCRIPT ARGUMENTS...``.

A lighthouse lives in this process; every replica is one rank under a torchrun that restarts it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from torchft.coordination import LighthouseServer

LAUNCHER = ("-m", "torch.distributed.run", "--nproc-per-node", "1", "--nnodes", "1", "--max-restarts", "3")
JOIN_TIMEOUT_MS = 60_000  # as the torchft_lighthouse command has it; the server alone forms quorums of half the ranks
RENDEZVOUS = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")


def main() -> int:
    """Run until all replicas are done."""
    replicas = int(sys.argv[1])
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=JOIN_TIMEOUT_MS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    running = [replica(number, replicas, lighthouse.address()) for number in range(replicas)]
    try:
        return max(process.wait() for process in running)
    finally:
        for process in running:
            process.terminate()  # torchrun passes it on
        for process in running:
            process.wait()
        lighthouse.shutdown()


def replica(number: int, replicas: int, lighthouse: str) -> subprocess.Popen[bytes]:
    """One replica group."""
    told = {"REPLICA_GROUP_ID": str(number), "NUM_REPLICA_GROUPS": str(replicas), "TORCHFT_LIGHTHOUSE": lighthouse}
    command = [sys.executable, *LAUNCHER, *RENDEZVOUS, *sys.argv[2:]]
    return subprocess.Popen(command, env=os.environ | told | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    sys.exit(main())
