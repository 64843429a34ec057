import pytest
from tests.diagnose.logs import gather

from closeranks.diagnose import rules
from closeranks.diagnose.evidence import Standing
from closeranks.diagnose.rules import RulesError
from closeranks.gather.rulebook import RULE_FILES, lexicon, text_of

BOOK = lexicon().book
YES = [(rule, line) for rule in BOOK.rules for line in rule.yes]
NO = [(rule, line) for rule in BOOK.rules for line in rule.no]
RULE = """about = "a test"
[[rule]]
id = "one"
literals = ["broken pump"]
pattern = "broken pump (?P<device>[0-9]+)"
fault = "device lost"
standing = "device"
weight = 0.9
provenance = "a manual"
yes = ["broken pump 3"]
"""


def _named(value):
    return value.id if isinstance(value, rules.Rule) else None


@pytest.mark.parametrize(("rule", "line"), YES, ids=_named)
def test_a_rule_understands_its_own_lines_on_the_way_that_logs_take(rule, line):
    assert rule.id in [evidence.rule for evidence in gather(f"first line\n{line}\n")]


@pytest.mark.parametrize(("rule", "line"), NO, ids=_named)
def test_a_rule_does_not_understand_its_counter_examples(rule, line):
    assert rule.id not in [evidence.rule for evidence in gather(f"first line\n{line}\n")]


@pytest.mark.parametrize("rule", BOOK.rules, ids=_named)
def test_a_rule_says_where_it_comes_from_and_has_lines_for_and_against_it(rule):
    assert rule.provenance
    assert rule.yes
    assert rule.no
    if rule.standing in (Standing.DEVICE, Standing.SPECIFIC, Standing.SYMPTOM):
        assert rule.fault
        assert 0.5 <= rule.weight <= 0.97
    if rule.standing in (Standing.VICTIM, Standing.CONTEXT):
        assert not rule.fault


def test_every_rule_file_of_the_package_is_read():
    from importlib import resources

    stored = {entry.name for entry in resources.files("closeranks.diagnose").joinpath("data").iterdir()}
    assert stored == {*RULE_FILES, "codes.toml"}
    assert all(text_of(name).startswith("about = ") for name in stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('id = "one"', 'idd = "one"'), "idd"),
        (("device lost", "device losst"), "nearest is 'device lost'"),
        (('standing = "device"', 'standing = "near"'), "got 'near'"),
        (('"broken pump"]', '"pum"]'), "need 4 bytes or more"),
        (("(?P<device>", "(?P<volume>"), "got volume"),
        (("(?P<device>", "((?P<device>"), "pattern"),
        (("weight = 0.9", "weight = "), "one.toml"),
    ],
)
def test_a_rule_file_with_a_mistake_is_refused_and_the_mistake_named(change, message):
    with pytest.raises(RulesError, match=message):
        rules.parse({"one.toml": RULE.replace(*change)})


def test_two_rules_of_one_name_are_refused():
    with pytest.raises(RulesError, match="two rules are called 'one'"):
        rules.parse({"one.toml": RULE, "two.toml": RULE})
