"""A new group begins with saved state: every member reads it beside its own, and all adopt it together or none.

The lead names the state; each node has its members read it, and says so; then the lead says that all adopt it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from closeranks import messages
from closeranks.cluster.saving_words import AdoptAll, LoadedHere, LoadPoint
from closeranks.decide.protocol import GroupLoaded
from closeranks.decide.restore_points import RestorePoint
from closeranks.events import StateLoaded
from closeranks.run.circle import Circle
from closeranks.run.context import Context
from closeranks.run.vault import Vault
from closeranks.run.worker import Worker

_TOLD_MAX = 6  # reasons in one message


class Begin(NamedTuple):
    """Whom to tell before a member may close steps: what counts them must know where they begin."""

    lead: Callable[[RestorePoint], None]  # where the lead is
    here: Callable[[AdoptAll], None]  # on every node


class Loading:
    """One attempt of one group to begin with saved state."""

    def __init__(self, context: Context, vault: Vault, circle: Circle, begin: Begin) -> None:
        self._context = context
        self._vault = vault
        self._circle = circle
        self._begin = begin
        self._points: list[RestorePoint] = []
        self._passed_over: list[str] = []
        self._heard: dict[str, LoadedHere] = {}  # by node
        self._said: LoadPoint | AdoptAll | None = None  # the newest, for nodes that missed it
        self._point: LoadPoint | None = None  # that the members of this node load, or have loaded
        self._answers: dict[int, messages.Loaded] = {}  # by process
        self._adopted: set[int] | None = None  # processes; None: they were not told to
        self._began_s = 0.0

    def drop(self) -> None:
        """The group is gone before it came so far, or a new one begins."""
        self._points, self._passed_over, self._said = [], [], None
        self._point, self._adopted = None, None

    # --- the lead -----------------------------------------------------------------------------------------------

    def begin(self, points: tuple[RestorePoint, ...]) -> None:
        """The members of a new group are on their way to their loop: have them load what can be loaded."""
        self._points, self._passed_over = list(points), []
        self._next()

    def again(self) -> None:
        """A node may have missed what was said last."""
        if self._said is not None:
            self._circle.tell_all(self._said)

    def heard(self, node: str, word: LoadedHere) -> None:
        """A node has read its part, or could not."""
        said = self._said
        if not isinstance(said, LoadPoint) or (word.step, word.generation) != (said.step, said.generation):
            return
        self._heard[node] = word
        if self._heard.keys() < self._circle.nodes:
            return
        problems = [problem for one in self._heard.values() for problem in one.problems]
        if problems:
            self._passed_over.append(f"{_name(said)}: {'; '.join(dict.fromkeys(problems))}")
            self._next()
            return
        notes = dict.fromkeys(note for one in self._heard.values() for note in one.notes)
        self._passed_over += [note for note in notes if note not in self._passed_over]
        self._begin.lead(RestorePoint(step=said.step, in_memory=said.in_memory, generation=said.generation))
        self._context.feed(GroupLoaded(step=said.step))
        self._said = AdoptAll(step=said.step, durable=said.generation is not None, passed_over=tuple(self._passed_over))
        self.again()

    def _next(self) -> None:
        self._heard = {}
        if not self._points:
            self._said = None
            self._give_up()
            return
        point = self._points.pop(0)
        self._said = LoadPoint(step=point.step, generation=point.generation, in_memory=point.in_memory)
        self.again()

    def _give_up(self) -> None:
        """To begin with step 0 in silence would lose everything: a person has to decide that."""
        told = self._passed_over[:_TOLD_MAX]
        more = len(self._passed_over) - len(told)
        reasons = "; ".join(told) + (f"; and {more} more" if more > 0 else "")
        self._circle.end_run(
            f"saved state cannot be used: {reasons or 'there is none that is trusted'}; nothing was changed in the "
            f"store; look at it with: closeranks ckpt verify {self._context.options.store}"
        )

    # --- this node ----------------------------------------------------------------------------------------------

    def load(self, word: LoadPoint) -> None:
        """The lead names a state: have the members of this node read it."""
        if word == self._point:
            self._report_if_read()
            return
        if self._point is None:
            self._began_s = time.monotonic()
        self._point, self._answers, self._adopted = word, {}, None
        fds = self._vault.descriptors(word.step) if word.in_memory else ()
        options = self._context.options
        message = messages.Load(
            step=word.step,
            generation=word.generation,
            store=options.store or "",
            tiers=options.tiers or "",
            world=self._context.seats,
            descriptors=len(fds),
        )
        self._tell(message, fds)

    def loaded(self, worker: Worker, message: messages.Loaded) -> None:
        """A member has read its part, or tells why it could not."""
        point = self._point
        if (
            point is None
            or message.step != point.step
            or worker.proc not in self._members()
            or self._adopted is not None
        ):
            return
        self._answers[worker.proc] = message
        self._report_if_read()

    def _report_if_read(self) -> None:
        point, answers = self._point, self._answers.values()
        if point is None or len(answers) < len(self._members()):
            return
        self._circle.tell_lead(
            LoadedHere(
                step=point.step,
                generation=point.generation,
                problems=tuple(answer.problem for answer in answers if answer.problem),
                notes=tuple(note for answer in answers for note in (*answer.refused, *answer.notes)),
            )
        )

    def adopt(self, word: AdoptAll) -> None:
        """All have read it."""
        if self._point is None or word.step != self._point.step or self._adopted is not None:
            return
        self._adopted, self._passed_over = set(), list(word.passed_over)
        self._begin.here(word)
        self._tell(messages.Adopt(step=word.step))

    def adopted(self, worker: Worker, message: messages.Adopted) -> None:
        """A member trains with the loaded state."""
        if self._point is None or self._adopted is None or message.step != self._point.step:
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

    def _tell(self, message: messages.SupervisorMessage, fds: tuple[int, ...] = ()) -> None:
        for proc in self._members():
            worker = self._context.workers.get(proc)
            if worker is not None:
                worker.send(message, fds)

    def _members(self) -> tuple[int, ...]:
        return tuple(self._context.members.values())


def _name(point: LoadPoint) -> str:
    place = "memory" if point.generation is None else f"generation {point.generation}"
    return f"step {point.step} ({place})"
