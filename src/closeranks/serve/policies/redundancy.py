"""Executing some requests twice, to find the replica that computes wrongly without failing. Pure.

Two replicas that differ cannot tell which of them is wrong: a third votes. If no two agree, the declared safe answer
is served. The odd one out is quarantined, and comes back only when known answers were right again several times.

Only what has one right answer can be compared: greedy or seeded requests, on replicas whose arithmetic is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from random import Random
from typing import Any

import msgspec

from closeranks.serve.policies.affinity import digest
from closeranks.serve.policies.bounds import positive, within


class RedundancySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[redundancy]``."""

    share: float = 0.0  # of the requests that can be compared
    safe_answer: str = ""  # what is served when no two replicas agree; empty: an error
    passes: int = 3  # known answers in a row that end a quarantine

    def __post_init__(self) -> None:
        within(self, 0, 1, "share")
        positive(self, "passes")


class Agreed(msgspec.Struct, frozen=True):
    """Served is what most have answered; ``odd`` have answered something else."""

    replica: str
    odd: tuple[str, ...] = ()


class NeedsThird(msgspec.Struct, frozen=True):
    """Two differ: a third has to vote."""


class Undecided(msgspec.Struct, frozen=True):
    """No two agree: the safe answer is served."""


def sampled(settings: RedundancySettings, random: Random) -> bool:
    """Whether this request is executed twice."""
    return settings.share > 0 and random.random() < settings.share


def fingerprint(answer: Mapping[str, Any]) -> str:
    """What two answers have in common that are the same: what was said, called and why it ended; not ids or times."""
    said = []
    for choice in answer.get("choices") or ():
        message = choice.get("message") or {}
        calls = [call.get("function") for call in message.get("tool_calls") or ()]
        said.append([choice.get("text"), message.get("content"), calls, choice.get("finish_reason")])
    rest = {key: answer[key] for key in ("data", "results") if key in answer}  # embeddings, rankings
    return digest(msgspec.json.encode([said, rest], order="sorted"))


def vote(answers: Mapping[str, str]) -> Agreed | NeedsThird | Undecided:
    """What follows from the fingerprints by replica, in the order in which they came; at least two.

    Raises:
        ValueError: fewer than two answers cannot be compared.
    """
    if len(answers) < 2:  # noqa: PLR2004 - a comparison takes two
        raise ValueError(f"answers: expected at least 2, got {len(answers)}")
    (most, count), *_ = Counter(answers.values()).most_common()
    if 2 * count > len(answers):
        first = next(replica for replica, answer in answers.items() if answer == most)
        return Agreed(first, tuple(replica for replica, answer in answers.items() if answer != most))
    return NeedsThird() if len(answers) == 2 else Undecided()  # noqa: PLR2004


class Quarantine:
    """The replicas that have answered otherwise than the others."""

    def __init__(self, settings: RedundancySettings) -> None:
        self._settings = settings
        self._passes: dict[str, int] = {}
        self.reasons: dict[str, str] = {}

    def retune(self, settings: RedundancySettings, staying: Collection[str]) -> None:
        """Other settings from now on; a replica that does not stay takes its quarantine along."""
        self._settings = settings
        for replica in set(self.reasons) - set(staying):
            self.release(replica)

    def __contains__(self, replica: object) -> bool:
        return replica in self.reasons

    def add(self, replica: str, reason: str) -> None:
        """It gets no requests any more."""
        self.reasons[replica], self._passes[replica] = reason, 0

    def checked(self, replica: str, *, right: bool) -> bool:
        """A known answer of this replica was right or not.

        Returns:
            Whether its quarantine has ended with this.
        """
        if replica not in self.reasons:
            return False
        self._passes[replica] = self._passes[replica] + 1 if right else 0
        if self._passes[replica] < self._settings.passes:
            return False
        self.release(replica)
        return True

    def release(self, replica: str) -> None:
        """An operator vouches for it."""
        self.reasons.pop(replica, None)
        self._passes.pop(replica, None)
