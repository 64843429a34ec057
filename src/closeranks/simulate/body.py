"""The truth about one virtual process."""

from __future__ import annotations

from dataclasses import dataclass, field

from closeranks.events import Category


@dataclass(slots=True)
class Body:
    """A process. Its seconds are kept only where a journal is written."""

    number: int
    seat: int | None
    original: bool  # started with its group
    born_s: float
    alive: bool = True
    frozen: bool = False
    answers: bool = False  # though it is frozen: its control thread is not
    doomed: bool = False  # it was told to end: nobody looks for signs of life
    told_end: bool = False
    joined: bool = False
    ready: bool = False
    placed: bool = False  # a spare that has a node
    term: int = 0
    paused: bool = True
    closed: int = -1
    intact: bool = True
    doubt: str = ""  # what its digest says beside the step
    trained: bool = False
    stalled_since_s: float = 0.0
    seconds: dict[Category, float] = field(default_factory=dict)
    category: Category = Category.START_UP
    since_s: float = 0.0

    @property
    def acts(self) -> bool:
        """Whether it can do anything."""
        return self.alive and not self.frozen

    @property
    def digest(self) -> str:
        """Of the state that it holds."""
        return f"step {self.closed}{self.doubt}"

    def spend(self, category: Category, at_s: float) -> None:
        """From now on its time is of this category."""
        self.seconds[self.category] = self.seconds.get(self.category, 0.0) + at_s - self.since_s
        self.category, self.since_s = category, at_s
