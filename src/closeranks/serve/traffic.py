"""All decisions about requests in one place: who may begin, where, and whether it is tried again. Pure.

The data path asks and tells; the policies behind it (``serve.policies``) never see a socket.
"""

from __future__ import annotations

from typing import Final

from closeranks.serve.settings import Settings
from closeranks.serve.words import Admitted, Again, Ask, Enough, Kind, Nowhere, Outcome, Placed, Shed, Waits

TRIES_MAX: Final = 4


class Traffic:
    """The policies of one gateway."""

    def __init__(self, settings: Settings) -> None:
        self._outstanding = {replica.name: 0 for replica in settings.replica}
        self._doubtful: set[str] = set()  # failed somebody, and has answered nobody since

    def admit(self, now_s: float, ask: Ask) -> Admitted | Waits | Shed:
        """Whether the request may begin."""
        del now_s, ask
        return Admitted()

    def place(self, now_s: float, ask: Ask, tried: tuple[str, ...]) -> Placed | Nowhere:
        """Where its next attempt goes; ``tried`` are replicas that have failed it, the last one last."""
        del now_s, ask
        names = [name for name in self._outstanding if name not in tried[-1:]] or list(self._outstanding)
        ranked = sorted(names, key=lambda name: (name in self._doubtful, tried.count(name), self._outstanding[name]))
        return Placed(replica=ranked[0], reason="least outstanding work")

    def elsewhere(self, now_s: float, ask: Ask, replica: str) -> bool:
        """Whether a stream that is slow at this replica would be better off at another one."""
        del now_s, ask
        return any(name != replica and name not in self._doubtful for name in self._outstanding)

    def begun(self, now_s: float, ask: Ask, replica: str, kind: Kind) -> None:
        """An attempt goes out."""
        del now_s, ask, kind
        self._outstanding[replica] += 1

    def ended(self, now_s: float, ask: Ask, replica: str, outcome: Outcome) -> None:
        """An attempt is over."""
        del now_s, ask
        self._outstanding[replica] -= 1
        if outcome in (Outcome.SLOW, Outcome.UNREACHED, Outcome.BROKEN):
            self._doubtful.add(replica)

    def heard(self, now_s: float, replica: str) -> None:
        """The replica has begun to answer somebody."""
        del now_s
        self._doubtful.discard(replica)

    def again(self, now_s: float, ask: Ask, kind: Kind, tries: int) -> Again | Enough:
        """Whether the work may be tried once more, as ``kind``, after ``tries`` attempts."""
        del now_s, kind
        if not ask.repeatable:
            return Enough(reason="repeating it could do harm")
        return Again(after_s=0.0) if tries < TRIES_MAX else Enough(reason=f"{tries} attempts have failed")

    def done(self, now_s: float, ask: Ask) -> tuple[int, ...]:
        """The request is over, however it ended; the numbers of queued requests that may begin now."""
        del now_s, ask
        return ()
