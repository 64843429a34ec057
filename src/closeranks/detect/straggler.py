"""Stragglers: which processes keep the others waiting, judged by the time that each spends on its own.

In a synchronous job all steps take equally long, for the fast ones wait for the slowest: only own time, from the
moment a process has what it needs until it launches its last collective, tells them apart. Within a step each
process is set against the median of all, so that what is slow for everybody (a long batch) tells nothing. A window is
a number of steps, as many as the noise asks for; a process is slow in it if it is beyond the others both by robust z
and by a share of their time, and it is named when that holds in three of five windows.

Whoever shows nothing is left out, of a step or of a window, and never changes what is said of the others.

Source: own simulation: at 2 to 5 % jitter z > 3.5 alone names somebody in 1.5 to 26 % of windows, together with a
relative bound in none.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from closeranks.detect.robust_levels import TRIMMED, Others, leave_one_out, spread_around, trimmed_mean
from closeranks.signs import Spent

_TRIMMED_NOISE = 1.06  # standard error of the trimmed mean of normal values, over that of their mean
_SCALE_OF_DIFFERENCES = 1.4826 / math.sqrt(2)
_LEAST_S, _LONGEST_S = 1e-9, 1e9  # what is no time of a step was not measured
_LEAST_PROCESSES = 2
_SAMPLE = 512  # of thousands of processes, so many tell what is usual, and only who stands out is looked at besides


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a process is a straggler."""

    z: float = 3.5
    slower: float = 0.10  # than the others: 0.1 for a tenth more time
    windows: int = 5
    needed: int = 3  # of the windows
    grown: float = 0.25  # share of a step by which what is spent in collectives has to grow
    least_steps: int = 5  # in a window
    most_steps: int = 40
    noise: float = 0.033  # a window goes on until the standard error of what it compares is below this share


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What processes show of one closed step; each mapping may lack any of them."""

    own_s: Mapping[int, float]
    spent: Mapping[int, Spent] = {}  # in named operations, by as many steps as each has told of
    period_s: float = 0.0  # since the step before was closed; 0: unknown


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What one step showed, without its length: that is the same for all."""

    shares: Mapping[int, float]  # own times, of their median; none where there is nothing to compare
    middle_s: float  # that median; 0: nobody showed anything
    apart_s: float | None  # see Window; None: unknown


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What a closed window came to."""

    steps: int
    own_s: Mapping[int, float]  # own time of each process in a step of usual length
    slow: Mapping[int, float]  # how much slower than the others, of those that are slow
    z: Mapping[int, float]  # of the same
    before: Mapping[int, Spent]  # what was known to be spent when it began
    after: Mapping[int, Spent]  # and when it closed
    spread: float  # of the processes' levels
    apart_s: float  # what a step takes beyond the longest own time; 0: unknown

    def sections_s(self) -> dict[int, dict[str, float]]:
        """A step's seconds in each section; worked out when somebody is slow, and not for thousands who are not."""
        return _per_step(self.before, self.after)


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """These processes keep the others waiting. Told anew whenever their set changes."""

    slower: Mapping[int, float]  # by process: how much slower than the others, 0.15 for 15 %
    z: float  # least of the windows in which they were slow
    windows: tuple[Window, ...]  # the newest, oldest first


class Eased(msgspec.Struct, frozen=True, kw_only=True):
    """These processes were named and keep nobody waiting any more."""

    procs: tuple[int, ...]


class Slack(msgspec.Struct, frozen=True, kw_only=True):
    """Steps take longer than they did, and nobody's own time explains it: it is spent in the collectives."""

    apart_s: float
    usual_s: float


Finding = Slow | Eased | Slack


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """The detector's memory."""

    rule: Rule = Rule()
    open: tuple[Shown, ...] = ()  # steps of the window that is not closed yet
    before: Mapping[int, Spent] = {}  # at its beginning
    windows: tuple[Window, ...] = ()
    noises: tuple[float, ...] = ()  # of single steps, by window
    usual_s: tuple[float, ...] = ()  # apart_s of the first windows
    named: frozenset[int] = frozenset()
    slack_told: bool = False


def observe(watch: Watch, step: Step) -> tuple[Watch, tuple[Finding, ...]]:
    """Take one closed step of all processes."""
    steps = (*watch.open, _shown(step))
    watch = replace(watch, open=steps)
    rule = watch.rule
    if len(steps) < rule.least_steps:
        return watch, ()
    procs = list(dict.fromkeys(itertools.chain.from_iterable(one.shares for one in steps)))
    sample = _levels(steps, procs[:: math.ceil(len(procs) / _SAMPLE) or 1])
    noise = statistics.median((*watch.noises[-rule.windows :], _noise(sample)))
    if _standard_error(noise, len(steps), len(sample)) > rule.noise and len(steps) < rule.most_steps:
        return watch, ()
    more = _levels(steps, (watch.named | _suspicious(steps, rule)) - sample.keys()) if len(procs) > _SAMPLE else {}
    return _close(watch, _looked_at(sample, more, noise), step.spent)


def disturbed(watch: Watch) -> Watch:
    """A recovery or a new membership: the window that is open tells nothing, those before it stand.

    What collectives usually take is learned anew, for it depends on who takes part.
    """
    return replace(watch, open=(), before={}, usual_s=(), slack_told=False)


# --- one window ---------------------------------------------------------------------------------------------------


def _shown(step: Step) -> Shown:
    own_s = {proc: s for proc, s in step.own_s.items() if _LEAST_S <= s <= _LONGEST_S}
    middle_s = statistics.median(own_s.values()) if own_s else 0.0
    return Shown(
        shares={proc: s / middle_s for proc, s in own_s.items()} if len(own_s) >= _LEAST_PROCESSES else {},
        middle_s=middle_s,
        apart_s=max(0.0, step.period_s - max(own_s.values())) if own_s and step.period_s > 0 else None,
    )


class _Levels(NamedTuple):
    """Of the processes that are looked at in a window."""

    means: Mapping[int, float]
    others: Mapping[int, Others]
    noise: float


def _levels(steps: Sequence[Shown], procs: Iterable[int]) -> dict[int, list[float]]:
    """The shares of these processes, of those that showed them in most steps."""
    shares = [step.shares for step in steps]
    found = {proc: [one[proc] for one in shares if proc in one] for proc in procs}
    return {proc: levels for proc, levels in found.items() if 2 * len(levels) > len(steps)}


def _looked_at(sample: Mapping[int, Sequence[float]], more: Mapping[int, Sequence[float]], noise: float) -> _Levels:
    means = {proc: trimmed_mean(one) for proc, one in sample.items()}
    others = leave_one_out(means) if len(means) >= _LEAST_PROCESSES else {}
    usual = next(iter(others.values()), None)
    if usual is not None:
        means |= {proc: trimmed_mean(one) for proc, one in more.items()}
        others |= dict.fromkeys(more, usual)
    return _Levels(means, others, noise)


def _suspicious(steps: Sequence[Shown], rule: Rule) -> set[int]:
    """Whoever may turn out to be slow: a trimmed mean is not high unless more is than what it leaves out."""
    high = 1 + rule.slower / 2  # the middle of the levels is 1, but for noise
    times = Counter(proc for step in steps for proc, share in step.shares.items() if share > high)
    return {proc for proc, count in times.items() if count > TRIMMED * len(steps)}


def _noise(levels: Mapping[int, Sequence[float]]) -> float:
    """Standard deviation of a process's level from step to step, from neighbours: a drift is no noise."""
    moves = [abs(b - a) for one in levels.values() for a, b in itertools.pairwise(one)]
    return _SCALE_OF_DIFFERENCES * statistics.median(moves) if moves else math.inf


def _standard_error(noise: float, steps: int, processes: int) -> float:
    """Of a process's level set against the others', of which it is a part by its share of the median."""
    if processes < _LEAST_PROCESSES or noise == math.inf:
        return 0.0  # nothing to compare: longer windows would not help
    return _TRIMMED_NOISE * noise / math.sqrt(steps) * (1 + 1 / (processes - 1))


def _close(watch: Watch, levels: _Levels, spent: Mapping[int, Spent]) -> tuple[Watch, tuple[Finding, ...]]:
    steps, rule = watch.open, watch.rule
    means, others, noise = levels
    error = _standard_error(noise, len(steps), len(means))
    spreads = [w.spread for w in watch.windows[-rule.windows + 1 :]]
    # The spread of this window alone is that of few values: those before it steady it.
    scale_of = {s: max(statistics.median((*spreads, s)), error) for s in {o.spread for o in others.values()}}
    slow: dict[int, float] = {}
    z: dict[int, float] = {}
    for proc, rest in others.items():
        excess, scale = means[proc] - rest.middle, scale_of[rest.spread]
        if excess > rule.slower * rest.middle and excess > rule.z * scale:
            slow[proc], z[proc] = excess / rest.middle, excess / scale if scale else math.inf
    at_once = watch.before is spent  # several windows may end with what was told at once
    length_s = trimmed_mean([one.middle_s for one in steps if one.middle_s > 0] or [0.0])
    window = Window(
        steps=len(steps),
        own_s={proc: mean * length_s for proc, mean in means.items()},
        slow=slow,
        z=z,
        before=watch.windows[-1].before if at_once else watch.before,
        after=spent,
        spread=_calmest(others),
        apart_s=_apart_s(steps),
    )
    watch = replace(
        watch,
        open=(),
        before=spent,
        windows=(*watch.windows, window)[-rule.windows :],
        noises=(*watch.noises, noise)[-rule.windows :] if noise != math.inf else watch.noises,
    )
    watch, named = _name(watch)
    watch, slack = _look_for_slack(watch, window)
    return watch, (*named, *slack)


def _calmest(others: Mapping[int, Others]) -> float:
    """The least of the spreads: of three processes, two see in theirs the third, which may be the slow one."""
    return min((o.spread for o in others.values()), default=0.0)


def _per_step(before: Mapping[int, Spent], after: Mapping[int, Spent]) -> dict[int, dict[str, float]]:
    """Of each process over the steps that it told of itself, which need not be those of the window.

    Whoever told of no further step is left out, or of nothing before. Totals only grow; one that shrank tells nothing.
    """
    pairs = {proc: (before[proc], spent) for proc, spent in after.items() if proc in before}
    return {proc: _between(*pair) for proc, pair in pairs.items() if 0 < pair[0].steps < pair[1].steps}


def _between(before: Spent, after: Spent) -> dict[str, float]:
    more_s = {name: s - before.by_operation_s.get(name, 0.0) for name, s in after.by_operation_s.items()}
    return {name: s / (after.steps - before.steps) for name, s in more_s.items() if s >= 0}


def _apart_s(steps: Sequence[Shown]) -> float:
    gaps_s = [one.apart_s for one in steps if one.apart_s is not None]
    return trimmed_mean(gaps_s) if 2 * len(gaps_s) > len(steps) else 0.0


# --- over windows -------------------------------------------------------------------------------------------------


def _name(watch: Watch) -> tuple[Watch, tuple[Finding, ...]]:
    rule, windows = watch.rule, watch.windows
    slower: dict[int, list[float]] = {}
    for window in windows:
        for proc, excess in window.slow.items():
            slower.setdefault(proc, []).append(excess)
    often = {proc for proc, excesses in slower.items() if len(excesses) >= rule.needed}
    if not (often or watch.named):
        return watch, ()
    seen = {proc for window in windows for proc in window.own_s}
    eased = {proc for proc in watch.named if proc not in slower and proc in seen}
    named = (watch.named & seen | often) - eased  # who is seen no more is nobody's affair any more
    findings: list[Finding] = []
    if eased:
        findings.append(Eased(procs=tuple(sorted(eased))))
    if often - watch.named:
        those = {proc: statistics.median(slower[proc]) for proc in sorted(named) if proc in slower}
        z = min(window.z[proc] for window in windows for proc in those if proc in window.z)
        findings.append(Slow(slower=those, z=z, windows=windows))
    return replace(watch, named=named), tuple(findings)


def _look_for_slack(watch: Watch, window: Window) -> tuple[Watch, tuple[Finding, ...]]:
    """Whether the time outside of everybody's own has grown by a share of the step, and beyond its own noise."""
    rule = watch.rule
    if window.apart_s == 0.0:
        return watch, ()
    if len(watch.usual_s) < rule.windows:
        return replace(watch, usual_s=(*watch.usual_s, window.apart_s)), ()
    usual_s = statistics.median(watch.usual_s)
    noise_s = rule.z * spread_around(watch.usual_s, usual_s)
    longer = [w for w in watch.windows if w.own_s and w.apart_s - usual_s > max(noise_s, _grown_s(w, usual_s, rule))]
    told = len(longer) >= rule.needed
    if told and not watch.slack_told:
        apart_s = statistics.median(w.apart_s for w in longer)
        return replace(watch, slack_told=True), (Slack(apart_s=apart_s, usual_s=usual_s),)
    return replace(watch, slack_told=watch.slack_told and bool(longer)), ()


def _grown_s(window: Window, usual_s: float, rule: Rule) -> float:
    return rule.grown * (usual_s + max(window.own_s.values()))
