"""Whose the store is: each lead of a run claims it anew, and only a claim of another run is a reason to end."""

from __future__ import annotations

import asyncio
import contextlib

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.history import History
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.checkpoint.stores.opening import open_store


class Claims:
    """The claims of one run on its store."""

    def __init__(self, url: str, place: str, run: str) -> None:
        """``place``: where the claim is made, for people."""
        self._url = url
        self._mark = f", run {run}"
        self.owner = f"{place}{self._mark}"
        self._newest = 0  # term of the store that this run is known to have claimed

    def told(self, term: int) -> None:
        """A lead of this run claimed this term."""
        self._newest = max(self._newest, term)

    async def taken_over(self) -> str:
        """Who claimed the store since, if it was another run; "" otherwise, and when the store cannot be asked."""
        if not self._newest:
            return ""
        try:
            history = await asyncio.to_thread(read_log, self._url)
        except CheckpointProblem:
            return ""
        if history.term <= self._newest or history.owner.endswith(self._mark):
            return ""
        return f"{self._url}: {history.owner} has claimed term {history.term}"


def read_log(url: str) -> History:
    """What the log of a store says.

    Raises:
        CheckpointProblem: it cannot be read.
    """
    with contextlib.closing(open_store(url)) as store:
        return CommitLog(store).refresh()
