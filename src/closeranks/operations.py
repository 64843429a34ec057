"""Codes of collective operations, as the vitals page shows them."""

from __future__ import annotations

OPERATIONS = (
    "none",
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "barrier",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "alltoall",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
)
CODES = {name: code for code, name in enumerate(OPERATIONS)}


def name_of(code: int) -> str:
    """The operation's name; codes of a newer version are shown as numbers."""
    return OPERATIONS[code] if 0 <= code < len(OPERATIONS) else f"operation {code}"
