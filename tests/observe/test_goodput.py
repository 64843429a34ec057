"""The ledger against runs whose every second is known."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.events import (
    Account,
    Category,
    CheckpointCommitted,
    IncidentClosed,
    IncidentOpened,
    Phase,
    PhaseBegan,
    ProcessExited,
    ProcessStarted,
    Record,
    RunEnded,
    RunStarted,
    StepClosed,
    StoreOpened,
    TermBegan,
)
from closeranks.observe.goodput import LedgerError, ledger_of
from closeranks.observe.history import EmptyJournalError, history_of
from closeranks.observe.html import page
from closeranks.observe.report import report_of
from closeranks.observe.stalls import GIVEN_UP, LOST_ATTEMPT, STALL_PARTS
from closeranks.observe.timeline import lanes
from synthetic_journal import MONO_S, Tape, eventful_run

TOLERANCE_S = 1e-6


def record(seq, at_s, event):
    return Record(seq=seq, wall_s=at_s, mono_s=MONO_S + at_s, run="r", node="n", term=1, event=event)


def journal(*timed):
    return [record(seq, at_s, event) for seq, (at_s, event) in enumerate(timed)]


def started(seats=1, spares=0):
    return RunStarted(command=("t.py",), seats=seats, spares=spares, pid=1, versions={})


def proc_started(proc, seat):
    return ProcessStarted(proc=proc, pid=proc, how="fork", seat=seat)


def account(proc, at_s, **seconds):
    return Account(proc=proc, at_mono_s=MONO_S + at_s, seconds={Category[name]: s for name, s in seconds.items()})


def assert_matches_truth(tape, ledger):
    for place in ledger.places:
        truth = {category: s for category, s in tape.truth[place.name].items() if s > 0}
        assert place.seconds == pytest.approx(truth, abs=TOLERANCE_S), place.name


def assert_adds_up(ledger):
    for place in ledger.places:
        assert sum(place.seconds.values()) == pytest.approx(place.wall_s, abs=5e-3)
        assert sum(place.stalled.values()) == pytest.approx(place.seconds.get(Category.STALLED, 0.0), abs=5e-3)
        assert set(place.stalled) <= set(STALL_PARTS)
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.place_s, abs=5e-2)


def test_every_second_of_an_eventful_run_has_its_true_category():
    tape = eventful_run().end()
    ledger = ledger_of(tape.records)
    assert_matches_truth(tape, ledger)
    assert_adds_up(ledger)
    assert len(ledger.places) == 4 + 3


def test_goodput_and_ettr_are_what_their_definitions_say():
    tape = eventful_run().end()
    ledger = ledger_of(tape.records)
    total_s = sum(sum(by.values()) for by in tape.truth.values())
    useful_s = sum(by[Category.USEFUL] for by in tape.truth.values())
    seat_s = sum(sum(by.values()) for name, by in tape.truth.items() if name.startswith("seat"))
    assert ledger.goodput == pytest.approx(useful_s / total_s)
    assert ledger.ettr == pytest.approx(useful_s / seat_s)
    assert ledger.durable_goodput == ledger.goodput


def test_stalls_are_split_into_the_lost_attempt_and_the_phases():
    ledger = ledger_of(eventful_run().end().records)
    assert {LOST_ATTEMPT, "see", "isolate", "interrupt", "regroup", "agree", "transfer", "verify"} <= set(
        ledger.stalled
    )
    assert ledger.stalled[LOST_ATTEMPT] == pytest.approx(4 * (3 * 0.04 + 1.5), abs=0.01)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    seats=st.integers(1, 5),
    spares=st.integers(0, 2),
    losses=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["kill", "freeze", "crash"]), st.integers(0, 3)), max_size=6
    ),
)
def test_the_ledger_is_true_for_any_sequence_of_losses(seed, seats, spares, losses):
    tape = Tape(seats, spares, seed)
    tape.begin()
    for seat, how, steps in losses:
        tape.train(steps)
        tape.spares_ready()
        tape.lose(seat % seats, how)
    ledger = ledger_of(tape.end().records)
    assert_matches_truth(tape, ledger)
    assert_adds_up(ledger)


@pytest.mark.parametrize("seed", range(5))
def test_a_journal_cut_anywhere_still_adds_up(seed):
    records = eventful_run(seed).end().records
    for size in random.Random(seed).sample(range(1, len(records) + 1), 20):
        assert_adds_up(ledger_of(records[:size]))


@pytest.mark.parametrize("seed", range(30))
def test_records_lost_in_damaged_lines_cost_precision_and_never_the_report(seed):
    chance = random.Random(seed)
    records = [record for record in eventful_run(seed).end().records if chance.random() > 0.1]
    report = report_of(records)
    assert page(records, report)
    assert sum(report.seconds.values()) == pytest.approx(report.place_s, abs=5e-2)


def test_a_run_that_still_goes_on_is_counted_to_its_last_record():
    tape = eventful_run()
    ledger = ledger_of(tape.records)
    assert not ledger.ended
    assert ledger.durable_goodput == 0.0
    assert ledger.wall_s == pytest.approx(tape.records[-1].mono_s - MONO_S)
    assert_adds_up(ledger)


def test_what_a_living_process_has_not_accounted_for_yet_is_unknown():
    ledger = ledger_of(
        journal(
            (0, started()), (0, proc_started(1, 0)), (5, account(1, 5, USEFUL=5)), (8, ProcessExited(proc=9, seat=None))
        )
    )
    assert ledger.seconds == {Category.USEFUL: 5, Category.UNKNOWN: 3}


def test_time_before_a_process_first_looked_at_the_clock_is_start_up():
    ledger = ledger_of(journal((0, started()), (1, proc_started(1, 0)), (5, account(1, 5, USEFUL=2))))
    assert ledger.seconds == {Category.START_UP: 3, Category.USEFUL: 2}


def test_a_process_may_begin_a_moment_before_the_record_of_its_start():
    ledger = ledger_of(journal((0, started()), (1.02, proc_started(1, 0)), (5, account(1, 5, START_UP=1, USEFUL=3))))
    assert ledger.seconds == {Category.START_UP: 2, Category.USEFUL: 3}


def test_an_empty_seat_between_two_processes_is_stalled():
    ledger = ledger_of(
        journal(
            (0, started()),
            (0, proc_started(1, 0)),
            (4, account(1, 4, USEFUL=4)),
            (4, ProcessExited(proc=1, seat=0, code=1)),
            (7, proc_started(2, 0)),
            (9, account(2, 9, START_UP=2)),
        )
    )
    # With no step known to be closed, the only attempt of the first process is lost as a whole.
    assert ledger.seconds == {Category.STALLED: 9}


def test_the_start_up_of_a_later_incarnation_is_a_stall():
    ledger = ledger_of(
        journal(
            (0, started()),
            (0, proc_started(1, 0)),
            (2, account(1, 2, START_UP=2)),
            (2, ProcessExited(proc=1, seat=0, code=1)),
            (2, proc_started(2, 0)),
            (5, account(2, 5, START_UP=1, USEFUL=2)),
        )
    )
    assert ledger.seconds == {Category.START_UP: 2, Category.STALLED: 1, Category.USEFUL: 2}


def test_a_successor_that_starts_before_its_frozen_predecessor_is_dead_counts_each_second_once():
    ledger = ledger_of(
        journal(
            (0, started()),
            (0, proc_started(1, 0)),
            (4, proc_started(2, 0)),
            (6, account(1, 6, USEFUL=6)),
            (6, ProcessExited(proc=1, seat=0, signal=9, asked=True)),
            (9, account(2, 9, START_UP=5)),
        )
    )
    assert ledger.seconds == {Category.STALLED: 9}


def test_a_script_without_the_library_has_no_goodput_rather_than_a_goodput_of_zero():
    ledger = ledger_of(
        journal(
            (0, started()),
            (1, proc_started(1, 0)),
            (5, ProcessExited(proc=1, seat=0, code=0)),
            (6, RunEnded(outcome="completed", exit_code=0, reason="done")),
        )
    )
    assert ledger.seconds == {Category.START_UP: 1, Category.UNKNOWN: 4, Category.SHUT_DOWN: 1}
    assert (ledger.goodput, ledger.durable_goodput, ledger.ettr) == (None, None, None)


def test_a_restarted_script_without_the_library_was_stalled_only_until_it_was_started_again():
    records = journal(
        (0, started()),
        (1, proc_started(1, 0)),
        (5, account(1, 5, UNKNOWN=4)),
        (5, ProcessExited(proc=1, seat=0, code=1)),
        (5, IncidentOpened(incident=1, seats=(0,), summary="s")),
        (5, PhaseBegan(incident=1, phase=Phase.REGROUP, at_mono_s=MONO_S + 5)),
        (6, proc_started(2, 0)),
        (16, account(2, 16, UNKNOWN=10)),
        (16, ProcessExited(proc=2, seat=0, code=0)),
        (16, IncidentClosed(incident=1, outcome="recovered", steps_lost=0, first_step_s=None)),
        (16, RunEnded(outcome="completed", exit_code=0, reason="r")),
    )
    ledger = ledger_of(records)
    assert ledger.seconds == pytest.approx({Category.START_UP: 1, Category.STALLED: 5, Category.UNKNOWN: 10})
    assert ledger.stalled == pytest.approx({LOST_ATTEMPT: 4, "regroup": 1})
    assert ledger.goodput is None
    (row,) = report_of(records).incidents
    assert row.phases == pytest.approx({LOST_ATTEMPT: 4, "regroup": 1})


def test_an_account_of_more_time_than_the_process_lived_is_refused():
    with pytest.raises(LedgerError, match="process 1 accounts for"):
        ledger_of(journal((0, started()), (1, proc_started(1, 0)), (3, account(1, 3, USEFUL=9))))


def test_steps_that_had_been_closed_before_are_repeated_not_useful():
    tape = Tape(seats=1, spares=0)
    tape.begin()
    tape.train(4)
    tape.end()
    records = [
        msgspec.structs.replace(r, event=msgspec.structs.replace(r.event, repeated=True))
        if type(r.event).__name__ == "StepClosed" and r.event.step < 2
        else r
        for r in tape.records
    ]
    ledger = ledger_of(records)
    spans = [r.event for r in records if type(r.event).__name__ == "StepClosed"]
    repeated_s = sum(s.closed_mono_s - s.began_mono_s for s in spans[:2])
    assert ledger.seconds[Category.REPEATED] == pytest.approx(repeated_s)
    assert_adds_up(ledger)


@pytest.mark.parametrize("steps_after", [1, 4, 9])
def test_after_a_cold_restart_steps_are_repeated_until_the_run_is_where_it_was(steps_after):
    tape = Tape(seats=3, spares=0)
    tape.begin()
    tape.train(5)
    tape.restart_cold()
    tape.train(steps_after)
    ledger = ledger_of(tape.end().records)
    assert_matches_truth(tape, ledger)
    assert_adds_up(ledger)
    assert ledger.seconds[Category.REPEATED] > 0


def test_an_attempt_is_lost_although_its_process_was_gone_before_the_first_sign():
    ledger = ledger_of(
        journal(
            (0, started()),
            (0, proc_started(1, 0)),
            (4, account(1, 4, START_UP=1, USEFUL=3)),
            (4, ProcessExited(proc=1, seat=0, signal=9)),
            (4.01, IncidentOpened(incident=1, seats=(0,), summary="s")),
            (4.02, PhaseBegan(incident=1, phase=Phase.SEE, at_mono_s=MONO_S + 4.01)),
            (6, RunEnded(outcome="failed", exit_code=1, reason="r")),
        )
    )
    (place,) = ledger.places
    assert place.stalled == pytest.approx({LOST_ATTEMPT: 3.01, "see": 1.99})


def test_a_stall_that_never_ended_is_split_by_phase_like_any_other():
    ledger = ledger_of(
        journal(
            (0, started(seats=2)),
            (0, proc_started(1, 0)),
            (0, proc_started(2, 1)),
            (1.5, StepClosed(step=0, began_mono_s=MONO_S + 1, closed_mono_s=MONO_S + 1.5, losses=(None, None))),
            (4, ProcessExited(proc=2, seat=1, code=1)),
            (4, IncidentOpened(incident=1, seats=(1,), summary="s")),
            (4, PhaseBegan(incident=1, phase=Phase.REGROUP, at_mono_s=MONO_S + 4)),
            (7, account(1, 7, START_UP=1, USEFUL=0.5, STALLED=5.5)),
            (7, ProcessExited(proc=1, seat=0, signal=15, asked=True)),
            (7, RunEnded(outcome="failed", exit_code=1, reason="r")),
        )
    )
    assert ledger.places[0].stalled == pytest.approx({LOST_ATTEMPT: 2.5, "regroup": 3.0})


def test_records_are_needed():
    with pytest.raises(EmptyJournalError, match="holds no record"):
        ledger_of([])


def test_only_steps_that_a_checkpoint_holds_are_durable():
    tape = Tape(2, 0)
    tape.begin()
    tape.say(StoreOpened(store="/ckpt", store_term=1, generations=0, newest_step=None))
    tape.train(6)
    ledger = ledger_of(tape.records)
    assert ledger.durable_goodput == 0.0
    tape.say(CheckpointCommitted(save=1, step=2, generation=2, written_bytes=1, reused_bytes=0, took_s=0.1))
    ledger = ledger_of(tape.records)
    assert ledger.durable_goodput == pytest.approx(ledger.goodput / 2, rel=0.1)


@pytest.mark.parametrize("ended", [True, False])
def test_a_seat_that_the_group_goes_on_without_is_stalled_until_the_end(ended):
    def killed(proc, seat):
        return ProcessExited(proc=proc, seat=seat, signal=9, asked=True)

    records = journal(
        (0.0, started(2)),
        (0.0, proc_started(1, 0)),
        (0.0, proc_started(2, 1)),
        (1.0, TermBegan(term=1, members=(1, 2), nodes=("n0", "n1"))),
        (4.0, IncidentOpened(incident=1, seats=(0,), summary="n0 was lost")),
        (4.0, killed(1, 0)),
        (5.0, killed(2, 1)),
        (5.0, proc_started(3, 0)),
        (6.0, TermBegan(term=2, members=(3,), nodes=("n1",))),
        (7.0, IncidentClosed(incident=1, outcome="recovered", steps_lost=2, first_step_s=3.0)),
        (20.0, StepClosed(step=9, began_mono_s=MONO_S + 19.0, closed_mono_s=MONO_S + 20.0, losses=(1.0,))),
        *([(20.0, RunEnded(outcome="completed", exit_code=0, reason="done"))] if ended else []),
    )
    ledger = ledger_of(records)
    assert_adds_up(ledger)
    given_up = ledger.places[1]
    assert given_up.stalled[GIVEN_UP] == pytest.approx(14.0)
    assert given_up.seconds[Category.STALLED] >= 14.0
    last = lanes(history_of(records))[1].segments[-1]
    assert (last.category, last.process, last.span.end_s - MONO_S) == (Category.STALLED, "", 20.0)
