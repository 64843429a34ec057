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

import msgspec
from msgspec.structs import replace

from closeranks.detect import recovering
from closeranks.events import DeadlineChanged
from closeranks.operations import CODES, name_of
from closeranks.signs import Doing, Reading

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


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """One process since its last move."""

    reading: Reading
    doubt: _Doubt = _Doubt.NONE
    answered: bool = False
    widened_s: float = 0.0  # replaces the learned deadline until the next move, if longer


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned of one phase, over all processes."""

    gaps_s: tuple[float, ...] = ()
    fresh: int = 0  # gaps since the deadline was last computed
    allowed_s: float = 0.0  # 0: not yet learned


Phase = tuple[Doing, int]  # and the label of a section


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """The detector's memory."""

    bounds: Bounds = Bounds()
    tracks: Mapping[int, Track] = {}
    learned: Mapping[Phase, Gaps] = {}
    recovered_s: recovering.Taken = {}
    told_standstill: bool = False


def observe(watch: Watch, readings: Mapping[int, Reading], now_ns: int) -> tuple[Watch, tuple[Finding, ...]]:
    """Look at all members that live; call it every 50 ms or so.

    A process that is not in ``readings`` any more is forgotten. A suspicion is told once for each silence.
    """
    before_s = watch.recovered_s
    watch = _follow(watch, readings)
    learned, changes = _relearn(watch.bounds, watch.learned)
    watch = replace(watch, learned=learned)
    findings: list[Finding] = [*changes, *recovering.changes(watch.bounds, before_s, watch.recovered_s)]
    terms = {r.term for r in readings.values()}
    for term in terms:
        members = readings if len(terms) == 1 else {proc: r for proc, r in readings.items() if r.term == term}
        watch, found = _judge(watch, members, now_ns)
        findings += found
    watch, found = _judge_recovery(watch, readings, now_ns)
    return watch, (*findings, *found)


def confirm(watch: Watch, proc: int, *, answered: bool, busy: bool) -> tuple[Watch, Verdict, tuple[Finding, ...]]:
    """What the suspicion of this process came to, given its answer and whether it used processor or disk."""
    track = watch.tracks.get(proc)
    if track is None or track.doubt not in (_Doubt.ALONE, _Doubt.WITH_ALL):
        return watch, Verdict.MOVED, ()
    if not answered:
        return _with(watch, proc, replace(track, doubt=_Doubt.SETTLED)), Verdict.STUCK, ()
    allowed_s = allowed(watch, proc)
    if busy and allowed_s < watch.bounds.ceiling_s:
        widened_s = min(_WIDER * allowed_s, watch.bounds.ceiling_s)
        watch = _with(watch, proc, replace(track, doubt=_Doubt.NONE, widened_s=widened_s))
        reason = f"process {proc} answers and works; until its next move it may be silent for longer"
        change = DeadlineChanged(phase=_phase_name(_phase(track.reading)), allowed_s=widened_s, reason=reason)
        return watch, Verdict.SLOW, (change,)
    if track.doubt is _Doubt.WITH_ALL:
        return _with(watch, proc, replace(track, answered=True)), Verdict.WAITING, ()
    return _with(watch, proc, replace(track, doubt=_Doubt.SETTLED)), Verdict.BLOCKED, ()


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
        for track in watch.tracks.values():
            reading = track.reading
            self._closed[reading.term] = max(self._closed.get(reading.term, -1), reading.closed_step)
        self._known: dict[tuple[Phase, int, int], float] = {}
        self._members = recovering.Members({proc: track.reading for proc, track in watch.tracks.items()})

    def of(self, proc: int) -> float:
        """Of this process."""
        track = self._watch.tracks[proc]
        reading = track.reading
        if reading.doing in recovering.STANDS:
            waited_for, taken_s = self._members.waited_for(proc), self._watch.recovered_s
            own_s = recovering.allowed_s(self._watch.bounds, reading.doing, taken_s, waited_for=waited_for)
            return max(own_s, track.widened_s)
        alike = (_phase(reading), reading.term, reading.rehearsed_ns)
        allowed_s = self._known.get(alike)
        if allowed_s is None:
            allowed_s = _learned_s(self._watch, reading, self._closed[reading.term]) or _early_s(self._watch, reading)
            self._known[alike] = allowed_s
        return max(allowed_s, track.widened_s)


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


def _follow(watch: Watch, readings: Mapping[int, Reading]) -> Watch:
    tracks: dict[int, Track] = {}
    gaps_s: dict[Phase, list[float]] = {}  # that are new
    recovered_s = watch.recovered_s
    wanted = watch.bounds.window_gaps * len(_LEARNED)  # of thousands that move at once no more would be kept
    moved = len(readings) != len(watch.tracks)
    for proc, reading in readings.items():
        track = watch.tracks.get(proc)
        if track is not None and track.reading is reading:
            tracks[proc] = track
            continue
        if track is not None and track.reading.moved_ns == reading.moved_ns:
            # The rest of the page may still change: numbers of collectives are written without a move.
            tracks[proc] = replace(track, reading=reading)
            continue
        moved = True
        tracks[proc] = Track(reading=reading)
        if track is not None and track.reading.doing in recovering.WORKS:
            recovered_s = recovering.learned(recovered_s, track.reading, reading)
        if wanted and track is not None and _tells(track.reading, reading):
            wanted -= 1
            gap_s = (reading.moved_ns - track.reading.moved_ns) / 1e9
            gaps_s.setdefault(_phase(track.reading), []).append(gap_s)
        if wanted and track is not None and _missed_section(track.reading, reading):
            wanted -= 1
            gaps_s.setdefault((Doing.SECTION, reading.ended_hash), []).append(reading.ended_ns / 1e9)
    return replace(
        watch,
        tracks=tracks,
        learned=_with_gaps(watch, gaps_s),
        recovered_s=recovered_s,
        told_standstill=watch.told_standstill and not moved,
    )


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


def _missed_section(before: Reading, after: Reading) -> bool:
    """Whether a whole section lay between two looks; of several, the last one tells."""
    ended = after.sections_ended > before.sections_ended and before.doing is not Doing.SECTION
    return ended and after.term == before.term


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


def _judge(watch: Watch, members: Mapping[int, Reading], now_ns: int) -> tuple[Watch, list[Finding]]:
    """Members of one term: the overdue ones are culprits, victims, or all in the same collective."""
    still = _still(watch.bounds, members, now_ns)
    if not still:
        return watch, []
    deadlines = _Deadlines(watch)
    late = {proc for proc in still if _silent_s(members[proc], now_ns) > deadlines.of(proc)}
    if not late:
        return watch, []
    outside = {proc for proc, r in members.items() if not _in_collective(r)}
    if outside:
        gone = {proc for proc in outside if members[proc].doing is Doing.LEAVING}
        if gone == outside:
            return _stand_still(watch, members, now_ns, "others have left their loop", tuple(sorted(gone)))
        return _suspect(watch, members, now_ns, late & outside, _Doubt.ALONE)
    numbers = [r.entered for r in members.values()]
    if min(numbers) < max(numbers):
        behind = {proc for proc, r in members.items() if r.entered == min(numbers)}
        return _suspect(watch, members, now_ns, late & behind, _Doubt.ALONE)
    if late != set(members):
        return watch, []
    return _judge_all_in_one(watch, members, now_ns)


def _still(bounds: Bounds, members: Mapping[int, Reading], now_ns: int) -> list[int]:
    """Who might be overdue: silent for longer than the shortest deadline that there can be."""
    least_s = min(bounds.floor_s, bounds.first_s, bounds.early_floor_s, bounds.unlearned_s, bounds.ceiling_s)
    since_ns = now_ns - int(least_s * 1e9)
    return [proc for proc, r in members.items() if r.moved_ns < since_ns and r.doing in _JUDGED]


def _judge_recovery(watch: Watch, members: Mapping[int, Reading], now_ns: int) -> tuple[Watch, list[Finding]]:
    """Members of any term, for who stands still has not come to the term in which the others wait for it."""
    look = recovering.Members(members)
    since_ns = {proc: at_ns for proc in look.standing if (at_ns := look.since_ns(proc)) is not None}
    if not since_ns:
        return watch, []
    deadlines = _Deadlines(watch)
    late = {proc for proc, at_ns in since_ns.items() if (now_ns - at_ns) / 1e9 > deadlines.of(proc)}
    return _suspect(watch, members, now_ns, late, _Doubt.ALONE)


def _judge_all_in_one(watch: Watch, members: Mapping[int, Reading], now_ns: int) -> tuple[Watch, list[Finding]]:
    if isinstance(found := _compare(members), Mismatch):
        return _stand_still(watch, members, now_ns, found.detail, found.suspects)
    number = next(iter(members.values())).entered
    if all(watch.tracks[proc].answered for proc in members):
        detail = f"all {len(members)} processes answer and wait in the same collective, number {number}"
        return _stand_still(watch, members, now_ns, detail, ())
    return _suspect(watch, members, now_ns, set(members), _Doubt.WITH_ALL)


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


def _suspect(
    watch: Watch, members: Mapping[int, Reading], now_ns: int, procs: set[int], doubt: _Doubt
) -> tuple[Watch, list[Finding]]:
    found: list[Finding] = []
    doubted: dict[int, Track] = {}
    deadlines = _Deadlines(watch)
    for proc in sorted(procs):
        track = watch.tracks[proc]
        # Who was asked among all and turns out to be the one that others wait for is asked again.
        if track.doubt is _Doubt.NONE or (track.doubt is _Doubt.WITH_ALL and doubt is _Doubt.ALONE):
            silent_s = _silent_s(members[proc], now_ns)
            found.append(Suspect(proc=proc, silent_s=silent_s, allowed_s=deadlines.of(proc)))
            doubted[proc] = replace(track, doubt=doubt, answered=False)
    return replace(watch, tracks={**watch.tracks, **doubted}), found


def _stand_still(
    watch: Watch, members: Mapping[int, Reading], now_ns: int, detail: str, suspects: tuple[int, ...]
) -> tuple[Watch, list[Finding]]:
    if watch.told_standstill:
        return watch, []
    waiting = [proc for proc in members if proc not in suspects] or list(members)
    silent_s = max(_silent_s(members[proc], now_ns) for proc in waiting)
    deadlines = _Deadlines(watch)
    allowed_s = min(deadlines.of(proc) for proc in waiting)
    finding = Standstill(detail=detail, suspects=suspects, silent_s=silent_s, allowed_s=allowed_s)
    return replace(watch, told_standstill=True), [finding]


def _in_collective(reading: Reading) -> bool:
    return reading.doing in _JUDGED and reading.entered > reading.returned


def _silent_s(reading: Reading, now_ns: int) -> float:
    return max(0, now_ns - reading.moved_ns) / 1e9


def _with(watch: Watch, proc: int, track: Track) -> Watch:
    return replace(watch, tracks={**watch.tracks, proc: track})
