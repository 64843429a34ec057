"""This worker's view of the membership: the term, the poison, and every group that has to change its inside.

The training thread launches collectives and regroups; gloo's threads report completions; the control thread
poisons and wakes. What they share is guarded by one lock, held for a few instructions.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from closeranks.operations import CODES
from closeranks.signs import Doing
from closeranks.train import sockets
from closeranks.train.deaf import Silence
from closeranks.train.inner import Inner, PrivateWorld
from closeranks.train.own_time import OwnTime
from closeranks.train.poison import PeerLost, first_line
from closeranks.train.term_store import connected_to
from closeranks.train.untyped import dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from closeranks.drill.inject import Launch
    from closeranks.messages import Seat
    from closeranks.train.group import OuterGroup
    from closeranks.train.setup_record import Recorder, Replayer
    from closeranks.vitals import Vitals


class Attempt(enum.Enum):
    """How far the step block of this seat is."""

    NONE = "between blocks"
    OPEN = "open"
    APPLYING = "applying"


# Members of an enumeration are slow to look up, and these are wanted at every collective.
_OPEN = Attempt.OPEN
_BACKWARD = int(Doing.BACKWARD)
_Future: Any = torch._C.Future
_backward_pass = torch._C._current_graph_task_id


class Flight(NamedTuple):
    """A collective between its launch and its completion; the future is what the caller holds."""

    inner: Inner
    result: Any
    future: Any  # of C++, as gloo's own: the class of Python around it adds nothing but time


class World:
    """Term, seat, groups and poison of one worker process."""

    def __init__(self, size: int, seat: int | None, vitals: Vitals) -> None:
        self.size = size
        self.seat = seat  # None: a spare that has not been seated
        self.term = 0
        self.private = True  # no peers yet: groups answer from their own data
        self.poison: str | None = None
        self.attempt = Attempt.NONE
        self.groups: list[OuterGroup] = []
        self.setup: Recorder | Replayer | None = None
        self.vitals = vitals
        self.store: Any = None
        self.abandoned = 0  # insides that stay until this process ends, see Inner.abandon
        self.opened_ns = 0
        self.applied_ns = 0  # when the update began
        self.own = OwnTime(vitals)
        self.backward_seen = True
        self.on_backward: Callable[[], None] = lambda: None  # before the first collective of a backward pass
        self.on_gradients: Callable[[torch.Tensor, torch.Tensor | None], None] | None = None  # about to be reduced
        self.on_launched: Callable[[], None] | None = None  # drills strike here
        self.tamper: Callable[[str, Launch], Launch | None] | None = None  # drills change what is launched
        self.on_poison: Callable[[int, str], None] = lambda _term, _detail: None
        self.wait_for_seat: Callable[[], int] = self._no_seat
        self._endpoint: sockets.Endpoint | None = None
        self._connecting: list[Inner] = []
        self._retired: list[Any] = []  # insides of the term before: see _retire
        self._regrouping = False
        self._ended = (0, "")  # newest term that the supervisor ended, and why
        self._launched = 0
        self._returned = 0
        self._flights: dict[int, Flight] = {}
        self._silence = Silence()
        self._lock = threading.RLock()  # entered directly where nobody is waited for: a third of a condition's time
        self._changed = threading.Condition(self._lock)
        self._quiet_wanted = False

    # --- the training thread -----------------------------------------------------------------------------------

    def rank_for_user(self) -> int:
        """This worker's rank; a spare waits here until it is seated."""
        return self.seat if self.seat is not None else self.wait_for_seat()

    @staticmethod
    def _no_seat() -> int:
        raise RuntimeError("this process has no seat and nobody who could give it one")

    def entering(self, operation: str, size_bytes: int) -> None:
        """A collective is about to be launched under the current term."""
        now_ns = time.monotonic_ns()
        if self.attempt is _OPEN:
            backward_pass = _backward_pass()
            self.own.launch(now_ns, backward_pass)
            if not self.backward_seen and backward_pass != -1:
                self.backward_seen = True
                self.vitals.words[6] = _BACKWARD
                self.on_backward()
        with self._lock:
            self._launched += 1
        self.vitals.enter(CODES[operation], size_bytes, now_ns)

    def returned(self) -> None:
        """A launched collective is complete, well or not; called by gloo's threads and at a failed launch."""
        with self._lock:
            self._returned = returned = self._returned + 1
            self.vitals.words[1] = returned
            if self._quiet_wanted and returned == self._launched:
                self._changed.notify_all()

    def take_off(self, inner: Inner, result: Any) -> Flight:
        """A collective was launched: its future is complete when it has landed, or was given up."""
        flight = Flight(inner, result, _Future([]))
        self._flights[id(flight)] = flight
        return flight

    def land(self, flight: Flight) -> None:
        """The collective is complete, well or not; called by gloo's threads. It counts once."""
        if self._flights.pop(id(flight), None) is not None:
            self.returned()
            flight.future.set_result(flight.result)

    def raise_if_poisoned(self) -> None:
        """Raise PeerLost if the term is poisoned."""
        poison = self.poison
        if poison is not None:
            raise PeerLost(self.term, poison)

    def wait_quiet(self, deadline_s: float) -> bool:
        """Wait until no inner operation can write into our tensors any more; False: the deadline passed."""
        with self._changed:
            self._quiet_wanted = True
            try:
                return self._changed.wait_for(lambda: self._returned == self._launched, timeout=deadline_s)
            finally:
                self._quiet_wanted = False

    def regroup(self, place: Seat) -> str:
        """Give every group a new inside under ``place.term``; returns the digest of the groups.

        Raises:
            PeerLost: interrupted or failed; the groups have no inside, wait for a newer term.
        """
        with self._changed:
            ended, reason = self._ended  # it may be over before this thread has begun it
            self.term, self.seat, self.private = place.term, place.seat, False
            self.poison = reason if place.term <= ended else None
            self._launched = self._returned = 0
            self._regrouping = True
        self.vitals.begin_term(place.term)
        try:
            self.raise_if_poisoned()
            with self.vitals.amid(Doing.MEETING):
                self._connect_store(place)
            self._retire()
            with self.vitals.amid(Doing.MEETING):
                for group in self.groups:
                    self._give_inside(group)
        except RuntimeError as error:
            self.poison_term(place.term, f"regroup failed: {first_line(error)}")
            raise PeerLost(place.term, first_line(error)) from error
        finally:
            with self._changed:
                self._regrouping = False
        self.raise_if_poisoned()
        return self.groups_digest()

    def _retire(self) -> None:
        """Take the insides of the groups away, and drop those that were taken away before.

        Destroying one joins its threads while this thread holds the interpreter; a thread that has just reported
        its last completion may still need the interpreter to end. A term later it is idle for certain.
        """
        self._retired = [group.inner for group in self.groups]
        for group in self.groups:
            group.set_inner(None)

    def _connect_store(self, place: Seat) -> None:
        self._endpoint = (place.store_host, place.store_port)
        store = connected_to(self._endpoint, self.raise_if_poisoned)
        self.store = dist.PrefixStore(f"term{place.term}", store)

    def _give_inside(self, group: OuterGroup) -> None:
        inner = Inner(group.place())
        with self._changed:
            self._connecting.append(inner)
        try:
            self.raise_if_poisoned()
            if self.store is None:
                raise RuntimeError(f"group {group.label} has no store to meet at under term {self.term}")
            inner.connect(self.store)
            group.set_inner(inner)
        finally:
            with self._changed:
                self._connecting.remove(inner)

    def adopt(self, group: OuterGroup) -> None:
        """A group was created by the script: it gets an inside of the current term, or a private one."""
        self.groups.append(group)
        if self.private:
            group.set_inner(PrivateWorld(group.placeholder_rank()))
            return
        self.raise_if_poisoned()
        with self._changed:
            self._regrouping = True
        try:
            self._give_inside(group)
        except RuntimeError as error:
            self.poison_term(self.term, f"new group failed: {first_line(error)}")
            raise PeerLost(self.term, self.poison or str(error)) from error
        finally:
            with self._changed:
                self._regrouping = False

    def groups_digest(self) -> str:
        """Equal on all members that know the same groups of everybody (subgroups differ by member)."""
        names = [group.label for group in self.groups if group.size() == self.size]
        return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()

    # --- the control thread and gloo's threads -----------------------------------------------------------------

    def poison_term(self, term: int, detail: str, *, tell: bool = True) -> bool:
        """Mark the term as lost; False if it is not the current one or poisoned already."""
        with self._changed:
            if term != self.term or self.poison is not None or self.private:
                return False
            self.poison = detail
        if tell:
            with contextlib.suppress(OSError):
                self.on_poison(term, detail)
        return True

    def interrupt(self, term: int, reason: str) -> None:
        """The supervisor ended ``term``: poison it, now or as it begins here, and wake whoever is blocked under it."""
        with self._changed:
            self._ended = max(self._ended, (term, reason))
        self.poison_term(term, reason, tell=False)
        if term == self.term:
            self.wake()

    @property
    def needs_waking(self) -> bool:
        """Whether something may still be blocked under a poisoned term; then wake again in a moment."""
        with self._changed:
            return self.poison is not None and (self._regrouping or self._returned != self._launched)

    def wake(self) -> None:
        """Cut the sockets of all groups of this term and of its store."""
        with self._changed:
            if self.poison is None:
                return
            inners = [*self._connecting, *(g.inner for g in self.groups if isinstance(g.inner, Inner))]
            endpoint = self._endpoint
        ports = {port for inner in inners for port in inner.own_ports}
        peers = {peer for inner in inners for peer in inner.peers}
        sockets.cut({endpoint} if endpoint is not None else set())
        connections = sockets.cut(peers, ports)
        for inner in inners:
            inner.abort_accelerator()
        if self._silence.is_final(connections, time.monotonic()):
            self._give_up()

    def _give_up(self) -> None:
        """What nothing wakes counts as complete: its connections are gone, it cannot write into a tensor any more."""
        for flight in list(self._flights.values()):
            self.abandoned += flight.inner.abandon()
            self.land(flight)


def first_tensor_device(tensors: Any) -> torch.device:
    """Device of the first tensor in a nested list; the CPU if there is none (barrier)."""
    while isinstance(tensors, (list, tuple)):
        if not tensors:
            return torch.device("cpu")
        tensors = tensors[0]
    return tensors.device if isinstance(tensors, torch.Tensor) else torch.device("cpu")
