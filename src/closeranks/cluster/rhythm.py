"""How often a coordinator looks at what. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

_FEW_NODES: Final = 64


class Rhythm(NamedTuple):
    """Seconds from one to the next."""

    beat_s: float  # of each node
    look_s: float  # for nodes that are silent
    vitals_s: float  # that are judged; they change with the beats
    tick_s: float  # of the controller, for its deadlines


FEW: Final = Rhythm(beat_s=0.25, look_s=0.1, vitals_s=0.1, tick_s=0.25)
# Every look goes through all nodes or all seats.
MANY: Final = Rhythm(beat_s=1.0, look_s=0.2, vitals_s=0.8, tick_s=0.5)


def rhythm_of(nodes: int) -> Rhythm:
    """That of a job of so many nodes."""
    return MANY if nodes > _FEW_NODES else FEW
