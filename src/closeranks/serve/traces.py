"""Traces: a span for the request and one for each replica that was asked, under the caller's own trace.

Source: W3C Trace Context, 3.2 (traceparent).
"""

from __future__ import annotations

import re
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from closeranks.serve.story import Story, Visit
from closeranks.serve.words import Outcome

_PARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_NANOSECONDS: Final = 1_000_000_000
_SERVER_ERROR: Final = 500


def ids_of(traceparent: str) -> tuple[str, str]:
    """Trace and span that a traceparent names; empty where it names none."""
    match = _PARENT.fullmatch(traceparent.strip())
    return (match[1], match[2]) if match and int(match[1], 16) and int(match[2], 16) else ("", "")


def traces() -> tuple[Traces, ...]:
    """The observer that makes spans, if the process has an OpenTelemetry provider that wants them."""
    return () if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) else (Traces(),)


class Traces:
    """See Observer. Spans go to whatever OpenTelemetry provider the process has."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("closeranks.serve")
        self._context = TraceContextTextMapPropagator()

    def ended(self, story: Story) -> None:
        """See Observer."""
        parent = self._context.extract({"traceparent": story.trace}) if story.trace else None
        attributes: dict[str, str | int | float | bool] = {
            "http.request.method": story.method,
            "url.path": story.path,
            "http.response.status_code": story.status,
            "gen_ai.request.model": story.model,
            "closeranks.level": story.level,
            "closeranks.resumed": story.resumed,
            "closeranks.exactness": story.exactness,
        }
        span = self._tracer.start_span(
            f"{story.method} {story.path}", parent, SpanKind.SERVER, attributes, start_time=_at(story, story.began_s)
        )
        if story.error or story.status >= _SERVER_ERROR:
            span.set_status(Status(StatusCode.ERROR, story.error))
        inside = trace.set_span_in_context(span)
        for visit in story.visits:
            child = self._tracer.start_span(
                f"{visit.kind} {visit.replica}",
                inside,
                SpanKind.CLIENT,
                _attributes(visit),
                start_time=_at(story, visit.began_s),
            )
            if visit.outcome not in (Outcome.OK, Outcome.CLIENT_FAULT):
                child.set_status(Status(StatusCode.ERROR, visit.detail))
            child.end(_at(story, visit.ended_s or story.ended_s))
        span.end(_at(story, story.ended_s))

    def close(self) -> None:
        """See Observer."""


def _attributes(visit: Visit) -> dict[str, str]:
    return {
        "closeranks.replica": visit.replica,
        "closeranks.kind": visit.kind,
        "closeranks.outcome": visit.outcome or "",
    }


def _at(story: Story, when_s: float) -> int:
    """Nanoseconds of the wall clock, from the loop's seconds."""
    return int((story.wall_s + when_s - story.began_s) * _NANOSECONDS)
