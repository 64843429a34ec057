"""Failures from Kubernetes events: the output of ``kubectl get events -A -o json``."""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import PlanInputError
from closeranks.plan.trace import FailureRecord, TimeReader, Trace, Unparsed, make_record, require_any

FAILURE_REASONS = frozenset(
    {
        "BackOff",
        "ContainerGCFailed",
        "DeletingNode",
        "Evicted",
        "Failed",
        "FailedMount",
        "KernelDeadlock",
        "NodeHasDiskPressure",
        "NodeHasInsufficientMemory",
        "NodeNotReady",
        "NodeNotSchedulable",
        "OOMKilling",
        "Preempted",
        "Rebooted",
        "SystemOOM",
        "TaskHung",
        "Unhealthy",
        "XIDError",
    }
)
"""Reasons of the kubelet, the node controller and the node problem detector that mean a loss of work."""


class _Thing(msgspec.Struct):
    name: str = ""
    kind: str = ""


class _Event(msgspec.Struct):
    reason: str = ""
    count: int | None = None
    firstTimestamp: str | None = None  # noqa: N815 - Kubernetes' name
    eventTime: str | None = None  # noqa: N815 - Kubernetes' name
    involvedObject: _Thing = msgspec.field(default_factory=_Thing)  # noqa: N815 - Kubernetes' name


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


def read_kubernetes(text: str) -> Trace:
    """Return events whose reason means a loss of work; the unit is the object, the cause the reason.

    Events live for an hour by default: a listing shows the rate of the last hour unless an exporter kept them.

    Source: Kubernetes API, core/v1 Event; node-problem-detector, kernel-monitor.json.
    """
    try:
        listing = msgspec.json.decode(text, type=_List)
    except msgspec.DecodeError as error:
        way_out = "run kubectl get events -A -o json"
        raise PlanInputError("file", "a JSON list of events", str(error), way_out) from None
    times = TimeReader()
    records: list[FailureRecord] = []
    unparsed: list[Unparsed] = []
    ignored = repeated = 0
    for number, raw in enumerate(listing.items, 1):
        try:
            event = msgspec.json.decode(raw, type=_Event)
            if event.reason not in FAILURE_REASONS:
                ignored += 1
                continue
            when = event.eventTime or event.firstTimestamp
            if when is None:
                message = "no eventTime and no firstTimestamp"
                raise ValueError(message)  # noqa: TRY301 - the item joins the others that cannot be read
            repeated += max((event.count or 1) - 1, 0)
            kind, name = event.involvedObject.kind.lower(), event.involvedObject.name
            records.append(
                make_record(unit=name, start_utc_s=times.utc_s(when), end_utc_s=None, cause=event.reason, domain=kind)
            )
        except (ValueError, msgspec.DecodeError) as error:
            unparsed.append(Unparsed(line=number, text=bytes(raw).decode()[:200], problem=str(error)))
    notes: tuple[str, ...] = ("line numbers of unparsed events count items of the list",) if unparsed else ()
    if repeated:
        notes += (
            f"{repeated} repeats that the API server folded into an event (its count) are not failures of their own",
        )
    return require_any(
        Trace(
            source="Kubernetes events",
            records=tuple(records),
            unparsed=tuple(unparsed),
            assumptions=times.assumptions() + notes,
            ignored=ignored,
        )
    )
