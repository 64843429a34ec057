"""The candidate of a node: it seeks the lead of the job, and leads it while it has it.

Started by the supervisor as ``python -P -m closeranks.cluster.candidate FOLDER FD PARENT_PID``. It holds
no worker and no state that could not be learned again, so nothing is lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from closeranks.authority.memory import MemoryRegister
from closeranks.authority.opening import open_register, shown
from closeranks.authority.register import Register, RegisterError, RegisterRefused
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.cluster import aside
from closeranks.cluster.conclusion import conclude
from closeranks.cluster.coordinator import Coordinator
from closeranks.cluster.identity import Identity, IdentityProblem, identity_of, meeting_point
from closeranks.cluster.leader_vigil import LeaderVigil
from closeranks.cluster.tenure import Deposed, Seat, Tenure
from closeranks.decide.leadership import Around, Candidacy, Choice, Contend, Follow, Lead, Over, StepDown
from closeranks.decide.protocol import EndRun
from closeranks.garbage import collect_seldom
from closeranks.nodes import words
from closeranks.nodes.link import Connection, Ears
from closeranks.nodes.serving import serve
from closeranks.run.folder import read_run_file
from closeranks.run.links import Link
from closeranks.run.linux import allow_open_files, die_with_parent
from closeranks.run.options import STORE_AUTHORITY, RunOptions
from closeranks.run.telling import place_of, tell

_STATIC_EPOCH: Final = 1  # without an authority there is one leader and never another
_EXIT_USAGE: Final = 2
_CONCLUDE_S: Final = 25.0  # the supervisor waits a little longer
_BROKEN_MOST: Final = 3  # candidates of one node that broke within a minute: the next would break as well
_ALLOCATIONS: Final = 200_000  # beats of a thousand nodes make and drop objects all the time
_WATCHERS: Final = 64  # in a larger job only the lower ranks watch: a supervisor has not a descriptor for each of all


class Boot(NamedTuple):
    """A candidate process: of which supervisor process, and how many it had before."""

    supervisor: str
    before: int

    def __str__(self) -> str:
        """As it stands in the record."""
        return f"{self.supervisor}.{self.before}"

    def outlived(self, boot: str) -> bool:
        """Whether that one has certainly ended: the same supervisor had it before, and saw it end."""
        supervisor, _, number = boot.rpartition(".")
        return supervisor == self.supervisor and int(number) < self.before


class Candidate:
    """One candidate process."""

    def __init__(self, identity: Identity, options: RunOptions, link: socket.socket) -> None:
        self._identity = identity
        self._options = options
        self._boot = Boot("", 0)
        self._probe_port = 0
        self._vigil = LeaderVigil(identity, self._wake)
        self._replaces = ""  # boot of the leader whose place we take
        self._link = Link(link, self._hear, self._parent_gone, aside.FromSupervisor)
        self._link.on_closed = lambda: self._parent_gone("the supervisor is gone")
        self._register: Register | None = None
        self._broken = 0  # candidates of this node that broke shortly before this one
        self._defect: BaseException | None = None  # of our coordinator
        self._follows = 0
        self._seeks = True
        self._release: asyncio.Task[None] | None = None
        self._told: tuple[int, str] = (0, "")
        self._tenure: Tenure | None = None
        self._coordinator: Coordinator | None = None
        self._newest: Coordinator | None = None  # the same, or the one that we were last
        self._reign: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._over = asyncio.Event()  # nothing is left to lead or to seek
        self._ending = asyncio.Event()  # nor is anything left to do on this node
        self._reason = "the first"

    async def run(self) -> None:
        """Until the run is over, on this node too: a next candidate would only find that out once more."""
        asyncio.get_running_loop().set_exception_handler(self._raised)
        await self._begun.wait()
        async with contextlib.AsyncExitStack() as held:
            try:
                await self._take_part(held)
            except Exception as error:
                await self._break(error)
                raise
        await self._ending.wait()

    async def _take_part(self, held: contextlib.AsyncExitStack) -> None:
        fixed = meeting_point(self._options)
        if fixed is not None and self._identity.rank != 0:
            self._link.send(aside.LeaderSeen(epoch=_STATIC_EPOCH, node="n0", address=fixed))
            return
        here = fixed or words.Address(host=self._identity.host, port=0)
        listener = await serve(here, self._identity.keys, words.FromNode, self._called)
        held.push_async_callback(listener.close)
        self._register = register = self._opened()
        held.push_async_callback(register.close)
        held.callback(self._vigil.close)
        candidacy = Candidacy(boot=str(self._boot), rank=self._identity.rank)
        seat = Seat(self._identity.node, listener.address, self._probe_port)
        self._tenure = Tenure(register, candidacy, seat, self._around, self._chosen)
        seeking = asyncio.create_task(self._tenure.run())
        over = asyncio.create_task(self._over.wait())
        held.callback(over.cancel)
        await asyncio.wait([seeking, over], return_when=asyncio.FIRST_COMPLETED)
        if seeking.done():
            seeking.result()  # raises what ended it too early
        if self._reign is not None:
            await asyncio.wait([self._reign])
        seeking.cancel()
        await asyncio.wait([seeking])
        if self._newest is not None and self._newest.unrecorded is not None:
            self.say(
                "closeranks: the run is over, but the authority does not answer: "
                f"for up to {_CONCLUDE_S:g} s this node goes on trying to write that down, so that no other takes over"
            )
            await self._conclude(register, self._newest.unrecorded)
        if self._defect is not None:
            raise self._defect

    async def _conclude(self, register: Register, end: EndRun) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONCLUDE_S):
                await conclude(register, str(self._boot), end)

    async def _break(self, error: Exception) -> None:
        """Nothing is granted any more, and whoever looks learns why. The next candidate takes this one's place at once.

        One that led, after others of this node have broken as well, ends the run in place of that: else the lead would
        go from one to the next for ever, and no failure would be handled.
        """
        self._end_reign()
        reason = _told(error)
        # On a full disk there is no such file.
        more = " (logs/candidate.log has more)" if stat.S_ISREG(os.fstat(2).st_mode) else ""
        self.say(f"closeranks: this node's candidate for the lead ended: {reason}{more}")
        if self._broken + 1 >= _BROKEN_MOST and self._register is not None:
            reason = f"{reason}; {_BROKEN_MOST} coordinators in a row ended like that"
            await self._conclude(self._register, EndRun(outcome="failed", exit_code=1, reason=reason))
        self._link.send(aside.Broken(reason=reason))

    def _opened(self) -> Register:
        options = self._options
        if meeting_point(options) is not None:
            return MemoryRegister()
        return open_register(options.authority or STORE_AUTHORITY, self._identity.run, options.store)

    # --- our supervisor -----------------------------------------------------------------------------------------

    def _hear(self, word: aside.FromSupervisor) -> None:
        match word:
            case aside.Begin():
                self._boot = Boot(word.supervisor, word.before)
                self._probe_port, self._seeks, self._broken = word.probe_port, word.seeks, word.broken
                self._begun.set()
            case aside.Standing():
                self._follows = word.follows
                self._wake()
            case aside.Retire():
                self._retire()
            case aside.Ending():
                self._ending.set()
                self._over.set()

    def _parent_gone(self, reason: str) -> None:
        tell(reason, sys.stderr)
        os._exit(1)

    # --- the lead -----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Something changed that the lead depends on."""
        if self._tenure is not None:
            self._tenure.wake()

    def _retire(self) -> None:
        """First nothing is granted any more, then others hear that they may take over."""
        self._seeks = False
        self._end_reign()
        if self._tenure is not None and (self._release is None or self._release.done()):
            self._release = asyncio.create_task(self._tenure.release())

    def _around(self, now_s: float) -> Around:
        coordinator, tenure = self._coordinator, self._tenure
        self._tell_outage(now_s)
        record = None if tenure is None else tenure.record
        boot = "" if record is None else record.boot
        ended = self._boot.outlived(boot) or self._vigil.saw_end(boot) is not None
        if coordinator is None:
            return Around(now_s=now_s, led=self._follows > 0, leader_ended=ended, retired=not self._seeks)
        absences = coordinator.absences
        return Around(
            now_s=now_s, led=self._follows > 0, heard_s=absences.heard_s(), outnumbered=absences.outnumbered()
        )

    def _tell_outage(self, now_s: float) -> None:
        outage = None if self._tenure is None else self._tenure.outage
        if outage is None or not outage.changed(now_s):
            return
        authority = shown(self._options.authority or STORE_AUTHORITY)
        if outage.problem:
            self.say(f"closeranks: no usable answer from the authority ({authority}): {outage.problem}")
        else:
            self.say(f"closeranks: the authority ({authority}) answers again")
        self._link.send(aside.Unanswered(problem=outage.problem))

    def _chosen(self, choice: Choice) -> None:
        tenure = self._tenure
        if tenure is None:
            return
        match choice:
            case Contend():
                self._reason, self._replaces = choice.reason, tenure.record.boot
            case Lead() if not self._seeks:  # a bid that was under way has won
                self._retire()
            case Lead():
                self._begin_reign(tenure)
            case Follow():
                self._tell_leader(tenure)
            case StepDown():
                self.say(f"closeranks: this node's coordinator steps down: {choice.reason}")
                self._end_reign()
            case Over():
                if self._reign is None:
                    record = tenure.record
                    end = EndRun(outcome=record.ended, exit_code=record.exit_code, reason=record.reason)
                    self._link.send(_over_by(end))

    def _begin_reign(self, tenure: Tenure) -> None:
        if self._reign is not None:
            return
        self._coordinator = self._newest = Coordinator(tenure, self._identity, self._options, self._reason)
        self._coordinator.gone = self._vigil.saw_end(self._replaces)
        self._reign = asyncio.create_task(self._lead(self._coordinator))
        self._tell_leader(tenure)

    def _tell_leader(self, tenure: Tenure) -> None:
        record = tenure.record
        if min(self._identity.rank, self._options.nnodes) < _WATCHERS:
            self._vigil.follow(record)
        if record.epoch and self._told != (record.epoch, record.boot):
            self._told = (record.epoch, record.boot)
            address = words.Address(host=record.host, port=record.port)
            self._link.send(aside.LeaderSeen(epoch=record.epoch, node=record.node, address=address))

    async def _lead(self, coordinator: Coordinator) -> None:
        try:
            await coordinator.run()
            self._over.set()
            # Our own supervisor may have missed it all, as one that was frozen, and nobody else speaks to it.
            self._link.send(_over_by(coordinator.ending))
        except* Deposed:
            coordinator.let_go()
        except* Exception as defects:
            self._defect = defects
            self._over.set()
            coordinator.let_go()
        finally:
            if self._coordinator is coordinator:
                self._coordinator = None

    def _raised(self, loop: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        """An error that nobody awaits. A leader that has one while it takes a word of a node leads no longer.

        Of a node, which has proved itself: no stranger's words end a leader.
        """
        loop.default_exception_handler(what)
        error, of_node = what.get("exception"), isinstance(what.get("protocol"), Connection)
        if isinstance(error, Exception) and of_node and self._coordinator is not None:
            self._defect = error
            self._over.set()
            self._end_reign()

    def _end_reign(self) -> None:
        coordinator, reign = self._coordinator, self._reign
        self._coordinator = self._reign = None
        if coordinator is not None:
            coordinator.let_go()
        if reign is not None:
            reign.cancel()

    def _called(self, connection: Connection) -> Ears:
        """A node looks for its leader."""
        if self._coordinator is not None:
            return self._coordinator.hear(connection)

        def turn_away(_word: Any) -> None:
            connection.send(words.TurnedAway(reason=f"{self._identity.node} does not lead", final=False))

        return Ears(turn_away, lambda _end: None)

    def say(self, line: str) -> None:
        """Tell the person at the console."""
        self._link.send(aside.Aloud(line=line))


def _over_by(end: EndRun) -> aside.RunOver:
    return aside.RunOver(outcome=end.outcome, exit_code=end.exit_code, reason=end.reason)


def _told(error: BaseException) -> str:
    """In one line; what is nobody's but the program's own fault is called that."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError | RegisterError | RegisterRefused | CheckpointProblem):
        return str(error)
    return f"defect in the coordinator: {type(error).__name__}: {error}{place_of(error)}"


async def _be(argv: list[str]) -> None:
    folder, fd = Path(argv[0]), int(argv[1])
    options = read_run_file(folder).options
    link = socket.socket(fileno=fd)
    link.setblocking(False)
    await Candidate(identity_of(options, os.environ), options, link).run()


def main(argv: list[str]) -> int:
    """Be the candidate of one node; the exit code is only for a person who looks. A defect leaves its traceback."""
    if not die_with_parent(int(argv[2]), signal.SIGKILL):
        return 1
    allow_open_files()  # a connection for each node of a large job
    collect_seldom(_ALLOCATIONS)
    try:
        asyncio.run(_be(argv))
    except IdentityProblem as error:
        tell(str(error), sys.stderr)
        return _EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
