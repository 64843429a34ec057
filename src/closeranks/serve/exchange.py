"""One request from its arrival to its last byte: attempts at replicas, until one of them has answered it."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Final

from closeranks.serve.attempt import HELD_BYTES_MAX, Aside, Attempt
from closeranks.serve.doubles import Candidate, Case
from closeranks.serve.entrance import Entrance
from closeranks.serve.fallbacks import WITHOUT
from closeranks.serve.http.head import Request, first, request_bytes
from closeranks.serve.http.upstream import Cut
from closeranks.serve.policies.retry_budget import retry_after_s
from closeranks.serve.race import Race, fault_of
from closeranks.serve.relay import Finished, NoResume, Prepare, Relay
from closeranks.serve.silence import Watch
from closeranks.serve.story import Visit
from closeranks.serve.wheel import Due
from closeranks.serve.words import Again, Ask, Enough, Kind, Nowhere, Outcome

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway, Replica
    from closeranks.serve.http.server import ClientConnection

_FEW: Final = 8  # readings between two looks at the pace
_OK, _ERROR, _UNAVAILABLE, _TIMEOUT, _BAD_GATEWAY = 200, 400, 503, 504, 502
_OUTCOMES: Final = {Cut.REFUSED: Outcome.UNREACHED, Cut.STALE: Outcome.GONE, Cut.SILENT: Outcome.SLOW}


class Exchange(Entrance):
    """Answers one request."""

    attempt: Attempt | None = None
    _race: Race | None = None
    _watch: Watch | None = None
    _pause: Due | None = None
    _comparison: asyncio.Task[None] | None = None
    _held_back = False
    _bringing: asyncio.Task[None] | None = None  # what its session's replica is to know before it is asked

    def __init__(self, gateway: Gateway, request: Request, client: ClientConnection, ask: Ask) -> None:
        super().__init__(gateway, request, client, ask)
        self._replicas = gateway.replicas  # those that its traffic knows, whatever is read again meanwhile
        self._tried: list[str] = []

    # --- attempts -----------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        placed = self.traffic.place(self._gateway.now_s(), self.ask, tuple(self._tried))
        if isinstance(placed, Nowhere):
            self._give_up(placed.status, placed.reason, placed.retry_after_s)
        else:
            self._send(self._replicas[placed.replica])

    def _send(self, replica: Replica) -> None:
        if (snapshots := self._gateway.snapshots) is not None:
            then = functools.partial(self._ask, replica)
            self._bringing = snapshots.bring(replica, self._request, self.ask, then)
            if self._bringing is not None:
                return
        self._ask(replica)

    def _ask(self, replica: Replica) -> None:
        relay, wording, preparing = self.relay, (self._request.target, self._request.body), False
        if relay is not None:
            match relay.plan(replica.settings.engine):
                case NoResume() as refusal:
                    self._give_up(_BAD_GATEWAY, refusal.reason)
                    return
                case Finished() as finished:
                    self._tell(finished.data)
                    self._finish()
                    return
                case plan:
                    wording, preparing = (plan.target, plan.body), isinstance(plan, Prepare)
            if not preparing:
                relay.begin()
        attempt = self.open(replica, self._kind, wording, preparing=preparing)
        self._go_on_with(attempt)
        if self.traffic.hedging.enabled and not self._client.started:
            after_s = self.traffic.hedge_after_s(attempt.heard_s, self.ask)
            self._race = None if after_s is None else Race(self._gateway, self, attempt, after_s)

    def open(self, replica: Replica, kind: Kind, wording: tuple[bytes, bytes], *, preparing: bool = False) -> Attempt:
        """Ask a replica; ``wording`` is target and body."""
        visit = Visit(replica.settings.name, kind, self._gateway.now_s())
        self.story.visits.append(visit)
        self.traffic.begun(visit.began_s, self.ask, visit.replica, kind)
        attempt = Attempt(self, replica, visit, wording, preparing=preparing)
        lines = self._gateway.request_lines(self._request, replica, self.ask)
        drills = self._gateway.drills
        if self.traffic.dependencies:
            without = self.traffic.without(visit.began_s, self.ask, visit.replica)
            if drills.drill is not None and (taken := drills.without(attempt, without)):
                without = self.traffic.deprive(visit.began_s, self.ask, visit.replica, taken)
            if without:
                lines += b"%b: %b\r\n" % (WITHOUT, ", ".join(without).encode())
        if (snapshots := self._gateway.snapshots) is not None and not preparing:
            wording = snapshots.worded(replica, self.ask, self.relay, wording)
        if drills.drill is None:
            attempt.send(self._request, lines, wording)
        else:
            drills.send(attempt, functools.partial(attempt.send, self._request, lines, wording))
        return attempt

    def _go_on_with(self, attempt: Attempt) -> None:
        self.attempt, self._held_back = attempt, False
        if self._watch is None:
            self._watch = Watch(self._gateway, self)
        self._watch.follow(attempt)

    def leave_to(self, attempt: Attempt, other: Attempt, outcome: Outcome, detail: str) -> None:
        """Of two attempts that were under way this one goes on; the other one is over."""
        self.end(other, outcome, detail)
        if outcome is not Outcome.GONE:
            self._tried.append(other.visit.replica)
        self._go_on_with(attempt)

    def too_late(self) -> None:
        """The deadline of the request has passed."""
        self._end_attempt(Outcome.GONE)
        self._give_up(_TIMEOUT, "the deadline of the request has passed")

    def silent(self, attempt: Attempt, silent_s: float) -> None:
        """The replica is not waited for any longer."""
        attempt.give_up()
        self.on_cut(attempt, Cut.SILENT, f"silent for {silent_s:.2f} s")
        if attempt.body:  # a stream knows its replica's pace; whoever waits there for a first byte does not
            self._gateway.abandon(attempt.replica.settings.name, "silent to everybody", waiting_only=True)

    def _let_go(self) -> None:
        self._end_attempt(Outcome.GONE)

    def _end_attempt(self, outcome: Outcome, detail: str = "") -> None:
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self.end(attempt, outcome, detail)

    def end(self, attempt: Attempt, outcome: Outcome, detail: str = "") -> None:
        """The attempt is over; its replica, if it still works on it, hears of it."""
        attempt.give_up()
        visit, now_s = attempt.visit, self._gateway.now_s()
        visit.ended_s, visit.outcome, visit.detail = now_s, outcome, detail
        wait_s = retry_after_s(first(attempt.headers, b"retry-after")) if outcome is Outcome.BUSY else None
        self.traffic.ended(now_s, self.ask, visit.replica, outcome, wait_s)
        if self._gateway.snapshots is not None:
            self._gateway.snapshots.ended(attempt, self.ask, outcome, self.relay)

    # --- what a replica says --------------------------------------------------------------------------------------

    def on_head(self, attempt: Attempt) -> None:
        """Status and headers."""
        attempt.heard_s = attempt.replica.heard_s = self._gateway.now_s()
        if self.traffic.dependencies:
            report = self._gateway.drills.report(attempt, first(attempt.headers, b"server-timing") or b"")
            self.story.without = self.traffic.depended(attempt.heard_s, self.ask, attempt.visit.replica, report)
        if attempt.status < _ERROR:
            self.traffic.heard(attempt.heard_s, self.ask, attempt.replica.settings.name)
        if self._race is not None and not self._race.on_head(attempt):
            return
        if attempt.preparing or fault_of(attempt.status) is not None or self._client.started:
            return  # judged when it is complete, or as a continuation
        streamed = (first(attempt.headers, b"content-type") or b"").startswith(b"text/event-stream")
        if streamed and attempt.status < _ERROR:
            snapshots = self._gateway.snapshots
            self._held_back = snapshots is not None and snapshots.awaits(attempt, self.ask)
            if not self._held_back:
                self._begin_to_forward(attempt, None)
            return
        self.relay = self._keeper = None
        # Where its lines are known the whole answer came in one reading.
        length = first(attempt.headers, b"content-length") if attempt.lines is None else None
        if length is not None and int(length) > HELD_BYTES_MAX:
            self._begin_to_forward(attempt, int(length))

    def on_data(self, attempt: Attempt, data: bytes) -> None:
        """Some of the body."""
        now_s = attempt.heard_s = attempt.replica.heard_s = self._gateway.now_s()
        relay = self.relay
        if self.full:
            attempt.pause()
        if attempt.preparing or not self._forwarding or (relay is not None and attempt.status >= _ERROR):
            attempt.held.append(data)
            if self._held_back:
                self._show_held(attempt)
            elif attempt.body > HELD_BYTES_MAX:
                self._held_too_much(attempt)
            return
        if relay is None:
            self._client.send(data)
            return
        self._tell(relay.feed(data, now_s))
        if relay.broken:
            attempt.give_up()
            self.on_cut(attempt, Cut.BAD_BYTES, relay.broken)
        elif attempt.readings < _FEW or attempt.readings % _FEW == 0:
            if self._watch is not None:
                self._watch.look_earlier(attempt)
            if attempt.readings == _FEW:
                self._ask_ahead(attempt.replica, relay)

    def _ask_ahead(self, replica: Replica, relay: Relay) -> None:
        question = relay.ahead(replica.settings.engine)
        if question is not None:
            lines = self._gateway.request_lines(self._request, replica, self.ask)
            data = request_bytes(b"POST", replica.prefix + question.target, lines, question.body)
            replica.pool.request(data, Aside(relay.prepared_ahead), lambda _: None)

    def _show_held(self, attempt: Attempt, *, all_came: bool = False) -> None:
        """Forward a stream that was held back until its engine has said what it used of a snapshot, if it has."""
        snapshots = self._gateway.snapshots
        if snapshots is not None and snapshots.awaits(attempt, self.ask) and not all_came:
            return
        self._held_back = False
        held, attempt.held = b"".join(attempt.held), []
        self._begin_to_forward(attempt, None)
        self.on_data(attempt, held)

    def _held_too_much(self, attempt: Attempt) -> None:
        if self._client.started:
            attempt.give_up()
            self.on_cut(attempt, Cut.BAD_BYTES, f"an answer of more than {HELD_BYTES_MAX} bytes where none was due")
            return
        self._begin_to_forward(attempt, None)
        self._client.send(b"".join(attempt.held))
        attempt.held.clear()

    def on_end(self, attempt: Attempt) -> None:
        """The answer is complete, as far as HTTP can tell."""
        if self._held_back:
            self._show_held(attempt, all_came=True)
            if attempt.exchange is None:
                return
        relay, status = self.relay, attempt.status
        fault = fault_of(status)
        if fault is not None:
            self._answered_badly(attempt, fault)
        elif status >= _ERROR and self._client.started:
            self._answered_badly(attempt, Outcome.CLIENT_FAULT)  # of ours: the client's own request was accepted
        elif attempt.preparing and relay is not None:
            self._end_attempt(Outcome.OK)
            relay.prepared(b"".join(attempt.held))
            self._send(attempt.replica)
        elif relay is not None and not relay.complete:
            self.on_cut(attempt, Cut.RESET, "the stream ended without its end mark")
        else:
            self._end_attempt(Outcome.CLIENT_FAULT if status >= _ERROR else Outcome.OK)
            if not self._forwarding:
                self._answer_whole(attempt, b"".join(attempt.held))
                return
            if relay is not None:
                self._tell(relay.finale())
            self._finish()

    def _answer_whole(self, attempt: Attempt, body: bytes) -> None:
        """Give an answer that the client has seen nothing of; a few are compared with another replica's before."""
        now_s, name = self._gateway.now_s(), attempt.replica.settings.name
        if attempt.status == _OK:
            second = self.traffic.doubled(now_s, self.ask, name)
            if second:
                case = Case(self._request, self.ask, self.traffic, self.story)
                settled = functools.partial(self._compared, attempt)
                self._comparison = self._gateway.doubles.compare(case, Candidate(name, body), second, settled)
                return
        self._give_kept(attempt, body)

    def _compared(self, attempt: Attempt, answer: Candidate | None) -> None:
        self._comparison = None
        if answer is not None:
            attempt.replica = self._replicas[answer.replica]
            self._give_kept(attempt, answer.body)
            return
        safe = self._gateway.fallbacks.safe(self._gateway.clock(), self._request)
        if safe is None:
            self.refuse(_BAD_GATEWAY, "replicas differ in their answers, and no two of them agree", None)
        else:
            self._answer_locally(safe)

    def _give_kept(self, attempt: Attempt, body: bytes) -> None:
        in_full = attempt.status == _OK and not self._degraded and not self.story.without
        if in_full and len(self.traffic.ladder.levels) > 1:
            self._gateway.quality.compare(self.ask, self._request, body)  # before it is what is remembered
            self._gateway.fallbacks.keep(self._gateway.now_s(), self.ask, self._request, body)
        self._give(attempt, body)

    def _answered_badly(self, attempt: Attempt, outcome: Outcome) -> None:
        self._end_attempt(outcome)
        self._tried.append(attempt.replica.settings.name)
        if attempt.preparing and self.relay is not None:
            self.relay.prepared(b"")
        if self._client.started:
            self._continue(f"{attempt.replica.settings.name} answered {attempt.status}")
            return
        again = self._again(Kind.RETRY)
        if isinstance(again, Again):
            self._after(again.after_s)
            return
        self._give(attempt, b"".join(attempt.held))

    def on_cut(self, attempt: Attempt, cut: Cut, detail: str) -> None:
        """The answer will not be complete."""
        outcome = _OUTCOMES.get(cut, Outcome.BROKEN)
        if self._race is not None and self._race.lost(attempt, outcome, f"{cut}: {detail}"):
            return
        self._end_attempt(outcome, f"{cut}: {detail}")
        name = attempt.replica.settings.name
        reason = f"{name}: {cut}: {detail}"
        if attempt.preparing and self.relay is not None:
            self.relay.prepared(b"")
        if cut is Cut.STALE:  # nothing was begun; a kept connection ends now and then
            self._send(attempt.replica)
            return
        self._tried.append(name)
        if self._client.started:
            self._continue(reason)
            return
        again = self._again(Kind.RETRY)
        if isinstance(again, Enough):
            status = _TIMEOUT if cut is Cut.SILENT else _BAD_GATEWAY
            self._give_up(status, f"{reason}; {again.reason}", again.retry_after_s)
        else:
            self._after(again.after_s)

    def _continue(self, reason: str) -> None:
        """The client has seen a part of the answer: only a relay can have the rest."""
        if self.relay is None:
            self._give_up(_BAD_GATEWAY, reason)
            return
        if self.relay.complete:  # nothing is missing but the replica's goodbye
            self._tell(self.relay.finale())
            self._finish()
            return
        again = self._again(Kind.RESUME)
        if isinstance(again, Enough):
            self._give_up(_BAD_GATEWAY, f"{reason}; {again.reason}")
        else:
            self._after(again.after_s)

    def _again(self, kind: Kind) -> Again | Enough:
        self._kind = kind
        return self.traffic.again(self._gateway.now_s(), self.ask, kind, tuple(self._tried))

    def _after(self, pause_s: float) -> None:
        if pause_s <= 0:
            self._dispatch()
        else:
            self._pause = self._gateway.at(self._gateway.now_s() + pause_s, self._dispatch)

    # --- what the client does -------------------------------------------------------------------------------------

    def abandon(self, replica: str, reason: str, *, waiting_only: bool) -> None:
        """What this replica was asked is asked of another one."""
        for attempt in (self.attempt, None if self._race is None else self._race.hedge):
            if attempt is not None and attempt.visit.replica == replica and not (waiting_only and attempt.body):
                attempt.give_up()
                self.on_cut(attempt, Cut.RESET, reason)
                return

    def client_gone(self) -> None:
        """Cancel upstream at once."""
        self._end_attempt(Outcome.GONE)
        if self._keeper is not None:
            self._keeper.drop()
        self._close()

    def client_full(self) -> None:
        """Hold the replica up as long as the client is held up."""
        self.full = True
        if self.attempt is not None and self._forwarding:
            self.attempt.pause()

    def client_ready(self) -> None:
        """Go on."""
        self.full = False
        if self.attempt is not None:
            self.attempt.heard_s = self._gateway.now_s()
            self.attempt.resume()

    def _close(self) -> None:
        if self.over:
            return
        self.over = True
        story = self.story
        story.ended_s, story.sent_bytes = self._gateway.now_s(), self._client.sent_bytes
        story.exactness = self.relay.exactness if self.relay is not None else ""
        for pending in (self._watch, self._turn, self._pause, self._comparison, self._race, self._bringing):
            if pending is not None:
                pending.cancel()
        self._watch = None  # it knows this exchange: without that only the collector could free the two
        self._gateway.over(self)
