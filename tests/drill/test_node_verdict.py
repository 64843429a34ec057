import msgspec

from closeranks.drill.nodes.faults import NodeFault, NodeKind
from closeranks.drill.nodes.verdict import (
    Applied,
    NodeRun,
    NodesEvidence,
    applied_twice,
    judge,
    stops,
    two_coordinators,
    went_on,
)
from closeranks.drill.verdict import Final, Outcome
from closeranks.events import CheckpointCommitted, Record, RunEnded, Stamp, TermBegan

FAULT = NodeFault(kind=NodeKind.NODE_KILL, node="n1", step=3)
FINALS = {0: Final(step=9, digest="d", local="")}


OTHER = {0: Final(step=9, digest="x", local="")}
CUT = NodeFault(kind=NodeKind.CUT_OFF, node="n2", step=3)
LEAVE = NodeFault(kind=NodeKind.LEAVE, node="n1", step=3)


def record(event, epoch=0, node="n0", term=1):
    stamp = Stamp(epoch=epoch, seq=0, node="n0", at_mono_s=0.0) if epoch else None
    return Record(seq=0, wall_s=0.0, mono_s=0.0, run="r", node=node, term=term, event=event, stamp=stamp)


def run(outcome="completed", reason="all done", *, node="n0", finals=FINALS, exit_code=0, applied=()):
    ended = record(RunEnded(outcome=outcome, exit_code=exit_code, reason=reason))
    return NodeRun(
        node=node, ended_by_drill=False, exit_code=exit_code, records=(ended,), finals=finals, applied=applied
    )


def killed(node="n1"):
    return NodeRun(node=node, ended_by_drill=True, exit_code=-9, records=(), finals={}, applied=())


def stopped(node="n2", reason="why", exit_code=1):
    return run("failed", reason, node=node, finals={}, exit_code=exit_code)


def left(exit_code=143, outcome="stopped", reason="told to leave", journal_code=None):
    journal_code = exit_code if journal_code is None else journal_code
    ended = record(RunEnded(outcome=outcome, exit_code=journal_code, reason=reason))
    return msgspec.structs.replace(killed(), exit_code=exit_code, records=(ended,), told_to_leave=True)


def committed(generation, step, node, term=1):
    event = CheckpointCommitted(save=1, step=step, generation=generation, written_bytes=1, reused_bytes=0, took_s=0.1)
    return record(event, node=node, term=term)


def judged(*runs, struck=(FAULT,), left=(), undisturbed=None):
    drilled = NodesEvidence(runs=runs, struck=struck, left=left)
    return judge((FAULT,), NodesEvidence(runs=(undisturbed or run(),)), drilled)


def applied(step, pid=11, term=1, began_s=0.0):
    return Applied(seat=0, step=step, term=term, pid=pid, began_s=began_s)


def test_a_run_that_completes_like_the_undisturbed_one_has_held():
    assert judged(run(), killed()).outcome is Outcome.HELD


def test_a_reasoned_stop_holds_and_a_silent_one_does_not():
    assert judged(run("failed", "no node is left", finals={}, exit_code=1), killed()).outcome is Outcome.HELD
    assert judged(run("failed", "", finals={}, exit_code=1), killed()).outcome is Outcome.BROKEN


def test_a_node_that_does_not_end_or_says_nothing_breaks_the_drill():
    assert judged(run(exit_code=None)).reasons == ("n0 did not end in time",)
    silent = NodeRun(node="n2", ended_by_drill=False, exit_code=137, records=(), finals={}, applied=())
    assert judged(run(), silent).reasons == ("n2 ended with 137 and no word about it in its journal",)


def test_other_weights_break_the_drill_and_so_does_a_process_that_is_left():
    other = judged(run(finals=OTHER))
    assert other.outcome is Outcome.BROKEN
    assert "ended otherwise" in other.reasons[0]
    assert judged(run(), left=("n1: python train.py",)).reasons == ("left behind: n1: python train.py",)


def test_other_weights_are_found_though_another_node_stopped():
    """Nothing was compared as soon as one node said otherwise, and its reason was enough."""
    verdict = judged(run(finals=OTHER), stopped(), struck=(CUT,))
    assert verdict.outcome is Outcome.BROKEN
    assert "seat 0 ended otherwise" in verdict.reasons[0]
    assert judged(run(finals=OTHER), stopped()).outcome is Outcome.BROKEN


def test_a_run_completes_without_a_node_only_if_that_one_came_back_or_may_have_been_out_of_reach():
    assert judged(run(), killed(), stopped()).reasons == (
        "n2 ended as failed (why), though the run completed without it",
    )
    assert judged(run(), stopped(), struck=(CUT,)).outcome is Outcome.HELD
    assert judged(run(), killed("n2"), stopped()).outcome is Outcome.HELD
    frozen = NodeFault(kind=NodeKind.SUPERVISOR_FREEZE, node="n2", step=3)
    assert judged(run(), stopped(), struck=(frozen,)).outcome is Outcome.HELD
    assert judged(run(), stopped("n0"), struck=(frozen,)).outcome is Outcome.BROKEN


def test_a_defect_is_no_reason_to_stop():
    """A drill in which each node failed with the same KeyError had held: all had words for it."""
    defects = [stopped(node, "defect in the supervisor: KeyError: 3") for node in ("n0", "n1")]
    assert judged(*defects).reasons == tuple(
        f"{node} ended by a defect in the supervisor: KeyError: 3" for node in ("n0", "n1")
    )


def test_a_node_that_exits_otherwise_than_its_journal_says_breaks_the_drill():
    undecided = msgspec.structs.replace(run(), exit_code=1)
    assert judged(undecided).reasons == ("n0 ended with 1, and with 0 according to its journal",)


def test_a_node_that_was_told_to_leave_ends_with_143_or_as_the_others_do():
    """Whatever it ended with, it was taken for ended by the drill."""
    assert judged(run(), left(), struck=(LEAVE,)).outcome is Outcome.HELD
    assert judged(run(), left(0, "completed", "all done"), struck=(LEAVE,)).outcome is Outcome.HELD
    assert judged(run(), left(143, "completed", "all done", 0), struck=(LEAVE,)).outcome is Outcome.HELD
    assert judged(run(), left(1, "failed", "why"), struck=(LEAVE,)).reasons == (
        "n1 was told to leave and ended with 1 (why), expected 143 or the end of the others",
    )
    assert judged(stopped("n0"), left(1, "failed", "why"), struck=(LEAVE,)).outcome is Outcome.HELD
    silent = msgspec.structs.replace(killed(), told_to_leave=True)
    assert judged(run(), silent, struck=(LEAVE,)).reasons == ("n1 ended with -9 and no word about it in its journal",)


def test_a_node_that_was_cut_off_while_it_left_may_end_for_another_reason():
    cut = msgspec.structs.replace(CUT, node="n1")
    assert judged(run(), left(1, "failed", "out of reach"), struck=(LEAVE, cut)).outcome is Outcome.HELD


def test_why_nodes_stopped_is_told_once_for_those_that_agree():
    evidence = NodesEvidence(runs=(run(), stopped("n2"), stopped("n1"), stopped("n3", "else"), killed()))
    assert stops(evidence) == ("n1, n2: why", "n3: else")
    assert went_on(evidence)
    assert not went_on(NodesEvidence(runs=(stopped(), msgspec.structs.replace(run(), ended_by_drill=True))))


def test_a_drill_of_which_nothing_struck_is_unknown():
    assert judged(run(), struck=()).outcome is Outcome.UNKNOWN


def test_a_drill_of_two_faults_is_held_against_the_one_that_struck():
    pair = (FAULT, CUT)
    undisturbed = NodesEvidence(runs=(run(),))
    assert judge(pair, undisturbed, NodesEvidence(runs=(run(),), struck=(CUT,))).outcome is Outcome.HELD
    assert judge(pair, undisturbed, NodesEvidence(runs=(run(),))).outcome is Outcome.UNKNOWN


def test_without_an_undisturbed_run_nothing_holds_however_many_faults_struck():
    """Of two faults that had both struck, the one unknown thing that was left did not count."""
    faults, failed = (FAULT, CUT), NodesEvidence(runs=(stopped("n0"),))
    verdict = judge(faults, failed, NodesEvidence(runs=(run(),), struck=faults))
    assert verdict.reasons == ("nothing to compare with: the undisturbed run did not complete",)
    assert verdict.outcome is Outcome.UNKNOWN


def test_a_successor_may_apply_a_step_again_under_a_newer_term():
    assert applied_twice([applied(5), applied(5, pid=12, term=2, began_s=1.0), applied(6, 12, 2, 2.0)]) == []


def test_an_incarnation_that_applies_after_its_successor_is_found():
    found = applied_twice([applied(5), applied(5, 12, 2, 1.0), applied(6, 11, 1, 1.5)])
    assert found == [
        "seat 0: process 11 applied step 6 under term 1 0.500 s after process 12 applied step 5 under term 2"
    ]


def test_a_step_that_is_applied_twice_under_one_term_is_found():
    assert applied_twice([applied(5), applied(5, began_s=1.0)]) == ["seat 0 applied step 5 2 times under term 1"]


def test_one_term_of_two_coordinators_is_found_and_the_same_record_on_two_nodes_is_not():
    one = record(TermBegan(term=2, members=(1, 2)), epoch=1)
    assert two_coordinators([one, one]) == []
    assert two_coordinators([one, record(TermBegan(term=2, members=(1, 3)), epoch=1)])
    assert two_coordinators([one, record(TermBegan(term=2, members=(1, 2)), epoch=2)])


def test_a_generation_that_two_nodes_committed_is_found_though_their_records_bear_no_stamp():
    """The epoch of a commit was that of its stamp, which it never has: two coordinators looked like one."""
    assert two_coordinators([committed(7, 20, "n0"), committed(8, 30, "n1", term=2)]) == []
    assert two_coordinators([committed(7, 20, "n0"), committed(7, 20, "n1", term=2)]) == [
        "generation 7 was committed in several ways: [(20, 'n0'), (20, 'n1')]"
    ]
    assert two_coordinators([committed(7, 20, "n0"), committed(7, 30, "n0")])


def test_a_job_that_was_started_anew_repeats_steps_and_terms_rightly():
    begins = record(TermBegan(term=1, members=(1,)), epoch=1)
    before = msgspec.structs.replace(killed("n0"), records=(begins,), applied=(applied(5, term=3),))
    again = run(applied=(applied(4, pid=21, began_s=9.0), applied(5, pid=21, began_s=9.5)))
    begun_again = record(TermBegan(term=1, members=(7,)), epoch=1)
    again = msgspec.structs.replace(again, job=2, records=(begun_again, *again.records))
    assert judged(before, again).outcome is Outcome.HELD
    assert judged(before, msgspec.structs.replace(again, job=1)).outcome is Outcome.BROKEN
