"""What the keeper of a node and the process that started it say to each other.

The socket is one end of a socketpair, framed by ``closeranks.frames``. The first message to the keeper is Begin.
Arenas travel as descriptors with the first byte of the Publish that names them.

Of every save exactly one final report comes (Committed, Kept or SaveLost), and exactly one Freed, in either order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from closeranks.checkpoint.keeper_config import KeeperConfig

WRITERS_MAX = 128  # arenas that fit one message: the kernel passes at most 253 descriptors at once


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


# --- to the keeper ----------------------------------------------------------------------------------------------


class Begin(_Message, frozen=True, tag=True):
    """What the keeper is to do; its parent's pid, so that it ends with it."""

    config: KeeperConfig
    parent_pid: int


class Publish(_Message, frozen=True, tag=True):
    """Make the images in these arenas last. One descriptor for each of ``writers`` comes along, in their order."""

    save: int  # the parent's number for it, never used twice
    step: int  # last closed step, -1 before the first
    attempt: str  # the same on all nodes, begins with t<term:08d> of the lead's term
    writers: tuple[int, ...]  # those of this node
    world: int  # writers of all nodes
    lead: bool  # this keeper gathers the others and commits
    layout: str
    deadline_s: float  # from the arrival of this message to its final report
    run_term: int = 0
    data_position: Any = None
    trusted: bool = True
    group: str = ""
    versions: dict[str, str] = {}
    tiers: tuple[str, ...] | None = None  # names of the tiers to write; None: those that are due by their intervals
    passes_over: bool = True  # an older save that still waits for its turn is given up for this one


class Drill(_Message, frozen=True, tag=True):
    """Read a generation back (None: the newest) and record whether it held."""

    generation: int | None = None


class Finish(_Message, frozen=True, tag=True):
    """Take no more, finish what there is by the deadline, give up the rest, and end."""

    deadline_s: float


ToKeeper = Begin | Publish | Drill | Finish


# --- from the keeper --------------------------------------------------------------------------------------------


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A generation that is alive in the durable store."""

    generation: int
    step: int
    verified: str  # "unknown", "held" or "broken"
    trusted: bool
    group: str


class Opened(_Message, frozen=True, tag=True):
    """The durable store is ours to use; ``term`` is the fencing token under which attempts are named."""

    term: int
    generations: tuple[Known, ...]  # newest first


class Refused(_Message, frozen=True, tag=True):
    """The durable store is not usable, or not any more; said once. Other tiers go on, saves end as SaveLost."""

    problem: str
    fenced: bool = False  # a newer term was claimed: this keeper must be replaced


class Progress(_Message, frozen=True, tag=True):
    """How far a save is; sent when the stage changes and a few times a second at most."""

    save: int
    tier: str
    stage: str  # "digest", "write", "gather", "commit"
    done_bytes: int
    total_bytes: int


class Sealed(_Message, frozen=True, tag=True):
    """The images in the arenas have their digests: this node's memory is good for a restore."""

    save: int
    step: int


class Freed(_Message, frozen=True, tag=True):
    """Nothing reads the save's arenas any more: they may be filled again."""

    save: int


class Committed(_Message, frozen=True, tag=True):
    """Final: the generation is durable and in the log."""

    save: int
    step: int
    generation: int
    written_bytes: int  # by this node's writers
    reused_bytes: int  # of earlier generations, referred to instead of written
    seconds: dict[str, float]  # by stage: "digest", "write", "gather", "commit", and "total" since Publish


class Kept(_Message, frozen=True, tag=True):
    """Final: a save that was not due in the durable store has reached its other tiers, or missed them as reported."""

    save: int
    step: int
    seconds: dict[str, float]


class SaveLost(_Message, frozen=True, tag=True):
    """Final, after retries: the save is not durable, as far as is known. Earlier generations are untouched."""

    save: int
    step: int
    tier: str
    problem: str


class TierKept(_Message, frozen=True, tag=True):
    """The save's images of this node reached a tier other than the durable one."""

    save: int
    step: int
    tier: str
    written_bytes: int
    seconds: float
    weakened: str = ""  # what is not as it should be (a peer that was passed over), "" all is well


class TierMissed(_Message, frozen=True, tag=True):
    """A tier other than the durable one did not get this save; the others are not concerned."""

    save: int
    step: int
    tier: str
    problem: str


class Dropped(_Message, frozen=True, tag=True):
    """Generations that the retention gave up, and what the sweep freed."""

    generations: tuple[int, ...]
    freed_bytes: int
    problem: str = ""  # why less was freed than meant; it is tried again after the next commit


class Drilled(_Message, frozen=True, tag=True):
    """A restore drill ended; ``generation`` is None when there was none to read."""

    generation: int | None
    held: bool
    recorded: bool  # in the log; False: the store could not be asked, so nothing is known
    detail: str
    seconds: float


FromKeeper = (
    Opened
    | Refused
    | Progress
    | Sealed
    | Freed
    | Committed
    | Kept
    | SaveLost
    | TierKept
    | TierMissed
    | Dropped
    | Drilled
)
Final = Committed | Kept | SaveLost
