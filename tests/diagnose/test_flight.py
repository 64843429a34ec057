import pytest
from tests.diagnose.logs import gather, traceback_of

from closeranks.diagnose.flight import RecordingError, compare, parse
from closeranks.diagnose.judge import judge


def entry(number, operation="gloo:all_reduce", sizes=((4,),), group="0", **fields):
    return {
        "collective_seq_id": number,
        "profiling_name": operation,
        "input_sizes": [list(size) for size in sizes],
        "process_group": [group, "default_pg"],
        "state": "scheduled",
        "retired": True,
        "is_p2p": False,
        **fields,
    }


def recording(rank, entries, ranks="[0, 1, 2]", newest=None):
    newest = (
        max((item["collective_seq_id"] for item in entries if item["process_group"][0] == "0"), default=0)
        if newest is None
        else newest
    )
    status = {"0": {"last_enqueued_collective": str(newest), "last_completed_collective": "0"}}
    data = {"entries": entries, "pg_config": {"": {"ranks": ranks}}, "pg_status": status}
    return parse(data, rank, f"dump{rank}")


def waiting(number):
    return [*(entry(n) for n in range(1, number)), entry(number, retired=False)]


def test_the_rank_that_did_not_enter_what_others_wait_for_is_named():
    found = compare([recording(0, waiting(5)), recording(1, [entry(n) for n in range(1, 5)]), recording(2, waiting(5))])
    assert [(item.unit.rank, item.sequence, item.fault) for item in found] == [(1, 4, "collective timeout")]
    assert judge(found).culprit.rank == 1


def test_another_operation_at_the_same_number_is_a_mismatch_of_the_minority():
    odd = [*(entry(n) for n in range(1, 5)), entry(5, "gloo:barrier", ())]
    found = compare([recording(0, waiting(5)), recording(1, odd), recording(2, waiting(5))])
    verdict = judge(found)
    assert (verdict.fault, verdict.culprit.rank) == ("mismatched collective", 1)
    assert "rank 1 called barrier" in verdict.proof[0].text


def test_another_size_is_a_mismatch_only_where_sizes_must_agree():
    def last(operation):
        sides = [waiting(2) for _ in range(3)]
        sides[2][-1] = entry(2, operation, ((9,),))
        sides[0][-1] = sides[1][-1] = entry(2, operation)
        return compare([recording(rank, side) for rank, side in enumerate(sides)])

    assert [item.unit.rank for item in last("nccl:all_reduce")] == [2]
    assert last("nccl:all_to_all") == ()


def test_between_two_ranks_nobody_is_in_the_minority():
    found = compare([recording(0, [entry(1)], "[0, 1]"), recording(1, [entry(1, "gloo:barrier", ())], "[0, 1]")])
    assert [item.unit.rank for item in found] == [None]


def test_a_wrapped_buffer_is_no_loss():
    late = [entry(n) for n in range(90, 101)]
    assert compare([recording(0, late), recording(1, [entry(n) for n in range(1, 101)], "[0, 1]")]) == ()
    emptied = recording(1, [], "[0, 1]", newest=100)
    assert compare([recording(0, late, "[0, 1]"), emptied]) == ()


def test_a_rank_without_a_recording_is_only_suspected():
    found = compare([recording(0, waiting(5)), recording(2, waiting(5))])
    assert [(item.rule, item.unit.rank) for item in found] == [("recording-missing", 1)]
    assert judge(found).confidence == 0.5


def test_the_missing_ranks_own_words_say_what_the_recording_cannot():
    found = compare([recording(0, waiting(5)), recording(1, [entry(n) for n in range(1, 5)]), recording(2, waiting(5))])
    logs = gather(
        (traceback_of("KeyError: 'label'"), {"rank": 1}), (traceback_of("RuntimeError: cannot go on"), {"rank": 0})
    )
    verdict = judge((*logs, *found))
    assert (verdict.fault, verdict.culprit.rank) == ("process crashed", 1)


def test_groups_are_compared_by_themselves():
    sides = [[entry(1), entry(7, group="3")], [entry(1), entry(7, group="3")], [entry(1)]]
    assert compare([recording(rank, side) for rank, side in enumerate(sides)]) == ()


@pytest.mark.parametrize(
    "data", [{}, {"entries": 3}, {"entries": [3]}, {"entries": [{}]}, {"entries": [{"collective_seq_id": "x"}]}]
)
def test_what_is_no_recording_is_refused(data):
    with pytest.raises(RecordingError):
        parse(data, 0, "dump")
