from __future__ import annotations

import io
import threading

from closeranks.events import Account, IncidentOpened, Record
from closeranks.run.options import View
from closeranks.run.screen import Lines, Nothing, Screen, display_for


def record(event) -> Record:
    return Record(seq=0, wall_s=0.0, mono_s=0.0, run="r", node="n", term=1, event=event)


def test_lines_and_records_that_matter_are_shown_in_their_order():
    stream = io.StringIO()
    screen = Screen(Lines(stream))
    screen.say("[s0.1] hello")
    screen.record(record(Account(proc=1, at_mono_s=0.0, seconds={})))
    screen.record(record(IncidentOpened(incident=1, seats=(0,), summary="s0.1 was ended by SIGKILL")))
    screen.vitals({})
    screen.close()
    first, second = stream.getvalue().splitlines()
    assert first == "[s0.1] hello"
    assert "incident 1 opened: s0.1 was ended by SIGKILL" in second


def test_the_live_view_is_for_terminals_only():
    assert isinstance(display_for(View.AUTO, io.StringIO(), 1, 0), Lines)
    assert isinstance(display_for(View.LIVE, io.StringIO(), 1, 0), Lines)
    assert isinstance(display_for(View.NONE, io.StringIO(), 1, 0), Nothing)


class Terminal:
    """Accepts nothing until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.text = ""

    def write(self, text: str) -> None:
        self.released.wait(10)
        self.text += text

    def flush(self) -> None:
        return


def test_a_terminal_that_does_not_read_costs_lines_but_never_time():
    terminal = Terminal()
    screen = Screen(Lines(terminal))
    for number in range(25_000):
        screen.say(f"line {number}")
    screen.close(wait_s=0.05)
    terminal.released.set()
    screen.close()
    assert "lines were not shown" in terminal.text
