"""The admin API: what the gateway sees, and orders to it, on a port of its own for whoever has the token."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from closeranks.serve.drill_settings import BadOrder, DrillOrder
from closeranks.serve.drilling import BusyError, ForbiddenError
from closeranks.serve.http.limits import Limits
from closeranks.serve.http.server import ClientConnection
from closeranks.serve.replica import UnknownReplicaError
from closeranks.serve.states import ladder_state, replica_states, status_of
from closeranks.toml_text import TomlProblem

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.http.head import Request
    from closeranks.serve.http.server import Exchange

_ORDER: Final = re.compile(rb"/replicas/([^/]+)/(drain|eject|readmit)")
_PATHS: Final = "/healthz /metrics /status /replicas /replicas/NAME/{drain,eject,readmit} /ladder /drill /reload"
_JSON: Final = (b"content-type", b"application/json")


class LevelOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /ladder``; null gives the decision back to the ladder."""

    level: int | None = None


class Admin:
    """Answers the requests of operators. ``reload`` reads the configuration again and says what was done."""

    def __init__(self, gateway: Gateway, token: str, metrics: Callable[[], bytes], reload: Callable[[], str]) -> None:
        self.limits = Limits(body_bytes=2**16, connections=64)
        self.connections: set[ClientConnection] = set()
        self._gateway = gateway
        self._token = token.encode()
        self._metrics = metrics
        self._reload = reload
        self._server: asyncio.Server | None = None
        self.where = ""  # for people

    async def start(self, host: str, port: int) -> int:
        """Listen; the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientConnection(self), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """End at once."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()

    def now_s(self) -> float:
        """See Front."""
        return self._gateway.now_s()

    def begin(self, request: Request, client: ClientConnection) -> Exchange | None:
        """See Front; every answer is given at once."""
        shown = (request.header(b"authorization") or b"").removeprefix(b"Bearer ")
        if request.path == b"/healthz":
            client.answer(200, [_JSON], b'{"status":"ok"}')
        elif not hmac.compare_digest(shown, self._token):
            client.fail(401, "expected `authorization: Bearer TOKEN` with the token of the gateway's token file")
        else:
            self._answer(request, client)
        return None

    def _answer(self, request: Request, client: ClientConnection) -> None:
        post, path = request.method == b"POST", request.path
        if path == b"/metrics":
            client.answer(200, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")], self._metrics())
        elif path == b"/status":
            self._say(client, status_of(self._gateway))
        elif path == b"/drill":
            self._drill(request, client)
        elif path == b"/replicas":
            self._say(client, replica_states(self._gateway))
        elif path == b"/ladder" and not post:
            self._say(client, ladder_state(self._gateway))
        elif path == b"/ladder":
            self._set_level(request, client)
        elif path == b"/reload" and post:
            self._read_again(client)
        elif post and (order := _ORDER.fullmatch(path)):
            self._order(client, order[1].decode("utf-8", "replace"), order[2].decode())
        else:
            client.fail(404, f"known: {_PATHS}")

    def _say(self, client: ClientConnection, value: Any) -> None:
        client.answer(200, [_JSON], msgspec.json.encode(value))

    def _set_level(self, request: Request, client: ClientConnection) -> None:
        try:
            order = msgspec.json.decode(request.body, type=LevelOrder)
            self._gateway.traffic.force_level(self.now_s(), order.level)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            client.fail(400, f'{error}; expected {{"level": NUMBER}}, or null to let the ladder decide')
            return
        self._say(client, ladder_state(self._gateway))

    def _drill(self, request: Request, client: ClientConnection) -> None:
        drills = self._gateway.drills
        try:
            if request.method == b"POST":
                drills.begin(msgspec.json.decode(request.body, type=DrillOrder))
            elif request.method == b"DELETE":
                drills.end("ended by the operator")
        except ForbiddenError as error:
            client.fail(403, str(error))
        except BusyError as error:
            client.fail(409, str(error))
        except (BadOrder, msgspec.DecodeError, RecursionError) as error:
            client.fail(400, str(error))
        else:
            self._say(client, drills.state())

    def _order(self, client: ClientConnection, name: str, order: str) -> None:
        try:
            self._gateway.order(name, order)
        except UnknownReplicaError as error:
            client.fail(404, str(error))
            return
        self._say(client, replica_states(self._gateway))

    def _read_again(self, client: ClientConnection) -> None:
        try:
            done = self._reload()
        except (TomlProblem, OSError) as error:
            client.fail(400, f"{error}; nothing was changed")
            return
        self._say(client, {"done": done})
