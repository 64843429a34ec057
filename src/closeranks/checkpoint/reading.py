"""Reading a shard back: every byte is checked against its digest before the caller hears that it is there."""

from __future__ import annotations

import bisect
import contextlib
import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from closeranks.checkpoint import digests
from closeranks.checkpoint.codec import decompress
from closeranks.checkpoint.digests import Digest, begun
from closeranks.checkpoint.format import Extent, ShardIndex, ShardRef
from closeranks.checkpoint.problems import Damaged
from closeranks.checkpoint.rows import rows_of, scatter
from closeranks.checkpoint.shard_index import INDEX_LIMIT_BYTES, decode_index, is_data_key
from closeranks.checkpoint.stores.store import Buffer, Near, ReadInto, Store
from closeranks.checkpoint.windows import WINDOW_BYTES, Wanted, windows

THREADS: Final = 4
_WAY_OUT: Final = "restore from another home or an earlier generation"


class Checks(enum.Enum):
    """Which digests of an extent are compared. An extent for which none is recorded is refused in all cases."""

    ALL = "all"  # every digest that is recorded: finds records that contradict each other, too
    STRONG = "strong"  # BLAKE3 where it is recorded, else xxh3: finds intent
    FAST = "fast"  # xxh3 where it is recorded, else BLAKE3: finds accidents at the speed of memory


_KINDS: Final = {Checks.ALL: ("xxh3", "blake3"), Checks.STRONG: ("blake3", "xxh3"), Checks.FAST: ("xxh3", "blake3")}


class Region(NamedTuple):
    """A box of a slice, and where its bytes go."""

    slice: int  # its place in index.slices
    offsets: tuple[int, ...]  # of the box's first element, from the slice's own first element
    shape: tuple[int, ...]
    target: Buffer  # row-major, without gaps; scratch: its content means nothing when the fetch failed


class _Piece(NamedTuple):
    """An extent that is to be read, and what of it goes where."""

    extent: Extent
    wanted: tuple[Wanted, ...]


def read_index(store: Store, ref: ShardRef) -> ShardIndex:
    """The index of a committed shard.

    Raises:
        Damaged: it is absent, or not the one that was committed, or its numbers contradict each other.
        StoreRefused: a newer version wrote it.
        StoreProblem: the store does not answer.
    """
    where = ref.object
    if not is_data_key(where):
        raise _damaged(where[:200], "a commit cannot refer to this key")
    if not 0 < ref.length <= INDEX_LIMIT_BYTES:
        raise _damaged(where, f"an index of {ref.length} bytes, expected 1 to {INDEX_LIMIT_BYTES}")
    data = store.read(where, ref.length)
    digest = digests.blake3(data)
    if len(data) != ref.length or digest != ref.blake3:
        got = f"got {len(data)} bytes with {digest[:16]}"
        raise _damaged(where, f"expected {ref.length} bytes with blake3 {ref.blake3[:16]}, {got}")
    index = decode_index(data, where)
    if (index.writer, index.image_bytes) != (ref.writer, ref.image_bytes):
        got = f"writer {index.writer} with {index.image_bytes}"
        raise _damaged(where, f"expected writer {ref.writer} with {ref.image_bytes} bytes, got {got}")
    return index


def fetch(
    store: Store,
    index: ShardIndex,
    regions: Sequence[Region],
    progress: Callable[[int, int], None] | None = None,
    *,
    checks: Checks = Checks.STRONG,
    threads: int = THREADS,
) -> None:
    """Fill the regions' targets. Only extents that hold some of their bytes are read, all their bytes once.

    ``progress`` hears the bytes read so far and the bytes to be read in all.

    Raises:
        Damaged: something is absent, too short, or has another digest; the targets then hold nothing of use.
        StoreProblem: the store does not answer; the same holds for the targets.
        ValueError: a region does not fit its slice or its target; nothing was read.
    """
    pieces = _pieces(index, regions)
    with _source(store) as source:
        _read_pieces(pieces, _Reader(source, checks), progress, threads)


def verify_shard(
    store: Store,
    index: ShardIndex,
    progress: Callable[[int, int], None] | None = None,
    *,
    checks: Checks = Checks.ALL,
    threads: int = THREADS,
) -> None:
    """Read every byte of the shard and compare the digests.

    Raises:
        Damaged: something is absent, too short, or has another digest.
        StoreProblem: the store does not answer.
    """
    pieces = [_Piece(extent, ()) for extent in index.extents]
    with _source(store) as source:
        _read_pieces(pieces, _Reader(source, checks), progress, threads)


class _Source(NamedTuple):
    """Where bytes come from, and whether they are read in windows: what is not near is asked once for each extent."""

    read_into: ReadInto
    near: bool


@contextlib.contextmanager
def _source(store: Store) -> Iterator[_Source]:
    if isinstance(store, Near):
        with store.reader() as read_into:
            yield _Source(read_into, near=True)
    else:
        yield _Source(store.read_into, near=False)


class _Reader:
    """Reads one extent at a time in each thread, through scratch memory that is kept."""

    def __init__(self, source: _Source, checks: Checks) -> None:
        self._source = source
        self._checks = checks
        self._local = threading.local()

    def read(self, piece: _Piece) -> int:
        """Read, check and scatter; gives the bytes read."""
        extent = piece.extent
        digests = self._digests(extent)
        if extent.codec or not self._source.near:
            self._read_whole(piece, list(digests.values()))
        else:
            self._read_windows(piece, list(digests.values()))
        for kind, digest in digests.items():
            _require(extent, kind, getattr(extent, kind), digest.hexdigest())
        return extent.stored

    def _read_windows(self, piece: _Piece, digests: Sequence[Digest]) -> None:
        extent = piece.extent
        for at, length, wanted in windows(extent.at, extent.at + extent.length, piece.wanted, WINDOW_BYTES):
            data = self._scratch("image", length)
            self._source.read_into(extent.object, extent.begin + at - extent.at, data)
            for digest in digests:
                digest.update(data)
            for rows, target in wanted:
                scatter(rows, at, data, target)

    def _read_whole(self, piece: _Piece, digests: Sequence[Digest]) -> None:
        extent = piece.extent
        data = self._direct_target(piece)
        direct = data is not None
        if data is None:
            data = self._scratch("image", extent.length)
        if extent.codec:
            frame = self._scratch("stored", extent.stored)
            self._source.read_into(extent.object, extent.begin, frame)
            self._decompress(extent, frame, data)
        else:
            self._source.read_into(extent.object, extent.begin, data)
        for digest in digests:
            digest.update(data)
        if not direct:
            for rows, target in piece.wanted:
                scatter(rows, extent.at, data, target)

    def _direct_target(self, piece: _Piece) -> Buffer | None:
        """The part of a target that is exactly this extent: it needs no scratch of its own."""
        if len(piece.wanted) != 1:
            return None
        extent, (rows, target) = piece.extent, piece.wanted[0]
        if rows.times != 1 or extent.at < rows.at or extent.at + extent.length > rows.end:
            return None
        begin = rows.target_at + extent.at - rows.at
        return target[begin : begin + extent.length]

    def _decompress(self, extent: Extent, frame: Buffer, data: Buffer) -> None:
        try:
            decompress(extent.codec, frame, data)
        except Damaged as error:
            raise _damaged(extent.object, f"byte {extent.begin}: {error}") from error

    def _scratch(self, name: str, length: int) -> Buffer:
        have: bytearray | None = getattr(self._local, name, None)
        if have is None or len(have) < length:
            have = bytearray(length)
            setattr(self._local, name, have)
        return memoryview(have)[:length]

    def _digests(self, extent: Extent) -> dict[str, Digest]:
        recorded = [kind for kind in _KINDS[self._checks] if getattr(extent, kind)]
        if not recorded:
            raise _damaged(extent.object, f"byte {extent.begin}: no digest is recorded for it")
        chosen = recorded if self._checks is Checks.ALL else recorded[:1]
        return {kind: begun(kind) for kind in chosen}


def _require(extent: Extent, kind: str, expected: str, got: str) -> None:
    if got != expected:
        where = f"bytes {extent.begin} to {extent.begin + extent.stored}"
        raise _damaged(extent.object, f"{where}: expected {kind} {expected[:16]}, got {got[:16]}")


def _damaged(key: str, problem: str) -> Damaged:
    return Damaged(f"{key}: {problem}; {_WAY_OUT}", object_key=key)


def _pieces(index: ShardIndex, regions: Iterable[Region]) -> list[_Piece]:
    ends = [extent.at + extent.length for extent in index.extents]
    wanted: dict[int, list[Wanted]] = {}
    for region in regions:
        part = index.slices[region.slice]
        target = region.target.cast("B")
        size = 0
        for rows in rows_of(part, region.offsets, region.shape):
            size += rows.times * rows.run
            for number in range(bisect.bisect_right(ends, rows.at), len(ends)):
                extent = index.extents[number]
                if extent.at >= rows.end:
                    break
                if rows.within(extent.at, ends[number]):
                    wanted.setdefault(number, []).append((rows, target))
        if target.readonly or len(target) != size:
            raise ValueError(f"{part.name!r}: expected a writable target of {size} bytes, got {len(target)}")
    return [_Piece(index.extents[number], tuple(rows)) for number, rows in sorted(wanted.items())]


def _read_pieces(
    pieces: Sequence[_Piece],
    reader: _Reader,
    progress: Callable[[int, int], None] | None,
    threads: int,
) -> None:
    total, done, lock = sum(piece.extent.stored for piece in pieces), 0, threading.Lock()

    def read(piece: _Piece) -> None:
        nonlocal done
        count = reader.read(piece)
        with lock:
            done += count
            if progress is not None:
                progress(done, total)

    pool = ThreadPoolExecutor(max(1, min(threads, len(pieces))), "closeranks-read")
    try:
        for future in [pool.submit(read, piece) for piece in pieces]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)
