"""From what the user wrote to a store: every refusal says where, expected, got, and the way out."""

import errno
import os
import threading
from pathlib import Path

import msgspec
import pytest

from closeranks.checkpoint.drill_files import FailingFiles, Fault
from closeranks.checkpoint.format import FORMAT, IDENTITY_KEY, Identity
from closeranks.checkpoint.problems import StoreProblem, StoreRefused
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.stores.opening import found, open_store, probe
from closeranks.checkpoint.stores.paced import PacedStore


def refusal(call):
    with pytest.raises(StoreRefused) as caught:
        call()
    return str(caught.value)


# --- the text ---------------------------------------------------------------------------------------------------------


def test_a_path_in_any_form_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in (
        str(tmp_path / "a b"),
        "a b",
        "./a b",
        "~/a b",
        f"file://{tmp_path}/a%20b",
        f"file://localhost{tmp_path}/a b",
    ):
        store = open_store(text)
        assert isinstance(store, DirectoryStore)
        assert Path(store.url) == tmp_path / "a b"
    assert not (tmp_path / "a b").exists()


def test_an_unknown_scheme_is_refused_with_the_known_ones():
    text = refusal(lambda: open_store("s4://bucket/x"))
    assert text.startswith("--store s4://bucket/x: expected a path or a URL of file://, s3://, gs://, az://, got s4://")
    assert "did you mean s3://?" in refusal(lambda: open_store("s33://bucket/x"))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_address_of_a_server_is_refused_with_the_form_it_should_have(scheme):
    assert f"write s3://BUCKET/PREFIX?endpoint={scheme}://HOST:PORT" in refusal(
        lambda: open_store(f"{scheme}://host/b")
    )


@pytest.mark.parametrize("text", ["", "file://", "file://host/path", "x\0y"])
def test_what_names_no_folder_is_refused(text):
    assert "expected" in refusal(lambda: open_store(text))


# --- the identity -----------------------------------------------------------------------------------------------------


def test_a_store_is_made_once_and_found_again(store):
    made = found(store, "gpt", make=True, now_wall_s=5.0)
    assert (made.format, made.job, made.created_wall_s) == (FORMAT, "gpt", 5.0)
    assert len(made.store) == 32
    assert found(store, "gpt", make=True, now_wall_s=6.0) == made
    assert found(store, "gpt", make=False, now_wall_s=6.0) == made
    assert found(store, "", make=False, now_wall_s=6.0) == made


def test_of_many_that_make_a_store_at_once_all_get_the_same_one(tmp_path):
    start, got = threading.Barrier(6), []

    def work():
        start.wait(20)
        got.append(found(DirectoryStore(tmp_path / "store"), "gpt", make=True, now_wall_s=1.0))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(got) == 6
    assert len(set(got)) == 1


def test_a_folder_that_is_no_store_is_refused_unless_one_may_be_made(store):
    text = refusal(lambda: found(store, "gpt", make=False, now_wall_s=1.0))
    assert text.startswith(f"{store.url}: expected a checkpoint store, got no {IDENTITY_KEY}")
    assert "is mounted" in text


def test_looking_makes_no_folder(tmp_path):
    refusal(lambda: found(DirectoryStore(tmp_path / "x"), "", make=True, now_wall_s=1.0))
    assert list(tmp_path.iterdir()) == []


def test_the_store_of_another_job_is_refused(store):
    found(store, "llama", make=True, now_wall_s=1.0)
    for make in (True, False):
        text = refusal(lambda make=make: found(store, "gpt", make=make, now_wall_s=1.0))
        assert text.startswith(f"{store.url}/{IDENTITY_KEY}: expected the store of job 'gpt', got that of job 'llama'")
        assert "choose another --store" in text
        assert "--job llama" in text


def test_a_store_of_a_future_format_is_refused_whatever_else_it_says(store):
    store.create(IDENTITY_KEY, b'{"format": 2, "colour": "blue", "store": 7}')
    text = refusal(lambda: found(store, "gpt", make=True, now_wall_s=1.0))
    assert f"{store.url}/{IDENTITY_KEY}: expected format 1 or older, got format 2, written by a newer version" in text
    assert "pip install --upgrade closeranks" in text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"format": "1"}',
        b'{"format": 1}',
        b'{"format": 1, "store": 7, "job": "gpt", "created_wall_s": 1}',
        b'{"format": 1, "store": "x", "job": "gpt", "created_wall_s": 1, "more": 1}',
        b'{"format": 1, "store": "\xff", "job": "gpt", "created_wall_s": 1}',
        b'{"format": 1, "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b" " * 70_000,
    ],
)
def test_an_identity_that_cannot_be_read_is_refused_and_left_alone(data):
    store = MemoryStore()
    store.create(IDENTITY_KEY, data)
    text = refusal(lambda: found(store, "gpt", make=True, now_wall_s=1.0))
    assert text.startswith(f"{store.url}/{IDENTITY_KEY}: expected the identity of a checkpoint store in JSON, got ")
    assert "put that object back from a copy" in text
    assert store.read(IDENTITY_KEY, 10**6) == data


def test_an_identity_that_another_process_makes_between_two_looks_is_that_of_the_store():
    # Ranks that open a new store together: one refused it as too long, for what the other had made in between.
    class Late(MemoryStore):
        made = False

        def read_into(self, key, offset, buffer):
            if key == IDENTITY_KEY and not self.made:
                self.made = True
                found(self, "gpt", make=True, now_wall_s=1.0)
            return super().read_into(key, offset, buffer)

    store = Late()
    identity = found(store, "gpt", make=True, now_wall_s=2.0)
    assert (store.made, identity.created_wall_s) == (True, 1.0)


def test_a_log_without_an_identity_is_not_taken_for_an_empty_place(store):
    store.create("log/0000000001.json", b"{}")
    text = refusal(lambda: found(store, "gpt", make=True, now_wall_s=1.0))
    assert f"expected {IDENTITY_KEY} beside the log, got log/0000000001.json without it" in text
    assert [row.key for row in store.list("")] == ["log/0000000001.json"]


def test_a_lost_answer_while_a_store_is_made_does_not_make_it_anothers(tmp_path):
    files = FailingFiles(
        [Fault(errno=errno.EEXIST, call="link", done=True), Fault(errno=errno.EIO, call="find", first=3)]
    )
    identity = found(DirectoryStore(tmp_path / "store", files), "gpt", make=True, now_wall_s=1.0)
    assert msgspec.json.decode((tmp_path / "store" / IDENTITY_KEY).read_bytes(), type=Identity) == identity


def test_an_error_of_the_disk_is_not_an_empty_place(tmp_path):
    found(DirectoryStore(tmp_path / "store"), "gpt", make=True, now_wall_s=1.0)
    files = FailingFiles([Fault(errno=errno.EACCES, call="open_read")])
    with pytest.raises(StoreProblem, match="expected permission"):
        found(DirectoryStore(tmp_path / "store", files), "gpt", make=True, now_wall_s=1.0)


# --- the probe --------------------------------------------------------------------------------------------------------


def test_the_probe_leaves_nothing_behind(store):
    assert probe(store) == ()
    assert list(store.list("")) == []


def test_a_store_that_lets_two_creates_win_is_refused():
    class Overwriting(MemoryStore):
        def create(self, key, data):
            self.delete([key])
            return super().create(key, data)

    text = refusal(lambda: probe(Overwriting()))
    assert "expected the second of two creates of probe/" in text
    assert "got a store that lets both win" in text
    assert "hard links, or an object store with conditional writes" in text


def test_a_store_that_keeps_the_second_of_two_creates_is_refused():
    class Lying(MemoryStore):
        def create(self, key, data):
            if super().create(key, data):
                return True
            self.delete([key])
            super().create(key, data)
            return False

    assert "lets both win" in refusal(lambda: probe(Lying()))


def test_the_probe_tells_what_the_file_system_cannot_promise(tmp_path):
    files = FailingFiles([Fault(errno=errno.EINVAL, call="fsync_folder", times=99)])
    notes = probe(PacedStore(DirectoryStore(tmp_path / "store", files), 1e9))
    assert len(notes) == 1
    assert "does not fsync folders (EINVAL)" in notes[0]


def test_a_read_only_store_is_found_by_the_probe(tmp_path):
    found(DirectoryStore(tmp_path / "store"), "gpt", make=True, now_wall_s=1.0)
    files = FailingFiles([Fault(errno=errno.EROFS, times=99)])
    with pytest.raises(
        StoreProblem, match=r"probe/.*expected a file system that can be written, got .*EROFS.*another --store"
    ):
        probe(DirectoryStore(tmp_path / "store", files))


def test_objects_of_killed_probes_are_swept(tmp_path):
    store = DirectoryStore(tmp_path / "store")
    for name, age_s in (("old", 90_000), ("young", 60)):
        store.create(f"probe/{name}", b"x")
        path = tmp_path / "store/probe" / name
        now_s = path.stat().st_mtime
        os.utime(path, (now_s - age_s, now_s - age_s))
    probe(store)
    assert [row.key for row in store.list("")] == ["probe/young"]


# --- wrapped stores, and moments of trouble ---------------------------------------------------------------------------


def test_a_store_is_made_in_a_folder_that_is_not_there_also_through_a_store_that_passes_calls_on(tmp_path):
    store = PacedStore(DirectoryStore(tmp_path / "new"), 1e9)
    assert found(store, "gpt", make=True, now_wall_s=1.0).job == "gpt"


def test_one_transient_error_while_looking_for_a_log_is_tried_again(tmp_path):
    (tmp_path / "store").mkdir()
    files = FailingFiles([Fault(errno=errno.EIO, call="names")])
    assert found(DirectoryStore(tmp_path / "store", files), "gpt", make=True, now_wall_s=1.0).job == "gpt"
