"""Signals that reach a supervisor: whose they are decides what they ask for."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest

from closeranks.decide.protocol import StopAsked
from closeranks.run.supervisor import _Signals


@pytest.fixture(autouse=True)
def handlers():
    """Those of this process are as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def asked(guardian: int) -> list:
    """What a SIGTERM makes of the supervisor that has this guardian."""
    facts: list = []

    async def take() -> None:
        context = SimpleNamespace(stops=0, options=SimpleNamespace(grace_s=60.0), ending=None)
        context.note, context.feed = lambda _: None, facts.append
        signals = _Signals(guardian)
        signals.attach(context)
        signals.take(signal.SIGTERM)

    asyncio.run(take())
    return facts


def test_sigterm_asks_for_an_orderly_end():
    assert asked(guardian=os.getppid()) == [StopAsked(signal=signal.SIGTERM, now=False)]


def test_the_end_of_the_guardian_asks_for_nothing():
    # The kernel tells it by SIGTERM. Of several nodes that was a request to stop the job everywhere: one cut ssh
    # connection, whose tether kills the guardian there, ended a run that had a spare node.
    assert asked(guardian=os.getppid() + 1) == []
