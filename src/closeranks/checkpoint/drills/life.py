"""The life of a process that saves: claim, save, commit, retain, sweep, again and again. To be cut off anywhere."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.drills.toy import Part, commit, contribute, first_part
from closeranks.checkpoint.format import Pin, Unpin, Verified
from closeranks.checkpoint.gather import Patience
from closeranks.checkpoint.keys import term_of
from closeranks.checkpoint.problems import BaseLost, CheckpointProblem, SaveFailed
from closeranks.checkpoint.retention import Policy, choose
from closeranks.checkpoint.stores.opening import found
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.sweep import sweep

JOB: Final = "drill"
POLICY: Final = Policy(last=2, every_steps=4)
_PATIENCE_S: Final = 30.0
_PIN_EVERY: Final = 3
_PART_LIMIT_BYTES: Final = 1 << 16


class Acknowledged(NamedTuple):
    """A commit that the process was told is durable."""

    generation: int
    mark: int


class Life(NamedTuple):
    """How a process lives."""

    number: int  # marks of its saves begin here; no two lives of a store have the same
    saves: int
    acknowledge: Callable[[Acknowledged], None]
    follower: socket.socket | None = None  # to a process that writes the second shard


class _Process(NamedTuple):
    store: Store
    log: CommitLog
    arena: Arena
    follower: socket.socket | None


def live(store: Store, life: Life) -> None:
    """Open the store and save so often. Every commit is acknowledged before anything else is done.

    Raises:
        Fenced: another process has claimed a newer term, whatever it was that failed first.
    """
    found(store, JOB, make=True, now_wall_s=time.time())
    log = CommitLog(store)
    term = log.claim(f"life {life.number}")
    process = _Process(store, log, Arena.create("drill"), life.follower)
    try:
        _save_often(process, term, life)
    except CheckpointProblem:
        log.require(term)  # a sweep of the newer term may have taken away what it was writing
        raise


def _save_often(process: _Process, term: int, life: Life) -> None:
    newest = process.log.history.newest()
    step = newest.manifest.step if newest else 0
    world = 2
    for count in range(life.saves):
        step += 1
        part = first_part(term, step, life.number * 1000 + count, world, newest.number if newest else 0)
        given_up: set[str] = set()
        try:
            generation = _save(process, part, step)
        except SaveFailed as failed:
            # What it builds on is gone, or the process that writes the second shard is: in full, and alone.
            given_up.add(part.attempt)
            world = world if isinstance(failed, BaseLost) else 1
            part = first_part(term, step, life.number * 1000 + 500 + count, world)
            generation = _save(process, part, step)
        life.acknowledge(Acknowledged(generation, part.mark))
        newest = process.log.history.generations[generation]
        _keep_house(process.store, process.log, term, generation, given_up)


def follow(store: Store, orders: socket.socket) -> None:
    """Write the second shard of every attempt that is ordered, until nobody orders any more."""
    log, arena = CommitLog(store), Arena.create("drill")
    while True:
        order = orders.recv(_PART_LIMIT_BYTES)
        if not order:
            return
        contribute(store, msgspec.json.decode(order, type=Part), log.refresh(), arena)


def _save(process: _Process, part: Part, step: int) -> int:
    store, log, arena, follower = process
    second = msgspec.structs.replace(part, writer=1)
    if part.world == 1:
        follower = None
    elif follower is not None:
        with contextlib.suppress(OSError):  # nobody there: seen while waiting
            follower.send(msgspec.json.encode(second))
    contribute(store, part, log.history, arena)
    if part.world > 1 and follower is None:
        contribute(store, second, log.history, arena)

    def wait(pause_s: float) -> None:
        log.require(term_of(part.attempt))  # shards of an older term may be swept: they would never be complete
        if follower is None:
            time.sleep(pause_s)
        elif _is_closed(follower, pause_s):
            raise SaveFailed("the process that writes the second shard has ended")

    return commit(store, log, part, Patience(time.monotonic() + _PATIENCE_S, time.monotonic, wait), step)


def _is_closed(peer: socket.socket, within_s: float) -> bool:
    """Whether the other end was closed by then: its process never sends anything."""
    peer.settimeout(max(within_s, 0.001))
    try:
        return peer.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _keep_house(store: Store, log: CommitLog, term: int, generation: int, given_up: set[str]) -> None:
    if generation % _PIN_EVERY == 0:
        log.append(term, Pin(generation=generation, label="drill"))
        for pinned in [g.number for g in log.history.generations.values() if g.pinned and g.number < generation]:
            log.append(term, Unpin(generation=pinned))
    elif generation % _PIN_EVERY == 1:
        log.append(term, Verified(generation=generation, held=True))
    log.retire(term, choose(log.refresh(), POLICY, time.time()).retire)
    sweep(store, log, term=term, given_up=given_up)
