"""A register in etcd 3.4 or newer: one key, asked through etcd's own JSON gateway at any of its members."""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

from closeranks.authority.register import (
    ANSWER_S,
    NOTHING,
    VALUE_BYTES_MAX,
    Held,
    RegisterError,
    RegisterRefused,
    checked,
)

_MEMBER_S: Final = 0.75  # one member's share of the bound: the next may answer
_CONNECT_S: Final = 0.5
_PAUSE_S: Final = 0.05  # after all members refused: an election among them may be under way
_ANSWER_BYTES_MAX: Final = 2 * VALUE_BYTES_MAX  # in base64, and what is around it
_PORT: Final = 2379
_NOT_LET_IN: Final = (
    "invalid auth token",
    "auth store is old",
    "user name is empty",
    "authentication failed",
    "permission denied",
)

T = TypeVar("T")


class _Row(msgspec.Struct, frozen=True):
    value: str = ""
    mod_revision: str = "0"


class _Header(msgspec.Struct, frozen=True):
    revision: str = "0"


class _Found(msgspec.Struct, frozen=True):
    kvs: tuple[_Row, ...] = ()


class _Response(msgspec.Struct, frozen=True):
    response_range: _Found = _Found()


class _Swapped(msgspec.Struct, frozen=True):
    header: _Header = _Header()
    succeeded: bool = False
    responses: tuple[_Response, ...] = ()


class _Token(msgspec.Struct, frozen=True):
    token: str = ""


class _Unfit(Exception):
    """This member has no answer now; another one, or the same one later, may have."""


class _TokenNeeded(Exception):
    """The token is none, or an old one."""


class Cluster(NamedTuple):
    """What an ``etcd://`` URL says."""

    members: tuple[str, ...]  # http://HOST:PORT
    user: str = ""
    password: str = ""


def parse(url: str) -> Cluster:
    """From ``etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]``.

    Raises:
        RegisterRefused: it is none.
    """
    access, _, places = url.removeprefix("etcd://").rpartition("@")
    user, _, password = access.partition(":")
    members = []
    for place in places.rstrip("/").split(","):
        try:
            parts = urlsplit(f"http://{place}")
            port = parts.port or _PORT
        except ValueError as error:
            raise _no_cluster(places) from error
        if not parts.hostname or parts.path or parts.query or parts.fragment:
            raise _no_cluster(places)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        members.append(f"http://{host}:{port}")
    return Cluster(tuple(members), unquote(user), unquote(password))


def _no_cluster(places: str) -> RegisterRefused:
    return RegisterRefused(
        f"authority: expected etcd://HOST:PORT, several members after commas, got {places!r} for the hosts; write for"
        " example etcd://10.0.0.1:2379,10.0.0.2:2379"
    )


class EtcdRegister:
    """One key. Reads and writes go through a majority of the members (etcd's default), whichever member is asked."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        self._cluster = cluster
        self._where = f"etcd {','.join(cluster.members)}"
        self._key = _encoded(f"closeranks/{run}/leader".encode())
        self._at = 0  # the member that answered last
        self._token = ""
        timeout = httpx.Timeout(_MEMBER_S, connect=_CONNECT_S)
        plain = ssl.SSLContext(
            ssl.PROTOCOL_TLS_CLIENT
        )  # http only: loading certificates would take a tenth of a second
        self._client = httpx.AsyncClient(verify=plain, timeout=timeout, trust_env=False, follow_redirects=False)

    async def read(self) -> Held:
        """See Register."""
        return _held((await self._ask("kv/range", {"key": self._key}, _Found)).kvs)

    async def write(self, value: bytes, expected: Held) -> Held:
        """See Register."""
        if expected.version:
            unchanged = {"target": "MOD", "mod_revision": expected.version}
        else:
            unchanged = {"target": "CREATE", "create_revision": "0"}
        swap = {
            "compare": [unchanged | {"key": self._key, "result": "EQUAL"}],
            "success": [{"request_put": {"key": self._key, "value": _encoded(checked(value))}}],
            "failure": [{"request_range": {"key": self._key}}],
        }
        # After doubt the same request is the question what became of it: a write that took place lets it fail, and then
        # its own value comes back.
        swapped = await self._ask("kv/txn", swap, _Swapped)
        if swapped.succeeded:
            return Held(value, swapped.header.revision)
        if not swapped.responses:
            raise RegisterError(f"{self._where}: expected the value that is there, got none; is this an etcd?")
        return _held(swapped.responses[0].response_range.kvs)

    async def close(self) -> None:
        """See Register."""
        await self._client.aclose()

    async def _ask(self, path: str, question: dict[str, Any], kind: type[T]) -> T:
        reasons: dict[str, str] = {}
        try:
            async with asyncio.timeout(ANSWER_S):
                while True:
                    for _ in self._cluster.members:
                        member = self._cluster.members[self._at]
                        try:
                            return await self._ask_member(member, path, question, kind)
                        except _Unfit as problem:
                            reasons[member] = str(problem)
                            self._at = (self._at + 1) % len(self._cluster.members)
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError as error:
            said = "; ".join(f"{member}: {reason}" for member, reason in reasons.items()) or "nothing"
            raise RegisterError(
                f"{self._where}: expected an answer within {ANSWER_S:g} s, got {said}; check that a majority of its"
                " members runs and can be reached from here (etcdctl endpoint health)"
            ) from error

    async def _ask_member(self, member: str, path: str, question: dict[str, Any], kind: type[T]) -> T:
        """One question to one member, with a new token if the old one has expired."""
        if self._cluster.user and not self._token:
            await self._authenticate(member)
        try:
            return await self._post(member, path, question, kind)
        except _TokenNeeded as problem:
            if not self._cluster.user:
                raise RegisterError(
                    f"{self._where}: expected to be let in, got {problem}; write etcd://USER:PASSWORD@HOST:PORT"
                ) from problem
        await self._authenticate(member)
        try:
            return await self._post(member, path, question, kind)
        except _TokenNeeded as problem:
            raise _Unfit(str(problem)) from problem

    async def _authenticate(self, member: str) -> None:
        self._token = ""
        access = {"name": self._cluster.user, "password": self._cluster.password}
        try:
            self._token = (await self._post(member, "auth/authenticate", access, _Token)).token
        except _TokenNeeded as problem:
            raise RegisterError(
                f"{self._where}: expected user {self._cluster.user!r} to be let in, got {problem}; check name and"
                " password in the URL"
            ) from problem

    async def _post(self, member: str, path: str, question: dict[str, Any], kind: type[T]) -> T:
        headers = {"Authorization": self._token} if self._token else {}
        request = self._client.build_request("POST", f"{member}/v3/{path}", json=question, headers=headers)
        try:
            async with asyncio.timeout(_MEMBER_S):
                response = await self._client.send(request, stream=True)
                try:
                    status, body = response.status_code, await _bounded(response)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, TimeoutError) as error:
            raise _Unfit(str(error) or type(error).__name__) from error
        if status == httpx.codes.OK:
            try:
                return msgspec.json.decode(body, type=kind)
            except msgspec.MsgspecError as error:
                raise _Unfit(f"no answer of an etcd: {error}") from error
        said = f"HTTP {status} {body[:200].decode(errors='replace').strip()}"
        if status == httpx.codes.UNAUTHORIZED or any(word in said for word in _NOT_LET_IN):
            raise _TokenNeeded(said)
        raise _Unfit(said)


async def _bounded(response: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > _ANSWER_BYTES_MAX:
            raise _Unfit(f"more than {_ANSWER_BYTES_MAX:,} bytes")
    return bytes(body)


def _held(rows: tuple[_Row, ...]) -> Held:
    return Held(base64.b64decode(rows[0].value), rows[0].mod_revision) if rows else NOTHING


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
