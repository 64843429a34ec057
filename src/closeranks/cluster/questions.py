"""What a leader asks a node about others and about its own processes, and the answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from closeranks.cluster.identity import Identity
from closeranks.nodes import words
from closeranks.nodes.probes import Life, Supervisor, judge, probe
from closeranks.run.context import Context
from closeranks.run.doubts import ask, call

_PROBE_S: Final = 1.0
_REACH_S: Final = 1.5


class Questions:
    """Looks for the answers beside all else that the supervisor does."""

    def __init__(self, context: Context, identity: Identity, say: Callable[[words.FromNode], None]) -> None:
        self._context = context
        self._identity = identity
        self._say = say
        self.committer: words.Committer | None = None  # told with the end of the run

    def take(self, word: words.Reach | words.Probe | words.Confirm) -> None:
        """One more question; the answer is said when it is found."""
        match word:
            case words.Reach():
                self._context.spawn(self._reach(word))
            case words.Probe():
                self._context.spawn(self._probe(word))
            case words.Confirm():
                self._context.spawn(self._confirm(word))

    async def life_of_committer(self) -> Life:
        """Whether the node that commits the last save still lives."""
        lead = self.committer
        if lead is None:
            return Life.UNKNOWN
        if lead.address is None:
            return Life.GONE
        found = await probe(lead.address, self._identity.keys, Supervisor(lead.node, lead.boot), _PROBE_S)
        return judge([found], hung_up=False).life

    async def _reach(self, word: words.Reach) -> None:
        problem = await asyncio.to_thread(_connect, word.address)
        self._say(words.Reached(nonce=word.nonce, problem=problem))

    async def _probe(self, word: words.Probe) -> None:
        found = await probe(word.address, self._identity.keys, Supervisor(word.node, word.boot), _PROBE_S)
        self._say(words.Probed(nonce=word.nonce, finding=found.finding.value, detail=found.detail))

    async def _confirm(self, word: words.Confirm) -> None:
        worker = self._context.workers.get(word.proc)
        if worker is None or not worker.alive:
            return
        answered, busy = await (call(worker) if word.routine else ask(worker))
        self._say(words.Confirmed(proc=word.proc, answered=answered, busy=busy, routine=word.routine))


def _connect(address: words.Address) -> str:
    try:
        socket.create_connection((address.host, address.port), timeout=_REACH_S).close()
    except OSError as error:
        return str(error)
    return ""
