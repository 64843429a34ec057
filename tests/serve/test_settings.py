import pytest

from closeranks.serve.settings import parse
from closeranks.toml_text import TomlProblem

REPLICA = '[[replica]]\nname = "a"\nurl = "http://h:1"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[budget]\nshare = 1.5\n", "budget: share: expected 0 to 1, got 1.5"),
        ("[budget]\nwindow_s = nan\n", "budget: window_s: expected more than 0"),
        ("[breaker]\nopen_s = 0.0\n", "breaker: open_s: expected more than 0"),
        ("[health]\ninterval_s = -1.0\n", "health: interval_s: expected more than 0"),
        ("[routing]\nbalance = 0.5\n", "routing: balance: expected 1 to"),
        ("[limiter]\ntolerance = 0.1\n", "limiter: tolerance: expected 1 to"),
        ("[admission]\nqueue = -1\n", "admission: queue: expected 0 to"),
        ('[[tenant]]\nname = "t"\n[[tenant]]\nname = "t"\n', "tenant 2.name: 't' is there twice"),
        ('[[tenant]]\nname = "t"\nkeys_sha256 = ["ab"]\n', "keys_sha256: expected 64 hexadecimal digits"),
        ('[[tenant]]\nname = "t"\npriority = "high"\n', "tenant 1.priority"),
        ('[[ladder.level]]\nname = "x"\ntier = "small"\n', "no replica has tier 'small'; known: none"),
        ('[[ladder.level]]\nname = "x"\nkind = "static"\n', "answer: expected one with kind"),
        ("[ladder]\nerror_rat = 0.1\n", 'did you mean "error_rate"?'),
        ("[ladder.timing]\ndwell_s = -1.0\n", "dwell_s: expected 0 to"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_their_line(text, problem):
    with pytest.raises(TomlProblem) as refusal:
        parse(text + REPLICA, "gateway.toml")
    assert problem in str(refusal.value)
    assert "gateway.toml line " in str(refusal.value)


def test_replicas_of_lower_tiers_alone_are_no_service():
    with pytest.raises(TomlProblem, match="at least one replica without a tier"):
        parse(REPLICA + 'tier = "small"\n', "gateway.toml")
