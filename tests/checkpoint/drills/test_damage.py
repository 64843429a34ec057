"""A small part of the damage drill; CLOSERANKS_DAMAGE_CASES sets the number of cases."""

import os

import pytest

from closeranks.checkpoint import reading
from closeranks.checkpoint.drills import damage

CASES = int(os.environ.get("CLOSERANKS_DAMAGE_CASES", "80"))
SEED = int(os.environ.get("CLOSERANKS_DAMAGE_SEED", "0"))


@pytest.fixture
def bench(tmp_path):
    return damage.Bench(tmp_path)


def test_damaged_bytes_are_refused_or_repaired_and_never_applied(bench):
    verdicts = [bench.judge(SEED, number) for number in range(CASES)]
    for number, verdict in enumerate(verdicts):
        assert verdict.outcome != damage.BROKEN, f"{verdict}; replay with --seed {SEED} --first {number} --cases 1"
    assert {verdict.outcome for verdict in verdicts} >= {"refused", "repaired", "unaffected"}


def test_a_reader_that_does_not_look_at_digests_is_caught(bench, monkeypatch):
    monkeypatch.setattr(reading, "_require", lambda *_: None)
    assert damage.BROKEN in {bench.judge(SEED, number).outcome for number in range(CASES)}


def test_after_a_case_the_store_is_as_it_was_before(bench, tmp_path):
    for number in range(20):
        bench.judge(SEED, number)
    found = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == bench.objects


def test_the_command_says_how_many_cases_held(capsys):
    assert damage.main(["--cases", "5", "--seed", "3"]) == 0
    assert "held: 5 of 5 cases, seed 3" in capsys.readouterr().out
