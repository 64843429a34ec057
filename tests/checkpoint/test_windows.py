from closeranks.checkpoint.rows import Rows
from closeranks.checkpoint.windows import windows


def run(at, length):
    return Rows(at, 1, length, length, 0, 1), memoryview(bytearray(length))


def test_windows_follow_each_other_without_gaps_and_the_last_one_is_what_is_left():
    assert [(at, length) for at, length, _ in windows(100, 125, (), 10)] == [(100, 10), (110, 10), (120, 5)]
    assert list(windows(100, 100, (), 10)) == []


def test_a_window_names_what_has_bytes_in_it_whatever_the_order_it_came_in():
    late, long, early, before = run(112, 3), run(105, 20), run(90, 11), run(0, 100)
    found = [wanted for _, _, wanted in windows(100, 125, (late, long, early, before), 10)]
    assert found == [(early, long), (long, late), (long,)]
