"""How a request comes to be answered: admission, its level of the ladder, or the stream that it goes on with."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from closeranks.serve.delivery import Delivery
from closeranks.serve.http.head import Request
from closeranks.serve.sessions.keeper import Keeper
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.traffic import Traffic
from closeranks.serve.wheel import Due
from closeranks.serve.words import Admitted, Kind, Waits

_OK, _UNAVAILABLE = 200, 503
_FIRST: Final = Kind.FIRST


class Entrance(Delivery, eq=False, kw_only=True):
    """The beginning of an exchange, until the first replica is asked."""

    traffic: Traffic
    _turn: Due | None = None  # until when it waits for its admission
    _kind: Kind = _FIRST

    def go_on(self, request: Request, relay: CompletionsRelay, keeper: Keeper, backlog: bytes) -> None:
        """Answer with the rest of a stream that was claimed: what was kept, then what a replica adds."""
        if self.over:
            return
        self._request = request
        self.relay, self._keeper, self._kind = relay, keeper, Kind.RESUME
        lines = b"content-type: text/event-stream\r\nx-closeranks-stream: %b\r\n" % keeper.stream.encode()
        self._begun(_OK, lines, None)
        self._client.send(backlog)
        if relay.seen.done:
            self._finish()
        else:
            self._dispatch()

    def taken_over(self) -> None:
        """Another connection goes on with the stream: nothing more may be said here."""
        self._let_go()
        self._keeper = None
        self._close()
        self._client.abort()

    def begin(self) -> None:
        """Ask for admission, and go on when it is given."""
        answer = self.traffic.admit(self.ask.arrived_s, self.ask)
        if isinstance(answer, Admitted):
            self.admitted()
        elif isinstance(answer, Waits):
            self._gateway.wait(self)
            self._turn = self._gateway.at(answer.until_s, self._waited_too_long)
        else:
            self.story.shed = True
            self.refuse(answer.status, answer.reason, answer.retry_after_s)

    def admitted(self) -> None:
        """The request may begin."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        now_s = self._gateway.now_s()
        if self.traffic.has_ladder and self.ask.laddered:
            level = self.traffic.course(now_s, self.ask).level
            if level:
                self.story.level = level
                if not self._degrade(now_s, level):
                    return
        streams = self._gateway.streams
        if streams.resumes and (relay := streams.relay_for(self._request, self.ask)) is not None:
            self.relay = relay
            self._keeper = streams.keeper_for(self._request, relay, self._client.send, self.taken_over)
        self._dispatch()

    def _degrade(self, now_s: float, level: int) -> bool:
        """Ask for less; False: it is answered already, or cannot be."""
        settings = self.traffic.ladder.levels[level].settings
        if settings.kind == "model":
            self._degraded = settings.name
            self._request = self._gateway.fallbacks.smaller(self._request, settings)
            return True
        answer = self._gateway.fallbacks.local(self._gateway.clock(), self.ask, self._request, level)
        if answer is None:
            self.refuse(_UNAVAILABLE, f"the service is at level {settings.name}, which has no answer to this", 5.0)
            return False
        self.traffic.answered(now_s, self.ask)
        self._answer_locally(answer)
        return False

    def _waited_too_long(self) -> None:
        self.refuse(_UNAVAILABLE, "waited too long for its turn", 1.0)

    @abstractmethod
    def _dispatch(self) -> None:
        """Ask a replica."""

    @abstractmethod
    def _let_go(self) -> None:
        """The replica's work is not wanted any more."""
