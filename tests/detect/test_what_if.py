from __future__ import annotations

import csv
import io
import json
import lzma
from pathlib import Path

import pytest

from closeranks.detect.what_if import Operation, Task, play, slowdown

DATA = Path(__file__).with_name("data")
RESULT = json.loads((DATA / "straggler_result_st.json").read_text())


@pytest.fixture(scope="module")
def trace():
    text = lzma.decompress((DATA / "straggler_trace_st.csv.xz").read_bytes()).decode()
    return [
        Operation(
            int(row["step"]),
            int(row["replica"]),
            int(row["stage"]),
            row["kind"],
            int(row["number"]),
            float(row["start_s"]),
            float(row["duration_s"]),
        )
        for row in csv.DictReader(io.StringIO(text))
    ]


def test_the_slowdown_of_trace_st_is_that_of_its_result_file(trace):
    assert len(trace) == 6784
    assert slowdown(trace) == pytest.approx(RESULT["blocking_slowdown"], rel=1e-3)


def test_the_last_stage_is_what_slows_trace_st(trace):
    alone = {stage: slowdown(trace, lambda op, stage=stage: op.stage == stage) for stage in range(4)}
    for stage, ratio in alone.items():
        assert ratio == pytest.approx(RESULT["blocking_decompose_by_stage"][str(stage)], rel=2e-3)
    assert max(alone, key=alone.get) == 3


def test_both_replicas_of_trace_st_are_slow_alike(trace):
    for replica in range(2):
        alone = slowdown(trace, lambda op, replica=replica: op.replica == replica)
        assert alone == pytest.approx(RESULT["blocking_decompose_by_dp_rank"][str(replica)], rel=2e-3)


def test_tasks_that_meet_start_with_the_last_of_them():
    ends_s = play([Task((), 1.0), Task((0,), 0.5, "all"), Task((), 0.5, "all"), Task((2,), 1.0)])
    assert ends_s == [1.0, 1.5, 1.5, 2.5]


@pytest.mark.parametrize("tasks", [[Task((1,), 1.0), Task((0,), 1.0)], [Task((1,), 1.0, "all"), Task((), 1.0, "all")]])
def test_tasks_that_wait_for_each_other_are_refused(tasks):
    with pytest.raises(ValueError, match="wait for each other"):
        play(tasks)
