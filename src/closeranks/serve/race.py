"""An attempt that has no first byte, and the hedge that may overtake it: the first good head decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from closeranks.serve.attempt import Attempt
from closeranks.serve.wheel import Due
from closeranks.serve.words import Kind, Outcome

if TYPE_CHECKING:
    from closeranks.serve.attempts import Attempts
    from closeranks.serve.gateway import Gateway

_TOO_MANY, _UNAVAILABLE, _SERVER_ERROR = 429, 503, 500
BUSY: Final = frozenset({_TOO_MANY, _UNAVAILABLE})


def fault_of(status: int) -> Outcome | None:
    """What such an answer says against its replica; None: nothing, it is the answer."""
    if status in BUSY:
        return Outcome.BUSY
    return Outcome.BROKEN if status >= _SERVER_ERROR else None


class Race:
    """Begins when the first attempt goes out; the hedge follows after ``after_s``, if one may be made.

    The exchange goes on with one attempt at a time and a relay is fed by one only: while two are under way neither
    has been heard by anybody but the race.
    """

    def __init__(self, gateway: Gateway, exchange: Attempts, first: Attempt, after_s: float) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._first = first
        self.hedge: Attempt | None = None
        self._timer: Due = gateway.at(first.visit.began_s + after_s, self._overtake)

    def _overtake(self) -> None:
        exchange, name = self._exchange, self._first.replica.name
        asked = frozenset(visit.replica for visit in exchange.story.visits)
        second = exchange.traffic.hedge(self._gateway.now_s(), exchange.ask, name, asked)
        replica = self._gateway.replicas.get(second)  # a reload may have taken it out
        if replica is not None:
            self.hedge = exchange.open(replica, Kind.HEDGE, self._first.words)

    def on_head(self, attempt: Attempt) -> bool:
        """Whether this attempt goes on; if not, the other one does."""
        fault = fault_of(attempt.status)
        if fault is not None:
            return not self.lost(attempt, fault, f"status {attempt.status}")
        slower = self._over(attempt)
        if slower is not None:
            self._exchange.leave_to(attempt, slower, Outcome.GONE, "another replica was quicker")
        return True

    def lost(self, attempt: Attempt, outcome: Outcome, detail: str) -> bool:
        """This attempt has failed; whether the other one goes on."""
        other = self._over(attempt)
        if other is not None:
            self._exchange.leave_to(other, attempt, outcome, detail)
        return other is not None

    def cancel(self) -> None:
        """Nobody waits any more. The first attempt is the exchange's own to end."""
        hedge = self.hedge
        if self._over(self._first) is not None and hedge is not None:
            self._exchange.end(hedge, Outcome.GONE)

    def _over(self, attempt: Attempt) -> Attempt | None:
        """The race is decided; the other attempt, if there is one."""
        self._timer.cancel()
        hedge, self.hedge = self.hedge, None
        if hedge is None:
            return None
        return hedge if attempt is self._first else self._first
