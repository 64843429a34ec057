"""Which step is closed on every node, and what all seats do: merges what the nodes' beats carry. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from closeranks.decide.protocol import StepDone
from closeranks.nodes.words import Beat, ClosedHere, SeatSign
from closeranks.signs import Reading

_KEPT = 4096  # closed steps of a node that wait for the others


class Steps:
    """Counts a step once every node with a seat has closed it."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[int, float]] = {}  # by node with seats: durations of steps it closed, by step
        self._newest: dict[str, int] = {}
        self._done = -1

    @property
    def done(self) -> int:
        """The newest step that every node closed."""
        return self._done

    def begin(self, nodes: Iterable[str], step: int) -> tuple[StepDone, ...]:
        """The seats sit on these nodes, and go on after ``step``: that one is done, later ones are void."""
        durations = [d for closed in self._nodes.values() if (d := closed.get(step)) is not None]
        self._newest = dict.fromkeys(nodes, step)
        self._nodes = {node: {} for node in self._newest}
        news = () if step <= self._done else (StepDone(step=step, duration_s=max(durations, default=0.0)),)
        self._done = step
        return news

    def resume(self, newest: Mapping[str, int]) -> None:
        """The seats sit on these nodes and have closed these steps; what all have closed is known to be done."""
        self._newest = dict(newest)
        self._nodes = {node: {} for node in newest}
        self._done = min(newest.values(), default=-1)

    def add(self, node: str, closed: Iterable[ClosedHere]) -> tuple[StepDone, ...]:
        """What a node closed since its last beat; the steps that are done by that, in their order."""
        steps = self._nodes.get(node)
        if steps is None:
            return ()
        for one in closed:
            if one.step > self._done:
                steps[one.step] = one.duration_s
                self._newest[node] = max(self._newest[node], one.step)
        for old in sorted(steps)[: max(0, len(steps) - _KEPT)]:
            del steps[old]
        until = min(self._newest.values(), default=-1)
        news = [self._close(step) for step in range(max(self._done + 1, until - _KEPT), until + 1)]
        return tuple(news)

    def _close(self, step: int) -> StepDone:
        self._done = step
        return StepDone(step=step, duration_s=max((c.pop(step, 0.0) for c in self._nodes.values()), default=0.0))


class Signs:
    """The newest vitals of all seats, in the coordinator's clock."""

    def __init__(self) -> None:
        self._shift_ns: dict[tuple[str, str], int] = {}  # by node and boot: what its clock is behind ours
        self._signs: dict[str, tuple[int, tuple[SeatSign, ...]]] = {}

    def take(self, node: str, boot: str, beat: Beat, now_ns: int) -> None:
        """A beat. The shift is measured once: were it measured anew, a delay would look like a move."""
        shift_ns = self._shift_ns.setdefault((node, boot), now_ns - beat.sent_ns)
        self._signs[node] = (shift_ns, beat.signs)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._signs.pop(node, None)

    def sections(self, nodes: Iterable[str]) -> dict[int, Mapping[str, float]]:
        """By process: seconds spent in each named operation, as last told."""
        signs = (sign for node in nodes for sign in self._signs.get(node, (0, ()))[1])
        return {sign.proc: sign.sections_s for sign in signs}

    def readings(self, nodes: Iterable[str], procs: Mapping[int, int]) -> dict[int, Reading]:
        """By process, those on ``nodes`` that sit where the newest term put them (``procs``: process to seat)."""
        found: dict[int, Reading] = {}
        for node in nodes:
            shift_ns, signs = self._signs.get(node, (0, ()))
            for sign in signs:
                if procs.get(sign.proc) == sign.seat and not sign.asked:
                    found[sign.proc] = sign.reading._replace(moved_ns=sign.reading.moved_ns + shift_ns)
        return found
