"""What has to be the same on all nodes: options of the run, and the versions and scripts of its processes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from closeranks.events import PreflightDone
from closeranks.nodes.words import SeatFacts
from closeranks.run.options import RunOptions, Target
from closeranks.run.preflight import compare, differing
from closeranks.version import version

# Options about which the nodes of a job have to agree, by the flag that a person gave. Others are a node's own.
_SHARED: Mapping[str, str] = {
    "nnodes": "--nnodes",
    "nodes_min": "--nnodes",
    "slots": "--nproc-per-node",
    "spares": "--spares",
    "kind": "--no-python or -m",
    "max_restarts": "--max-restarts",
    "store": "--store",
    "job": "--job",
    "save_every_steps": "--save-every",
    "save_every_s": "--save-every",
    "rpo_s": "--rpo",
    "keep": "--keep",
    "on_partition": "--on-partition",
    "node_patience_s": "--node-patience",
    "on_term": "--on-term",
}


def common(options: RunOptions) -> dict[str, str]:
    """What a node says of itself in this respect: a word for each thing."""
    policy = hashlib.blake2b(msgspec.json.encode(options.policy.policy), digest_size=8).hexdigest()
    script = "" if options.kind is Target.SCRIPT else options.target  # scripts are compared by what is in them
    shared = {field: str(getattr(options, field)) for field in _SHARED}
    return {"closeranks": version(), "policy": policy, "target": script, **shared}


class Said(NamedTuple):
    """What a node said of itself."""

    node: str
    common: Mapping[str, str]


def difference(one: Said, other: Said) -> str:
    """The first thing in which they differ, for a person; "" if there is none."""
    known = one.common.keys() & other.common.keys()
    name = next((name for name in one.common if name in known and one.common[name] != other.common[name]), "")
    return name and (
        f"{_SHARED.get(name, name)} is {one.common[name]} on {one.node} and {other.common[name]} on {other.node}"
    )


class Compared(NamedTuple):
    """What the comparison gave; ``fatal``: why the seats cannot train together, "" if they can."""

    event: PreflightDone
    fatal: str


class Agreement:
    """Collects what the processes of a group said of themselves."""

    def __init__(self) -> None:
        self._procs: frozenset[int] = frozenset()
        self._facts: dict[int, dict[str, str]] = {}  # by seat

    def begin(self, procs: tuple[int, ...]) -> None:
        """A group is started, or found by a new leader; ``procs[seat]``."""
        self._procs, self._facts = frozenset(procs), {}

    def take(self, word: SeatFacts) -> Compared | None:
        """One process joined; the comparison, when it was the last of its group."""
        if word.seat is None or word.proc not in self._procs or word.seat in self._facts:
            return None
        self._facts[word.seat] = word.facts
        if len(self._facts) < len(self._procs):
            return None
        findings = compare(self._facts)
        event = PreflightDone(findings=tuple(finding.text for finding in findings))
        return Compared(event, "; ".join(finding.text for finding in findings if finding.fatal))

    def strange(self, word: SeatFacts) -> str:
        """Why a process that joined later should not train with the group; "" if nothing speaks against it."""
        if word.proc in self._procs or not self._facts:
            return ""
        for ours in self._facts.values():  # more than one kind only where a script was edited
            names = differing(ours, word.facts)
            if not names:
                return ""
        return "; ".join(f"{name} is {word.facts.get(name)} there and {ours.get(name)} in the job" for name in names)
