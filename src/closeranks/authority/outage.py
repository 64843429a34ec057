"""What is told of an authority that does not answer: once when that has lasted, once when it answers again."""

from __future__ import annotations

from typing import Final

TOLD_AFTER_S: Final = 5.0  # shorter ones, such as an election among the members of etcd, are nobody's business


class Outage:
    """Of one authority, as one process sees it. Times are any clock's that only goes forward."""

    def __init__(self) -> None:
        self.problem = ""  # why there is no answer; empty: the last question was answered
        self._since_s = 0.0
        self._told = False

    def failed(self, problem: str, begun_s: float) -> None:
        """A question that was asked at this time got no answer."""
        if not self.problem:
            self._since_s = begun_s
        self.problem = problem

    def answered(self) -> None:
        """A question was answered."""
        self.problem = ""

    def changed(self, now_s: float) -> bool:
        """Whether there is something new to tell: that it does not answer, as long as there is a problem, or does."""
        lasts = bool(self.problem) and (self._told or now_s - self._since_s >= TOLD_AFTER_S)
        if lasts == self._told:
            return False
        self._told = lasts
        return True
