"""The controller in the coordinator: begun anew, or built up from what an earlier coordinator left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from closeranks.cluster.announcing import Members
from closeranks.cluster.attendance import Attendee
from closeranks.cluster.tenure import PROCS_AHEAD, Tenure
from closeranks.decide import controller
from closeranks.decide.adoption import Known, KnownNode, adopt
from closeranks.decide.membership import occupants
from closeranks.decide.memo import Memo, decode, encode, memo_of, worth_sending
from closeranks.decide.protocol import BeginTerm, Begun, Decision, Fact, StartGroup
from closeranks.decide.quarantine import Register, moved
from closeranks.decide.room import Room, room
from closeranks.decide.sizing import fewer_seats
from closeranks.decide.state import State
from closeranks.nodes import words
from closeranks.run.brain import settings_of
from closeranks.run.node_history import HistoryProblem, NodeHistory, file_of
from closeranks.run.options import RunOptions


class _Rooms(NamedTuple):
    """What other nodes have room for."""

    state: State  # for which this was worked out
    room: Room
    for_all: bool  # for the seats of all silent nodes


class Mind:
    """Owns the controller's state while this candidate leads."""

    def __init__(self, options: RunOptions, tenure: Tenure) -> None:
        self._options = options
        self._settings = settings_of(options)
        self._tenure = tenure
        self._state: State | None = None
        self._memo: Memo | None = None  # the newest that was sent
        self._memos = 0
        self._told_of: State | None = None  # the state that the memo was last looked at for
        self._rooms: _Rooms | None = None

    @property
    def whole(self) -> bool:
        """Whether facts can be taken."""
        return self._state is not None

    @property
    def state(self) -> State:
        """The controller's."""
        if self._state is None:
            raise AssertionError("the controller is not there yet")
        return self._state

    def begin(self) -> tuple[Decision, ...]:
        """The run starts with this coordinator."""
        self._state = msgspec.structs.replace(controller.initial(self._settings), next_proc=self._first_proc())
        return self.step(Begun(register=self._register()))

    def _register(self) -> Register:
        """What earlier runs remember of nodes; without that history nothing is held against any."""
        try:
            found = NodeHistory(file_of(self._options, os.environ)).read()
        except HistoryProblem:
            return Register()
        return moved(found, time.monotonic() - time.time())

    def adopt(self, present: Iterable[Attendee], reason: str, stored_step: int | None = None) -> tuple[Decision, ...]:
        """Go on with what is there: the record, what these nodes reported, and the newest step in the store."""
        record, reports = self._tenure.record, {a: a.report for a in present if a.report is not None}
        known = Known(
            leader=record.node,
            reason=reason,
            term=record.term,
            members=record.members,
            places=record.nodes,
            incarnations=record.incarnations,
            next_proc=self._first_proc(),
            incidents=record.incidents,
            nodes=tuple(_known(attendee, report) for attendee, report in reports.items()),
            memo=_newest_memo(reports.values()),
            saved_step=next((r.saved_step for a, r in reports.items() if a.node in record.nodes[:1]), None),
            stored_step=stored_step,
        )
        self._state, decisions = adopt(self._settings, known, time.monotonic())
        return decisions

    @staticmethod
    def nodes_known_to(reports: Iterable[words.Report]) -> frozenset[str]:
        """The nodes that the last coordinator counted with, as far as one of these has heard."""
        memo = _newest_memo(reports)
        return frozenset() if memo is None else frozenset(memo.state.nodes)

    def step(self, fact: Fact) -> tuple[Decision, ...]:
        """Take one fact."""
        self._state, decisions = controller.step(self.state, fact, time.monotonic())
        return decisions

    def new_memo(self) -> words.Memo | None:
        """What the next coordinator will want, where it has changed."""
        if self._state is None or self._told_of is self._state:
            return None
        self._told_of = self.state
        memo = memo_of(self.state, time.monotonic())
        if self._memo is not None and not worth_sending(self._memo, memo):
            return None
        self._memo = memo
        self._memos += 1
        return words.Memo(seq=self._memos, memo=encode(memo))

    def _first_proc(self) -> int:
        return self._tenure.record.procs_reserved - PROCS_AHEAD

    def members_of(self, decision: StartGroup | BeginTerm) -> Members:
        """Who sits where under the term of this decision."""
        if isinstance(decision, StartGroup):
            incarnations = self.state.incarnations[: len(decision.procs)]
            return Members(decision.term, decision.procs, decision.nodes, incarnations)
        homes = {proc.proc: proc.node for proc in self.state.procs.values()}
        nodes = tuple(homes.get(proc, place) for proc, place in zip(decision.procs, self.state.places, strict=True))
        return Members(decision.term, decision.procs, nodes, decision.incarnations)

    def first_member(self) -> int:
        """Some process of the newest term, to name where none can be."""
        return next((p.proc for p in occupants(self.state).values()), 0)

    @property
    def knows_of_no_save(self) -> bool:
        """Whether a group that starts anew would begin with nothing, as far as the controller was told."""
        return self._state is not None and self._state.saved_step is None

    def has_room(self, node: str) -> bool:
        """Whether the seats of this node could be taken over by others."""
        rooms = self._rooms_now()
        return rooms is not None and rooms.room.replaces(node)

    def has_room_for_all(self) -> bool:
        """Whether the seats of all silent nodes could be."""
        rooms = self._rooms_now()
        return rooms is not None and rooms.for_all

    def _rooms_now(self) -> _Rooms | None:
        """Asked for ten times a second for every silent node: it stands as long as the state does."""
        state = self._state
        if state is not None and (self._rooms is None or self._rooms.state is not state):
            found, silent = room(state), [node.name for node in state.nodes.values() if node.silent]
            self._rooms = _Rooms(state, found, found.replaces(*silent))
        return None if state is None else self._rooms

    def dispensable(self, node: str) -> bool:
        """Whether the job may go on with fewer seats, without this node."""
        return self._state is not None and fewer_seats(self._state, without=(node,)) > 0


def _known(attendee: Attendee, report: words.Report) -> KnownNode:
    introduction = attendee.introduction
    return KnownNode(
        name=attendee.node,
        slots=0 if introduction is None else introduction.slots,
        domains={} if introduction is None else introduction.domains,
        host="" if introduction is None else introduction.hostname,
        procs=report.procs,
        ended=report.ended,
        closed_step=report.closed_step,
        closed_everywhere=report.closed_everywhere,
    )


def _newest_memo(reports: Iterable[words.Report]) -> Memo | None:
    newest = max(reports, key=lambda r: (r.memo_epoch, r.memo_seq), default=None)
    if newest is None or not newest.memo:
        return None
    try:
        return decode(newest.memo)
    except msgspec.MsgspecError:  # of another version: what it would have told is lost, no more
        return None
