"""Nodes that fall silent: suspected by their heartbeats, looked for on other ways, and given up when that is safe.

Two things make it safe: a proof that the supervisor has ended, and with it all that it ran; or that its last grant,
and the time in which it ends what acts without one, have run out by any clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Final

from closeranks.cluster.attendance import Attendee
from closeranks.cluster.identity import Identity
from closeranks.cluster.tenure import Tenure
from closeranks.decide.leases import NEVER_S, Clockwork, fenced_at, outnumbered, replacement_allowed
from closeranks.decide.partition import DeclareLost, GiveUp, Silence
from closeranks.decide.partition import judge as judge_silence
from closeranks.detect import heartbeat
from closeranks.detect.heartbeat import Bounds, Pulse
from closeranks.nodes import words
from closeranks.nodes.command_probe import CommandProbe
from closeranks.nodes.handshake import NotProved
from closeranks.nodes.link import End, Ended
from closeranks.nodes.probes import Finding, Life, Probed, Supervisor, judge, keep_vigil, probe
from closeranks.run.options import RunOptions

_PROBE_S: Final = 1.0
_PROBE_AGAIN_S: Final = 0.2
_WITNESSES: Final = 2
_GRANTS_KEPT: Final = 64
_FLOOR_BEATS: Final = 3.0  # a silence of fewer beats is never suspicious
_COUNTED_S: Final = 0.05  # so old may be the count of what all nodes have acknowledged


class Absences:
    """Watches over all attendees. ``lost(attendee, reason, hopeless)`` is called once for each that can act no more."""

    def __init__(
        self,
        attendees: dict[str, Attendee],
        tenure: Tenure,
        scene: tuple[Identity, RunOptions],
        lost: Callable[[Attendee, str, str], None],
    ) -> None:
        self._attendees = attendees
        self._tenure = tenure
        self._identity, self._options = scene
        self._lost = lost
        self._clockwork = Clockwork()
        self._pulses: dict[str, Pulse] = {}
        self._nonces = itertools.count(1)
        self._asked: dict[int, str] = {}
        self._counted: tuple[tuple[str, ...], tuple[str, ...], float, float] = ((), (), NEVER_S, NEVER_S)
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._vigils: set[asyncio.Task[None]] = set()  # that are being begun
        self.has_room: Callable[[str], bool] = lambda _: True
        self.dispensable: Callable[[str], bool] = lambda _: False
        self.silent: Callable[[Attendee, str], None] = lambda _attendee, _reason: None
        self.back: Callable[[Attendee], None] = lambda _: None  # it beats again, over the same connection

    # --- what is heard ------------------------------------------------------------------------------------------

    def expect(self, nodes: tuple[str, ...]) -> None:
        """Nodes of the newest term that have not followed this leader."""
        now_s = time.monotonic()
        for node in dict.fromkeys(nodes):
            if node not in self._attendees:
                self._attendees[node] = Attendee(node=node, boot="", gone_s=now_s, missing="not heard by this leader")

    def heard(self, attendee: Attendee, beat_s: float) -> None:
        """It introduced itself."""
        now_s = time.monotonic()
        ceiling_s = max(self._clockwork.lease_s / 2, 2 * _FLOOR_BEATS * beat_s)
        bounds = Bounds(floor_s=_FLOOR_BEATS * beat_s, ceiling_s=ceiling_s)
        self._pulses[attendee.node] = heartbeat.first_pulse(attendee.node, bounds, now_s)
        attendee.gone_s, attendee.missing, attendee.certain = None, "", ""
        attendee.opinions.clear()
        attendee.hung_up = False

    def reported(self, attendee: Attendee) -> None:
        """It follows this leader, and no other any more."""
        now_s = time.monotonic()
        if attendee.follows_s is None:
            self._vigils.add(task := asyncio.get_running_loop().create_task(self._keep_vigil(attendee)))
            task.add_done_callback(self._vigils.discard)
        attendee.follows_s = attendee.follows_s or now_s
        attendee.granted_s = max(attendee.granted_s, now_s)
        attendee.grants_s.clear()

    async def _keep_vigil(self, attendee: Attendee) -> None:
        """Be told by the kernel when its process ends."""

        def ended(end: End) -> None:
            if end.how is Ended.HUNG_UP:
                attendee.hung_up = True
                if self._attendees.get(attendee.node) is attendee:
                    self._missing(attendee, "its process hung up")

        introduction = attendee.introduction
        if introduction is not None:
            address = words.Address(host=introduction.host, port=introduction.probe_port)
            with contextlib.suppress(OSError, NotProved):  # without a vigil its end is found in other ways
                attendee.vigil = await keep_vigil(address, self._identity.keys, ended, _PROBE_S)

    def beat(self, attendee: Attendee, beat: words.Beat, *, granted: bool) -> None:
        """It beats, and is granted another while or not."""
        now_s = time.monotonic()
        pulse = self._pulses.get(attendee.node)
        if pulse is not None:
            self._pulses[attendee.node], _ = heartbeat.beat(pulse, now_s)
        if attendee.gone_s is not None:
            attendee.gone_s, attendee.missing = None, ""
            self.back(attendee)
        attendee.acknowledged_s = max(attendee.acknowledged_s, attendee.grants_s.get(beat.granted, NEVER_S))
        if granted:
            attendee.granted_s = attendee.grants_s[beat.number] = now_s
            while len(attendee.grants_s) > _GRANTS_KEPT:
                del attendee.grants_s[next(iter(attendee.grants_s))]

    def hung_up(self, attendee: Attendee, end: End) -> None:
        """Its connection ended."""
        attendee.hung_up = attendee.hung_up or end.how is Ended.HUNG_UP
        self._missing(attendee, f"its connection ended ({end})")

    def said_farewell(self, attendee: Attendee, reason: str) -> None:
        """Its workers have ended, and it ends."""
        self._give_up(attendee, f"it left: {reason}" if reason else "it left")

    def prove_ended(self, attendee: Attendee, reason: str) -> None:
        """Nothing of it acts any more, for this reason."""
        now_s = time.monotonic()
        attendee.certain = reason
        self._judge(attendee, now_s if attendee.gone_s is None else attendee.gone_s, now_s)

    def probed(self, witness: Attendee, word: words.Probed) -> None:
        """A node looked for another one."""
        node = self._asked.pop(word.nonce, None)
        attendee = self._attendees.get(node or "")
        if attendee is not None and attendee.gone_s is not None:
            self._opinion(attendee, witness.node, Probed(Finding(word.finding), word.detail))

    def present(self) -> set[str]:
        """Nodes that are heard now."""
        return {attendee.node for attendee in self._attendees.values() if attendee.heard}

    def heard_s(self) -> float:
        """When the oldest of the newest acknowledged grants of the term's nodes was sent; see ``Around.heard_s``.

        Asked for with every beat of every node, so it is not counted anew each time: for the same nodes what was
        true a moment ago still is, for grants that all have acknowledged stay acknowledged.
        """
        now_s, nodes, doubtful = time.monotonic(), self._tenure.record.nodes, self._tenure.nodes_in_doubt
        if self._counted[:2] != (nodes, doubtful) or now_s > self._counted[2] + _COUNTED_S:
            every = {*nodes, *doubtful}
            times = [NEVER_S if (a := self._attendees.get(n)) is None else a.acknowledged_s for n in every]
            self._counted = (nodes, doubtful, now_s, min(times, default=NEVER_S))
        return self._counted[3]

    def outnumbered(self) -> bool:
        """Whether this leader reaches too few nodes of the newest term."""
        nodes = set(self._tenure.record.nodes)
        return bool(nodes) and outnumbered(nodes=len(nodes), reached=len(nodes & self.present()))

    # --- the regular look ---------------------------------------------------------------------------------------

    def look(self, now_s: float, late_s: float) -> None:
        """Suspect who is overdue, and give up whoever can act no more."""
        survey = heartbeat.look_at_all(self._pulses, now_s, late_s)
        self._pulses.update(survey.changed)
        for suspicion in survey.suspicions:
            attendee = self._attendees.get(suspicion.node)
            if attendee is not None and attendee.gone_s is None:
                self._missing(attendee, suspicion.reason)
        for attendee in list(self._attendees.values()):
            if attendee.gone_s is not None:
                self._judge(attendee, attendee.gone_s, now_s)

    def _missing(self, attendee: Attendee, reason: str) -> None:
        if attendee.gone_s is None:
            attendee.gone_s = time.monotonic()
        attendee.missing = reason
        self.silent(attendee, reason)
        if attendee.node not in self._probing:
            self._probing[attendee.node] = asyncio.get_running_loop().create_task(self._probe(attendee))

    def _judge(self, attendee: Attendee, gone_s: float, now_s: float) -> None:
        silence = Silence(
            node=attendee.node,
            policy=self._options.on_partition,
            silent_s=now_s - gone_s,
            fenced_after_s=self._fenced_s(attendee) - gone_s,
            patience_s=self._options.node_patience_s,
            seats=self._tenure.record.nodes.count(attendee.node),
            proven_gone=bool(attendee.certain),
            replaceable=self.has_room(attendee.node),
            dispensable=self.dispensable(attendee.node),
        )
        match judge_silence(silence):
            case DeclareLost(detail=detail):
                self._give_up(attendee, detail)
            case GiveUp(reason=reason):
                self._give_up(attendee, "it was waited for in vain", reason)

    def _fenced_s(self, attendee: Attendee) -> float:
        """From when on it has no acting workers, whatever it hears or does not."""
        if attendee.follows_s is not None:
            return fenced_at(attendee.granted_s, self._clockwork)
        nodes = set(self._tenure.record.nodes)
        followed_s = [a.follows_s for a in self._attendees.values() if a.node in nodes and a.follows_s is not None]
        return replacement_allowed(
            nodes=len(nodes),
            reached=len(followed_s),
            predecessor_s=self._tenure.predecessor_s,
            let_go_s=min(followed_s, default=time.monotonic()),
            clockwork=self._clockwork,
        ).from_s

    def _give_up(self, attendee: Attendee, why: str, hopeless: str = "") -> None:
        task = self._probing.pop(attendee.node, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._pulses.pop(attendee.node, None)
        detail = "; ".join(part for part in (attendee.missing, attendee.certain, why) if part)
        self._lost(attendee, detail, hopeless)

    # --- second paths -------------------------------------------------------------------------------------------

    async def _probe(self, attendee: Attendee) -> None:
        """Ask in several ways whether it still runs, until it is back or given up."""
        try:
            while attendee.gone_s is not None and attendee.introduction is not None and not attendee.certain:
                introduction = attendee.introduction
                address = words.Address(host=introduction.host, port=introduction.probe_port)
                attendee.opinions.clear()  # what was found before says nothing of now
                for witness in self._witnesses(attendee.node):
                    nonce = next(self._nonces)
                    self._asked[nonce] = attendee.node
                    witness.send(words.Probe(nonce=nonce, node=attendee.node, boot=attendee.boot, address=address))
                wanted = Supervisor(attendee.node, attendee.boot)
                found = await probe(address, self._identity.keys, wanted, _PROBE_S)
                self._opinion(attendee, self._identity.node, found)
                if self._options.probe_command is not None and attendee.gone_s is not None:
                    command = CommandProbe(self._options.probe_command)
                    self._opinion(attendee, "probe command", await command.ask(introduction.host, attendee.node))
                await asyncio.sleep(_PROBE_AGAIN_S)
        finally:
            self._probing.pop(attendee.node, None)

    def _witnesses(self, node: str) -> list[Attendee]:
        others = (a for a in self._attendees.values() if a.heard and a.node not in (node, self._identity.node))
        return list(itertools.islice(others, _WITNESSES))

    def _opinion(self, attendee: Attendee, whose: str, probed: Probed) -> None:
        attendee.opinions[whose] = probed
        judgement = judge(list(attendee.opinions.values()), hung_up=attendee.hung_up)
        if judgement.life is Life.GONE:
            attendee.certain = judgement.reason
            self._judge(attendee, attendee.gone_s or time.monotonic(), time.monotonic())
