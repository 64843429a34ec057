import msgspec
import pytest

from closeranks.diagnose.judge import judge
from closeranks.events import (
    Diagnosed,
    IncidentClosed,
    IncidentOpened,
    ProcessExited,
    ProcessFailed,
    ProcessStarted,
    Record,
)
from closeranks.gather.collecting import Collector
from closeranks.gather.runs import RunError, last_incident


def run(folder, *events):
    """A run whose events are two seconds apart."""
    records = [
        Record(seq=seq, wall_s=1795946400.0 + 2 * seq, mono_s=2.0 * seq, run="r", node="n0", term=1, event=event)
        for seq, event in enumerate(events)
    ]
    (folder / "logs").mkdir()
    (folder / "journal.jsonl").write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return folder


def verdict_on(folder):
    incident = last_incident(folder)
    collector = Collector()
    collector.scan(incident.logs)
    collector.add(incident.evidence)
    return judge(collector.collected().evidence)


def started(proc):
    return ProcessStarted(proc=proc, pid=100 + proc, how="fork", seat=proc - 1)


def failed(proc, error, message="x"):
    told = {"error": error, "message": message, "where": "train.py:3", "step": 4, "traceback": ""}
    return ProcessFailed(proc=proc, seat=proc - 1, **told)


def opened(number, seat):
    return IncidentOpened(incident=number, seats=(seat,), summary="lost")


def closed(number):
    return IncidentClosed(incident=number, outcome="recovered", steps_lost=0, first_step_s=1.0)


def test_the_end_of_a_process_and_its_own_output_make_the_verdict(tmp_path):
    folder = run(tmp_path, started(1), started(2), ProcessExited(proc=2, seat=1, code=1), opened(1, 1))
    (folder / "logs" / "p2.err").write_text("OSError: [Errno 28] No space left on device\n")
    (folder / "logs" / "p1.err").write_text("PermissionError: [Errno 13] of one that lives\n")
    verdict = verdict_on(folder)
    assert (verdict.fault, verdict.culprit.rank) == ("disk full", 1)
    assert verdict.proof[0].place.file.endswith("logs/p2.err")


def test_a_reported_exception_is_evidence(tmp_path):
    folder = run(
        tmp_path, started(1), failed(1, "ZeroDivisionError"), ProcessExited(proc=1, seat=0, code=1), opened(1, 0)
    )
    verdict = verdict_on(folder)
    assert (verdict.fault, verdict.culprit.rank) == ("division by zero", 0)
    assert "train.py:3" in verdict.advice


def test_what_the_controller_saw_of_a_hang_counts(tmp_path):
    found = Diagnosed(incident=1, fault="process hung", culprits=(1,), confidence=0.8, evidence=("s1.1 is behind",))
    verdict = verdict_on(run(tmp_path, started(1), started(2), opened(1, 1), found))
    assert (verdict.fault, verdict.culprit.rank) == ("process hung", 1)


def test_the_newest_incident_is_the_one_that_is_asked_about(tmp_path):
    folder = run(
        tmp_path,
        started(1),
        started(2),
        failed(1, "KeyError"),
        opened(1, 0),
        closed(1),
        ProcessExited(proc=2, seat=1, signal=9),
        opened(2, 1),
    )
    verdict = verdict_on(folder)
    assert (verdict.fault, verdict.culprit.rank) == ("process killed", 1)


def test_a_run_without_an_incident_ends_unknown(tmp_path):
    assert verdict_on(run(tmp_path, started(1))).fault == "unknown"


def test_a_journal_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(RunError, match="cannot be read"):
        last_incident(tmp_path)
