import pytest

from closeranks.serve.policies import (
    BreakerSettings,
    Check,
    Finding,
    Fleet,
    HealthSettings,
    Load,
    Nowhere,
    Outcome,
    Placed,
    Question,
    RoutingSettings,
)

ANY = Question()


def fleet(count=2, tier=""):
    replicas = [(tier, Load(name=f"r{number}", capacity=8.0)) for number in range(count)]
    return Fleet(replicas, HealthSettings(), BreakerSettings(in_a_row=3), RoutingSettings())


def fail(one, name, now_s=0.0, times=3):
    for _ in range(times):
        one.end(now_s, name, one.begin(now_s, name), Outcome.BROKEN)


def down(one, name, now_s=0.0):
    one.members[name].judge.found(now_s, Check.KNOWN_ANSWER, Finding.FAIL)


def test_an_open_breaker_is_never_asked_while_another_is_closed():
    one = fleet()
    fail(one, "r0")
    assert {one.place(1.0, ANY).replica for _ in range(50)} == {"r1"}


def test_when_its_time_is_over_exactly_one_request_probes_it():
    one = fleet()
    fail(one, "r0")
    names = []
    for _ in range(20):
        placed = one.place(6.0, ANY)
        one.begin(6.0, placed.replica)
        names.append(placed.replica)
    assert names.count("r0") == 1


def test_all_open_is_said_with_a_time_to_come_back_and_tried_once_a_second():
    one = fleet()
    for name in ("r0", "r1"):
        fail(one, name)
    refused = one.place(0.5, ANY)
    assert isinstance(refused, Nowhere) and 0 < refused.retry_after_s <= 1
    placed = one.place(1.0, ANY)
    assert isinstance(placed, Placed) and "panic" in placed.reason
    one.begin(1.0, placed.replica)
    other = one.place(1.0, ANY).replica
    assert other != placed.replica
    one.begin(1.0, other)
    assert isinstance(one.place(1.0, ANY), Nowhere)


def test_checks_that_call_all_of_them_down_are_not_believed():
    one = fleet()
    for name in ("r0", "r1"):
        down(one, name)
    assert one.panics(1.0, "")
    assert isinstance(one.place(1.0, ANY), Placed)


def test_checks_that_call_one_of_them_down_are_believed():
    one = fleet()
    down(one, "r0")
    assert not one.panics(1.0, "")
    assert {one.place(1.0, ANY).replica for _ in range(20)} == {"r1"}


def test_a_doubtful_replica_comes_after_the_others_and_before_none():
    one = fleet()
    one.end(0.0, "r0", one.begin(0.0, "r0"), Outcome.SLOW)
    assert {one.place(1.0, ANY).replica for _ in range(9)} == {"r1"}
    assert one.place(1.0, Question(tried=("r1",))).replica == "r0"
    assert not one.elsewhere(1.0, "r1")
    assert one.elsewhere(1.0, "r0")


def test_what_an_operator_has_taken_out_stays_out_whatever_happens():
    one = fleet()
    one.take_out("r0", "drained")
    fail(one, "r1")
    assert one.place(2.0, ANY).replica == "r1"
    one.take_out("r1", "ejected")
    assert isinstance(one.place(2.0, ANY), Nowhere)
    one.readmit("r1")
    assert one.place(2.0, ANY).replica == "r1"


def test_a_busy_replica_is_left_alone_for_as_long_as_it_asks():
    one = fleet()
    one.end(0.0, "r0", one.begin(0.0, "r0"), Outcome.BUSY)
    one.busy(0.0, "r0", 7.0)
    assert {one.place(6.9, ANY).replica for _ in range(9)} == {"r1"}
    assert "r0" in {one.place(7.0, ANY).replica for _ in range(9)}


@pytest.mark.parametrize("gone", ["dead", "full"])
def test_a_session_whose_replica_is_dead_or_full_moves_and_is_never_refused(gone):
    one = fleet(3)
    question = Question(session="s")
    home = one.place(0.0, question).replica
    if gone == "dead":
        fail(one, home)
    else:
        one.members[home].load.outstanding = 99.0
    assert one.place(1.0, question).replica != home


def test_a_tier_has_its_own_replicas():
    one = Fleet(
        [("", Load(name="big")), ("small", Load(name="little"))], HealthSettings(), BreakerSettings(), RoutingSettings()
    )
    assert one.place(0.0, Question(tier="small")).replica == "little"
    assert isinstance(one.place(0.0, Question(tier="none")), Nowhere)
    assert (one.able(0.0, "small"), one.able(0.0, "none")) == (True, False)
