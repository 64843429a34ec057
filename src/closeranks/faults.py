"""What can be wrong: persistence x manifestation x scope, and the catalogue of fault kinds.

A fault is the cause, an error the deviation that can be seen, a failure what the user loses (Avizienis, Laprie,
Randell and Landwehr, "Basic concepts and taxonomy of dependable and secure computing", 2004). Detectors report
errors; a diagnosis names one of these faults; ``Diagnosed.fault`` in the journal is a ``Fault.name`` from here.
"""

from __future__ import annotations

import difflib
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec


class Persistence(StrEnum):
    """How long the fault lasts, and so whether waiting or repeating can help."""

    TRANSIENT = "transient"  # gone by itself: try again
    INTERMITTENT = "intermittent"  # comes back now and then: try again, and count
    PERMANENT = "permanent"  # stays with what it struck: replace that
    DETERMINISTIC = "deterministic"  # comes back wherever the same step is run: no replacement helps
    UNKNOWN = "unknown"


class Manifestation(StrEnum):
    """How the fault shows itself, and so which detector can see it."""

    CRASH = "crash"  # the process ends
    HANG = "hang"  # the process lives and makes no progress
    OMISSION = "omission"  # messages are lost or the peer cannot be reached
    WRONG_VALUE = "wrong value"  # everything goes on, with wrong numbers
    WRONG_ORDER = "wrong order"  # the process does something else than its peers
    UNKNOWN = "unknown"


class Scope(StrEnum):
    """How much one fault takes along, and so what has to be replaced or avoided."""

    PROCESS = "process"
    DEVICE = "device"
    NODE = "node"
    DOMAIN = "domain"  # what fails as one: a rack, a power feed, a switch
    LINK = "link"
    JOB = "job"  # every process alike: the script, the data or the configuration
    UNKNOWN = "unknown"


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of fault."""

    name: str
    persistence: Persistence
    manifestation: Manifestation
    scope: Scope
    summary: str  # what happened, in a sentence for the person who reads the report
    advice: str  # what that person can do about it


class UnknownFaultError(LookupError):
    """No fault of that name is in the catalogue."""


KILLED: Final = Fault(
    name="process killed",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.PROCESS,
    summary="The process was ended by a signal that it could not have sent itself.",
    advice="Look for who sends signals on this node: the out-of-memory killer (dmesg), a scheduler, a person.",
)
NATIVE_CRASH: Final = Fault(
    name="native crash",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.PROCESS,
    summary="Native code in the process ended it (SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL).",
    advice="Read the end of the process's stderr; if it comes back on one device or node only, suspect the hardware.",
)
FROZEN: Final = Fault(
    name="process frozen",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.HANG,
    scope=Scope.PROCESS,
    summary="The process exists, but none of its threads runs.",
    advice="Look for SIGSTOP, a frozen cgroup, or disk and driver waits (state D in ps) on this node.",
)
HUNG: Final = Fault(
    name="process hung",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.HANG,
    scope=Scope.PROCESS,
    summary="The training thread is blocked or loops, while others wait for it.",
    advice="Read the captured stack: its innermost frame is what the process was waiting for.",
)
CRASHED: Final = Fault(
    name="process crashed",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.PROCESS,
    summary="An exception of its own ended the process.",
    advice="Read the traceback; seen once, it may be data, load or hardware of this one process.",
)
DETERMINISTIC_BUG: Final = Fault(
    name="deterministic bug",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The same exception came at the same place and step again: repeating it cannot help.",
    advice="Fix the line that the traceback names, or the data of that step, and start again.",
)
START_UP_CRASH: Final = Fault(
    name="start-up crash",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The process ended before its first step.",
    advice="Run the script by itself with plain python first; read the traceback.",
)
LEFT_EARLY: Final = Fault(
    name="left early",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.WRONG_ORDER,
    scope=Scope.PROCESS,
    summary="The process left its training loop or exited with success while its peers still train.",
    advice="Look for a break, return or exit that only some ranks reach, such as a data set of uneven length.",
)
MISMATCHED_COLLECTIVE: Final = Fault(
    name="mismatched collective",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.WRONG_ORDER,
    scope=Scope.JOB,
    summary="A process called another collective, or one of another size, than its peers.",
    advice="Look for a condition on the rank around a collective, or shapes that differ by rank.",
)
NETWORK_LOSS: Final = Fault(
    name="network loss",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.OMISSION,
    scope=Scope.LINK,
    summary="Processes that live cannot reach each other.",
    advice="Look at links, switches, firewalls and neighbour tables between the nodes of the named seats.",
)
CORRUPT_REPLICA: Final = Fault(
    name="corrupt replica",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.WRONG_VALUE,
    scope=Scope.DEVICE,
    summary="State that must be equal on all seats differs on this one.",
    advice="Test the device and memory of this seat before using it again; look for code that updates one rank only.",
)
WRONG_RESULT: Final = Fault(
    name="wrong result",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.WRONG_VALUE,
    scope=Scope.DEVICE,
    summary="A seat computed something else when the very same step was repeated.",
    advice="Test the device and memory of this seat before using it again; the job went on with the repeated step.",
)
BAD_NUMERICS: Final = Fault(
    name="bad numerics",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.WRONG_VALUE,
    scope=Scope.JOB,
    summary="Losses or gradients are wrong, and they are the same each time the step is repeated.",
    advice="Look at the samples of that step, the learning rate and the loss scale; choose what is done with cr.Guard.",
)
OUT_OF_MEMORY: Final = Fault(
    name="out of memory",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="The node or the device had no memory left for the process.",
    advice="Use a smaller batch or model, fewer loader workers, or a bigger limit; the same step needs it again.",
)
DISK_FULL: Final = Fault(
    name="disk full",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="A file system that the job writes to has no space left.",
    advice="Free space on the file system that the error names; the job needs it again.",
)
NODE_LOST: Final = Fault(
    name="node lost",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="A node ended, or could not be reached for so long that it had stopped its processes by itself.",
    advice="Look at the node's power, kernel log and network; a scheduler may have taken it away.",
)
DOMAIN_LOST: Final = Fault(
    name="domain lost",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.DOMAIN,
    summary="Nodes that share a rack, a power feed or a switch were lost together.",
    advice="Look at what the named domain shares; spread the job's nodes over more of such domains.",
)
COORDINATOR_LOST: Final = Fault(
    name="coordinator lost",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.PROCESS,
    summary="The process that decides was replaced while a decision was being carried out.",
    advice="Look for why it ended: its node's kernel log and its output; the job itself is not to blame.",
)
RECOVERY_STUCK: Final = Fault(
    name="recovery stuck",
    persistence=Persistence.UNKNOWN,
    manifestation=Manifestation.HANG,
    scope=Scope.JOB,
    summary="A recovery did not get through one of its phases in time.",
    advice="Read the phases of the incident: the one it stopped in, and the captured stacks, tell what was awaited.",
)
UNKNOWN: Final = Fault(
    name="unknown",
    persistence=Persistence.UNKNOWN,
    manifestation=Manifestation.UNKNOWN,
    scope=Scope.UNKNOWN,
    summary="What was seen does not tell the cause.",
    advice="Read the incident's records in the journal, and the outputs of its processes.",
)

CATALOGUE: Final = MappingProxyType(
    {
        fault.name: fault
        for fault in (
            KILLED,
            NATIVE_CRASH,
            FROZEN,
            HUNG,
            CRASHED,
            DETERMINISTIC_BUG,
            START_UP_CRASH,
            LEFT_EARLY,
            MISMATCHED_COLLECTIVE,
            NETWORK_LOSS,
            CORRUPT_REPLICA,
            WRONG_RESULT,
            BAD_NUMERICS,
            OUT_OF_MEMORY,
            DISK_FULL,
            NODE_LOST,
            DOMAIN_LOST,
            COORDINATOR_LOST,
            RECOVERY_STUCK,
            UNKNOWN,
        )
    }
)


def fault_named(name: str) -> Fault:
    """The kind of that name.

    Raises:
        UnknownFaultError: there is none; the message names the nearest one.
    """
    fault = CATALOGUE.get(name)
    if fault is not None:
        return fault
    near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.0)
    raise UnknownFaultError(f"no fault is called {name!r}; the nearest is {near[0]!r}, see closeranks.faults")
