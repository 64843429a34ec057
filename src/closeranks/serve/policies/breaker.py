"""A circuit breaker that a lost probe cannot wedge and an old outcome cannot fool. Pure.

```
CLOSED --failures in a row, or too large a share of failures--> OPEN
OPEN ----its time is over, and a request takes the lease------> HALF_OPEN
HALF_OPEN --the leased request succeeds-----------------------> CLOSED
HALF_OPEN --it fails------------------------------------------> OPEN, for twice as long
HALF_OPEN --nothing is heard of it until its lease ends-------> as OPEN whose time is over
```

One that opens again within ``window_s`` of closing stays open for twice as long, too: half of what is broken often
passes a probe.

Every change has a number of its own, the epoch, and every request carries the epoch under which it went out. An
outcome counts only in its own epoch: what was begun before the breaker opened says nothing about the time after.

Whose fault an outcome is, is decided in one table: what the caller did wrong and what merely was too much at once are
not the replica's failures.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from closeranks.serve.policies.bounds import positive, within
from closeranks.serve.policies.window import Tally
from closeranks.serve.words import Outcome


class State(StrEnum):
    """Whether requests pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Verdict(StrEnum):
    """What an outcome says about who answered."""

    WELL = "well"
    FAULT = "fault"
    NOTHING = "nothing"


VERDICTS: Final = {
    Outcome.OK: Verdict.WELL,
    Outcome.CLIENT_FAULT: Verdict.WELL,  # it has judged the request, and answered
    Outcome.BUSY: Verdict.NOTHING,  # back-pressure
    Outcome.BROKEN: Verdict.FAULT,
    Outcome.SLOW: Verdict.FAULT,
    Outcome.UNREACHED: Verdict.FAULT,
    Outcome.GONE: Verdict.NOTHING,
}


# On Python 3.11 a member of an Enum is found by calling a function, and every request looks at these.
_CLOSED: Final = State.CLOSED
_HALF_OPEN: Final = State.HALF_OPEN
_WELL: Final = Verdict.WELL


class BreakerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[breaker]``."""

    in_a_row: int = 5  # failures without a success between them
    share: float = 0.5  # or this share of the outcomes of ``window_s``
    least: int = 20  # outcomes before a share means anything
    window_s: float = 10.0
    open_s: float = 5.0  # at first; it doubles while the probe fails
    open_max_s: float = 60.0
    lease_s: float = 30.0  # how long the one probe may take

    def __post_init__(self) -> None:
        positive(self, "in_a_row", "least", "window_s", "open_s", "open_max_s", "lease_s", "share")
        within(self, 0, 1, "share")


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """Goes out with a request and comes back with its outcome."""

    epoch: int
    leased: bool = False  # it is the one probe of a half-open breaker


class Breaker:
    """The breaker of one replica or dependency."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self.state = State.CLOSED
        self.epoch = 0
        self._ticket = Ticket(0)  # of this epoch: nearly all requests go out in the same one
        self.reason = ""  # of the last opening
        self.opened = 0  # times, ever
        self._in_a_row = 0
        self._good = Tally(settings.window_s)
        self._bad = Tally(settings.window_s)
        self.opened_s = 0.0  # when it opened last
        self._until_s = 0.0  # of the opening, or of the lease
        self._open_s = settings.open_s
        self._closed_s = float("-inf")

    def retune(self, settings: BreakerSettings) -> None:
        """Other settings from now on; the state, and an opening or a window that has begun, stay as they are."""
        self._settings = settings

    def blocks(self, now_s: float) -> bool:
        """Whether no request may go out, not even as a probe."""
        return self.state is not State.CLOSED and now_s < self._until_s

    def wants_probe(self, now_s: float) -> bool:
        """Whether the next request would be the probe."""
        return self.state is not State.CLOSED and now_s >= self._until_s

    def retry_after_s(self, now_s: float) -> float:
        """How long until a request may go out."""
        return max(0.0, self._until_s - now_s) if self.state is not State.CLOSED else 0.0

    def probing(self, now_s: float) -> bool:
        """Whether the lease is taken."""
        return self.state is State.HALF_OPEN and now_s < self._until_s

    def begin(self, now_s: float, *, at_once: bool = False) -> Ticket:
        """A request goes out; it takes the lease if there is one to take, and with ``at_once`` before its time."""
        if self.state is _CLOSED:
            if self._ticket.epoch != self.epoch:
                self._ticket = Ticket(self.epoch)
            return self._ticket
        if self.wants_probe(now_s) or (at_once and not self.probing(now_s)):
            self.epoch += 1
            self.state, self._until_s = State.HALF_OPEN, now_s + self._settings.lease_s
            return Ticket(self.epoch, leased=True)
        return Ticket(-1)  # sent in spite of the breaker: its outcome is not evidence

    def heard(self, now_s: float, ticket: Ticket) -> Ticket:
        """The answer has begun, and well: enough for a probe. The ticket for the rest of it.

        A stream may take minutes; nobody else should wait for its end.
        """
        if self.state is not _HALF_OPEN or ticket.epoch != self.epoch:
            return ticket
        self._close(now_s)
        return Ticket(self.epoch)

    def end(self, now_s: float, ticket: Ticket, outcome: Outcome) -> bool:
        """A request has ended.

        Returns:
            Whether this has opened the breaker.
        """
        if ticket.epoch != self.epoch:
            return False
        verdict = VERDICTS[outcome]
        if self.state is _HALF_OPEN:
            return self._probed(now_s, verdict, outcome)
        if verdict is _WELL:
            self._in_a_row = 0
            self._good.add(now_s)
        elif verdict is Verdict.FAULT:
            self._in_a_row += 1
            self._bad.add(now_s)
            return self._judge(now_s)
        return False

    def trip(self, now_s: float, reason: str, for_s: float | None = None) -> None:
        """Open, whatever was seen here: somebody else has seen enough."""
        if self.state is State.OPEN and now_s < self._until_s:
            return
        self._open(now_s, reason)
        if for_s is not None:
            self._until_s = now_s + for_s

    def reset(self) -> None:
        """Close: somebody has made sure that all is well."""
        if self.state is not State.CLOSED:
            self._close(float("-inf"))

    def _judge(self, now_s: float) -> bool:
        settings = self._settings
        if self._in_a_row >= settings.in_a_row:
            self._open(now_s, f"{self._in_a_row} failures in a row")
            return True
        bad, good = self._bad.total(now_s), self._good.total(now_s)
        if bad + good >= settings.least and bad >= settings.share * (bad + good):
            self._open(now_s, f"{bad:g} of {bad + good:g} requests failed within {settings.window_s:g} s")
            return True
        return False

    def _probed(self, now_s: float, verdict: Verdict, outcome: Outcome) -> bool:
        if verdict is Verdict.WELL:
            self._close(now_s)
        elif verdict is Verdict.FAULT:
            self._open(now_s, f"the probe was {outcome}")
            return True
        else:  # the probe said nothing: the next request is one
            self.epoch += 1
            self._until_s = now_s
        return False

    def _open(self, now_s: float, reason: str) -> None:
        settings = self._settings
        soon = self.state is State.HALF_OPEN or now_s < self._closed_s + settings.window_s
        self._open_s = min(2 * self._open_s, settings.open_max_s) if soon else settings.open_s
        self.state, self.reason = State.OPEN, reason
        self.epoch += 1
        self.opened, self.opened_s = self.opened + 1, now_s
        self._until_s = now_s + self._open_s

    def _close(self, now_s: float) -> None:
        settings = self._settings
        self.state, self._in_a_row, self._closed_s = State.CLOSED, 0, now_s
        self.epoch += 1
        self._good, self._bad = Tally(settings.window_s), Tally(settings.window_s)
