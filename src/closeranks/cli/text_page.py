"""Paragraphs and tables of text for a command that must answer at once: rich would take a third of its time.

Looks like the pages that rich draws for the other commands, from a string per line.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TextIO

FILE_WIDTH: Final = 120  # of a file or a pipe, which has none of its own
_STYLES: Final = {"bold": "1", "dim": "2", "italic": "3", "warning": "1;33"}
_ESCAPE: Final = re.compile("\x1b\\[[0-9;]*m")
_NARROWEST: Final = 4  # a column is not made narrower than this while a wider one is left


class _Box(NamedTuple):
    """Lines of a table; each of the first three is (left, line, between, right)."""

    top: str
    under_head: str
    bottom: str
    head_bar: str
    bar: str


_DRAWN: Final = _Box("┏━┳┓", "┡━╇┩", "└─┴┘", "┃", "│")
_PLAIN: Final = _Box("+-++", "+-++", "+-++", "|", "|")


class TextPage:
    """Writes to a stream as wide as its terminal, with styles only where somebody looks at them."""

    def __init__(self, stream: TextIO) -> None:
        """Look once what the stream is."""
        self._stream = stream
        terminal = stream.isatty()
        self._width = shutil.get_terminal_size().columns if terminal else FILE_WIDTH
        self._styled = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._box = _DRAWN if (stream.encoding or "").lower().startswith("utf") else _PLAIN

    def styled(self, style: str, text: str) -> str:
        """The text as ``bold``, ``dim``, ``italic`` or ``warning``, or as it is where styles are not shown."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._styled else text

    def say(self, text: str) -> None:
        """Write a paragraph, broken between words where it is wider than the page."""
        for line in text.split("\n"):
            self._stream.write("\n".join(_broken(line, self._width)) + "\n")

    def verbatim(self, text: str) -> None:
        """Write it as it is, however wide: a drawing, or a line that is meant to be copied."""
        self._stream.write(text + "\n")

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str]) -> None:
        """Write a table; columns whose heads are in ``right`` hold numbers, and stand to the right."""
        widths = _fitted([max(map(len, column)) for column in zip(head, *rows, strict=True)], self._width)
        flush = [name in right for name in head]
        self.say(self.styled("italic", title))
        self._rule(self._box.top, widths)
        self._row(
            self._box.head_bar, [self.styled("bold", _placed(*one)) for one in zip(head, widths, flush, strict=True)]
        )
        self._rule(self._box.under_head, widths)
        for row in rows:
            for line in _lines_of(row, widths):
                self._row(self._box.bar, [_placed(*one) for one in zip(line, widths, flush, strict=True)])
        self._rule(self._box.bottom, widths)

    def _rule(self, ends: str, widths: Sequence[int]) -> None:
        inner = ends[2].join(ends[1] * (width + 2) for width in widths)
        self._stream.write(f"{ends[0]}{inner}{ends[3]}\n")

    def _row(self, bar: str, cells: Sequence[str]) -> None:
        self._stream.write(f"{bar} " + f" {bar} ".join(cells) + f" {bar}\n")


def _placed(text: str, width: int, flush: bool) -> str:
    return text.rjust(width) if flush else text.ljust(width)


def _fitted(widths: list[int], page: int) -> list[int]:
    """The widths with the widest columns narrowed until the table, its borders counted, is as wide as the page."""
    while sum(widths) + 3 * len(widths) + 1 > page and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _lines_of(row: Sequence[str], widths: Sequence[int]) -> Iterator[list[str]]:
    cells = [_broken(text, width) for text, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells))):
        yield [cell[number] if number < len(cell) else "" for cell in cells]


def _broken(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width``, styles not counted."""
    if len(text) <= width:
        return [text]
    lines = [""]
    for word in _words(text, width):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and len(_ESCAPE.sub("", joined)) > width:
            lines.append(word)
        else:
            lines[-1] = joined
    return lines


def _words(text: str, width: int) -> Iterator[str]:
    """The words, wider ones in pieces; those that a style begins or ends in are left whole."""
    for word in text.split(" "):
        if _ESCAPE.search(word):
            yield word
        else:
            yield from (word[begin : begin + width] for begin in range(0, len(word) or 1, width))
