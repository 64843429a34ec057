"""What goes wrong in a simulated run, and when: the only random input of the virtual world."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """How a fault strikes."""

    CRASH = "crash"  # a process ends; its node is well
    NODE = "node"  # a node is lost until it is repaired
    DOMAIN = "domain"  # nodes with a common fate are lost together and return together
    SPOT = "spot"  # capacity is taken back, after a notice
    HANG = "hang"  # a process lives and makes no progress
    STRAGGLER = "straggler"  # every step is slower for a while
    CORRUPTION = "corruption"  # the state is wrong from now on, and that is found later
    PARTITION = "partition"  # members cannot reach each other for a while
    STORAGE_SLOW = "storage slow"  # writes and reads take longer for a while
    STORAGE_DOWN = "storage down"  # nothing becomes durable and nothing can be read for a while
    BUG = "bug"  # the script fails at one step, every time that it comes there


class Strike(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault. Which of the fields count depends on the kind."""

    at_s: float
    kind: Kind
    seat: int = 0  # which seat, where no nodes are named
    nodes: tuple[int, ...] = ()
    lasts_s: float = 0.0  # of a repair, a slow or cut time, or until corruption is found
    factor: float = 1.0  # of a straggler or a slow store
    notice_s: float = 0.0
    step: int = 0  # of a bug
    answers: bool = False  # a hang of the training thread alone: the process is not frozen, and no roll call finds it


class Scope(StrEnum):
    """What a loss took along; a tier survives losses up to its own scope."""

    PROCESS = "process"
    NODE = "node"
    DOMAIN = "domain"
    JOB = "job"


WIDTH = {scope: width for width, scope in enumerate(Scope)}
"""Scopes by how much they take."""
