"""One call of ``step``: the state on its way from before to after, and the decisions made so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from closeranks.decide.protocol import Decision, Note
from closeranks.decide.state import NEXT, Incident, Life, Poison, Proc, Stage, State
from closeranks.events import AnyEvent, Phase, PhaseBegan


class Turn:
    """Collects changes; lives no longer than the call."""

    def __init__(self, state: State, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.decisions: list[Decision] = []

    def update(self, **changes: Any) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def update_group(self, **changes: Any) -> None:
        """Change fields of the group."""
        self.update(group=replace(self.state.group, **changes))

    def enter(self, life: Life) -> None:
        """Go to another life; what was suspected in the old one is settled by that."""
        if life not in NEXT[self.state.life]:
            raise AssertionError(f"no way from {self.state.life} to {life}")
        poison: Poison | None = None if life in (Life.GATHERING, Life.CLEARING) else self.state.poison
        self.update(life=life, since_s=self.now_s, poison=poison)

    def reaches(self, proc: Proc) -> bool:
        """Decisions about the process arrive, and its facts: no deadline of it is void."""
        node = self.state.nodes.get(proc.node)
        return node is None or not node.silent

    def put(self, *procs: Proc) -> None:
        """Add or replace processes; together, since the table of thousands is copied each time."""
        self.update(procs=self.state.procs | {proc.proc: proc for proc in procs})

    def stage(self, proc: Proc, stage: Stage, **changes: Any) -> None:
        """Bring a process to a stage."""
        self.put(replace(proc, stage=stage, since_s=self.now_s, **changes))

    def stage_all(self, procs: Iterable[Proc], stage: Stage, **changes: Any) -> None:
        """Bring processes to a stage together."""
        self.put(*(replace(p, stage=stage, since_s=self.now_s, **changes) for p in procs))

    def drop(self, *procs: Proc) -> None:
        """Forget processes: they are gone for certain."""
        gone = {proc.proc for proc in procs}
        self.update(procs={n: p for n, p in self.state.procs.items() if n not in gone})

    def decide(self, decision: Decision) -> None:
        """Have something done."""
        self.decisions.append(decision)

    def note(self, event: AnyEvent) -> None:
        """Have something written to the journal."""
        self.decisions.append(Note(event=event))

    def phase(self, phase: Phase, at_s: float | None = None) -> None:
        """The open incident, if there is one, entered a phase."""
        incident = self.state.incident
        if incident is None:
            return
        at_mono_s = self.now_s if at_s is None else at_s
        self.update(incident=replace(incident, phase=phase))
        self.note(PhaseBegan(incident=incident.number, phase=phase, at_mono_s=at_mono_s))

    def incident(self) -> Incident:
        """The open incident, where there must be one."""
        if self.state.incident is None:
            raise AssertionError(f"no incident is open in life {self.state.life}")
        return self.state.incident
