"""What a keeper is told at its start: a frozen value that travels as its first message."""

from __future__ import annotations

import msgspec

from closeranks.checkpoint.retention import Policy
from closeranks.checkpoint.spreading import Neighbours
from closeranks.checkpoint.tiers import Tiers
from closeranks.checkpoint.writing import Options


class KeeperConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node's keeper. Credentials of object stores come by the environment, never by this value's text."""

    store: str  # of the durable tier: a folder, file:// or a URL of an object store
    job: str
    owner: str  # for people: "host/pid" or "run/supervisor"
    lead: bool  # claims a term at its start; exactly one keeper of a run does
    run: str = ""
    options: Options = Options()
    retention: Policy = Policy()
    tiers: Tiers = Tiers()
    neighbours: Neighbours = Neighbours()
    peer_token: str = ""  # secret of the run, shown to peers that keep copies; needed where a tier has peers
    drill_every_s: float | None = None  # None: drills only when asked for
    priority: int = 19  # nice value, so that a save yields the processor to training
    notice_s: float = 30.0  # after SIGTERM, or after its parent ended in mid-save, it ends within this time
    poll_s: float = 0.05  # between looks into the store while other nodes' writers are waited for
