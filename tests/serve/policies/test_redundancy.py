from random import Random

import pytest

from closeranks.serve.policies import (
    SYMPTOMS,
    Agreed,
    NeedsThird,
    Quarantine,
    RedundancySettings,
    Undecided,
    fingerprint,
    recognise,
    sampled,
    vote,
)


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ("xx", Agreed("a")),
        ("xy", NeedsThird()),
        ("xyx", Agreed("a", ("b",))),
        ("yxx", Agreed("b", ("a",))),
        ("xxx", Agreed("a")),
        ("xyz", Undecided()),
    ],
)
def test_a_vote(answers, verdict):
    assert vote(dict(zip("abc", answers, strict=False))) == verdict


def test_one_answer_is_no_vote():
    with pytest.raises(ValueError, match="at least 2"):
        vote({"a": "x"})


def test_the_odd_one_comes_back_after_right_answers_in_a_row():
    quarantine = Quarantine(RedundancySettings(passes=2))
    quarantine.add("a", "a vote was against it")
    assert not quarantine.checked("a", right=True)
    assert not quarantine.checked("a", right=False)
    assert not quarantine.checked("a", right=True)
    assert "a" in quarantine
    assert quarantine.checked("a", right=True)
    assert "a" not in quarantine


def test_a_sample_has_its_share_and_none_by_default():
    random = Random(1)
    assert not any(sampled(RedundancySettings(), random) for _ in range(100))
    assert 60 < sum(sampled(RedundancySettings(share=0.1), random) for _ in range(1000)) < 140


def test_a_fingerprint_sees_what_was_said_and_nothing_else():
    def said(text, number):
        return {"id": number, "created": number, "choices": [{"message": {"content": text}, "finish_reason": "stop"}]}

    assert fingerprint(said("x", 1)) == fingerprint(said("x", 2))
    assert fingerprint(said("x", 1)) != fingerprint(said("y", 1))
    assert fingerprint({"data": [[1.0]]}) != fingerprint({"data": [[1.5]]})


def test_symptoms_are_recognised_from_readings():
    usual = {"dependency_s": 0.012, "p99_s": 0.045, "error_rate": 0.001}
    cascade = {"dependency_s": 0.7, "p99_s": 0.8, "error_rate": 0.15}
    assert recognise(cascade, usual)[0].name == "cascade"
    assert [symptom.name for symptom in recognise({"p99_s": 0.2, "error_rate": 0.0}, usual)] == ["latency spike"]
    assert [symptom.name for symptom in recognise({"wrong_answers": 1.0}, usual)] == ["silent quality loss"]
    assert recognise(usual, usual) == () == recognise({}, {})
    assert len({symptom.name for symptom in SYMPTOMS}) == len(SYMPTOMS)
