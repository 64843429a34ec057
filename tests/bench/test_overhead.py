import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import overhead


def steps(block_s):
    return [{"block": block, "s": s} for block, s in enumerate(block_s) for _ in range(3)]


def test_what_supervision_adds_is_measured_against_the_blocks_around_it():
    added, drift = overhead.paired_costs_s(steps([1.0, 1.2, 1.0, 1.2, 1.0]))
    assert added == pytest.approx([0.2, 0.2])
    assert drift == pytest.approx([0.0, 0.0])


def test_a_steady_drift_of_the_machine_is_no_cost_but_shows_in_the_control():
    added, drift = overhead.paired_costs_s(steps([1.0, 1.1, 1.2, 1.3, 1.4]))
    assert added == pytest.approx([0.0, 0.0])
    assert drift == pytest.approx([0.1, 0.1])
