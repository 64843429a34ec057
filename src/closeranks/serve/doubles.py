"""Executes some requests twice and lets replicas vote on the answer, before the client has any of it.

Only whole answers to greedy or seeded requests are compared. If the second replica gives none, the first one's stands:
a comparison that could not be made is no evidence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from closeranks.serve.foreign import decode
from closeranks.serve.http.head import Request
from closeranks.serve.http.upstream import Cut
from closeranks.serve.policies.fleet import Question
from closeranks.serve.policies.redundancy import Agreed, fingerprint, vote
from closeranks.serve.question import Answered, ask
from closeranks.serve.story import Story, Visit
from closeranks.serve.words import Ask, Kind, Outcome, Placed

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.traffic import Traffic

_OK: Final = 200


class Candidate(msgspec.Struct, frozen=True):
    """A whole answer, and who gave it."""

    replica: str
    body: bytes


class Case(msgspec.Struct, frozen=True):
    """A request whose answer is compared before it is given."""

    request: Request
    ask: Ask
    traffic: Traffic
    story: Story


class Doubles:
    """The comparisons of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks: set[asyncio.Task[None]] = set()

    def compare(
        self, case: Case, first: Candidate, second: str, settled: Callable[[Candidate | None], None]
    ) -> asyncio.Task[None]:
        """Ask ``second``, too, and a third one if they differ.

        ``settled`` hears the answer that the client gets; None: no two replicas agree. Cancel the task when the
        client has left.
        """
        task = asyncio.get_running_loop().create_task(self._compare(case, first, second, settled))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _compare(
        self, case: Case, first: Candidate, second: str, settled: Callable[[Candidate | None], None]
    ) -> None:
        other = await self._answer(case, second)
        candidates = [first] if other is None else [first, other]
        if other is None or isinstance(vote(_prints(candidates)), Agreed):
            settled(first)
            return
        tried = tuple(candidate.replica for candidate in candidates)
        placed = case.traffic.fleet.place(self._gateway.now_s(), Question(tier=self._tier(first), tried=tried))
        third = None
        if isinstance(placed, Placed) and placed.replica not in tried:
            third = await self._answer(case, placed.replica)
        if third is not None:
            candidates.append(third)
        settled(self._judged(case, candidates))

    def _judged(self, case: Case, candidates: list[Candidate]) -> Candidate | None:
        match vote(_prints(candidates)):
            case Agreed(replica, odd):
                for name in odd:
                    reason = f"its answer to request {case.ask.number} differs from two others'"
                    self._gateway.distrust(case.traffic, name, reason)
                return next(candidate for candidate in candidates if candidate.replica == replica)
            case _:
                return None

    async def _answer(self, case: Case, name: str) -> Candidate | None:
        gateway = self._gateway
        replica, now_s = gateway.replicas[name], gateway.now_s()
        data = gateway.wording.spell(case.request, replica, case.ask, now_s)
        case.traffic.begun(now_s, case.ask, name, Kind.DOUBLE)
        visit = Visit(replica=name, kind=Kind.DOUBLE, began_s=now_s)
        case.story.visits.append(visit)
        within_s = min(gateway.settings.timeouts.first_byte_s, max(0.001, case.ask.deadline_s - now_s))
        answer = await ask(replica.pool, data, within_s)
        visit.ended_s = gateway.now_s()
        good = isinstance(answer, Answered) and answer.status == _OK
        if good:
            visit.outcome = Outcome.OK
        elif isinstance(answer, Answered):
            visit.outcome, visit.detail = Outcome.BROKEN, f"status {answer.status}"
        else:
            visit.outcome, visit.detail = Outcome.SLOW if answer.cut is Cut.SILENT else Outcome.BROKEN, answer.detail
        case.traffic.ended(visit.ended_s, case.ask, name, visit.outcome)
        return Candidate(name, answer.body) if good and isinstance(answer, Answered) else None

    def _tier(self, first: Candidate) -> str:
        return self._gateway.replicas[first.replica].settings.tier


def _prints(candidates: list[Candidate]) -> dict[str, str]:
    return {candidate.replica: _print(candidate.body) for candidate in candidates}


def _print(body: bytes) -> str:
    """The fingerprint of an answer; what is none of the API's is compared byte by byte."""
    try:
        answer: Any = decode(body)
        return fingerprint(answer)
    except (msgspec.DecodeError, AttributeError, TypeError):
        return body.hex()
