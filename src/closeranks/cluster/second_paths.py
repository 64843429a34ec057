"""Other ways to a node that is silent: its probe port, asked by this leader and two witnesses, and the user's command.

When a switch fails, or the machine of the leader itself is too busy to listen, hundreds of nodes are silent at once.
So there is a bound on how often is asked in all, however many they are: a leader that spends its time on asking hears
the beats of the others late, takes those for silent too, and asks ever more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Final

from closeranks.cluster.attendance import Attendee
from closeranks.cluster.identity import Identity
from closeranks.nodes import words
from closeranks.nodes.command_probe import CommandProbe
from closeranks.nodes.handshake import NotProved
from closeranks.nodes.link import End, Ended
from closeranks.nodes.probes import Finding, Life, Probed, Supervisor, judge, keep_vigil, probe
from closeranks.run.options import RunOptions

_PROBE_S: Final = 1.0
_PROBE_AGAIN_S: Final = 0.2
_AT_ONCE: Final = 16  # nodes that are looked for; a probe takes 1 ms of a core, so they take 8 % of it at most
_VIGILS_AT_ONCE: Final = 16  # all nodes of a job report to a new leader at once
_WITNESSES: Final = 2
_QUESTIONS_KEPT: Final = 1024  # to witnesses that have not answered


class SecondPaths:
    """Looks for attendees that are missing. ``gone(attendee)`` is called when it is certain that one has ended."""

    def __init__(
        self,
        attendees: dict[str, Attendee],
        scene: tuple[Identity, RunOptions],
        hung_up: Callable[[Attendee], None],
        gone: Callable[[Attendee], None],
    ) -> None:
        """``hung_up(attendee)``: its process seems to have ended, for the kernel closed what was kept open."""
        self._attendees = attendees
        self._identity, self._options = scene
        self._hung_up = hung_up
        self._gone = gone
        self._nonces = itertools.count(1)
        self._asked: dict[int, str] = {}  # witnesses, by nonce: for which node
        self._searches: dict[str, asyncio.Task[None]] = {}  # by node
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._vigils: set[asyncio.Task[None]] = set()  # that are being begun
        self._vigil_places = asyncio.Semaphore(_VIGILS_AT_ONCE)

    def look_for(self, attendee: Attendee) -> None:
        """Ask in several ways whether it still runs, until it is back or given up."""
        if attendee.node not in self._searches:
            self._searches[attendee.node] = asyncio.get_running_loop().create_task(self._search(attendee))

    def give_up(self, attendee: Attendee) -> None:
        """It is looked for no longer."""
        task = self._searches.pop(attendee.node, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def close(self) -> None:
        """Nobody is looked for any more."""
        for task in (*self._searches.values(), *self._vigils):
            task.cancel()
        self._searches.clear()

    def answered(self, witness: Attendee, word: words.Probed) -> None:
        """A node looked for another one."""
        attendee = self._attendees.get(self._asked.pop(word.nonce, ""))
        if attendee is not None and attendee.gone_s is not None:
            self._take(attendee, witness.node, Probed(Finding(word.finding), word.detail))

    def keep_vigil(self, attendee: Attendee) -> None:
        """Be told by the kernel when its process ends."""
        self._vigils.add(task := asyncio.get_running_loop().create_task(self._begin_vigil(attendee)))
        task.add_done_callback(self._vigils.discard)

    async def _begin_vigil(self, attendee: Attendee) -> None:
        def ended(end: End) -> None:
            if end.how is Ended.HUNG_UP:
                attendee.hung_up = True
                if self._attends(attendee):
                    self._hung_up(attendee)

        introduction = attendee.introduction
        if introduction is None:
            return
        async with self._vigil_places:
            address = words.Address(host=introduction.host, port=introduction.probe_port)
            with contextlib.suppress(OSError, NotProved):  # without a vigil its end is found in other ways
                attendee.vigil = await keep_vigil(address, self._identity.keys, ended, _PROBE_S)
        if attendee.vigil is not None and not self._attends(attendee):
            attendee.vigil.abort("it was given up")

    def _attends(self, attendee: Attendee) -> bool:
        return self._attendees.get(attendee.node) is attendee

    async def _search(self, attendee: Attendee) -> None:
        try:
            while attendee.gone_s is not None and attendee.introduction is not None and not attendee.certain:
                # The place is kept for the pause as well: so it bounds the rate, however quick the answers are.
                async with self._places:
                    if attendee.gone_s is not None:
                        await self._ask(attendee, attendee.introduction)
                        await asyncio.sleep(_PROBE_AGAIN_S)
        finally:
            if self._searches.get(attendee.node) is asyncio.current_task():
                del self._searches[attendee.node]

    async def _ask(self, attendee: Attendee, introduction: words.Introduction) -> None:
        address = words.Address(host=introduction.host, port=introduction.probe_port)
        attendee.opinions.clear()  # what was found before says nothing of now
        for witness in self._witnesses(attendee.node):
            nonce = next(self._nonces)
            self._asked[nonce] = attendee.node
            if len(self._asked) > _QUESTIONS_KEPT:
                del self._asked[next(iter(self._asked))]
            witness.send(words.Probe(nonce=nonce, node=attendee.node, boot=attendee.boot, address=address))
        wanted = Supervisor(attendee.node, attendee.boot)
        self._take(attendee, self._identity.node, await probe(address, self._identity.keys, wanted, _PROBE_S))
        if self._options.probe_command is not None and attendee.gone_s is not None and not attendee.certain:
            command = CommandProbe(self._options.probe_command)
            self._take(attendee, "probe command", await command.ask(introduction.host, attendee.node))

    def _witnesses(self, node: str) -> Iterator[Attendee]:
        others = (a for a in self._attendees.values() if a.heard and a.node not in (node, self._identity.node))
        return itertools.islice(others, _WITNESSES)

    def _take(self, attendee: Attendee, whose: str, probed: Probed) -> None:
        attendee.opinions[whose] = probed
        judgement = judge(list(attendee.opinions.values()), hung_up=attendee.hung_up)
        if judgement.life is Life.GONE:
            attendee.certain = judgement.reason
            self._gone(attendee)
