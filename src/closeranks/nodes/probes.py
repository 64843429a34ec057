"""Second paths to a node that is silent: does its supervisor still run?

A supervisor answers on a port of its own, to nodes of its run alone, which process it is. What a probe finds is
judged apart from how it was found: only a proof that the process has ended counts as gone, for what is declared gone
may be replaced at once. A refused connection is such a proof only together with a link that was hung up: a firewall
refuses in the name of a host that lives, but it cannot end a connection in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from closeranks.nodes.calling import call
from closeranks.nodes.handshake import PROBE, Keys, NotProved
from closeranks.nodes.link import READ_BYTES, Connection, Ears, End
from closeranks.nodes.serving import Listener, listening_socket
from closeranks.nodes.words import Address

_GUESTS_MAX: Final = 64  # a supervisor needs its descriptors for its workers; nodes that ask take a moment each


class Finding(StrEnum):
    """What a probe found."""

    ANSWERS = "answers"  # the supervisor asked for answered
    OTHER_BOOT = "other boot"  # the node's supervisor was started anew: the one asked for has ended
    REFUSED = "refused"  # nobody listens there, says the host, or a firewall
    UNREACHABLE = "unreachable"  # no answer in time
    POWERED_ON = "powered on"  # the machine, says the user's command
    POWERED_OFF = "powered off"
    ERROR = "error"  # the probe itself failed: nothing is known


class Supervisor(NamedTuple):
    """One process, never another: a boot is drawn anew at every start."""

    node: str
    boot: str


class Probed(NamedTuple):
    """A finding and what was seen."""

    finding: Finding
    detail: str


class Life(StrEnum):
    """What is known of a supervisor."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class Judgement(NamedTuple):
    """What the findings amount to, and why."""

    life: Life
    reason: str


def judge(probed: Sequence[Probed], *, hung_up: bool) -> Judgement:
    """What several probes of one supervisor say together. ``hung_up``: so its last link to the asking leader ended.

    Whoever answered is alive, whatever other probes say.
    """
    told = "; ".join(f"{p.finding}: {p.detail}" if p.detail else str(p.finding) for p in probed) or "no probe"
    found = {p.finding for p in probed}
    if Finding.ANSWERS in found:
        return Judgement(Life.ALIVE, told)
    if found & {Finding.OTHER_BOOT, Finding.POWERED_OFF}:
        return Judgement(Life.GONE, told)
    if Finding.REFUSED in found and hung_up:
        return Judgement(Life.GONE, f"its link was hung up, and {told}")
    if Finding.REFUSED in found:
        return Judgement(Life.UNKNOWN, f"{told}; but its link was not hung up, and a firewall may refuse for it")
    return Judgement(Life.UNKNOWN, told)


# --- the path over the network ----------------------------------------------------------------------------------


class _Question(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    pass


class _Answer(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    node: str
    boot: str


async def answer_probes(address: Address, keys: Keys, own: Supervisor) -> Listener:
    """The supervisor's side: say who this is to every node of the run that asks.

    Raises:
        OSError: the address cannot be had.
    """
    buffer = memoryview(bytearray(READ_BYTES))
    answer = _Answer(node=own.node, boot=own.boot)

    def hand_out(transport: asyncio.Transport) -> None:
        connection = Connection(transport, _Question, buffer)
        transport.set_protocol(connection)
        connection.hear(Ears(lambda _question: connection.send(answer), lambda _end: None))

    return Listener(listening_socket(address), keys, PROBE, hand_out, _GUESTS_MAX)


async def keep_vigil(address: Address, keys: Keys, on_end: Callable[[End], None], within_s: float) -> Connection:
    """A connection on which nothing is ever said, to be told of its end.

    When a process ends, the kernel hangs its connections up in order, but resets those with bytes that were not read.
    Here there are none: so the end of a process can be told from that of a network, whatever was under way on its link.

    Raises:
        OSError, NotProved: nobody of the run answers there.
    """
    connections: list[Connection] = []

    def take(transport: asyncio.Transport) -> None:
        connection = Connection(transport, _Answer, memoryview(bytearray(READ_BYTES)))
        transport.set_protocol(connection)
        connection.hear(Ears(lambda _answer: None, on_end))
        connections.append(connection)

    await call(address, keys, PROBE, take, within_s)
    return connections[0]


async def probe(address: Address, keys: Keys, wanted: Supervisor, within_s: float) -> Probed:
    """Ask who answers there, where the wanted one has last been."""
    answered: asyncio.Future[_Answer | End] = asyncio.get_running_loop().create_future()
    connections: list[Connection] = []
    try:
        async with asyncio.timeout(within_s):
            await call(address, keys, PROBE, _asker(answered, connections.append), within_s)
            answer = await answered
    except ConnectionRefusedError:
        return Probed(Finding.REFUSED, f"nobody listens at {address}")
    except TimeoutError:
        return Probed(Finding.UNREACHABLE, f"no answer from {address} within {within_s:g} s")
    except (NotProved, ConnectionError) as error:
        return Probed(Finding.ERROR, f"{address}: {error}")
    except OSError as error:
        return Probed(Finding.UNREACHABLE, f"{address}: {error.strerror or error}")
    finally:
        for connection in connections:
            connection.abort("asked")
    if isinstance(answer, End):
        return Probed(Finding.ERROR, f"{address}: it ended the connection without an answer ({answer})")
    found = Supervisor(answer.node, answer.boot)
    if found == wanted:
        return Probed(Finding.ANSWERS, f"{found.node} at {address}")
    if found.node != wanted.node:  # the address was given to another node: nothing is known of the one before
        return Probed(Finding.ERROR, f"{found.node} answers at {address}, expected {wanted.node}")
    return Probed(Finding.OTHER_BOOT, f"boot {found.boot} of {found.node} answers at {address}, not {wanted.boot}")


def _asker(
    answered: asyncio.Future[_Answer | End], keep: Callable[[Connection], None]
) -> Callable[[asyncio.Transport], None]:
    # An end is a result, no exception: it may come when nobody waits any more, and the loop reports a lost exception.
    def take(answer: _Answer | End) -> None:
        if not answered.done():
            answered.set_result(answer)

    def ask(transport: asyncio.Transport) -> None:
        connection = Connection(transport, _Answer, memoryview(bytearray(READ_BYTES)))
        transport.set_protocol(connection)
        connection.hear(Ears(take, take))
        keep(connection)
        connection.send(_Question())

    return ask
