"""The exit code of a job, from those of its supervisors. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from closeranks.run.options import RunOptions

UNREACHED = 255  # as ssh says it: nothing is known of what ran there
# EX_TEMPFAIL of sysexits.h: a node could not take part, or was given up, for a reason of its own.
NODE_ALONE = 75


def exit_code_of(codes: Iterable[int]) -> int:
    """0 if any supervisor saw the job complete, which none says of a job that did not; else what most of them say.

    Supervisors that were lost or cut off from the others end with codes of their own; those do not speak for the job.
    """
    known = [code for code in codes if code != UNREACHED]
    if not known:
        return UNREACHED
    told = [code for code in known if tells_of_the_job(code)]
    if not told:
        return NODE_ALONE
    if 0 in told:
        return 0
    (code, _), *_ = Counter(told).most_common(1)
    return code


def tells_of_the_job(code: int) -> bool:
    """Whether a supervisor that ended with this code has seen how the job ended."""
    return code not in {UNREACHED, NODE_ALONE}


def code_of_own_end(options: RunOptions, otherwise: int) -> int:
    """The exit code of a run that ends on this node for a reason of its own; ``otherwise`` if the job ends with it."""
    leads_alone = options.rdzv_endpoint is not None and options.node_rank == 0
    return otherwise if options.nnodes == 1 or leads_alone else NODE_ALONE
