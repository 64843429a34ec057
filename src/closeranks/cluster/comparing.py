"""What a leader does about nodes whose processes are not the same as the others'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from closeranks.cluster.agreement import Agreement
from closeranks.cluster.attendance import Attendee
from closeranks.cluster.telling import Telling
from closeranks.decide.protocol import EndRun
from closeranks.events import PreflightDone
from closeranks.nodes import words

_THE_SAME: Final = "make all nodes run the same versions and script"


class Comparing:
    """Hears what the processes of the nodes say of themselves."""

    def __init__(
        self, attendees: Mapping[str, Attendee], telling: Telling, end: Callable[[EndRun], None], found: tuple[int, ...]
    ) -> None:
        """``found``: the group of an earlier leader, by seat; what it agreed in has been told already."""
        self._attendees = attendees
        self._telling = telling
        self._end = end
        self._agreement = Agreement()
        self._agreement.begin(found)
        self._anew = bool(found)

    def begin(self, procs: tuple[int, ...]) -> None:
        """A group is started; ``procs[seat]``."""
        self._agreement.begin(procs)
        self._anew = False

    def take(self, attendee: Attendee, word: words.SeatFacts) -> None:
        """A process of this node joined."""
        first, attendee.compared = not attendee.compared, True
        if strange := self._agreement.strange(word):
            if first:
                attendee.send(words.TurnedAway(reason=f"{strange}; {_THE_SAME}", final=True))
            else:  # its script was changed since; to lose the node as well would help nobody
                self._telling.note(PreflightDone(findings=(f"{attendee.node}: {strange}",)))
        done = self._agreement.take(word)
        if done is None:
            return
        if done.event.findings or not self._anew:
            self._telling.note(done.event)
        if done.fatal and not self._trained():
            self._end(EndRun(outcome="failed", exit_code=1, reason=f"preflight: {done.fatal}; {_THE_SAME}"))

    def _trained(self) -> bool:
        """Whether the group was in its loop: what has changed since, as an edited script, is no reason to end it."""
        reports = [a.report for a in self._attendees.values() if a.report is not None]
        return any(report.closed_step >= 0 or any(known.looped for known in report.procs) for report in reports)
