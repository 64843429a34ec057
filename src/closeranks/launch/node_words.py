"""The words after ``closeranks run`` that differ from node to node, put before those that a person gave for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from closeranks.run.options import UsageError, flags_given

PORT = 29_500  # torchrun's
_SET_HERE = {"nnodes": "--nnodes", "node_rank": "--node-rank", "run_id": "--run-id", "run_dir": "--run-dir"}


class Meeting(NamedTuple):
    """What all nodes of a job are told alike."""

    nnodes: int  # that hold seats
    run_id: str
    endpoint: str  # HOST:PORT of node rank 0; it leads there unless the options name an authority or a store


def require_free(options: Sequence[str]) -> None:
    """See that the options leave to the launcher what it sets itself.

    Raises:
        UsageError: one of them is given, or something that ``closeranks run`` refuses.
    """
    given, target = flags_given(options)
    for field, flag in _SET_HERE.items():
        if field in given:
            raise UsageError(f"{flag} is set for each node by what starts them: leave it out")
    if not target:
        raise UsageError("no script given; expected: ... -- [options of closeranks run] SCRIPT [arguments]")


def words_of(meeting: Meeting, node_rank: int | str, options: Sequence[str]) -> list[str]:
    """Everything after ``closeranks run`` on one node."""
    given, _ = flags_given(options)
    words = ["--nnodes", str(meeting.nnodes), "--node-rank", str(node_rank), "--run-id", meeting.run_id]
    if not given.keys() & {"authority", "store", "rdzv_endpoint"}:
        words += ["--rdzv-endpoint", meeting.endpoint]
    return [*words, *options]
