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

    def admit(self, now_s: float, ask: Ask) -> Admitted | Waits | Shed:
        """Whether the request may begin."""
        del now_s, ask
        return Admitted()

    def place(self, now_s: float, ask: Ask, tried: tuple[str, ...]) -> Placed | Nowhere:
        """Where its next attempt goes; ``tried`` are replicas that have failed it, the last one last."""
        del now_s, ask
        free = [name for name in self._outstanding if name not in tried] or [
            name for name in self._outstanding if name != tried[-1]
        ]
        if not free:
            return Nowhere(reason="no other replica", retry_after_s=1.0)
        return Placed(replica=min(free, key=self._outstanding.__getitem__), reason="least outstanding work")

    def begun(self, now_s: float, ask: Ask, replica: str, kind: Kind) -> None:
        """An attempt goes out."""
        del now_s, ask, kind
        self._outstanding[replica] += 1

    def ended(self, now_s: float, ask: Ask, replica: str, outcome: Outcome) -> None:
        """An attempt is over."""
        del now_s, ask, outcome
        self._outstanding[replica] -= 1

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
