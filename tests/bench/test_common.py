import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import _common as common


def test_a_bar_that_was_not_measured_does_not_hold():
    assert not common.at_most("a", None, 3).holds
    assert not common.at_least("a", None, 3).holds


def test_bars_hold_up_to_and_including_their_value():
    assert common.at_most("a", 3, 3).holds
    assert not common.at_most("a", 3.1, 3).holds
    assert common.at_least("a", 8, 8).holds
    assert not common.at_least("a", 7.9, 8).holds


def test_all_sides_are_measured_once_a_round_in_an_order_that_the_seed_determines():
    order = []
    sides = {name: lambda name=name: order.append(name) or name for name in "abc"}
    results = common.interleaved(sides, rounds=4, seed=1)
    assert results == {name: [name] * 4 for name in "abc"}
    assert all(set(order[i : i + 3]) == set("abc") for i in range(0, 12, 3))
    again, order = order, []
    sides = {name: lambda name=name: order.append(name) or name for name in "abc"}
    common.interleaved(sides, rounds=4, seed=1)
    assert order == again


def test_a_ratio_lies_within_its_bounds_and_a_side_against_itself_is_about_one():
    ratio = common.ratio_of_medians([10.0, 11.0, 12.0], [1.0, 1.1, 1.2])
    assert ratio.low <= ratio.value == 10.0 <= ratio.high
    assert common.control([5.0] * 6) == (1.0, 1.0, 1.0)


def test_numbers_are_spelled_with_median_range_and_count():
    assert common.spelled([0.5, 0.7, 0.6], "s") == "0.6 s (0.5 to 0.7, n=3)"
    assert common.spelled([], "s") == "not measured"


@pytest.mark.parametrize(("value", "status"), [(1.0, 0), (9.0, 1), (None, 1)])
def test_the_last_line_is_json_and_the_exit_status_says_whether_all_bars_hold(monkeypatch, capsys, value, status):
    monkeypatch.setattr(sys, "argv", ["bench", "--json"])
    bench = common.Bench("some", "text")
    bench.say("for people")
    assert bench.finish([common.at_most("b", value, 3)]) == status
    printed = capsys.readouterr()
    bar = {"name": "b", "value": value, "bar": 3, "holds": status == 0, "resolved": True}
    assert json.loads(printed.out) == {"bench": "some", "bars": [bar]}
    assert "for people" in printed.err


def test_a_bar_is_resolved_only_where_the_bounds_of_the_median_lie_on_one_side_of_it():
    below = common.surely_at_most("a", [9.0, 10.0, 11.0] * 9, 15)
    above = common.surely_at_most("a", [19.0, 20.0, 21.0] * 9, 15)
    torn = common.surely_at_most("a", [-400.0, 10.0, 500.0] * 9, 15)
    assert (below.holds, below.resolved) == (True, True)
    assert (above.holds, above.resolved) == (False, True)
    assert (torn.holds, torn.resolved, torn.value) == (False, False, 10.0)
    assert not common.surely_at_most("a", [], 15).resolved


def test_what_could_not_be_resolved_is_no_pass_and_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench"])
    torn = common.surely_at_most("a", [-400.0, 10.0, 500.0] * 9, 15)
    assert common.Bench("some", "text").finish([torn, common.at_most("b", 1, 3)]) == 3
    assert "NOT RESOLVED  a: 10 (bar 15)" in capsys.readouterr().out
    assert common.Bench("some", "text").finish([torn, common.at_most("b", 9, 3)]) == 1


def test_a_bench_without_bars_proves_nothing(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench", "--json"])
    assert common.Bench("some", "text").finish([]) == 1
