"""A job of known length: a whole number of segments, few of them or only one when it is short. Seconds."""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import not_negative, positive
from closeranks.plan.elementwise import exp, expm1
from closeranks.plan.interval import exact_s

_SEGMENTS_MOST = 10_000_000


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a job meets: write, restart (can be cut), downtime (cannot); ``save_last``: is the end saved too."""

    write_s: float
    mtbf_s: float
    restart_s: float = 0.0
    downtime_s: float = 0.0
    save_last: bool = True

    def __post_init__(self) -> None:
        """Refuse impossible times by name."""
        positive("mtbf_s", self.mtbf_s)
        for name in ("write_s", "restart_s", "downtime_s"):
            not_negative(name, getattr(self, name))


class FiniteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A finite job cut into equal segments. The last segment ends without a save unless one was asked for."""

    segments: int
    interval_s: float
    wall_s: float
    efficiency: float


def _segment_s(segments: int, work_s: float, met: Conditions) -> float:
    writes = segments if met.save_last else segments - 1
    return (work_s + writes * met.write_s) / segments  # equal segments: the cost is convex in each length


def finite_wall_s(segments: int, work_s: float, met: Conditions) -> float:
    """Return the expected wall time of a job cut into ``segments``.

    Source: Daly 2006 (complete wall-time model), per segment; Toueg and Babaoglu 1984 for the equal split.
    """
    factor = (met.mtbf_s + met.downtime_s) * exp(met.restart_s / met.mtbf_s)
    return float(factor * segments * expm1(_segment_s(segments, work_s, met) / met.mtbf_s))


def plan_finite(work_s: float, met: Conditions) -> FiniteAnswer:
    """Return the best whole number of segments for a job of ``work_s``: short jobs need few saves or none.

    Source: ``finite_wall_s``, which is convex in the number of segments (ternary search).
    """
    positive("work_s", work_s)
    guess = work_s / max(float(exact_s(met.write_s, met.mtbf_s)), work_s / _SEGMENTS_MOST)
    low, high = 1, max(2, int(2 * guess) + 2)
    while high - low > 2:  # noqa: PLR2004 - three candidates are compared at the end
        third = (high - low) // 3
        left, right = low + third, high - third
        shorter = finite_wall_s(left, work_s, met) <= finite_wall_s(right, work_s, met)
        low, high = (low, right) if shorter else (left, high)
    best = min(range(low, high + 1), key=lambda segments: finite_wall_s(segments, work_s, met))
    wall_s = finite_wall_s(best, work_s, met)
    interval_s = work_s if best == 1 else _segment_s(best, work_s, met) - met.write_s
    return FiniteAnswer(segments=best, interval_s=interval_s, wall_s=wall_s, efficiency=work_s / wall_s)
