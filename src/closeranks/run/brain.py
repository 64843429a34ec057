"""The controller with its state inside, and what the command line decides for it and for the detector."""

from __future__ import annotations

from closeranks.decide import controller
from closeranks.decide.budgets import Limits
from closeranks.decide.protocol import Decision, Fact
from closeranks.decide.state import Deadlines, Settings
from closeranks.detect.progress import Bounds
from closeranks.run.options import RunOptions


def settings_of(options: RunOptions) -> Settings:
    """What the command line decides for the controller."""
    return Settings(
        seats=options.seats,
        nodes_needed=options.nnodes if options.nnodes > 1 else 0,
        nodes_min=options.nodes_min,
        node_patience_s=options.node_patience_s,
        spares=options.spares,
        limits=Limits(
            start_restarts=min(Limits().start_restarts, options.max_restarts),
            cold_restarts=options.max_restarts,
        ),
        deadlines=Deadlines(join_s=options.join_timeout_s, nodes_s=options.join_timeout_s),
    )


def bounds_of(options: RunOptions) -> Bounds:
    """Floor and ceiling of the learned deadlines, where the user set them."""
    floor_s, ceiling_s = options.min_deadline_s, options.max_deadline_s
    usual = Bounds()
    floor_s = usual.floor_s if floor_s is None else floor_s
    ceiling_s = max(usual.ceiling_s, floor_s) if ceiling_s is None else ceiling_s
    return Bounds(floor_s=min(floor_s, ceiling_s), ceiling_s=ceiling_s, unlearned_s=min(usual.unlearned_s, ceiling_s))


class Brain:
    """The controller of one run."""

    def __init__(self, options: RunOptions) -> None:
        self._state = controller.initial(settings_of(options))

    def step(self, fact: Fact, now_s: float) -> tuple[Decision, ...]:
        """Take one fact."""
        self._state, decisions = controller.step(self._state, fact, now_s)
        return decisions
