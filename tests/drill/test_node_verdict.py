import msgspec

from closeranks.drill.nodes.faults import NodeFault, NodeKind
from closeranks.drill.nodes.verdict import Applied, NodeRun, NodesEvidence, applied_twice, judge, two_coordinators
from closeranks.drill.verdict import Final, Outcome
from closeranks.events import Record, RunEnded, Stamp, TermBegan

FAULT = NodeFault(kind=NodeKind.NODE_KILL, node="n1", step=3)
FINALS = {0: Final(step=9, digest="d", local="")}


def record(event, epoch=0):
    stamp = Stamp(epoch=epoch, seq=0, node="n0", at_mono_s=0.0) if epoch else None
    return Record(seq=0, wall_s=0.0, mono_s=0.0, run="r", node="n0", term=1, event=event, stamp=stamp)


def run(outcome="completed", reason="all done", *, node="n0", finals=FINALS, exit_code=0, applied=()):
    ended = record(RunEnded(outcome=outcome, exit_code=exit_code, reason=reason))
    return NodeRun(
        node=node, ended_by_drill=False, exit_code=exit_code, records=(ended,), finals=finals, applied=applied
    )


def killed(node="n1"):
    return NodeRun(node=node, ended_by_drill=True, exit_code=-9, records=(), finals={}, applied=())


def judged(*runs, struck=(FAULT,), left=()):
    return judge((FAULT,), NodesEvidence(runs=(run(),)), NodesEvidence(runs=runs, struck=struck, left=left))


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
    other = judged(run(finals={0: Final(step=9, digest="x", local="")}))
    assert other.outcome is Outcome.BROKEN
    assert "ended otherwise" in other.reasons[0]
    assert judged(run(), left=("n1: python train.py",)).reasons == ("left behind: n1: python train.py",)


def test_a_fault_that_never_struck_leaves_the_drill_unknown():
    assert judged(run(), struck=()).outcome is Outcome.UNKNOWN


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


def test_a_job_that_was_started_anew_repeats_steps_and_terms_rightly():
    begins = record(TermBegan(term=1, members=(1,)), epoch=1)
    before = msgspec.structs.replace(killed("n0"), records=(begins,), applied=(applied(5, term=3),))
    again = run(applied=(applied(4, pid=21, began_s=9.0), applied(5, pid=21, began_s=9.5)))
    begun_again = record(TermBegan(term=1, members=(7,)), epoch=1)
    again = msgspec.structs.replace(again, job=2, records=(begun_again, *again.records))
    assert judged(before, again).outcome is Outcome.HELD
    assert judged(before, msgspec.structs.replace(again, job=1)).outcome is Outcome.BROKEN
