"""Whole answers that the client has seen nothing of: some are compared with another replica's before it gets them."""

from __future__ import annotations

import asyncio
import functools
from typing import Final

from closeranks.serve.attempt import Attempt
from closeranks.serve.attempts import Attempts
from closeranks.serve.doubles import Candidate, Case

_OK: Final = 200
_BAD_GATEWAY: Final = 502


class WholeAnswers(Attempts, eq=False, kw_only=True):
    """What an exchange does with a whole answer before it is given."""

    _comparison: asyncio.Task[None] | None = None

    def _answer_whole(self, attempt: Attempt, body: bytes) -> None:
        """Give it; if the traffic wants so, after a comparison, and a copy is kept."""
        traffic = self.traffic
        if attempt.status != _OK or not traffic.looks_twice:
            self._give(attempt, body)
            return
        second = traffic.doubled(self._gateway.now_s(), self.ask, attempt.replica.name)
        if second:
            case = Case(self._request, self.ask, traffic, self.story)
            first, settled = Candidate(attempt.replica.name, body), functools.partial(self._compared, attempt)
            self._comparison = self._gateway.doubles.compare(case, first, second, settled)
        else:
            self._give_kept(attempt, body)

    def _compared(self, attempt: Attempt, answer: Candidate | None) -> None:
        self._comparison = None
        if answer is not None:
            attempt.replica = self._replicas[answer.replica]
            self._give_kept(attempt, answer.body)
            return
        safe = self._gateway.fallbacks.safe(self._gateway.clock(), self._request)
        if safe is None:
            self.refuse(_BAD_GATEWAY, "replicas differ in their answers, and no two of them agree", None)
        else:
            self._answer_locally(safe)

    def _give_kept(self, attempt: Attempt, body: bytes) -> None:
        if self.traffic.has_ladder and not self._degraded and not self.story.without:
            self._gateway.quality.compare(self.ask, self._request, body)  # before it is what is remembered
            self._gateway.fallbacks.keep(self._gateway.now_s(), self.ask, self._request, body)
        self._give(attempt, body)
