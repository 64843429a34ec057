"""The folder of a store: what is on the disk when, and what a difficult file system does to it."""

import errno
import itertools
import mmap
import os
import stat
import threading

import numpy as np
import pytest

from closeranks.checkpoint.drill_files import FailingFiles, Fault, TappedFiles
from closeranks.checkpoint.files import RealFiles
from closeranks.checkpoint.format import IDENTITY_KEY
from closeranks.checkpoint.problems import StoreProblem
from closeranks.checkpoint.stores.big_write import DIRECT_FROM_BYTES, PIECE_BYTES
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.unfinished import FOLDER_NAME, KEPT_S

KEY = "log/0000000001.json"
IMAGE = "data/a/w00000.safetensors"


class Told(TappedFiles):
    """Writes down the calls that change something, with paths below the root."""

    def __init__(self, root):
        super().__init__()
        self._root = root
        self.calls = []

    def tap(self, call, path, do):
        if call not in ("find", "find_open", "names", "open_read", "pread_into", "close", "free_bytes"):
            name = str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)
            self.calls.append((call, f"{FOLDER_NAME}/*" if name.startswith(f"{FOLDER_NAME}/") else name))
        return do()


@pytest.fixture
def told(tmp_path):
    files = Told(tmp_path / "store")
    return files, DirectoryStore(tmp_path / "store", files)


def failing(tmp_path, *faults):
    return DirectoryStore(tmp_path / "store", FailingFiles(faults))


def image(length, seed=0):
    view = memoryview(mmap.mmap(-1, max(length, 1)))[:length]  # begins at a page, as an arena does
    view[:] = np.random.default_rng(seed).bytes(length)
    return view


def read_all(store, key, length):
    got = bytearray(length)
    store.read_into(key, 0, memoryview(got))
    return bytes(got)


# --- what is on the disk when --------------------------------------------------------------------------------------


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_answer(told):
    files, store = told
    store.create(KEY, b"x")
    files.calls.clear()
    store.create("log/0000000002.json", b"x")
    assert files.calls == [
        ("fsync_folder", "log"),  # entry 1, whoever wrote it, before entry 2 can be there
        ("make", f"{FOLDER_NAME}/*"),
        ("pwrite", f"{FOLDER_NAME}/*"),
        ("fsync", f"{FOLDER_NAME}/*"),
        ("link", "log/0000000002.json"),
        ("fsync_folder", "log"),
        ("unlink", f"{FOLDER_NAME}/*"),
    ]


def test_names_of_new_folders_are_on_the_disk_up_to_the_first_old_one(told, tmp_path):
    files, store = told
    store.write(IMAGE, [memoryview(b"x")])
    made = [call for call in files.calls if call[0] in ("mkdir", "fsync_folder")]
    assert made == [
        ("mkdir", "."),
        ("fsync_folder", str(tmp_path)),
        ("mkdir", "data"),
        ("fsync_folder", "."),
        ("mkdir", "data/a"),
        ("fsync_folder", "data"),
        ("fsync_folder", "data/a"),
    ]


def test_a_folder_that_another_process_made_counts_only_once_its_name_is_on_the_disk(told, tmp_path):
    (tmp_path / "store" / "data" / "a").mkdir(parents=True)
    files, store = told
    store.write(IMAGE, [memoryview(b"x")])
    assert ("fsync_folder", "data") in files.calls
    assert ("fsync_folder", ".") in files.calls


def test_what_was_seen_of_others_is_on_the_disk_before_an_entry_can_depend_on_it(told, tmp_path):
    files, store = told
    other = DirectoryStore(tmp_path / "store")
    other.create("data/a/w00000.json", b"index")
    other.create("data/b/w00000.json", b"index")
    assert [row.key for row in store.list("data/a/")] == ["data/a/w00000.json"]
    store.read("data/b/w00000.json", 10)
    files.calls.clear()
    store.create(KEY, b"commit")
    link = files.calls.index(("link", KEY))
    assert {("fsync_folder", "data/a"), ("fsync_folder", "data/b")} <= set(files.calls[:link])


def test_the_loser_of_a_create_also_waits_until_the_winner_is_on_the_disk(told, tmp_path):
    files, store = told
    DirectoryStore(tmp_path / "store").create(KEY, b"winner")
    files.calls.clear()
    assert not store.create(KEY, b"loser")
    assert files.calls[files.calls.index(("link", KEY)) + 1] == ("fsync_folder", "log")


def test_nobody_else_may_read_what_is_written(directory_store, tmp_path):
    directory_store.create(KEY, b"x")
    directory_store.write(IMAGE, [memoryview(b"x")])
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert modes == {0o600}
    folders = [tmp_path / "store", *(path for path in (tmp_path / "store").rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


# --- answers that are not true -------------------------------------------------------------------------------------


def test_a_link_that_was_made_but_is_answered_by_exists_is_ours(tmp_path, files_below):
    store = failing(tmp_path, Fault(errno=errno.EEXIST, call="link", done=True))
    assert store.create(KEY, b"x")
    assert store.read(KEY, 10) == b"x"
    assert files_below(tmp_path / "store") == [KEY]


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.EPERM])
def test_a_link_that_was_made_but_is_answered_by_an_error_is_ours(tmp_path, number):
    store = failing(tmp_path, Fault(errno=number, call="link", done=True))
    assert store.create(KEY, b"x")


def test_a_link_that_may_still_be_made_is_doubtful(tmp_path, files_below):
    store = failing(tmp_path, Fault(errno=errno.ETIMEDOUT, call="link"))
    with pytest.raises(StoreProblem, match=r"log/0000000001.json: linking it to its name: .*ETIMEDOUT") as caught:
        store.create(KEY, b"x")
    assert caught.value.doubtful
    assert caught.value.transient
    assert files_below(tmp_path / "store") == []
    assert store.create(KEY, b"x")


def test_a_name_that_may_not_be_on_the_disk_is_doubtful(tmp_path):
    store = failing(tmp_path, Fault(errno=errno.EIO, call="fsync_folder", below="/log", first=1))
    with pytest.raises(StoreProblem, match="bringing its name to the disk") as caught:
        store.create(KEY, b"x")
    assert caught.value.doubtful


def test_a_name_taken_by_another_is_no_error_of_ours(tmp_path):
    DirectoryStore(tmp_path / "store").create(KEY, b"another's")
    assert not failing(tmp_path).create(KEY, b"ours")


# --- many at once ---------------------------------------------------------------------------------------------------


def test_processes_may_make_and_remove_the_same_folders_at_once(tmp_path):
    start, problems = threading.Barrier(8), []

    def work(n):
        store = DirectoryStore(tmp_path / "store")
        start.wait(20)
        try:
            for turn in range(15):
                store.write(f"data/shared/w{n}-{turn}", [memoryview(b"x")])
                store.create(f"data/shared/i{n}-{turn}", b"x")
                store.delete([f"data/shared/w{n}-{turn}", f"data/shared/i{n}-{turn}"])
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    assert list(DirectoryStore(tmp_path / "store").list("")) == []


def test_a_folder_that_a_sweep_takes_away_in_between_is_made_again(tmp_path):
    class Swept(RealFiles):
        left = 3

        def make(self, path):
            if path.name == "w00000.safetensors" and self.left:
                self.left -= 1
                path.parent.rmdir()
            return super().make(path)

    store = DirectoryStore(tmp_path / "store", Swept())
    store.write(IMAGE, [memoryview(b"x")])
    assert store.read(IMAGE, 10) == b"x"


def test_folders_known_to_be_there_are_made_again_after_a_sweep_took_them_away(directory_store, tmp_path):
    directory_store.write(IMAGE, [memoryview(b"x")])
    DirectoryStore(tmp_path / "store").delete([IMAGE])
    assert not (tmp_path / "store/data").exists()
    directory_store.write("data/a/y", [memoryview(b"y")])
    DirectoryStore(tmp_path / "store").delete(["data/a/y"])
    assert directory_store.create("data/b/z", b"z")
    assert [row.key for row in directory_store.list("")] == ["data/b/z"]


def test_a_root_that_was_removed_is_not_made_again_in_silence(directory_store, tmp_path):
    directory_store.write(IMAGE, [memoryview(b"x")])
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreProblem, match=r"expected a folder that is there, got No such file.*is mounted"):
        directory_store.write("data/a/y", [memoryview(b"x")])
    assert not (tmp_path / "store").exists()


def test_a_folder_made_by_another_between_our_look_and_our_mkdir_is_no_error(tmp_path):
    class Outrun(RealFiles):
        def mkdir(self, path):
            path.mkdir()
            super().mkdir(path)

    DirectoryStore(tmp_path / "deep" / "store", Outrun()).write(IMAGE, [memoryview(b"x")])


def test_a_file_server_that_answers_read_only_for_a_folder_that_is_there_is_understood(tmp_path):
    (tmp_path / "store" / "log").mkdir(parents=True)
    store = failing(tmp_path, Fault(errno=errno.EROFS, call="mkdir", times=2))
    assert store.create(KEY, b"x")


# --- what is left behind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["allocate", "pwrite", "fsync", "close", "fsync_folder"])
def test_a_failed_write_leaves_no_file_and_can_be_done_again(tmp_path, call, files_below):
    data = image(2 * DIRECT_FROM_BYTES)
    where = "data/a" if call == "fsync_folder" else "w00000"
    store = failing(tmp_path, Fault(errno=errno.EIO, call=call, below=where))
    with pytest.raises(StoreProblem, match=r"w00000.safetensors: writing an object of .*EIO") as caught:
        store.write(IMAGE, [data])
    assert caught.value.transient
    assert files_below(tmp_path / "store") == []
    store.write(IMAGE, [data])
    assert read_all(store, IMAGE, len(data)) == data


@pytest.mark.parametrize("call", ["make", "pwrite", "fsync", "close"])
def test_a_failed_create_leaves_no_file_and_can_be_done_again(tmp_path, call, files_below):
    store = failing(tmp_path, Fault(errno=errno.EIO, call=call, below=FOLDER_NAME))
    with pytest.raises(StoreProblem) as caught:
        store.create(KEY, b"x")
    assert not caught.value.doubtful
    assert files_below(tmp_path / "store") == []
    assert store.create(KEY, b"x")


def test_files_left_behind_by_killed_processes_are_swept_by_the_next_one(tmp_path, files_below):
    folder = tmp_path / "store" / FOLDER_NAME
    folder.mkdir(parents=True)
    for name, age_s in (("old", KEPT_S + 60), ("young", KEPT_S - 60)):
        path = folder / name
        path.write_bytes(b"x")
        now_s = path.stat().st_mtime
        os.utime(path, (now_s - age_s, now_s - age_s))
    DirectoryStore(tmp_path / "store").create(KEY, b"x")
    assert files_below(tmp_path / "store") == [f"{FOLDER_NAME}/young", KEY]


def test_empty_folders_go_with_their_last_object(directory_store, tmp_path):
    directory_store.write(IMAGE, [memoryview(b"x")])
    directory_store.create("data/a/w00000.json", b"x")
    directory_store.delete([IMAGE])
    assert (tmp_path / "store/data/a").is_dir()
    directory_store.delete(["data/a/w00000.json"])
    assert (tmp_path / "store").is_dir()
    assert not (tmp_path / "store/data").exists()


# --- file systems that do less --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_fsync_is_used_and_said(tmp_path, number):
    store = failing(
        tmp_path, Fault(errno=number, call="fsync", times=99), Fault(errno=number, call="fsync_folder", times=99)
    )
    assert store.notes == ()
    store.write(IMAGE, [memoryview(b"x")])
    assert store.create(KEY, b"x")
    assert len(store.notes) == 2
    for what in ("files", "folders"):
        assert any(f"does not fsync {what}" in note and "choose another --store" in note for note in store.notes)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused_with_the_way_out(tmp_path, number):
    store = failing(tmp_path, Fault(errno=number, call="link"))
    with pytest.raises(StoreProblem, match=r"expected a file system with hard links.*choose another folder") as caught:
        store.create(KEY, b"x")
    assert not caught.value.transient


class Cramped(RealFiles):
    """Takes a few bytes at a time, as a file system may at any moment."""

    def __init__(self, most):
        self.most = most

    def pwrite(self, fd, data, at):
        return super().pwrite(fd, data[: self.most], at)

    def pread_into(self, fd, target, at):
        return super().pread_into(fd, target[: self.most], at)


@pytest.mark.parametrize("most", [1, 7])
def test_short_writes_and_reads_are_continued(tmp_path, most):
    store = DirectoryStore(tmp_path / "store", Cramped(most))
    store.write("data/a/x", [memoryview(b"0123"), memoryview(b"456789")])
    assert store.create(KEY, b"abc")
    assert store.read("data/a/x", 100) == b"0123456789"
    assert store.read(KEY, 100) == b"abc"


@pytest.mark.parametrize("most", [100_003, 4096 * 100])
def test_short_direct_writes_are_continued(tmp_path, most):
    data = image(DIRECT_FROM_BYTES + 5)
    store = DirectoryStore(tmp_path / "store", Cramped(most))
    store.write(IMAGE, [data])
    assert read_all(store, IMAGE, len(data)) == data


def test_a_write_that_takes_no_byte_is_an_error_and_not_a_loop(tmp_path):
    store = DirectoryStore(tmp_path / "store", Cramped(0))
    with pytest.raises(StoreProblem, match="EIO"):
        store.write("data/a/x", [memoryview(b"0123")])


class NotDirect(RealFiles):
    """Refuses direct writes: at the flag, or later, at the write itself."""

    def __init__(self, *, late):
        self.late = late
        self.direct = False

    def set_direct(self, fd, *, on):
        del fd
        self.direct = on and self.late
        return self.late

    def pwrite(self, fd, data, at):
        if self.direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().pwrite(fd, data, at)


@pytest.mark.parametrize("late", [False, True])
def test_where_direct_writes_are_refused_the_page_cache_takes_the_same_bytes(tmp_path, late):
    data = image(3 * PIECE_BYTES + 1)
    store = DirectoryStore(tmp_path / "store", NotDirect(late=late))
    store.write(IMAGE, [data[:1000], data[1000:]])
    assert read_all(store, IMAGE, len(data)) == data


@pytest.mark.parametrize("cuts", [(), (1,), (4096, 8192), (PIECE_BYTES,), (PIECE_BYTES - 1, PIECE_BYTES + 4097)])
@pytest.mark.parametrize("length", [DIRECT_FROM_BYTES, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 4095])
def test_parts_of_any_length_and_address_arrive_as_they_are(directory_store, cuts, length):
    data = image(length)
    edges = [0, *(cut for cut in cuts if cut < length), length]
    parts = [data[begin:end] for begin, end in itertools.pairwise(edges)]
    assert directory_store.write(IMAGE, parts) == length
    assert read_all(directory_store, IMAGE, length) == data


def test_an_error_of_one_writing_thread_ends_the_others_and_is_the_one_that_is_told(tmp_path):
    store = failing(tmp_path, Fault(errno=errno.ENOSPC, call="pwrite", first=2, times=999))
    with pytest.raises(StoreProblem, match="ENOSPC"):
        store.write(IMAGE, [image(8 * PIECE_BYTES)])
    assert not any(thread.name.startswith("closeranks-write") for thread in threading.enumerate())


# --- bad input: where, expected, got, and the way out ----------------------------------------------------------------

WORDS = [
    (errno.ENOSPC, "expected room, got No space left on device (ENOSPC)", "keep fewer generations", False),
    (errno.EDQUOT, "expected room within the quota, got Disk quota exceeded (EDQUOT)", "have the quota raised", False),
    (errno.EROFS, "expected a file system that can be written, got Read-only file system (EROFS)", "mount it", False),
    (errno.EACCES, "expected permission, got Permission denied (EACCES)", "give this user write access", False),
    (errno.EIO, "expected an answer without an error, got Input/output error (EIO)", "it is tried again", True),
    (errno.ESTALE, "expected an answer without an error, got Stale file handle (ESTALE)", "it is tried again", True),
]


@pytest.mark.parametrize(("number", "words", "way_out", "transient"), WORDS)
def test_a_refusal_of_the_kernel_is_said_with_the_way_out(tmp_path, number, words, way_out, transient):
    store = failing(tmp_path, Fault(errno=number, call="make", times=9))
    for call, doing in (
        (lambda: store.write(IMAGE, [memoryview(b"xyz")]), f"{IMAGE}: writing an object of 3 bytes"),
        (lambda: store.create(KEY, b"x"), f"{KEY}: creating an object of 1 bytes"),
    ):
        with pytest.raises(StoreProblem) as caught:
            call()
        text = str(caught.value)
        assert f"{tmp_path}/store/{doing}" in text
        assert words in text
        assert way_out in text
        assert caught.value.transient == transient


def test_a_full_disk_says_how_much_is_free(tmp_path):
    store = failing(tmp_path, Fault(errno=errno.ENOSPC, call="pwrite"))
    store._files.inner.free_bytes = lambda _: 12_345
    with pytest.raises(StoreProblem, match="ENOSPC\\), 12,345 bytes free"):
        store.create(KEY, b"x")


@pytest.mark.parametrize("call", ["open_read", "find_open", "pread_into"])
def test_a_failed_read_says_where(tmp_path, call):
    DirectoryStore(tmp_path / "store").create(KEY, b"x")
    store = failing(tmp_path, Fault(errno=errno.EACCES, call=call))
    with pytest.raises(StoreProblem, match=r"store/log/0000000001.json: reading: expected permission"):
        store.read(KEY, 10)


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(
            StoreProblem, match=r"expected a folder, got Not a directory.*give a path of which every part"
        ):
            DirectoryStore(root).create(KEY, b"x")


def test_a_folder_that_is_not_there_is_not_an_empty_one(tmp_path):
    store = DirectoryStore(tmp_path / "unmounted")
    with pytest.raises(StoreProblem, match=r"expected a folder that is there, got No such file.*is mounted"):
        list(store.list("log/"))
    assert not (tmp_path / "unmounted").exists()


def test_nothing_is_written_below_a_mount_point_whose_disk_went_away(directory_store, tmp_path, files_below):
    directory_store.create(IDENTITY_KEY, b"identity")
    directory_store.create(KEY, b"x")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    (tmp_path / "store").mkdir()
    for call in (
        lambda: directory_store.create("log/0000000002.json", b"x"),
        lambda: directory_store.write(IMAGE, [memoryview(b"x")]),
    ):
        with pytest.raises(StoreProblem, match=f"expected {IDENTITY_KEY}, as before, got none; .*is mounted"):
            call()
    assert files_below(tmp_path / "store") == []


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_not_read_and_not_waited_for(directory_store, tmp_path, kind):
    (tmp_path / "store/data").mkdir(parents=True)
    path = tmp_path / "store/data/x"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(Exception, match="data/x: expected a file, got something else of that name"):
        directory_store.read("data/x", 10)
    assert list(directory_store.list("data/")) == []


def test_files_of_others_in_the_folder_are_no_objects(directory_store, tmp_path):
    directory_store.create(KEY, b"x")
    (tmp_path / "store/README.md").write_text("notes")
    (tmp_path / "store/lost+found").mkdir()
    (tmp_path / "store/loop").symlink_to(tmp_path / "store")
    assert [row.key for row in directory_store.list("")] == [KEY]


class Lying(TappedFiles):
    """Writes half of the first piece, and says that it wrote all."""

    lies = 1

    def pwrite(self, fd, data, at):
        if self.lies:
            self.lies -= 1
            super().pwrite(fd, data[: len(data) // 2], at)
            return len(data)
        return super().pwrite(fd, data, at)


def test_a_write_that_was_cut_short_and_said_to_be_whole_is_refused_and_can_be_repeated(tmp_path):
    store = DirectoryStore(tmp_path / "store", Lying())
    with pytest.raises(StoreProblem, match="Input/output error") as caught:
        store.write(IMAGE, [image(100)])
    assert caught.value.transient
    assert list(store.list("data/")) == []
    store.write(IMAGE, [image(100)])
    assert read_all(store, IMAGE, 100) == bytes(image(100))
