"""How a request comes to be answered: admission, its level of the ladder, or the stream that it goes on with."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from closeranks.serve.delivery import Delivery
from closeranks.serve.fallbacks import LADDER_PATHS
from closeranks.serve.http.head import Request
from closeranks.serve.sessions.keeper import Keeper
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.wheel import Due
from closeranks.serve.words import Ask, Kind, Shed, Waits

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.http.server import ClientConnection

_OK, _UNAVAILABLE = 200, 503


class Entrance(Delivery):
    """The beginning of an exchange, until the first replica is asked."""

    _turn: Due | None = None  # until when it waits for its admission
    _kind = Kind.FIRST

    def __init__(self, gateway: Gateway, request: Request, client: ClientConnection, ask: Ask) -> None:
        super().__init__(gateway, request, client, ask)
        self.traffic = gateway.traffic

    def go_on(self, request: Request, relay: CompletionsRelay, keeper: Keeper, backlog: bytes) -> None:
        """Answer with the rest of a stream that was claimed: what was kept, then what a replica adds."""
        if self.over:
            return
        self._request = request
        self.relay, self._keeper, self._kind, self._forwarding = relay, keeper, Kind.RESUME, True
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
        match self.traffic.admit(self._gateway.now_s(), self.ask):
            case Shed() as shed:
                self.story.shed = True
                self.refuse(shed.status, shed.reason, shed.retry_after_s)
            case Waits() as waits:
                self._gateway.wait(self)
                self._turn = self._gateway.at(waits.until_s, self._waited_too_long)
            case _:
                self.admitted()

    def admitted(self) -> None:
        """The request may begin."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        now_s = self._gateway.now_s()
        if self._request.path.endswith(LADDER_PATHS):
            course = self.traffic.course(now_s, self.ask)
            self.story.level = course.level
            if course.level and not self._degrade(now_s, course.level):
                return
        self.relay = self._gateway.relay_for(self._request, self.ask)
        if isinstance(self.relay, CompletionsRelay):
            self._keeper = self._gateway.keeper_for(self._request, self.relay, self._client.send, self.taken_over)
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
