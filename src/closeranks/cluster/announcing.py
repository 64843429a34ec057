"""Announcing a term: first the authority, then a store that others can reach, then everybody.

A term that the authority did not take is never announced. A store that cannot be had or reached does not hold the
announcement back: the members fail to connect, say so, and the controller takes the next term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from closeranks.cluster.attendance import Attendee
from closeranks.decide.protocol import BeginTerm, StartGroup
from closeranks.nodes import words

STORE_S: Final = 3.0
REACH_S: Final = 2.0
NOWHERE: Final = words.Address(host="127.0.0.1", port=1)  # nobody listens there


class Members(NamedTuple):
    """Who sits where: the part of the record that changes with a term."""

    term: int
    procs: tuple[int, ...]
    nodes: tuple[str, ...]
    incarnations: tuple[int, ...]


class Announcer:
    """Does for one term at a time what has to be done before its members may hear of it."""

    def __init__(
        self,
        record: Callable[[Members], Awaitable[bool]],
        attendee: Callable[[str], Attendee | None],
        complain: Callable[[int, str], None],
    ) -> None:
        self._record = record
        self._attendee = attendee
        self._complain = complain
        self._opened: asyncio.Future[words.TermStoreOpened] | None = None
        self._opening = 0
        self._reached: dict[int, asyncio.Future[str]] = {}
        self._nonce = 0

    async def prepare(self, decision: StartGroup | BeginTerm, members: Members) -> words.Address | None:
        """The address at which the members meet; None: the authority refused, we lead no longer."""
        if not await self._record(members):
            return None
        first = self._attendee(members.nodes[0])
        if first is None or not first.heard:
            return NOWHERE
        address, problem = await self._open(first, decision.term)
        if not problem:
            problem = await self._reach(first, members, address)
        if problem:
            self._complain(decision.term, problem)
        return address

    async def _open(self, first: Attendee, term: int) -> tuple[words.Address, str]:
        self._opened, self._opening = asyncio.get_running_loop().create_future(), term
        first.send(words.OpenStore(term=term))
        try:
            answer = await asyncio.wait_for(self._opened, STORE_S)
        except TimeoutError:
            return NOWHERE, f"{first.node} did not open the store of term {term} within {STORE_S:g} s"
        finally:
            self._opened = None
        return answer.address, f"{first.node}: {answer.problem}" if answer.problem else ""

    async def _reach(self, first: Attendee, members: Members, address: words.Address) -> str:
        """Have one other node of the term connect to the store, before all of them try in vain."""
        others = (self._attendee(node) for node in dict.fromkeys(members.nodes) if node != first.node)
        other = next((o for o in others if o is not None and o.heard), None)
        if other is None:
            return ""
        self._nonce += 1
        nonce, answer = self._nonce, asyncio.get_running_loop().create_future()
        self._reached[nonce] = answer
        other.send(words.Reach(nonce=nonce, address=address))
        try:
            problem = await asyncio.wait_for(answer, REACH_S)
        except TimeoutError:
            problem = f"no answer within {REACH_S:g} s"
        finally:
            del self._reached[nonce]
        return f"{other.node} cannot reach the store of {first.node} at {address}: {problem}" if problem else ""

    def store_opened(self, word: words.TermStoreOpened) -> None:
        """A node answers."""
        if self._opened is not None and word.term == self._opening and not self._opened.done():
            self._opened.set_result(word)

    def reached(self, word: words.Reached) -> None:
        """A node answers."""
        answer = self._reached.get(word.nonce)
        if answer is not None and not answer.done():
            answer.set_result(word.problem)
