"""Labelled logs, where they are at hand: the split and the classes are those of ``bench/diagnose.py``."""

import sys
import tarfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from _corpus import CLASS_OF_FAULT, LABELS, logs_of, macro_f1, scored, split
from tests.plan.conftest import CANDIDATES

ARCHIVE = "logs/labelled-logs.tar.xz"


@pytest.fixture(scope="module")
def corpus():
    for folder in CANDIDATES:
        if (folder / ARCHIVE).exists():
            with tarfile.open(folder / ARCHIVE) as archive:
                return logs_of(archive)
    pytest.skip(f"{ARCHIVE} is not at hand (set CLOSERANKS_TEST_DATA)")


def test_both_parts_of_the_labelled_logs_are_told_apart(corpus):
    developed, held_out = split(corpus)
    assert len(developed) + len(held_out) == 225
    assert not {log.source for log in developed} & {log.source for log in held_out}
    for part in (developed, held_out):
        assert macro_f1(scored(part)) >= 0.99


def test_every_fault_has_one_class_and_every_class_a_fault():
    assert set(CLASS_OF_FAULT.values()) == set(LABELS)


@pytest.mark.parametrize(
    ("pairs", "value"),
    [
        ([("nccl", "nccl"), ("traceback", "traceback")], 1.0),
        ([("nccl", "traceback"), ("traceback", "traceback")], 1 / 3),
        ([("nccl", ""), ("traceback", "traceback")], 0.5),
    ],
)
def test_macro_f1_is_the_mean_over_classes(pairs, value):
    assert macro_f1(pairs) == pytest.approx(value)
