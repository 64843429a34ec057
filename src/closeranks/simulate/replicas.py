"""Runs many replicas, on several processors where that pays; an interrupt keeps what is done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Final

import msgspec

from closeranks.simulate.book import Outcome
from closeranks.simulate.draw import draw
from closeranks.simulate.scenario import Scenario
from closeranks.simulate.setup import Setup
from closeranks.simulate.strikes import Strike
from closeranks.simulate.world import World

_ALONE: Final = 8  # fewer replicas do not pay for starting processes
_CHUNK: Final = 4  # replicas that a process makes at a time


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What every replica needs: a setup for each policy; the faults of a trace, or none to draw them."""

    scenario: Scenario
    setups: tuple[Setup, ...]
    replayed: tuple[Strike, ...] = ()


def replica(work: Work, seed: int) -> tuple[Outcome, ...]:
    """One replica under every policy."""
    most = max(setup.spare_nodes for setup in work.setups)
    drawn = draw(work.scenario, seed, most)
    outcomes = []
    for setup in work.setups:
        known = setup.nodes + setup.spare_nodes
        outcomes.append(World(setup, _within([*work.replayed, *drawn], known)).run())
    return tuple(outcomes)


def _within(strikes: Sequence[Strike], nodes: int) -> list[Strike]:
    """Faults of nodes that this policy does not have strike nothing."""
    found = []
    for strike in strikes:
        if not strike.nodes or strike.nodes[-1] < nodes:
            found.append(strike)
        elif kept := tuple(node for node in strike.nodes if node < nodes):
            found.append(msgspec.structs.replace(strike, nodes=kept))
    return found


def run_all(work: Work, seeds: Sequence[int], processes: int, done: Callable[[int], None]) -> list[tuple[Outcome, ...]]:
    """All replicas in the order of their seeds; ``done`` hears how many more are there.

    After an interrupt: those that were done by then, in the order of their seeds.
    """
    found: dict[int, tuple[Outcome, ...]] = {}
    try:
        for seed, outcomes in _run(work, seeds, processes):
            found[seed] = outcomes
            done(1)
    except KeyboardInterrupt:
        pass
    return [found[seed] for seed in seeds if seed in found]


def _run(work: Work, seeds: Sequence[int], processes: int) -> Iterator[tuple[int, tuple[Outcome, ...]]]:
    processes = min(processes or os.cpu_count() or 1, len(seeds))
    if processes == 1 or len(seeds) <= _ALONE:
        for seed in seeds:
            yield seed, replica(work, seed)
        return
    encoded = msgspec.msgpack.encode(work)
    context = get_context("spawn")  # a fork beside the thread of a progress bar may hang
    with ProcessPoolExecutor(processes, context, _begin, (encoded,)) as pool:
        pending: set[Future[bytes]] = {
            pool.submit(_chunk, list(seeds[start : start + _CHUNK])) for start in range(0, len(seeds), _CHUNK)
        }
        try:
            while pending:
                ready, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield from _decoder.decode(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what runs ends by itself, soon
            raise


_decoder = msgspec.msgpack.Decoder(list[tuple[int, tuple[Outcome, ...]]])
_of_process: list[Work] = []


def _begin(encoded: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears of it and decides
    _of_process[:] = [msgspec.msgpack.decode(encoded, type=Work)]


def _chunk(seeds: list[int]) -> bytes:
    return msgspec.msgpack.encode([(seed, replica(_of_process[0], seed)) for seed in seeds])
