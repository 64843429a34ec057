"""Objects as files below a folder: a local disk, or one that many machines share."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from closeranks.checkpoint.files import UNSUPPORTED, Files, Found, RealFiles
from closeranks.checkpoint.format import IDENTITY_KEY
from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.big_write import write_parts
from closeranks.checkpoint.stores.errnos import problem_of
from closeranks.checkpoint.stores.folders import TRIES, Folders
from closeranks.checkpoint.stores.keys import checked_key, checked_prefix
from closeranks.checkpoint.stores.listing import Listing
from closeranks.checkpoint.stores.open_files import OpenFiles
from closeranks.checkpoint.stores.store import Buffer, Listed, OnPiece, ReadInto
from closeranks.checkpoint.stores.unfinished import Unfinished

_NO_LINKS: Final = UNSUPPORTED | {errno.EPERM, errno.EMLINK}

T = TypeVar("T")


class _Open(NamedTuple):
    path: Path
    fd: int
    found: Found


class DirectoryStore:
    """A folder of files, mode 0600, in folders of mode 0700.

    What returned survives a power cut, its folders' names included, where the file system can fsync (see ``notes``).
    Objects of several processes and machines meet in it: an object appears whole by ``link(2)``, never by renaming.
    """

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self._root = root.absolute()  # not resolved: messages show what the user wrote
        self.url = str(self._root)
        self._files = RealFiles() if files is None else files
        self._folders = Folders(self._root, self._files)
        self._unfinished = Unfinished(self._root, self._files)
        self._is_identified = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Promises that this file system turned out not to keep, in words; complete after ``opening.probe``."""
        return self._folders.notes

    def exists(self) -> bool:
        """Whether the folder is there."""
        with self._said(f"{self._root}: looking for the folder"):
            return self._is_there(self._root)

    def create(self, key: str, data: bytes) -> bool:
        """See Store. Also what was listed and read before is on the disk when this returns, whoever wrote it."""
        path = self._path(key)
        with self._said(f"{path}: creating an object of {len(data):,} bytes"):
            self._require_same_store()
            self._folders.make(path.parent)
            # First what the caller may have seen, then what depends on it: a power cut must not keep only the latter.
            self._folders.show(path.parent)
            self._folders.settle()
            waiting = self._unfinished.make(lambda waiting: self._waiting_file(waiting, data))
            try:
                ours = self._publish(waiting, path)
            finally:
                self._unfinished.drop(waiting)
        self._is_identified |= ours and key == IDENTITY_KEY
        return ours

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:
        """See Store. A failed write takes its own file away again, so that a full disk does not stay full."""
        path = self._path(key)
        length = sum(part.nbytes for part in parts)
        with self._said(f"{path}: writing an object of {length:,} bytes"):
            self._require_same_store()
            fd = self._in_folder(path, lambda: self._files.make(path))
            try:
                self._fill(fd, parts, on_piece)
                self._folders.fsync(path.parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._files.unlink(path)
                raise
        return length

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """See Store."""
        with self._opened(key) as opened:
            self._read_range(opened, key, begin, target)

    @contextlib.contextmanager
    def reader(self) -> Iterator[ReadInto]:
        """See Near. An object that is deleted meanwhile can be read to the end."""
        files = OpenFiles(self._open, self._close)

        def read_into(key: str, begin: int, target: Buffer) -> None:
            opened = files.get(key)
            if opened is None:
                self.read_into(key, begin, target)
            else:
                with self._said(f"{opened.path}: reading"):
                    self._read_range(opened, key, begin, target)

        try:
            yield read_into
        finally:
            files.close()

    def read(self, key: str, limit_bytes: int) -> bytes:
        """See Store."""
        with self._opened(key) as (path, fd, found):
            if found.length > limit_bytes:
                raise self._damaged(path, key, f"at most {limit_bytes:,} bytes", f"a file of {found.length:,}")
            data = bytearray(found.length)
            self._read_all(fd, memoryview(data), 0, (path, key))
        self._folders.show(path.parent)
        self._is_identified |= key == IDENTITY_KEY
        return bytes(data)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """See Store."""
        checked_prefix(prefix, self.url)
        with self._said(f"{self._root}: listing {prefix or 'all objects'}"):
            if not self._files.find(self._root).is_folder:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            yield from Listing(self._root, self._files, self._folders.show).between(prefix, after)

    def delete(self, keys: Iterable[str]) -> None:
        """See Store. Folders that become empty are removed as well."""
        for key in keys:
            path = self._path(key)
            with self._said(f"{path}: deleting the object"):
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(path)
                self._remove_empty(path.parent)

    def close(self) -> None:
        """Nothing to give back: descriptors live only within a call, or until their reader is left."""

    # --- creating -----------------------------------------------------------------------------------------------

    def _waiting_file(self, path: Path, data: bytes) -> None:
        self._fill(self._in_folder(path, lambda: self._files.make(path)), (memoryview(data),), None)

    def _publish(self, waiting: Path, path: Path) -> bool:
        try:
            self._in_folder(path, lambda: self._files.link(waiting, path))
            ours = True
        except FileExistsError:
            # A request that was sent twice over a network finds its own file: the inode tells.
            ours = self._is_same(waiting, path)
        except OSError as error:
            if error.errno in _NO_LINKS and not self._is_there(path):
                raise self._no_links(error) from error
            if not self._is_same(waiting, path):
                raise problem_of(error, f"{path}: linking it to its name", doubtful=True) from error
            ours = True
        try:
            # Also when another won: the caller goes on to depend on what is there.
            self._folders.fsync(path.parent)
        except OSError as error:
            raise problem_of(error, f"{path}: bringing its name to the disk", doubtful=True) from error
        return ours

    def _is_same(self, waiting: Path, path: Path) -> bool:
        try:
            one, other = self._files.find(waiting), self._files.find(path)
        except FileNotFoundError:
            return False
        return (one.device, one.inode) == (other.device, other.inode)

    def _is_there(self, path: Path) -> bool:
        try:
            self._files.find(path)
        except FileNotFoundError:
            return False
        return True

    def _no_links(self, error: OSError) -> StoreProblem:
        return StoreProblem(
            f"{self._root}: expected a file system with hard links, which decide who was first, got"
            f" {os.strerror(error.errno or 0)}; choose another folder, or an object store (s3://, gs://, az://)"
        )

    # --- files --------------------------------------------------------------------------------------------------

    def _fill(self, fd: int, parts: Sequence[Buffer], on_piece: OnPiece | None) -> None:
        try:
            write_parts(self._files, fd, parts, on_piece)
            try:
                self._files.fsync(fd)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                self._folders.note_no_fsync(error, "files")
            # What was cut short below, and said to be whole, is found where it can still be repeated.
            if self._files.find_open(fd).length != sum(part.nbytes for part in parts):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        finally:
            self._files.close(fd)

    def _in_folder(self, path: Path, do: Callable[[], T]) -> T:
        """``do`` in a folder that is there: it may be taken away as empty, or be made by others, at any moment."""
        folder = path.parent
        for left in reversed(range(TRIES)):
            self._folders.make(folder)
            try:
                return do()
            except FileNotFoundError:
                self._folders.forget(folder)
                if left == 0:
                    raise
        raise AssertionError

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[_Open]:
        opened = self._open(key)
        try:
            with self._said(f"{opened.path}: reading"):
                yield opened
        finally:
            self._close(opened)

    def _open(self, key: str) -> _Open:
        path = self._path(key)
        with self._said(f"{path}: reading"):
            try:
                fd = self._files.open_read(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._damaged(path, key, "a file", "none") from error
            try:
                found = self._find_file(fd, path, key)
            except BaseException:
                self._files.close(fd)
                raise
            return _Open(path, fd, found)

    def _find_file(self, fd: int, path: Path, key: str) -> Found:
        found = self._files.find_open(fd)
        if not found.is_file:
            raise self._damaged(path, key, "a file", "something else of that name")
        return found

    def _close(self, opened: _Open) -> None:
        with self._said(f"{opened.path}: reading"):
            self._files.close(opened.fd)

    def _read_range(self, opened: _Open, key: str, begin: int, target: Buffer) -> None:
        view = target.cast("B")
        path, fd, found = opened
        if begin + len(view) > found.length:
            raise self._damaged(path, key, f"at least {begin + len(view):,} bytes", f"a file of {found.length:,}")
        self._read_all(fd, view, begin, (path, key))

    def _read_all(self, fd: int, view: memoryview, begin: int, name: tuple[Path, str]) -> None:
        done = 0
        while done < len(view):
            count = self._files.pread_into(fd, view[done:], begin + done)
            if count == 0:
                raise self._damaged(*name, f"at least {begin + len(view):,} bytes", f"the end at {begin + done:,}")
            done += count

    def _remove_empty(self, folder: Path) -> None:
        while folder != self._root:
            try:
                self._files.rmdir(folder)
            except OSError:  # not empty, not ours, or gone: none of it is in the way of anything
                return
            self._folders.forget(folder)
            folder = folder.parent

    def _require_same_store(self) -> None:
        """A folder whose disk was unmounted is empty, and takes files all the same: on the wrong disk."""
        if self._is_identified and not self._is_there(self._root / IDENTITY_KEY):
            raise StoreProblem(
                f"{self._root}: expected {IDENTITY_KEY}, as before, got none; nothing was written: see that the file"
                " system is mounted and that nobody removed the store",
                transient=True,
            )

    # --- names and messages -------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self._root / checked_key(key, self.url)

    @contextlib.contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError as error:
            raise StoreProblem(
                f"{doing}: expected no such object, got one; it was left alone: begin a new attempt"
            ) from error
        except OSError as error:
            raise problem_of(error, doing, free_bytes=self._free_bytes()) from error

    def _free_bytes(self) -> int | None:
        with contextlib.suppress(OSError):
            return self._files.free_bytes(self._root)
        return None

    def _damaged(self, path: Path, key: str, expected: str, got: str) -> Damaged:
        return Damaged(
            f"{path}: expected {expected}, got {got}; restore from another home or generation", object_key=key
        )
