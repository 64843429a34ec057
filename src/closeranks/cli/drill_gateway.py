"""``closeranks drill --gateway``: break what a running gateway depends on, for a while, and say what came of it."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from closeranks.drill.verdict import Outcome
from closeranks.run.options import seconds
from closeranks.serve.drill_settings import DrillOrder, Effect

LOOK_S: Final = 0.2
ANSWER_S: Final = 10.0
ERRORS_MAX: Final = 0.01  # of the requests: what is promised to stay whole while a dependency is gone
BACK_WITHIN_S: Final = 120.0


class GatewayError(Exception):
    """The gateway's admin API did not do what it was asked for."""


class Wish(NamedTuple):
    """What the command line says."""

    url: str
    token_file: Path | None
    dependency: str
    tier: str
    delay: str
    fail: bool
    kill: bool
    for_: str


class Seen(msgspec.Struct):
    """What became of a drill; times count from its beginning, ``back_s`` from its end."""

    what: str = ""
    struck: int = 0
    requests: int = 0
    errors: int = 0
    degraded: int = 0
    opened_s: float | None = None  # the breaker
    ended: str = ""
    back_s: float | None = None
    verdict: str = ""


def order_of(wish: Wish) -> DrillOrder:
    """The order for the gateway.

    Raises:
        ValueError: with what was expected.
    """
    effects = [wish.fail, wish.kill, bool(wish.delay)]
    if bool(wish.dependency) == bool(wish.tier):
        raise ValueError("expected --dependency NAME or --tier NAME")
    if sum(effects) != bool(wish.dependency):
        raise ValueError("expected one of --delay TIME, --fail and --kill with --dependency, and none with --tier")
    effect = Effect.DELAY if wish.delay else Effect.KILL if wish.kill else Effect.FAIL
    return DrillOrder(
        dependency=wish.dependency,
        effect=effect,
        delay_s=seconds(wish.delay) if wish.delay else 0.0,
        tier=wish.tier,
        for_s=seconds(wish.for_),
    )


class _Admin:
    """The admin API of one gateway process."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The answer.

        Raises:
            GatewayError: there is none, or it is a refusal.
        """
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self._url}{path}", body, headers, method=method)  # noqa: S310 - see carry_out
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310 - see carry_out
                return msgspec.json.decode(answer.read())
        except urllib.error.HTTPError as error:
            raise GatewayError(f"{self._url} refuses: {_reason(error.read(), error.reason)}") from None
        except (OSError, msgspec.DecodeError) as error:
            raise GatewayError(f"{self._url} does not answer: {getattr(error, 'reason', error)}") from None


def carry_out(wish: Wish, say: Callable[[str], None]) -> Seen:
    """Order the drill and watch it to its end, and until all is back; Ctrl-C or SIGTERM ends it at the gateway.

    Raises:
        GatewayError: the gateway cannot be reached, or refuses.
        ValueError: the command line makes no order.
    """
    if not wish.url.startswith(("http://", "https://")):
        raise ValueError(f"--gateway: expected the URL of an admin API, http://127.0.0.1:PORT, got {wish.url!r}")
    if wish.token_file is None:
        raise ValueError("expected --token-file: gateway.token lies beside the gateway's file")
    order = order_of(wish)
    try:
        token = wish.token_file.read_text().strip()
    except OSError as error:
        where = f"--token-file {wish.token_file}: {error.strerror}"
        raise ValueError(f"{where}; gateway.token lies beside the gateway's file") from None
    admin, seen = _Admin(wish.url, token), Seen(what=order.what)
    admin.ask("POST", "/drill", msgspec.json.encode(order))
    say(f"{order.what}, for {order.for_s:g} s; Ctrl-C ends it")
    try:
        try:
            _watch(admin, order, seen, say)
        except (KeyboardInterrupt, SystemExit):
            _note(seen, admin.ask("DELETE", "/drill"))
            say("ended at the gateway")
        _wait_until_back(admin, seen)
    except GatewayError as error:
        seen.ended = seen.ended or str(error)
    seen.verdict = verdict_of(seen).name.lower()
    return seen


def _watch(admin: _Admin, order: DrillOrder, seen: Seen, say: Callable[[str], None]) -> None:
    began_s = time.monotonic()
    while not seen.ended:
        status = admin.ask("GET", "/status")
        _note(seen, status["drill"])
        breakers = {**status["replicas"], **status["dependencies"]}
        if seen.opened_s is None and breakers.get(order.dependency, "closed") != "closed":
            seen.opened_s = time.monotonic() - began_s
            say(f"  its breaker opened after {seen.opened_s:.1f} s")
        if not seen.ended:
            time.sleep(LOOK_S)


def _wait_until_back(admin: _Admin, seen: Seen) -> None:
    began_s = time.monotonic()
    while seen.back_s is None and time.monotonic() < began_s + BACK_WITHIN_S:
        if admin.ask("GET", "/status")["drill"]["back"]:
            seen.back_s = time.monotonic() - began_s
        else:
            time.sleep(LOOK_S)


def _note(seen: Seen, drill: dict[str, Any]) -> None:
    seen.struck, seen.requests, seen.errors = drill["struck"], drill["requests"], drill["errors"]
    seen.degraded, seen.ended = drill["degraded"], drill["ended"]


def verdict_of(seen: Seen) -> Outcome:
    """Held: hardly any request failed, and all is as before. Unknown: no request met the drill."""
    if not (seen.requests and (seen.struck or seen.degraded)):
        return Outcome.UNKNOWN
    good = seen.errors <= ERRORS_MAX * seen.requests and seen.back_s is not None
    return Outcome.HELD if good else Outcome.BROKEN


def told(seen: Seen) -> list[str]:
    """What happened, in words."""
    lines = [f"{seen.what}: {seen.ended}"]
    if seen.requests:
        lines.append(
            f"  {seen.requests} requests meanwhile: {seen.errors} errors ({100 * seen.errors / seen.requests:.1f} %), "
            f"{100 * seen.degraded / seen.requests:.1f} % degraded; {seen.struck} calls were struck"
        )
    back = f"after {seen.back_s:.1f} s" if seen.back_s is not None else f"not within {BACK_WITHIN_S:g} s"
    lines.append(f"  as before {back}")
    why = ": no request met it, so nothing was shown" if seen.verdict == "unknown" else ""
    lines.append(f"{seen.verdict}{why}")
    return lines


def _reason(body: bytes, otherwise: str) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return otherwise
