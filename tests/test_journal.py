"""The journal under crashes, full disks and readers that run beside the writer."""

import contextlib
import errno
import os
import resource
import stat
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks import journal as journal_module
from closeranks.events import (
    DeadlineChanged,
    Decided,
    PreflightDone,
    ProcessFailed,
    Record,
    RunEnded,
    Rung,
    StepClosed,
)
from closeranks.journal import MAX_TEXT_CHARS, Journal, JournalError, follow, read

DECIDED = Decided(incident=1, rung=Rung.SPARE, term=2, reason="a spare is ready")
DEADLINE_S = 10.0


def step(number):
    return StepClosed(step=number, began_mono_s=1.0, closed_mono_s=2.0, losses=(0.5, None))


def failed(**changes):
    fields = {"error": "E", "message": "m", "where": "t.py:1", "step": 3, "traceback": "tb"} | changes
    return ProcessFailed(proc=1, seat=0, **fields)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


@pytest.fixture
def journal(path):
    with Journal.create(path, "run-1", "node-1") as journal:
        yield journal


@contextlib.contextmanager
def file_size_limit(size_bytes):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_what_was_appended_is_read_back_in_order(journal, path):
    written = [journal.append(event, term) for event, term in ((step(0), 1), (DECIDED, 2), (failed(), 2))]
    reading = read(path)
    assert list(reading.records) == written
    assert [record.seq for record in written] == [0, 1, 2]
    assert (reading.torn, reading.damaged) == (None, ())


def test_a_record_says_who_wrote_it_and_when(journal):
    before_s, record, after_s = time.monotonic(), journal.append(DECIDED, 7), time.monotonic()
    assert before_s <= record.mono_s <= after_s
    assert (record.run, record.node, record.term, record.event) == ("run-1", "node-1", 7, DECIDED)


def test_the_file_is_its_owners_alone(journal, path):
    journal.append(step(0), 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_symbolic_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "journal.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal.create(tmp_path / "journal.jsonl", "run-1", "node-1")
    assert (tmp_path / "elsewhere").read_text() == "precious"


@pytest.mark.parametrize(("event", "lasting"), [(DECIDED, True), (step(0), False)])
def test_decisions_reach_the_disk_before_append_returns_and_steps_do_not_wait(journal, monkeypatch, event, lasting):
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    journal.append(event, 1)
    assert bool(synced) == lasting


def test_a_failed_flush_is_said_and_the_record_counts(journal, path, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(JournalError, match="record 0 is written, but may not survive"):
        journal.append(DECIDED, 1)
    assert journal.append(step(0), 1).seq == 1
    assert [record.seq for record in read(path).records] == [0, 1]


def test_a_file_cut_at_any_byte_is_read_and_continued(tmp_path, path):
    events = (step(0), failed(message="Grüße\n\t\x00", traceback="é" * 5), DECIDED)
    with Journal.create(path, "run-1", "node-1") as journal:
        written = [journal.append(event, 1) for event in events]
    whole = path.read_bytes()
    ends = [index for index, byte in enumerate(whole) if byte == ord("\n")]
    cut = tmp_path / "cut.jsonl"
    for size in range(len(whole) + 1):
        cut.write_bytes(whole[:size])
        complete = sum(end <= size for end in ends)  # its newline may be missing
        reading = read(cut)
        assert list(reading.records) == written[:complete]
        assert reading.damaged == ()
        assert (reading.torn is None) == (size == 0 or size in ends or size - 1 in ends)
        with Journal.create(cut, "run-1", "node-1") as journal:
            assert journal.append(step(9), 3).seq == complete
        continued = read(cut)
        assert [record.seq for record in continued.records] == list(range(complete + 1))
        assert (continued.torn, continued.damaged) == (None, ())


def test_a_damaged_line_in_the_middle_is_reported_with_its_number_and_skipped(journal, path):
    for number in range(3):
        journal.append(step(number), 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\x00" * 20 + lines[1][20:] + lines[2])
    reading = read(path)
    assert [record.seq for record in reading.records] == [0, 2]
    assert [damage.line for damage in reading.damaged] == [2]
    assert reading.damaged[0].start.startswith(b"\x00")


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"seq":0,"event":{"kind":"NoSuchEvent"}}', b"9" * (2**20 + 1)],
    ids=["empty", "no fields", "null", "no utf-8", "nested", "unknown kind", "too long"],
)
def test_a_line_that_is_no_record_is_damage_and_never_fatal(path, line):
    path.write_bytes(line + b"\n")
    reading = read(path)
    assert reading.records == ()
    assert [damage.line for damage in reading.damaged] == [1]


@given(st.binary(max_size=300))
def test_any_bytes_can_be_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "journal.jsonl"
    path.write_bytes(data)
    reading = read(path)
    lines = data.split(b"\n")
    assert len(reading.damaged) + len(reading.records) + (reading.torn is not None) == len(lines) - (lines[-1] == b"")


def test_a_full_disk_is_said_and_leaves_no_partial_line(journal, path):
    journal.append(step(0), 1)
    size = path.stat().st_size
    with file_size_limit(size + 40), pytest.raises(JournalError, match="record 1 not written: File too large"):
        journal.append(step(1), 1)
    assert path.stat().st_size == size
    assert journal.append(step(2), 1).seq == 1
    reading = read(path)
    assert [record.event.step for record in reading.records] == [0, 2]
    assert (reading.torn, reading.damaged) == (None, ())


def test_a_partial_line_that_cannot_be_taken_back_at_once_is_taken_back_by_the_next_append(journal, path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    journal.append(step(0), 1)
    size = path.stat().st_size
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", fail)
        with file_size_limit(size + 40), pytest.raises(JournalError, match="ends in a torn line"):
            journal.append(step(1), 1)
        assert path.stat().st_size == size + 40
        assert read(path).torn is not None
        with pytest.raises(JournalError, match="cannot be taken back"):
            journal.append(step(2), 1)
    journal.append(step(3), 1)
    reading = read(path)
    assert [record.event.step for record in reading.records] == [0, 3]
    assert (reading.torn, reading.damaged) == (None, ())


def test_a_short_write_is_completed(journal, path, monkeypatch):
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole_write(fd, bytes(data)[:7]))
    written = journal.append(DECIDED, 1)
    assert read(path).records == (written,)


def test_a_long_text_loses_its_middle_and_keeps_both_ends(journal, path):
    journal.append(failed(traceback="first" + "x" * 3_000_000 + "last"), 1)
    (record,) = read(path).records
    text = record.event.traceback
    assert text.startswith("first")
    assert text.endswith("last")
    assert "characters left out" in text
    assert len(text) < MAX_TEXT_CHARS + 100


def test_an_event_that_stays_too_long_is_refused_and_nothing_is_written(journal, path):
    with pytest.raises(JournalError, match=r"PreflightDone of .* nothing was written"):
        journal.append(PreflightDone(findings=("x" * MAX_TEXT_CHARS,) * 40), 1)
    assert path.read_bytes() == b""


def test_undecodable_text_is_written_in_escaped_form(journal, path):
    journal.append(failed(message=b"\xff".decode("utf-8", "surrogateescape")), 1)
    assert read(path).records[0].event.message == "\\udcff"


def test_a_time_that_json_cannot_hold_is_refused_when_it_is_written(journal, path):
    with pytest.raises(JournalError, match="DeadlineChanged could not be read back"):
        journal.append(DeadlineChanged(phase="forward", allowed_s=float("inf"), reason="none"), 1)
    assert path.read_bytes() == b""


def test_a_follower_sees_every_record_while_it_is_written(path):
    stop, seen, first = threading.Event(), [], threading.Event()

    def watch():
        for record in follow(path, stop):
            seen.append(record)
            first.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with Journal.create(path, "run-1", "node-1") as journal:
        written = [journal.append(step(0), 1)]
        assert first.wait(DEADLINE_S), "the follower did not notice the new file"
        written += [journal.append(step(number), 1) for number in range(1, 500)]
    stop.set()
    watcher.join(DEADLINE_S)
    assert seen == written


def test_a_follower_waits_for_the_rest_of_a_partial_line_even_if_the_writer_replaces_it(path, journal):
    journal.append(step(0), 1)
    stop = threading.Event()
    records = follow(path, stop)
    assert next(records).event == step(0)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"seq":1,"torn')
    # The writer takes the torn line back and writes another one before the follower looks again.
    assert journal_module._complete_lines(path, size) == b""
    os.truncate(path, size)
    journal.append(step(1), 1)
    assert next(records).event == step(1)
    stop.set()
    assert list(records) == []


def test_a_follower_reports_damage_and_goes_on(path, journal):
    journal.append(step(0), 1)
    with path.open("ab") as file:
        file.write(b"noi\rse\n")
    journal.append(step(1), 1)
    stop, damaged = threading.Event(), []
    stop.set()
    assert [record.seq for record in follow(path, stop, damaged.append)] == [0, 1]
    assert [damage.line for damage in damaged] == [2]


def test_a_follower_is_stopped_at_once(path):
    stop = threading.Event()
    watcher = threading.Thread(target=lambda: list(follow(path, stop)))
    watcher.start()
    stop.set()
    watcher.join(DEADLINE_S)
    assert not watcher.is_alive()


def test_a_journal_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(JournalError, match="No such file"):
        Journal.create(tmp_path / "absent" / "journal.jsonl", "run-1", "node-1")


def test_the_last_record_of_a_run_is_readable_without_a_newline(path, journal):
    record = journal.append(RunEnded(outcome="completed", exit_code=0, reason="done"), 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert read(path).records == (record,)
    assert isinstance(record, Record)
