"""The words after ``closeranks run`` that differ from node to node, put before those that a person gave for all."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from closeranks.launch.tether import LINE_BYTES_MAX, TOKEN
from closeranks.run.options import AUTO, HelpAsked, UsageError, flags_given

PORT = 29_500  # torchrun's
_SET_HERE = {
    "nnodes": "--nnodes",
    "node_rank": "--node-rank",
    "run_id": "--run-id",
    "run_dir": "--run-dir",
    "slurm": "--slurm",
}
_TOKEN_BYTES = 32


class Meeting(NamedTuple):
    """What all nodes of a job are told alike."""

    nnodes: int  # that hold seats
    run_id: str
    endpoint: str  # HOST:PORT of node rank 0; it leads there unless the options name an authority or a store


def require_free(options: Sequence[str]) -> None:
    """See that the options leave to the launcher what it sets itself, and that they run something.

    Raises:
        UsageError: one of them is given, or something that ``closeranks run`` refuses.
    """
    try:
        given, target = flags_given(options)
    except HelpAsked:
        raise UsageError("see closeranks run --help for what comes behind --") from None
    for field, flag in _SET_HERE.items():
        if field in given:
            raise UsageError(f"{flag} is set for each node by what starts them: leave it out")
    if "show_policy" in given:
        raise UsageError("--show-policy runs nothing: give it to closeranks run")
    if not target and not _resumes(given):
        raise UsageError("no script given; expected: ... -- [options of closeranks run] SCRIPT [arguments]")


def require_room(nnodes: int, spares: int) -> None:
    """See that spare nodes have a job that they can join.

    Raises:
        UsageError: it is a job of one node, which knows of no others.
    """
    if nnodes == 1 and spares > 0:
        raise UsageError(
            "one node with seats, and spare nodes: a job of one node has none; spread its seats over two nodes or "
            "more, or leave the spare nodes out (--spares among the options of closeranks run: spare processes)"
        )


def words_of(meeting: Meeting, node_rank: int | str, options: Sequence[str]) -> list[str]:
    """Everything after ``closeranks run`` on one node."""
    given, _ = flags_given(options)
    words = ["--nnodes", str(meeting.nnodes), "--node-rank", str(node_rank), "--run-id", meeting.run_id]
    # A run that can be resumed had a store, and may have had an authority.
    meet_elsewhere = given.keys() & {"authority", "store", "rdzv_endpoint"} or _resumes(given)
    if meeting.nnodes > 1 and not meet_elsewhere:
        words += ["--rdzv-endpoint", meeting.endpoint]
    return [*words, *options]


def token_of(options: Sequence[str], environment: Mapping[str, str]) -> str:
    """The token for all nodes: ``CLOSERANKS_TOKEN``, or a new one; none where the options name a file with it.

    Raises:
        UsageError: it is nothing that a tether can be told.
    """
    given, _ = flags_given(options)
    if "token_file" in given:
        return ""
    token = environment.get(TOKEN, "").strip()
    if not (token.isascii() and len(token.splitlines()) <= 1 and len(token) < LINE_BYTES_MAX):
        raise UsageError(
            f"{TOKEN}: expected one line of at most {LINE_BYTES_MAX - 1} ASCII characters; unset it for a new token"
        )
    return token or secrets.token_hex(_TOKEN_BYTES)


def _resumes(given: dict[str, object]) -> bool:
    """Whether an earlier run says what is not given."""
    return given.get("resume", AUTO) != AUTO
