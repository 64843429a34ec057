"""Saves that are not over: every node hands its images to its keeper under one name, and none waits for a lost one."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.tiers import Last, Tiers, due
from closeranks.cluster.saving_words import GiveUp, Missed, PublishNow, Taken
from closeranks.run.circle import Circle
from closeranks.run.context import Context
from closeranks.run.disowning import disown
from closeranks.run.keeper_link import KeeperLink

_TAKE_S: Final = 10.0  # for a node to hand its images to its keeper


@dataclass(slots=True, kw_only=True)
class Work:
    """One save."""

    save: int  # that its images were taken for
    number: int  # that they are saved as
    step: int
    seats: dict[str, tuple[int, ...]]  # by node
    final: bool
    taken_s: float
    attempt: str = ""  # "": it waits for the keeper
    told_s: float = 0.0
    unheard: set[str] = field(default_factory=set)  # nodes that have not said that they took it
    over: bool = False
    freed: bool = False


class Works:
    """The saves in work of the lead. ``failed(work, problem)`` is called for those that will not become durable."""

    def __init__(self, context: Context, circle: Circle, tiers: Tiers, failed: Callable[[Work, str], None]) -> None:
        self._context = context
        self._circle = circle
        self._tiers = tiers
        self._failed = failed
        self._works: dict[int, Work] = {}  # by number
        self._last: dict[str, Last] = {}  # by tier, where several keepers have to agree on what is due
        self._telling: set[asyncio.Task[None]] = set()

    def clear(self) -> None:
        """They are not ours any more."""
        self._works.clear()
        self._last.clear()

    def get(self, number: int) -> Work | None:
        """The save of this number, if it is in work."""
        return self._works.get(number)

    @property
    def unsaved(self) -> tuple[int, ...]:
        """Saves whose images wait for a keeper."""
        return tuple(work.save for work in self._works.values() if not work.attempt)

    def begin(self, work: Work, link: KeeperLink) -> None:
        """Its images are there, on every node."""
        self._works[work.number] = work
        self._publish(work, link)

    def keeper_changed(self, link: KeeperLink) -> None:
        """There is a keeper, or it is certain that there will be none."""
        for work in [work for work in self._works.values() if not work.attempt]:
            self._publish(work, link)

    def seated(self) -> None:
        """A term begins. What was to come from nodes that have no seats any more will not come."""
        for work in self._works.values():
            for node in work.seats.keys() - self._circle.nodes:
                self._disown(work, (node,), f"{node} was lost")

    def look(self, now_s: float) -> None:
        """Called now and then: a node may not have heard of a save."""
        for work in self._works.values():
            if work.attempt and work.unheard and now_s - work.told_s > _TAKE_S:
                late = sorted(work.unheard)
                work.unheard.clear()
                self._disown(work, late, f"{', '.join(late)} did not answer within {_TAKE_S:g} s")

    def taken(self, node: str, word: Taken) -> None:
        """A node's keeper has its images."""
        work = self._works.get(word.number)
        if work is not None:
            work.unheard.discard(node)

    def missed(self, node: str, word: Missed) -> None:
        """A node's part of a save is lost; with ours the save is."""
        work = self._works.get(word.number)
        if work is None:
            return
        if node == self._circle.node:
            self._disown(work, (node,), word.problem)  # the others wait for a commit, and look there for its end
            self._give_up(work, word.problem)
        else:
            self._disown(work, (node,), f"{node}: {word.problem}")

    def over(self, number: int) -> None:
        """It has reached its homes."""
        work = self._works.get(number)
        if work is not None:
            work.over = True
            self._forget(work)

    def freed(self, number: int) -> Work | None:
        """The lead's keeper reads its images no more; the save if it was in work."""
        work = self._works.get(number)
        if work is not None:
            work.freed = True
            self._forget(work)
        return work

    async def finish(self) -> None:
        """Let what is being said in the store be said."""
        if self._telling:
            await asyncio.wait(self._telling)

    def _forget(self, work: Work) -> None:
        if work.over and work.freed:
            del self._works[work.number]

    def _give_up(self, work: Work, problem: str) -> None:
        del self._works[work.number]
        self._failed(work, problem)

    def _publish(self, work: Work, link: KeeperLink) -> None:
        if link.closed:  # every save fails from now on, and says so
            self._circle.tell_all(GiveUp(save=work.save))
            self._give_up(work, link.closed)
        elif link.ready:
            work.told_s, work.unheard = time.monotonic(), set(work.seats)
            work.attempt = attempt_name(link.store_term, work.step, secrets.token_hex(4))
            self._circle.tell_all(
                PublishNow(
                    save=work.save,
                    number=work.number,
                    attempt=work.attempt,
                    world=self._context.seats,
                    tiers=self._tiers_of(work),
                )
            )

    def _tiers_of(self, work: Work) -> tuple[str, ...] | None:
        """Intervals by the clock are judged once, here: several keepers would differ."""
        if not work.final and not self._circle.several:
            return None
        every = tuple(tier.name for tier in self._tiers.tiers)
        names = every if work.final else due(self._tiers, self._last, work.step, work.told_s)
        self._last |= {name: Last(work.step, work.told_s) for name in names}
        return names

    def _disown(self, work: Work, nodes: Iterable[str], problem: str) -> None:
        """Say in the store that these nodes will not contribute: whoever waits for them there need not."""
        writers = [seat for node in nodes for seat in work.seats.get(node, ())]
        if self._circle.several and work.attempt and writers:
            self._say_in_store(work.attempt, writers, problem)

    def _say_in_store(self, attempt: str, writers: list[int], problem: str) -> None:
        url = self._context.options.store or ""
        task = asyncio.ensure_future(asyncio.to_thread(disown, url, attempt, writers, problem))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
