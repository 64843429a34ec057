"""The goodput identity: every process-second belongs to one category, and none is charged twice."""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import PlanInputError, not_negative, share


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a job by what they were, each counted once.

    ``kept_s`` is compute whose result stands at the end; ``durable_s`` the part of it that a save covers;
    ``discarded_s`` compute that a failure took (its replay is in ``kept_s``); the rest is overhead.
    """

    kept_s: float
    durable_s: float
    discarded_s: float
    start_s: float = 0.0
    save_s: float = 0.0
    detect_s: float = 0.0
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative seconds, and durable work that was not kept."""
        for name in self.__struct_fields__:
            not_negative(name, getattr(self, name))
        if self.durable_s > self.kept_s:
            raise PlanInputError("durable_s", "at most kept_s", self.durable_s, "work can only be durable if it stands")

    @property
    def wall_s(self) -> float:
        """The sum of all categories: the identity that goodput is measured against."""
        return self.kept_s + self.discarded_s + self.start_s + self.save_s + self.detect_s + self.restart_s

    @property
    def goodput(self) -> float:
        """Kept compute over wall time."""
        return self.kept_s / self.wall_s

    @property
    def durable_goodput(self) -> float:
        """Kept compute that a save covers, over wall time."""
        return self.durable_s / self.wall_s

    @property
    def double_charged(self) -> float:
        """The usual error, for recognising it: discarded work subtracted once more from what was kept."""
        return (self.kept_s - self.discarded_s) / self.wall_s


def fleet_goodput(scheduled: float, running: float, productive: float) -> float:
    """Return the share of all paid capacity that trains: scheduling x runtime x program efficiency.

    Source: Google 2025 (ML productivity goodput), MPG = S x R x P.
    """
    return float(share("scheduled", scheduled) * share("running", running) * share("productive", productive))
