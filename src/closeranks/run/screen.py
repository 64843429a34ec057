"""What the person at the console sees: lines, or the live view.

All drawing is done in a thread of its own: a terminal that does not read cannot stop the run. What exceeds the bound
of the queue is dropped and counted; it is in the journal and the log files.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Mapping
from typing import Protocol, TextIO

from closeranks.events import Record
from closeranks.observe.text import Level, level_of, log_line
from closeranks.run.options import View
from closeranks.signs import Reading

_QUEUE_MAX = 10_000
_DRAW_S = 0.1
_DETAIL = Level.DETAIL

Item = str | Record | dict[int, Reading]


class Display(Protocol):
    """Draws; used by one thread only."""

    draws: bool  # every record and all vitals, and again as time passes; False: nobody is woken for what is no line

    def show(self, items: list[Item]) -> None:
        """Take in what is new, and draw."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Lines:
    """Every line of output and every record that matters, one after the other."""

    draws = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, items: list[Item]) -> None:
        """Write them."""
        lines = [line for item in items if (line := _line(item))]
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Nothing is held."""


class Live:
    """The live view of ``observe.live``."""

    draws = True

    def __init__(self, stream: TextIO, seats: int, spares: int) -> None:
        from rich.console import Console

        from closeranks.observe.live import LiveDisplay, LiveView

        self._display = LiveDisplay(LiveView(Console(file=stream), seats, spares))
        self._display.__enter__()

    def show(self, items: list[Item]) -> None:
        """Feed them and draw once."""
        for item in items:
            if isinstance(item, str):
                self._display.say(item)
            elif isinstance(item, Record):
                self._display.feed(item)
            else:
                self._display.view.vitals(item)
        self._display.tick()

    def close(self) -> None:
        """Give the terminal back."""
        self._display.__exit__()


class Nothing:
    """For those who want to see nothing but the end."""

    draws = False

    def show(self, items: list[Item]) -> None:
        """Drop them."""

    def close(self) -> None:
        """Nothing is held."""


def display_for(view: View, stream: TextIO, seats: int, spares: int) -> Display:
    """The display that was asked for; the live view only where there is a terminal."""
    if view is View.NONE:
        return Nothing()
    if view is not View.TEXT and stream.isatty():
        return Live(stream, seats, spares)
    return Lines(stream)


class Screen:
    """The queue and the thread in front of a display."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._items: deque[Item] = deque()
        self._dropped = 0
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Show one line, soon."""
        self._put(line)

    def record(self, record: Record) -> None:
        """Show one record of the journal, if it matters to a person."""
        if self._display.draws or level_of(record.event) is not _DETAIL:
            self._put(record)

    def vitals(self, readings: Mapping[int, Reading]) -> None:
        """Show what the seats are doing."""
        if self._display.draws:
            self._put(dict(readings))

    def close(self, wait_s: float = 2.0) -> None:
        """Show what waits, for at most ``wait_s``; a stuck terminal loses the rest."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(wait_s)

    def _put(self, item: Item) -> None:
        with self._changed:
            if len(self._items) >= _QUEUE_MAX:
                self._dropped += 1
                return
            self._items.append(item)
            self._changed.notify()

    def _take(self) -> tuple[list[Item], bool]:
        with self._changed:
            if not self._items and not self._ended:
                self._changed.wait(_DRAW_S if self._display.draws else None)
            items = [*self._items]
            self._items.clear()
            if self._dropped:
                items.append(f"closeranks: {self._dropped} lines were not shown, see the logs")
                self._dropped = 0
            return items, self._ended

    def _run(self) -> None:
        ended = False
        while not ended:
            items, ended = self._take()
            # The reader of our output may be gone; journal and files remain.
            with contextlib.suppress(OSError, ValueError):
                self._display.show(items)
        with contextlib.suppress(OSError, ValueError):
            self._display.close()


def _line(item: Item) -> str:
    if isinstance(item, str):
        return item
    return log_line(item) if isinstance(item, Record) else ""
