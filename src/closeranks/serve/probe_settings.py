"""``[probe]``. Pure."""

from __future__ import annotations

import msgspec


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[probe]``: what is asked of each replica. Intervals and counts are those of ``[health]``."""

    ready_path: str = ""  # empty: /health where the engine has it, else /v1/models
    known_answer: bool = False  # ask for an answer and compare it
    model: str = ""
    prompt: str = "One, two, three, four,"
    max_tokens: int = 4
    expect: str = ""  # empty: what the first replica of the tier said
