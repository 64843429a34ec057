"""Telemetry of a node, judged: errors by what they grew, trends by where they lead, and silence as a sign of its own.

A device that falls off its bus gives no warning in numbers: its numbers stop to come. So what was told before and is
not told any more is an error like others.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from closeranks.detect.accelerators import Device, delta, judge
from closeranks.detect.trend import Reaches, mann_kendall, towards
from closeranks.events import NodeUnwell, NodeWell

STALLED, AVAILABLE, FREE, OFFSET = "memory stalled", "memory available", "disk free", "clock offset"
SENT, AGAIN = "segments sent", "segments sent again"  # by TCP, so far

_COUNTED = " corrected"
_LASTING = (
    "clocks",
    "PCIe width",
    "PCIe generation",
    "driver",
    "missing",
    STALLED,
)  # no news until they have held for a while


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When something is worth telling."""

    persist: int = 3  # samples for which what may pass by itself has to hold
    calm_s: float = 3600.0  # without news until an error that happened is over
    stalled: float = 0.10  # share of time in which nothing can run for want of memory
    jump_s: float = 1.0  # of the clock, between two samples
    call_s: float = 2.0  # that a driver may take to answer for one device
    replays: int = 100  # of PCIe packets, between two samples
    sent_again: float = 0.05  # share of the segments; a network that is well loses one in thousands
    least_segments: int = 200  # between two samples, for a share that means something
    temperature_c: float = 87.0
    point_s: float = 60.0  # trends look at medians over so long
    points: int = 60  # of which so many are kept
    least_points: int = 30  # for what warms up or fills up when a job starts
    memory_horizon_s: float = 1800.0
    horizon_s: float = 3600.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the node. None: not told."""

    at_s: float
    host: Mapping[str, float | None] = {}
    devices: tuple[Device, ...] | None = None  # None: they cannot be looked at


class _Sign(msgspec.Struct, frozen=True, kw_only=True):
    detail: str
    drain: bool


class _Held(msgspec.Struct, frozen=True, kw_only=True):
    """A sign that was seen."""

    count: int  # samples in a row
    last_s: float
    told: bool


Series = tuple[tuple[float, float], ...]


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """The detector's memory."""

    bounds: Bounds = Bounds()
    before: Sample | None = None
    held: Mapping[str, _Held] = {}
    ever: frozenset[str] = frozenset()  # names that were told at least once
    fresh: Mapping[str, Series] = {}  # values since the last point of each trend
    points: Mapping[str, Series] = {}
    trends: Mapping[str, _Sign] = {}  # as of the newest points


def observe(watch: Watch, sample: Sample) -> tuple[Watch, tuple[NodeUnwell | NodeWell, ...]]:
    """Take one sample. What is told once is not told again until it is over."""
    values = dict(_values(sample, watch.before))
    watch = _gather(watch, sample.at_s, values)
    signs = dict(_signs(watch, sample, values))
    held, news = _follow(watch, signs, sample.at_s)
    ever = watch.ever | {name for name, value in values.items() if value is not None}
    return replace(watch, before=sample, held=held, ever=ever), news


# --- values -------------------------------------------------------------------------------------------------------


def _values(sample: Sample, before: Sample | None) -> Iterator[tuple[str, float | None]]:
    """Everything that is followed over time, by name."""
    yield from sample.host.items()
    earlier = {device.name: device for device in (before.devices or ())} if before is not None else {}
    for device in sample.devices or ():
        yield f"{device.name} temperature", device.temperature_c
        was = earlier.get(device.name)
        yield f"{device.name} corrected", None if was is None else delta(was.corrected, device.corrected)


def _gather(watch: Watch, now_s: float, values: Mapping[str, float | None]) -> Watch:
    """Values become points of trends, each for a minute: medians, and of what a counter grew by, means."""
    bounds, fresh, points = watch.bounds, dict(watch.fresh), dict(watch.points)
    for name, value in values.items():
        if value is None or name in (OFFSET, SENT, AGAIN):
            continue
        kept = (*fresh.get(name, ()), (now_s, value))
        if now_s - kept[0][0] >= bounds.point_s:
            typical = statistics.fmean if name.endswith(_COUNTED) else statistics.median
            point = (now_s, typical(v for _, v in kept))
            points[name] = (*points.get(name, ()), point)[-bounds.points :]
            kept = ()
        fresh[name] = kept
    moved = {name: series for name, series in points.items() if series != watch.points.get(name)}
    trends = {name: sign for name, sign in watch.trends.items() if name not in moved} | dict(_trends(bounds, moved))
    return replace(watch, fresh=fresh, points=points, trends=trends)


# --- signs --------------------------------------------------------------------------------------------------------


def _signs(watch: Watch, sample: Sample, values: Mapping[str, float | None]) -> Iterator[tuple[str, _Sign]]:
    yield from _device_signs(watch, sample)
    yield from _host_signs(watch, sample)
    yield from _missing(watch, sample, values)
    yield from watch.trends.items()


def _device_signs(watch: Watch, sample: Sample) -> Iterator[tuple[str, _Sign]]:
    bounds = watch.bounds
    earlier = {d.name: d for d in (watch.before.devices or ())} if watch.before is not None else {}
    for device in sample.devices or ():
        was = earlier.get(device.name)
        for concern in judge(device, was):
            yield concern.sign, _Sign(detail=concern.detail, drain=concern.drain)
        if device.call_s > bounds.call_s:
            yield f"{device.name} driver", _Sign(detail=f"it took {device.call_s:.1f} s to answer", drain=False)
        replays = None if was is None else delta(was.replays, device.replays)
        if replays is not None and replays > bounds.replays:
            yield f"{device.name} PCIe replays", _Sign(detail=f"{replays} packets were sent again", drain=False)


def _host_signs(watch: Watch, sample: Sample) -> Iterator[tuple[str, _Sign]]:
    bounds, host = watch.bounds, sample.host
    stalled = host.get(STALLED)
    if stalled is not None and stalled > bounds.stalled:
        yield STALLED, _Sign(detail=f"nothing can run for want of memory {stalled:.0%} of the time", drain=False)
    now, before = host.get(OFFSET), None if watch.before is None else watch.before.host.get(OFFSET)
    if now is not None and before is not None and abs(now - before) > bounds.jump_s:
        yield "clock jump", _Sign(detail=f"the clock was set by {now - before:+.1f} s", drain=False)
    share = _sent_again(watch, sample)
    if share > bounds.sent_again:
        yield "packet loss", _Sign(detail=f"{share:.0%} of the segments that it sent were sent again", drain=False)


def _sent_again(watch: Watch, sample: Sample) -> float:
    """The share of TCP segments since the last sample that were sent again; 0 while there are too few.

    A lower bound, since a kernel may or may not count those among all that were sent.
    """
    if watch.before is None:
        return 0.0
    sent, again = (_grown(watch.before.host.get(name), sample.host.get(name)) for name in (SENT, AGAIN))
    return again / (sent + again) if sent + again >= watch.bounds.least_segments else 0.0


def _grown(before: float | None, now: float | None) -> float:
    return 0.0 if before is None or now is None else max(0.0, now - before)


def _missing(watch: Watch, sample: Sample, values: Mapping[str, float | None]) -> Iterator[tuple[str, _Sign]]:
    """What was told before. A device that is gone takes its numbers along, and is told as one."""
    names = {name.split()[0] for name in watch.ever if name.startswith("gpu")}
    there = {device.name for device in sample.devices or ()}
    for name in sorted(names - there):
        yield f"{name} missing", _Sign(detail="the device does not answer any more", drain=True)
    for name in sorted(watch.ever):
        if values.get(name) is None and name.split()[0] not in names - there:
            # The first difference of a counter is not there yet after the device came back.
            yield f"{name} missing", _Sign(detail="it was told before, and is not any more", drain=name[:3] == "gpu")


def _trends(bounds: Bounds, series: Mapping[str, Series]) -> Iterator[tuple[str, _Sign]]:
    for name, points in series.items():
        if name.endswith(" temperature"):
            found = towards(points, bounds.temperature_c, bounds.least_points)
            if isinstance(found, Reaches) and 0 < found.in_s < bounds.horizon_s:
                detail = f"it rises by {found.per_s * 60:.2g} a minute, to {bounds.temperature_c:g} C in {_min(found)}"
                yield name, _Sign(detail=detail, drain=True)
        elif name.endswith(_COUNTED):
            counts = [value for _, value in points]
            if len(counts) >= bounds.least_points and mann_kendall(counts) > 3.1:  # noqa: PLR2004 - one in a thousand
                yield name, _Sign(detail="corrected memory errors come more and more often", drain=True)
        elif name in (AVAILABLE, FREE):
            horizon_s = bounds.memory_horizon_s if name == AVAILABLE else bounds.horizon_s
            found = towards(points, 0.0, bounds.least_points // 3)
            if isinstance(found, Reaches) and found.in_s < horizon_s:
                yield name, _Sign(detail=f"it shrinks, and will be used up in {_min(found)}", drain=False)


def _min(found: Reaches) -> str:
    return f"{found.in_s / 60:.0f} min"


# --- over time ----------------------------------------------------------------------------------------------------


def _follow(
    watch: Watch, signs: Mapping[str, _Sign], now_s: float
) -> tuple[dict[str, _Held], tuple[NodeUnwell | NodeWell, ...]]:
    held: dict[str, _Held] = {}
    news: list[NodeUnwell | NodeWell] = []
    for name, sign in signs.items():
        was = watch.held.get(name, _Held(count=0, last_s=now_s, told=False))
        count = was.count + 1
        told = was.told or count >= (watch.bounds.persist if name.endswith(_LASTING) else 1)
        if told and not was.told:
            news.append(NodeUnwell(sign=name, detail=sign.detail, drain=sign.drain))
        held[name] = _Held(count=count, last_s=now_s, told=told)
    for name, was in watch.held.items():
        if name in held or not was.told:
            continue
        if now_s - was.last_s >= watch.bounds.calm_s or name.endswith(_LASTING):
            news.append(NodeWell(sign=name))
        else:
            held[name] = replace(was, count=0)
    return held, tuple(news)
