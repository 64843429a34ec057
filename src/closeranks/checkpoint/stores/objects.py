"""Objects in a bucket: S3 and what speaks its language, Google Cloud Storage, Azure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.keys import checked_key, checked_prefix
from closeranks.checkpoint.stores.object_errors import is_no_bucket, problem_of
from closeranks.checkpoint.stores.object_urls import connect, parse
from closeranks.checkpoint.stores.store import Buffer, Listed, OnPiece

PART_BYTES: Final = 16 * 2**20  # of a multipart upload, and of a ranged read
MAX_PARTS: Final = 9_000  # stores take 10,000
AT_ONCE: Final = 8  # requests: 128 MiB in flight at most, for one object
PAGE: Final = 1_000  # names in one answer


class ObjectStore:
    """A bucket, or the part of it below a prefix. Needs the package obstore.

    An object appears whole: small ones by one request, large ones when the last request of a multipart upload is
    answered. An upload that a killed process left unfinished is invisible but paid for until the bucket's lifecycle
    rule ("abort incomplete multipart uploads") removes it.
    """

    def __init__(self, url: str) -> None:
        place = parse(url)
        self.url = place.url
        self._client = connect(place)

    def create(self, key: str, data: bytes) -> bool:
        """See Store. Also True when exactly these bytes are there already: a client may have sent a request twice."""
        return self._put_new(checked_key(key, self.url), data)

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:
        """See Store. An upload that fails is given up: nothing of it becomes visible.

        ``on_piece`` is called from within the client, and must not use an object store itself.
        """
        checked_key(key, self.url)
        length = sum(part.nbytes for part in parts)
        if length <= PART_BYTES:
            whole = b"".join(piece for _, piece in _pieces(parts, on_piece, PART_BYTES))
            if not self._put_new(key, whole):
                raise self._taken(key)
            return length
        if self._length(key) is not None:
            raise self._taken(key)
        self._upload(key, parts, on_piece, length)
        return length

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """See Store."""
        import obstore

        checked_key(key, self.url)
        view = target.cast("B")
        if not len(view):
            if self._length(key) is None:
                raise self._damaged(key, "an object", "none")
            return
        for first in range(0, len(view), PART_BYTES * AT_ONCE):
            batch = view[first : first + PART_BYTES * AT_ONCE]
            starts = range(0, len(batch), PART_BYTES)
            with self._reading(key):
                got = obstore.get_ranges(
                    self._client,
                    key,
                    starts=[begin + first + start for start in starts],
                    lengths=[min(PART_BYTES, len(batch) - start) for start in starts],
                    coalesce=0,
                )
            for start, piece in zip(starts, got, strict=True):
                wanted = batch[start : start + PART_BYTES]
                if len(piece) != len(wanted):
                    raise self._damaged(key, f"at least {begin + len(view):,} bytes", "a shorter object")
                wanted[:] = memoryview(piece)

    def read(self, key: str, limit_bytes: int) -> bytes:
        """See Store."""
        import obstore

        checked_key(key, self.url)
        with self._reading(key):
            answer = obstore.get(self._client, key)
            length = answer.meta["size"]
            if length <= limit_bytes:
                return bytes(answer.bytes())
        raise self._damaged(key, f"at most {limit_bytes:,} bytes", f"an object of {length:,}")

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """See Store."""
        import obstore

        checked_prefix(prefix, self.url)
        # The client's prefixes end at slashes.
        folder = prefix.rpartition("/")[0]
        try:
            pages = obstore.list(self._client, folder or None, offset=after or None, chunk_size=PAGE)
            rows = [
                Listed(row["path"], row["size"], row["last_modified"].timestamp())
                for page in pages
                for row in page
                if row["path"].startswith(prefix) and row["path"] > after
            ]
        except Exception as error:
            raise problem_of(error, f"{self.url}: listing {prefix or 'all objects'}") from error
        return iter(sorted(rows))

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        import obstore

        gone = [checked_key(key, self.url) for key in keys]
        try:
            if gone:
                obstore.delete(self._client, gone)
        except FileNotFoundError as error:
            if is_no_bucket(error) or len(gone) == 1:
                self._said_absent(error, gone)
                return
            for key in gone:  # a store that minds absent objects stops at the first
                self.delete([key])
        except Exception as error:
            raise problem_of(error, f"{self.url}: deleting {len(gone):,} objects, {gone[0]} the first") from error

    def close(self) -> None:
        """Nothing to give back: connections close when they are idle."""

    # --- writing ------------------------------------------------------------------------------------------------

    def _put_new(self, key: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            obstore.put(self._client, key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError) as error:
            try:
                return self.read(key, len(data)) == data
            except Damaged as damaged:
                if self._length(key) is None:  # two creates met, and neither was carried out
                    raise StoreProblem(
                        f"{self.url}/{key}: expected an object that was said to exist, got none; it is tried again",
                        transient=True,
                        doubtful=True,
                    ) from error
                del damaged  # longer than ours: another's
                return False
        except Exception as error:
            raise problem_of(error, f"{self.url}/{key}: creating an object", is_write=True) from error
        return True

    def _upload(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None, length: int) -> None:
        import obstore

        part_bytes = max(PART_BYTES, -(-length // MAX_PARTS))
        own: list[Exception] = []
        try:
            obstore.put(
                self._client,
                key,
                _kept(_pieces(parts, on_piece, PART_BYTES), own),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=AT_ONCE,
            )
        except Exception as error:
            if own:  # of the caller's buffers or of on_piece, not of the store
                raise
            # Only the last request makes the object, whole: if it is there, no more than the answer was lost.
            with contextlib.suppress(StoreProblem):
                if self._length(key) == length:
                    return
            raise problem_of(error, f"{self.url}/{key}: uploading {length:,} bytes", is_write=True) from error

    # --- asking -------------------------------------------------------------------------------------------------

    def _length(self, key: str) -> int | None:
        import obstore

        try:
            return int(obstore.head(self._client, key)["size"])
        except FileNotFoundError as error:
            self._said_absent(error, [key])
            return None
        except Exception as error:
            raise problem_of(error, f"{self.url}/{key}: asking for its length") from error

    def _said_absent(self, error: FileNotFoundError, keys: Sequence[str]) -> None:
        if is_no_bucket(error):
            raise problem_of(error, f"{self.url}/{keys[0]}: asking for it") from error

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            self._said_absent(error, [key])
            raise self._damaged(key, "an object", "none") from error
        except Exception as error:
            if "416" in str(error) and "Range" in str(error):
                raise self._damaged(key, "a longer object", "one that ends before the first byte") from error
            raise problem_of(error, f"{self.url}/{key}: reading") from error

    def _damaged(self, key: str, expected: str, got: str) -> Damaged:
        return Damaged(
            f"{self.url}/{key}: expected {expected}, got {got}; restore from another home or generation", object_key=key
        )

    def _taken(self, key: str) -> StoreProblem:
        return StoreProblem(
            f"{self.url}/{key}: expected no such object, got one; it was left alone: begin a new attempt"
        )


def _pieces(parts: Sequence[Buffer], on_piece: OnPiece | None, piece_bytes: int) -> Iterator[tuple[int, memoryview]]:
    at = 0
    for part in parts:
        view = part.cast("B")
        for begin in range(0, len(view), piece_bytes):
            piece = view[begin : begin + piece_bytes]
            if on_piece is not None:
                on_piece(at, piece)
            yield at, piece
            at += len(piece)


def _kept(pieces: Iterator[tuple[int, memoryview]], own: list[Exception]) -> Iterator[memoryview]:
    """The pieces alone; an error in making them is kept in ``own``, so that it is not taken for one of the store."""
    try:
        for _, piece in pieces:
            yield piece
    except Exception as error:
        own.append(error)
        raise
