import re
from html.parser import HTMLParser

import pytest

from closeranks.observe.charts import round_values
from closeranks.observe.html import page
from closeranks.observe.merge import merge
from closeranks.observe.nodes import nodes_of
from closeranks.observe.report import report_of
from synthetic_journal import Tape, eventful_run
from synthetic_nodes import Node, split

VOID = {"meta", "i", "tr", "th", "td"}


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that the document is well nested."""

    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def parsed(text):
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags.found


@pytest.fixture(scope="module")
def document():
    records = eventful_run().end().records
    return page(records, report_of(records, ["line 3: <b>damaged</b>"]))


def test_the_document_is_well_nested_and_runs_and_loads_nothing(document):
    found = parsed(document)
    assert not {tag for tag, _ in found} & {"script", "link", "img", "iframe", "object", "base", "form", "image", "use"}
    attributes = {name for _, attributes in found for name in attributes}
    assert not attributes & {"src", "href", "xlink:href", "action"}
    assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?://", document)
    assert "default-src 'none'" in document


def test_hostile_texts_are_shown_and_not_obeyed(document):
    assert "<script>" not in document
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; co" in document
    assert "&lt;b&gt;damaged&lt;/b&gt;" in document


def test_every_part_of_the_report_is_there(document):
    for title in ("process-seconds went", "Seats and spares over time", "Loss", "Step time", "Incidents"):
        assert title in document
    assert document.count("<svg") == 3
    assert document.count('class="mark"') == 3 * 3


def test_a_job_on_several_nodes_shows_where_each_seat_was_and_who_led():
    tape = eventful_run().end()
    nodes = [Node("<n0>", (0, 1), base_s=7.0), Node("n1", (2, 3)), Node("n2", base_s=900.0)]
    leaders = (("<n0>", 0.0), ("n1", tape.records[0].mono_s + 3.0))
    merged = merge(split(tape.records, nodes, leaders))
    text = page(merged.records, report_of(merged.records, merged.problems, nodes_of(merged)))
    parsed(text)
    assert "<td>n1<td>host-1<td>2 (to 4." in text
    assert "coordinator: epoch 2 on n1" in text
    assert text.count('class="takeover"') == 3
    assert "on &lt;n0&gt;: useful step" in text


def test_a_run_without_steps_or_incidents_has_a_page_too():
    tape = Tape(seats=1, spares=0)
    tape.begin()
    text = page(tape.records[:1], report_of(tape.records[:1]))
    parsed(text)
    assert "None." in text


def test_a_long_run_keeps_its_spikes_in_a_small_file():
    tape = Tape(seats=1, spares=0)
    tape.begin()
    tape.train(3000, step_s=0.1)
    tape.train(1, step_s=40.0)
    tape.train(3000, step_s=0.1)
    text = page(tape.records, report_of(tape.records))
    assert len(text) < 100_000
    assert ">40</text>" in text or ">30</text>" in text


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0, 10, [0, 5, 10]),
        (0.0, 0.11, [0, 0.05, 0.1]),
        (1.4, 4.2, [2, 3, 4]),
        (0, 0, []),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_axes_are_marked_at_round_values(low, high, values):
    assert round_values(low, high, 4) == pytest.approx(values)
