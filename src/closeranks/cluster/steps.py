"""Which step is closed on every node, and what all seats do: merges what the nodes' beats carry. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from closeranks.cluster.sections import Sections
from closeranks.decide.protocol import StepDone
from closeranks.nodes.words import Beat, ClosedHere, SeatSign
from closeranks.signs import Reading, mean_of

_KEPT = 4096  # closed steps of a node that wait for the others


class Steps:
    """Counts a step once every node with a seat has closed it."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[int, ClosedHere]] = {}  # by node with seats: the steps it closed, by step
        self._newest: dict[str, int] = {}
        self._done = -1
        self._behind = 0  # nodes that have closed nothing after it: only the last of them can move it

    @property
    def done(self) -> int:
        """The newest step that every node closed."""
        return self._done

    def begin(self, nodes: Iterable[str], step: int) -> tuple[StepDone, ...]:
        """The seats sit on these nodes, and go on after ``step``: that one is done, later ones are void."""
        news = () if step <= self._done else (self._close(step),)
        self._newest = dict.fromkeys(nodes, step)
        self._nodes = {node: {} for node in self._newest}
        self._done = step
        self._behind = len(self._newest)
        return news

    def resume(self, newest: Mapping[str, int]) -> None:
        """The seats sit on these nodes and have closed these steps; what all have closed is known to be done."""
        self._newest = dict(newest)
        self._nodes = {node: {} for node in newest}
        self._done = min(newest.values(), default=-1)
        self._behind = self._count_behind()

    def add(self, node: str, closed: Iterable[ClosedHere]) -> tuple[StepDone, ...]:
        """What a node closed since its last beat; the steps that are done by that, in their order."""
        steps = self._nodes.get(node)
        if steps is None:
            return ()
        was_behind = self._newest[node] <= self._done
        for one in closed:
            if one.step > self._done:
                steps[one.step] = one
                self._newest[node] = max(self._newest[node], one.step)
        while len(steps) > _KEPT:
            del steps[min(steps)]
        self._behind -= was_behind and self._newest[node] > self._done
        if self._behind:
            return ()
        until = min(self._newest.values())
        news = [self._close(step) for step in range(max(self._done + 1, until - _KEPT), until + 1)]
        self._behind = self._count_behind()
        return tuple(news)

    def _count_behind(self) -> int:
        return sum(newest <= self._done for newest in self._newest.values())

    def _close(self, step: int) -> StepDone:
        self._done = step
        parts = [part for closed in self._nodes.values() if (part := closed.pop(step, None)) is not None]
        return StepDone(
            step=step,
            duration_s=max((part.duration_s for part in parts), default=0.0),
            period_s=max((part.period_s for part in parts), default=0.0),
            loss=mean_of(part.loss for part in parts),
            grad_norm=mean_of(part.grad_norm for part in parts),
        )


class Signs:
    """The newest vitals of all seats, and what their clocks are behind the coordinator's."""

    def __init__(self) -> None:
        self._boots: dict[str, tuple[str, int]] = {}  # by node: its supervisor, and what its clock is behind ours
        self._told: dict[str, tuple[SeatSign, ...]] = {}  # by node
        self._sections: dict[str, msgspec.Raw] = {}  # by node
        self._seats: Mapping[int, int] = {}  # by process, under the newest term
        self._counted: dict[str, tuple[int, ...]] = {}  # by node: those of its processes that are in what follows
        self._readings: dict[int, Reading] = {}
        self._behind_ns: dict[int, int] = {}

    def take(self, node: str, boot: str, beat: Beat, now_ns: int) -> None:
        """A beat. The shift is measured once: were it measured anew, a delay would look like a move."""
        if self._boots.get(node, ("", 0))[0] != boot:
            self.forget(node)
            self._boots[node] = boot, now_ns - beat.sent_ns
        self._told[node] = beat.signs
        self._sections[node] = beat.spent
        self._count(node)

    def seat(self, seats: Mapping[int, int]) -> None:
        """Who sits where from now on, by process: others are not counted."""
        self._seats = seats
        for node in self._told:
            self._count(node)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._drop(self._counted.pop(node, ()))
        for known in (self._boots, self._told, self._sections):
            known.pop(node, None)

    def sections(self) -> Sections:
        """By process: what was spent in named operations, as last told: of one node by more steps than of another."""
        return Sections(self._sections.values())

    def readings(self) -> tuple[dict[int, Reading], Mapping[int, int]]:
        """By process, of those that sit where the newest term put them and were not told to end.

        Moves are told by the clock of the node: the second mapping has what that is behind the coordinator's.
        """
        return self._readings.copy(), self._behind_ns

    def _count(self, node: str) -> None:
        """One beat changes the readings of one node: putting those of thousands of seats together takes long."""
        seats = self._seats
        news = {s.proc: s.reading for s in self._told[node] if seats.get(s.proc) == s.seat and not s.asked}
        self._readings |= news
        counted, known = tuple(news), self._counted.get(node, ())
        if counted != known:
            self._drop(frozenset(known) - news.keys())
            self._counted[node] = counted
            self._behind_ns |= dict.fromkeys(counted, self._boots[node][1])

    def _drop(self, procs: Iterable[int]) -> None:
        for proc in procs:
            self._readings.pop(proc, None)
            self._behind_ns.pop(proc, None)
