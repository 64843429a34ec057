"""Processors that compute something else than the others, or much more slowly."""

from __future__ import annotations

import hashlib
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Final

from closeranks.probe.outcome import Failed, Outcome, Passed, Unknown

_BUFFER_BYTES: Final = 2**18
_SLOW: Final = 3.0  # times the median; other load on the machine alone makes it twice
# Of bytes 0, 1, ... 250, 0, ..., so that no length of line or word divides the pattern.
KNOWN_DIGEST: Final = "31a1f9dea0169551092d05e8bf4a446228c8c3eb4c9b713c66adcb7fd53c89be"


def check_processors(rounds: int, progress: Callable[[float], None] = lambda _: None) -> Outcome:
    """Have every processor that this process may use digest the same bytes, ``rounds`` times."""
    try:
        usable = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError) as error:
        return Unknown(f"the processors of this process cannot be listed: {error}")
    buffer = (bytes(range(251)) * (_BUFFER_BYTES // 251 + 1))[:_BUFFER_BYTES]
    taken_s: dict[int, float] = {}
    for done, cpu in enumerate(usable):
        digests, took_s = _on(cpu, buffer, rounds)
        wrong = digests - {KNOWN_DIGEST}
        if wrong:
            return Failed(f"processor {cpu} computed {next(iter(wrong))[:12]}..., expected {KNOWN_DIGEST[:12]}...")
        taken_s[cpu] = took_s
        progress((done + 1) / len(usable))
    middle_s = statistics.median(taken_s.values())
    slow = [cpu for cpu, s in taken_s.items() if s > _SLOW * middle_s]
    if slow:
        return Unknown(f"processors {slow} took more than {_SLOW:g} times as long as the others: slow, or busy")
    rate = rounds * _BUFFER_BYTES / 2**20 / max(middle_s, 1e-9)
    return Passed(f"{len(usable)} processors agree, {rate:.0f} MiB/s each")


def _on(cpu: int, buffer: bytes, rounds: int) -> tuple[set[str], float]:
    """What one processor computes: a thread of its own is bound to it, so nothing else of this process is."""
    digests: set[str] = set()
    took_s = [0.0]

    def work() -> None:
        os.sched_setaffinity(0, {cpu})
        began_s = time.thread_time()
        for _ in range(rounds):
            digests.add(hashlib.sha256(buffer).hexdigest())
        took_s[0] = time.thread_time() - began_s

    thread = threading.Thread(target=work, name=f"probe-cpu-{cpu}")
    thread.start()
    thread.join()
    return digests, took_s[0]
