import asyncio
import contextlib
import socket

import pytest
from tests.nodes.stand import QUICK, Leader, Node, beat, met, soon, until

from closeranks.decide.leases import Clockwork
from closeranks.decide.retry_budget import Backoff
from closeranks.nodes import calling
from closeranks.nodes.calling import Patience
from closeranks.nodes.link import Ended
from closeranks.nodes.words import Address


class OneWay:
    """Stands between a node and its leader, and can stop what one of them says without closing anything."""

    def __init__(self, leader: Address) -> None:
        self.leader_is_heard = True
        self._leader = leader
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> Address:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return Address(host=host, port=port)

    async def _join(self, reader, writer) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._leader.host, self._leader.port)
        self._tasks.append(asyncio.ensure_future(self._carry(far_reader, writer, lambda: self.leader_is_heard)))
        await self._carry(reader, far_writer, lambda: True)

    async def _carry(self, reader, writer, passes) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(2**16):
                if passes():
                    writer.write(piece)
        writer.close()

    async def close(self) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks)


def test_a_node_comes_back_when_its_leader_was_started_anew():
    async def talk():
        async with met() as (leader, node):
            address = leader.listener.address
            await leader.close()
            assert (await soon(node.down)).how is Ended.RESET
            missed = await soon(node.missed)
            assert missed.address == address
            assert "Connect call failed" in missed.reason
            await leader.open(address)
            _, epoch = await soon(node.up)
            assert epoch == 1
            await node.beats(1)

    asyncio.run(talk())


def test_a_node_goes_to_the_new_leader_and_leaves_the_old_one():
    async def talk():
        async with met() as (leader, node):
            successor = Leader()
            assert node.caller.retarget(await successor.open(), 2)
            assert (await soon(node.up))[1] == 2
            assert (await soon(node.down)).how is Ended.CUT
            assert (await soon(leader.ended)).how is Ended.RESET
            await node.beats(1)
            assert await soon(successor.heard) == beat(1)
            await successor.close()

    asyncio.run(talk())


def test_a_node_that_looks_for_a_dead_leader_goes_to_the_new_one_at_once():
    async def talk():
        node = Node(QUICK._replace(backoff=Backoff(3600.0, 3600.0)))
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = Address(host="127.0.0.1", port=closed.getsockname()[1])
        node.caller.retarget(nobody, 1)
        await soon(node.missed)
        successor = Leader()
        node.caller.retarget(await successor.open(), 2)
        await soon(node.up)
        node.caller.close("done")
        await successor.close()

    asyncio.run(talk())


def test_a_node_does_not_go_back_to_an_older_epoch():
    async def talk():
        async with met() as (leader, node):
            assert node.caller.retarget(leader.listener.address, 2)
            await soon(node.up)
            assert not node.caller.retarget(Address(host="127.0.0.1", port=1), 1)
            await node.beats(1)

    asyncio.run(talk())


def test_being_told_the_same_leader_again_changes_nothing():
    async def talk():
        async with met() as (leader, node):
            connection = node.caller.connection
            assert node.caller.retarget(leader.listener.address, 1)
            assert node.caller.connection is connection
            await node.beats(1)

    asyncio.run(talk())


def test_a_leader_that_is_no_longer_heard_is_left_and_called_again():
    async def talk():
        leader, node = Leader(), Node(QUICK._replace(silence_s=2.0, connect_s=2.0))
        between = OneWay(await leader.open())
        node.caller.retarget(await between.open(), 1)
        await soon(node.up)
        await node.beats(1)
        between.leader_is_heard = False
        node.caller.connection.send(beat(2))
        assert await soon(leader.heard) == beat(1)
        assert await soon(leader.heard) == beat(2)  # this way is open
        end = await soon(node.down)
        assert end == (Ended.SILENT, "nothing was heard for 2 s")
        assert "within 2 s" in (await soon(node.missed)).reason
        between.leader_is_heard = True
        await soon(node.up)
        await node.beats(3)
        node.caller.close("done")
        await leader.close()
        await between.close()

    asyncio.run(talk())


def test_a_leader_that_answers_is_not_left():
    async def talk():
        async with met(QUICK._replace(silence_s=4.0)) as (_, node):
            began_s = asyncio.get_running_loop().time()
            number = 0
            while asyncio.get_running_loop().time() < began_s + 4.5:
                number += 1
                await node.beats(number)
                await asyncio.sleep(0.05)  # the interval of beats
            assert node.down.empty()

    asyncio.run(talk())


@pytest.mark.parametrize(("ceiling_s", "lasts"), [(60.0, False), (0.05, True)])
def test_failures_in_a_row_lengthen_the_waits_and_a_connection_that_lasted_begins_anew(monkeypatch, ceiling_s, lasts):
    asked = []

    def wait_s(backoff, failures, draw):
        asked.append(failures)
        return 0.0

    monkeypatch.setattr(calling, "wait_s", wait_s)

    async def talk():
        leader = Leader()
        address = await leader.open()
        node = Node(QUICK._replace(backoff=Backoff(0.01, ceiling_s)))
        await leader.close()
        node.caller.retarget(address, 1)
        for _ in range(3):
            await soon(node.missed)
        assert asked[:3] == [1, 2, 3]
        await leader.open(address)
        await soon(node.up)
        before = asked[-1]
        met = await soon(leader.met)
        await asyncio.sleep(0.1)  # longer than the lower ceiling of the backoff: this is what lasting means
        met.abort("later")
        await soon(node.up)
        assert asked[-1] == (1 if lasts else before + 1)  # dropped at once is no success
        node.caller.close("done")
        await leader.close()

    asyncio.run(talk())


def test_a_closed_caller_calls_no_more():
    async def talk():
        async with met() as (leader, node):
            node.caller.close("done")
            await soon(leader.ended)
            await until(lambda: node.caller.connection is None)
            assert [task for task in asyncio.all_tasks() if "_pursue" in repr(task) and not task.cancelling()] == []

    asyncio.run(talk())


def test_a_name_that_cannot_be_resolved_is_a_miss_like_any_other():
    async def talk():
        node = Node()
        node.caller.retarget(Address(host="no such host", port=1), 1)
        missed = await soon(node.missed)
        assert missed.failures == 1
        assert missed.reason
        node.caller.close("done")

    asyncio.run(talk())


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="this host has no ::1"))]
)
def test_links_work_over_both_families(host):
    async def talk():
        leader, node = Leader(), Node()
        node.caller.retarget(await leader.open(Address(host=host, port=0)), 1)
        await soon(node.up)
        await node.beats(1)
        node.caller.close("done")
        await leader.close()

    asyncio.run(talk())


def test_an_address_in_use_is_named():
    async def talk():
        async with met() as (leader, _):
            with pytest.raises(OSError, match=f"cannot listen on {leader.listener.address}"):
                await Leader().open(leader.listener.address)

    asyncio.run(talk())


def test_a_caller_waits_longer_for_silence_than_lease_and_fence_by_default():
    clockwork = Clockwork()
    assert Patience().silence_s > clockwork.lease_s + clockwork.fence_s
