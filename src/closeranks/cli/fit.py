"""``closeranks fit``: from a failure log to rates with intervals, and a reliability.toml for the planner."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from closeranks.plan.fit import FitReport, Period
    from closeranks.plan.trace import Trace

BAD_INPUT = 2
_ROWS_SHOWN = 5


class LogFormat(StrEnum):
    """The forms of a failure log."""

    AUTO = "auto"
    CSV = "csv"
    JOURNAL = "journal"
    KUBERNETES = "kubernetes"
    LANL = "lanl"
    SLURM = "slurm"
    TITAN = "titan"
    XID = "xid"


def _text_of(file: Path) -> str:
    import gzip
    import lzma

    raw = file.read_bytes()
    if file.suffix == ".xz":
        raw = lzma.decompress(raw)
    elif file.suffix == ".gz":
        raw = gzip.decompress(raw)
    return raw.decode("utf-8", errors="replace")


def _instant(text: str | None) -> float | None:
    from closeranks.plan.trace import TimeReader

    if text is None:
        return None
    try:
        return TimeReader().utc_s(text)
    except ValueError:
        message = f"{text!r}: expected a time as 2026-01-31T00:00:00Z or seconds since 1970"
        raise typer.BadParameter(message) from None


def _pairs(option: str, values: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals:
            message = f"{option} {value!r}: expected NAME=VALUE"
            raise typer.BadParameter(message)
        pairs[name] = rest
    return pairs


def read_trace(
    text: str,
    form: str,
    **known: Any,
) -> Trace:
    """Return the trace of a text in one of the known forms; ``known`` are the options that its reader takes."""
    from msgspec.structs import replace

    from closeranks.plan import read_csv, read_journal, read_kubernetes, read_slurm, read_xid

    if form == "lanl":
        return read_csv.read_lanl(text, known["system"])
    if form == "titan":
        return read_csv.read_titan(text)
    if form == "slurm":
        return read_slurm.read_slurm(text, known["utc_offset_h"])
    if form == "kubernetes":
        return read_kubernetes.read_kubernetes(text)
    if form == "xid":
        return read_xid.read_xid(text, known["year"], known["boot_utc_s"])
    if form == "journal":
        return read_journal.read_journal(text)
    header = text.splitlines()[0].split(",") if text else []
    columns = read_csv.guess_columns(header, **known["columns"])
    columns = replace(
        columns,
        select=tuple(known["only"].items()),
        time_form=known["time_form"],
        utc_offset_h=known["utc_offset_h"],
    )
    return read_csv.read_columns(text, columns)


def read_log(path: Path, system: str | None) -> Trace:
    """Return the trace of a log whose form shows in its first lines; ``system`` as ``--system`` of a LANL file."""
    from closeranks.plan.read_any import detect_format

    text = _text_of(path)
    unset: dict[str, Any] = {"columns": {}, "only": {}, "time_form": None, "utc_offset_h": 0.0}
    return read_trace(text, detect_format(text, str(path)), system=system, year=None, boot_utc_s=None, **unset)


def _hours(hours: float) -> str:
    if hours == float("inf"):
        return "no upper bound"
    return f"{hours:,.2f} h" if hours < 1_000 else f"{hours:,.0f} h"  # noqa: PLR2004 - digits enough


def _show(console: Console, report: FitReport) -> None:
    from rich.table import Table

    console.print(f"[bold]{report.source}[/]: {report.failures:,} failures in {report.events:,} events, ", end="")
    console.print(f"{report.units:,} units, {report.from_utc[:10]} to {report.to_utc[:10]}")
    style = "green" if report.one_process else "bold yellow"
    console.print(f"[{style}]{report.verdict}[/]\n")
    table = Table(title=f"Mean time between failures ({report.unit.confidence:.0%} intervals)", title_justify="left")
    for name in ("", "failures", "whole system", "interval", "one unit", "interval"):
        table.add_column(name, justify="left" if not name else "right")
    rows = [("all", report.system, report.unit), ("events", report.event_system, None)]
    rows += [(cause.name, cause.system, cause.unit) for cause in report.causes]
    for name, system, unit in rows:
        table.add_row(
            name,
            f"{system.failures:,}",
            _hours(system.mtbf_h),
            f"{_hours(system.low_h)} .. {_hours(system.high_h)}",
            _hours(unit.mtbf_h) if unit else "",
            f"{_hours(unit.low_h)} .. {_hours(unit.high_h)}" if unit else "",
        )
    console.print(table)
    _show_laws(console, report)
    _show_periods(console, "Stretches of one rate", report.stretches)
    _show_periods(console, "By year", report.years)
    if report.repairs is not None:
        fixed = report.repairs
        console.print(
            f"Repairs: median {fixed.median_h:.2f} h, mean {fixed.mean_h:.2f} h, 90 % within {fixed.p90_h:.2f} h "
            f"({fixed.count:,} of them; plan spares by the mean)"
        )
    if report.lemons:
        worst = ", ".join(f"{lemon.unit} ({lemon.failures})" for lemon in report.lemons[:_ROWS_SHOWN])
        console.print(f"Lemons: {len(report.lemons)} units fail too often to be chance; worst: {worst}")
    for text in report.assumptions:
        console.print(f"[dim]assumed: {text}[/]")


def _show_laws(console: Console, report: FitReport) -> None:
    from rich.table import Table

    if not report.laws:
        return
    table = Table(title=f"Laws of the {report.law_of}, best first", title_justify="left")
    for name in ("law", "parameters", "mean", "median", "AIC above the best"):
        table.add_column(name)
    for law in report.laws:
        values = ", ".join(f"{name} {value:.4g}" for name, value in law.parameters.items())
        if law.name == "weibull":
            values += f" (shape {law.shape_low:.3f} .. {law.shape_high:.3f})"
        table.add_row(
            law.name, values, _hours(law.mean_h), _hours(law.median_h), f"{law.aic - report.laws[0].aic:,.1f}"
        )
    console.print(table)


def _show_periods(console: Console, title: str, periods: tuple[Period, ...]) -> None:
    from rich.table import Table

    if len(periods) < 2:  # noqa: PLR2004 - one period is the whole record
        return
    table = Table(title=title, title_justify="left")
    for name in ("", "from", "to", "failures", "MTBF of one unit", "interval"):
        table.add_column(name, justify="left" if name in {"", "from", "to"} else "right")
    for period in periods:
        unit = period.unit
        table.add_row(
            period.name,
            period.from_utc[:10],
            period.to_utc[:10],
            f"{unit.failures:,}",
            _hours(unit.mtbf_h),
            f"{_hours(unit.low_h)} .. {_hours(unit.high_h)}",
        )
    console.print(table)


def _show_unparsed(console: Console, report: FitReport, *, everything: bool) -> None:
    if not report.unparsed:
        return
    shown = report.unparsed if everything else report.unparsed[:_ROWS_SHOWN]
    console.print(f"[yellow]{len(report.unparsed):,} rows could not be read:[/]")
    for row in shown:
        console.print(f"  line {row.line}: {row.problem}: {row.text[:100]}", markup=False, highlight=False)
    if len(shown) < len(report.unparsed):
        console.print(f"  ... and {len(report.unparsed) - len(shown):,} more (--list-unparsed)")


def fit(  # noqa: PLR0913, PLR0917 - flags of a command
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="a failure log; .xz and .gz are unpacked")],
    form: Annotated[LogFormat, typer.Option("--format", help="what the log is")] = LogFormat.AUTO,
    column: Annotated[
        list[str] | None, typer.Option(help="csv: ROLE=COLUMN; roles start, end, unit, cause, domain")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="csv: COLUMN=VALUE, rows to take")] = None,
    time_format: Annotated[str | None, typer.Option(help="csv: form of times, as %d.%m.%Y %H:%M")] = None,
    utc_offset_h: Annotated[float, typer.Option(help="hours to UTC of times without a zone")] = 0.0,
    system: Annotated[str | None, typer.Option(help="lanl: one system by its number")] = None,
    year: Annotated[int | None, typer.Option(help="xid: the year of syslog lines")] = None,
    boot: Annotated[str | None, typer.Option(help="xid: when the machine booted, for dmesg")] = None,
    cause: Annotated[list[str] | None, typer.Option(help="a cause to bound even if it was never seen")] = None,
    units: Annotated[int | None, typer.Option(min=1, help="units that were watched, failing or not")] = None,
    begin: Annotated[str | None, typer.Option("--from", help="when watching began")] = None,
    end: Annotated[str | None, typer.Option("--to", help="when watching ended")] = None,
    group_s: Annotated[float, typer.Option(min=0, help="starts closer than this are one event")] = 60.0,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999)] = 0.95,
    out: Annotated[Path | None, typer.Option(help="write the rates here, for closeranks plan")] = None,
    list_unparsed: Annotated[bool, typer.Option(help="list every row that could not be read")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the whole report as JSON")] = False,
) -> None:
    """Fit failure rates to a log: MTBF by cause with intervals, laws, trends, repairs, lemons."""
    import msgspec

    from closeranks.plan.checks import PlanInputError
    from closeranks.plan.fit import FitOptions, fit_trace
    from closeranks.plan.read_any import detect_format
    from closeranks.plan.reliability_file import of_report, to_toml

    options = FitOptions(
        group_s=group_s,
        confidence=confidence,
        units=units,
        causes=tuple(cause or []),
        from_utc_s=_instant(begin),
        to_utc_s=_instant(end),
    )
    try:
        text = _text_of(file)
        chosen = detect_format(text, str(file)) if form is LogFormat.AUTO else form.value
        trace = read_trace(
            text,
            chosen,
            columns=_pairs("--column", column or []),
            only=_pairs("--only", only or []),
            time_form=time_format,
            utc_offset_h=utc_offset_h,
            system=system,
            year=year,
            boot_utc_s=_instant(boot),
        )
        report = fit_trace(trace, options)
    except PlanInputError as error:
        sys.stderr.write(f"closeranks fit: {error}\n")
        raise typer.Exit(BAD_INPUT) from None
    if out is not None:
        out.write_text(to_toml(of_report(report, file.name)))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
        return
    from rich.console import Console

    from closeranks.cli.text_page import FILE_WIDTH

    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    _show(console, report)
    _show_unparsed(console, report, everything=list_unparsed)
    if out is not None:
        console.print(
            f"\nwrote {out}; next: closeranks plan --reliability {out} ...",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("fit")(fit)
