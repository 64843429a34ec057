import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import overhead


def blocks(block_s):
    return [{"on": number % 2 == 1, "s": [s] * 5, "cpu_s": [s] * 5} for number, s in enumerate(block_s)]


def test_what_supervision_adds_is_measured_against_the_blocks_around_it():
    added, drift = overhead.paired_costs_s(blocks([1.0, 1.2, 1.0, 1.2, 1.0]), overhead.lower_quartile_s)
    assert added == pytest.approx([0.2, 0.2])
    assert drift == pytest.approx([0.0, 0.0])


def test_a_steady_drift_of_the_machine_is_no_cost_but_shows_in_the_control():
    added, drift = overhead.paired_costs_s(blocks([1.0, 1.1, 1.2, 1.3, 1.4]), overhead.median_s)
    assert added == pytest.approx([0.0, 0.0])
    assert drift == pytest.approx([0.1, 0.1])


def test_a_neighbour_that_takes_the_processor_from_some_steps_is_not_in_the_lower_quartile():
    quiet, struck = blocks([1.0, 1.2, 1.0]), blocks([1.0, 1.2, 1.0])
    for block in struck:
        block["s"] += [9.0] * 3
    lower = overhead.lower_quartile_s
    assert overhead.paired_costs_s(struck, lower) == overhead.paired_costs_s(quiet, lower)
    assert overhead.computed_s(struck[0]) == overhead.computed_s(quiet[0])
