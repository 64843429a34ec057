import io

import pytest
from rich.console import Console

from closeranks.events import Decided, PhaseBegan, ProcessStarted, RunStarted, StepClosed
from closeranks.observe.goodput import ledger_of
from closeranks.observe.live import LiveDisplay, LiveView
from closeranks.observe.report import NBSP
from closeranks.signs import Doing, Reading
from synthetic_journal import MONO_S, Tape, eventful_run


def view_of(records, width=140, height=40):
    view = LiveView(Console(file=io.StringIO(), width=width, height=height), seats=4, spares=1)
    for record in records:
        view.feed(record)
    return view


def drawn(view, now_s):
    console = Console(file=io.StringIO(), width=140)
    console.print(view.render(now_s))
    return console.file.getvalue().replace(NBSP, " ")


def reading(**changes):
    fields = dict.fromkeys(Reading._fields, 0) | {"doing": Doing.BACKWARD, "loss": 2.5} | changes
    return Reading(**fields)


def test_the_view_shows_seats_steps_loss_and_goodput():
    tape = eventful_run().end()
    text = drawn(view_of(tape.records), tape.now_s)
    for wanted in ("s0.2", "s1.2", "s2.2", "s3.1", "step 78", "goodput", "completed"):
        assert wanted in text


def test_the_phases_of_an_open_incident_tick():
    tape = eventful_run()
    cut = max(i for i, r in enumerate(tape.records) if isinstance(r.event, PhaseBegan)) + 1
    view, last_s = view_of(tape.records[:cut]), tape.records[cut - 1].mono_s
    assert "incident 3" in drawn(view, last_s)
    assert "verify 0.25" in drawn(view, last_s + 0.25)
    assert "verify 0.75" in drawn(view, last_s + 0.75)


def test_a_decision_shows_the_rung_before_the_incident_is_closed():
    tape = eventful_run()
    cut = max(i for i, r in enumerate(tape.records) if isinstance(r.event, Decided)) + 1
    assert "process crashed  replace by a fork" in drawn(view_of(tape.records[:cut]), tape.now_s)


def test_closed_incidents_stay_with_their_time_to_the_first_new_step():
    tape = eventful_run()
    text = drawn(view_of(tape.records), tape.now_s)
    assert "0.64 s" in text
    assert text.count("recovered") >= 3


def test_vitals_say_what_a_seat_is_doing_and_for_how_long_it_has_not_moved():
    view = view_of(eventful_run().records)
    view.vitals({0: reading(step=77, moved_ns=int((MONO_S + 20) * 1e9)), 1: reading(loss=float("nan"))})
    assert "backward   " in drawn(view, MONO_S + 20.5)
    assert "backward for 7.0 s" in drawn(view, MONO_S + 27)


def test_goodput_of_the_view_is_near_that_of_the_ledger():
    tape = eventful_run().end()
    goodput = view_of(tape.records).goodput(tape.now_s + 60)
    assert goodput == pytest.approx(ledger_of(tape.records).goodput, abs=0.01)


def test_nothing_is_claimed_before_anything_was_measured():
    view = LiveView(Console(file=io.StringIO()), seats=2, spares=1)
    text = drawn(view, MONO_S)
    assert "not measured" in text
    assert "spare to come" in text


def test_hostile_texts_are_shown_as_text():
    view = view_of(eventful_run().records)
    view.say("[red]not markup[/oops] \x1b[2J")
    assert "[red]not markup[/oops]  [2J" in drawn(view, MONO_S + 20)


def test_without_a_terminal_every_record_that_matters_is_a_line():
    out = io.StringIO()
    tape = eventful_run().end()
    with LiveDisplay(LiveView(Console(file=out, width=80), seats=4, spares=1)) as display:
        for record in tape.records:
            display.feed(record)
            display.tick()
        display.say("[s3.2] hello")
    lines = out.getvalue().splitlines()
    assert any("incident 1 opened: seat 2: ended by signal 9" in line for line in lines)
    assert lines[-1] == "[s3.2] hello"
    assert not any("step 5 closed" in line for line in lines)
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_the_view_is_drawn_and_taken_away_again():
    out = io.StringIO()
    tape = Tape(seats=1, spares=0)
    tape.begin()
    console = Console(file=out, width=100, force_terminal=True, _environ={"TERM": "xterm"})
    with LiveDisplay(LiveView(console, seats=1, spares=0)) as display:
        for record in tape.records:
            display.feed(record)
        display.tick()
        assert "s0.1" in out.getvalue()


def test_of_a_run_that_has_ended_numbers_and_incidents_stay_on_the_screen():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, _environ={"TERM": "xterm"})
    with LiveDisplay(LiveView(console, seats=4, spares=1)) as display:
        for record in eventful_run().end().records:
            display.feed(record)
    farewell = out.getvalue()
    assert "step \x1b[0m\x1b[1m78" in farewell
    assert farewell.count("recovered") >= 3


def test_a_rehearsal_shows_neither_its_step_nor_its_loss():
    view = view_of(eventful_run().records)
    view.vitals({0: reading(step=5, loss=7.25, doing=Doing.RECOVERING)})
    text = drawn(view, MONO_S + 20)
    assert "7.2500" not in text
    assert "78" in next(line for line in text.splitlines() if line.startswith("s0.2"))


def test_a_survivor_that_waits_in_a_recovery_does_not_train():
    tape = eventful_run()
    cut = max(i for i, r in enumerate(tape.records) if isinstance(r.event, PhaseBegan)) + 1
    view = view_of(tape.records[:cut])
    view.vitals({0: reading(doing=Doing.RECOVERING), 2: reading(doing=Doing.WAITING), 3: reading()})
    rows = {line[:2]: line for line in drawn(view, tape.now_s).splitlines()}
    assert "stalled" in rows["s0"]
    assert "stalled" in rows["s2"]
    assert "training" in rows["s3"]


def test_where_rows_are_few_the_seats_in_trouble_are_shown_first():
    tape = Tape(seats=40, spares=0)
    started = RunStarted(command=("t.py",), seats=40, spares=0, pid=1, versions={})
    closed = StepClosed(step=3, began_mono_s=MONO_S, closed_mono_s=MONO_S + 1, losses=(1.0,) * 40)
    for event in (started, closed, ProcessStarted(proc=50, pid=50, how="fork", seat=33)):
        tape.say(event)
    view = view_of(tape.records, height=24)
    text = drawn(view, MONO_S + 2)
    assert "s33 p50" in text
    assert "more seats" in text
    assert len(text.splitlines()) < 24
