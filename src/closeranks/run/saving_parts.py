"""What a run with a store saves with, as the command line asks for it."""

from __future__ import annotations

import platform

from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.retention import Policy
from closeranks.checkpoint.tiers import TOKEN_VARIABLE
from closeranks.decide import saving
from closeranks.decide.save_interval import EverySeconds, EverySteps, prior_of
from closeranks.run.circle import Circle
from closeranks.run.claims import Claims
from closeranks.run.context import Context
from closeranks.run.earlier import known_losses
from closeranks.run.neighbours import neighbours_of
from closeranks.run.options import AUTO, RunOptions, job_name, tiers_of
from closeranks.run.resuming import Resuming
from closeranks.run.saver import Saver
from closeranks.run.saves import Saves
from closeranks.run.vault import Vault


class Parts:
    """One of each."""

    def __init__(self, context: Context, vault: Vault, circle: Circle) -> None:
        options = context.options
        tiers = tiers_of(options)
        self.claims = Claims(options.store or "", circle.node or platform.node(), context.run)
        config = KeeperConfig(
            store=options.store or "",
            job=job_name(options),
            owner=self.claims.owner,
            lead=not circle.several,
            run=context.run,
            retention=Policy.parse(options.keep),
            tiers=tiers,
            neighbours=neighbours_of(context, tiers),
            peer_token=context.environment.get(TOKEN_VARIABLE, ""),
            drill_every_s=options.verify_every_s,
        )
        self.saver = Saver(context, vault, config, circle)
        self.saves = Saves(context, self.saver, circle, _settings(options), tiers)
        self.resuming = Resuming(context, self.saver.generations)


def _settings(options: RunOptions) -> saving.Settings:
    every: EverySteps | EverySeconds | None = None
    if options.save_every_steps is not None:
        every = EverySteps(steps=options.save_every_steps)
    elif options.save_every_s is not None:
        every = EverySeconds(seconds=options.save_every_s)
    resume = None if options.resume == AUTO else options.resume
    history = known_losses(resume, options.reliability, options.nnodes)
    return saving.Settings(every=every, rpo_s=options.rpo_s, prior=prior_of(options.nnodes), history=history)
