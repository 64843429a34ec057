"""What a replica says of the services that it depends on, in the header ``Server-Timing`` of its answers. Pure.

``server-timing: features;dur=12.5, clicks;dur=750;desc="failed"``: milliseconds, and ``failed`` for a question that
had no answer.

Source: W3C, Server Timing, 3 "The Server-Timing Header Field".
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

FAILED: Final = "failed"
_MOST: Final = 32  # entries of one header that are looked at
_DURATION: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


class Timing(NamedTuple):
    """One question to one service."""

    took_s: float
    failed: bool


def timings(header: bytes) -> dict[str, Timing]:
    """By the service's name; what cannot be read, or has no duration, is left out."""
    found: dict[str, Timing] = {}
    for entry in header.decode("latin-1").split(",", _MOST)[:_MOST]:
        name, *fields = (part.strip() for part in entry.split(";"))
        values = dict(field.partition("=")[::2] for field in fields)
        duration = values.get("dur", "").strip('"')
        if name and _DURATION.fullmatch(duration):
            found[name] = Timing(float(duration) / 1000.0, values.get("desc", "").strip('"') == FAILED)
    return found
