"""The policy as data: the ladder obeys it, a file changes it key by key, and every value knows where it comes from."""

import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from closeranks import faults
from closeranks.decide.answers import BUILT_IN, Answer, answer_to
from closeranks.decide.ladder import Situation, choose
from closeranks.decide.policy import Policy, read_policy, shown
from closeranks.events import Rung
from closeranks.toml_text import TomlProblem

LOST_ONE = Situation(
    fault="process killed", lost=1, survivors=3, spares=1, looped=True, start_up=False, replicated=True, saved_step=9
)
DOCS = Path(__file__).parents[2] / "docs" / "recovery.md"


def rung_of(answer, **changes):
    return choose(replace(LOST_ONE, answer=answer, **changes))


def test_every_fault_of_the_catalogue_has_an_answer():
    assert set(BUILT_IN) == set(faults.CATALOGUE)
    assert answer_to({}, "no such fault") == Answer()


@pytest.mark.parametrize(
    ("rungs", "rung"),
    [
        (None, Rung.SPARE),
        ((Rung.FORK, Rung.COLD_RESTART), Rung.FORK),
        ((Rung.COLD_RESTART,), Rung.COLD_RESTART),
        ((Rung.REGROUP,), Rung.STOP),
        ((), Rung.STOP),
    ],
)
def test_a_policy_takes_rungs_away(rungs, rung):
    choice = rung_of(Answer(rungs=rungs))
    assert choice.rung is rung
    assert rungs is None or "the policy for 'process killed' allows" in choice.reason


def test_a_policy_never_makes_an_unsafe_rung_safe():
    choice = rung_of(Answer(rungs=(Rung.SPARE, Rung.COLD_RESTART)), corrupt="digests differ")
    assert choice.rung is Rung.COLD_RESTART


def test_a_stop_by_policy_says_what_a_person_can_do():
    choice = rung_of(Answer(rungs=()), fault=faults.DISK_FULL.name)
    assert faults.DISK_FULL.advice in choice.reason


def test_what_a_file_does_not_name_is_built_in():
    assert read_policy("", "p.toml").policy == Policy()


def test_one_key_of_an_answer_leaves_the_others_as_they_are():
    policy = read_policy('[answers."corrupt replica"]\nwait_s = 1', "p.toml").policy
    assert answer_to(policy.amended, "corrupt replica") == replace(BUILT_IN["corrupt replica"], wait_s=1.0)
    assert answer_to(policy.amended, "network loss") == BUILT_IN["network loss"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tries = 3", 'p.toml line 1: tries: unknown key; did you mean "tries_per_rung"?'),
        ("\n[canary]\nstep = 3", 'p.toml line 3: canary.step: unknown key; did you mean "steps"?'),
        ('[answers."network loss"]\nwait = 3', 'wait: unknown key; did you mean "wait_s"?'),
        ('[answers."network los"]\nwait_s = 3', 'did you mean "network loss"?'),
        ('[answers."network loss"]\nwait_s = -1', "expected 0 to 3600 s, got -1"),
        ('[answers."disk full"]\nrungs = ["cold"]', 'no such rungs: "cold"; '),
        ("[canary]\nsteps = 0", "canary.steps: expected at least 1, got 0"),
        ("tries_per_rung = 0", "expected 1 to 100, got 0"),
        ("x =", "not TOML"),
    ],
)
def test_what_cannot_be_is_refused_with_key_bound_and_value(text, told):
    with pytest.raises(TomlProblem) as caught:
        read_policy(text, "p.toml")
    assert told in str(caught.value)


def test_the_policy_that_is_shown_can_be_given_back_and_names_the_origin_of_each_value():
    sourced = read_policy('tries_per_rung = 3\n[answers."network loss"]\nwait_s = 30\n', "mine.toml")
    text = shown(sourced)
    again = read_policy(text, "again.toml").policy
    assert again.tries_per_rung == 3
    for fault in faults.CATALOGUE:
        assert answer_to(again.amended, fault) == answer_to(sourced.policy.amended, fault)
    given = [line for line in text.splitlines() if line.endswith("# mine.toml")]
    assert given == ["tries_per_rung = 3  # mine.toml", "wait_s = 30.0  # mine.toml"]
    assert all(line.endswith("# built in") for line in text.splitlines() if "=" in line and line not in given)


def test_the_example_of_the_documentation_is_a_policy():
    example = DOCS.read_text(encoding="utf-8").split("```toml\n", 1)[1].split("```", 1)[0]
    policy = read_policy(example, "docs/recovery.md").policy
    assert policy != Policy()
    assert set(tomllib.loads(example)) == {"answers", "limits", "deadlines", "quarantine", "canary", "tries_per_rung"}
