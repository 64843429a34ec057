import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.diagnose.labels import plain, read


@pytest.mark.parametrize(
    ("line", "text", "rank", "node"),
    [
        ("[rank3]: KeyError: 'x'", "KeyError: 'x'", 3, ""),
        ("[default5]:KeyError: 'x'", "KeyError: 'x'", 5, ""),
        ("12: KeyError: 'x'", "KeyError: 'x'", 12, ""),
        ("3: [rank7]: KeyError: 'x'", "KeyError: 'x'", 7, ""),
        ("(RayTrainWorker pid=4711, ip=10.0.0.7) KeyError: 'x'", "KeyError: 'x'", None, "10.0.0.7"),
        ("(train_fn pid=4711) KeyError: 'x'", "KeyError: 'x'", None, ""),
        ("[trainer4]:KeyError: 'x'", "KeyError: 'x'", 4, ""),
        ("2026-11-29T10:00:00.112233445Z stderr F KeyError: 'x'", "KeyError: 'x'", None, ""),
        ("trainer-0  | KeyError: 'x'", "KeyError: 'x'", None, ""),
        ("[pod/llm-3/trainer] KeyError: 'x'", "KeyError: 'x'", None, ""),
        ("Nov 29 10:00:00 node7 train.sh[1204]: KeyError: 'x'", "KeyError: 'x'", None, "node7"),
        ("Nov 29 10:00:00 node7 kernel: python[12]: segfault at 0", "python[12]: segfault at 0", None, "node7"),
        ("[10:00:01] KeyError: 'x'", "KeyError: 'x'", None, ""),
        ("[s3.2] KeyError: 'x'", "KeyError: 'x'", 3, ""),
        ("node7:99:120 [2] misc/socket.cc:49 NCCL WARN x", "misc/socket.cc:49 NCCL WARN x", None, "node7"),
        ("Nov 29 10:00:00 node7 kernel: [ 12.5] oom-kill:", "oom-kill:", None, "node7"),
        ("KeyError: 'x'", "KeyError: 'x'", None, ""),
        ("E1129 10:00:00.1 4711 torch/distributed/elastic/api.py:1002] failed", "failed", None, ""),
        ("[rank3]:[E1129 10:00:00.1 ProcessGroupNCCL.cpp:689] [Rank 3] Watchdog", "[Rank 3] Watchdog", 3, ""),
    ],
)
def test_prefixes_of_launchers_are_taken_off_and_tell_who_spoke(line, text, rank, node):
    said = read(line, 2026)
    assert (said.text, said.rank, said.node) == (text, rank, node)


@pytest.mark.parametrize(
    ("line", "at_s"),
    [
        ("2026-11-29 10:00:00,250 - train - INFO", 1795946400.25),
        ("2026-11-29T10:00:00.25Z x", 1795946400.25),
        ("2026-11-29T12:00:00.25+02:00 x", 1795946400.25),
        ("[rank3]:[E1129 10:00:00.250 ProcessGroupNCCL.cpp:689] x", 1795946400.25),
        ("Nov 29 10:00:00 node7 kernel: x", 1795946400.0),
        ("[Sun Nov 29 10:00:00 2026] x", 1795946400.0),
        ("2026-13-45 99:00:00 x", None),
        ("[8123.4] x", None),
        ("step 3 at 10:00:00", None),
    ],
)
def test_times_are_read_in_the_forms_of_loggers_and_kernels(line, at_s):
    assert read(line, 2026).at_s == at_s


def test_the_uptime_of_a_kernel_is_a_clock_of_its_own():
    assert read("[ 8123.4] NVRM: x", 2026).uptime_s == 8123.4


@given(st.binary(max_size=300), st.integers(1970, 2100))
def test_no_line_breaks_the_reading_and_none_keeps_a_control_character(data, year):
    text = plain(data)
    assert not any((ord(sign) < 32 and sign != "\t") or 127 <= ord(sign) < 160 for sign in text)
    read(text, year)
