import random

import msgspec
import pytest

from closeranks.events import (
    CoordinatorBegan,
    IncidentOpened,
    NodeAccepted,
    NodeStarted,
    ProcessStarted,
    RunEnded,
    RunStarted,
    StepClosed,
)
from closeranks.observe.goodput import ledger_of
from closeranks.observe.history import history_of
from closeranks.observe.incidents import incidents_of
from closeranks.observe.merge import MixedRunsError, NodeJournal, merge
from closeranks.observe.nodes import nodes_of
from closeranks.observe.unrecorded import UNRECORDED
from synthetic_journal import MONO_S, Tape, eventful_run
from synthetic_nodes import Node, lose_node, split

OF_NODES = (NodeStarted, CoordinatorBegan, NodeAccepted)
WAY_S = 2e-3  # a message's way is not known, so times agree as far as it is short


def four_nodes(seed=0):
    """Booted days apart, wall clocks hours apart, quartz as good as quartz is."""
    numbers = random.Random(seed)
    return [
        Node(
            f"n{rank}",
            seats,
            base_s=numbers.uniform(10, 500_000),
            drift=numbers.uniform(-6e-5, 6e-5),
            wall_error_s=numbers.uniform(-9000, 9000),
        )
        for rank, seats in enumerate(((0, 1), (2,), (3,), ()))
    ]


def of_kind(records, kind):
    return [record.event for record in records if isinstance(record.event, kind)]


def assert_accounts_for_all(places, truth, tolerance_s):
    for place in places:
        wanted = {category: seconds for category, seconds in truth[place.name].items() if seconds > 0}
        assert place.seconds == pytest.approx(wanted, abs=tolerance_s), place.name
        assert sum(place.seconds.values()) == pytest.approx(place.wall_s, abs=5e-3)


@pytest.mark.parametrize("seed", range(4))
def test_several_journals_tell_what_one_would_have_told(seed):
    tape = eventful_run(seed).end()
    merged = merge(split(tape.records, four_nodes(seed), seed=seed))
    assert merged.problems == ()
    told = [record for record in merged.records if not isinstance(record.event, OF_NODES)]
    assert len(told) == len(tape.records)
    shift_s = told[0].mono_s - tape.records[0].mono_s
    for kind in {type(record.event) for record in tape.records}:
        mine = [record.mono_s - shift_s for record in told if isinstance(record.event, kind)]
        truth = [record.mono_s for record in tape.records if isinstance(record.event, kind)]
        assert mine == pytest.approx(truth, abs=0.035 if kind is StepClosed else 10 * WAY_S), kind
    assert [step.losses for step in of_kind(told, StepClosed)] == [
        step.losses for step in of_kind(tape.records, StepClosed)
    ]
    assert_accounts_for_all(ledger_of(merged.records).places, tape.truth, 10 * WAY_S)


def test_incidents_are_those_of_one_journal():
    tape = eventful_run().end()
    merged = incidents_of(merge(split(tape.records, four_nodes())).records)
    for mine, truth in zip(merged, incidents_of(tape.records), strict=True):
        assert (mine.summary, mine.outcome, mine.rungs, mine.steps_lost) == (
            truth.summary,
            truth.outcome,
            truth.rungs,
            truth.steps_lost,
        )
        assert mine.phases == pytest.approx(truth.phases, abs=10 * WAY_S)


def test_the_order_of_the_journals_does_not_matter():
    journals = split(eventful_run().end().records, four_nodes())
    there, back = merge(journals), merge(journals[::-1])
    assert [type(record.event) for record in there.records] == [type(record.event) for record in back.records]


def test_no_node_hears_of_a_decision_before_it_was_made():
    merged = merge(split(eventful_run().end().records, four_nodes()))
    for journal, clock in zip(merged.journals, merged.clocks.journals, strict=True):
        for record in journal.records:
            if record.stamp is not None:
                made_s = merged.clocks.epochs[record.stamp.epoch].job_s(record.stamp.at_mono_s)
                assert clock.job_s(record.mono_s) >= made_s - 1e-4


def test_two_clocks_that_drift_apart_for_a_day_still_add_up():
    nodes = four_nodes()
    nodes[0].drift = 0.0  # job time is its clock, or another's: a day of one is no day of the other
    tape = Tape(seats=4, spares=1)
    tape.begin()
    for _ in range(24):
        tape.train(3, step_s=1150.0)
        tape.spares_ready()
        tape.lose(1, "kill")
    merged = merge(split(tape.end().records, nodes))
    assert_accounts_for_all(ledger_of(merged.records).places, tape.truth, 0.1)


# --- coordinators -----------------------------------------------------------------------------------------------


def two_coordinators():
    tape = Tape(seats=4, spares=1)
    tape.begin()
    tape.train(20)
    tape.spares_ready()
    taken_over_s = tape.now_s
    tape.train(20)
    tape.lose(3, "kill")
    tape.train(10)
    return tape.end(), taken_over_s


def test_a_takeover_is_seen_and_costs_no_decision():
    tape, taken_over_s = two_coordinators()
    merged = merge(split(tape.records, four_nodes(), leaders=(("n0", 0.0), ("n2", taken_over_s))))
    assert merged.problems == ()
    assert_accounts_for_all(ledger_of(merged.records).places, tape.truth, 10 * WAY_S)
    first, second = nodes_of(merged).coordinators
    assert (first.node, first.reason, second.node, second.epoch) == ("n0", "the first", "n2", 2)
    assert second.reason == "the one before was silent"
    assert second.at_s == pytest.approx(taken_over_s - MONO_S, abs=0.15)


def test_a_node_that_was_cut_off_misses_decisions_and_nothing_is_lost():
    tape = eventful_run().end()
    nodes = four_nodes()
    at_s = next(record.mono_s for record in tape.records if isinstance(record.event, IncidentOpened))
    nodes[1].cut_s = (at_s - 0.001, at_s + 0.05)
    merged = merge(split(tape.records, nodes))
    assert merged.problems == ()
    missed = {row.node: row.decisions_missed for row in nodes_of(merged).rows}
    assert missed.pop("n1") > 3
    assert set(missed.values()) == {0}
    assert_accounts_for_all(ledger_of(merged.records).places, tape.truth, 10 * WAY_S)


def test_decisions_that_nobody_at_hand_heard_are_counted():
    tape = eventful_run().end()
    nodes = four_nodes()
    at_s = next(record.mono_s for record in tape.records if isinstance(record.event, IncidentOpened))
    for node in nodes[1:]:
        node.cut_s = (at_s - 0.001, at_s + 0.001)
    merged = merge(split(tape.records, nodes)[1:])
    assert any("of the coordinator on n0 (epoch 1) are in no journal at hand" in text for text in merged.problems)


def test_journals_that_disagree_about_a_decision_are_told():
    journals = split(eventful_run().end().records, four_nodes())
    index, record = next(item for item in enumerate(journals[1].records) if isinstance(item[1].event, IncidentOpened))
    forged = msgspec.structs.replace(record, event=msgspec.structs.replace(record.event, summary="something else"))
    records = (*journals[1].records[:index], forged, *journals[1].records[index + 1 :])
    journals[1] = msgspec.structs.replace(journals[1], records=records)
    (problem,) = merge(journals).problems
    assert "IncidentOpened in the journal of n0 and IncidentOpened in that of n1; the first counts" in problem


def test_the_end_is_what_the_newest_coordinator_said():
    journals = split(eventful_run().end().records, four_nodes())
    last = journals[2].records[-1]
    own = msgspec.structs.replace(
        last, event=RunEnded(outcome="stopped", exit_code=1, reason="cut off"), stamp=None, mono_s=last.mono_s + 9
    )
    journals[2] = msgspec.structs.replace(journals[2], records=(*journals[2].records, own))
    merged = merge(journals)
    (end,) = of_kind(merged.records, RunEnded)
    assert end.outcome == "completed"
    assert any("stopped, cut off" in text for row in nodes_of(merged).rows for text in row.events)


def with_own_ends(journals, **reasons):
    """No decision tells of the end: each node writes its own."""
    found = []
    for journal in journals:
        kept = tuple(record for record in journal.records if not isinstance(record.event, RunEnded))
        if journal.node in reasons:
            end = RunEnded(outcome="stopped", exit_code=1, reason=reasons[journal.node])
            kept += (msgspec.structs.replace(kept[-1], event=end, stamp=None, mono_s=kept[-1].mono_s + 0.1),)
        found.append(msgspec.structs.replace(journal, records=kept))
    return found


def test_without_a_decided_end_the_reason_is_that_of_the_coordinators_node():
    tape, nodes = run_that_lost_a_node()
    journals = with_own_ends(split(tape.records, nodes), n0="the true one", n1="told to", n3="told to")
    (end,) = of_kind(merge(journals).records, RunEnded)  # n2 died, and wrote none
    assert end.reason == "the true one"


def test_a_job_goes_on_while_a_node_that_belongs_to_it_has_not_ended():
    tape, nodes = run_that_lost_a_node()
    journals = with_own_ends(split(tape.records, nodes), n2="cut off", n0="told to", n3="told to")
    assert of_kind(merge(journals).records, RunEnded) == []


# --- what is missing --------------------------------------------------------------------------------------------


def run_that_lost_a_node():
    tape, nodes = Tape(seats=4, spares=1), four_nodes()
    tape.begin()
    tape.train(10)
    tape.spares_ready()
    tape.train(10)
    nodes[2].dies_s = lose_node(tape, 3, "n2")
    tape.train(10)
    return tape.end(), nodes


def test_a_node_that_died_leaves_no_second_without_owner():
    tape, nodes = run_that_lost_a_node()
    merged = merge(split(tape.records, nodes))
    assert merged.problems == ()
    assert_accounts_for_all(ledger_of(merged.records).places, tape.truth, 10 * WAY_S)
    assert len(of_kind(merged.records, StepClosed)) == len(of_kind(tape.records, StepClosed))
    view = nodes_of(merged)
    assert [(sitting.node, sitting.seat) for sitting in view.sittings if sitting.seat == 3] == [("n2", 3), ("n3", 3)]
    assert any("gone, its supervisor refused a connection" in text for text in view.rows[2].events)


def test_a_part_that_died_with_its_node_does_not_take_the_step_away():
    tape, nodes = run_that_lost_a_node()
    nodes[2].dies_s -= 0.06  # the last step is closed, and its part not written yet
    merged = merge(split(tape.records, nodes))
    steps = of_kind(merged.records, StepClosed)
    assert [step.step for step in steps] == [step.step for step in of_kind(tape.records, StepClosed)]
    assert [step.seats for step in steps if step.seats] == [(0, 1, 2)]
    assert merged.problems == ()


def test_an_attempt_from_which_nobody_went_on_is_no_step():
    tape = Tape(seats=4, spares=0)
    tape.begin()
    tape.train(5)
    nodes = four_nodes()
    nodes[1].dies_s = tape.now_s - 0.05
    merged = merge(split(tape.records, nodes))
    assert [step.step for step in of_kind(merged.records, StepClosed)] == [0, 1, 2, 3]


def test_a_journal_that_stopped_growing_is_said_to_tell_nothing_of_the_steps_behind():
    tape = eventful_run()
    nodes = four_nodes()
    nodes[1].dies_s = tape.records[0].mono_s + 3.0
    merged = merge(split(tape.records, nodes))
    assert [text for text in merged.problems if text.startswith("n1: its journal tells nothing of")]
    assert len(of_kind(merged.records, StepClosed)) >= len(of_kind(tape.records, StepClosed)) - 1


@pytest.mark.parametrize("absent", [(1,), (0, 2), (1, 2, 3), (0, 1, 2)])
def test_missing_journals_are_named_and_the_ledger_adds_up(absent):
    tape = eventful_run().end()
    journals = [j for number, j in enumerate(split(tape.records, four_nodes())) if number not in absent]
    merged = merge(journals)
    text = next(text for text in merged.problems if text.startswith("shown from the journals of"))
    assert f"{len(journals)} of 4 nodes; missing: {', '.join(f'n{number}' for number in absent)}" in text
    assert merged.absent == tuple(f"n{number}" for number in absent)
    book = ledger_of(merged.records)
    assert sum(book.seconds.values()) == pytest.approx(book.place_s, abs=0.03)
    rows = {row.node: row for row in nodes_of(merged).rows}
    assert [rows[f"n{number}"].journal for number in absent] == [""] * len(absent)
    started = [event for event in of_kind(merged.records, ProcessStarted) if event.how == UNRECORDED]
    assert started or absent == (3,)


def test_the_steps_of_one_node_alone_are_those_of_the_job():
    tape = eventful_run().end()
    merged = merge(split(tape.records, four_nodes())[:1])
    steps = of_kind(merged.records, StepClosed)
    assert len(steps) == len(of_kind(tape.records, StepClosed))
    assert {step.seats for step in steps} == {(0, 1), (1,)}  # seat 0 moved to the spare node
    assert history_of(merged.records).seats == 4


def test_a_node_that_shares_no_decision_is_placed_by_wall_time_whatever_one_jump_did_to_it():
    tape = eventful_run().end()
    nodes = four_nodes()
    for node in nodes:
        node.wall_error_s = 0.0
    nodes[2].cut_s = (0.0, float("inf"))
    journals = split(tape.records, nodes)
    jumped = [
        msgspec.structs.replace(record, wall_s=record.wall_s + (3600 if number < 5 else 0))
        for number, record in enumerate(journals[2].records)
    ]
    journals[2] = msgspec.structs.replace(journals[2], records=tuple(jumped))
    merged = merge(journals)
    (problem,) = merged.problems
    assert problem.startswith("n2: it shares no decision with the others")
    assert_accounts_for_all(ledger_of(merged.records).places, tape.truth, 0.05)


def test_an_empty_journal_among_others_is_a_value():
    journals = split(eventful_run().end().records, four_nodes())
    journals[3] = NodeJournal(source="n3/journal.jsonl", records=(), problems=("cannot be read: Permission denied",))
    problems = merge(journals).problems
    assert "n3/journal.jsonl: cannot be read: Permission denied" in problems
    assert any("missing: n3" in text for text in problems)


def test_a_node_that_comes_back_with_another_boot_has_two_rows():
    tape, nodes = run_that_lost_a_node()
    journals = split(tape.records, nodes)
    boot = NodeStarted(rank=2, nodes=4, slots=2, boot="another", hostname="host-2")
    heard = [r for r in journals[3].records if r.stamp is not None][-3:]
    again = [msgspec.structs.replace(heard[0], event=boot, stamp=None), *heard]
    back = tuple(msgspec.structs.replace(record, node="n2", mono_s=record.mono_s - 3) for record in again)
    merged = merge([*journals, NodeJournal(source="n2-again", records=back)])
    assert merged.problems == ()
    assert [(row.node, row.boot) for row in nodes_of(merged).rows][2:4] == [("n2", "boot-n2"), ("n2", "another")]
    assert_accounts_for_all(ledger_of(merged.records).places, tape.truth, 10 * WAY_S)


# --- what does not belong together ------------------------------------------------------------------------------


def test_a_run_on_one_node_is_left_as_it_is():
    records = tuple(eventful_run().end().records)
    merged = merge([NodeJournal(source="a", records=records, problems=("line 3 is damaged",))])
    assert merged.records == records
    assert (merged.clocks, merged.problems) == (None, ("line 3 is damaged",))
    assert nodes_of(merged).rows == ()


def test_journals_of_two_runs_are_refused():
    journals = split(eventful_run().end().records, four_nodes())
    other = tuple(msgspec.structs.replace(record, run="job-2") for record in journals[1].records)
    journals[1] = msgspec.structs.replace(journals[1], records=other)
    with pytest.raises(MixedRunsError, match=r"n1/journal.jsonl is of run job-2, n0/journal.jsonl of run job-1"):
        merge(journals)


def test_two_runs_of_one_node_each_are_refused():
    records = tuple(eventful_run().end().records)
    later = tuple(msgspec.structs.replace(record, wall_s=record.wall_s + 60) for record in records)
    with pytest.raises(MixedRunsError, match="a, b: these runs have one node each; give one of them"):
        merge([NodeJournal(source="a", records=records), NodeJournal(source="b", records=later)])


def test_a_journal_that_is_given_twice_counts_once():
    tape = eventful_run().end()
    journals = split(tape.records, four_nodes())
    merged = merge([*journals, msgspec.structs.replace(journals[0], source="copy")])
    assert len(of_kind(merged.records, RunStarted)) == 1
    assert merged.problems == ("n0: copy and n0/journal.jsonl are the same journal; the longer one counts",)
    assert_accounts_for_all(ledger_of(merged.records).places, tape.truth, 10 * WAY_S)
