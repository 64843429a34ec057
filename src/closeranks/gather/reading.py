"""Files as pieces of bytes, unpacked on the way, at constant memory whatever they hold."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import lzma
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final

import msgspec

PIECE_BYTES: Final = 2**20
# A bomb of zeros unpacks at a thousand to one and more; real logs stay below a hundred.
UNPACKED_RATIO_MAX: Final = 400
RATIO_COUNTS_FROM_BYTES: Final = 2**26
_HEAD_BYTES: Final = 6
_FRAME_BYTES: Final = 2**10  # of zstd at a time: four bytes can stand for 128 KiB, and the sum has to fit
_ODD_SHARE_MAX: Final = 0.3  # of signs that no text has
_GZIP, _XZ, _BZIP2, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd"
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # what shells of Windows redirect into a file
_PACKED: Final = (_GZIP, _XZ, _BZIP2, _ZSTD)


class ReadingError(Exception):
    """A file cannot be read, or not to its end. What was read before counts."""


class Piece(msgspec.Struct, frozen=True):
    """Bytes of a file, and how far into the stored file they reach."""

    data: bytes
    stored_bytes: int


def looks_like_text(head: bytes) -> bool:
    """Whether these bytes may begin a log: holes of zeros, colours and a few broken signs are what logs have, too."""
    text = head.decode("utf-8", "replace").replace("\0", "")
    odd = sum(sign == "\N{REPLACEMENT CHARACTER}" or (sign < " " and sign not in "\t\n\r\b\x1b") for sign in text)
    return bool(text) and odd <= _ODD_SHARE_MAX * len(text)


def pieces(path: Path) -> Iterator[Piece]:
    """The content, unpacked if it begins like gzip, xz, bzip2 or zstd, whatever its name says; UTF-16 as UTF-8.

    Raises:
        ReadingError: it cannot be opened, is damaged or cut off, or unpacks to more than any log holds.
    """
    how = ""
    try:
        with path.open("rb") as stored:
            how = " to its end"
            head = stored.peek(_HEAD_BYTES)[:_HEAD_BYTES]
            yield from _bounded(path, stored, *_unpacker(path, stored, head))
    except OSError as error:  # of the system, and of gzip and bzip2 about their data
        raise ReadingError(f"{path}: cannot be read{how}: {error.strerror or error}") from error


def _bounded(path: Path, stored: BufferedReader, source: Any, damages: tuple[type[Exception], ...]) -> Iterator[Piece]:
    # Of a pipe, what is there: while ``read`` fills a piece, Ctrl-C that comes just as something arrives is not heard.
    read = stored.read1 if source is stored else source.read
    read_bytes = 0
    try:
        while data := read(PIECE_BYTES):
            read_bytes += len(data)
            at = stored.tell() if stored.seekable() else read_bytes
            yield Piece(data, at)
            if read_bytes > RATIO_COUNTS_FROM_BYTES and read_bytes > UNPACKED_RATIO_MAX * at:
                raise ReadingError(
                    f"{path}: {at} bytes unpack to more than {read_bytes}, as no log does; it was left there"
                )
    except damages as error:
        raise ReadingError(f"{path}: is damaged or cut off, and was read up to there: {error}") from error


def _unpacker(path: Path, stored: IO[bytes], head: bytes) -> tuple[Any, tuple[type[Exception], ...]]:
    """Where to read from, and what it raises for damaged data."""
    if head.startswith(_PACKED) and not stored.seekable():
        raise ReadingError(f"{path}: is a packed stream; unpack it before, as in <(zcat FILE)")
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=stored), (EOFError, zlib.error)
    if head.startswith(_XZ):
        return lzma.LZMAFile(stored), (EOFError, lzma.LZMAError)
    if head.startswith(_BZIP2):
        return bz2.BZ2File(stored), (EOFError,)
    if head.startswith(_ZSTD):
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError as error:
            raise ReadingError(f"{path}: is packed with zstd; install closeranks[compress] to read it") from error
        return _Frames(stored, zstandard.ZstdDecompressor()), (EOFError, zstandard.ZstdError)
    if head.startswith(_UTF16):
        return codecs.EncodedFile(stored, "utf-8", "utf-16", errors="replace"), ()
    return stored, ()


class _Frames:
    """Frames of zstd as a file to read. The library's own reader ends without a word where a frame was cut off."""

    def __init__(self, stored: IO[bytes], unpacker: Any) -> None:
        self._stored, self._unpacker = stored, unpacker
        self._frame: Any = None  # the one that is not complete yet
        self._rest = b""  # what follows a complete one

    def read(self, size: int) -> bytes:
        """``size`` bytes and some more; fewer only at the end.

        Raises:
            EOFError: the last frame is not complete; what was read before counts.
        """
        parts: list[bytes] = []
        while sum(map(len, parts)) < size and (data := self._rest or self._stored.read(_FRAME_BYTES)):
            self._frame = self._frame or self._unpacker.decompressobj()
            parts.append(self._frame.decompress(data))
            self._rest = self._frame.unused_data
            self._frame = None if self._frame.eof else self._frame
        unpacked = b"".join(parts)
        if not unpacked and self._frame is not None:
            raise EOFError("its last frame is not complete")
        return unpacked
