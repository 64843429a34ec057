"""Logs for tests of the diagnosis: what to feed, and the verdict on it."""

from closeranks.diagnose.judge import judge
from closeranks.diagnose.lines import Gathering, Origin, Scanner
from closeranks.gather.rulebook import lexicon


def gather(*logs, piece_bytes=2**20):
    """The evidence of logs, each a text or (text, fields of its origin)."""
    gathering = Gathering(lexicon())
    for number, log in enumerate(logs):
        text, fields = log if isinstance(log, tuple) else (log, {})
        data = text if isinstance(text, bytes) else text.encode()
        scanner = Scanner(gathering, Origin(**{"file": f"log{number}", "year": 2026, **fields}), number)
        for start in range(0, len(data), piece_bytes):
            scanner.feed(data[start : start + piece_bytes])
        scanner.close()
    return gathering.evidence()


def verdict_on(*logs, kernel_read=False):
    ranks = {log[1]["rank"] for log in logs if isinstance(log, tuple) and "rank" in log[1]}
    return judge(gather(*logs), kernel_read=kernel_read, ranks=frozenset(ranks))


def traceback_of(error, label="", file="train.py"):
    lines = ["Traceback (most recent call last):", f'  File "/work/{file}", line 31, in <module>', "    step()", error]
    return "".join(f"{label}{line}\n" for line in lines)
