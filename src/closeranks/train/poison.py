"""What ends an attempt without ending the job."""

from __future__ import annotations


class PeerLost(RuntimeError):
    """A member of the term is lost; the attempt is void and will be repeated after the regroup.

    Raised by the optimizer, by synchronous collectives of the user's code and at the end of the step block. State
    left behind: model and optimizer are as they were before the attempt once the block has ended.
    """

    def __init__(self, term: int, detail: str) -> None:
        super().__init__(f"term {term} lost a member ({detail}); the step is repeated once the ranks have closed")
        self.term = term
        self.detail = detail


class AttemptHeld(RuntimeError):
    """Something odd was found before the update: the attempt is void on all seats, and the step is repeated or skipped.

    Raised by the optimizer. State left behind: model and optimizer are as they were before the attempt once the block
    has ended.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step} is held: something odd was found before its update; the block ends here")
        self.step = step


class CollectiveRefused(RuntimeError):
    """A collective was called where a lost peer could no longer be survived; nothing was sent."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation} inside the step block after the optimizer has begun: a loss now could leave some ranks "
            f"with the step and some without; call it before optimizer.step(), in step.on_close(...), or between "
            f"steps in job.section(...)"
        )


def first_line(error: BaseException) -> str:
    """An error of the inner group in one line: torch appends stacks of its own to some."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
