"""What the save controller is told and what it answers: facts in, decisions out. ``decide/saving.py`` has the rules.

A step is named by its number; a snapshot of step 41 shows the state after step 41 was closed on every seat.
"""

from __future__ import annotations

import msgspec


class _Value(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


# --- facts ------------------------------------------------------------------------------------------------------


class SavingBegan(_Value, frozen=True, tag=True):
    """Training is about to go on after this step: at the start, and after each restart from a checkpoint or nothing."""

    step: int  # last closed step, -1 before the first
    durable: bool  # this very state is in the store


class StepPassed(_Value, frozen=True, tag=True):
    """Every seat closed a step."""

    step: int
    period_s: float  # since the step before was closed: what lies between two blocks belongs to it; 0: unknown


class SnapshotTaken(_Value, frozen=True, tag=True):
    """Every writer holds the copy of this step, and the keepers were told to write it."""

    step: int
    pause_s: float  # the longest that a seat stood still for it


class SnapshotDropped(_Value, frozen=True, tag=True):
    """The snapshot that was asked for will not come about."""

    step: int
    reason: str


class SaveCommitted(_Value, frozen=True, tag=True):
    """The save of this step is durable."""

    step: int


class SaveFreed(_Value, frozen=True, tag=True):
    """The arenas of this save may be filled again: no tier reads them any more. Before or after it is committed."""

    step: int


class SaveFailed(_Value, frozen=True, tag=True):
    """The save of this step will not become durable; its arenas are free, or will be. No ``SaveFreed`` is awaited."""

    step: int
    problem: str


class LossSeen(_Value, frozen=True, tag=True):
    """An incident was opened. A snapshot that was asked for and not yet taken is given up with it."""

    cold: bool  # what was lost had to be read from a save; a loss that survivors mended does not count against saves


class EndComing(_Value, frozen=True, tag=True):
    """The run ends after this step: it completes, or it was asked to stop."""

    step: int
    why: str  # "completed", "SIGTERM", ...
    notice_s: float | None = None  # until the processes are killed; None: they can take their time


SaveFact = (
    SavingBegan
    | StepPassed
    | SnapshotTaken
    | SnapshotDropped
    | SaveCommitted
    | SaveFreed
    | SaveFailed
    | LossSeen
    | EndComing
)


# --- decisions --------------------------------------------------------------------------------------------------


class TakeSnapshot(_Value, frozen=True, tag=True):
    """Copy the state after this step, or after the first later one at which all seats can. Replaces an unanswered one.

    Answered by ``SnapshotTaken``, ``SnapshotDropped`` or ``LossSeen``. A final one may use the second arena while the
    last save is still being written; any other is decided only when nothing is being written. A final one that was
    dropped is decided again when ``EndComing`` is told again.
    """

    step: int
    final: bool
    reason: str


class IntervalChosen(_Value, frozen=True, tag=True):
    """How often the state is saved from now on, for the journal: said once, then when it moves by a fifth."""

    interval_s: float
    steps: int  # about
    rpo_kept: bool  # True where none was asked for
    reason: str


class SaveLost(_Value, frozen=True, tag=True):
    """Say loudly that a save did not become durable."""

    step: int
    problem: str
    failures: int  # in a row
    retry_s: float  # from now; 0 for a final one, which is not tried again
    durable_step: int | None  # newest one that is safe
    at_risk_s: float  # training since then


class SaveHeldBack(_Value, frozen=True, tag=True):
    """A save is due, and the one before it is still being written: said once, then whenever the delay has doubled."""

    writing_step: int
    late_s: float
    reason: str


SaveDecision = TakeSnapshot | IntervalChosen | SaveLost | SaveHeldBack
