"""Which kind of failure log a text is, from its first lines; a doubtful one is asked about, never guessed."""

from __future__ import annotations

from typing import Final

from closeranks.plan.checks import PlanInputError

FORMATS: Final = ("csv", "journal", "kubernetes", "lanl", "slurm", "titan", "xid")


def detect_format(text: str, where: str = "file") -> str:
    """Return one of ``FORMATS``.

    Raises:
        PlanInputError: the text looks like none of them.

    Source: the headers and line forms that each reader documents.

    """
    head = text[:4096].lstrip("\ufeff \n")
    first = head.splitlines()[0] if head else ""
    if first.startswith("System,machine type"):
        return "lanl"
    if first.startswith("SN,location,insert,remove"):
        return "titan"
    if "|" in first and "JobID" in first and "State" in first:
        return "slurm"
    if first.startswith("{") and '"seq"' in first and '"event"' in first:
        return "journal"
    if first.startswith("{"):
        return "kubernetes"
    if "NVRM: Xid" in text or " kernel: " in first:
        return "xid"
    if "," in first:
        return "csv"
    expected = "a failure log of a known form"
    raise PlanInputError(where, expected, repr(first[:60]), f"say --format, one of {', '.join(FORMATS)}")
