"""A log entry as bytes: one line of JSON, and one line with the BLAKE3 of the first.

The digest of a commit entry is what all trust in a generation rests on: the entry names the digests of the shard
indices, they name those of the data. So the entry itself must not be believed unseen either.
"""

from __future__ import annotations

from typing import Final

import msgspec
from blake3 import blake3

from closeranks.checkpoint.format import FORMAT, Entry
from closeranks.checkpoint.problems import Damaged, StoreRefused

ENTRY_LIMIT_BYTES: Final = 64 << 20  # a manifest of 200,000 writers; more is not read into memory

_WAY_OUT: Final = (
    "restore the object from a copy of the store, or start a new store; `closeranks ckpt ls` shows the rest"
)


class _Versioned(msgspec.Struct):
    format: int


def encode_entry(entry: Entry) -> bytes:
    """The bytes of the entry's object."""
    line = msgspec.json.encode(entry)
    return b"%b\n%b\n" % (line, blake3(line).hexdigest().encode())


def decode_entry(data: bytes, number: int, where: str) -> Entry:
    """The entry of that number. ``where`` names the object for the message.

    Raises:
        StoreRefused: it was written by a newer version.
        Damaged: it is not what was written there.
    """
    line, _, rest = data.partition(b"\n")
    if rest != blake3(line).hexdigest().encode() + b"\n":
        raise Damaged(f"{where}: the digest in line 2 is not that of line 1; {_WAY_OUT}", object_key=where)
    try:
        version = msgspec.json.decode(line, type=_Versioned).format
        if version > FORMAT:
            raise StoreRefused(f"{where}: format {version}, expected at most {FORMAT}; use a newer closeranks")
        entry = msgspec.json.decode(line, type=Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{where}: expected a log entry: {error}; {_WAY_OUT}", object_key=where) from None
    if entry.number != number:
        raise Damaged(f"{where}: expected entry {number}, got entry {entry.number}; {_WAY_OUT}", object_key=where)
    return entry
