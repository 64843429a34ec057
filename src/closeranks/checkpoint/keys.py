"""The names of attempts, log entries and failures, made and taken apart in one place; see also ``image.py``.

An attempt is one try at saving one step. Its name begins with the term that may commit it, so whoever sees an object
knows which claims have made it impossible to commit.
"""

from __future__ import annotations

import re
from typing import Final

from closeranks.checkpoint.format import DATA_PREFIX, LOG_COPY_PREFIX, LOG_PREFIX

ENTRY_DIGITS: Final = 10
_ATTEMPT: Final = re.compile(r"t([0-9]{8,12})-s([0-9]{12,16})-[0-9a-f]{8}")
_ENTRY: Final = re.compile(re.escape(LOG_PREFIX) + r"([0-9]{10})\.json")
_COPY: Final = re.compile(re.escape(LOG_COPY_PREFIX) + r"([0-9]{10})\.json")
_INDEX: Final = re.compile(r"w([0-9]{5,7})\.json")
_FAILURE: Final = re.compile(r"w([0-9]{5,7})\.failed\.json")


def entry_key(number: int) -> str:
    """Where the log entry of that number is."""
    return f"{LOG_PREFIX}{number:0{ENTRY_DIGITS}d}.json"


def entry_number(key: str) -> int:
    """The number of the log entry under this key; 0 when the key is none of the log's."""
    found = _ENTRY.fullmatch(key)
    return int(found[1]) if found else 0


def copy_key(number: int) -> str:
    """Where the second copy of the log entry of that number is."""
    return f"{LOG_COPY_PREFIX}{number:0{ENTRY_DIGITS}d}.json"


def copied_number(key: str) -> int:
    """The number of the log entry whose copy is under this key; 0 when the key is of no copy."""
    found = _COPY.fullmatch(key)
    return int(found[1]) if found else 0


def attempt_name(term: int, step: int, nonce: str) -> str:
    """The name of a try at saving a step; ``nonce`` is 8 random hex digits that no other try has."""
    name = f"t{term:08d}-s{max(step, 0):012d}-{nonce}"
    if not _ATTEMPT.fullmatch(name):
        raise ValueError(f"no attempt can be named {name!r}: expected a term, a step and 8 hex digits")
    return name


def is_attempt(text: str) -> bool:
    """Whether this is the name of an attempt."""
    return _ATTEMPT.fullmatch(text) is not None


def term_of(attempt: str) -> int:
    """The only term that may commit this attempt.

    Raises:
        ValueError: it is not the name of an attempt.
    """
    return int(_parts(attempt)[1])


def step_of(attempt: str) -> int:
    """The step that this attempt tries to save; 0 also stands for the state before the first step.

    Raises:
        ValueError: it is not the name of an attempt.
    """
    return int(_parts(attempt)[2])


def _parts(attempt: str) -> re.Match[str]:
    found = _ATTEMPT.fullmatch(attempt)
    if found is None:
        raise ValueError(f"{attempt!r} is not the name of an attempt such as {attempt_name(1, 0, '0' * 8)}")
    return found


def attempt_prefix(attempt: str) -> str:
    """What the keys of all objects of an attempt begin with."""
    return f"{DATA_PREFIX}{attempt}/"


def attempt_of(key: str) -> str:
    """The attempt that an object belongs to; "" when it belongs to none."""
    if not key.startswith(DATA_PREFIX):
        return ""
    name, slash, _ = key.removeprefix(DATA_PREFIX).partition("/")
    return name if slash and is_attempt(name) else ""


def failure_key(attempt: str, writer: int) -> str:
    """Where a writer says that it cannot contribute."""
    return f"{attempt_prefix(attempt)}w{writer:05d}.failed.json"


def indexed_writer(attempt: str, key: str) -> int:
    """The writer whose index is under this key; -1 when the key is no index of this attempt."""
    found = _INDEX.fullmatch(key.removeprefix(attempt_prefix(attempt)))
    return int(found[1]) if found else -1


def failed_writer(attempt: str, key: str) -> int:
    """The writer that says under this key that it failed; -1 when the key is no such object of this attempt."""
    found = _FAILURE.fullmatch(key.removeprefix(attempt_prefix(attempt)))
    return int(found[1]) if found else -1
