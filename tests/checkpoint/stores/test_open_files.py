import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from closeranks.checkpoint.files import RealFiles
from closeranks.checkpoint.problems import Damaged
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.open_files import KEPT_LIMIT, OpenFiles

KEY = "data/a/x"


class Counted(RealFiles):
    """Counts what is opened for reading, and knows what of it is open."""

    def __init__(self):
        self.opened, self.open = 0, set()

    def open_read(self, path):
        fd = super().open_read(path)
        self.opened += 1
        self.open.add(fd)
        return fd

    def close(self, fd):
        self.open.discard(fd)
        super().close(fd)


@pytest.fixture
def files():
    return Counted()


@pytest.fixture
def store(tmp_path, files):
    store = DirectoryStore(tmp_path, files)
    store.write(KEY, [memoryview(b"0123456789")])
    return store


def got(read_into, begin, length, key=KEY):
    target = bytearray(length)
    read_into(key, begin, memoryview(target))
    return bytes(target)


def test_an_object_is_opened_once_for_all_reads_of_many_threads_and_closed_in_the_end(store, files):
    with store.reader() as read_into, ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda at: got(read_into, at, 2), [0, 2, 4, 6, 8] * 10))
        assert (files.opened, len(files.open)) == (1, 1)
    assert read == [b"01", b"23", b"45", b"67", b"89"] * 10
    assert not files.open


def test_descriptors_are_closed_when_the_reading_fails(store, files):
    with pytest.raises(Damaged, match="at least 11 bytes"), store.reader() as read_into:
        got(read_into, 0, 11)
    with pytest.raises(Damaged, match="expected a file, got none"), store.reader() as read_into:
        got(read_into, 0, 1, "data/a/none")
    assert files.opened == 1
    assert not files.open


def test_an_object_that_is_deleted_or_cut_short_meanwhile_is_read_or_refused_but_never_made_up(store, tmp_path):
    with store.reader() as read_into:
        assert got(read_into, 0, 1) == b"0"
        store.delete([KEY])
        assert got(read_into, 1, 2) == b"12"
    with pytest.raises(Damaged), store.reader() as read_into:
        got(read_into, 1, 2)
    store.write(KEY, [memoryview(b"0123456789")])
    with store.reader() as read_into:
        got(read_into, 0, 1)
        os.truncate(tmp_path / KEY, 5)
        with pytest.raises(Damaged, match="the end at 5"):
            got(read_into, 0, 10)


def test_no_more_descriptors_are_kept_than_the_limit_and_all_objects_are_read(store, files):
    keys = [f"data/a/{number}" for number in range(KEPT_LIMIT + 3)]
    for number, key in enumerate(keys):
        store.write(key, [memoryview(bytes([number]))])
    with store.reader() as read_into:
        assert [got(read_into, 0, 1, key) for key in keys * 2] == [bytes([n]) for n in range(len(keys))] * 2
        assert len(files.open) == KEPT_LIMIT
    assert files.opened == KEPT_LIMIT + 6
    assert not files.open


def test_one_that_failed_to_open_is_tried_again():
    answers = iter([OSError("not now"), 7])

    def open_it(_key):
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    closed = []
    files = OpenFiles(open_it, closed.append)
    with pytest.raises(OSError, match="not now"):
        files.get("x")
    assert files.get("x") == files.get("x") == 7
    files.close()
    assert closed == [7]
