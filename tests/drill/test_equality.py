"""A broken run ends bit for bit like an undisturbed one: real processes, the whole way through the command line."""

from pathlib import Path

import msgspec
import pytest

from closeranks.drill.campaign import carry_out, planned
from closeranks.drill.plan import parse
from closeranks.drill.runner import Runner
from closeranks.drill.verdict import Outcome

ROOT = Path(__file__).parents[2]
SMALL = (str(ROOT / "examples" / "train_gpt.py"), "--steps", "40", "--layers", "2", "--width", "64", "--context", "32")


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("drills") / "runs")


@pytest.mark.process
@pytest.mark.parametrize("name", ["kill", "freeze", "exception", "two-at-once", "during-recovery"])
def test_a_run_that_loses_ranks_ends_as_if_nothing_had_happened(runner, name):
    path = ROOT / "examples" / "plans" / f"{name}.toml"
    plan = parse(path.read_text(), str(path))
    small = msgspec.structs.replace(plan, run=msgspec.structs.replace(plan.run, command=SMALL, timeout_s=100))
    result = carry_out(runner, planned(small, str(path), range(1))[0])
    assert (result.outcome, result.reasons) == (Outcome.HELD, ())
