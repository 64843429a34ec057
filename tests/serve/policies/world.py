"""Replicas and clients in virtual time around the real ``Traffic``: no clock, no socket, one seed."""

import heapq
import itertools
from collections import deque
from random import Random

from closeranks.serve.policies import Admitted, Ask, Kind, Outcome, Placed, Shed
from closeranks.serve.settings import parse
from closeranks.serve.traffic import Traffic
from closeranks.serve.words import Again


class Replica:
    """Serves ``slots`` requests at once, queues some more, and answers 503 beyond that."""

    def __init__(self, name, slots=8, service_s=0.1, queue=24):
        self.name, self.slots, self.service_s, self.queue = name, slots, service_s, queue
        self.running = 0
        self.waiting = deque()
        self.dead = False
        self.refuses = False


class Call:
    """One request of a client, and what became of it."""

    def __init__(self, ask):
        self.ask = ask
        self.tried = ()
        self.kind = Kind.FIRST
        self.began_s = self.ended_s = None
        self.status = 0
        self.over = False

    @property
    def good(self):
        return self.status == 200 and self.ended_s <= self.ask.deadline_s


class World:
    """``at`` schedules, ``run`` lets time pass."""

    def __init__(self, *replicas, more="", seed=1):
        tables = "".join(
            f'[[replica]]\nname = "{r.name}"\nurl = "http://{r.name}:1"\ncapacity = {r.slots}\ndomain = "{r.name}"\n'
            for r in replicas
        )
        self.random = Random(seed)
        self.traffic = Traffic(parse(more + tables, "world.toml"), self.random)
        self.replicas = {replica.name: replica for replica in replicas}
        self.now_s = 0.0
        self.calls = {}
        self.repeated = []  # (when, kind, how many were out, allowed)
        self.most_waiting = 0
        self._numbers = itertools.count(1)
        self._events = []
        self._order = itertools.count()
        self.at(0.0, self._tick)

    def at(self, when_s, do, *what):
        heapq.heappush(self._events, (when_s, next(self._order), do, what))

    def run(self, until_s):
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, do, what = heapq.heappop(self._events)
            do(*what)

    def _tick(self):
        self._admit(self.traffic.tick(self.now_s))
        self.at(self.now_s + 0.5, self._tick)

    # --- clients ------------------------------------------------------------------------------------------------

    def load(self, start_s, end_s, per_s, **ask):
        """Requests that come at random, ``per_s`` of them in the mean."""
        when_s = start_s
        while (when_s := when_s + self.random.expovariate(per_s)) < end_s:
            self.at(when_s, self.ask, ask)

    def ask(self, more):
        patience_s = more.get("patience_s", 10.0)
        known = {key: value for key, value in more.items() if key != "patience_s"}
        ask = Ask(number=next(self._numbers), arrived_s=self.now_s, deadline_s=self.now_s + patience_s, **known)
        call = self.calls[ask.number] = Call(ask)
        answer = self.traffic.admit(self.now_s, ask)
        self.most_waiting = max(self.most_waiting, sum(self.traffic.admission.waiting()))
        if isinstance(answer, Admitted):
            self._begin(call)
        elif isinstance(answer, Shed):
            self._end(call, answer.status)
        else:
            self.at(answer.until_s, self._waited_too_long, call)
        return call

    def _waited_too_long(self, call):
        if call.began_s is None and not call.over:
            self._end(call, 503)

    def _admit(self, numbers):
        for number in numbers:
            self._begin(self.calls[number])

    def _begin(self, call):
        call.began_s = self.now_s
        self.traffic.course(self.now_s, call.ask)
        self._dispatch(call)

    def _end(self, call, status):
        call.over, call.status, call.ended_s = True, status, self.now_s
        self._admit(self.traffic.done(self.now_s, call.ask))

    # --- attempts -----------------------------------------------------------------------------------------------

    def _dispatch(self, call):
        placed = self.traffic.place(self.now_s, call.ask, call.tried)
        if not isinstance(placed, Placed):
            self._end(call, 503)
            return
        replica = self.replicas[placed.replica]
        self.traffic.begun(self.now_s, call.ask, replica.name, call.kind)
        if replica.dead:
            self._failed(call, replica, Outcome.UNREACHED)
        elif replica.refuses:
            self._failed(call, replica, Outcome.BUSY)
        elif replica.running < replica.slots:
            self._serve(replica, call)
        elif len(replica.waiting) < replica.queue:
            replica.waiting.append(call)
        else:
            self._failed(call, replica, Outcome.BUSY)

    def _serve(self, replica, call):
        replica.running += 1
        self.at(self.now_s + replica.service_s * self.random.uniform(0.8, 1.2), self._served, replica, call)

    def _served(self, replica, call):
        replica.running -= 1
        if replica.waiting:
            self._serve(replica, replica.waiting.popleft())
        if replica.dead:
            self._failed(call, replica, Outcome.BROKEN)
            return
        self.traffic.heard(self.now_s, call.ask, replica.name)
        self.traffic.ended(self.now_s, call.ask, replica.name, Outcome.OK)
        self._end(call, 200)

    def _failed(self, call, replica, outcome):
        self.traffic.ended(self.now_s, call.ask, replica.name, outcome)
        call.tried = (*call.tried, replica.name)
        call.kind = Kind.RETRY
        again = self.traffic.again(self.now_s, call.ask, Kind.RETRY, call.tried)
        budget = self.traffic.budget
        self.repeated.append((budget.spent(self.now_s), budget.allowed(self.now_s, Kind.RETRY)))
        if isinstance(again, Again):
            self.at(self.now_s + again.after_s, self._dispatch, call)
        else:
            self._end(call, 503)
