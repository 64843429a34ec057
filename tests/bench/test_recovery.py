import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import recovery

from closeranks.events import Phase, PhaseBegan, Record, StepClosed

KILLED = recovery.Line(step=5, pid=11, mono_s=10.0)


def log(*lines):
    return [recovery.Line(*line) for line in lines]


def test_the_first_new_step_is_one_that_all_ranks_complete_after_the_kill():
    survivor = log((5, 20, 9.9), (6, 20, 10.1), (7, 20, 10.9), (8, 20, 11.2))
    replaced = log((5, 11, 9.9), (7, 12, 11.0), (8, 12, 11.3))
    assert recovery.first_new_step([survivor, replaced], KILLED) == (7, 11.0)


def test_what_the_victim_still_wrote_does_not_count():
    survivor = log((5, 20, 9.9), (6, 20, 10.1))
    assert recovery.first_new_step([survivor, log((5, 11, 9.9), (6, 11, 10.0001))], KILLED) is None


def test_steps_made_again_are_lost():
    logs = [log((4, 20, 9.0), (5, 20, 9.9)), log((4, 11, 9.0), (5, 11, 9.8))]
    assert recovery.steps_lost(logs, KILLED, new_step=6) == 0
    assert recovery.steps_lost(logs, KILLED, new_step=0) == 6


def test_a_step_that_a_survivor_alone_had_completed_is_not_lost():
    logs = [log((5, 20, 9.9)), log((4, 11, 9.8))]
    assert recovery.steps_lost(logs, KILLED, new_step=5) == 0


def test_phases_cover_the_time_from_the_kill_to_the_close_of_the_first_new_step():
    events = [
        StepClosed(step=5, began_mono_s=9.8, closed_mono_s=10.05, losses=()),
        PhaseBegan(incident=1, phase=Phase.SEE, at_mono_s=10.02),
        PhaseBegan(incident=1, phase=Phase.REGROUP, at_mono_s=10.1),
        PhaseBegan(incident=1, phase=Phase.VERIFY, at_mono_s=10.3),
        StepClosed(step=6, began_mono_s=10.5, closed_mono_s=10.9, losses=()),
    ]
    records = tuple(
        Record(seq=i, wall_s=0.0, mono_s=0.0, run="r", node="n", term=1, event=event) for i, event in enumerate(events)
    )
    phases_s = recovery.phases_of(records, killed_s=10.0)
    assert phases_s == pytest.approx({"see": 0.1, "regroup": 0.2, "verify": 0.2, "step": 0.4})


def test_a_log_line_that_is_being_written_is_left_for_the_next_look(tmp_path):
    (tmp_path / "rank0").write_text("0 11 1.5\n1 11 1.6\n2 1")
    assert recovery.read_logs(tmp_path)[0] == log((0, 11, 1.5), (1, 11, 1.6))


def test_sides_that_never_came_back_leave_their_bars_unmet():
    bars = recovery.bars_of({"spare": [], "spare again": [], "fork": [], "torchrun": []})
    assert not any(bar.holds for bar in bars)
