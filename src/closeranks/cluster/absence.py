"""Nodes that fall silent: suspected by their heartbeats, looked for on other ways, and given up when that is safe.

Two things make it safe: a proof that the supervisor has ended, and with it all that it ran; or that its last grant,
and the time in which it ends what acts without one, have run out by any clock.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from closeranks.authority.record import Record
from closeranks.cluster.attendance import Attendee
from closeranks.cluster.identity import Identity
from closeranks.cluster.second_paths import SecondPaths
from closeranks.cluster.tenure import Tenure
from closeranks.decide.leases import NEVER_S, Clockwork, fenced_at, outnumbered, replacement_allowed
from closeranks.decide.partition import DeclareLost, GiveUp, Silence
from closeranks.decide.partition import judge as judge_silence
from closeranks.detect import heartbeat
from closeranks.detect.heartbeat import Bounds, Pulse
from closeranks.nodes import words
from closeranks.nodes.link import End, Ended
from closeranks.run.options import RunOptions

_GRANTS_KEPT: Final = 64
_FLOOR_BEATS: Final = 3.0  # a silence of fewer beats is never suspicious
_COUNTED_S: Final = 0.1  # so old may be the count of what all nodes have acknowledged


class _Term(NamedTuple):
    """What holds for every silent node of the newest term."""

    seats: Counter[str]  # by node
    replaceable_s: float  # from when on those may be replaced that have not followed this leader


class Absences:
    """Watches over all attendees. ``lost(attendee, reason, hopeless)`` is called once for each that can act no more."""

    def __init__(
        self,
        attendees: dict[str, Attendee],
        tenure: Tenure,
        scene: tuple[Identity, RunOptions],
        lost: Callable[[Attendee, str, str], None],
    ) -> None:
        self._attendees = attendees
        self._tenure = tenure
        self._options = scene[1]
        self._lost = lost
        self._clockwork = Clockwork()
        self._pulses: dict[str, Pulse] = {}
        self._counted: tuple[tuple[str, ...], tuple[str, ...], float, float] = ((), (), NEVER_S, NEVER_S)
        self._granted_to: frozenset[str] = frozenset()  # those that are counted
        self._seated_of: tuple[str, ...] = ()  # nodes of the newest term, by seat
        self._seated: frozenset[str] = frozenset()  # the same
        self._paths = SecondPaths(attendees, scene, lambda one: self._missing(one, "its process hung up"), self._gone)
        self.has_room: Callable[[str], bool] = lambda _: True
        self.has_room_for_all: Callable[[], bool] = lambda: True
        self.dispensable: Callable[[str], bool] = lambda _: False
        self.silent: Callable[[Attendee, str], None] = lambda _attendee, _reason: None
        self.back: Callable[[Attendee], None] = lambda _: None  # it beats again, over the same connection

    # --- what is heard ------------------------------------------------------------------------------------------

    def expect(self, record: Record) -> None:
        """Nodes of the newest term that have not followed this leader, each in the process that the record names."""
        now_s, missing = time.monotonic(), "not heard by this leader"
        for node in dict.fromkeys(record.nodes):
            if node not in self._attendees:
                boot = record.boots.get(node, "")
                self._attendees[node] = Attendee(node=node, boot=boot, gone_s=now_s, missing=missing)

    def heard(self, attendee: Attendee, beat_s: float) -> None:
        """It introduced itself."""
        now_s = time.monotonic()
        ceiling_s = max(self._clockwork.lease_s / 2, 2 * _FLOOR_BEATS * beat_s)
        bounds = Bounds(floor_s=_FLOOR_BEATS * beat_s, ceiling_s=ceiling_s)
        self._pulses[attendee.node] = heartbeat.first_pulse(attendee.node, bounds, now_s)
        attendee.gone_s, attendee.missing, attendee.certain = None, "", ""
        attendee.opinions.clear()
        attendee.hung_up = attendee.succeeded = False

    def reported(self, attendee: Attendee) -> None:
        """It follows this leader, and no other any more."""
        now_s = time.monotonic()
        if attendee.follows_s is None:
            self._paths.keep_vigil(attendee)
        attendee.follows_s = attendee.follows_s or now_s
        attendee.granted_s = max(attendee.granted_s, now_s)
        attendee.grants_s.clear()

    def beat(self, attendee: Attendee, beat: words.Beat, *, granted: bool) -> None:
        """It beats, and is granted another while or not."""
        now_s = time.monotonic()
        pulse = self._pulses.get(attendee.node)
        if pulse is not None:
            self._pulses[attendee.node], _ = heartbeat.beat(pulse, now_s)
        if attendee.gone_s is not None:
            attendee.gone_s, attendee.missing = None, ""
            self.back(attendee)
        attendee.acknowledged_s = max(attendee.acknowledged_s, attendee.grants_s.get(beat.granted, NEVER_S))
        if granted:
            attendee.granted_s = attendee.grants_s[beat.number] = now_s
            while len(attendee.grants_s) > _GRANTS_KEPT:
                del attendee.grants_s[next(iter(attendee.grants_s))]

    def hung_up(self, attendee: Attendee, end: End) -> None:
        """Its connection ended."""
        attendee.hung_up = attendee.hung_up or end.how is Ended.HUNG_UP
        self._missing(attendee, f"its connection ended ({end})")

    def said_farewell(self, attendee: Attendee, reason: str) -> None:
        """Its workers have ended, and it ends."""
        self._give_up(attendee, f"it left: {reason}" if reason else "it left")

    def prove_ended(self, attendee: Attendee, reason: str) -> None:
        """Nothing of it acts any more, for this reason."""
        attendee.certain = reason
        self._gone(attendee)

    def probed(self, witness: Attendee, word: words.Probed) -> None:
        """A node looked for another one."""
        self._paths.answered(witness, word)

    def let_go(self) -> None:
        """This leader leads no longer: nobody is looked for."""
        self._paths.close()

    def present(self) -> set[str]:
        """Nodes that are heard now."""
        return {attendee.node for attendee in self._attendees.values() if attendee.heard}

    def heard_s(self) -> float:
        """When the oldest of the newest acknowledged grants of the term's nodes was sent; see ``Around.heard_s``.

        Asked for with every beat of every node, so it is not counted anew each time: for the same nodes what was
        true a moment ago still is, for grants that all have acknowledged stay acknowledged.
        """
        now_s, nodes, doubtful = time.monotonic(), self._tenure.record.nodes, self._tenure.nodes_in_doubt
        counted, also, at_s, _ = self._counted
        if counted is not nodes or also is not doubtful or now_s > at_s + _COUNTED_S:
            if counted is not nodes or also is not doubtful:
                self._granted_to = frozenset((*nodes, *doubtful))  # each of thousands of seats names its node
            times = [NEVER_S if (a := self._attendees.get(n)) is None else a.acknowledged_s for n in self._granted_to]
            self._counted = (nodes, doubtful, now_s, min(times, default=NEVER_S))
        return self._counted[3]

    def outnumbered(self) -> bool:
        """Whether this leader reaches too few nodes of the newest term."""
        if self._seated_of is not self._tenure.record.nodes:
            self._seated_of = self._tenure.record.nodes
            self._seated = frozenset(self._seated_of)  # each of thousands of seats names its node
        return bool(self._seated) and outnumbered(nodes=len(self._seated), reached=len(self._seated & self.present()))

    # --- the regular look ---------------------------------------------------------------------------------------

    def look(self, now_s: float, late_s: float) -> None:
        """Suspect who is overdue, and give up whoever can act no more."""
        survey = heartbeat.look_at_all(self._pulses, now_s, late_s)
        self._pulses.update(survey.changed)
        for suspicion in survey.suspicions:
            attendee = self._attendees.get(suspicion.node)
            if attendee is not None and attendee.gone_s is None:
                self._missing(attendee, suspicion.reason)
        missing = [attendee for attendee in self._attendees.values() if attendee.gone_s is not None]
        if missing:
            term = self._term()
            for attendee in missing:
                self._judge(attendee, term, now_s)

    def _missing(self, attendee: Attendee, reason: str) -> None:
        if attendee.gone_s is None:
            attendee.gone_s = time.monotonic()
        attendee.missing = reason
        self.silent(attendee, reason)
        self._paths.look_for(attendee)

    def _gone(self, attendee: Attendee) -> None:
        self._judge(attendee, self._term(), time.monotonic())

    def _judge(self, attendee: Attendee, term: _Term, now_s: float) -> None:
        gone_s = now_s if attendee.gone_s is None else attendee.gone_s
        fenced_s = term.replaceable_s
        if attendee.follows_s is not None:
            fenced_s = fenced_at(attendee.granted_s, self._clockwork)
        patience_s = self._options.node_patience_s
        silence = Silence(
            node=attendee.node,
            policy=self._options.on_partition,
            silent_s=now_s - gone_s,
            fenced_after_s=fenced_s - gone_s,
            patience_s=patience_s,
            seats=term.seats[attendee.node],
            proven_gone=bool(attendee.certain),
            succeeded=attendee.succeeded,
            replaceable=self.has_room(attendee.node),
            room_for_all=self.has_room_for_all(),
            dispensable=now_s - gone_s >= patience_s and self.dispensable(attendee.node),
        )
        match judge_silence(silence):
            case DeclareLost(detail=detail):
                self._give_up(attendee, detail)
            case GiveUp(reason=reason):
                self._give_up(attendee, "it was waited for in vain", reason)

    def _term(self) -> _Term:
        seats = Counter(self._tenure.record.nodes)
        followed_s = [a.follows_s for a in self._attendees.values() if a.node in seats and a.follows_s is not None]
        replaceable = replacement_allowed(
            nodes=len(seats),
            reached=len(followed_s),
            predecessor_s=self._tenure.predecessor_s,
            let_go_s=min(followed_s, default=time.monotonic()),
            clockwork=self._clockwork,
        )
        return _Term(seats, replaceable.from_s)

    def _give_up(self, attendee: Attendee, why: str, hopeless: str = "") -> None:
        self._paths.give_up(attendee)
        self._pulses.pop(attendee.node, None)
        detail = "; ".join(part for part in (attendee.missing, attendee.certain, why) if part)
        self._lost(attendee, detail, hopeless)
