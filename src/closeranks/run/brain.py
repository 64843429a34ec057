"""The controller with its state inside, and what the command line decides for it and for the detector."""

from __future__ import annotations

import socket

from msgspec.structs import replace

from closeranks.decide import controller
from closeranks.decide.budgets import Limits
from closeranks.decide.policy import Sourced
from closeranks.decide.protocol import Decision, Fact
from closeranks.decide.state import Settings
from closeranks.detect.progress import Bounds
from closeranks.run.options import RunOptions


def effective(options: RunOptions) -> Sourced:
    """The policy of a run: a flag says more than the file, the file more than what is built in."""
    policy, origins = options.policy.policy, dict(options.policy.origins)
    limits, deadlines = policy.limits or Limits(), policy.deadlines
    if (most := options.max_restarts) is not None:
        limits = replace(limits, start_restarts=min(limits.start_restarts, most), cold_restarts=most)
        origins |= dict.fromkeys(("limits.start_restarts", "limits.cold_restarts"), "--max-restarts")
    if (allowed_s := options.join_timeout_s) is not None:
        deadlines = replace(deadlines, join_s=allowed_s, nodes_s=allowed_s)
        origins |= dict.fromkeys(("deadlines.join_s", "deadlines.nodes_s"), "--join-timeout")
    return Sourced(policy=replace(policy, limits=limits, deadlines=deadlines), origins=origins)


def settings_of(options: RunOptions) -> Settings:
    """What the command line decides for the controller."""
    policy = effective(options).policy
    return Settings(
        seats=options.seats,
        nodes_needed=options.nnodes if options.nnodes > 1 else 0,
        nodes_min=options.nodes_min,
        node_patience_s=options.node_patience_s,
        spares=options.spares,
        limits=policy.limits or Limits(),
        deadlines=policy.deadlines,
        tries_per_rung=policy.tries_per_rung,
        answers=policy.amended,
        quarantine=policy.quarantine,
        canary=policy.canary,
        host=socket.gethostname() if options.nnodes == 1 else "",
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
