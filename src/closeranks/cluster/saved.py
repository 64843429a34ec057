"""What the store holds, for a coordinator that was not told: word of a commit can die with the node that made it."""

from __future__ import annotations

import asyncio
from typing import Final

from closeranks.checkpoint.keeper_durable import known_generations
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.run.claims import read_log
from closeranks.run.generations import kept_of, newest_step_of
from closeranks.run.options import RunOptions

_ANSWER_S: Final = 5.0  # a store that does not answer must not hold a recovery up for ever


async def newest_in_store(options: RunOptions) -> int | None:
    """The newest step of this job that its store holds; None: there is none, or the store cannot tell in time."""
    if options.store is None:
        return None
    try:
        async with asyncio.timeout(_ANSWER_S):
            history = await asyncio.to_thread(read_log, options.store)
    except (CheckpointProblem, TimeoutError):
        return None
    return newest_step_of(kept_of(known_generations(history)))
