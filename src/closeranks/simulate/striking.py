"""What faults do to the virtual cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from closeranks.decide.protocol import Crash, ProcEnded, ProcStuck
from closeranks.events import FaultInjected
from closeranks.simulate.body import Body
from closeranks.simulate.eyes import Sighting, roll_call_of, sight
from closeranks.simulate.stretch import Stretch
from closeranks.simulate.strikes import Kind, Scope, Strike

if TYPE_CHECKING:
    from closeranks.simulate.world import World

_ALONE = 1
_MOST_OF_IT = 0.5  # a loss of this share of the nodes is told as the loss of every seat


class Striking:
    """The destructive side of the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._strikers: Mapping[Kind, Callable[[Strike], bool]] = {
            Kind.CRASH: self._crash,
            Kind.NODE: self._nodes,
            Kind.DOMAIN: self._nodes,
            Kind.SPOT: self._spot,
            Kind.HANG: self._hang,
            Kind.STRAGGLER: self._straggler,
            Kind.CORRUPTION: self._corruption,
            Kind.PARTITION: self._partition,
            Kind.STORAGE_SLOW: self._storage,
            Kind.STORAGE_DOWN: self._storage,
            Kind.BUG: self._bug,
        }

    def strike(self, strike: Strike) -> None:
        """Let it happen now."""
        world = self._world
        world.settle()
        if not self._strikers[strike.kind](strike):
            return
        world.strikes_felt += 1
        if world.tape is not None:
            step = world.highest + 1
            moment = f"at {world.now_s:.3f} s"
            world.note(FaultInjected(fault=strike.kind.value, seat=strike.seat, proc=None, step=step, moment=moment))

    # --- losses -------------------------------------------------------------------------------------------------

    def _crash(self, strike: Strike) -> bool:
        body = self._occupant(strike.seat)
        if body is None:
            return False
        self._end(body, Scope.PROCESS)
        return True

    def _nodes(self, strike: Strike) -> bool:
        world = self._world
        if not world.fleet.nodes:
            return self._crash(strike)
        taken = world.fleet.fail(strike.nodes, world.now_s + strike.lasts_s)
        world.after(strike.lasts_s, self._mend)  # also for those that were out already and now return later
        if not taken.job and not taken.idle:
            return False
        world.hands.retire_spares(world.setup.timing.detect_s)
        scope = Scope.NODE if len(taken.job) <= _ALONE else Scope.DOMAIN
        if len(taken.job) >= _MOST_OF_IT * world.fleet.nodes:
            for body in list(world.seats.values()):
                self._end(body, Scope.DOMAIN)
        for node in taken.job:
            struck = self._body_of(node)
            if struck is not None:
                self._end(struck, scope)
        return True

    def _mend(self) -> None:
        if self._world.fleet.mend(self._world.now_s):
            self._world.hands.nodes_came_back()
            self._world.look()

    def _spot(self, strike: Strike) -> bool:
        """With enough notice the state of right now is saved first."""
        world, stretch = self._world, self._world.stretch
        write_s = world.setup.pause_s + max((tier.write_s for tier in world.setup.tiers), default=0.0)
        if stretch is not None and world.setup.tiers and 0 < write_s <= strike.notice_s:
            count = stretch.closed_by(world.now_s)
            if count:
                world.save_now(stretch.after + count, stretch.closed_s(count))
        return self._nodes(strike)

    def _end(self, body: Body, scope: Scope) -> None:
        world = self._world
        if not body.alive:
            return
        world.hands.die(body)
        world.saves.lose(scope)
        fact = ProcEnded(proc=body.number, code=None, signal=9, crash=None, left_at_step=None)
        world.after(world.setup.timing.detect_s, world.hands.tell_end, body, fact)

    def _hang(self, strike: Strike) -> bool:
        world, body = self._world, self._occupant(strike.seat)
        if body is None or body.frozen:
            return False
        stretch, bounds = world.stretch, world.setup.bounds
        steps = 0 if stretch is None else stretch.closed_by(world.now_s)
        if stretch is not None:
            world.halt(lost=True)
        body.frozen, body.answers = True, strike.answers
        if stretch is not None:
            self._miss(body, steps)
        elif strike.answers and not (body.ready and not world.calm):  # else the recovery waits for it next
            self._find(body, sight(bounds, world.setup.step_s, steps, answers=True), bounds.unlearned_s)
        if not strike.answers:
            self._find(body, roll_call_of(bounds))
        return True

    def _miss(self, body: Body, steps: int) -> None:
        """The others wait for it in a step."""
        setup = self._world.setup
        self._find(body, sight(setup.bounds, setup.step_s, steps, answers=body.answers))

    def _find(self, body: Body, seen: Sighting, after_s: float | None = None) -> None:
        """A detector finds a silent process; ``after_s``: so much later than it would otherwise."""
        fact = ProcStuck(proc=body.number, detail=seen.detail, silent_s=seen.silent_s, allowed_s=seen.allowed_s)
        self._world.after(seen.after_s if after_s is None else after_s, self._tell_stuck, body, fact)

    def missed(self, term: int) -> None:
        """Training was about to go on, and not everybody came."""
        self._world.hands.notice_soon(term)
        for body in self._world.members(term):
            if body.alive and body.frozen:
                self._miss(body, 0)

    def _tell_stuck(self, body: Body, fact: ProcStuck) -> None:
        if body.alive and not body.doomed:
            self._world.feed(fact)

    def _bug(self, strike: Strike) -> bool:
        world = self._world
        world.bugs.add(max(strike.step, world.highest + 1))
        world.split(lambda: None)  # the stretch finds it on its way
        return True

    def bug(self, stretch: Stretch, step: int) -> None:
        """The script came to the step where it fails."""
        world = self._world
        if world.stretch is not stretch or step not in world.bugs:
            return
        body = world.seats[min(world.seats)]
        world.hands.die(body)
        crash = Crash(error="ValueError", message="simulated bug", where="train.py:31", step=step)
        fact = ProcEnded(proc=body.number, code=1, signal=None, crash=crash, left_at_step=None)
        world.after(world.setup.timing.detect_s, world.hands.tell_end, body, fact)

    # --- what is slow, cut or wrong -----------------------------------------------------------------------------

    def _straggler(self, strike: Strike) -> bool:
        world = self._world
        if world.slow > 1:
            return False  # the slowest sets the pace
        world.laggard.begins(strike.seat % self._named_seats, strike.factor)
        world.split(lambda: setattr(world, "slow", strike.factor))
        world.after(strike.lasts_s, self._fast_again)
        return True

    def _fast_again(self) -> None:
        world = self._world
        world.laggard.over()
        world.split(lambda: setattr(world, "slow", 1.0))

    def _storage(self, strike: Strike) -> bool:
        world = self._world
        if world.store_factor != 1 or not world.setup.tiers:
            return False
        factor = math.inf if strike.kind is Kind.STORAGE_DOWN else strike.factor
        world.store_back_s = world.now_s + strike.lasts_s
        world.split(lambda: setattr(world, "store_factor", factor))
        world.after(strike.lasts_s, world.split, lambda: setattr(world, "store_factor", 1.0))
        return True

    def _partition(self, strike: Strike) -> bool:
        world = self._world
        world.heals_s = max(world.heals_s, world.now_s + strike.lasts_s)
        if world.stretch is None or world.going is None:
            return True
        term = world.going
        world.halt(lost=True)
        world.after(world.setup.timing.detect_s, world.hands.poison, term, "peers cannot be reached")
        return True

    def _corruption(self, strike: Strike) -> bool:
        world, stretch = self._world, self._world.stretch
        if stretch is None or len(world.seats) <= _ALONE or world.tainted_since is not None:
            return False
        world.tainted_since = stretch.after + stretch.closed_by(world.now_s)
        world.after(strike.lasts_s, self.corruption_found, True)
        return True

    def corruption_found(self, first: bool) -> None:
        """It is known now, unless a loss took it back before: a check fails on every seat, each with another digest.

        ``first``: what was saved within ``distrust_s`` is not trusted; else, what was gone back to was not old enough.
        """
        world = self._world
        if world.tainted_since is None:
            return
        if world.stretch is None or world.going is None:
            world.after(world.setup.step_s, self.corruption_found, first)
            return
        if first:
            world.trusted_before_s = world.now_s - world.setup.distrust_s
        term = world.going
        world.halt(lost=True)
        for body in world.members(term):
            body.doubt = f" of {body.number}"
        world.hands.poison(term, "a check of the state failed")

    # --- who ----------------------------------------------------------------------------------------------------

    def _occupant(self, seat: int) -> Body | None:
        seats = self._world.seats
        body = seats.get(seat % max(1, len(seats)))
        return body if body is not None and body.alive else None

    def _body_of(self, node: int) -> Body | None:
        """Whose seat stands for a lost node: any that has not been lost yet, the last seat for the crowd."""
        seats, named = self._world.seats, self._named_seats
        for offset in range(named):
            body = seats.get((node + offset) % named)
            if body is not None and body.alive:
                return body
        return None

    @property
    def _named_seats(self) -> int:
        """How many seats stand for a node; where there are more nodes, the last one stands for the crowd."""
        seats = len(self._world.seats)
        return max(1, seats - (self._world.fleet.nodes > seats))
