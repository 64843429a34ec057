import io
import re

import msgspec
import pytest
from rich.console import Console

from closeranks.events import RunEnded
from closeranks.observe.report import (
    NBSP,
    Report,
    percent_text,
    phases_text,
    print_report,
    report_of,
    seconds_text,
    to_json,
)
from synthetic_journal import Tape, eventful_run

FIELDS = (
    "schema_version run command outcome exit_code reason began_wall_s wall_s seats spares steps steps_repeated "
    "steps_lost step_median_s last_loss goodput durable_goodput ettr definitions place_s seconds stalled places "
    "incidents timers problems saves nodes coordinators sittings health"
)


@pytest.fixture(scope="module")
def report():
    return report_of(eventful_run().end().records, ["line 3 is damaged"])


def printed(report):
    out = io.StringIO()
    print_report(Console(file=out, width=200), report)
    return out.getvalue()


def test_json_keeps_its_fields_and_can_be_read_back(report):
    data = to_json(report)
    assert " ".join(msgspec.json.decode(data)) == FIELDS
    assert msgspec.json.decode(data, type=Report) == report


def test_the_numbers_of_a_run_are_in_its_report(report):
    assert (report.outcome, report.exit_code, report.seats, report.spares) == ("completed", 0, 4, 1)
    assert (report.steps, report.steps_lost, report.steps_repeated) == (79, 0, 0)
    assert sum(report.seconds.values()) == pytest.approx(report.place_s, abs=1e-3)


def test_the_text_names_every_category_every_definition_and_every_incident(report):
    text = printed(report)
    for wanted in ("useful step", "lost attempt", "Durable goodput", "ETTR", "replace by a fork"):
        assert wanted in text
    assert re.search(r"^Goodput +53\.2 %", text, re.MULTILINE)
    assert "journal: line 3 is damaged" in text


def test_text_that_is_no_terminals_holds_no_escape_codes(report):
    assert "\x1b" not in printed(report)


def test_brackets_in_a_message_are_text_and_no_markup():
    tape = Tape(seats=1, spares=0)
    tape.begin()
    tape.say(RunEnded(outcome="failed", exit_code=1, reason="[bold]x[/bold] [/nonsense]"))
    assert "[bold]x[/bold] [/nonsense]" in printed(report_of(tape.records))


def test_an_incident_that_stopped_the_run_shows_its_traceback_and_advice():
    tape = eventful_run()
    records = tape.records[: next(i for i, r in enumerate(tape.records) if "incident=3" in repr(r.event)) + 8]
    text = printed(report_of(records))
    assert "Traceback (most recent call last)" in text
    assert "advice: Read the traceback" in text


def test_a_run_that_goes_on_says_so():
    report = report_of(eventful_run().records)
    assert (report.outcome, report.exit_code) == ("unfinished", None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0.000"),
        (0.0001, "<0.001"),
        (0.0123, "0.012"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123456.0, "123,456"),
    ],
)
def test_seconds_have_as_many_digits_as_matter(seconds, text):
    assert seconds_text(seconds) == text


def test_what_was_not_measured_is_not_called_zero():
    assert percent_text(None) == "not measured"


def test_a_phase_and_its_seconds_stay_on_one_line_and_phases_without_seconds_are_left_out():
    text = phases_text({"lost attempt": 0.25, "decide": 0.0, "see": 0.0003}, NBSP)
    assert text.split("  ") == [f"lost{NBSP}attempt{NBSP}0.25", f"see{NBSP}<0.001"]
