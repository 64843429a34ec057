"""Pages of text: as wide as they may be, with styles only where somebody looks."""

import io

import pytest

from closeranks.cli.text_page import FILE_WIDTH, TextPage


class Stream(io.StringIO):
    def __init__(self, encoding="utf-8", *, terminal=False):
        super().__init__()
        self._encoding, self._terminal = encoding, terminal

    @property
    def encoding(self):
        return self._encoding

    def isatty(self):
        return self._terminal


@pytest.fixture
def terminal(monkeypatch):
    for name, value in {"COLUMNS": "40", "TERM": "xterm", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    return Stream(terminal=True)


def test_a_table_aligns_its_numbers():
    stream = Stream()
    TextPage(stream).table("Parts", ("part", "count"), [("GPU", "10,000"), ("power", "8")], right=("count",))
    assert stream.getvalue().splitlines() == [
        "Parts",
        "┏━━━━━━━┳━━━━━━━━┓",
        "┃ part  ┃  count ┃",
        "┡━━━━━━━╇━━━━━━━━┩",
        "│ GPU   │ 10,000 │",
        "│ power │      8 │",
        "└───────┴────────┘",
    ]


@pytest.mark.parametrize("width", [30, 40, 79])
def test_a_table_is_no_wider_than_its_terminal_and_keeps_every_word(terminal, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    words = ("a rather long explanation of a difference", "short", "unbreakableunbreakableunbreakable")
    TextPage(terminal).table("Why", ("one", "two", "three"), [words], right=())
    lines = terminal.getvalue().splitlines()[1:]
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= width
    cells = ["".join(column) for column in zip(*(line.split("│")[1:4] for line in lines if "│" in line), strict=True)]
    assert [cell.replace(" ", "") for cell in cells] == [word.replace(" ", "") for word in words]


def test_a_paragraph_is_broken_between_words_and_styles_take_no_room(terminal):
    page = TextPage(terminal)
    page.say(page.styled("bold", "thirty-eight characters stand here, so") + " and four more words follow")
    first, second = terminal.getvalue().splitlines()
    assert first == "\x1b[1mthirty-eight characters stand here, so\x1b[0m"
    assert second == "and four more words follow"


def test_a_file_has_no_styles_and_a_width_of_its_own():
    stream = Stream()
    page = TextPage(stream)
    page.say(page.styled("warning", "word " * 60))
    assert "\x1b" not in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= FILE_WIDTH


def test_borders_are_letters_where_lines_cannot_be_drawn():
    stream = Stream("ascii")
    TextPage(stream).table("T", ("a", "b"), [("1", "2")], right=())
    assert stream.getvalue().isascii()


def test_what_is_to_be_copied_stays_on_its_line(terminal):
    TextPage(terminal).verbatim("closeranks run " + "x" * 60)
    assert terminal.getvalue().count("\n") == 1
