from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.policies import (
    Admission,
    AdmissionSettings,
    Admitted,
    Ask,
    Priority,
    Shed,
    TenantSettings,
    Waits,
    rank,
)

EIGHTH = 0.125  # of a second: sums of it are exact


def ask(number, **more):
    return Ask(number=number, arrived_s=0.0, **more)


def door(limit=1.0, tenants=(), **more):
    return Admission(AdmissionSettings(**more), tenants, limit)


def test_classes_are_served_in_their_order():
    kinds = [
        {"premium": True, "priority": Priority.INTERACTIVE},
        {"premium": True},
        {"priority": Priority.INTERACTIVE},
        {},
        {"premium": True, "priority": Priority.BATCH},
        {"priority": Priority.BATCH},
    ]
    assert [rank(ask(0, **kind)) for kind in kinds] == [0, 1, 2, 3, 4, 5]
    one, first = door(), ask(0)
    assert isinstance(one.admit(0.0, first), Admitted)
    asks = {number: ask(number, **kind) for number, kind in enumerate(kinds, start=1)}
    for number in (6, 3, 5, 1, 4, 2):
        assert isinstance(one.admit(0.0, asks[number]), Waits)
    order, current = [], first
    for _ in kinds:
        (current,) = one.done(0.1, current, begun=True)
        order.append(current.number)
    assert order == [1, 2, 3, 4, 5, 6]


def test_tenants_of_one_class_take_turns_whatever_one_of_them_has_queued():
    one, first = door(queue=100), ask(0)
    one.admit(0.0, first)
    for number in range(1, 31):
        one.admit(0.0, ask(number, tenant="flood"))
    for number in range(31, 34):
        one.admit(0.0, ask(number, tenant="quiet"))
    begun, current = [], first
    for _ in range(8):
        (current,) = one.done(0.1, current, begun=True)
        begun.append(current.tenant)
    assert begun.count("quiet") == 3


def test_weights_divide_what_a_class_gets():
    tenants = (TenantSettings(name="a", weight=3.0), TenantSettings(name="b"))
    one, current = door(queue=100, tenants=tenants), ask(0)
    one.admit(0.0, current)
    for number in range(1, 81):
        one.admit(0.0, ask(number, tenant="ab"[number % 2]))
    begun = []
    for _ in range(40):
        (current,) = one.done(0.1, current, begun=True)
        begun.append(current.tenant)
    assert begun.count("a") == 30


def test_a_quota_answers_429_with_the_time_to_come_back():
    one = door(limit=100.0, tenants=(TenantSettings(name="t", per_s=0.5, burst=2.0),))
    answers = [one.admit(10.0, ask(number, tenant="t")) for number in range(3)]
    assert [type(answer) for answer in answers] == [Admitted, Admitted, Shed]
    assert (answers[2].status, answers[2].retry_after_s) == (429, 2.0)
    assert isinstance(one.admit(12.0, ask(9, tenant="t")), Admitted)
    assert isinstance(one.admit(12.0, ask(10, tenant="other")), Admitted)


def test_a_quota_of_requests_in_flight_is_given_back():
    one, first = door(limit=100.0, tenants=(TenantSettings(name="t", in_flight=1.0),)), ask(0, tenant="t")
    one.admit(0.0, first)
    assert one.admit(0.0, ask(1, tenant="t")).status == 429
    one.done(1.0, first, begun=True)
    assert isinstance(one.admit(1.0, ask(2, tenant="t")), Admitted)


def test_a_full_queue_and_a_hopeless_wait_are_refused_at_once_with_503():
    one = door(queue=2)
    answers = [one.admit(0.0, ask(number)) for number in range(4)]
    assert [type(answer) for answer in answers] == [Admitted, Waits, Waits, Shed]
    assert answers[3].status == 503 and answers[3].retry_after_s >= 1
    slow, current = door(queue=100), ask(0)
    slow.admit(0.0, current)
    for number in range(1, 8):
        slow.admit(0.0, ask(number))
    for now_s in (1.0, 2.0):
        (current,) = slow.done(now_s, current, begun=True)
    shed = slow.admit(2.0, ask(9, deadline_s=4.0))  # five wait, and one begins each second
    assert isinstance(shed, Shed) and "it would wait" in shed.reason


def test_a_deadline_that_has_passed_is_refused():
    assert door().admit(5.0, ask(0, deadline_s=5.0)).status == 504


def test_whoever_leaves_the_queue_is_not_begun_and_holds_up_nobody():
    one, first = door(), ask(0)
    one.admit(0.0, first)
    waiting = [ask(number) for number in (1, 2, 3)]
    for each in waiting:
        one.admit(0.0, each)
    assert one.done(0.1, waiting[0], begun=False) == []
    assert one.done(0.2, first, begun=True) == [waiting[1]]
    assert one.done(9.0, waiting[1], begun=True) == []  # the third one's time is up
    assert one.waiting() == (0,) * 6


def test_batch_never_takes_the_last_fifth():
    one = door(limit=10.0)
    batch = [one.admit(0.0, ask(number, priority=Priority.BATCH)) for number in range(10)]
    assert sum(isinstance(answer, Admitted) for answer in batch) == 8
    assert isinstance(one.admit(0.0, ask(99)), Admitted)


@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "done", "leave"]), st.integers(0, 5), st.integers(0, 8).map(EIGHTH.__mul__)),
        max_size=120,
    )
)
def test_counts_stay_right_whatever_happens(steps):
    one, now_s, running, waiting, number = door(limit=3.0, queue=4, wait_s=2.0), 0.0, {}, {}, 0
    for what, choice, gap_s in steps:
        now_s += gap_s
        waiting = {key: value for key, value in waiting.items() if value[1] > now_s}
        if what == "ask":
            number += 1
            new = ask(number, tenant="abc"[choice % 3], premium=choice > 2, priority=Priority(choice % 3))
            answer = one.admit(now_s, new)
            if isinstance(answer, Admitted):
                running[number] = new
            elif isinstance(answer, Waits):
                waiting[number] = (new, answer.until_s)
            begun = []
        elif what == "done" and running:
            begun = one.done(now_s, running.pop(next(iter(running))), begun=True)
        elif what == "leave" and waiting:
            begun = one.done(now_s, waiting.pop(next(iter(waiting)))[0], begun=False)
        else:
            begun = one.next(now_s)
        for each in begun:
            del waiting[each.number]
            running[each.number] = each
        assert one.in_flight == len(running) <= 3
        assert sum(one.waiting()) >= len(waiting)
