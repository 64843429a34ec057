"""Parts of steps from the journals of several nodes."""

from __future__ import annotations

from closeranks.events import AnyEvent, Record, RestorePlanned, StepClosed, TermBegan
from closeranks.observe.step_parts import join


def record(at_s: float, event: AnyEvent, node: str = "a") -> Record:
    return Record(seq=0, wall_s=at_s, mono_s=at_s, run="r", node=node, term=1, event=event)


def closed(step: int, seat: int, began_s: float, closed_s: float, norm: float | None = None) -> Record:
    losses = tuple(0.5 if seat == other else None for other in range(2))
    event = StepClosed(
        step=step, began_mono_s=began_s, closed_mono_s=closed_s, losses=losses, seats=(seat,), grad_norm=norm
    )
    return record(closed_s, event, "ab"[seat])


def test_a_seat_that_closes_a_step_after_the_plan_that_settled_it_closes_no_step_anew():
    """Its attempt was void when the other seat had applied it: it was told as repeated, and b as silent about it."""
    plan = RestorePlanned(term=2, step=1, donor=1, receivers=(), outvoted=(), reason="")
    records = (
        record(0.0, TermBegan(term=1, members=(1, 2), nodes=("a", "b"))),
        *(closed(0, seat, 0.1, 0.9, norm) for seat, norm in ((0, 1.0), (1, 3.0))),
        closed(1, 0, 1.1, 1.9),
        record(3.0, plan),
        closed(1, 1, 1.1, 3.5),
        *(closed(2, seat, 3.6, 4.0) for seat in (0, 1)),
    )
    joined = join(records, frozenset({"a", "b"}))
    steps = [one.event for one in joined.records if isinstance(one.event, StepClosed)]
    assert [(step.step, step.repeated, step.losses, step.grad_norm) for step in steps] == [
        (0, False, (0.5, 0.5), 2.0),
        (1, False, (0.5, 0.5), None),
        (2, False, (0.5, 0.5), None),
    ]
    assert joined.lacks == ()
