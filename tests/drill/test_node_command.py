"""``closeranks drill-nodes`` without a single run: what is told, kept and counted."""

from __future__ import annotations

import json
import signal

import pytest

from closeranks.cli import drill, drill_nodes
from closeranks.drill.nodes.campaign import Round
from closeranks.drill.nodes.verdict import NodeRun, NodesEvidence
from closeranks.drill.verdict import Outcome
from closeranks.events import Record, RunEnded


def undisturbed(outcome="completed"):
    event = RunEnded(outcome=outcome, exit_code=0, reason="all done")
    record = Record(seq=0, wall_s=0.0, mono_s=0.0, run="r", node="n0", term=1, event=event)
    one = NodeRun(node="n0", ended_by_drill=False, exit_code=0, records=(record,), finals={}, applied=())
    return NodesEvidence(runs=(one,))


def one_round(seed, *, outcome=Outcome.HELD, stops=(), never_struck=()):
    return Round(
        seed=seed,
        faults=("leave of n1",),
        outcome=outcome,
        reasons=(),
        recovery_s=(),
        replay=f"closeranks drill-nodes --seed {seed}",
        completed=not stops,
        stops=stops,
        never_struck=never_struck,
    )


@pytest.fixture
def invoke(monkeypatch, of_one_command):
    """``rounds`` are what the drills show; an exception among them is raised there."""
    program = of_one_command(drill_nodes.register)

    def run(*words, rounds=(), alone="completed"):
        class Nodes:
            def __init__(self, _spec, folder, **_):
                self.folder = folder

            def undisturbed(self):
                (self.folder / "001").mkdir(exist_ok=True)
                return undisturbed(alone)

        def carry_out_all(_nodes, _seeds, _replay, results, on_result, *, keep):
            assert keep is ("--keep" in words)
            for one in rounds:
                if isinstance(one, BaseException):
                    raise one
                results.add(one)
                on_result(one)

        monkeypatch.setattr(drill_nodes, "Nodes", Nodes)
        monkeypatch.setattr(drill_nodes, "carry_out_all", carry_out_all)
        size = ["--rounds", str(max(1, len(rounds)))]
        return program("drill-nodes", *size, *words, "--", "train.py")

    return run


STOPPED = one_round(1, stops=("n0, n2: no node is left",))


def test_rounds_that_all_completed_leave_nothing(invoke, tmp_path):
    result = invoke(rounds=[one_round(0), one_round(1)])
    assert result.exit_code == 0
    assert "2 completed, 0 stopped" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_round_that_holds_and_stopped_is_told_counted_and_kept(invoke, tmp_path):
    """It counted as held in silence, and what it left was deleted."""
    result = invoke(rounds=[one_round(0), STOPPED])
    assert result.exit_code == 0
    assert "seed 1 stopped: n0, n2: no node is left" in result.output
    assert "1 completed, 1 stopped with a reason: seeds 1" in result.output
    (folder,) = tmp_path.iterdir()
    assert f"runs are kept in {folder}" in result.output


def test_a_fault_that_never_struck_is_told_and_counted(invoke):
    result = invoke(rounds=[one_round(0), one_round(1, never_struck=("deaf of n2",))])
    assert result.exit_code == 0
    assert "seed 1 never struck: deaf of n2" in result.output
    assert "in 1 a fault never struck" in result.output


def test_json_has_the_counts_and_the_reasons(invoke):
    summary = json.loads(invoke("--json", rounds=[one_round(0), STOPPED]).stdout)
    assert (summary["completed"], summary["stopped"], summary["struck_by_fewer"]) == (1, 1, 0)
    assert summary["drills"][1]["stops"] == ["n0, n2: no node is left"]


def test_an_interrupted_night_says_where_its_runs_are(invoke, tmp_path):
    result = invoke(rounds=[one_round(0), KeyboardInterrupt()])
    (folder,) = tmp_path.iterdir()
    assert result.exit_code != 0
    assert "1 completed" in result.output
    assert f"runs are kept in {folder}" in result.output


def test_a_run_that_does_not_complete_when_left_alone_is_kept(invoke, tmp_path):
    result = invoke(alone="failed")
    (folder,) = tmp_path.iterdir()
    assert result.exit_code == Outcome.UNKNOWN
    assert f"runs are kept in {folder}" in result.output


def test_a_refused_command_line_leaves_no_folder(invoke, tmp_path):
    (tmp_path / "old").write_text("no results\n")
    assert invoke("--kind", "blackout").exit_code == 2
    assert invoke("--resume", str(tmp_path / "old")).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(("found", "then"), [(signal.SIG_DFL, drill.leave), (signal.SIG_IGN, signal.SIG_IGN)])
def test_the_end_of_the_terminal_ends_a_drill_but_for_nohup(invoke, found, then):
    signal.signal(signal.SIGHUP, found)
    invoke(rounds=[one_round(0)])
    assert signal.getsignal(signal.SIGHUP) is then
