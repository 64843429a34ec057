import itertools

import pytest
from tests.diagnose.logs import gather, traceback_of, verdict_on

from closeranks.diagnose.evidence import Evidence, Place, Source, Standing, Unit
from closeranks.diagnose.judge import judge

RESET = (
    "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:1258: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs\n"
)
WATCHDOG = (
    "[rank{rank}]:[E1129 10:10:00.0 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600031 milliseconds\n"
)
OOM = "Nov 29 10:00:03 node7 kernel: Out of memory: Killed process 4711 (python) total-vm:1kB\n"


def at(second, text):
    return f"2026-11-29 10:00:{second:02d},000 - ERROR - about to fail\n{text}"


def test_the_one_who_lost_nobody_is_the_culprit_among_victims():
    verdict = verdict_on(
        (RESET, {"rank": 0}), (traceback_of("ValueError: bad batch"), {"rank": 1}), (RESET, {"rank": 2})
    )
    assert (verdict.fault, verdict.culprit.rank) == ("process crashed", 1)


def test_victims_alone_convict_nobody():
    verdict = verdict_on((RESET, {"rank": 0}), (RESET, {"rank": 2}))
    assert verdict.fault == "unknown"
    assert "lost a peer" in verdict.against[0]


def test_the_first_failure_in_time_is_the_cause_of_later_ones():
    verdict = verdict_on(
        (at(9, traceback_of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")), {"rank": 0}),
        (at(3, traceback_of("KeyError: 'label'")), {"rank": 5}),
    )
    assert (verdict.fault, verdict.culprit.rank) == ("process crashed", 5)
    assert verdict.rejected[0].reason == "it came later by 6.0 s"


def test_within_the_skew_of_clocks_the_named_error_counts_more_than_the_unnamed():
    verdict = verdict_on(
        (at(4, traceback_of("OSError: [Errno 28] No space left on device")), {"rank": 0}),
        (at(3, traceback_of("KeyError: 'label'")), {"rank": 5}),
    )
    assert (verdict.fault, verdict.culprit.rank) == ("disk full", 0)


def test_equal_rivals_lower_the_confidence_and_are_named():
    logs = (
        (traceback_of("OSError: [Errno 28] No space left on device"), {"rank": 0}),
        (traceback_of("PermissionError: [Errno 13] Permission denied: '/x'"), {"rank": 1}),
    )
    alone, rivals = verdict_on(logs[0]), verdict_on(*logs)
    assert rivals.confidence < alone.confidence
    assert "permission denied at the same time" in rivals.against[0]


def test_exit_137_without_a_kernel_line_is_a_kill_by_anybody():
    verdict = verdict_on("srun: error: node7: task 3: Exited with exit code 137\n")
    assert (verdict.fault, verdict.culprit.rank, verdict.culprit.node) == ("process killed", 3, "node7")
    assert verdict.rejected[0].fault == "out-of-memory kill"
    assert "no kernel log was given" in verdict.rejected[0].reason
    assert "does not name it" in verdict_on("3: Killed\n", kernel_read=True).rejected[0].reason


def test_with_a_kernel_line_it_is_the_out_of_memory_killer_and_the_rank_is_joined():
    verdict = verdict_on(
        "srun: error: node7: task 3: Exited with exit code 137\n", (OOM, {"kernel": True, "file": "dmesg"})
    )
    assert verdict.fault == "out-of-memory kill"
    assert (verdict.culprit.rank, verdict.culprit.node) == (3, "node7")
    assert verdict.confidence > 0.95
    assert verdict.proof[0].place == Place(file="dmesg", line=1)


def test_an_abort_of_a_victim_is_no_cause():
    abort = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    verdict = verdict_on(
        (WATCHDOG.format(rank=0, seq=7) + abort, {"rank": 0}), (traceback_of("KeyError: 'x'"), {"rank": 3})
    )
    assert (verdict.fault, verdict.culprit.rank) == ("process crashed", 3)
    assert verdict_on((WATCHDOG.format(rank=0, seq=7) + abort, {"rank": 0})).fault == "collective timeout"


def test_the_rank_whose_collective_is_behind_is_waited_for():
    verdict = verdict_on(*(WATCHDOG.format(rank=rank, seq=76 if rank == 2 else 77) for rank in range(4)))
    assert (verdict.fault, verdict.culprit.rank) == ("collective timeout", 2)
    equal = verdict_on(*(WATCHDOG.format(rank=rank, seq=77) for rank in range(4)))
    assert not equal.culprit


def test_the_only_rank_that_does_not_complain_is_the_one_that_others_lacked():
    timeout = "RuntimeError: [/gloo/x.cc:78] Timed out waiting 4000ms for recv operation to complete\n"
    hung = verdict_on((timeout, {"rank": 0}), ("step 3\n", {"rank": 1}), (timeout, {"rank": 2}))
    assert (hung.fault, hung.culprit.rank) == ("collective timeout", 1)
    left = verdict_on((RESET, {"rank": 0}), ("step 3\n", {"rank": 1}), (RESET, {"rank": 2}))
    assert (left.fault, left.culprit.rank) == ("unknown", 1)
    assert not verdict_on((RESET, {"rank": 0}), ("step 3\n", {"rank": 1})).culprit
    assert not verdict_on((RESET, {"rank": 0}), ("", {"rank": 1}), ("", {"rank": 2})).culprit


def test_who_finds_a_size_wrong_need_not_be_wrong():
    said = "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 668 vs 336\n"
    verdict = verdict_on((said, {"rank": 0}), (RESET, {"rank": 1}), (RESET, {"rank": 2}))
    assert verdict.fault == "mismatched collective"
    assert not verdict.culprit


def test_an_unnamed_error_after_a_timeout_follows_from_it():
    late = "2026-11-29 10:10:30 - ERROR\n" + traceback_of("RuntimeError: cannot go on")
    verdict = verdict_on(WATCHDOG.format(rank=0, seq=7), (late, {"rank": 1}))
    assert verdict.fault == "collective timeout"


def test_the_same_error_on_all_ranks_is_nobodys():
    verdict = verdict_on(*((traceback_of("ModuleNotFoundError: No module named 'x'"), {"rank": n}) for n in range(4)))
    assert verdict.fault == "missing module"
    assert not verdict.culprit
    assert verdict.alike == (0, 1, 2, 3)


def test_torchruns_root_cause_is_understood():
    text = """
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_10:00:00
  host      : node7
  rank      : 5 (local_rank: 1)
  exitcode  : -11 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 4711
"""
    verdict = verdict_on(text)
    assert (verdict.fault, verdict.culprit) == ("native crash", Unit(rank=5, node="node7"))


def test_words_that_rule_a_fault_out_do_so():
    verdict = verdict_on(
        (traceback_of("RuntimeError: CUDA error: device-side assert triggered"), {"rank": 0}),
        (traceback_of("RuntimeError: something else"), {"rank": 0, "file": "again"}),
    )
    assert verdict.fault == "device-side assert"
    assert next(item.reason for item in verdict.rejected if item.fault == "runtime error").startswith(
        "the words rule it"
    )


def said(fault="device fault", source=Source.TELEMETRY, **fields):
    fields = {"standing": Standing.DEVICE, "weight": 0.9, "unit": Unit(node="n1"), **fields}
    return Evidence(source=source, rule="check", text="said", place=Place(file="f"), fault=fault, **fields)


@pytest.mark.parametrize(("visits", "persistence"), [(0, "transient"), (1, "intermittent"), (3, "permanent")])
def test_what_comes_back_on_a_node_lasts_longer_than_it_looks(visits, persistence):
    now = said("network loss")
    earlier = [said("network loss", Source.HISTORY, count=visits)] if visits else []
    assert judge([now, *earlier]).persistence == persistence


def test_history_and_telemetry_are_evidence_like_any_other():
    assert judge([said("network loss", Source.HISTORY)]).fault == "unknown"
    alone = judge([said()]).confidence
    assert judge([said(), said(source=Source.KERNEL)]).confidence > alone


def test_weak_evidence_ends_unknown_with_its_name_among_the_rejected():
    verdict = judge([said(weight=0.3)])
    assert verdict.fault == "unknown"
    assert verdict.rejected[0].fault == "device fault"
    assert "0.30 is too low" in verdict.rejected[0].reason


def test_the_order_in_which_evidence_comes_does_not_matter():
    logs = [RESET, traceback_of("KeyError: 'x'"), WATCHDOG.format(rank=1, seq=3), OOM]
    evidence = gather(*((log, {"rank": number}) for number, log in enumerate(logs)))
    verdicts = [judge(order) for order in itertools.permutations(evidence)]
    assert all(verdict == verdicts[0] for verdict in verdicts)


def test_ranks_that_a_scheduler_ended_with_their_job_are_not_to_blame():
    log = (
        "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO TIME LIMIT ***\n"
        "srun: error: n1: task 0: Terminated\n"
        "srun: error: n2: task 1: Killed\n"
    )
    verdict = verdict_on((log, {}))
    assert (verdict.fault, verdict.culprit) == ("time limit", Unit())


NFS = "[{at}] nfs: server nas1 {state}\n"


def test_what_passed_before_anything_failed_is_no_cause():
    log = NFS.format(at="100.0", state="not responding, still trying") + NFS.format(at="130.0", state="OK")
    verdict = verdict_on((log, {"kernel": True}))
    assert verdict.fault == "unknown"
    assert verdict.rejected[0].reason == "it passed, and no process failed then"
    again = log + NFS.format(at="900.0", state="not responding, still trying")
    assert verdict_on((again, {"kernel": True})).fault == "storage stalled"
    other = log.replace("nas1 OK", "nas2 OK")
    assert verdict_on((other, {"kernel": True})).fault == "storage stalled"


def test_what_passed_too_late_for_the_job_is_its_cause():
    stamp = "Nov 29 10:{minute}:00 n1 kernel: nfs: server nas1 {state}\n"
    stall = stamp.format(minute="00", state="not responding, still trying")
    log = stall + stamp.format(minute="20", state="OK")
    failed = WATCHDOG.format(rank=1, seq=3)  # ten minutes after the hour
    assert verdict_on((log, {"kernel": True}), (failed, {"rank": 1})).fault == "storage stalled"
    late = failed.replace("10:10:00", "10:55:00")
    assert verdict_on((log, {"kernel": True}), (late, {"rank": 1})).fault == "collective timeout"


def test_a_kernel_may_speak_minutes_after_the_last_line_that_had_a_time():
    log = "2026-11-29 10:00:00,000 train step 3\n" + traceback_of(
        "RuntimeError: CUDA error: unspecified launch failure"
    )
    kernel = "Nov 29 10:{minute}:00 n1 kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid=1, GPU has fallen off the bus.\n"
    near, far = ((log, {"rank": 4}), (kernel.format(minute="05"), {"kernel": True})), kernel.format(minute="40")
    assert (verdict_on(*near).fault, verdict_on(*near).culprit.rank) == ("device lost", 4)
    assert verdict_on(near[0], (far, {"kernel": True})).fault == "device fault"


def test_of_lines_that_say_the_same_one_names_the_place():
    log = (
        "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO NODE FAILURE, SEE LOG ***\n"
        "srun: error: Node failure on n2\n"
    )
    assert verdict_on(log).culprit == Unit(node="n2")
