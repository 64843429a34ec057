import pytest

from closeranks.serve.policies import Check, Finding, Grade, HealthSettings, Judge, Outcome

ANSWER, READY, LIVE = Check.KNOWN_ANSWER, Check.READINESS, Check.LIVENESS


def judge(*findings, check=ANSWER):
    one = Judge(HealthSettings())
    for number, finding in enumerate(findings):
        one.began(5.0 * number, check)
        one.found(5.0 * number + 1, check, finding)
    return one


@pytest.mark.parametrize(
    ("findings", "grade"),
    [
        ("", Grade.UP),
        ("f", Grade.DOWN),  # the first one counts at once
        ("p", Grade.UP),
        ("pff", Grade.UP),
        ("pffpff", Grade.UP),
        ("pfff", Grade.DOWN),
        ("pfffp", Grade.DOWN),
        ("pfffpp", Grade.UP),
        ("pttt", Grade.DOWN),
        ("pwww", Grade.DOWN),
        ("ptfw", Grade.DOWN),
    ],
)
def test_three_failures_in_a_row_take_it_down_and_two_passes_bring_it_back(findings, grade):
    words = {"p": Finding.PASS, "f": Finding.FAIL, "t": Finding.TIMEOUT, "w": Finding.WRONG}
    assert judge(*[words[letter] for letter in findings]).grade(1e6) is grade


def test_a_passing_ping_does_not_hide_that_nothing_is_generated():
    one = judge(*[Finding.PASS] * 3, check=LIVE)
    for number in range(3):
        one.began(20.0 + number, ANSWER)
        one.found(22.0 + number, ANSWER, Finding.TIMEOUT)
    standing = one.standing(30.0)
    assert standing.grade is Grade.DOWN
    assert "known answer" in standing.reason


def test_busy_is_told_from_wedged_by_what_others_get():
    busy, wedged = judge(Finding.PASS), judge(Finding.PASS)
    for number in range(3):
        for one in (busy, wedged):
            one.began(10.0 + 5 * number, ANSWER)
        busy.heard(11.0 + 5 * number)
        for one in (busy, wedged):
            one.found(12.0 + 5 * number, ANSWER, Finding.TIMEOUT)
    assert (busy.grade(30.0), wedged.grade(30.0)) == (Grade.UP, Grade.DOWN)


def test_traffic_never_passes_a_check():
    one = judge(Finding.PASS, Finding.FAIL, Finding.FAIL, Finding.FAIL)
    one.heard(100.0)
    assert one.grade(100.0) is Grade.DOWN


def test_busy_is_no_excuse_for_ever():
    one = Judge(HealthSettings(busy_max=4))
    for number in range(10):
        one.began(5.0 * number, ANSWER)
        one.heard(5.0 * number + 1)
        one.found(5.0 * number + 2, ANSWER, Finding.TIMEOUT)
    assert one.grade(60.0) is Grade.DOWN


@pytest.mark.parametrize("outcome", [Outcome.SLOW, Outcome.UNREACHED, Outcome.BROKEN])
def test_one_bad_outcome_is_doubt_at_once_and_any_answer_ends_it(outcome):
    one = judge(Finding.PASS)
    one.outcome(10.0, outcome)
    assert one.grade(10.0) is Grade.DOUBTFUL
    assert one.grade(1000.0) is Grade.DOUBTFUL  # a check will tell
    one.heard(11.0)
    assert one.grade(11.0) is Grade.UP


def test_a_check_that_began_before_the_doubt_says_nothing_about_it():
    one = judge(Finding.PASS)
    one.began(10.0, ANSWER)
    one.outcome(10.5, Outcome.SLOW)
    one.found(11.0, ANSWER, Finding.PASS)
    assert one.grade(11.0) is Grade.DOUBTFUL
    one.began(15.0, ANSWER)
    one.found(16.0, ANSWER, Finding.PASS)
    assert one.grade(16.0) is Grade.UP


def test_a_ping_ends_no_doubt():
    one = judge(Finding.PASS)
    one.outcome(10.0, Outcome.SLOW)
    one.began(11.0, LIVE)
    one.found(11.1, LIVE, Finding.PASS)
    assert one.grade(11.1) is Grade.DOUBTFUL


def test_without_checks_doubt_ends_by_itself():
    one = Judge(HealthSettings(doubt_s=5.0))
    one.outcome(10.0, Outcome.BROKEN)
    assert (one.grade(14.9), one.grade(15.0)) == (Grade.DOUBTFUL, Grade.UP)


def test_checks_are_due_at_their_interval_never_two_at_once_and_soon_after_a_failure():
    one = Judge(HealthSettings())
    assert one.due(0.0, (LIVE, ANSWER)) == (LIVE, ANSWER)
    one.began(0.0, ANSWER)
    assert one.due(60.0, (ANSWER,)) == ()
    one.found(1.0, ANSWER, Finding.PASS)
    assert (one.due(4.9, (ANSWER,)), one.due(5.0, (ANSWER,))) == ((), (ANSWER,))
    one.began(5.0, ANSWER)
    one.found(5.1, ANSWER, Finding.FAIL)
    assert one.due(7.1, (ANSWER,)) == (ANSWER,)
