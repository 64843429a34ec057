from __future__ import annotations

from closeranks.run.stacks import summarize

FAULTHANDLER = """\
Thread 0x00007f12 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f34 (most recent call first):
  File "/home/u/train.py", line 41 in stuck
  File "/home/u/train.py", line 50 in <module>
"""
TRACEBACK = """\
thread MainThread
  File "/home/u/train.py", line 50, in <module>
    stuck()
  File "/home/u/model.py", line 7, in stuck
    wait()

thread control
  File "/usr/lib/python3.11/threading.py", line 331, in wait
"""


def test_the_innermost_frame_of_the_main_thread_is_named_in_either_order():
    assert summarize(FAULTHANDLER, "") == "train.py:41 in stuck"
    assert summarize(TRACEBACK, "") == "model.py:7 in stuck"


def test_without_frames_the_kernels_view_is_told():
    assert summarize("", "Name: python\nState:\tT (stopped)\n") == "no frames, process state T (stopped)"
    assert summarize("", "") == "nothing is known"
