"""Ranks that are lost in awkward moments: the job ends as if nothing had happened."""

from __future__ import annotations

import signal

import pytest

from closeranks.events import (
    Decided,
    Diagnosed,
    ErrorSeen,
    HookRan,
    IncidentClosed,
    IncidentOpened,
    RestorePlanned,
    Rung,
    StepClosed,
    TermBegan,
)

pytestmark = pytest.mark.process

FOUR = ("--nproc-per-node", "4")


def test_a_peer_that_is_gone_is_acted_on_while_the_others_sit_between_collectives(start, undisturbed):
    trial = start("idle", *FOUR, "--min-deadline", "120s")  # nobody is found for having sat too long
    for number, (step, seat) in enumerate([(4, 2), (8, 1)], start=1):  # in a labelled section, then without a label
        trial.wait_for(StepClosed, step=step)
        trial.strike(seat)
        trial.wait_for(Decided, incident=number)  # before the others are let go
        trial.let_go(f"go-{number}")
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert [event.seats for event in ended.events(IncidentOpened)] == [(2,), (1,)]
    assert ended.finals == undisturbed


def test_one_that_freezes_in_a_section_whose_length_nobody_knows_is_found_within_seconds(start):
    trial = start("idle", "--nproc-per-node", "2")
    trial.wait_for(StepClosed, step=4)
    trial.strike(1, signal.SIGSTOP)
    seen = trial.wait_for(ErrorSeen, within_s=30.0).event
    assert (seen.detector, seen.seat) == ("progress", 1)
    assert seen.detail.endswith("its control thread does not answer, it is idle")
    assert trial.wait_for(Diagnosed, incident=1).event.fault == "process frozen"
    trial.let_go("go-1")
    trial.let_go("go-2")
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert [event.seats for event in ended.events(IncidentOpened)] == [(1,)], "the other one sat idle as long"


def test_a_script_that_swallows_every_exception_recovers_all_the_same(start, undisturbed):
    trial = start("swallow", *FOUR, "--spares", "1", "--on-incident", 'echo "$CLOSERANKS_INCIDENT_EDGE" >> told')
    trial.wait_for(StepClosed, step=3)
    trial.strike(2)
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert ended.events(IncidentClosed)[0].outcome == "recovered"
    assert ended.finals == undisturbed
    assert [(event.edge, event.problem) for event in ended.events(HookRan)] == [("opened", ""), ("closed", "")]
    assert (trial.folder.parent / "told").read_text() == "opened\nclosed\n"


def test_a_second_loss_right_after_the_new_term_began_meets_nobody_of_the_old_one(start, undisturbed):
    trial = start("nothing", *FOUR)
    trial.wait_for(StepClosed, step=3)
    trial.strike(1)
    trial.wait_for(TermBegan, term=2)
    trial.strike(2)
    ended = trial.end()
    assert ended.code == 0, ended.output
    terms = [event.term for event in ended.events(TermBegan)]
    assert terms == sorted(set(terms))
    assert len(terms) >= 3
    assert all(event.rung is Rung.FORK for event in ended.events(Decided))
    assert ended.finals == undisturbed


def test_a_corrupt_survivor_is_outvoted_receives_and_never_gives(start, undisturbed):
    ended = start("corrupt", *FOUR).end()
    assert ended.code == 0, ended.output
    plan = ended.events(RestorePlanned)[-1]
    assert (plan.step, plan.donor, plan.receivers, plan.outvoted) == (6, 1, (0, 2), (0,))
    assert [event.seat for event in ended.events(ErrorSeen) if event.detector == "digest"] == [0]
    assert ended.finals == undisturbed


def test_a_collective_of_the_wrong_size_names_the_odd_seat_and_not_the_one_that_it_ended(start, undisturbed):
    ended = start("odd-size-once", *FOUR).end()
    assert ended.code == 0, ended.output
    assert ended.events(IncidentOpened)[0].seats == (1,)
    assert "seats [1] do what the others do not" in ended.output
    assert "allreduce of 512 bytes" in ended.output
    assert ended.finals == undisturbed


def test_a_collective_of_the_wrong_size_that_comes_again_stops_the_job_with_the_reason(start):
    ended = start("odd-size-always", "--nproc-per-node", "3").end()
    assert ended.code == 128 + signal.SIGABRT, ended.output
    assert "mismatched collective after step 5 came again" in ended.output.splitlines()[-2]
    assert [event.rung for event in ended.events(Decided)] == [Rung.REGROUP, Rung.FORK, Rung.STOP]
    assert ended.events(IncidentOpened)[0].seats == (1,)
