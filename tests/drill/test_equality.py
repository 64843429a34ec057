"""A broken run ends bit for bit like an undisturbed one: real processes, the whole way through the command line."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.warm import WarmRun

from closeranks.drill import runner as runner_module
from closeranks.drill.campaign import carry_out, planned
from closeranks.drill.plan import parse
from closeranks.drill.runner import Runner
from closeranks.drill.verdict import Outcome

ROOT = Path(__file__).parents[2]
SMALL = (str(ROOT / "examples" / "train_gpt.py"), "--steps", "40", "--layers", "2", "--width", "64", "--context", "32")


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("drills") / "runs")


def warm(command, *, env, stdout, **_):
    """In place of ``subprocess.Popen``."""
    words = tuple(command[command.index("run") + 1 :])
    return WarmRun(words, cwd=Path.cwd(), environment=env, output=Path(stdout.name))


@pytest.mark.process
@pytest.mark.timeout(300)  # the undisturbed run, and the one with the fault
@pytest.mark.parametrize("name", ["kill", "freeze", "exception", "two-at-once", "during-recovery"])
def test_a_run_that_loses_ranks_ends_as_if_nothing_had_happened(runner, name, monkeypatch):
    if name != "kill":  # that one, and with it the undisturbed run, begins as a user's does, from nothing
        monkeypatch.setattr(runner_module, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": warm}))
    path = ROOT / "examples" / "plans" / f"{name}.toml"
    plan = parse(path.read_text(), str(path))
    small = msgspec.structs.replace(plan, run=msgspec.structs.replace(plan.run, command=SMALL, timeout_s=100))
    result = carry_out(runner, planned(small, str(path), range(1))[0])
    assert (result.outcome, result.reasons) == (Outcome.HELD, ())
