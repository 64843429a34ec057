"""What may be done about each kind of fault, as data.

An answer narrows the ladder, it never widens it: what is impossible or unsafe in a situation stays so. Every fault of
the catalogue has an answer that follows from its class (persistence, manifestation, scope); a few have one of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from closeranks import faults
from closeranks.events import Rung
from closeranks.faults import Fault, Manifestation, Persistence, Scope


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be done about one kind of fault."""

    rungs: tuple[Rung, ...] | None = None  # that may be taken, None: any; empty: a person must act, the run stops
    wait_s: float = 0.0  # between two tries to regroup: a transient fault may pass
    back_to_verified: bool = False  # saved state is used only if it was verified, or at least is trusted
    against_node: bool = False  # it counts in the history of the node that it struck
    leave_node: bool = False  # what was lost there goes to another node, if one has room

    def __post_init__(self) -> None:
        if not 0 <= self.wait_s <= _WAIT_MOST_S:
            raise ValueError(f"wait_s: expected 0 to {_WAIT_MOST_S:g} s, got {self.wait_s:g}")


_WAIT_MOST_S: Final = 3600.0

Answers = Mapping[str, Answer]  # by ``Fault.name``


def usual(fault: Fault) -> Answer:
    """The answer that the class of a fault suggests."""
    permanent = fault.persistence is Persistence.PERMANENT
    repeatable = fault.persistence is Persistence.DETERMINISTIC
    node_is_bad = fault.scope is Scope.NODE and permanent
    device_is_bad = fault.scope is Scope.DEVICE and not repeatable
    return Answer(
        back_to_verified=fault.manifestation is Manifestation.WRONG_VALUE,
        against_node=node_is_bad or device_is_bad,
        leave_node=permanent and (node_is_bad or device_is_bad),
    )


_NETWORK_WAIT_S: Final = 5.0  # a link that flaps, or a switch that learns its tables anew

BUILT_IN: Final[Answers] = MappingProxyType(
    {name: usual(fault) for name, fault in faults.CATALOGUE.items()}
    | {
        faults.NETWORK_LOSS.name: Answer(wait_s=_NETWORK_WAIT_S),
        faults.NATIVE_CRASH.name: Answer(against_node=True),
        faults.FROZEN.name: Answer(against_node=True),
        # The job writes again wherever it runs on this node: only another one helps, or a person.
        faults.DISK_FULL.name: Answer(rungs=(Rung.REPLACE_NODE, Rung.STOP), leave_node=True),
        # The same step needs the same memory again. Where the script can split its batches finer, that is done first.
        faults.OUT_OF_MEMORY.name: Answer(rungs=()),
        faults.DEVICE_OUT_OF_MEMORY.name: Answer(rungs=()),
    }
)


def answer_to(answers: Answers, fault: str) -> Answer:
    """The answer to a fault: one of these, else the built-in one; a fault of no catalogue gets the whole ladder."""
    return answers.get(fault) or BUILT_IN.get(fault) or Answer()
