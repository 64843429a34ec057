"""``cluster.toml``: a fleet, its job and its promises; a wrong key or value is named with its bound and fix."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from closeranks.plan.checks import PlanInputError
from closeranks.plan.rates import Part
from closeranks.plan.state_size import PRESETS
from closeranks.toml_text import TomlProblem, value_of


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The accelerators: how many, how they sit in nodes, what an hour of one costs."""

    accelerators: int
    per_node: int = 8
    price_per_accelerator_h: float = 2.0


class PartEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of component, as ``plan.rates.Part``."""

    name: str
    mtbf_h: float
    serves: float = 1
    per_accelerator: float = 1
    needed: int = 1
    installed: int = 1
    repair_h: float = 0.0

    def part(self) -> Part:
        """Return it for the cascade."""
        return Part(**{name: getattr(self, name) for name in self.__struct_fields__})


class DomainEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of nodes with a common fate; one such group fails ``per_day`` times. ``nodes_each = 0``: all nodes.

    Its nodes return together after ``out_h``.
    """

    name: str
    nodes_each: int
    per_day: float
    out_h: float = 1.0


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The user's own count: ``failures`` of units of ``unit_accelerators`` in ``unit_h`` unit-hours.

    It replaces the sum of the parts, whose shares it keeps.
    """

    failures: int
    unit_h: float
    unit_accelerators: int = 1
    confidence: float = 0.95


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is trained: parameters, what a save holds (a preset of ``plan.state_size``), the time of a step."""

    params: float = 0.0
    recipe: str = "fp32 master + fp32 moments"
    state_bytes: float = 0.0  # instead of params and recipe
    step_s: float = 2.0
    work_h: float = 0.0  # hours of undisturbed training, when the job has an end


class Store(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where saves go: decimal gigabytes a second, and how many times a slow write takes a fast one."""

    gigabytes_per_s: float = 100.0
    slowest_fold: float = 1.0


class Saving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How saves are made. Times of 0 are worked out: the write from size and store, the interval from all else."""

    mode: Literal["blocking", "background"] = "blocking"
    write_s: float = 0.0
    pause_s: float = 2.0  # in the background: the copy that training waits for
    interval_s: float = 0.0


class Recovery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The phases of a cold recovery; ``load_s`` of 0 is worked out. A ``warm_share`` takes ``warm_s`` instead."""

    detect_s: float = 60.0
    restart_s: float = 180.0
    load_s: float = 0.0
    warm_up_s: float = 120.0
    warm_share: float = 0.0
    warm_s: float = 20.0


class Repair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes in repair: the mean time until one is back, and how many events take several."""

    mean_h: float = 24.0
    burst_share: float = 0.0
    burst_nodes: int = 8


class Promise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was promised; 0 means that nothing was. ``shortage`` is the share of time with too few spares."""

    rpo_s: float = 0.0
    rto_s: float = 0.0
    shortage: float = 0.01


class Corruption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Silent corruption: the rate of one accelerator, and how late it is found."""

    per_accelerator_h: float = 1e-6
    detection_delay_s: float = 3600.0


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How speed grows with the count: Amdahl's serial share, and the utilisation of one accelerator."""

    serial_share: float = 0.0
    utilisation: float = 1.0


class FaultEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of trouble that only the simulator plays: so many a day in the whole job, each lasting so long.

    ``factor``: how many times slower (stragglers, slow storage). ``nodes``: how many a reclaim takes.
    """

    kind: Literal[
        "crash", "hang", "straggler", "partition", "storage slow", "storage down", "spot", "corruption", "bug"
    ]
    per_day: float
    lasts_s: float = 600.0
    factor: float = 2.0
    nodes: int = 1
    notice_s: float = 0.0


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the planner takes. ``given`` names the keys that the user set; all others are assumptions."""

    hardware: Hardware
    part: tuple[PartEntry, ...] = ()
    domain: tuple[DomainEntry, ...] = ()
    measured: Measured | None = None
    job: Job = Job()
    store: Store = Store()
    saving: Saving = Saving()
    recovery: Recovery = Recovery()
    repair: Repair = Repair()
    promise: Promise = Promise()
    corruption: Corruption = Corruption()
    scaling: Scaling = Scaling()
    fault: tuple[FaultEntry, ...] = ()
    given: tuple[str, ...] = ()


ASSUMED_PARTS: Final = (
    PartEntry(name="GPU", mtbf_h=50_000),
    PartEntry(name="PCIe", mtbf_h=200_000),
    PartEntry(name="power", mtbf_h=100_000, serves=8),
    PartEntry(name="network", mtbf_h=150_000, serves=8),
)
"""Teaching assumptions for parts that the user does not know. Source: MLSysBook, fleet reliability."""

_BOUNDS: Final[dict[str, tuple[float, float, str]]] = {
    "hardware.accelerators": (1, 1e8, "count the accelerators of the job"),
    "hardware.per_node": (1, 1024, "count the accelerators of one node"),
    "hardware.price_per_accelerator_h": (0, 1e6, "use 0 to leave money out"),
    "part.mtbf_h": (1e-3, 1e12, "hours between failures of one part, not of the fleet"),
    "part.serves": (1e-3, 1e9, "accelerators that share one part"),
    "part.per_accelerator": (1e-9, 1e6, "parts that one accelerator owns"),
    "part.needed": (1, 1e6, "parts of the group that must work"),
    "part.installed": (1, 1e6, "parts of the group"),
    "part.repair_h": (0, 1e6, "hours until a failed part of a group is back"),
    "domain.nodes_each": (0, 1e7, "use 0 for a domain that holds all nodes"),
    "domain.per_day": (0, 1e4, "failures of one such domain a day"),
    "domain.out_h": (0, 1e5, "hours until its nodes are back"),
    "measured.failures": (0, 1e12, "failures that were seen"),
    "measured.unit_h": (1e-3, 1e15, "units times the hours that they were watched"),
    "measured.unit_accelerators": (1, 1e6, "accelerators in one watched unit"),
    "measured.confidence": (0.5, 0.9999, "0.95 is usual"),
    "job.params": (0, 1e16, "175e9 for 175 billion"),
    "job.state_bytes": (0, 1e18, "bytes of one save"),
    "job.work_h": (0, 1e7, "use 0 for a job without a known end"),
    "job.step_s": (1e-6, 1e6, "seconds of one step"),
    "store.gigabytes_per_s": (1e-6, 1e9, "decimal gigabytes a second; a 10 Gb/s link is 1.25"),
    "store.slowest_fold": (1, 100, "1 when writes do not vary, 3 when the slowest take three times the fastest"),
    "saving.write_s": (0, 1e7, "use 0 to work it out from size and store"),
    "saving.pause_s": (1e-6, 1e7, "seconds that training waits for the copy"),
    "saving.interval_s": (0, 1e8, "use 0 for the best"),
    "recovery.detect_s": (0, 1e7, "seconds until the failure is seen"),
    "recovery.restart_s": (0, 1e7, "seconds until processes run again"),
    "recovery.load_s": (0, 1e7, "use 0 to work it out from size and store"),
    "recovery.warm_up_s": (0, 1e7, "seconds until speed is normal"),
    "recovery.warm_share": (0, 0.999, "keep some saves for the loss that has not been seen yet"),
    "recovery.warm_s": (0, 1e7, "seconds of a warm recovery"),
    "repair.mean_h": (0, 1e5, "plan spares by the mean, not by the median"),
    "repair.burst_share": (0, 1, "a share, 0.05 for 5 % of events"),
    "repair.burst_nodes": (1, 1e5, "nodes that such an event takes"),
    "promise.rpo_s": (0, 1e8, "use 0 where nothing was promised"),
    "promise.rto_s": (0, 1e8, "use 0 where nothing was promised"),
    "promise.shortage": (1e-9, 0.5, "a share of time, 0.01 for 1 %"),
    "corruption.per_accelerator_h": (0, 1, "use 0 to leave silent corruption out"),
    "corruption.detection_delay_s": (0, 1e8, "seconds from a corruption to its discovery"),
    "fault.per_day": (0, 1e5, "faults of this kind a day in the whole job"),
    "fault.lasts_s": (0, 1e7, "seconds until it is over, or until corruption is found"),
    "fault.factor": (1, 1e4, "how many times slower"),
    "fault.nodes": (1, 1e5, "nodes that one reclaim takes"),
    "fault.notice_s": (0, 1e6, "seconds of warning before a reclaim"),
    "scaling.serial_share": (0, 1, "use 0 for perfect scaling"),
    "scaling.utilisation": (1e-6, 1, "a share, 0.4 for 40 %"),
}


def _check_bounds(where: str, section: str, values: msgspec.Struct) -> None:
    for name in values.__struct_fields__:
        value, key = getattr(values, name), f"{section}.{name}"
        if key not in _BOUNDS:
            continue
        low, high, fix = _BOUNDS[key]
        if not low <= value <= high:
            place = f"{where}: {key}"
            raise PlanInputError(place, f"{low:g} to {high:g}", f"{value:g}", fix)


def _given(raw: dict[str, Any]) -> tuple[str, ...]:
    keys: list[str] = []
    for section, value in raw.items():
        if isinstance(value, dict):
            keys += [f"{section}.{name}" for name in value]
        elif isinstance(value, list):
            tables = [item for item in value if isinstance(item, dict)]
            keys += [f"{section}.{item.get('name', item.get('kind', ''))}" for item in tables]
    return tuple(sorted(keys))


def _way_out(problem: str) -> str:
    """What the reader of the problem can do, where its text does not say so."""
    if "missing required field `accelerators`" in problem:
        return "; set hardware.accelerators, or say --gpus 1024"
    if ": measured" in problem:
        return "; give failures and unit_h together (--failures 419 --watched-gpu-h 2.1e7)"
    return ""


def cluster_of(raw: dict[str, Any], where: str = "cluster.toml", text: str = "") -> Cluster:
    """Return the cluster of a parsed file or of flags put into the same form; ``text`` is that of the file.

    Raises:
        TomlProblem: an unknown key (with the nearest known one), a wrong type or a missing key.
        PlanInputError: a value out of its bounds.

    Source: own; bounds are those beyond which a value is surely a slip of units.

    """
    given = _given(raw)
    if "given" in raw:
        raise PlanInputError(where, "known keys", "'given'", "it is worked out from the keys that are set")
    try:
        cluster = value_of(raw, Cluster, where, text)
    except TomlProblem as problem:
        raise TomlProblem(f"{problem}{_way_out(str(problem))}") from None
    for section in Cluster.__struct_fields__[:-1]:
        value = getattr(cluster, section)
        for item in value if isinstance(value, tuple) else (value,):
            if item is not None:
                _check_bounds(where, section, item)
    if cluster.job.recipe not in PRESETS:
        from closeranks.plan.state_size import preset

        preset(cluster.job.recipe)
    if not cluster.job.params and not cluster.job.state_bytes and not cluster.saving.write_s:
        way_out = "give job.params (--params 175e9), job.state_bytes or saving.write_s"
        place = f"{where}: job"
        raise PlanInputError(place, "the size of a save", "none", way_out)
    return msgspec.structs.replace(cluster, part=cluster.part or ASSUMED_PARTS, given=given)
