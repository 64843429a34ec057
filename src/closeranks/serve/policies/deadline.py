"""The deadline of a request: inherited from the caller, bounded, and passed on as what is left of it. Pure.

Three headers are understood; of several the earliest deadline holds.

- ``x-request-timeout-ms``: milliseconds that are left, a whole number. Needs no common clock; it is always passed on.
- ``x-request-deadline``: the time itself, in seconds since 1970, with or without a fraction.
- ``grpc-timeout``: up to eight digits and a unit: H, M, S, m, u or n (gRPC over HTTP/2, "Requests").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

TIMEOUT: Final = b"x-request-timeout-ms"
DEADLINE: Final = b"x-request-deadline"
GRPC: Final = b"grpc-timeout"
HEADERS: Final = frozenset({TIMEOUT, DEADLINE, GRPC})
_GRPC_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_FORMS: Final = {
    TIMEOUT: re.compile(rb"\d{1,12}"),
    DEADLINE: re.compile(rb"\d{1,11}(\.\d{1,9})?"),
    GRPC: re.compile(rb"\d{1,8}[HMSmun]"),
}
_EXPECTED: Final = {
    TIMEOUT: "whole milliseconds, at most 12 digits",
    DEADLINE: "seconds since 1970, such as 1767225600.5",
    GRPC: "up to 8 digits and one of H, M, S, m, u, n",
}
_SHOWN_BYTES: Final = 32


class BadDeadline(ValueError):
    """A deadline header cannot be read. It is the caller's mistake; nothing was begun."""


class Clock(msgspec.Struct, frozen=True, gc=False):
    """One moment on both clocks: the monotonic one that deadlines are kept on, and the calendar's."""

    now_s: float
    epoch_s: float


def inherited(headers: Iterable[tuple[bytes, bytes]], clock: Clock, longest_s: float) -> float:
    """The deadline on the monotonic clock, at most ``longest_s`` away; in the past if the caller's has passed.

    Raises:
        BadDeadline: a value is not what its header promises.
    """
    left_s = longest_s
    for name, value in headers:
        if name in HEADERS:
            left_s = min(left_s, _left_s(name, value.strip(), clock))
    return clock.now_s + left_s


def _left_s(name: bytes, value: bytes, clock: Clock) -> float:
    if not _FORMS[name].fullmatch(value):
        shown = value[:_SHOWN_BYTES].decode("ascii", "backslashreplace")
        raise BadDeadline(f"{name.decode()}: expected {_EXPECTED[name]}, got {shown!r}")
    if name == TIMEOUT:
        return int(value) / 1000
    if name == DEADLINE:
        return float(value) - clock.epoch_s
    return int(value[:-1]) * _GRPC_UNITS_S[value[-1:]]


def passed_on(headers: Iterable[tuple[bytes, bytes]], deadline_s: float, clock: Clock) -> list[tuple[bytes, bytes]]:
    """The headers for the next hop: what is left in milliseconds, and in whichever form the caller used beside.

    Never less than one millisecond: zero would read as "no deadline" in many a server.
    """
    left_s = max(0.001, deadline_s - clock.now_s)
    kept, forms = [], {TIMEOUT}
    for header in headers:
        if header[0] in HEADERS:
            forms.add(header[0])
        else:
            kept.append(header)
    if left_s == float("inf"):
        return kept
    kept.append((TIMEOUT, b"%d" % max(1, int(left_s * 1000))))
    if DEADLINE in forms:
        kept.append((DEADLINE, b"%.3f" % (clock.epoch_s + left_s)))
    if GRPC in forms:
        kept.append((GRPC, _grpc(left_s)))
    return kept


def _grpc(left_s: float) -> bytes:
    milliseconds = max(1, int(left_s * 1000))
    return b"%dm" % milliseconds if milliseconds < 10**8 else b"%dS" % min(int(left_s), 10**8 - 1)
