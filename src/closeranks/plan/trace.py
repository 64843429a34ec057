"""A failure trace after reading: records in UTC seconds, who was watched for how long, and what could not be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec

from closeranks.plan.checks import PlanInputError

SECONDS_PER_HOUR = 3600.0


class FailureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One failure of one unit. ``end_utc_s`` is None when the end was not written down."""

    unit: str
    start_utc_s: float
    end_utc_s: float | None = None
    cause: str = "unknown"
    domain: str = ""


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that was in service, failing or not, between two instants."""

    unit: str
    from_utc_s: float
    to_utc_s: float
    failed: bool = False  # ended by a failure; otherwise the life is censored there


class Unparsed(msgspec.Struct, frozen=True, kw_only=True):
    """A row that could not be read: its line number from 1, its text, and why."""

    line: int
    text: str
    problem: str


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a reader found in a file.

    ``watches`` is empty when the file says nothing about units in service; ``assumptions`` are sentences that the
    reader had to take for granted.
    """

    source: str
    records: tuple[FailureRecord, ...]
    watches: tuple[Watch, ...] = ()
    unparsed: tuple[Unparsed, ...] = ()
    assumptions: tuple[str, ...] = ()
    ignored: int = 0  # rows that are no failures by their own account


class TimeReader:
    """Reads times of a file into UTC seconds; remembers whether a zone had to be assumed."""

    def __init__(self, form: str | None = None, utc_offset_h: float = 0.0) -> None:
        """Read ISO 8601 or seconds since 1970, or ``form`` in the notation of ``strptime``."""
        self.form, self.zone = form, timezone(timedelta(hours=utc_offset_h)) if utc_offset_h else UTC
        self.zone_assumed = False

    def utc_s(self, text: str) -> float:
        """Return seconds since 1970 in UTC.

        Raises:
            ValueError: the text is no time in the expected form.

        """
        text = text.strip()
        if self.form is not None:
            moment = datetime.strptime(text, self.form)  # noqa: DTZ007 - the zone is set below
        else:
            try:
                return float(text)
            except ValueError:
                moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            self.zone_assumed = True
            moment = moment.replace(tzinfo=self.zone)
        return moment.timestamp()

    def assumptions(self) -> tuple[str, ...]:
        """Say what had to be assumed about zones."""
        return (f"times without a zone were read as {self.zone}",) if self.zone_assumed else ()


def utc_text(utc_s: float) -> str:
    """Return an instant as ISO 8601 in UTC, to the second. Source: ISO 8601."""
    return datetime.fromtimestamp(utc_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_record(
    *, unit: str, start_utc_s: float, end_utc_s: float | None, cause: str, domain: str = ""
) -> FailureRecord:
    """Return the record, or refuse one that ends before it starts.

    Raises:
        ValueError: the end lies before the start.

    Source: own; a negative repair is a slip of the pen, never a fact.

    """
    if end_utc_s is not None and end_utc_s < start_utc_s:
        message = f"ends {start_utc_s - end_utc_s:.0f} s before it starts"
        raise ValueError(message)
    return FailureRecord(
        unit=unit, start_utc_s=start_utc_s, end_utc_s=end_utc_s, cause=cause.strip().lower() or "unknown", domain=domain
    )


def require_any(trace: Trace) -> Trace:
    """Return the trace if at least one row was understood.

    Raises:
        PlanInputError: nothing could be read; the first problem is quoted.

    Source: own.

    """
    if trace.records or trace.watches or trace.ignored:
        return trace
    first = f"line {trace.unparsed[0].line}: {trace.unparsed[0].problem}" if trace.unparsed else "no rows"
    way_out = "choose another --format or map the columns with --column"
    raise PlanInputError(trace.source, "at least one row that can be read", first, way_out)
