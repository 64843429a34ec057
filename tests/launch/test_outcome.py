import pytest

from closeranks.launch.outcome import code_of_own_end, exit_code_of
from closeranks.run.options import RunOptions


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0, 0], 0),
        ([0, 255, 0], 0),  # a host was lost, the job was not
        ([0, 1], 0),  # the second was cut off from a job that completed
        ([7, 7, 143], 7),
        ([255, 7], 7),
        ([255, 255], 255),
        ([], 255),
        ([75, 7, 255, 75], 7),  # two nodes were given up; only the third has seen the end
        ([75, 0], 0),
        ([75, 255], 75),
    ],
)
def test_the_job_ended_as_those_say_who_saw_its_end(codes, expected):
    assert exit_code_of(codes) == expected


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ({"store": "/shared"}, 75),
        ({"rdzv_endpoint": "h:1", "node_rank": 1}, 75),
        ({"rdzv_endpoint": "h:1"}, 1),  # nobody may follow it: the job ends with this node
        ({"nnodes": 1}, 1),
    ],
)
def test_the_end_of_one_node_is_that_of_the_job_where_no_other_may_lead(where, code):
    assert code_of_own_end(RunOptions(**{"target": "t.py", "nnodes": 2, **where}), 1) == code
