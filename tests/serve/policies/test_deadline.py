import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.policies import BadDeadline, Clock, inherited, passed_on

CLOCK = Clock(now_s=100.0, epoch_s=1_700_000_000.0)


@pytest.mark.parametrize(
    ("name", "value", "left_s"),
    [
        ("x-request-timeout-ms", "1500", 1.5),
        ("x-request-timeout-ms", "0", 0.0),
        ("x-request-timeout-ms", "999999999999", 600.0),
        ("x-request-deadline", "1700000002.5", 2.5),
        ("x-request-deadline", "1700000002", 2.0),
        ("x-request-deadline", "1699999999", -1.0),
        ("grpc-timeout", "2S", 2.0),
        ("grpc-timeout", "250m", 0.25),
        ("grpc-timeout", "99999999H", 600.0),
        ("grpc-timeout", "1u", 1e-6),
    ],
)
def test_a_deadline_is_inherited_and_bounded(name, value, left_s):
    got_s = inherited([(name.encode(), value.encode())], CLOCK, 600.0)
    assert got_s - CLOCK.now_s == pytest.approx(left_s, abs=1e-6)


@pytest.mark.parametrize("value", ["", "-5", "1e3", "5 ms", "١٢", "nan", "inf", "9" * 13, "0x10", "1_000"])
@pytest.mark.parametrize("name", ["x-request-timeout-ms", "x-request-deadline", "grpc-timeout"])
def test_what_is_no_deadline_is_refused_by_name(name, value):
    with pytest.raises(BadDeadline, match=f"{name}: expected"):
        inherited([(name.encode(), value.encode())], CLOCK, 600.0)


def test_of_several_the_earliest_holds_and_each_form_is_passed_on():
    headers = [(b"a", b"b"), (b"grpc-timeout", b"9S"), (b"x-request-deadline", b"1700000003")]
    deadline_s = inherited(headers, CLOCK, 600.0)
    assert deadline_s == 103.0
    later = Clock(101.0, 1_700_000_001.0)
    assert passed_on(headers, deadline_s, later) == [
        (b"a", b"b"),
        (b"x-request-timeout-ms", b"2000"),
        (b"x-request-deadline", b"1700000003.000"),
        (b"grpc-timeout", b"2000m"),
    ]


@given(st.floats(0.001, 1e6), st.sampled_from([b"x-request-timeout-ms", b"grpc-timeout"]))
def test_what_is_passed_on_is_read_as_the_same_deadline_or_an_earlier_one(left_s, form):
    headers = passed_on([(form, b"")], CLOCK.now_s + left_s, CLOCK)
    read_s = inherited(headers, CLOCK, 1e9) - CLOCK.now_s
    assert read_s <= left_s + 0.001
    assert read_s >= min(left_s, 1e5) - 0.0011
