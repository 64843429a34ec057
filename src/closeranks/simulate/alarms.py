"""When the controller next has to be told that time passed.

Production ticks every quarter of a second; a simulation of months ticks only where a deadline may be over. A tick that
comes for nothing changes nothing, so this needs to name every such instant, not only those that matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from closeranks.decide.state import Life, Stage, State

_PAST_S = 1e-6  # deadlines are compared with sums that may be rounded down


def next_alarm_s(state: State, now_s: float) -> float:
    """The first instant after ``now_s`` at which a deadline may be over; infinite when nothing is waited for."""
    return min((at_s for at_s in _candidates(state) if at_s > now_s), default=math.inf)


def _candidates(state: State) -> Iterator[float]:
    deadlines = state.settings.deadlines
    if state.poison is not None:
        yield state.poison.at_s + deadlines.poison_grace_s + _PAST_S
    match state.life:
        case Life.NEW | Life.LEAVING | Life.ENDED:
            return
        case Life.JOINING:
            if state.group.joined_s is not None:
                yield state.group.joined_s + deadlines.join_s + _PAST_S
            if not state.library and state.incident is not None:
                yield state.since_s + deadlines.plain_settle_s + _PAST_S
        case Life.REGROUPING:
            yield state.since_s + deadlines.regroup_s + _PAST_S
            yield state.since_s + deadlines.regroup_s + deadlines.ready_s + _PAST_S
        case Life.RESTORING:
            yield state.since_s + deadlines.transfer_s + _PAST_S
        case Life.CLEARING:
            yield state.since_s + deadlines.isolate_s + _PAST_S
        case Life.GATHERING | Life.RUNNING:
            yield from _of_processes(state)


def _of_processes(state: State) -> Iterator[float]:
    if state.incident is not None:
        yield state.incident.not_before_s + _PAST_S
    deadlines = state.settings.deadlines
    allowed_s = {
        Stage.INTERRUPTED: deadlines.pause_s,
        Stage.STARTED: deadlines.ready_s,
        Stage.JOINED: deadlines.ready_s,
        Stage.DOOMED: deadlines.isolate_s,
        Stage.RESUMING: deadlines.resume_s,
        Stage.CONFIRMED: deadlines.confirm_s,  # then those that have not answered are late
    }
    for proc in state.procs.values():
        if proc.seat is not None and proc.stage in allowed_s:
            yield proc.since_s + allowed_s[proc.stage] + _PAST_S
