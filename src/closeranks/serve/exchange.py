"""One request from its arrival to its last byte: attempts at replicas, until one of them has answered it."""

from __future__ import annotations

from typing import Final

from closeranks.serve.attempt import HELD_BYTES_MAX, Aside, Attempt
from closeranks.serve.http.head import first
from closeranks.serve.http.upstream import Cut, streams_events
from closeranks.serve.race import fault_of
from closeranks.serve.relay import Relay
from closeranks.serve.replica import Replica
from closeranks.serve.whole import WholeAnswers
from closeranks.serve.wording import Words
from closeranks.serve.words import Enough, Kind, Outcome

_FEW: Final = 8  # readings between two looks at the pace
_ERROR, _TIMEOUT, _BAD_GATEWAY = 400, 504, 502
_OUTCOMES: Final = {Cut.REFUSED: Outcome.UNREACHED, Cut.STALE: Outcome.GONE, Cut.SILENT: Outcome.SLOW}
_DONE: Final = Outcome.OK  # on Python 3.11 a member of an Enum is found by calling a function


class Exchange(WholeAnswers, eq=False, kw_only=True):
    """Answers one request."""

    # --- what a replica says --------------------------------------------------------------------------------------

    def on_head(self, attempt: Attempt) -> None:
        """Status and headers."""
        now_s = attempt.heard_s = attempt.replica.heard_s = self._gateway.now_s()
        status = attempt.status
        if self.traffic.dependencies.by_name:
            report = self._gateway.drills.report(attempt, first(attempt.headers, b"server-timing") or b"")
            self.story.without = self.traffic.depended(now_s, self.ask, attempt.replica.name, report)
        if status < _ERROR:
            self.traffic.heard(now_s, self.ask, attempt.replica.name)
        if self._race is not None and not self._race.on_head(attempt):
            return
        if attempt.preparing or self._client.started or (status >= _ERROR and fault_of(status) is not None):
            return  # judged when it is complete, or as a continuation
        known = attempt.known
        if status < _ERROR and (streams_events(attempt.headers) if known is None else known.streamed):
            snapshots = self._gateway.snapshots
            self._held_back = snapshots is not None and snapshots.awaits(attempt, self.ask)
            if not self._held_back:
                self._begin_to_forward(attempt, None)
            return
        self.relay = self._keeper = None
        length = first(attempt.headers, b"content-length") if known is None else None
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
            self._look_in_time(attempt)
            if attempt.readings == _FEW:
                self._ask_ahead(attempt.replica, relay)

    def _ask_ahead(self, replica: Replica, relay: Relay) -> None:
        question = relay.ahead(replica.settings.engine)
        if question is not None:
            words, now_s = Words(question.target, question.body), self._gateway.now_s()
            data = self._gateway.wording.spell(self._request, replica, self.ask, now_s, words)
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
        fault = fault_of(status) if status >= _ERROR else None
        if fault is not None:
            self._answered_badly(attempt, fault)
        elif status >= _ERROR and self._client.started:
            self._answered_badly(attempt, Outcome.CLIENT_FAULT)  # of ours: the client's own request was accepted
        elif attempt.preparing and relay is not None:
            self._end_attempt(_DONE)
            relay.prepared(b"".join(attempt.held))
            self._send(attempt.replica)
        elif relay is not None and not relay.complete:
            self.on_cut(attempt, Cut.RESET, "the stream ended without its end mark")
        else:
            self._end_attempt(Outcome.CLIENT_FAULT if status >= _ERROR else _DONE)
            if not self._forwarding:
                self._answer_whole(attempt, b"".join(attempt.held))
                return
            if relay is not None:
                self._tell(relay.finale())
            self._finish()

    def _answered_badly(self, attempt: Attempt, outcome: Outcome) -> None:
        self._end_attempt(outcome)
        self._tried += (attempt.replica.name,)
        if attempt.preparing and self.relay is not None:
            self.relay.prepared(b"")
        if self._client.started:
            self._continue(f"{attempt.replica.name} answered {attempt.status}")
            return
        again = self._again(Kind.RETRY)
        if isinstance(again, Enough):
            self.relay = self._keeper = None  # this is no stream
            self._give(attempt, b"".join(attempt.held))
        else:
            self._after(again.after_s)

    def on_cut(self, attempt: Attempt, cut: Cut, detail: str) -> None:
        """The answer will not be complete."""
        outcome = _OUTCOMES.get(cut, Outcome.BROKEN)
        if self._race is not None and self._race.lost(attempt, outcome, f"{cut}: {detail}"):
            return
        self._end_attempt(outcome, f"{cut}: {detail}")
        name = attempt.replica.name
        reason = f"{name}: {cut}: {detail}"
        if attempt.preparing and self.relay is not None:
            self.relay.prepared(b"")
        if cut is Cut.STALE:  # nothing was begun; a kept connection ends now and then
            self._send(attempt.replica)
            return
        self._tried += (name,)
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

    # --- what the client does -------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """Cancel upstream at once."""
        self._let_go()
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
        now_s = story.ended_s = self._gateway.now_s()
        if self._forwarding:
            story.sent_bytes = self._client.sent_bytes
        if self.relay is not None:
            story.exactness = self.relay.exactness
        if self._watch is not None:  # it knows this exchange: if it stayed, only the collector could free the two
            self._watch.cancel()
            self._watch = None
        if self._turn or self._pause or self._comparison or self._race or self._bringing:
            for pending in (self._turn, self._pause, self._comparison, self._race, self._bringing):
                if pending is not None:
                    pending.cancel()
        self._gateway.over(self, now_s)
