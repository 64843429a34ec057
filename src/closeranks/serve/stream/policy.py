"""``[streams]``: what becomes of a stream whose replica dies. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec


class StreamPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The flags allow what cannot be resumed exactly; without them such a stream fails with an error event."""

    on_cut: Literal["resume", "pass"] = "resume"  # pass: the client sees the cut
    sampling: bool = True  # drawn without a seed: the rest is drawn anew
    guided: bool = False  # by a grammar or schema, when the same answer cannot be generated again
    choices: bool = False  # several, likewise
    tools: bool = False  # a tool call has begun, likewise
