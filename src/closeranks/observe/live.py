"""The live view of a run: fed with records and vitals, drawn when asked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Final, Self

import msgspec
from rich.console import Console, ConsoleRenderable, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from closeranks.events import (
    Decided,
    Diagnosed,
    IncidentClosed,
    IncidentOpened,
    IncidentWidened,
    PhaseBegan,
    ProcessExited,
    ProcessReady,
    ProcessSeated,
    ProcessStarted,
    Record,
    RunEnded,
    RunStarted,
    StepClosed,
)
from closeranks.observe.report import NBSP, mean_loss, outcome_style, percent_text, phases_text, seconds_text
from closeranks.observe.text import Level, how_ended, level_of, log_line, one_line
from closeranks.signs import Doing, Reading

_LOG_LINES: Final = 8
_LOG_LINES_MIN: Final = 3  # what the log keeps on a screen with too few rows for everything
_CLOSED_INCIDENTS: Final = 4
_RATE_STEPS: Final = 20
_STALE_S: Final = 1.0  # a thread that has not moved for longer is shown with the time since
_SHORT_S: Final = 0.001  # a phase that took less is not worth the room
_HEAD_ROWS: Final = 5  # the first line, three empty ones, and the head of the table
_SEATS_MIN: Final = 4
_SUMMARY_MIN: Final = 12
_BESIDE_SUMMARY: Final = 48  # columns that number, rung, time and outcome of a closed incident take
_DOING: Final = {
    Doing.STARTING: "starting",
    Doing.WAITING: "waiting",
    Doing.BETWEEN: "between steps",
    Doing.FORWARD: "forward",
    Doing.BACKWARD: "backward",
    Doing.APPLYING: "applying",
    Doing.SECTION: "section",
    Doing.RECOVERING: "recovering",
    Doing.LEAVING: "leaving",
    Doing.MEETING: "meeting",
    Doing.RESTORING: "restoring",
}

# What a seat works at that is its step and no other: neither a rehearsal nor a recovery.
_STEPPING: Final = (Doing.BETWEEN, Doing.FORWARD, Doing.BACKWARD, Doing.APPLYING)
_STALLED: Final = tuple(_DOING[d] for d in (Doing.RECOVERING, Doing.MEETING, Doing.RESTORING, Doing.WAITING))


class _Seat(msgspec.Struct, kw_only=True):
    name: str
    proc: int | None = None
    status: str = "empty"
    step: int | None = None
    loss: float | None = None
    doing: str = ""
    moved_s: float = 0.0

    def status_text(self, *, trouble: bool) -> str:
        """A member that waits in a recovery does not train."""
        stalled = trouble and self.status == "training" and self.doing in _STALLED
        return "stalled" if stalled else self.status

    def doing_text(self, now_mono_s: float) -> str:
        still_s = now_mono_s - self.moved_s
        return f"{self.doing} for {still_s:.1f} s" if self.doing and still_s > _STALE_S else self.doing


class _Trouble(msgspec.Struct, kw_only=True):
    """An incident as it unfolds."""

    incident: int
    summary: str
    since_s: float
    fault: str = "unknown"
    rung: str = ""
    phases: dict[str, float] = {}
    phase: str = ""
    phase_since_s: float = 0.0
    outcome: str = ""
    first_step_s: float | None = None

    def enter(self, phase: str, at_s: float) -> None:
        if self.phase:
            self.phases[self.phase] = self.phases.get(self.phase, 0.0) + max(0.0, at_s - self.phase_since_s)
        else:
            self.since_s = min(self.since_s, at_s)
        self.phase, self.phase_since_s = phase, at_s


class LiveView:
    """What is known of a run that goes on. Nothing is drawn and no clock is read in here."""

    def __init__(self, console: Console, seats: int, spares: int) -> None:
        self.console = console
        self._seats = {seat: _Seat(name=f"s{seat}") for seat in range(seats)}
        self._spare_target = spares
        self._spares: dict[int, str] = {}  # process -> status
        self._began_s: float | None = None
        self._steps: deque[StepClosed] = deque(maxlen=_RATE_STEPS)
        self._useful_s = 0.0  # wall time of steps that count
        self._places: dict[int, tuple[float, float]] = {}  # spare process -> begin and end of its life as a spare
        self._open: dict[int, _Trouble] = {}
        self._closed: deque[_Trouble] = deque(maxlen=_CLOSED_INCIDENTS)
        self._lines: deque[Text] = deque(maxlen=_LOG_LINES)
        self._ended: RunEnded | None = None
        self._ended_s = float("inf")

    # --- input

    def feed(self, record: Record) -> None:
        """Take in one record, in the order of the journal."""
        self._began_s = record.mono_s if self._began_s is None else self._began_s
        self._feed_process(record)
        self._feed_progress(record)
        self._feed_incident(record)
        level = level_of(record.event)
        if level is not Level.DETAIL:
            self._lines.append(_log_text(log_line(record), "red" if level is Level.TROUBLE else ""))

    def say(self, line: str) -> None:
        """Add a line to the log, such as the output of a worker."""
        self._lines.append(_log_text(one_line(line), "dim"))

    def vitals(self, readings: Mapping[int, Reading]) -> None:
        """Take in what the seats show of themselves."""
        for number, reading in readings.items():
            seat = self._seat(number)
            if reading.doing in _STEPPING:
                seat.step = reading.step
            seat.doing, seat.moved_s = _DOING[reading.doing], reading.moved_ns / 1e9

    def _feed_process(self, record: Record) -> None:
        match record.event:
            case RunStarted(seats=seats, spares=spares):
                self._spare_target = spares
                for number in range(seats):
                    self._seat(number)
            case ProcessStarted(proc=proc, seat=None):
                self._spares[proc] = "warming up"
                self._places[proc] = (record.mono_s, float("inf"))
            case ProcessStarted(proc=proc, seat=int(number)):
                seat = self._seat(number)
                seat.proc, seat.name, seat.status = proc, f"s{number} p{proc}", "starting"
            case ProcessReady(proc=proc) if proc in self._spares:
                self._spares[proc] = "ready"
            case ProcessSeated(proc=proc, seat=number, incarnation=incarnation):
                self._leave_spares(proc, record.mono_s)
                seat = self._seat(number)
                seat.proc, seat.name, seat.status = proc, f"s{number}.{incarnation}", "seated"
            case ProcessExited(proc=proc):
                self._leave_spares(proc, record.mono_s)
                self._leave_seat(proc, record.event)
            case _:
                pass

    def _leave_spares(self, proc: int, at_s: float) -> None:
        if self._spares.pop(proc, None) is not None:
            self._places[proc] = (self._places[proc][0], at_s)

    def _leave_seat(self, proc: int, exited: ProcessExited) -> None:
        for seat in self._seats.values():
            if seat.proc == proc:
                seat.status, seat.doing = f"ended {how_ended(exited)}", ""

    def _feed_progress(self, record: Record) -> None:
        match record.event:
            case StepClosed() as step:
                self._steps.append(step)
                self._useful_s += 0.0 if step.repeated else step.closed_mono_s - step.began_mono_s
                for number, loss in enumerate(step.losses):
                    seat = self._seat(number)
                    seat.step, seat.loss = step.step, loss
                    seat.status = "training"
            case RunEnded() as ended:
                self._ended, self._ended_s = ended, record.mono_s
            case _:
                pass

    def _feed_incident(self, record: Record) -> None:
        number = getattr(record.event, "incident", None)
        if isinstance(record.event, IncidentOpened):
            event = record.event
            self._open[event.incident] = _Trouble(incident=event.incident, summary=event.summary, since_s=record.mono_s)
        trouble = self._open.get(number) if isinstance(number, int) else None
        if trouble is None:
            return
        match record.event:
            case IncidentWidened(summary=summary):
                trouble.summary += f"; then {summary}"
            case Diagnosed(fault=fault):
                trouble.fault = fault
            case Decided(rung=rung):
                trouble.rung = rung.value
            case PhaseBegan(phase=phase, at_mono_s=at_s):
                trouble.enter(phase.value, at_s)
            case IncidentClosed(outcome=outcome, first_step_s=first_step_s):
                trouble.enter("", record.mono_s)
                trouble.outcome, trouble.first_step_s = outcome, first_step_s
                self._closed.append(self._open.pop(trouble.incident))
            case _:
                pass

    def _seat(self, number: int) -> _Seat:
        return self._seats.setdefault(number, _Seat(name=f"s{number}"))

    # --- output

    @property
    def ended(self) -> bool:
        """Whether the last record of the run was seen."""
        return self._ended is not None

    def goodput(self, now_mono_s: float) -> float | None:
        """Goodput up to this instant, from closed steps alone; None before the first one. The report is exact."""
        if self._began_s is None or not self._steps:
            return None
        until_s = min(now_mono_s, self._ended_s)
        place_s = len(self._seats) * (until_s - self._began_s)
        place_s += sum(max(0.0, min(end_s, until_s) - begin_s) for begin_s, end_s in self._places.values())
        return min(1.0, len(self._seats) * self._useful_s / place_s) if place_s > 0 else None

    def render(self, now_mono_s: float) -> ConsoleRenderable:
        """The view at this instant of the node's monotonic clock."""
        incidents: list[ConsoleRenderable] = [self._open_panel(trouble, now_mono_s) for trouble in self._open.values()]
        if self._closed:
            incidents.append(self._closed_table())
        free_rows = self.console.height - _HEAD_ROWS - self._rows(incidents)
        seats = self._seat_table(now_mono_s, free_rows - _LOG_LINES_MIN)
        log_rows = max(_LOG_LINES_MIN, min(_LOG_LINES, free_rows - seats.row_count))
        lines = [*self._lines][-log_rows:]
        return Group(self._head(now_mono_s), Text(), seats, *incidents, Text(), *lines)

    def farewell(self) -> ConsoleRenderable:
        """What stays on the screen of a run that has ended: the numbers, and its last incidents."""
        parts: list[ConsoleRenderable] = [self._head(self._ended_s)]
        if self._closed:
            parts.append(self._closed_table())
        return Group(*parts)

    def _rows(self, parts: list[ConsoleRenderable]) -> int:
        return sum(len(self.console.render_lines(part, pad=False)) for part in parts)

    def _head(self, now_mono_s: float) -> Text:
        elapsed_s = 0.0 if self._began_s is None else max(0.0, now_mono_s - self._began_s)
        step = self._steps[-1].step if self._steps else None
        loss = mean_loss(self._steps[-1]) if self._steps else None
        head = Text.assemble(
            ("step ", "dim"), ("-" if step is None else f"{step:,}", "bold"),
            ("   loss ", "dim"), ("-" if loss is None else f"{loss:.4f}", "bold"),
            ("   steps/s ", "dim"), (self._rate_text(), "bold"),
            ("   goodput ", "dim"), (percent_text(self.goodput(now_mono_s)), "bold green"),
            ("   time ", "dim"), f"{elapsed_s:.1f} s",
        )  # fmt: skip
        if self._ended is not None:
            head.append(f"   {self._ended.outcome}", f"bold {outcome_style(self._ended.outcome)}")
        return head

    def _rate_text(self) -> str:
        if len(self._steps) < 2:  # noqa: PLR2004 - a rate needs two points
            return "-"
        span_s = self._steps[-1].closed_mono_s - self._steps[0].closed_mono_s
        return f"{(len(self._steps) - 1) / span_s:.2f}" if span_s > 0 else "-"

    def _seat_table(self, now_mono_s: float, rows: int) -> Table:
        """As many seats as there is room for: those that do not train are shown before those that do."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, width in (("seat", 8), ("status", 18), ("doing", 22)):
            table.add_column(name, min_width=width)
        for name in ("step", "loss"):
            table.add_column(name, justify="right", min_width=8)
        trouble = bool(self._open)
        room = max(_SEATS_MIN, rows - max(self._spare_target, len(self._spares)))
        shown = [*self._seats]
        if len(shown) > room:
            busy = sorted(shown, key=lambda number: self._seats[number].status_text(trouble=trouble) == "training")
            shown = sorted(busy[: room - 1])
        for number in shown:
            seat = self._seats[number]
            loss = "-" if seat.loss is None else f"{seat.loss:.4f}"
            step = "-" if seat.step is None else f"{seat.step:,}"
            table.add_row(
                Text(seat.name, style="bold"),
                _status(seat.status_text(trouble=trouble)),
                Text(seat.doing_text(now_mono_s)),
                step,
                loss,
            )
        if len(shown) < len(self._seats):
            table.add_row("...", Text(f"and {len(self._seats) - len(shown)} more seats", style="dim"), "", "", "")
        for proc, status in self._spares.items():
            table.add_row(Text(f"p{proc}", style="bold"), _status(f"spare, {status}"), "", "", "")
        for _ in range(self._spare_target - len(self._spares)):
            table.add_row(Text("-", style="dim"), Text("spare to come", style="dim"), "", "", "")
        return table

    def _open_panel(self, trouble: _Trouble, now_mono_s: float) -> Panel:
        phases = Text(phases_text({p: s for p, s in trouble.phases.items() if s >= _SHORT_S}, NBSP), style="dim")
        if trouble.phase:
            phases.append("  " if phases else "")
            phases.append(f"{trouble.phase}{NBSP}{max(0.0, now_mono_s - trouble.phase_since_s):.2f}", "bold yellow")
        body = Group(Text(one_line(trouble.summary)), Text(f"{trouble.fault}  {trouble.rung}", style="dim"), phases)
        title = f"incident {trouble.incident}, {max(0.0, now_mono_s - trouble.since_s):.2f} s"
        return Panel(body, title=title, title_align="left", border_style="red")

    def _closed_table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("#", "incident", "rung"):
            table.add_column(name, no_wrap=True)
        table.add_column("new step", justify="right")
        table.add_column("outcome")
        room = max(_SUMMARY_MIN, self.console.width - _BESIDE_SUMMARY)
        for trouble in self._closed:
            table.add_row(
                str(trouble.incident),
                _shortened(one_line(trouble.summary), room),
                Text(trouble.rung),
                "-" if trouble.first_step_s is None else f"{seconds_text(trouble.first_step_s)} s",
                Text(trouble.outcome, style=outcome_style(trouble.outcome)),
            )
        return table


def _shortened(text: str, room: int) -> Text:
    short = Text(text)
    short.truncate(room, overflow="ellipsis")
    return short


def _log_text(line: str, style: str) -> Text:
    """One row of the screen, however long the line is."""
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")


def _status(status: str) -> Text:
    known = {"training": "green", "seated": "green", "spare, ready": "green", "starting": "blue"}
    style = "red" if status.startswith("ended") else known.get(status, "yellow")
    return Text(status, style=style)


class LiveDisplay:
    """Draws a view on its console; where that is no terminal, writes a line for each record instead.

    It starts no thread: whoever feeds it calls ``tick`` about ten times a second. When it is closed, the view makes
    room for what comes after it; of a run that has ended, its farewell ``stays``.
    """

    def __init__(self, view: LiveView, *, stays: bool = True) -> None:
        self.view = view
        self._stays = stays
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.view.console.is_terminal:
            self._live = Live(console=self.view.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            if self._stays and self.view.ended:
                self.view.console.print(self.view.farewell())

    def feed(self, record: Record) -> None:
        """Show one record."""
        self.view.feed(record)
        if self._live is None and level_of(record.event) is not Level.DETAIL:
            self._print(log_line(record))

    def say(self, line: str) -> None:
        """Show a line of a worker's output."""
        self.view.say(line)
        if self._live is None:
            self._print(line)

    def tick(self) -> None:
        """Draw the view as it is now."""
        if self._live is not None:
            self._live.update(self.view.render(time.monotonic()), refresh=True)

    def _print(self, line: str) -> None:
        self.view.console.print(Text(line), soft_wrap=True)
