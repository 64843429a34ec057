"""Who may take part: which callers are let in, and from when the controller counts with a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from closeranks.cluster.agreement import Said, difference
from closeranks.cluster.attendance import Attendee
from closeranks.cluster.mind import Mind
from closeranks.cluster.telling import Telling
from closeranks.cluster.tenure import Tenure
from closeranks.decide.protocol import Fact, NodeBack, NodeFitness, NodeJoined, NodeLost, StateSaved
from closeranks.events import NodeAccepted, NodeGone
from closeranks.nodes import words


class House(NamedTuple):
    """What callers have to agree with: the run, and what the leader says of itself."""

    run: str
    leader: Said


class Refusal(NamedTuple):
    """A caller is not let in."""

    reason: str
    final: bool  # it need not call again
    succeeds: bool = False  # it would take the place of one that is missing


def refusal(house: House, word: words.Introduction, known: Attendee | None, *, admits: bool) -> Refusal | None:
    """Why whoever introduces itself so is not let in, if it is not. Pure.

    ``known``: who is here under its name. ``admits``: whether nodes may be granted anything that are not yet.
    """
    if word.run != house.run:
        return Refusal(f"this is run {house.run}, not {word.run}", final=True)
    if unlike := difference(Said(word.node, word.common), house.leader):
        return Refusal(f"{unlike}; start all nodes with the same options", final=True)
    if known is not None and known.boot not in ("", word.boot):
        # Another process under the same name: nothing proves yet that the first one acts no more.
        reason = (
            f"{word.node} is there already, as process {known.boot} on {_host_of(known)}, and may act until it is "
            "certain that it has ended"
        )
        return Refusal(reason, final=known.heard, succeeds=not known.heard)
    if not admits and (known is None or known.follows_s is None):
        return Refusal(
            "the authority does not answer: only nodes that follow already are granted anything", final=False
        )
    return None


class Admission:
    """Tells the controller, once it is whole, of nodes that have reported."""

    def __init__(self, tenure: Tenure, mind: Mind, telling: Telling, feed: Callable[[Fact], None]) -> None:
        self._tenure = tenure
        self._mind = mind
        self._telling = telling
        self._feed = feed

    def count_with(self, attendee: Attendee) -> None:
        """It is counted with from now on, unless it says that it should get no work, and does none."""
        report = attendee.report
        if report is None:
            return
        if report.failed and not self.works(attendee):
            self._turn_down(attendee, report)
            return
        self._admit(attendee)
        if attendee.admitted:
            self._feed(NodeFitness(node=attendee.node, unfit=report.failed))

    def works(self, attendee: Attendee) -> bool:
        """Whether it holds seats: what trains there trains on."""
        if self._mind.whole:
            there = (proc for proc in self._mind.state.procs.values() if proc.node == attendee.node)
            return attendee.admitted and any(proc.seat is not None for proc in there)
        return attendee.node in self._tenure.record.nodes

    def note_accepted(self, attendee: Attendee) -> None:
        """For the journals."""
        introduction = attendee.introduction
        if introduction is not None:
            self._telling.note(
                NodeAccepted(
                    node=attendee.node,
                    boot=attendee.boot,
                    slots=introduction.slots,
                    domains=introduction.domains,
                )
            )

    def _turn_down(self, attendee: Attendee, report: words.Report) -> None:
        """The node says that it should get no work, and has none."""
        detail = f"it cannot take workers: {report.failed}"
        there = self._mind.state.procs.values() if attendee.admitted else ()
        spares = {proc.proc for proc in there if proc.node == attendee.node} | {known.proc for known in report.procs}
        self._telling.note(NodeGone(node=attendee.node, boot=attendee.boot, detail=detail))
        if attendee.admitted:
            attendee.admitted = attendee.silent = False
            self._feed(NodeLost(node=attendee.node, detail=detail))
            self._telling.tell()  # the memo, before anything is done about it
        self._feed(NodeFitness(node=attendee.node, unfit=report.failed))
        if spares:
            attendee.send(words.Dismissed(procs=tuple(sorted(spares))))

    def _admit(self, attendee: Attendee) -> None:
        """The controller counts with this node from now on."""
        introduction, report = attendee.introduction, attendee.report
        if introduction is None or report is None:
            return
        if attendee.admitted:  # it was out of reach for a while
            attendee.silent = False
            self._feed(NodeBack(node=attendee.node, procs=report.procs, ended=report.ended))
            return
        attendee.admitted = True
        void = tuple(known.proc for known in report.procs)
        if void:
            attendee.send(words.Dismissed(procs=void))
        self.note_accepted(attendee)
        if self._tenure.record.term == 0 and report.saved_step is not None:
            self._feed(StateSaved(step=max(report.saved_step, self._mind.state.saved_step or -1)))
        self._feed(
            NodeJoined(
                node=attendee.node,
                slots=introduction.slots,
                domains=introduction.domains,
                host=introduction.hostname,
            )
        )


def _host_of(attendee: Attendee) -> str:
    return "another machine" if attendee.introduction is None else attendee.introduction.hostname
