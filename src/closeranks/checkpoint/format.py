"""What a store holds, as values: the schema of its JSON objects. ``docs/checkpoint-format.md`` explains it.

Keys of a store::

    closeranks-store.json               Identity: the format and the job that the store belongs to
    log/0000000017.json                 Entry in one line, then its BLAKE3 in a second; created only if absent; the
                                        number is its place in the sequence
    log-copy/0000000017.json            the same bytes again, made after entry 18 was there; read where the first is
                                        damaged, and never a reason to believe in an entry that did not win its number
    log-summary/0000000512.json         what the log says up to that entry: a starting point, which need not be there
    data/<attempt>/w00003.safetensors   the image of one writer, or the changed part of it
    data/<attempt>/w00003.json          ShardIndex: what that image holds and where its bytes are

A generation is named by the number of the entry that committed it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

FORMAT: Final = 1
IDENTITY_KEY: Final = "closeranks-store.json"
LOG_PREFIX: Final = "log/"
LOG_COPY_PREFIX: Final = "log-copy/"
LOG_SUMMARY_PREFIX: Final = "log-summary/"
DATA_PREFIX: Final = "data/"


class _Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Identity(_Value, frozen=True):
    """The first object of a store."""

    format: int
    store: str  # 32 hex digits, chosen at random when the store was made
    job: str  # name of the job; a store belongs to one
    created_wall_s: float


# --- one writer's part of a generation -------------------------------------------------------------------------


class Slice(_Value, frozen=True, gc=False):
    """A box of one tensor, and its bytes in the image (little-endian, row-major, without gaps)."""

    name: str  # of the whole tensor: a path such as "model/layers.0.weight" or "optimizer/state/0/exp_avg"
    dtype: str  # of safetensors: "F32", "BF16", "I64", ...
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]  # of the box's first element in the whole tensor
    shape: tuple[int, ...]  # of the box
    at: int  # first byte in the image
    length: int  # bytes


class Extent(_Value, frozen=True, gc=False):
    """A run of image bytes, the unit of digests, of reading, and of reuse by later generations."""

    at: int  # first byte in the image
    length: int  # bytes in the image
    object: str  # key of the object that keeps them
    begin: int  # first byte in that object
    stored: int  # bytes in that object; differs from length when they are compressed
    codec: str = ""  # "" as they are, "zstd" one zstd frame
    xxh3: str = ""  # xxh3_128 of the image bytes, 32 hex digits; "": this home does not keep it
    blake3: str = ""  # blake3 of the image bytes, 64 hex digits; one of both must be there


class ShardIndex(_Value, frozen=True):
    """All that one writer contributed to a generation."""

    format: int
    attempt: str
    writer: int
    image_bytes: int
    slices: tuple[Slice, ...]
    extents: tuple[Extent, ...]  # in ascending order, without gaps, from 0 to image_bytes
    bases: tuple[int, ...] = ()  # generations whose index of this writer also refers to the older objects among them
    shared: Any = None  # JSON: structure and small state that is equal on all writers; writer 0 has it
    local: Any = None  # JSON: small state of this writer alone


class ShardRef(_Value, frozen=True):
    """A shard index by its digest: the digest of the commit entry covers every byte below it."""

    writer: int
    object: str
    length: int
    blake3: str
    image_bytes: int


# --- the log ----------------------------------------------------------------------------------------------------


class Manifest(_Value, frozen=True):
    """What a commit entry publishes."""

    attempt: str
    step: int  # last closed step, -1 before the first
    world: int  # writers
    layout: str  # "replicated" or "sharded": in words, for people
    shards: tuple[ShardRef, ...]  # one for each writer, in their order
    bases: tuple[int, ...] = ()  # those of all shards; one that is alive keeps every object that it refers to
    consistency: str = "step"  # all shards show the state after the same step
    group: str = ""  # "": all state; else the part that is saved at an interval of its own
    trusted: bool = True  # False: corruption was suspected when it was taken
    run: str = ""
    run_term: int = 0
    data_position: Any = None
    saved_wall_s: float = 0.0
    versions: dict[str, str] = {}


class Act(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", forbid_unknown_fields=True):
    """What an entry does."""


class Claim(Act, frozen=True, tag="claim"):
    """Begin the entry's term: entries of older terms that come later are void."""

    owner: str


class Commit(Act, frozen=True, tag="commit"):
    """Publish a generation. Void if one of its bases is not alive at this place."""

    manifest: Manifest


class Pin(Act, frozen=True, tag="pin"):
    """Keep a generation whatever the retention says."""

    generation: int
    label: str = ""


class Unpin(Act, frozen=True, tag="unpin"):
    """Take a pin away."""

    generation: int


class Retire(Act, frozen=True, tag="retire"):
    """Give generations up for good; pinned ones stay. Their objects may be swept afterwards."""

    generations: tuple[int, ...]


class Verified(Act, frozen=True, tag="verified"):
    """A restore drill read all of a generation."""

    generation: int
    held: bool
    detail: str = ""


AnyAct = Claim | Commit | Pin | Unpin | Retire | Verified


class Entry(_Value, frozen=True):
    """One object of the log."""

    format: int
    number: int
    term: int
    nonce: str  # of the writer's attempt to create it: read back after a doubtful answer
    wall_s: float
    act: AnyAct
