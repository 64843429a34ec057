"""Measures what the levels of the ladder cost: a few whole answers are had again from a level, and compared.

The client has its answer before. Level 0 is measured, too: a service that draws its words differs from itself, and a
level is worse by what it differs more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from closeranks.serve.foreign import decoded_object
from closeranks.serve.http.head import Request
from closeranks.serve.policies.difference import difference
from closeranks.serve.policies.fleet import Question
from closeranks.serve.question import Answered, ask
from closeranks.serve.words import Ask, Outcome, Placed

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway

_OK: Final = 200


class Quality:
    """The comparisons of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks: set[asyncio.Task[None]] = set()

    def compare(self, asked: Ask, request: Request, answer: bytes) -> None:
        """The full service has given this answer; perhaps a level is asked, too, in the background."""
        gateway = self._gateway
        level = gateway.traffic.compares(gateway.now_s())
        if level is None:
            return
        if gateway.traffic.ladder.levels[level].settings.kind == "model":
            task = asyncio.get_running_loop().create_task(self._ask(asked, request, answer, level))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        local = gateway.fallbacks.at(gateway.clock(), asked, request, level)
        if local is not None:
            self._note(level, answer, local.body)

    async def settled(self) -> None:
        """Return when no comparison is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Cancel what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _ask(self, asked: Ask, request: Request, answer: bytes, level: int) -> None:
        gateway = self._gateway
        settings, fleet = gateway.traffic.ladder.levels[level].settings, gateway.traffic.fleet
        placed = fleet.place(gateway.now_s(), Question(tier=settings.tier, probes=False))
        if not isinstance(placed, Placed):
            return
        replica = gateway.replicas[placed.replica]
        smaller, now_s = gateway.fallbacks.smaller(request, settings), gateway.now_s()
        data = gateway.wording.spell(smaller, replica, asked, now_s)
        ticket = fleet.begin(now_s, placed.replica)
        outcome = Outcome.GONE  # of a request that nobody waits for: nothing is learned about its replica
        try:
            said = await ask(replica.pool, data, gateway.settings.timeouts.first_byte_s)
        finally:
            fleet.end(gateway.now_s(), placed.replica, ticket, outcome)
        if isinstance(said, Answered) and said.status == _OK:
            self._note(level, answer, said.body)

    def _note(self, level: int, full: bytes, less: bytes) -> None:
        answers = decoded_object(full), decoded_object(less)
        measured = None if answers[0] is None or answers[1] is None else difference(answers[0], answers[1])
        if measured is not None:
            self._gateway.traffic.ladder.compared(level, measured)
