"""What can go wrong with a store or a checkpoint, as data: where, expected, got, and the way out."""

from __future__ import annotations


class CheckpointProblem(Exception):
    """The base of all: the message is meant for the person who runs the job."""


class StoreProblem(CheckpointProblem):
    """The store cannot do what it was asked (no space, no permission, no such bucket, not reachable)."""

    def __init__(self, message: str, *, transient: bool = False, doubtful: bool = False) -> None:
        super().__init__(message)
        self.transient = transient  # the same request may succeed when it is tried again
        self.doubtful = doubtful  # the request may have been carried out all the same: read back


class StoreRefused(CheckpointProblem):
    """The store is not to be used by us: another job's, a newer format, no create-if-absent, or no store at all."""


class Fenced(CheckpointProblem):
    """A newer term was claimed: whoever gets this must not write to the store any more."""


class Damaged(CheckpointProblem):
    """Bytes that are absent, too short, or have another digest than the one recorded; they were not used."""

    def __init__(self, message: str, *, object_key: str = "") -> None:
        super().__init__(message)
        self.object_key = object_key


class Mismatch(CheckpointProblem):
    """A sound checkpoint that does not fit what it is to be loaded into; nothing was changed."""


class NothingToRestore(CheckpointProblem):
    """No generation has a usable home for every slice that is needed; the reasons are in the message."""


class SaveFailed(CheckpointProblem):
    """A save did not become durable; earlier generations are untouched, and so is the state in memory."""


class BaseLost(SaveFailed):
    """A generation that an incremental save builds on was retired meanwhile: save again, in full."""


class NotAccepted(CheckpointProblem):
    """The log does not allow this in its present state (a pin of a retired generation); nothing was written."""
