from pathlib import Path

import pytest

from closeranks.drill.fault import Kind, Moment
from closeranks.drill.matrix_rows import ROWS
from closeranks.drill.plan import parse, resolve

ROOT = Path(__file__).parents[2]
PLANS = sorted((ROOT / "examples" / "plans").glob("*.toml"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_plan_that_is_shipped_can_be_carried_out(path):
    plan = parse(path.read_text(), path.name)
    assert resolve(plan, 0)
    assert (ROOT / plan.run.command[0]).is_file()


def test_there_is_a_plan_or_a_cell_of_the_matrix_for_every_kind_of_fault():
    kinds = {spec.kind for path in PLANS for spec in parse(path.read_text(), path.name).fault}
    assert kinds | {row.kind for row in ROWS} >= set(Kind)


def test_the_demo_kills_freezes_crashes_and_strikes_two_at_once_and_one_during_a_recovery():
    faults = resolve(parse((ROOT / "examples" / "plans" / "demo.toml").read_text(), "demo.toml"), 0)
    assert {fault.kind for fault in faults} == {Kind.KILL, Kind.FREEZE, Kind.EXCEPTION}
    assert sum(fault.volley > 0 for fault in faults) == 2
    assert sum(fault.moment is Moment.RECOVERING for fault in faults) == 1
