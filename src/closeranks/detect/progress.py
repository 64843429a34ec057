"""Progress detector: who makes no progress while others wait, learned from the run itself.

It looks at readings of the vitals pages, one per process. How long the training thread may be silent depends on
what it is doing; the gaps between its moves are learned per phase. A silent process is only *suspected*: the caller
then asks its control thread for an answer and looks whether it uses processor time or input and output, and
``confirm`` tells stuck from slow. A process state letter never speaks against a process: it does not tell a stopped
one from one whose thread holds the interpreter, and both have to be acted on. ``roll_call.py`` finds those two in any
phase, also where a deadline is long or there is none.

Who waits in a collective that others have not entered is a victim and never suspected. The culprit is outside of
the collective, or behind by number. When all wait in the same one, all are asked: whoever does not answer is it;
when all answer, nobody can be named. Of a recovery, ``recovering.py`` knows who works and who waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from closeranks.detect import recovering
from closeranks.events import DeadlineChanged
from closeranks.operations import CODES, name_of
from closeranks.signs import SAME_CLOCK, Doing, Reading

_WIDER = 10.0
_TOLD_CHANGE = 0.25  # a learned deadline that moved by less is not told
_RELEARN_GAPS = 16
_SETTLED_STEP = 1  # the first two steps of a process build caches and buckets: they tell nothing, and may take long

_IN_STEPS = frozenset({Doing.BETWEEN, Doing.FORWARD, Doing.BACKWARD, Doing.APPLYING})
_LEARNED = _IN_STEPS | {Doing.SECTION}
# A process that waits for the supervisor is judged by the controller's deadlines; one that leaves is free.
_JUDGED = _LEARNED | {Doing.STARTING}
_POINT_TO_POINT = frozenset({CODES["send"], CODES["recv"], CODES["recv_anysource"]})  # differ by design


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of what is learned. None of them has to be set."""

    floor_s: float = 2.0  # no deadline is shorter
    ceiling_s: float = 900.0  # none is longer, and a busy process is not waited for beyond it
    unlearned_s: float = 600.0  # start-up, and labelled sections until a handful of gaps was seen
    first_s: float = 60.0  # the first steps without a rehearsal; whoever answers and works is given longer
    early_floor_s: float = 5.0  # no deadline from a rehearsal or a handful of gaps is shorter
    early_factor: float = 30.0  # times the last rehearsal step, or the longest of a handful of gaps
    early_gaps: int = 3
    factor: float = 10.0  # times the 95th percentile of the gaps: a tenfold slower step now and then is normal
    # Who has not moved for so long is asked, whatever it does; with two looks a second apart it is told within 6 s.
    unanswered_s: float = 4.0
    window_gaps: int = 256
    least_gaps: int = 20

    @property
    def patience_s(self) -> float:
        """For a move, until anybody is asked; for an answer, until it is asked again."""
        return max(self.floor_s, min(self.unanswered_s, self.ceiling_s))


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """Ask this process for an answer within 0.3 s, look whether it is busy, and call ``confirm``."""

    proc: int
    silent_s: float
    allowed_s: float


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody moves. ``suspects`` are processes in another collective than most, or that left; may be empty."""

    detail: str
    suspects: tuple[int, ...]
    silent_s: float
    allowed_s: float


Finding = Suspect | Standstill | DeadlineChanged


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing speaks against it that all called the same collective."""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Processes called different collectives where they should have met in one; ``suspects`` as in Standstill."""

    detail: str
    suspects: tuple[int, ...]


class Verdict(StrEnum):
    """What a suspicion came to."""

    STUCK = "stuck"  # no answer: act
    BLOCKED = "blocked"  # answers, idle, others wait for it: act
    SLOW = "slow"  # answers and works: its deadline was widened
    WAITING = "waiting"  # answers, and waits for others as they wait for it
    MOVED = "moved"  # it went on meanwhile, or was never suspected


class _Doubt(StrEnum):
    NONE = "none"
    ALONE = "alone"
    WITH_ALL = "with all"  # every member waits in the same collective
    SETTLED = "settled"  # confirmed


class Thought(msgspec.Struct, frozen=True, kw_only=True):
    """What is thought of one process until it moves; nothing, of nearly all of them."""

    doubt: _Doubt = _Doubt.NONE
    asked_ns: int = 0
    answered: bool = False
    widened_s: float = 0.0  # replaces the learned deadline until the next move, if longer


_NOTHING = Thought()


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned of one phase, over all processes."""

    gaps_s: tuple[float, ...] = ()
    fresh: int = 0  # gaps since the deadline was last computed
    allowed_s: float = 0.0  # 0: not yet learned


Phase = tuple[Doing, int]  # and the label of a section


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """The detector's memory."""

    bounds: Bounds = Bounds()
    readings: Mapping[int, Reading] = {}  # the newest, by process
    thoughts: Mapping[int, Thought] = {}
    learned: Mapping[Phase, Gaps] = {}
    recovered_s: recovering.Taken = {}
    told_standstill: bool = False


class _Look(NamedTuple):
    """Members of one term, and the time by which they are judged."""

    members: Mapping[int, Reading]
    now_ns: int
    behind_ns: Mapping[int, int]

    def silent_s(self, proc: int) -> float:
        return max(0, self.now_ns - self.members[proc].moved_ns - self.behind_ns.get(proc, 0)) / 1e9


def observe(
    watch: Watch, readings: Mapping[int, Reading], now_ns: int, behind_ns: Mapping[int, int] = SAME_CLOCK
) -> tuple[Watch, tuple[Finding, ...]]:
    """Look at all members that live; call it every 50 ms or so. ``readings`` must not change afterwards.

    ``behind_ns``: by process, what its clock is behind that of ``now_ns``, and always was; 0 if it is not named.
    A process that is not in ``readings`` any more is forgotten. A suspicion is told once for each silence, and again
    while nothing comes of it: the question or its answer may have been lost with a connection.
    """
    learned, moved = _learn(watch, readings)
    learned, changes = _relearn(watch.bounds, learned)
    told = watch.told_standstill and not moved
    thoughts = _kept(watch, readings) if watch.thoughts else {}
    before_s, taken_s = watch.recovered_s, _learn_recoveries(watch, readings)
    watch = replace(
        watch, learned=learned, readings=readings, thoughts=thoughts, recovered_s=taken_s, told_standstill=told
    )
    findings: list[Finding] = [*changes, *recovering.changes(watch.bounds, before_s, taken_s)]
    everybody = _Look(readings, now_ns, behind_ns)
    still = _still(watch.bounds, everybody)
    terms = {readings[proc].term for proc in still}
    for term in terms:
        look = _Look({proc: r for proc, r in readings.items() if r.term == term}, now_ns, behind_ns)
        watch, found = _judge(watch, look, [proc for proc in still if proc in look.members])
        findings += found
    watch, found = _judge_recovery(watch, everybody)
    return watch, (*findings, *found)


def confirm(watch: Watch, proc: int, *, answered: bool, busy: bool) -> tuple[Watch, Verdict, tuple[Finding, ...]]:
    """What the suspicion of this process came to, given its answer and whether it used processor or disk."""
    thought = watch.thoughts.get(proc, _NOTHING)
    if thought.doubt not in (_Doubt.ALONE, _Doubt.WITH_ALL):
        return watch, Verdict.MOVED, ()
    if not answered:
        return _with(watch, {proc: replace(thought, doubt=_Doubt.SETTLED)}), Verdict.STUCK, ()
    allowed_s = allowed(watch, proc)
    if busy and allowed_s < watch.bounds.ceiling_s:
        widened_s = min(_WIDER * allowed_s, watch.bounds.ceiling_s)
        watch = _with(watch, {proc: replace(thought, doubt=_Doubt.NONE, widened_s=widened_s)})
        reason = f"process {proc} answers and works; until its next move it may be silent for longer"
        change = DeadlineChanged(phase=_phase_name(_phase(watch.readings[proc])), allowed_s=widened_s, reason=reason)
        return watch, Verdict.SLOW, (change,)
    if thought.doubt is _Doubt.WITH_ALL:
        return _with(watch, {proc: replace(thought, answered=True)}), Verdict.WAITING, ()
    return _with(watch, {proc: replace(thought, doubt=_Doubt.SETTLED)}), Verdict.BLOCKED, ()


def awaits_witnesses(readings: Mapping[int, Reading], dead: int) -> bool:
    """Whether members have yet to come to the collective in which this process aborted, and can tell more then."""
    last = readings.get(dead)
    if last is None or not _in_collective(last):
        return False
    return any(r.term == last.term and r.entered < last.entered for r in readings.values())


def autopsy(readings: Mapping[int, Reading], dead: int) -> Agreement | Mismatch:
    """Whether the process aborted in a collective that others called differently.

    ``readings`` are the last ones of all members, the dead process included. Gloo aborts the process that *receives*
    more than it asked for, so the one that died is as likely the victim as the culprit.
    """
    last = readings.get(dead)
    if last is None or not _in_collective(last):
        return Agreement()
    # The others' collective has failed by now, so they may have returned from it; who went on says nothing.
    met = {proc: r for proc, r in readings.items() if (r.term, r.entered) == (last.term, last.entered)}
    if any(r.operation in _POINT_TO_POINT for r in met.values()):
        return Agreement()
    return _compare(met)


def allowed(watch: Watch, proc: int) -> float:
    """How long this process may be silent in what it is doing, in seconds."""
    return _Deadlines(watch).of(proc)


class _Deadlines:
    """What ``allowed`` answers, worked out once for all processes in the same phase: there may be thousands."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._closed: dict[int, int] = {}  # by term: the newest step that a process closed
        for reading in watch.readings.values():
            self._closed[reading.term] = max(self._closed.get(reading.term, -1), reading.closed_step)
        self._known: dict[tuple[Phase, int, int], float] = {}

    @cached_property
    def _members(self) -> recovering.Members:
        """Of a recovery; most of the time there is none."""
        return recovering.Members(self._watch.readings)

    def of(self, proc: int) -> float:
        """Of this process."""
        reading, widened_s = self._watch.readings[proc], self._watch.thoughts.get(proc, _NOTHING).widened_s
        if reading.doing in recovering.STANDS:
            waited_for, taken_s = self._members.waited_for(proc), self._watch.recovered_s
            own_s = recovering.allowed_s(self._watch.bounds, reading.doing, taken_s, waited_for=waited_for)
            return max(own_s, widened_s)
        alike = (_phase(reading), reading.term, reading.rehearsed_ns)
        allowed_s = self._known.get(alike)
        if allowed_s is None:
            allowed_s = _learned_s(self._watch, reading, self._closed[reading.term]) or _early_s(self._watch, reading)
            self._known[alike] = allowed_s
        return max(allowed_s, widened_s)


def _early_s(watch: Watch, reading: Reading) -> float:
    """The deadline while too little was seen to learn one."""
    bounds = watch.bounds
    if reading.doing is Doing.SECTION:
        gaps_s: Sequence[float] = watch.learned.get(_phase(reading), Gaps()).gaps_s
        if len(gaps_s) < bounds.early_gaps:
            return bounds.unlearned_s
        longest_s = max(gaps_s)
    elif reading.doing in _IN_STEPS:
        gaps_s = [gap_s for (doing, _), g in watch.learned.items() if doing in _IN_STEPS for gap_s in g.gaps_s]
        longest_s = max(gaps_s) if len(gaps_s) >= bounds.early_gaps else reading.rehearsed_ns / 1e9
    else:
        return bounds.unlearned_s
    if longest_s == 0:
        return min(bounds.first_s, bounds.unlearned_s)
    return min(max(bounds.early_factor * longest_s, bounds.early_floor_s), bounds.unlearned_s)


def _learned_s(watch: Watch, reading: Reading, closed_step: int) -> float:
    """The learned deadline; 0 when there is none yet. ``closed_step``: the newest of the term."""
    gaps = watch.learned.get(_phase(reading), Gaps())
    if reading.doing not in _IN_STEPS:
        return gaps.allowed_s
    # A newcomer has closed nothing yet, but it has rehearsed: only a whole group is new to stepping.
    if closed_step < _SETTLED_STEP:
        return 0.0
    # A short phase is seldom the one that is looked at, and may never be learned: the longest of a step bounds it.
    of_steps = (g.allowed_s for (doing, _), g in watch.learned.items() if doing in _IN_STEPS)
    return gaps.allowed_s or max(of_steps, default=0.0)


# --- learning ---------------------------------------------------------------------------------------------------


def _learn(watch: Watch, readings: Mapping[int, Reading]) -> tuple[Mapping[Phase, Gaps], bool]:
    """What the gaps between moves tell, and whether there was a move at all."""
    gaps_s: dict[Phase, list[float]] = {}  # that are new
    wanted = watch.bounds.window_gaps * len(_LEARNED)  # of thousands that move at once no more would be kept
    moved = len(readings) != len(watch.readings)
    for proc, reading in readings.items():
        before = watch.readings.get(proc)
        if before is reading:
            continue
        if before is None:
            moved = True
        elif before.moved_ns != reading.moved_ns:  # numbers of collectives are written without a move
            moved = True
            if wanted <= 0:
                break
            if _tells(before, reading):
                gaps_s.setdefault(_phase(before), []).append((reading.moved_ns - before.moved_ns) / 1e9)
                wanted -= 1
            if _missed_section(before, reading):
                gaps_s.setdefault((Doing.SECTION, reading.ended_hash), []).append(reading.ended_ns / 1e9)
                wanted -= 1
    return _with_gaps(watch, gaps_s), moved


def _learn_recoveries(watch: Watch, readings: Mapping[int, Reading]) -> recovering.Taken:
    """How long own work in a recovery took those that have gone on from it."""
    taken_s = watch.recovered_s
    for proc, before in watch.readings.items():
        if before.doing not in recovering.WORKS:
            continue
        reading = readings.get(proc, before)
        if reading.moved_ns != before.moved_ns:
            taken_s = recovering.learned(taken_s, before, reading)
    return taken_s


def _missed_section(before: Reading, after: Reading) -> bool:
    """Whether a whole section lay between two looks; of several, the last one tells."""
    ended = after.sections_ended > before.sections_ended and before.doing is not Doing.SECTION
    return ended and after.term == before.term


def _kept(watch: Watch, readings: Mapping[int, Reading]) -> dict[int, Thought]:
    """What is still thought of those that have not moved."""
    return {
        proc: thought
        for proc, thought in watch.thoughts.items()
        if proc in readings and readings[proc].moved_ns == watch.readings[proc].moved_ns
    }


def _with_gaps(watch: Watch, news_s: Mapping[Phase, list[float]]) -> Mapping[Phase, Gaps]:
    learned = dict(watch.learned)
    for phase, new_s in news_s.items():
        gaps = learned.get(phase, Gaps())
        kept = (*gaps.gaps_s, *new_s)[-watch.bounds.window_gaps :]
        learned[phase] = replace(gaps, gaps_s=kept, fresh=gaps.fresh + len(new_s))
    return learned


def _tells(before: Reading, after: Reading) -> bool:
    """Whether the silence between the two belongs to the phase of the first: no recovery came between."""
    settled = before.doing is Doing.SECTION or before.closed_step >= _SETTLED_STEP
    return before.doing in _LEARNED and settled and after.doing in _JUDGED and after.term == before.term


def _relearn(bounds: Bounds, learned: Mapping[Phase, Gaps]) -> tuple[Mapping[Phase, Gaps], list[DeadlineChanged]]:
    news: dict[Phase, Gaps] = {}
    changes: list[DeadlineChanged] = []
    for phase, gaps in learned.items():
        first = gaps.allowed_s == 0 and len(gaps.gaps_s) >= bounds.least_gaps
        if not first and (gaps.allowed_s == 0 or gaps.fresh < _RELEARN_GAPS):
            continue
        high_s = sorted(gaps.gaps_s)[int(0.95 * (len(gaps.gaps_s) - 1))]
        allowed_s = min(max(bounds.factor * high_s, bounds.floor_s), bounds.ceiling_s)
        told = first or abs(allowed_s - gaps.allowed_s) > _TOLD_CHANGE * gaps.allowed_s
        # A deadline that moved little stays, so that small moves cannot add up untold.
        news[phase] = replace(gaps, fresh=0, allowed_s=allowed_s if told else gaps.allowed_s)
        if told:
            reason = f"95 % of {len(gaps.gaps_s)} gaps between moves were below {high_s:.3f} s"
            changes.append(DeadlineChanged(phase=_phase_name(phase), allowed_s=allowed_s, reason=reason))
    return {**learned, **news}, changes


def _phase(reading: Reading) -> Phase:
    return reading.doing, reading.section_hash if reading.doing is Doing.SECTION else 0


def _phase_name(phase: Phase) -> str:
    doing, label = phase
    name = doing.name.lower()
    return f"{name} {label & 0xFFFFFFFFFFFFFFFF:016x}" if doing is Doing.SECTION else name


# --- judging ----------------------------------------------------------------------------------------------------


def _judge(watch: Watch, look: _Look, still: Sequence[int]) -> tuple[Watch, list[Finding]]:
    """Members of one term: the overdue ones are culprits, victims, or all in the same collective."""
    deadlines = _Deadlines(watch)
    late = {proc for proc in still if look.silent_s(proc) > deadlines.of(proc)}
    if not late:
        return watch, []
    members = look.members
    outside = {proc for proc, r in members.items() if not _in_collective(r)}
    if outside:
        gone = {proc for proc in outside if members[proc].doing is Doing.LEAVING}
        if gone == outside:
            return _stand_still(watch, look, "others have left their loop", tuple(sorted(gone)))
        return _suspect(watch, look, late & outside, _Doubt.ALONE)
    numbers = [r.entered for r in members.values()]
    least = min(numbers)
    if least < max(numbers):
        behind = {proc for proc, r in members.items() if r.entered == least}
        return _suspect(watch, look, late & behind, _Doubt.ALONE)
    if late != set(members):
        return watch, []
    return _judge_all_in_one(watch, look)


def _still(bounds: Bounds, look: _Look) -> list[int]:
    """Who might be overdue: silent for longer than the shortest deadline that there can be."""
    least_s = min(bounds.floor_s, bounds.first_s, bounds.early_floor_s, bounds.unlearned_s, bounds.ceiling_s)
    since_ns = look.now_ns - int(least_s * 1e9)
    behind_ns = look.behind_ns.get
    return [
        proc for proc, r in look.members.items() if r.moved_ns + behind_ns(proc, 0) < since_ns and r.doing in _JUDGED
    ]


def _judge_recovery(watch: Watch, look: _Look) -> tuple[Watch, list[Finding]]:
    """Members of any term, for who stands still has not come to the term in which the others wait for it."""
    if not any(reading.doing in recovering.STANDS for reading in look.members.values()):
        return watch, []
    behind_ns = look.behind_ns.get
    # In one clock, since it is asked who was the last.
    alike = {p: r._replace(moved_ns=r.moved_ns + behind_ns(p, 0)) for p, r in look.members.items()}
    members = recovering.Members(alike)
    since_ns = {proc: at_ns for proc in members.standing if (at_ns := members.since_ns(proc)) is not None}
    if not since_ns:
        return watch, []
    deadlines = _Deadlines(watch)
    late = {proc for proc, at_ns in since_ns.items() if (look.now_ns - at_ns) / 1e9 > deadlines.of(proc)}
    return _suspect(watch, look, late, _Doubt.ALONE)


def _judge_all_in_one(watch: Watch, look: _Look) -> tuple[Watch, list[Finding]]:
    members = look.members
    if isinstance(found := _compare(members), Mismatch):
        return _stand_still(watch, look, found.detail, found.suspects)
    number = next(iter(members.values())).entered
    if all(watch.thoughts.get(proc, _NOTHING).answered for proc in members):
        detail = f"all {len(members)} processes answer and wait in the same collective, number {number}"
        return _stand_still(watch, look, detail, ())
    return _suspect(watch, look, set(members), _Doubt.WITH_ALL)


def _compare(members: Mapping[int, Reading]) -> Agreement | Mismatch:
    """Members that stand at the same number should have called the same collective."""
    kinds = Counter((r.operation, r.operation_bytes) for r in members.values())
    if len(kinds) == 1:
        return Agreement()
    (usual, votes), *_ = kinds.most_common()
    odd = [proc for proc, r in sorted(members.items()) if (r.operation, r.operation_bytes) != usual]
    number = next(iter(members.values())).entered
    what = ", ".join(f"p{proc}: {name_of(r.operation)} of {r.operation_bytes} bytes" for proc, r in members.items())
    named = tuple(odd) if 2 * votes > len(members) else ()
    return Mismatch(detail=f"collective {number} differs ({what})", suspects=named)


def _suspect(watch: Watch, look: _Look, procs: set[int], doubt: _Doubt) -> tuple[Watch, list[Finding]]:
    found: list[Finding] = []
    doubted: dict[int, Thought] = {}
    deadlines = _Deadlines(watch)
    lost_ns = look.now_ns - round(watch.bounds.patience_s * 1e9)
    for proc in sorted(procs):
        thought = watch.thoughts.get(proc, _NOTHING)
        if _is_to_be_asked(thought, doubt, lost_ns):
            found.append(Suspect(proc=proc, silent_s=look.silent_s(proc), allowed_s=deadlines.of(proc)))
            doubted[proc] = replace(thought, doubt=doubt, asked_ns=look.now_ns, answered=False)
    return _with(watch, doubted), found


def _is_to_be_asked(thought: Thought, doubt: _Doubt, lost_ns: int) -> bool:
    """``lost_ns``: a question of before then that has no answer was lost."""
    match thought.doubt:
        case _Doubt.NONE:
            return True
        case _Doubt.WITH_ALL if doubt is _Doubt.ALONE:  # the one that others wait for, it turns out
            return True
        case _Doubt.ALONE | _Doubt.WITH_ALL:
            return not thought.answered and thought.asked_ns <= lost_ns
        case _Doubt.SETTLED:
            return False


def _stand_still(watch: Watch, look: _Look, detail: str, suspects: tuple[int, ...]) -> tuple[Watch, list[Finding]]:
    if watch.told_standstill:
        return watch, []
    waiting = [proc for proc in look.members if proc not in suspects] or list(look.members)
    silent_s = max(look.silent_s(proc) for proc in waiting)
    deadlines = _Deadlines(watch)
    allowed_s = min(deadlines.of(proc) for proc in waiting)
    finding = Standstill(detail=detail, suspects=suspects, silent_s=silent_s, allowed_s=allowed_s)
    return replace(watch, told_standstill=True), [finding]


def _in_collective(reading: Reading) -> bool:
    return reading.doing in _JUDGED and reading.entered > reading.returned


def _with(watch: Watch, thoughts: Mapping[int, Thought]) -> Watch:
    return replace(watch, thoughts={**watch.thoughts, **thoughts})
