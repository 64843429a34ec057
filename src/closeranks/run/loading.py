"""A new group begins with saved state: every member reads it beside its own, and all adopt it together or none."""

from __future__ import annotations

import time
from collections.abc import Callable

from closeranks import messages
from closeranks.decide.protocol import GroupLoaded
from closeranks.decide.restore_points import RestorePoint
from closeranks.events import StateLoaded
from closeranks.run.context import Context
from closeranks.run.vault import Vault
from closeranks.run.worker import Worker

_TOLD_MAX = 6  # reasons in one message


class Loading:
    """One attempt of one group to begin with saved state."""

    def __init__(self, context: Context, vault: Vault, begin: Callable[[RestorePoint], None]) -> None:
        self._context = context
        self._vault = vault
        self._begin = begin  # called with the state that all seats have loaded, right before they adopt it
        self._points: list[RestorePoint] = []
        self._passed_over: list[str] = []
        self._answers: dict[int, messages.Loaded] = {}  # by process
        self._adopted: set[int] = set()
        self._point: RestorePoint | None = None
        self._began_s = 0.0

    def begin(self, points: tuple[RestorePoint, ...]) -> None:
        """The members of a new group are on their way to their loop: tell them what to load there."""
        self._points, self._passed_over, self._began_s = list(points), [], time.monotonic()
        self._next()

    def drop(self) -> None:
        """The group is gone before it came so far."""
        self._points, self._point = [], None

    def loaded(self, worker: Worker, message: messages.Loaded) -> None:
        """A member has read its part, or tells why it could not."""
        if self._point is None or message.step != self._point.step or worker.proc not in self._members():
            return
        self._answers[worker.proc] = message
        if len(self._answers) < len(self._members()):
            return
        problems = [answer.problem for answer in self._answers.values() if answer.problem]
        if problems:
            self._passed_over.append(f"{_name(self._point)}: {'; '.join(dict.fromkeys(problems))}")
            self._next()
            return
        for answer in self._answers.values():
            self._passed_over += [note for note in (*answer.refused, *answer.notes) if note not in self._passed_over]
        # From here on a member may close steps: what counts them must know where they begin.
        self._begin(self._point)
        self._context.feed(GroupLoaded(step=self._point.step))
        self._tell(messages.Adopt(step=self._point.step))

    def adopted(self, worker: Worker, message: messages.Adopted) -> None:
        """A member trains with the loaded state."""
        if self._point is None or message.step != self._point.step:
            return
        self._adopted.add(worker.proc)
        if self._adopted >= set(self._members()):
            sources = dict.fromkeys(answer.source for answer in self._answers.values() if answer.source)
            self._context.note(
                StateLoaded(
                    step=self._point.step,
                    source=" and ".join(sources),
                    took_s=time.monotonic() - self._began_s,
                    passed_over=tuple(self._passed_over),
                )
            )
            self._point = None

    def _next(self) -> None:
        self._answers, self._adopted = {}, set()
        if not self._points:
            self._point = None
            self._give_up()
            return
        self._point = point = self._points.pop(0)
        fds = self._vault.descriptors(point.step) if point.in_memory else ()
        message = messages.Load(
            step=point.step,
            generation=point.generation,
            store=self._context.options.store or "",
            tiers=self._context.options.tiers or "",
            world=self._context.options.seats,
            descriptors=len(fds),
        )
        self._tell(message, fds)

    def _give_up(self) -> None:
        """To begin with step 0 in silence would lose everything: a person has to decide that."""
        told = self._passed_over[:_TOLD_MAX]
        more = len(self._passed_over) - len(told)
        reasons = "; ".join(told) + (f"; and {more} more" if more > 0 else "")
        self._context.fail(
            f"saved state cannot be used: {reasons or 'there is none that is trusted'}; nothing was changed in the "
            f"store; look at it with: closeranks ckpt verify {self._context.options.store}"
        )

    def _tell(self, message: messages.SupervisorMessage, fds: tuple[int, ...] = ()) -> None:
        for proc in self._members():
            worker = self._context.workers.get(proc)
            if worker is not None:
                worker.send(message, fds)

    def _members(self) -> tuple[int, ...]:
        return tuple(self._context.members.values())


def _name(point: RestorePoint) -> str:
    place = "memory" if point.generation is None else f"generation {point.generation}"
    return f"step {point.step} ({place})"
