"""The exit code of a job, from those of its supervisors. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

UNREACHED = 255  # as ssh says it: nothing is known of what ran there


def exit_code_of(codes: Iterable[int]) -> int:
    """0 if any supervisor saw the job complete, which none says of a job that did not; else what most of them say.

    Supervisors that were lost or cut off from the others end with codes of their own; those do not speak for the job.
    """
    known = [code for code in codes if code != UNREACHED]
    if not known:
        return UNREACHED
    if 0 in known:
        return 0
    (code, _), *_ = Counter(known).most_common(1)
    return code
