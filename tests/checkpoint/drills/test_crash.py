"""The crash drill: a small campaign of it, and that it notices what it is there to notice.

The full campaign is ``python -m closeranks.checkpoint.drills.crash``; CLOSERANKS_CRASHES asks for so many cases here.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import closeranks
from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.drill_disk import RecordingFiles, possible_disks
from closeranks.checkpoint.drills.judge import Broken, judge
from closeranks.checkpoint.drills.life import Acknowledged, Life, live
from closeranks.checkpoint.drills.toy import Patience, commit, contribute, first_part
from closeranks.checkpoint.entries import encode_entry
from closeranks.checkpoint.format import Entry, Pin
from closeranks.checkpoint.keys import entry_key
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.memory import MemoryStore

CASES = int(os.environ.get("CLOSERANKS_CRASHES", "6"))


@pytest.mark.process
@pytest.mark.timeout(300)
def test_what_was_acknowledged_survives_kills_at_events_and_moments_and_power_cuts():
    command = [sys.executable, "-m", "closeranks.checkpoint.drills.crash", "--seed", "3"]
    command += ["--moments", str(CASES), "--cuts", str(2 * CASES), "--every", str(max(1, 300 // CASES))]
    environment = {**os.environ, "PYTHONPATH": str(Path(closeranks.__file__).parent.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "held", done.stdout + done.stderr
    assert f"moments: {CASES}: " in done.stdout and f"cuts: {2 * CASES}: " in done.stdout


@pytest.fixture
def lived():
    """A store in which a process has lived, and what was acknowledged."""
    store, known = MemoryStore(), []
    live(store, Life(0, 4, known.append))
    return store, known


def test_a_store_that_was_left_alone_is_judged_sound(lived):
    store, known = lived
    assert judge(store, known, life=1) > len(known)


def test_a_commit_that_is_lost_is_noticed():
    store, known = MemoryStore(), []
    live(store, Life(0, 1, known.append))
    store.delete([entry_key(number) for number in range(known[0].generation, 20)])
    with pytest.raises(Broken, match="acknowledged 2 is lost"):
        judge(store, known, life=1)


def test_a_commit_with_another_content_than_acknowledged_is_noticed(lived):
    store, known = lived
    known[-1] = Acknowledged(known[-1].generation, known[-1].mark + 1)
    with pytest.raises(Broken, match="as acknowledged"):
        judge(store, known, life=1)


def test_a_shard_of_another_save_is_noticed():
    # Sound by every digest, committed by the rules, and yet a mixture: only the content tells.
    store = MemoryStore()
    live(store, Life(0, 1, lambda _: None))
    log = CommitLog(store)
    term, arena = log.claim("mixer"), Arena.create("test")
    part = first_part(term, 9, 77, 2)
    contribute(store, part, log.history, arena)

    contribute(store, msgspec.structs.replace(part, writer=1, mark=78), log.history, arena)
    commit(store, log, part, Patience(0.0, lambda: 0.0, lambda _: None), 9)
    with pytest.raises(Broken, match=r"Mixed: generation \d+: writer 1 says"):
        judge(store, [], life=1)


def test_a_missing_object_of_any_generation_is_noticed(lived):
    store, known = lived
    oldest = next(iter(CommitLog(store).refresh().generations.values()))
    store.delete([oldest.manifest.shards[1].object])
    with pytest.raises(Broken, match=f"generation {oldest.number} cannot be restored"):
        judge(store, known, life=1)


def test_an_entry_that_a_correct_process_would_not_write_is_noticed(lived):
    store, known = lived
    number = CommitLog(store).refresh().last + 1
    entry = Entry(format=1, number=number, term=1, nonce="0" * 32, wall_s=0.0, act=Pin(generation=999))
    store.create(entry_key(number), encode_entry(entry))
    with pytest.raises(Broken, match="void entry"):
        judge(store, known, life=1)


def test_garbage_that_no_sweep_takes_is_noticed(lived, monkeypatch):
    store, known = lived
    monkeypatch.setattr("closeranks.checkpoint.drills.life.sweep", lambda *_, **__: None)
    with pytest.raises(Broken, match="a sweep left"):
        judge(store, known, life=1)


class ForgetsFiles(RecordingFiles):
    def fsync(self, fd):
        pass


class ForgetsFolders(RecordingFiles):
    def fsync_folder(self, path):
        pass


@pytest.mark.process
@pytest.mark.parametrize("recorder", [ForgetsFiles, ForgetsFolders])
def test_a_store_that_forgets_to_fsync_does_not_survive_power_cuts(tmp_path, recorder):
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    files = recorder(recorded)
    note = lambda one: files.note(f"{one.generation} {one.mark}")  # noqa: E731 - as the drill does
    live(DirectoryStore(recorded, files), Life(0, 2, note))
    broken = 0
    for number, disk in enumerate(possible_disks(files.events, 1, 12)):
        root = tmp_path / str(number)
        root.mkdir()
        disk.lay_down(root)
        known = [Acknowledged(*map(int, text.split())) for text in disk.notes]
        try:
            judge(DirectoryStore(root), known, life=1)
        except Broken:
            broken += 1
    assert broken, "the drill would not notice"
