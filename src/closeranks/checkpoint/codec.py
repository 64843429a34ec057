"""Lossless compression of extents for slow or metered homes.

Numbers of one type compress better byte plane by byte plane: all first bytes, then all second ones. The name of the
codec says how many planes there are: ``zstd`` none, ``zstd2`` two (16 bit items), ``zstd4`` four, ``zstd8`` eight.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from closeranks.checkpoint.problems import Damaged, StoreRefused
from closeranks.checkpoint.stores.store import Buffer

CODECS: Final = ("", "zstd", "zstd2", "zstd4", "zstd8")
_LEVEL: Final = 1
_WORTH: Final = 0.97  # of the length: a smaller gain is not worth the time of every later read


def compress(data: Buffer, item_bytes: int) -> tuple[str, bytes] | None:
    """The codec and the frame of these bytes, or None where compression gains too little.

    Raises:
        StoreRefused: the library is not installed.
    """
    planes = item_bytes if item_bytes > 1 and len(data) % item_bytes == 0 else 1
    frame: bytes = _zstandard().ZstdCompressor(level=_LEVEL).compress(_planes_of(data, planes))
    if len(frame) > _WORTH * len(data):
        return None
    return ("zstd" if planes == 1 else f"zstd{planes}"), frame


def decompress(codec: str, frame: Buffer, target: Buffer) -> None:
    """Fill the target from a frame that must hold exactly as many bytes; nothing larger is ever allocated.

    Raises:
        Damaged: it is no such frame, or holds another number of bytes.
        StoreRefused: the codec is not known, or the library is not installed.
    """
    if codec not in CODECS[1:]:
        raise StoreRefused(f"codec {codec!r} is not one of {', '.join(CODECS[1:])}; a newer version may know it")
    zstandard = _zstandard()
    try:
        size = zstandard.frame_content_size(frame)
        if size != len(target):
            raise Damaged(f"zstd frame: expected {len(target)} bytes inside, got {size}")
        data = zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise Damaged(f"zstd frame: {error}") from error
    planes = int(codec.removeprefix("zstd") or 1)
    if len(data) != len(target) or len(data) % planes:
        raise Damaged(f"zstd frame: expected {len(target)} bytes in {planes} planes, got {len(data)}")
    items = np.frombuffer(data, np.uint8).reshape(planes, -1).T
    np.frombuffer(target, np.uint8).reshape(-1, planes)[:] = items


def _planes_of(data: Buffer, planes: int) -> Any:
    if planes == 1:
        return data
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, planes).T)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise StoreRefused('compressed checkpoints need zstandard: pip install "closeranks[compress]"') from error
    return zstandard
