"""Who stands still in a recovery while the others wait for it.

What a member does in a recovery is its own work (it undoes its attempt, drops its old connections, takes over state,
verifies it), or it waits: for the supervisor, or for the other members, in a rendezvous or a transfer. Whoever waits is
a victim. How long own work may take is learned from how long it took others: a multiple of the longest that was seen.
It is no verdict: ``progress.py`` has whoever is late asked, and one that works is given longer.

Source: the robust scale of a handful of samples is their maximum; the factor is that of the steps, see ``Bounds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from closeranks.events import DeadlineChanged
from closeranks.signs import Doing, Reading

if TYPE_CHECKING:
    from closeranks.detect.progress import Bounds

WORKS: Final = frozenset({Doing.RECOVERING, Doing.RESTORING})
STANDS: Final = WORKS | {Doing.MEETING}
# What a newcomer does with the state that it takes over, nobody else does, so there may be nothing to learn from; and
# who is the last to be connected may have to send what was lost on its way once more.
_PATIENCE: Final[Mapping[Doing, int]] = {Doing.RECOVERING: 1, Doing.RESTORING: 4, Doing.MEETING: 3}
_KEPT: Final = 64
_TOLD_CHANGE: Final = 0.25  # a deadline that moved by less is not told

Taken = Mapping[Doing, tuple[float, ...]]  # seconds of own work that came to an end, the newest last


def learned(taken_s: Taken, before: Reading, after: Reading) -> Taken:
    """What is known of own work, once a member has gone on to ``after`` from ``before``, which is one of ``WORKS``."""
    spent_s = (after.moved_ns - before.moved_ns) / 1e9
    return {**taken_s, before.doing: (*taken_s.get(before.doing, ()), spent_s)[-_KEPT:]}


def allowed_s(bounds: Bounds, doing: Doing, taken_s: Taken, *, waited_for: bool) -> float:
    """How long a member may stand in what it is doing; as long as in a first step if nobody waits for it."""
    longest_s = max(taken_s.get(doing, ()), default=0.0)
    least_s = _PATIENCE[doing] * max(bounds.early_floor_s, bounds.floor_s) if waited_for else bounds.first_s
    return min(max(least_s, bounds.factor * longest_s), bounds.ceiling_s)


def changes(bounds: Bounds, before_s: Taken, after_s: Taken) -> tuple[DeadlineChanged, ...]:
    """Deadlines that are others now, with the reason."""
    if after_s is before_s:
        return ()
    told: list[DeadlineChanged] = []
    for doing, spent_s in after_s.items():
        was_s = allowed_s(bounds, doing, before_s, waited_for=True)
        is_s = allowed_s(bounds, doing, after_s, waited_for=True)
        if abs(is_s - was_s) > _TOLD_CHANGE * was_s:
            reason = f"of the last {len(spent_s)} times that a member did this, the longest took {max(spent_s):.3f} s"
            told.append(DeadlineChanged(phase=doing.name.lower(), allowed_s=is_s, reason=reason))
    return tuple(told)


class Members:
    """One look at all members, of whom there may be thousands; ``standing`` is empty when there is no recovery."""

    def __init__(self, readings: Mapping[int, Reading]) -> None:
        self._readings = readings
        self.standing = tuple(proc for proc, reading in readings.items() if reading.doing in STANDS)
        waiting = [r.moved_ns for r in readings.values() if r.doing is Doing.WAITING] if self.standing else []
        self._waiting, self._last_ns = len(waiting), max(waiting, default=0)

    def waited_for(self, proc: int) -> bool:
        """Whether another member has done its part and waits."""
        meeting = (one for one in self.standing if one != proc and self._readings[one].doing is Doing.MEETING)
        return self._waiting > 0 or next(meeting, None) is not None

    def since_ns(self, proc: int) -> int | None:
        """Since when it keeps the others waiting, if there are any and it does; None: it waits for one of them."""
        own = self._readings[proc]
        if own.doing in WORKS:
            return own.moved_ns
        if not 0 < self._waiting == len(self._readings) - 1:
            return None
        # All others have left the meeting, of their own accord or because it was called off: so should this one.
        return max(own.moved_ns, self._last_ns)
