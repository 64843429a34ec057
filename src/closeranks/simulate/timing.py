"""How long the parts of a recovery take in the virtual cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from closeranks.plan.cluster import Cluster
    from closeranks.plan.job_times import Times


class Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds, each from its cause to the fact that the controller is told."""

    detect_s: float = 0.05  # from the end of a process to the report of it
    notice_s: float | None = None  # from a loss until its peers report a failed collective; None: they never do
    end_s: float = 0.05  # from a decision to end a process to its end
    pause_s: float = 0.05  # from an interrupt until a member has left its block
    start_s: float = 2.0  # from the start of a process to join
    ready_s: float = 1.0  # from join until a newcomer can be seated
    connect_s: float = 0.05
    transfer_s: float = 0.1  # from the restore plan until receivers hold the state
    load_s: float = 1.0  # until a new group has read its state
    warm_up_s: float = 0.0  # until a new group is at full speed
    resume_s: float = 0.01

    def __post_init__(self) -> None:
        """Refuse times that run backwards."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"timing.{name}: expected at least 0 s, got {value:g} s; 0 leaves the part out")


def timing_of(cluster: Cluster, times: Times, *, replicated: bool) -> Timing:
    """The recovery budget of a cluster, laid out over the phases that the controller sees.

    A cold recovery takes detect + restart + load + warm-up, as in the plan; a warm one ``recovery.warm_s`` in all.
    """
    budget = times.budget
    if not replicated:
        return Timing(
            detect_s=budget.detect_s,
            end_s=0.0,
            pause_s=0.0,
            start_s=budget.restart_s,
            ready_s=budget.warm_up_s,
            connect_s=0.0,
            transfer_s=0.0,
            load_s=budget.load_s,
            warm_up_s=budget.warm_up_s,
            resume_s=0.0,
        )
    warm_s = cluster.recovery.warm_s
    detect_s = min(budget.detect_s, warm_s / 2)
    return Timing(
        detect_s=detect_s,
        end_s=0.0,
        pause_s=0.0,
        start_s=budget.restart_s,
        ready_s=budget.warm_up_s,
        connect_s=(warm_s - detect_s) / 2,
        transfer_s=(warm_s - detect_s) / 2,
        load_s=budget.load_s,
        warm_up_s=budget.warm_up_s,
        resume_s=0.0,
    )
