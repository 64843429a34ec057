"""When one exchange looks at the clock: for its deadline, and for a replica that has been silent for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from closeranks.serve.attempt import Attempt
from closeranks.serve.wheel import Due

if TYPE_CHECKING:
    from closeranks.serve.exchange import Exchange
    from closeranks.serve.gateway import Gateway

_PATIENCE: Final = 20  # times the allowed silence: then even a busy replica is given up
_LOOK_AGAIN_S: Final = 0.01


class Watch:
    """The timer of an exchange: moved on when it comes, while there is data, so that data does not have to touch it."""

    __slots__ = ("_due", "_exchange", "_gateway")

    def __init__(self, gateway: Gateway, exchange: Exchange) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._due: Due | None = None

    def follow(self, attempt: Attempt) -> None:
        """From now on this attempt is watched."""
        if self._due is None:
            self._due = self._gateway.at(self._due_s(attempt), self._look)

    def look_earlier(self, attempt: Attempt) -> None:
        """The stream has begun to flow, or has shown a quicker pace: what was to be looked at late is due earlier."""
        due_s = self._due_s(attempt)
        if self._due is not None and due_s < self._due.when_s:
            self._due.cancel()
            self._due = self._gateway.at(due_s, self._look)

    def cancel(self) -> None:
        """It is over."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _due_s(self, attempt: Attempt) -> float:
        """When there is a reason to look at the clock."""
        return min(self._exchange.ask.deadline_s, attempt.heard_s + self._allowed_s(attempt))

    def _allowed_s(self, attempt: Attempt) -> float:
        allowed_s = None
        relay = self._exchange.relay
        if relay is not None and attempt.body and not attempt.preparing:
            allowed_s = relay.allowed_silence_s()
        return self._gateway.settings.timeouts.first_byte_s if allowed_s is None else allowed_s

    def _look(self) -> None:
        self._due = None
        exchange, now_s = self._exchange, self._gateway.now_s()
        attempt = exchange.attempt
        if now_s >= exchange.ask.deadline_s:
            exchange.too_late()
        elif attempt is not None and not exchange.full and self._is_silent(attempt, now_s):
            exchange.silent(attempt, now_s - attempt.heard_s)
        elif not exchange.over:
            due_s = exchange.ask.deadline_s if attempt is None else self._due_s(attempt)
            self._due = self._gateway.at(max(due_s, now_s + _LOOK_AGAIN_S), self._look)

    def _is_silent(self, attempt: Attempt, now_s: float) -> bool:
        """Whether the replica is to be given up.

        One that works for others meanwhile is busy, not gone; and where no other is better, there is nothing to gain.
        """
        allowed_s = self._allowed_s(attempt)
        if now_s < attempt.heard_s + allowed_s:
            return False
        if now_s >= attempt.heard_s + _PATIENCE * allowed_s:
            return True
        works = attempt.body > 0 and now_s < attempt.replica.heard_s + allowed_s
        exchange = self._exchange
        return not works and exchange.traffic.elsewhere(now_s, exchange.ask, attempt.replica.settings.name)
