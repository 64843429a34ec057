"""A client's request as the policies see it: who asks, how urgently, until when, and for which session. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from closeranks.serve.fallbacks import LADDER_PATHS
from closeranks.serve.http.head import Request
from closeranks.serve.policies.affinity import cookie, digest
from closeranks.serve.policies.deadline import HEADERS, Clock, inherited
from closeranks.serve.policies.tenants import Tenants, TenantSettings
from closeranks.serve.settings import Settings
from closeranks.serve.words import Ask, Priority

IDEMPOTENCY: Final = b"idempotency-key"
_PRIORITIES: Final = {priority.name.lower().encode(): priority for priority in Priority}
_SAFE: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})  # RFC 9110, 9.2.2
_STATEFUL: Final = (
    *(b"/v1/files", b"/v1/uploads", b"/v1/batches", b"/v1/fine_tuning", b"/v1/vector_stores", b"/v1/threads"),
    *(b"/v1/assistants", b"/v1/responses", b"/slots", b"/lora-adapters", b"/v1/load_lora_adapter"),
)
"""Where a second POST makes a second thing. Whoever wants it repeated sends an idempotency key."""


class BadPriority(ValueError):
    """A priority header has a value that is none. It is the caller's mistake; nothing was begun."""


class _Message(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    """The few fields that are looked at before anything is decided."""

    model: str = ""
    stream: bool = False
    temperature: float | None = None
    seed: int | None = None


class _Conversation(_Body):
    """Those, and what a session can be known by."""

    messages: list[_Message] = []
    prompt: msgspec.Raw = msgspec.Raw()


class _Manner(msgspec.Struct, frozen=True):
    """What a head says of its request: the same for all that come under this head."""

    tenant: TenantSettings
    priority: Priority
    session: str  # empty: the head names none
    repeatable: bool
    has_deadline: bool
    laddered: bool


_DECODER: Final = msgspec.json.Decoder(_Body)
_CONVERSATIONS: Final = msgspec.json.Decoder(_Conversation)
_NO_BODY: Final = _Body()
_WORTH_BYTES: Final = 512  # a shorter request is read anew as quickly as it is found in a cache


class Asker:
    """Reads requests; one for a gateway process."""

    def __init__(self, settings: Settings) -> None:
        self._longest_s = settings.timeouts.request_s
        self._tenants = Tenants(settings.tenant)
        self._tenant_header = settings.admission.tenant_header.lower().encode()
        self._priority_header = settings.admission.priority_header.lower().encode()
        routing = settings.routing
        self._session_header = routing.session_header.lower().encode()
        self._session_cookie = routing.session_cookie.encode()
        self._by_prefix = routing.session_prefix

    def ask(self, request: Request, clock: Clock, number: int) -> Ask:
        """The request with this number.

        Raises:
            BadDeadline: a deadline header cannot be read.
            BadPriority: the priority is none.
        """
        manner: _Manner | None = request.notes.get(self)
        if manner is None:
            manner = request.notes[self] = self._manner(request)
        deadline_s = clock.now_s + self._longest_s
        if manner.has_deadline:
            deadline_s = inherited(request.headers, clock, self._longest_s)
        tenant, session = manner.tenant, manner.session
        by_prefix = self._by_prefix and not session and len(request.body) >= _WORTH_BYTES
        body = _read(request, _CONVERSATIONS if by_prefix else _DECODER)
        if isinstance(body, _Conversation) and (beginning := _beginning(body)):
            session = digest(tenant.name.encode(), *beginning)
        return Ask(  # by place: names would take a third of its time
            number,
            clock.now_s,
            deadline_s,
            tenant.name,
            tenant.premium,
            manner.priority,
            session,
            body.model,
            body.stream,
            manner.repeatable,
            body.temperature == 0 or body.seed is not None,
            1.0,
            manner.laddered,
        )

    def _manner(self, request: Request) -> _Manner:
        tenant = self._tenants.of(request.headers, self._tenant_header)
        priority = request.header(self._priority_header)
        if priority is not None and priority not in _PRIORITIES:
            raise BadPriority(f"{self._priority_header.decode()}: expected interactive, standard or batch")
        return _Manner(
            tenant,
            _PRIORITIES[tenant.priority.encode() if priority is None else priority],
            self._session(request, tenant.name),
            _repeatable(request),
            any(name in HEADERS for name, _ in request.headers),
            request.path.endswith(LADDER_PATHS),
        )

    def _session(self, request: Request, tenant: str) -> str:
        named = request.header(self._session_header) or b""
        if not named and self._session_cookie:
            named = cookie(request.headers, self._session_cookie)
        return digest(tenant.encode(), named) if named else ""


def _read(request: Request, decoder: msgspec.json.Decoder[_Body] | msgspec.json.Decoder[_Conversation]) -> _Body:
    """What the body says, if it is an object of the API; anything else says nothing."""
    if request.method != b"POST" or not request.body.startswith((b"{", b" ", b"\n", b"\t")):
        return _NO_BODY
    try:
        return decoder.decode(request.body)
    except (msgspec.MsgspecError, RecursionError):
        return _NO_BODY


def _beginning(body: _Conversation) -> tuple[bytes, ...]:
    """What all turns of a conversation have in common: everything up to its first question."""
    if body.messages:
        first = next((index for index, message in enumerate(body.messages) if message.role == "user"), None)
        if first is None:
            return ()
        return (body.model.encode(), *(bytes(message.content) for message in body.messages[: first + 1]))
    return (body.model.encode(), bytes(body.prompt)) if body.prompt else ()


def _repeatable(request: Request) -> bool:
    if request.method in _SAFE or request.header(IDEMPOTENCY) is not None:
        return True
    return request.method == b"POST" and not request.path.startswith(_STATEFUL)
