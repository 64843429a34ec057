"""One request from its arrival to its last byte: attempts at replicas, until one of them has answered it."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Final

from closeranks.serve.attempt import HELD_BYTES_MAX, Aside, Attempt
from closeranks.serve.doubles import Candidate, Case
from closeranks.serve.fallbacks import DEGRADED, LADDER_PATHS, WITHOUT, LocalAnswer
from closeranks.serve.http.head import Headers, Request, end_to_end, first, lines_of, request_bytes
from closeranks.serve.http.upstream import Cut
from closeranks.serve.policies.retry_budget import retry_after_s
from closeranks.serve.race import Race, fault_of
from closeranks.serve.relay import Finished, NoResume, Prepare, Relay
from closeranks.serve.sessions.keeper import Keeper
from closeranks.serve.story import Visit
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.words import Again, Ask, Enough, Kind, Nowhere, Outcome, Placed, Shed, Waits

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway, Replica
    from closeranks.serve.http.server import ClientConnection

_PATIENCE: Final = 20  # times the allowed silence: then even a busy replica is given up
_LOOK_AGAIN_S: Final = 0.01
_FEW: Final = 8  # readings between two looks at the pace
_OK, _ERROR, _UNAVAILABLE, _TIMEOUT, _BAD_GATEWAY = 200, 400, 503, 504, 502
_OUTCOMES: Final = {Cut.REFUSED: Outcome.UNREACHED, Cut.STALE: Outcome.GONE, Cut.SILENT: Outcome.SLOW}


class Exchange:
    """Answers one request."""

    def __init__(self, gateway: Gateway, request: Request, client: ClientConnection, ask: Ask) -> None:
        self._gateway = gateway
        self.traffic = gateway.traffic
        self._replicas = gateway.replicas  # those that its traffic knows, whatever is read again meanwhile
        self._request = request
        self._client = client
        self.ask = ask
        self._relay: Relay | None = None
        self._attempt: Attempt | None = None
        self._race: Race | None = None
        self._tried: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._kind = Kind.FIRST
        self._degraded = ""  # the level of the ladder, if it is not the full service
        self._forwarding = False
        self._full = False
        self._over = False
        self._keeper: Keeper | None = None
        self._comparison: asyncio.Task[None] | None = None
        self.story = gateway.story_of(request, ask)

    def go_on(self, request: Request, relay: CompletionsRelay, keeper: Keeper, backlog: bytes) -> None:
        """Answer with the rest of a stream that was claimed: what was kept, then what a replica adds."""
        if self._over:
            return
        self._request = request
        self._relay, self._keeper, self._kind, self._forwarding = relay, keeper, Kind.RESUME, True
        lines = b"content-type: text/event-stream\r\nx-closeranks-stream: %b\r\n" % keeper.stream.encode()
        self._client.start(_OK, lines, None)
        self.story.status, self.story.first_byte_s = 200, self._gateway.now_s() - self.story.began_s
        self._client.send(backlog)
        if relay.seen.done:
            self._finish()
        else:
            self._dispatch()

    def taken_over(self) -> None:
        """Another connection goes on with the stream: nothing more may be said here."""
        self._end_attempt(Outcome.GONE)
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
                self._timer = self._gateway.at(waits.until_s, self._waited_too_long)
            case _:
                self.admitted()

    def admitted(self) -> None:
        """The request may begin."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._gateway.now_s()
        if self._request.path.endswith(LADDER_PATHS):
            course = self.traffic.course(now_s, self.ask)
            self.story.level = course.level
            if course.level and not self._degrade(now_s, course.level):
                return
        self._relay = self._gateway.relay_for(self._request, self.ask)
        if isinstance(self._relay, CompletionsRelay):
            self._keeper = self._gateway.keeper_for(self._request, self._relay, self._client.send, self.taken_over)
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

    # --- attempts -----------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        match self.traffic.place(self._gateway.now_s(), self.ask, tuple(self._tried)):
            case Nowhere() as nowhere:
                self._give_up(nowhere.status, nowhere.reason, nowhere.retry_after_s)
            case Placed() as placed:
                self._send(self._replicas[placed.replica])

    def _send(self, replica: Replica) -> None:
        relay, wording, preparing = self._relay, (self._request.target, self._request.body), False
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
        if not self._client.started:
            after_s = self.traffic.hedge_after_s(attempt.heard_s, self.ask)
            self._race = None if after_s is None else Race(self._gateway, self, attempt, after_s)

    def open(self, replica: Replica, kind: Kind, wording: tuple[bytes, bytes], *, preparing: bool = False) -> Attempt:
        """Ask a replica; ``wording`` is target and body."""
        visit = Visit(replica.settings.name, kind, self._gateway.now_s())
        self.story.visits.append(visit)
        self.traffic.begun(visit.began_s, self.ask, visit.replica, kind)
        attempt = Attempt(self, replica, visit, wording, preparing=preparing)
        lines = self._gateway.request_lines(self._request, replica, self.ask)
        if self.traffic.dependencies and (without := self.traffic.without(visit.began_s, self.ask, visit.replica)):
            lines += b"%b: %b\r\n" % (WITHOUT, ", ".join(without).encode())
        attempt.send(self._request, lines)
        return attempt

    def _go_on_with(self, attempt: Attempt) -> None:
        self._attempt = attempt
        if self._timer is None:
            self._timer = self._gateway.at(self._due_s(attempt), self._look)

    def leave_to(self, attempt: Attempt, other: Attempt, outcome: Outcome, detail: str) -> None:
        """Of two attempts that were under way this one goes on; the other one is over."""
        self.end(other, outcome, detail)
        if outcome is not Outcome.GONE:
            self._tried.append(other.visit.replica)
        self._go_on_with(attempt)

    def _due_s(self, attempt: Attempt) -> float:
        """When there is a reason to look at the clock."""
        return min(self.ask.deadline_s, attempt.heard_s + self._allowed_s(attempt))

    def _allowed_s(self, attempt: Attempt) -> float:
        allowed_s = None
        if self._relay is not None and attempt.body and not attempt.preparing:
            allowed_s = self._relay.allowed_silence_s()
        return self._gateway.settings.timeouts.first_byte_s if allowed_s is None else allowed_s

    def _look(self) -> None:
        """The timer: moved on while data comes, so that data does not have to touch it."""
        self._timer = None
        attempt, now_s = self._attempt, self._gateway.now_s()
        if now_s >= self.ask.deadline_s:
            self._end_attempt(Outcome.GONE)
            self._give_up(_TIMEOUT, "the deadline of the request has passed")
        elif attempt is not None and not self._full and self._is_silent(attempt, now_s):
            silent_s = now_s - attempt.heard_s
            attempt.give_up()
            self.on_cut(attempt, Cut.SILENT, f"silent for {silent_s:.2f} s")
            if attempt.body:  # a stream knows its replica's pace; whoever waits there for a first byte does not
                self._gateway.abandon(attempt.replica.settings.name, "silent to everybody", waiting_only=True)
        elif not self._over:
            due_s = self.ask.deadline_s if attempt is None else self._due_s(attempt)
            self._timer = self._gateway.at(max(due_s, now_s + _LOOK_AGAIN_S), self._look)

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
        return not works and self.traffic.elsewhere(now_s, self.ask, attempt.replica.settings.name)

    def _end_attempt(self, outcome: Outcome, detail: str = "") -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self.end(attempt, outcome, detail)

    def end(self, attempt: Attempt, outcome: Outcome, detail: str = "") -> None:
        """The attempt is over; its replica, if it still works on it, hears of it."""
        attempt.give_up()
        visit, now_s = attempt.visit, self._gateway.now_s()
        visit.ended_s, visit.outcome, visit.detail = now_s, outcome, detail
        wait_s = retry_after_s(first(attempt.headers, b"retry-after")) if outcome is Outcome.BUSY else None
        self.traffic.ended(now_s, self.ask, visit.replica, outcome, wait_s)

    # --- what a replica says --------------------------------------------------------------------------------------

    def on_head(self, attempt: Attempt) -> None:
        """Status and headers."""
        attempt.heard_s = attempt.replica.heard_s = self._gateway.now_s()
        if self.traffic.dependencies:
            report = first(attempt.headers, b"server-timing") or b""
            self.story.without = self.traffic.depended(attempt.heard_s, self.ask, attempt.visit.replica, report)
        if attempt.status < _ERROR:
            self.traffic.heard(attempt.heard_s, self.ask, attempt.replica.settings.name)
        if self._race is not None and not self._race.on_head(attempt):
            return
        if attempt.preparing or fault_of(attempt.status) is not None or self._client.started:
            return  # judged when it is complete, or as a continuation
        streamed = (first(attempt.headers, b"content-type") or b"").startswith(b"text/event-stream")
        if streamed and attempt.status < _ERROR:
            self._forward(attempt, None)
            return
        self._relay = self._keeper = None
        length = first(attempt.headers, b"content-length")
        if length is not None and int(length) > HELD_BYTES_MAX:
            self._forward(attempt, int(length))

    def _forward(self, attempt: Attempt, length: int | None) -> None:
        self._forwarding = True
        lines = lines_of(end_to_end(attempt.headers)) if attempt.lines is None else attempt.lines
        lines += attempt.replica.line
        if self._relay is not None:
            lines += b"x-closeranks-resume: %b\r\n" % self._relay.exactness.encode()
        if self._degraded or self.story.without:
            less = [self._degraded, *(f"without-{name}" for name in self.story.without)]
            lines += b"%b: %b\r\n" % (DEGRADED, ", ".join(filter(None, less)).encode())
        if self._keeper is not None:
            lines += b"x-closeranks-stream: %b\r\n" % self._keeper.stream.encode()
        self._client.start(attempt.status, lines, length)
        self.story.status, self.story.first_byte_s = attempt.status, self._gateway.now_s() - self.story.began_s
        if self._full:
            attempt.pause()

    def on_data(self, attempt: Attempt, data: bytes) -> None:
        """Some of the body."""
        now_s = attempt.heard_s = attempt.replica.heard_s = self._gateway.now_s()
        relay = self._relay
        if self._full:
            attempt.pause()
        if attempt.preparing or not self._forwarding or (relay is not None and attempt.status >= _ERROR):
            attempt.held.append(data)
            if attempt.body > HELD_BYTES_MAX:
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
            self._look_earlier(attempt)
            if attempt.readings == _FEW:
                self._ask_ahead(attempt.replica, relay)

    def _ask_ahead(self, replica: Replica, relay: Relay) -> None:
        question = relay.ahead(replica.settings.engine)
        if question is not None:
            lines = self._gateway.request_lines(self._request, replica, self.ask)
            data = request_bytes(b"POST", replica.prefix + question.target, lines, question.body)
            replica.pool.request(data, Aside(relay.prepared_ahead), lambda _: None)

    def _tell(self, data: bytes) -> None:
        """What a relay has for the client; by way of the store where the stream is kept."""
        if self._keeper is not None and isinstance(self._relay, CompletionsRelay):
            self._keeper.add(data, self._relay.taken())
        else:
            self._client.send(data)

    def _look_earlier(self, attempt: Attempt) -> None:
        """The stream has begun to flow, or has shown a quicker pace: what was to be looked at late is due earlier."""
        due_s = self._due_s(attempt)
        if self._timer is not None and due_s < self._timer.when():
            self._timer.cancel()
            self._timer = self._gateway.at(due_s, self._look)

    def _held_too_much(self, attempt: Attempt) -> None:
        if self._client.started:
            attempt.give_up()
            self.on_cut(attempt, Cut.BAD_BYTES, f"an answer of more than {HELD_BYTES_MAX} bytes where none was due")
            return
        self._forward(attempt, None)
        self._client.send(b"".join(attempt.held))
        attempt.held.clear()

    def on_end(self, attempt: Attempt) -> None:
        """The answer is complete, as far as HTTP can tell."""
        relay, status = self._relay, attempt.status
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
        self._give(attempt, body)

    def _compared(self, attempt: Attempt, answer: Candidate | None) -> None:
        self._comparison = None
        if answer is not None:
            attempt.replica = self._replicas[answer.replica]
            self._give(attempt, answer.body)
            return
        safe = self._gateway.fallbacks.safe(self._gateway.clock(), self._request)
        if safe is None:
            self.refuse(_BAD_GATEWAY, "replicas differ in their answers, and no two of them agree", None)
        else:
            self._answer_locally(safe)

    def _give(self, attempt: Attempt, body: bytes) -> None:
        if attempt.status == _OK and not self._degraded and not self.story.without:
            self._gateway.quality.compare(self.ask, self._request, body)  # before it is what is remembered
            self._gateway.fallbacks.keep(self._gateway.now_s(), self.ask, self._request, body)
        self._forward(attempt, len(body))
        self._client.send(body)
        self._finish()

    def _answer_locally(self, answer: LocalAnswer) -> None:
        self.story.status, self.story.whole = _OK, True
        self._close()
        self._client.answer(_OK, answer.headers, answer.body)

    def _answered_badly(self, attempt: Attempt, outcome: Outcome) -> None:
        self._end_attempt(outcome)
        self._tried.append(attempt.replica.settings.name)
        if attempt.preparing and self._relay is not None:
            self._relay.prepared(b"")
        if self._client.started:
            self._continue(f"{attempt.replica.settings.name} answered {attempt.status}")
            return
        again = self._again(Kind.RETRY)
        if isinstance(again, Again):
            self._after(again.after_s)
            return
        body = b"".join(attempt.held)
        self._forward(attempt, len(body))
        self._client.send(body)
        self._finish()

    def on_cut(self, attempt: Attempt, cut: Cut, detail: str) -> None:
        """The answer will not be complete."""
        outcome = _OUTCOMES.get(cut, Outcome.BROKEN)
        if self._race is not None and self._race.lost(attempt, outcome, f"{cut}: {detail}"):
            return
        self._end_attempt(outcome, f"{cut}: {detail}")
        name = attempt.replica.settings.name
        reason = f"{name}: {cut}: {detail}"
        if attempt.preparing and self._relay is not None:
            self._relay.prepared(b"")
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
        if self._relay is None:
            self._give_up(_BAD_GATEWAY, reason)
            return
        if self._relay.complete:  # nothing is missing but the replica's goodbye
            self._tell(self._relay.finale())
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
        for attempt in (self._attempt, None if self._race is None else self._race.hedge):
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
        self._full = True
        if self._attempt is not None and self._forwarding:
            self._attempt.pause()

    def client_ready(self) -> None:
        """Go on."""
        self._full = False
        if self._attempt is not None:
            self._attempt.heard_s = self._gateway.now_s()
            self._attempt.resume()

    # --- endings ----------------------------------------------------------------------------------------------------

    def _give_up(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        if not self._client.started:
            self.refuse(status, reason, retry_after_s)
            return
        self.story.error = reason
        if self._relay is not None and self._keeper is not None:
            self._keeper.add(self._relay.fail(reason), [])  # not kept: whoever comes back may have more luck
            self._finish()
        elif self._relay is not None:
            self._client.send(self._relay.fail(reason))
            self._finish()
        else:
            self._close()
            self._client.abort()

    def refuse(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        """Answer with an error, and nothing else."""
        if self._over:
            return
        self.story.status, self.story.error = status, reason
        headers: Headers = []
        if retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(retry_after_s))))
        self._close()
        self._client.fail(status, reason, headers)

    def _finish(self) -> None:
        self.story.whole = not self.story.error
        self._close()
        if self._keeper is None:
            self._client.finish()
        else:
            self._keeper.end(self._client.finish)

    def _close(self) -> None:
        if self._over:
            return
        self._over = True
        story = self.story
        story.ended_s, story.sent_bytes = self._gateway.now_s(), self._client.sent_bytes
        story.exactness = self._relay.exactness if self._relay is not None else ""
        for pending in (self._timer, self._pause, self._comparison, self._race):
            if pending is not None:
                pending.cancel()
        self._gateway.over(self)
