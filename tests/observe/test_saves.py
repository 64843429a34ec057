import io

from rich.console import Console

from closeranks.events import (
    CheckpointCommitted,
    CheckpointVerified,
    SaveFailed,
    SaveIntervalChosen,
    SnapshotTaken,
    StateLoaded,
    StoreOpened,
    TierMissed,
)
from closeranks.observe.html import page
from closeranks.observe.report import print_report, report_of
from closeranks.observe.saves import lines_of, saves_of
from synthetic_journal import Tape


def saving_run():
    tape = Tape(2, 0)
    tape.begin()
    tape.say(StoreOpened(store="/ckpt", store_term=3, generations=2, newest_step=4))
    tape.say(StateLoaded(step=4, source="/ckpt", took_s=0.4, passed_over=("generation 9: <damaged>",)))
    tape.train(5)
    tape.say(SaveIntervalChosen(interval_s=60.0, reason="a write takes 2 s"))
    for save, pause_s in ((1, 0.01), (2, 0.03)):
        tape.say(SnapshotTaken(save=save, step=save, image_bytes=1000, pause_s=pause_s))
        tape.say(
            CheckpointCommitted(
                save=save, step=save, generation=10 + save, written_bytes=1000, reused_bytes=500, took_s=0.5 * save
            )
        )
    tape.say(SaveFailed(step=3, problem="no space left"))
    tape.say(TierMissed(step=3, tier="disk", problem="read-only"))
    tape.say(CheckpointVerified(generation=12, held=True, detail="all digests held", took_s=0.1))
    return tape


def test_a_run_without_a_store_has_no_saves():
    assert saves_of(Tape(2, 0).records) is None


def test_saves_are_counted_and_their_cost_is_shown():
    saves = saves_of(saving_run().records)
    assert (saves.committed, saves.durable_step, saves.durable_generation) == (2, 2, 12)
    assert (saves.written_bytes, saves.reused_bytes) == (2000, 1000)
    assert (saves.pause.median_s, saves.pause.longest_s, saves.took.longest_s) == (0.02, 0.03, 1.0)


def test_a_person_reads_what_is_durable_what_it_costs_and_what_went_wrong():
    text = "\n".join(lines_of(saves_of(saving_run().records)))
    for words in (
        "2 saves durable, the newest is step 2, generation 12",
        "paused 0.02 s (longest 0.03 s)",
        "every 60 s: a write takes 2 s",
        "generation 12 verified: all digests held",
        "went on after step 4, read from /ckpt in 0.40 s; passed over: generation 9",
        "PROBLEM: step 3 did not become durable: no space left",
        "PROBLEM: step 3 did not reach disk: read-only",
    ):
        assert words in text


def test_text_and_page_show_them():
    tape = saving_run()
    report = report_of(tape.records)
    out = io.StringIO()
    print_report(Console(file=out, width=200), report)
    assert "State that lasts" in out.getvalue() and "no space left" in out.getvalue()
    html = page(tape.records, report)
    assert "State that lasts" in html and "generation 9: &lt;damaged&gt;" in html
