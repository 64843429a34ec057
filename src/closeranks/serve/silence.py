"""When one exchange looks at the clock: for its deadline, and for a replica that has been silent for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from closeranks.serve.attempt import Attempt
from closeranks.serve.wheel import Due

if TYPE_CHECKING:
    from closeranks.serve.attempts import Attempts
    from closeranks.serve.gateway import Gateway

_PATIENCE: Final = 20  # times the allowed silence: then even a busy replica is given up
_LOOK_AGAIN_S: Final = 0.01


class Watch:
    """The timer of an exchange: moved on when it comes, while there is data, so that data does not have to touch it.

    It begins when something may be due before the gateway's next look at all exchanges, which begins it for the rest:
    most requests are over by then, and never have a timer.
    """

    __slots__ = ("_due", "_exchange", "_gateway")

    def __init__(self, gateway: Gateway, exchange: Attempts) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._due: Due | None = gateway.at(due_s(gateway, exchange, exchange.attempt), self._look)

    def follow(self, attempt: Attempt) -> None:
        """Another attempt, or a stream that has shown a quicker pace: what was to be looked at late is due earlier."""
        earlier_s = due_s(self._gateway, self._exchange, attempt)
        if self._due is None:
            self._due = self._gateway.at(earlier_s, self._look)
        elif earlier_s < self._due.when_s:
            self._due.cancel()
            self._due = self._gateway.at(earlier_s, self._look)

    def cancel(self) -> None:
        """It is over."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _look(self) -> None:
        self._due = None
        exchange, now_s = self._exchange, self._gateway.now_s()
        attempt = exchange.attempt
        if now_s >= exchange.ask.deadline_s:
            exchange.too_late()
        elif attempt is not None and not exchange.full and self._is_silent(attempt, now_s):
            exchange.silent(attempt, now_s - attempt.heard_s)
        elif not exchange.over:
            again_s = due_s(self._gateway, exchange, attempt)
            self._due = self._gateway.at(max(again_s, now_s + _LOOK_AGAIN_S), self._look)

    def _is_silent(self, attempt: Attempt, now_s: float) -> bool:
        """Whether the replica is to be given up.

        One that works for others meanwhile is busy, not gone; and where no other is better, there is nothing to gain.
        """
        allowed_s = _allowed_s(self._gateway, self._exchange, attempt)
        if now_s < attempt.heard_s + allowed_s:
            return False
        if now_s >= attempt.heard_s + _PATIENCE * allowed_s:
            return True
        works = attempt.body > 0 and now_s < attempt.replica.heard_s + allowed_s
        exchange = self._exchange
        return not works and exchange.traffic.elsewhere(now_s, exchange.ask, attempt.replica.name)


def due_s(gateway: Gateway, exchange: Attempts, attempt: Attempt | None) -> float:
    """When there is a reason to look at the clock."""
    deadline_s = exchange.ask.deadline_s
    if attempt is None:
        return deadline_s
    silent_s = attempt.heard_s + _allowed_s(gateway, exchange, attempt)
    return min(deadline_s, silent_s)


def _allowed_s(gateway: Gateway, exchange: Attempts, attempt: Attempt) -> float:
    """How long the replica may be silent."""
    allowed_s = None
    relay = exchange.relay
    if relay is not None and attempt.body and not attempt.preparing:
        allowed_s = relay.allowed_silence_s()
    return gateway.settings.timeouts.first_byte_s if allowed_s is None else allowed_s
