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
    advice=(
        "Use a smaller batch or model, fewer loader workers, or a bigger limit; or have batches split finer by itself: "
        "step.micro_batches(job.accumulation(1)), see docs/recovery.md."
    ),
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
HOST_HARDWARE: Final = Fault(
    name="host hardware error",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="A processor or the memory of the node reported an error that it could not correct.",
    advice="Take the node out of service and have its memory and processors tested before it returns.",
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
BAD_RECOVERY: Final = Fault(
    name="bad recovery",
    persistence=Persistence.UNKNOWN,
    manifestation=Manifestation.WRONG_VALUE,
    scope=Scope.JOB,
    summary="After a recovery the losses or gradient norms were not what they had been before.",
    advice="Compare the losses around the incident; look for state that the script changes and does not protect.",
)
UNKNOWN: Final = Fault(
    name="unknown",
    persistence=Persistence.UNKNOWN,
    manifestation=Manifestation.UNKNOWN,
    scope=Scope.UNKNOWN,
    summary="What was seen does not tell the cause.",
    advice="Read the incident's records in the journal, and the outputs of its processes.",
)

# --- kinds that logs, kernels and recorders tell of ---------------------------------------------------------------


DEVICE_OUT_OF_MEMORY: Final = Fault(
    name="device out of memory",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The memory of an accelerator was exhausted.",
    advice=(
        "Use a smaller micro-batch with more accumulation (by itself: step.micro_batches(job.accumulation(1)), see "
        "docs/recovery.md), checkpoint activations, or look for another user of it."
    ),
)
OOM_KILL: Final = Fault(
    name="out-of-memory kill",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="The kernel ended a process because the node or its cgroup had no memory left.",
    advice="Raise the memory limit, or lower the memory of the host side: loader workers, pinned buffers, caches.",
)
SHARED_MEMORY_FULL: Final = Fault(
    name="shared memory full",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="The shared memory of the node or container was exhausted.",
    advice="Enlarge /dev/shm (in containers --shm-size or an emptyDir of memory), or use fewer loader workers.",
)
LOADER_LOST: Final = Fault(
    name="loader worker lost",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.PROCESS,
    summary="A worker process of a data loader ended unexpectedly.",
    advice="Look for the out-of-memory killer on this node; run with no loader workers to see the error itself.",
)
MISSING_FILE: Final = Fault(
    name="missing file",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="A file or folder that the program needs does not exist.",
    advice="Check the path that the error names, and that its file system is mounted on that node.",
)
PERMISSION_DENIED: Final = Fault(
    name="permission denied",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The program may not use a file or a device that it needs.",
    advice="Check owner and mode of the path that the error names, for the user under whom the job runs.",
)
ACCESS_REFUSED: Final = Fault(
    name="access refused",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="A remote service refused the credentials of the program.",
    advice="Renew the token or key that the program uses for the service that the error names.",
)
SERVICE_UNAVAILABLE: Final = Fault(
    name="service unavailable",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="A remote service did not answer, or asked for fewer requests, and the program gave up.",
    advice="Try again later; have the program wait longer between attempts, ask less often, or keep a local copy.",
)
MISSING_MODULE: Final = Fault(
    name="missing module",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="A Python module or shared library that the program imports is not installed.",
    advice="Install it in the environment of every node, or correct the environment that the job starts in.",
)
FAILED_ASSERTION: Final = Fault(
    name="failed assertion",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The program found one of its own conditions violated.",
    advice="Read the condition that the traceback names, and what it was given.",
)
DIVISION_BY_ZERO: Final = Fault(
    name="division by zero",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The program divided by zero.",
    advice="Look at the divisor that the traceback names: an empty data set, a count of nothing.",
)
RUNTIME_ERROR: Final = Fault(
    name="runtime error",
    persistence=Persistence.UNKNOWN,
    manifestation=Manifestation.CRASH,
    scope=Scope.PROCESS,
    summary="A library refused an operation at run time.",
    advice="Read the message of the error: it says what the library was asked to do.",
)
SHAPE_MISMATCH: Final = Fault(
    name="shape mismatch",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="Tensors of shapes or types that do not fit met in one operation.",
    advice="Compare the shapes in the message with the model's configuration and with the checkpoint.",
)
DEVICE_MISMATCH: Final = Fault(
    name="device mismatch",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="Tensors on different devices met in one operation.",
    advice="Move the tensors that the traceback names to one device.",
)
DEVICE_ASSERT: Final = Fault(
    name="device-side assert",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="A kernel on the accelerator found a condition violated, most often an index out of bounds.",
    advice="Repeat with CUDA_LAUNCH_BLOCKING=1 or on the CPU; check labels and token numbers against the table's size.",
)
DEVICE_FAULT: Final = Fault(
    name="device fault",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.DEVICE,
    summary="The accelerator stopped the program for what it did: an illegal access or a failed launch.",
    advice="On one device only, test that device; on several, look for the kernel with compute-sanitizer.",
)
INCOMPATIBLE_BUILD: Final = Fault(
    name="incompatible build",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The libraries were not built for this accelerator, driver or for each other.",
    advice="Install a build that lists this accelerator's capability, or a driver as new as the libraries ask for.",
)
NO_DEVICE: Final = Fault(
    name="no device",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="The program found no accelerator that it can use.",
    advice="Look at nvidia-smi and the driver on the node, and at what the scheduler or container let through.",
)
DEVICE_MEMORY: Final = Fault(
    name="device memory error",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.DEVICE,
    summary="The memory of an accelerator lost data that its error correction could not restore.",
    advice="Take the device out of use until it was reset and tested; replace it when remapping failed.",
)
DEVICE_LOST: Final = Fault(
    name="device lost",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.DEVICE,
    summary="An accelerator no longer answers on its bus.",
    advice="Take the node out of use; restart it, and have the device checked when it comes back.",
)
DEVICE_LINK: Final = Fault(
    name="device link error",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.LINK,
    summary="A link between accelerators, or the switch between them, failed.",
    advice="Take the node out of use; reset accelerators and switches together, and have the links checked.",
)
DEVICE_STUCK: Final = Fault(
    name="device stuck",
    persistence=Persistence.INTERMITTENT,
    manifestation=Manifestation.HANG,
    scope=Scope.DEVICE,
    summary="The firmware or a unit of an accelerator stopped working.",
    advice="Reset the device; when it comes back, update driver and firmware, or have the device replaced.",
)
NON_FINITE: Final = Fault(
    name="non-finite loss",
    persistence=Persistence.UNKNOWN,
    manifestation=Manifestation.WRONG_VALUE,
    scope=Scope.JOB,
    summary="The loss or a gradient was not a number or infinite.",
    advice="Find the first rank and step with it; replay that step elsewhere before changing rate, clipping or data.",
)
COLLECTIVE_TIMEOUT: Final = Fault(
    name="collective timeout",
    persistence=Persistence.UNKNOWN,
    manifestation=Manifestation.HANG,
    scope=Scope.UNKNOWN,
    summary="A collective did not end in time: a member was missing, slow or unreachable.",
    advice="Find who did not enter it: a recording of collectives (flight recorder) or the stacks of all ranks.",
)
COMMUNICATION_ERROR: Final = Fault(
    name="communication error",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.OMISSION,
    scope=Scope.LINK,
    summary="The library that moves data between ranks failed in a call of its system or network.",
    advice="Repeat with NCCL_DEBUG=WARN; look at interfaces, ports, links and shared memory of the nodes it names.",
)
RENDEZVOUS_FAILED: Final = Fault(
    name="rendezvous failed",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.OMISSION,
    scope=Scope.JOB,
    summary="The processes of a job did not find each other.",
    advice="Check address and port of the rendezvous, name resolution and firewalls, and that every node was started.",
)
ADDRESS_IN_USE: Final = Fault(
    name="address in use",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="Another program listens on the port that this one needs.",
    advice="End what an earlier run left behind, or choose another port (0 lets the system choose).",
)
STORAGE_STALLED: Final = Fault(
    name="storage stalled",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.HANG,
    scope=Scope.NODE,
    summary="A file system did not answer, and processes waited for it in the kernel.",
    advice="Look at the file server and the network to it; processes in such a wait cannot be killed.",
)
STORAGE_ERROR: Final = Fault(
    name="storage error",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="A file system or disk answered with an error.",
    advice="Read the kernel log of the node for the disk or server; do not trust files written since.",
)
CORRUPT_FILE: Final = Fault(
    name="corrupt file",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.WRONG_VALUE,
    scope=Scope.JOB,
    summary="A file that the program read is truncated or damaged.",
    advice="Restore the file that the error names from another copy; a checkpoint of this kind was half written.",
)
TOO_MANY_FILES: Final = Fault(
    name="too many open files",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.PROCESS,
    summary="The process reached its limit of open files.",
    advice="Raise ulimit -n, use fewer loader workers, or the file_system sharing strategy of torch.multiprocessing.",
)
TIME_LIMIT: Final = Fault(
    name="time limit",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The scheduler ended the job because its time was over.",
    advice="Ask for more time, or save before the limit and start again from there.",
)
PREEMPTED: Final = Fault(
    name="preempted",
    persistence=Persistence.TRANSIENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The scheduler or the cloud took the machines away, or a person cancelled the job.",
    advice="Start again from the newest saved state; save when the warning signal comes.",
)
BAD_CONFIGURATION: Final = Fault(
    name="bad configuration",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The program could not understand its arguments, its configuration or its own source.",
    advice="Correct the argument, key or line that the error names.",
)
WRONG_CLOCK: Final = Fault(
    name="wrong clock",
    persistence=Persistence.PERMANENT,
    manifestation=Manifestation.CRASH,
    scope=Scope.NODE,
    summary="The clock of a node differs too much from that of the service or peer that it speaks to.",
    advice="Compare the node's clock (timedatectl, chronyc tracking) and have it set; then start the job again.",
)
UNTRUSTED_CERTIFICATE: Final = Fault(
    name="untrusted certificate",
    persistence=Persistence.DETERMINISTIC,
    manifestation=Manifestation.CRASH,
    scope=Scope.JOB,
    summary="The identity of a remote service could not be proved: its certificate was refused.",
    advice=(
        "Look at the certificate's dates and issuer (openssl s_client -connect HOST:443), at a proxy in between, and "
        "at the authorities that the program trusts (SSL_CERT_FILE, REQUESTS_CA_BUNDLE); do not turn the check off."
    ),
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
            HOST_HARDWARE,
            DOMAIN_LOST,
            COORDINATOR_LOST,
            RECOVERY_STUCK,
            BAD_RECOVERY,
            UNKNOWN,
            DEVICE_OUT_OF_MEMORY,
            OOM_KILL,
            SHARED_MEMORY_FULL,
            LOADER_LOST,
            MISSING_FILE,
            PERMISSION_DENIED,
            ACCESS_REFUSED,
            SERVICE_UNAVAILABLE,
            MISSING_MODULE,
            FAILED_ASSERTION,
            DIVISION_BY_ZERO,
            RUNTIME_ERROR,
            SHAPE_MISMATCH,
            DEVICE_MISMATCH,
            DEVICE_ASSERT,
            DEVICE_FAULT,
            INCOMPATIBLE_BUILD,
            NO_DEVICE,
            DEVICE_MEMORY,
            DEVICE_LOST,
            DEVICE_LINK,
            DEVICE_STUCK,
            NON_FINITE,
            COLLECTIVE_TIMEOUT,
            COMMUNICATION_ERROR,
            RENDEZVOUS_FAILED,
            ADDRESS_IN_USE,
            STORAGE_STALLED,
            STORAGE_ERROR,
            CORRUPT_FILE,
            TOO_MANY_FILES,
            TIME_LIMIT,
            PREEMPTED,
            BAD_CONFIGURATION,
            WRONG_CLOCK,
            UNTRUSTED_CERTIFICATE,
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
