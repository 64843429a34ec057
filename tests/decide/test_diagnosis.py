import pytest

from closeranks import faults
from closeranks.decide.diagnosis import Seen, Trouble, diagnose, signature
from closeranks.decide.protocol import Crash

BOOM = Crash(error="ValueError", message="boom", where="train.py:31", step=4)


@pytest.mark.parametrize(
    ("trouble", "fault"),
    [
        (Trouble(seen=Seen.EXIT, detail="", signal=9), faults.KILLED),
        (Trouble(seen=Seen.EXIT, detail="", signal=11), faults.NATIVE_CRASH),
        (Trouble(seen=Seen.EXIT, detail="", code=1), faults.CRASHED),
        (Trouble(seen=Seen.EXCEPTION, detail="", code=1, crash=BOOM), faults.CRASHED),
        (Trouble(seen=Seen.PROGRESS, detail="its control thread does not answer, it is idle"), faults.FROZEN),
        (Trouble(seen=Seen.PROGRESS, detail="its control thread answers, it is idle"), faults.HUNG),
        (Trouble(seen=Seen.LEFT_EARLY, detail="", code=0), faults.LEFT_EARLY),
        (Trouble(seen=Seen.MISMATCH, detail=""), faults.MISMATCHED_COLLECTIVE),
        (Trouble(seen=Seen.DIGEST, detail=""), faults.CORRUPT_REPLICA),
        (Trouble(seen=Seen.NO_DONOR, detail=""), faults.UNKNOWN),
    ],
)
def test_each_trouble_has_its_likeliest_fault(trouble, fault):
    assert diagnose(trouble, repeated=False, start_up=False).fault == fault.name


@pytest.mark.parametrize("seen", list(Seen))
def test_every_fault_named_is_in_the_catalogue(seen):
    assert diagnose(Trouble(seen=seen, detail=""), repeated=False, start_up=False).fault in faults.CATALOGUE


def test_a_crash_that_was_seen_before_is_a_deterministic_bug_and_one_at_the_start_a_start_up_crash():
    crash = Trouble(seen=Seen.EXCEPTION, detail="", code=1, crash=BOOM, seats=(2,))
    assert diagnose(crash, repeated=True, start_up=True).fault == faults.DETERMINISTIC_BUG.name
    first = diagnose(crash, repeated=False, start_up=True)
    assert (first.fault, first.culprits) == (faults.START_UP_CRASH.name, (2,))


def test_a_signature_is_error_place_and_step_whatever_the_seat():
    one = Trouble(seen=Seen.EXCEPTION, detail="a", crash=BOOM, seats=(0,))
    other = Trouble(seen=Seen.EXCEPTION, detail="b", crash=BOOM, seats=(3,))
    assert signature(one, 0) == signature(other, 99)
    assert signature(Trouble(seen=Seen.EXIT, detail="", signal=9), 3) is None


def test_a_signal_counts_as_128_and_its_number():
    assert Trouble(seen=Seen.EXIT, detail="", signal=11).exit_code == 139
    assert Trouble(seen=Seen.EXIT, detail="", code=7).exit_code == 7
    assert Trouble(seen=Seen.PROGRESS, detail="").exit_code == 0
