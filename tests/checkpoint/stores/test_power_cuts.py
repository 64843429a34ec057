"""The disks that a power cut may leave of a folder: what was acknowledged is always there, whole."""

import json
import os
import random

import pytest

from closeranks.checkpoint.drill_disk import Event, RecordingFiles, possible_disks
from closeranks.checkpoint.stores.directory import DirectoryStore

DISKS = int(os.environ.get("CLOSERANKS_POWER_CUTS", "300"))  # for each history; thousands in a campaign


def recorded(root, work):
    root.mkdir()
    files = RecordingFiles(root)
    work(files)
    return files.events


def disks(events, seed=0, count=DISKS):
    return enumerate(possible_disks(events, seed, count))


# --- the simulation itself ------------------------------------------------------------------------------------------


def outcomes(events, count=400):
    return {tuple(sorted(disk.files.items())) for _, disk in disks(events, count=count) if disk.events == len(events)}


def test_a_file_that_was_not_fsynced_may_be_whole_torn_zero_empty_or_missing():
    data = b"a" * 512 + b"b" * 512
    events = [Event("make", 1, 0, "x"), Event("write", 1, at=0, data=data)]
    found = outcomes(events, 3000)
    for content in (data, b"a" * 512 + bytes(512), bytes(512) + b"b" * 512, bytes(1024), b""):
        assert (("x", content),) in found
    assert () in found


def test_an_fsynced_file_in_an_fsynced_folder_is_always_there():
    events = [Event("make", 1, 0, "x"), Event("write", 1, at=0, data=b"abc"), Event("sync", 1), Event("sync", 0)]
    assert outcomes(events) == {(("x", b"abc"),)}


def test_an_fsynced_file_is_lost_with_a_name_that_was_not():
    events = [Event("make", 1, 0, "x"), Event("write", 1, at=0, data=b"abc"), Event("sync", 1)]
    assert outcomes(events) == {(("x", b"abc"),), ()}


def test_a_later_name_may_survive_an_earlier_one():
    events = [Event("make", 1, 0, "x"), Event("sync", 1), Event("make", 2, 0, "y"), Event("sync", 2)]
    assert outcomes(events) == {(), (("x", b""),), (("y", b""),), (("x", b""), ("y", b""))}


def test_what_is_below_a_lost_folder_is_lost():
    events = [Event("mkdir", 1, 0, "f"), Event("make", 2, 1, "x"), Event("sync", 2), Event("sync", 1)]
    assert outcomes(events) == {(), (("f/x", b""),)}


def test_a_deletion_that_was_not_fsynced_may_come_back():
    events = [Event("make", 1, 0, "x"), Event("sync", 1), Event("sync", 0), Event("drop", 1, 0, "x")]
    assert outcomes(events) == {(), (("x", b""),)}


def test_the_same_seed_gives_the_same_disks():
    events = [Event("make", n, 0, f"x{n}") for n in range(1, 9)]
    first, second, other = (list(possible_disks(events, seed, 50)) for seed in (1, 1, 2))
    assert first == second != other


def test_notes_before_the_cut_are_told_with_the_disk():
    events = [Event("note", name="one"), Event("make", 1, 0, "x"), Event("note", name="two")]
    for _, disk in disks(events, count=60):
        assert disk.notes == {0: (), 1: ("one",), 2: ("one",), 3: ("one", "two")}[disk.events]


def test_a_recording_begins_with_an_empty_folder(tmp_path):
    (tmp_path / "x").write_text("x")
    with pytest.raises(ValueError, match="expected an empty folder to record in"):
        RecordingFiles(tmp_path)


def test_a_recording_replayed_without_a_cut_is_the_folder_itself(tmp_path):
    def work(files):
        store = DirectoryStore(tmp_path / "real" / "store", files)
        store.create("log/0000000001.json", b"one")
        store.write("data/a/x", [memoryview(bytes(range(256)) * 20_000)])
        store.write("data/a/y", [memoryview(b"y")])
        store.delete(["data/a/y"])
        files.fsync_folder(tmp_path / "real" / "store" / "data" / "a")
        files.fsync_folder(tmp_path / "real" / "store" / ".unfinished")

    events = recorded(tmp_path / "real", work)
    whole = next(disk for _, disk in disks(events, count=5000) if disk.events == len(events))
    (tmp_path / "copy").mkdir()
    whole.lay_down(tmp_path / "copy")
    for name in ("store/log/0000000001.json", "store/data/a/x"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "real" / name).read_bytes()
    assert not (tmp_path / "copy/store/data/a/y").exists()


# --- the store ------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_survives_and_what_appears_is_whole(tmp_path):
    seed = int(os.environ.get("CLOSERANKS_SEED", "0"))
    drawn = random.Random(seed)
    contents = {}

    def work(files):
        store = DirectoryStore(tmp_path / "real" / "deep" / "store", files)
        for n in range(12):
            create = drawn.random() < 0.5
            key = f"{drawn.choice(['data/a', 'data/b', 'log'])}/{n}"
            contents[key] = drawn.randbytes(drawn.choice([0, 3, 700, 9000]))
            store.create(key, contents[key]) if create else store.write(key, [memoryview(contents[key])])
            files.note(json.dumps([key, create]))

    events = recorded(tmp_path / "real", work)
    created = {json.loads(event.name)[0] for event in events if event.call == "note" and json.loads(event.name)[1]}
    for case, disk in disks(events, seed):
        found = {path.removeprefix("deep/store/"): data for path, data in disk.files.items()}
        replay = f"CLOSERANKS_SEED={seed}, case {case}"
        for note in disk.notes:
            key = json.loads(note)[0]
            assert found.get(key) == contents[key], f"{replay}: {key} was acknowledged"
        for key in created & found.keys():
            assert found[key] == contents[key], f"{replay}: {key} appeared in part"


class Unhurried(DirectoryStore):
    """Has linked an object and not yet brought its name to the disk when ``look`` is called."""

    def create_slowly(self, key, data, look):
        real = self._folders.fsync

        def fsync(folder):
            if (self._root / key).exists():
                self._folders.fsync = real
                look()
            real(folder)

        self._folders.fsync = fsync
        self.create(key, data)


def test_an_entry_never_survives_the_entry_before_it(tmp_path):
    def work(files):
        root = tmp_path / "real" / "store"

        def follow():
            DirectoryStore(root, files).create("log/0000000002.json", b"second")
            files.note("acknowledged")

        Unhurried(root, files).create_slowly("log/0000000001.json", b"first", follow)

    events = recorded(tmp_path / "real", work)
    assert any(event.call == "note" for event in events)
    for case, disk in disks(events):
        if "store/log/0000000002.json" in disk.files:
            assert disk.files.get("store/log/0000000001.json") == b"first", f"case {case}"


def test_an_entry_never_survives_the_index_of_another_writer_that_it_was_made_after(tmp_path):
    def work(files):
        root = tmp_path / "real" / "store"
        lead = DirectoryStore(root, files)
        lead.create("data/a/w00000.json", b"index 0")

        def commit():
            assert len(list(lead.list("data/a/"))) == 2
            lead.create("log/0000000001.json", b"commit")
            files.note("acknowledged")

        Unhurried(root, files).create_slowly("data/a/w00001.json", b"index 1", commit)

    events = recorded(tmp_path / "real", work)
    assert any(event.call == "note" for event in events)
    for case, disk in disks(events):
        if "store/log/0000000001.json" in disk.files:
            assert disk.files.get("store/data/a/w00001.json") == b"index 1", f"case {case}"
