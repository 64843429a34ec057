"""Opens the store that ``[sessions]`` names."""

from __future__ import annotations

from pathlib import Path

from closeranks.serve.sessions.files import FileStreams
from closeranks.serve.sessions.settings import Keep, SessionSettings
from closeranks.serve.sessions.store import MemoryStreams, StreamStore


def open_streams(settings: SessionSettings) -> StreamStore | None:
    """The store; None if streams are not kept.

    Raises:
        OSError: the folder cannot be made.
        ImportError: the package ``redis`` is not there.
    """
    if settings.keep is Keep.NOTHING:
        return None
    if settings.store == "memory":
        return MemoryStreams()
    if settings.store.startswith("file:"):
        return FileStreams(Path(settings.store.removeprefix("file:")), settings.keep_s)
    from closeranks.serve.sessions.redis import RedisStreams

    return RedisStreams(settings.store, settings.keep_s)
