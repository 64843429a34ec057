"""Who printed a line, and when: the prefixes of torchrun, srun, Ray, NCCL, glog, syslog and loggers.

Prefixes nest (``3: [rank3]: [E1129 10:00:00.1 ...``), so they are taken off one after another. The nearest to the
words wins, for it was written by the process itself.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import msgspec

_PREFIXES_MAX = 6
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_MONTH_NAMES: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_LABELS: Final = (
    re.compile(r"\[(?:rank|default|trainer|worker)(?P<rank>\d{1,6})\]:?\s?"),  # torchrun --tee, torch's own loggers
    re.compile(r"(?P<rank>\d{1,6}): (?=\S|$)"),  # srun --label
    re.compile(r"\[(?P<rank>\d{1,6})\]:\s?"),  # older torchrun
    re.compile(r"\((?P<actor>[\w.()]+ )?pid=\d+(?:, ip=(?P<node>[\w.:-]+))?\)\s?"),  # Ray
    re.compile(r"\[s(?P<rank>\d{1,6})\.\d+\] "),  # ours: seat and incarnation
    re.compile(r'(?:stdout|stderr) [FP] |\{"log":"|\[pod/[^\]\s]{1,200}\] '),  # Kubernetes, Docker, kubectl --prefix
    re.compile(r"[\w./-]{1,64}\[\d{1,8}\]: (?!segfault|general protection)"),  # journald: program and process
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? "),  # a time without its day
    re.compile(r"(?:[\w.-]{1,64}-\d{1,4} +)?\|  ?(?=\S)"),  # Docker Compose; groups of exceptions
    re.compile(r"(?P<node>[\w.-]+):\d+:\d+ \[\d+\] "),  # NCCL_DEBUG: host, pid, thread, device
)
_STAMPS: Final = (
    re.compile(
        r"\[?(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
        r"(?:[.,](?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?\]?:?\s?"
    ),
    re.compile(
        r"\[?[EWIFC](?P<month>\d\d)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
        r"\.(?P<fraction>\d{1,9})\s?(?:\d{1,9} )?(?:[\w./-]{1,200}:\d{1,6}\] )?"
    ),  # glog: no year; thread, file and line follow
    re.compile(
        r"(?P<name>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) "
    ),  # syslog: no year
    re.compile(
        r"\[[A-Z][a-z]{2} (?P<name>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) (?P<hour>\d\d):(?P<minute>\d\d):"
        r"(?P<second>\d\d) (?P<year>\d{4})\]\s?"
    ),  # dmesg -T
)
_UPTIME: Final = re.compile(r"(?:<\d+>)?\[ *(?P<uptime>\d{1,9}\.\d{1,9})\]\s?")
_HOST: Final = re.compile(r"(?P<node>[\w.-]{1,64}) (?=kernel:|[\w.-]+(?:\[\d+\])?: )")
_KERNEL: Final = re.compile(r"kernel: ?")


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line without its prefixes."""

    text: str
    rank: int | None = None
    node: str = ""
    at_s: float | None = None  # since 1970; a clock without a zone is taken as it stands
    uptime_s: float | None = None  # since the kernel's start


def plain(data: bytes) -> str:
    """The bytes of one line as text that a terminal may be shown.

    No escapes and nothing unprintable: what moves a cursor, changes a terminal, or reverses or hides text.
    """
    text = data.decode("utf-8", "replace").strip()
    if text.isprintable():
        return text
    text = _ESCAPE.sub("", text).strip()
    return "".join(sign if sign.isprintable() or sign == "\t" else "\N{REPLACEMENT CHARACTER}" for sign in text)


def harmless(text: str) -> str:
    """The same for text that came another way, such as a name of a file."""
    return plain(text.encode("utf-8", "surrogateescape"))


def read(line: str, year: int) -> Said:
    """Take the prefixes off. ``year`` is that of stamps which have none."""
    rest, rank, node = line, None, ""
    at_s: float | None = None
    uptime_s: float | None = None
    for _ in range(_PREFIXES_MAX):
        stamp, end = _stamp(rest, year)
        if end:
            at_s, rest = stamp if stamp is not None else at_s, rest[end:]
            host = _HOST.match(rest)
            if host is not None:
                node, rest = host["node"], rest[host.end() :]
            continue
        boot = _UPTIME.match(rest) or _KERNEL.match(rest)
        if boot is not None:
            if "uptime" in boot.re.groupindex:
                uptime_s = float(boot["uptime"])
            rest = rest[boot.end() :]
            continue
        label = next((found for form in _LABELS if (found := form.match(rest)) is not None), None)
        if label is None:
            break
        told = label.groupdict()
        rank = int(told["rank"]) if told.get("rank") else rank
        node = told.get("node") or node
        rest = rest[label.end() :]
    return Said(text=rest, rank=rank, node=node, at_s=at_s, uptime_s=uptime_s)


def stamp_of(line: str, year: int) -> float | None:
    """When the line was written, if it begins with a time, labels before it or not."""
    return read(line, year).at_s


def _stamp(text: str, year: int) -> tuple[float | None, int]:
    """The time that the text begins with, and where it ends; 0: it begins with none."""
    for form in _STAMPS:
        found = form.match(text)
        if found is not None:
            return _seconds(found.groupdict(), year), found.end()
    return None, 0


def _seconds(told: dict[str, str | None], year: int) -> float | None:
    name = told.get("name")
    try:
        month = _MONTH_NAMES.index(name) + 1 if name else int(told["month"] or 0)
        moment = datetime(
            int(told.get("year") or year),
            month,
            int(told["day"] or 0),
            int(told["hour"] or 0),
            int(told["minute"] or 0),
            int(told["second"] or 0),
            tzinfo=_zone(told.get("zone")),
        )
    except (ValueError, KeyError, OverflowError):
        return None  # it looked like a time and is none: no line may break the reading of the others
    return moment.timestamp() + float(f"0.{told.get('fraction') or 0}")


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    hours, minutes = int(text[1:3]), int(text[-2:])
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)
