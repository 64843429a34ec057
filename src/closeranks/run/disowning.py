"""Saying in the store that writers will not contribute, in place of those that cannot say it themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from closeranks.checkpoint.gather import publish_failure
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.checkpoint.stores.opening import open_store


def disown(url: str, attempt: str, writers: Iterable[int], problem: str) -> None:
    """Nobody has to wait for these writers of an attempt any more. Blocks.

    A store that does not take it is one that takes no saves either, and those who save to it have told so.
    """
    with contextlib.suppress(CheckpointProblem), contextlib.closing(open_store(url)) as store:
        for writer in writers:
            publish_failure(store, attempt, writer, problem)
