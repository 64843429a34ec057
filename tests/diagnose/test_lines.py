import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diagnose.logs import gather, traceback_of, verdict_on

from closeranks.diagnose.lines import LINE_BYTES_MAX, Gathering, Origin, Scanner
from closeranks.gather.rulebook import lexicon

LOG = (
    "".join(f"[rank{n % 4}]: 2026-11-29 10:00:{n:02d} - INFO - step {n} | loss = {3 - n / 50:.3f}\n" for n in range(50))
    + traceback_of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "[rank2]: ")
    + "[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:537] Connection reset by peer\n"
)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 400))
def test_how_a_log_is_cut_into_pieces_does_not_matter(piece_bytes):
    assert gather(LOG, piece_bytes=piece_bytes) == gather(LOG)


def test_rank_line_time_and_the_users_own_frame_are_told():
    found = gather(LOG)[0]
    assert found.unit.rank == 2
    assert found.place.line == 54
    assert found.where == "train.py:31"
    assert found.at_s == 1795946400.0 + 49


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_of_either_kind_are_read(end):
    found = gather(LOG.replace("\n", end))[0]
    assert (found.place.line, found.text[:12]) == (54, "torch.OutOfM")


def test_an_error_on_the_line_of_a_progress_bar_is_found():
    bar = "".join(f"\r {n}%|####      | {n}/100 [00:01<00:02, 3.1it/s]" for n in range(100)) * 50
    assert verdict_on(f"{bar}\rKeyError: 'x'\n").fault == "process crashed"


def test_colours_do_not_hide_an_error():
    assert verdict_on("\x1b[31mRuntime\x1b[1mError\x1b[0m: CUDA error: out of memory\n").fault == "device out of memory"


def test_an_endless_line_is_cut_counted_and_does_not_hide_what_follows():
    gathering = Gathering(lexicon())
    scanner = Scanner(gathering, Origin(file="log"))
    for _ in range(64):
        scanner.feed(b"x" * LINE_BYTES_MAX * 4)
    scanner.feed(b"yy\nKeyError: 'x'\nand more")
    scanner.close()
    assert gathering.cut.long_lines == 1
    assert [(found.rule, found.place.line) for found in gathering.evidence()] == [("exception", 2)]


def test_the_same_over_many_lines_is_one_sighting_with_a_count():
    found = gather("KeyError: 'x'\n" * 5000)
    assert [(item.count, item.place.line) for item in found] == [(5000, 1)]


def test_an_error_after_which_the_process_went_on_is_no_cause():
    steps = "".join(f"step {n} | loss = 2.1\n" for n in range(5))
    verdict = verdict_on(traceback_of("KeyError: 'x'") + steps)
    assert verdict.fault == "unknown"
    assert verdict.rejected[0].reason == "the process went on working after it"
    assert verdict_on(steps + traceback_of("KeyError: 'x'")).fault == "process crashed"


@pytest.mark.parametrize(
    "above",
    ["Exception ignored in: <function Loader.__del__ at 0x7f>\n", "--- Logging error ---\n"],
)
def test_an_error_that_python_itself_calls_ignored_is_no_cause(above):
    verdict = verdict_on("step 1 | loss = 2.1\n" + above + traceback_of("AssertionError: only a child can"))
    assert verdict.fault == "unknown"
    assert verdict.rejected[0].fault == "failed assertion"


@pytest.mark.parametrize(
    "line",
    [
        "> OSError: [Errno 28] No space left on device",
        "  --abort-on-full   ends with OSError: [Errno 28] No space left on device",
        "/lib/x.py:12: UserWarning: No space left on device",
        "VERDICT: disk full  (confidence 0.97)\n  a/1.log:3 [rank 1]: OSError: [Errno 28] No space left on device",
    ],
)
def test_what_is_quoted_explained_or_reported_did_not_happen_here(line):
    assert gather(line) == ()


def test_an_error_that_was_handled_at_first_and_ends_the_process_later_is_its_cause():
    steps = "".join(f"step {n} | loss = 2.1\n" for n in range(5))
    error = traceback_of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    verdict = verdict_on(error + steps + error)
    assert verdict.fault == "device out of memory"
    assert (verdict.proof[0].place.line, verdict.proof[0].count) == (13, 2)
    assert verdict_on((error + steps, {"rank": 1}), (error, {"rank": 1})).fault == "device out of memory"


def test_that_another_rank_went_on_for_a_while_says_nothing():
    others = "".join(f"[rank1]: step {n} | loss = 2.1\n" for n in range(5))
    assert verdict_on(traceback_of("KeyError: 'x'", "[rank0]: ") + others).culprit.rank == 0


def test_a_loss_that_stays_undefined_is_no_progress():
    assert verdict_on("step 1 | loss = 2.0\n" + "".join(f"step {n} | loss = nan\n" for n in range(9))).fault == (
        "non-finite loss"
    )


@pytest.mark.parametrize(
    "log",
    [
        "",
        "all is well\n" * 100,
        LOG[: LOG.index("Traceback")],
        '127.0.0.1 - - [29/Nov/2026:10:00:00 +0000] "GET /error HTTP/1.1" 500 12 "-" "curl"\n' * 9,
        'Exception in thread "main" java.lang.NullPointerException\n\tat Main.main(Main.java:3)\n',
        "npm ERR! code ELIFECYCLE\nnpm ERR! errno 1\n",
        "panic: runtime error: index out of range [3] with length 3\n\ngoroutine 1 [running]:\n",
        "make: *** [Makefile:12: all] Error 2\n",
        "psql: FATAL: password authentication failed for user\n",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n",
        "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`\n",
        "error: could not compile `demo` due to previous error\n",
        "\x00\xff\xfe binary \x00\n",
    ],
)
def test_what_no_rule_was_made_for_ends_unknown(log):
    verdict = verdict_on(log)
    assert verdict.fault == "unknown"
    assert verdict.confidence == 0.0
    assert verdict.advice
