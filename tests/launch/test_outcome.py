import pytest

from closeranks.launch.outcome import exit_code_of


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
    ],
)
def test_the_job_ended_as_those_say_who_saw_its_end(codes, expected):
    assert exit_code_of(codes) == expected
