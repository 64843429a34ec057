"""Ports for what has to be told its port before it listens.

One that the kernel has handed out and taken back may be handed out again before a program that is still being started
binds it. These are from below the range that it hands out, and each worker of pytest-xdist has its own.
"""

import itertools
import os
import random
import socket

_FIRST, _OF_A_WORKER, _WORKERS = 20_000, 1_000, 8
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_next = itertools.count(random.randrange(_OF_A_WORKER))


def free_port() -> int:
    """One that nobody listens on, and that no other test of this session is given."""
    for number in itertools.islice(_next, _OF_A_WORKER):
        port = _FIRST + _worker * _OF_A_WORKER + number % _OF_A_WORKER
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
