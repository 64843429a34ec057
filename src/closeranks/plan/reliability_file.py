"""``reliability.toml``: what a fit found, with its provenance, in the form that the planner reads."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec

from closeranks.plan.checks import PlanInputError
from closeranks.toml_text import read_toml

if TYPE_CHECKING:
    from closeranks.plan.fit import FitReport

FORMAT = 1


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the numbers come from."""

    file: str
    kind: str
    from_utc: str
    to_utc: str
    failures: int
    events: int
    units: int
    unit_exposure_h: float
    unparsed_rows: int = 0
    assumptions: tuple[str, ...] = ()


class Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MTBF of one unit with its interval; ``high_h`` infinite after zero failures."""

    mtbf_h: float
    low_h: float
    high_h: float
    failures: int
    confidence: float = 0.95


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Failures of one unit by one cause."""

    name: str
    mtbf_h: float
    low_h: float
    high_h: float
    failures: int


class Law(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fitted law by name and parameters."""

    of: str
    name: str
    parameters: dict[str, float]
    mean_h: float


class Repair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Repair times; plan spares by the mean."""

    count: int
    median_h: float
    mean_h: float
    p90_h: float


class Process(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether one rate describes all of the record; the rate of the last stretch."""

    one_process: bool
    verdict: str
    current: Rate
    current_from_utc: str


class Reliability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    format: int
    source: Source
    unit: Rate
    process: Process
    cause: tuple[Cause, ...] = ()
    law: Law | None = None
    repair: Repair | None = None
    lemons: tuple[str, ...] = ()

    @property
    def planning(self) -> Rate:
        """The rate to plan with: the last stretch where the rate has changed, else the whole record."""
        return self.unit if self.process.one_process else self.process.current


def of_report(report: FitReport, file: str) -> Reliability:
    """Return the part of a report that planning needs.

    Source: ``plan.fit``.
    """
    current = report.current.unit

    def rate(estimate: Any) -> Rate:
        return Rate(
            mtbf_h=estimate.mtbf_h,
            low_h=estimate.low_h,
            high_h=estimate.high_h,
            failures=estimate.failures,
            confidence=estimate.confidence,
        )

    best = report.laws[0] if report.laws else None
    fixed = report.repairs
    return Reliability(
        format=FORMAT,
        source=Source(
            file=file,
            kind=report.source,
            from_utc=report.from_utc,
            to_utc=report.to_utc,
            failures=report.failures,
            events=report.events,
            units=report.units,
            unit_exposure_h=report.unit_exposure_h,
            unparsed_rows=len(report.unparsed),
            assumptions=report.assumptions,
        ),
        unit=rate(report.unit),
        process=Process(
            one_process=report.one_process,
            verdict=report.verdict,
            current=rate(current),
            current_from_utc=report.current.from_utc,
        ),
        cause=tuple(
            Cause(
                name=cause.name,
                mtbf_h=cause.unit.mtbf_h,
                low_h=cause.unit.low_h,
                high_h=cause.unit.high_h,
                failures=cause.unit.failures,
            )
            for cause in report.causes
        ),
        law=Law(of=report.law_of, name=best.name, parameters=best.parameters, mean_h=best.mean_h) if best else None,
        repair=Repair(count=fixed.count, median_h=fixed.median_h, mean_h=fixed.mean_h, p90_h=fixed.p90_h)
        if fixed
        else None,
        lemons=tuple(lemon.unit for lemon in report.lemons),
    )


def measured_of(fitted: Reliability, unit_accelerators: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the ``measured`` and ``part`` tables of a cluster.toml that the file stands for.

    Raises:
        PlanInputError: it holds no failure.

    Source: exposure is MTBF times failures; after none, what the bound of its confidence rests on.

    """
    rate = fitted.planning
    unit_h = rate.mtbf_h * rate.failures if rate.failures else rate.low_h * -math.log(1 - rate.confidence)
    measured = {
        "failures": rate.failures,
        "unit_h": unit_h,
        "unit_accelerators": unit_accelerators,
        "confidence": rate.confidence,
    }
    parts = [
        {"name": cause.name, "mtbf_h": cause.mtbf_h, "serves": unit_accelerators}
        for cause in fitted.cause
        if cause.failures
    ]
    if not parts:
        raise PlanInputError(fitted.source.file, "at least one cause", "none", "fit a log that has failures")
    return measured, parts


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isinf(value) or math.isnan(value):
            return str(value)
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    message = f"{type(value).__name__} has no form in this file"
    raise TypeError(message)


def _table(name: str, table: dict[str, Any], *, repeated: bool = False) -> list[str]:
    lines = [f"[[{name}]]" if repeated else f"[{name}]"]
    nested = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines += [f"{key} = {_value(value)}" for key, value in table.items() if key not in nested]
    for key, value in nested.items():
        lines += _table(f"{name}.{key}", value)
    return [*lines, ""] if lines[-1] else lines


def to_toml(reliability: Reliability) -> str:
    """Return the file's text; ``from_toml`` gives the same value back.

    Source: TOML 1.0.
    """
    built: dict[str, Any] = msgspec.to_builtins(reliability)
    lines = ["# Failure rates of one unit, in hours, written by closeranks fit.", ""]
    lines += [f"{key} = {_value(value)}" for key, value in built.items() if key in {"format", "lemons"}]
    lines.append("")
    for key, value in built.items():
        if isinstance(value, dict):
            lines += _table(key, value)
    for cause in built["cause"]:
        lines += _table("cause", cause, repeated=True)
    return "\n".join(lines).rstrip() + "\n"


def from_toml(text: str, where: str = "reliability.toml") -> Reliability:
    """Return a written file.

    Raises:
        TomlProblem: no TOML, an unknown key, a wrong type or a missing key.
        PlanInputError: an unknown format.

    Source: ``to_toml``.

    """
    found = read_toml(text, Reliability, where)
    if found.format != FORMAT:
        key = f"{where}: format"
        raise PlanInputError(key, str(FORMAT), found.format, "fit the trace again with this version")
    return found
