"""From what the user wrote to a store that is known to be the job's, and known to exclude."""

from __future__ import annotations

import contextlib
import difflib
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from closeranks.checkpoint.format import FORMAT, IDENTITY_KEY, LOG_PREFIX, Identity
from closeranks.checkpoint.problems import Damaged, StoreRefused
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.retry import created, retried
from closeranks.checkpoint.stores.store import Store
from closeranks.drill.files import files_of_drill

OBJECT_SCHEMES: Final = ("s3", "gs", "az")
PROBE_PREFIX: Final = "probe/"
_LIMIT_BYTES: Final = 64 * 2**10  # of an identity
_PROBE_FOR_S: Final = 24 * 3600.0  # older ones were left behind by a killed process


class _FormatOnly(msgspec.Struct, frozen=True):
    format: int


def open_store(text: str) -> Store:
    """The store at a path, or at a URL: ``file://``, ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://...``.

    Nothing is touched yet.

    Raises:
        StoreRefused: the text names no store.
    """
    scheme, mark, _ = text.partition("://")
    if not mark:
        return DirectoryStore(_folder(text, text), files_of_drill())
    if scheme == "file":
        return DirectoryStore(_folder(_file_path(text), text), files_of_drill())
    if scheme in OBJECT_SCHEMES:
        from closeranks.checkpoint.stores.objects import ObjectStore

        return ObjectStore(text)
    known = ("file", *OBJECT_SCHEMES)
    near = difflib.get_close_matches(scheme, known, n=1)
    hint = f"did you mean {near[0]}://?" if near else "give a folder's path or one of those"
    if scheme in ("http", "https"):
        hint = f"for an S3-compatible server at that address write s3://BUCKET/PREFIX?endpoint={scheme}://HOST:PORT"
    raise StoreRefused(
        f"--store {text}: expected a path or a URL of {', '.join(f'{one}://' for one in known)}, got {scheme}://;"
        f" {hint}"
    )


def found(store: Store, job: str, *, make: bool, now_wall_s: float) -> Identity:
    """The identity of the store, which belongs to this job; ``job`` may be empty to look at any job's store.

    With ``make`` an empty place becomes the store of the job; of several that do so at once one wins.

    Raises:
        StoreRefused: no store, another job's, of a newer format, or not readable; nothing was changed.
        StoreProblem: the place could not be asked.
    """
    identity = _identity(store)
    if identity is None and make and job:
        _require_no_log(store)
        identity = Identity(format=FORMAT, store=secrets.token_hex(16), job=job, created_wall_s=now_wall_s)
        if not created(store, IDENTITY_KEY, msgspec.json.encode(identity)):
            identity = _identity(store)
    if identity is None:
        raise StoreRefused(
            f"{store.url}: expected a checkpoint store, got no {IDENTITY_KEY}; check the path or URL and that its file"
            " system is mounted (a store is made by 'closeranks run --store')"
        )
    if job and identity.job != job:
        raise StoreRefused(
            f"{store.url}/{IDENTITY_KEY}: expected the store of job {job!r}, got that of job {identity.job!r}; choose"
            f" another --store for this job, or name the job: --job {identity.job}"
        )
    return identity


def probe(store: Store) -> tuple[str, ...]:
    """Whether creating really excludes: two creates of one key, of which the second has to fail.

    Returns:
        Promises that the store cannot keep, in words: empty when there are none.

    Raises:
        StoreRefused: both creates were told that they won, or reading shows something else than was written.
        StoreProblem: the store cannot be written.
    """
    nonce = secrets.token_hex(16)
    key, first, second = f"{PROBE_PREFIX}{nonce}", f"first {nonce}".encode(), f"second {nonce}".encode()
    won = created(store, key, first)
    if not won or created(store, key, second) or retried(lambda: store.read(key, _LIMIT_BYTES)) != first:
        raise StoreRefused(
            f"{store.url}: expected the second of two creates of {key} to be refused, got a store that lets both win:"
            " two writers could overwrite each other's checkpoints. Use a file system with hard links, or an object"
            " store with conditional writes (If-None-Match)"
        )
    _sweep_probes(store, key)
    return tuple(getattr(store, "notes", ()))


def _sweep_probes(store: Store, key: str) -> None:
    rows = retried(lambda: list(store.list(PROBE_PREFIX)))
    now_wall_s = max((row.modified_wall_s for row in rows if row.key == key), default=0.0)  # by the store's clock
    old = [row.key for row in rows if row.modified_wall_s < now_wall_s - _PROBE_FOR_S]
    retried(lambda: store.delete([key, *old]))


def _identity(store: Store) -> Identity | None:
    data = _identity_bytes(store)
    if data is None:
        return None
    try:
        version = msgspec.json.decode(data, type=_FormatOnly).format
        if version > FORMAT:
            raise StoreRefused(
                f"{store.url}/{IDENTITY_KEY}: expected format {FORMAT} or older, got format {version}, written by a"
                " newer version of closeranks; install that version (pip install --upgrade closeranks)"
            )
        return msgspec.json.decode(data, type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _garbage(store, str(error)) from error


def _identity_bytes(store: Store) -> bytes | None:
    """None: there is no such object."""
    with contextlib.suppress(Damaged):
        return retried(lambda: store.read(IDENTITY_KEY, _LIMIT_BYTES))
    try:
        retried(lambda: store.read_into(IDENTITY_KEY, 0, memoryview(bytearray(1))))
    except Damaged:
        return None
    try:  # it is too long; or another process has made it since the first look
        return retried(lambda: store.read(IDENTITY_KEY, _LIMIT_BYTES))
    except Damaged as damaged:
        raise _garbage(store, f"more than {_LIMIT_BYTES:,} bytes") from damaged


def _garbage(store: Store, got: str) -> StoreRefused:
    return StoreRefused(
        f"{store.url}/{IDENTITY_KEY}: expected the identity of a checkpoint store in JSON, got {got}; if this is your"
        " store, put that object back from a copy (it never changes), else choose another --store"
    )


def _require_no_log(store: Store) -> None:
    exists = getattr(store, "exists", None)  # of a folder, also below a store that passes calls on
    if exists is not None and not retried(exists):
        return
    first = retried(lambda: next(store.list(LOG_PREFIX), None))  # a listing asks when it is read
    if first is not None:
        raise StoreRefused(
            f"{store.url}: expected {IDENTITY_KEY} beside the log, got {first.key} without it; put that object back"
            " from a copy (it never changes), or choose another --store"
        )


def _file_path(text: str) -> str:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise StoreRefused(
            f"--store {text}: expected file:///absolute/path, got host {parts.netloc!r}; write three slashes, or the"
            " path alone"
        )
    return unquote(parts.path)


def _folder(path: str, text: str) -> Path:
    if not path or "\0" in path:
        raise StoreRefused(
            f"--store {text!r}: expected the path of a folder or a URL, got none; write for example ./ckpt"
        )
    return Path(path).expanduser()
