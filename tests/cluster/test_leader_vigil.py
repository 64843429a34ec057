"""The leading node is watched by those that would take its place."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from tests.nodes.stand import ANYWHERE, KEYS, supervisor_process

from closeranks.authority.record import Record
from closeranks.cluster.leader_vigil import LeaderVigil
from closeranks.nodes.probes import Supervisor, answer_probes

BOOT = "00000000000000aa"
WITHIN_S = 60.0


def test_the_end_of_the_leading_supervisor_is_known_and_not_before():
    async def watch():
        process, address = await supervisor_process("n0", BOOT)
        ended = asyncio.Event()
        vigil = LeaderVigil(SimpleNamespace(node="n1", keys=KEYS), ended.set)
        record = Record(node="n0", boot=f"{BOOT}.2", host=address.host, probe_port=address.port)
        vigil.follow(record)
        async with asyncio.timeout(WITHIN_S):
            await vigil.begun.wait()
            vigil.follow(record)  # it was renewed
            assert vigil.saw_end(record.boot) is None
            process.kill()
            await process.wait()
            await ended.wait()
        vigil.close()
        assert vigil.saw_end(f"{BOOT}.1") is None
        return vigil.saw_end(record.boot)

    gone = asyncio.run(watch())
    assert (gone.supervisor, gone.candidate) == (Supervisor("n0", BOOT), f"{BOOT}.2")
    assert "its link was hung up" in gone.reason


def test_the_own_node_is_not_watched():
    async def watch():
        listener = await answer_probes(ANYWHERE, KEYS, Supervisor("n0", BOOT))
        vigil = LeaderVigil(SimpleNamespace(node="n0", keys=KEYS), lambda: None)
        vigil.follow(Record(node="n0", boot=f"{BOOT}.0", host=listener.address.host, probe_port=listener.address.port))
        begun = vigil.watches
        await listener.close()
        return begun

    assert asyncio.run(watch()) is False
