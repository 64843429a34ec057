import pytest

from closeranks.events import IncidentClosed, IncidentWidened, Phase, Rung
from closeranks.observe.incidents import OPEN, incidents_of
from closeranks.observe.stalls import LOST_ATTEMPT
from synthetic_journal import TRACEBACK, Tape, eventful_run


def test_each_incident_has_a_row_with_its_fault_rung_and_outcome():
    rows = incidents_of(eventful_run().end().records)
    assert [(row.incident, row.seats, row.fault, row.outcome) for row in rows] == [
        (1, (2,), "process killed", "recovered"),
        (2, (0,), "process frozen", "recovered"),
        (3, (1,), "process crashed", "recovered"),
    ]
    assert [[taken.rung for taken in row.rungs] for row in rows] == [[Rung.SPARE], [Rung.SPARE], [Rung.FORK]]
    assert [row.steps_lost for row in rows] == [0, 0, 0]


def test_the_phases_of_an_incident_add_up_to_the_time_it_took():
    for row in incidents_of(eventful_run().end().records):
        assert list(row.phases) == [LOST_ATTEMPT, *(phase.value for phase in Phase)]
        recovery_s = sum(s for part, s in row.phases.items() if part != LOST_ATTEMPT)
        assert recovery_s == pytest.approx(row.took_s)
        assert row.first_step_s == pytest.approx(row.took_s)
        assert row.normal_s > row.first_step_s


def test_the_error_of_a_crash_and_the_stack_of_a_frozen_process_belong_to_their_incidents():
    killed, frozen, crashed = incidents_of(eventful_run().end().records)
    assert (killed.crashes, killed.stacks) == ((), ())
    assert [(stack.process, stack.path) for stack in frozen.stacks] == [("s0.1", "stacks/p1.txt")]
    assert [(crash.process, crash.where, crash.traceback) for crash in crashed.crashes] == [
        ("s1.1", "train.py:31", TRACEBACK)
    ]


def test_an_incident_that_was_never_closed_is_open_and_has_no_times_yet():
    records = eventful_run().records
    cut = next(i for i, record in enumerate(records) if isinstance(record.event, IncidentClosed))
    (row,) = incidents_of(records[:cut])
    assert (row.outcome, row.first_step_s, row.normal_s, row.steps_lost) == (OPEN, None, None, None)
    assert row.took_s > 0


def test_a_further_loss_widens_the_row_instead_of_adding_one():
    tape = Tape(seats=4)
    tape.begin()
    tape.train(3)
    tape.lose(1)
    tape.records = tape.records[:-5]
    tape.say(IncidentWidened(incident=1, seats=(3, 1), summary="seat 3: ended by signal 9"))
    (row,) = incidents_of(tape.records)
    assert row.seats == (1, 3)
    assert row.summary == "seat 1: ended by signal 9; then seat 3: ended by signal 9"


def test_the_attempt_of_a_lost_process_counts_where_nobody_survived():
    tape = Tape(seats=1, spares=0)
    tape.begin()
    tape.train(3)
    tape.lose(0, into_attempt_s=0.07)
    (row,) = incidents_of(tape.records)
    assert row.phases[LOST_ATTEMPT] == pytest.approx(0.07, abs=0.001)


def test_a_run_without_trouble_has_no_rows():
    tape = Tape()
    tape.begin()
    assert incidents_of(tape.end().records) == ()
