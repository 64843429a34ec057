"""A log entry as bytes: one line of JSON, and one line with the BLAKE3 of the first.

The digest of a commit entry is what all trust in a generation rests on: the entry names the digests of the shard
indices, they name those of the data. So the entry itself must not be believed unseen either.
"""

from __future__ import annotations

from typing import Final

from closeranks.checkpoint.format import Entry
from closeranks.checkpoint.problems import Damaged
from closeranks.checkpoint.sealed_json import decoded, sealed

ENTRY_LIMIT_BYTES: Final = 64 << 20  # a manifest of 200,000 writers; more is not read into memory

_WAY_OUT: Final = (
    "restore the object from a copy of the store, or start a new store; `closeranks ckpt ls` shows the rest"
)


def encode_entry(entry: Entry) -> bytes:
    """The bytes of the entry's object."""
    return sealed(entry)


def decode_entry(data: bytes, number: int, where: str) -> Entry:
    """The entry of that number. ``where`` names the object for the message.

    Raises:
        StoreRefused: it was written by a newer version.
        Damaged: it is not what was written there.
    """

    def damaged(problem: str) -> Damaged:
        return Damaged(f"{where}: {problem}; {_WAY_OUT}", object_key=where)

    entry = decoded(data, Entry, where, "a log entry", damaged)
    if entry.number != number:
        raise damaged(f"expected entry {number}, got entry {entry.number}")
    return entry
