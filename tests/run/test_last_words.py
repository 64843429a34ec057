import signal

import pytest
from typer.testing import CliRunner

from closeranks.cli.main import app_for
from closeranks.decide.diagnosis import Seen, Trouble, diagnose
from closeranks.decide.protocol import Crash
from closeranks.events import Diagnosed
from closeranks.run.last_words import hint_of
from closeranks.run.processes import Ended

FULL = b"OSError: [Errno 28] No space left on device: '/ckpt'\n"


def crash(error, message):
    return Crash(error=error, message=message, where="train.py:31", step=3)


def ended(code=None, number=None):
    return Ended(code=code, signal=number)


@pytest.mark.parametrize(
    ("error", "message", "fault"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "device out of memory"),
        ("OSError", "[Errno 28] No space left on device: '/ckpt'", "disk full"),
        ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "device memory error"),
        ("MemoryError", "", "out of memory"),
    ],
)
def test_an_exception_that_names_something_outside_of_the_script_is_a_hint(error, message, fault):
    assert hint_of(b"", ended(1), crash(error, message)).fault == fault


@pytest.mark.parametrize("error", ["AssertionError", "KeyError", "RuntimeError", "ZeroDivisionError"])
def test_a_bug_of_the_script_is_none(error):
    assert hint_of(FULL, ended(1), crash(error, "x")) is None


def test_without_an_exception_the_end_of_what_it_said_is_heard():
    said = b"x" * 10_000 + b"\n" + FULL
    assert hint_of(said, ended(1), None).fault == "disk full"
    assert hint_of(said, ended(number=signal.SIGABRT), None).fault == "disk full"
    assert hint_of(b"", ended(1), None) is None


def test_what_a_killed_process_said_before_is_no_reason_for_its_end():
    assert hint_of(FULL, ended(number=signal.SIGKILL), None) is None
    assert hint_of(FULL, ended(0), None) is None


def test_the_diagnosis_takes_the_hint_and_keeps_its_words():
    found = hint_of(b"", ended(1), crash("OSError", "[Errno 28] No space left on device"))
    trouble = Trouble(seen=Seen.EXCEPTION, detail="s1.1 failed", seats=(1,), code=1, hint=found)
    for repeated in (False, True):
        diagnosis = diagnose(trouble, repeated=repeated, start_up=repeated)
        assert diagnosis.fault == "disk full"
        assert diagnosis.evidence[1] == "its last words: OSError: [Errno 28] No space left on device"


@pytest.mark.process
def test_a_run_whose_process_says_why_it_dies_is_diagnosed_by_it_at_once_and_afterwards(start_run):
    script = "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1"
    run = start_run(script, "--max-restarts", "0", "--no-python", "sh")
    run.end()
    assert [event.fault for event in run.events(Diagnosed)] == ["disk full"]
    arguments = ["diagnose", str(run.folder)]
    done = CliRunner().invoke(app_for(arguments), arguments)
    assert done.exit_code == 0
    assert done.stdout.startswith("VERDICT: disk full")
    assert "culprit: rank 0" in done.stdout
