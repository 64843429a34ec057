import msgspec

from closeranks.drill.matrix import CELLS
from closeranks.drill.matrix_page import html_page
from closeranks.drill.matrix_report import State, completed, drilled, empty, outcome_of, said, sums_of
from closeranks.drill.score import Effect, Mark, Score
from closeranks.drill.verdict import Outcome

RIGHT = Score(
    outcome=Outcome.HELD,
    effect=Effect.RECOVERED,
    detected_s=1.0,
    diagnosed_s=1.5,
    recovered_s=2.0,
    culprit=Mark.RIGHT,
    kept=True,
)
WRONG = Score(
    outcome=Outcome.BROKEN, effect=Effect.UNNOTICED, reasons=("<b>nothing</b> was detected",), culprit=Mark.NOBODY
)
MASKED = Score(outcome=Outcome.HELD, effect=Effect.MASKED, culprit=Mark.NOBODY, kept=True)
CALM = Score(outcome=Outcome.HELD, effect=Effect.LEFT_ALONE)
UNSTRUCK = Score(outcome=Outcome.UNKNOWN, effect=Effect.NEVER_STRUCK)


def made(key, score):
    cell = next(cell for cell in CELLS if cell.key == key)
    return drilled(cell, score, seed=0, replay=f"closeranks drill --matrix --cells {key}", took_s=1.0)


RESULTS = completed(
    [
        made("kill:forward", RIGHT),
        made("stale-batch:forward", WRONG),
        made("flip-weight:forward", MASKED),
        made("pause:forward", CALM),
    ]
)


def test_all_cells_are_there_the_empty_ones_with_their_reason():
    assert len(RESULTS) == len(CELLS)
    assert all(result.why for result in RESULTS if result.score is None)
    by_key = {result.key: result for result in RESULTS}
    assert by_key["wrong-size:idle"].state is State.NOT_APPLICABLE
    assert (by_key["kill:idle"].state, by_key["kill:idle"].why) == (State.NOT_RUN, "not asked for")
    assert by_key["lost-metrics:idle"].state is State.NOT_APPLICABLE


def test_a_reason_of_the_machine_makes_a_cell_not_run():
    partition = next(cell for cell in CELLS if cell.key == "partition:collective")
    assert empty(partition, "not run: they need root").why == "they need root"


def test_the_sums_are_those_of_the_cells():
    sums = sums_of(RESULTS)
    assert (sums.injected, sums.covered, sums.masked, sums.harmful) == (3, 2, 1, 1)
    assert (sums.mttd_s, sums.mttdiag_s, sums.mttr_s) == (1.0, 1.5, 2.0)
    assert (sums.culprits_right, sums.culprits_named, sums.culprits_asked) == (1, 1, 3)
    assert (sums.precision, sums.controls, sums.controls_disturbed) == (1.0, 1, 0)
    assert sums.coverage is not None
    assert "2 of 3 faults (67%)" in "\n".join(said(sums))


def test_a_fault_that_never_struck_was_not_injected():
    sums = sums_of(completed([made("kill:forward", UNSTRUCK)]))
    assert (sums.injected, sums.coverage, sums.recall) == (0, None, None)
    assert "coverage: 0 of 0 faults (-)" in "\n".join(said(sums))


def test_the_exit_status_is_that_of_the_worst_cell():
    assert outcome_of(RESULTS) is Outcome.BROKEN
    assert outcome_of(completed([made("kill:forward", RIGHT)])) is Outcome.HELD
    assert outcome_of(completed([made("kill:forward", RIGHT), made("kill:idle", UNSTRUCK)])) is Outcome.UNKNOWN
    assert outcome_of(completed([])) is Outcome.UNKNOWN


def test_a_cell_in_short_has_its_sign_first():
    assert made("kill:forward", RIGHT).short() == "+ 1.00"
    assert made("stale-batch:forward", WRONG).short() == "X harm"
    assert next(result for result in RESULTS if result.key == "wrong-size:idle").short() == "."


def test_the_page_shows_every_row_and_phase_escapes_what_runs_said_and_has_the_replay():
    page = html_page(RESULTS)
    assert page.count('<th scope="row">') == len({result.row for result in RESULTS})
    assert page.count("<td") == len(RESULTS)
    assert "&lt;b&gt;nothing&lt;/b&gt;" in page
    assert "<b>nothing</b>" not in page
    assert "closeranks drill --matrix --cells stale-batch:forward" in page


def test_a_result_survives_the_way_to_a_file_and_back():
    result = made("stale-batch:forward", WRONG)
    assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result
