"""What became of one request, told once at its end to metrics, logs and traces. Pure."""

from __future__ import annotations

from typing import Protocol

import msgspec

from closeranks.serve.http.head import Request
from closeranks.serve.words import Ask, Kind, Outcome


class Visit(msgspec.Struct, gc=False):
    """One attempt at one replica; times are seconds of the loop's clock."""

    replica: str
    kind: Kind
    began_s: float
    ended_s: float = 0.0
    outcome: Outcome | None = None
    detail: str = ""


class Story(msgspec.Struct):
    """One request from its arrival to its last byte."""

    number: int
    method: str
    path: str
    client: str
    began_s: float
    wall_s: float  # of the clock on the wall, when it began
    tenant: str = ""
    model: str = ""
    stream: bool = False
    trace: str = ""  # W3C traceparent of the caller, if it gave one
    status: int = 0  # 0: the client left before an answer began
    first_byte_s: float = 0.0  # after the beginning; 0: there was none
    ended_s: float = 0.0
    sent_bytes: int = 0
    level: int = 0  # of the ladder; 0: served in full
    without: tuple[str, ...] = ()  # the dependencies that its replica was told not to ask
    exactness: str = ""
    error: str = ""
    shed: bool = False
    whole: bool = False  # the client has had its last byte
    visits: list[Visit] = []

    @property
    def took_s(self) -> float:
        """From the first byte of the request to the last of the answer."""
        return self.ended_s - self.began_s

    @property
    def resumed(self) -> int:
        """How often the answer went on at another replica in its middle."""
        return sum(visit.kind is Kind.RESUME and visit.outcome is Outcome.OK for visit in self.visits)


def begun(request: Request, ask: Ask, epoch_s: float) -> Story:
    """The beginning of what will be told of a request that came at this time of the calendar."""
    told = request.notes.get(Story)
    if told is None:
        texts = request.method, request.path, request.header(b"traceparent") or b""
        told = request.notes[Story] = tuple(text.decode("latin-1") for text in texts)
    method, path, trace = told
    return Story(  # by place: names would take a third of its time
        ask.number,
        method,
        path,
        request.client,
        ask.arrived_s,
        epoch_s,
        ask.tenant,
        ask.model,
        ask.stream,
        trace,
    )


class Observer(Protocol):
    """Hears of every request once it has ended."""

    def ended(self, story: Story) -> None:
        """All that is to be known of it."""

    def close(self) -> None:
        """The gateway ends."""
