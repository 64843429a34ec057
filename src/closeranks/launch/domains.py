"""Failure domains of a node: which rack, switch or zone it shares its fate with. Pure but for ``read``.

Three sources, the first that names a level wins: the file of ``--domains``, variables ``CLOSERANKS_DOMAIN_<LEVEL>``
(set by whatever places the nodes, such as a Kubernetes manifest), and Slurm's topology address.

The file is TOML,

    levels = ["cooling"]             # levels of your own, beside those that are known

    [node.n0]                        # by node
    rack = "r7"

    [host."gpu[001-016]"]            # by hostname, ranges as Slurm writes them
    rack = "r8"
    power = "p2"

or, where its name ends in ``.json``, Kubernetes' labels by node name:

    {"gpu-1": {"topology.kubernetes.io/zone": "a"}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from closeranks.launch.hostlist import HostlistProblem, expand
from closeranks.toml_text import TomlProblem, nearest, tables_in

LEVELS = ("chassis", "rack", "row", "switch", "power", "room", "zone", "region")  # smallest first, roughly
VARIABLE = "CLOSERANKS_DOMAIN_"  # and the level in capitals
MACHINE = "CLOSERANKS_MACHINE"  # name of the machine where the hostname is that of a container

# What providers call the levels on their nodes. https://kubernetes.io/docs/reference/labels-annotations-taints
LABELS: Mapping[str, str] = {
    "topology.kubernetes.io/region": "region",
    "topology.kubernetes.io/zone": "zone",
    "topology.kubernetes.io/rack": "rack",
    "topology.k8s.aws/network-node-layer-1": "switch3",
    "topology.k8s.aws/network-node-layer-2": "switch2",
    "topology.k8s.aws/network-node-layer-3": "switch1",
    "cloud.google.com/gce-topology-block": "block",
    "cloud.google.com/gce-topology-subblock": "subblock",
    "cloud.google.com/gce-topology-host": "host",
    "nvidia.com/gpu.clique": "clique",
}
_NAME_CHARS_MAX = 200


class DomainsProblem(ValueError):
    """The file of domains says something that is not understood; where, and what would be."""


class DomainsFile(NamedTuple):
    """The file of ``--domains``, read."""

    name: str
    text: str


def read(path: str | None) -> DomainsFile | None:
    """The file of ``--domains``, if there is one.

    Raises:
        DomainsProblem: it cannot be read.
    """
    if path is None:
        return None
    try:
        return DomainsFile(Path(path).name, Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DomainsProblem(f"--domains {path}: cannot be read: {error}") from error


def domains_of(
    node: str, hostname: str, file: DomainsFile | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Level to name, for the node ``n3`` on the machine ``hostname``; empty where nothing is known.

    Raises:
        DomainsProblem: the file has an unknown key, a value that is no name, or names a host twice.
    """
    environment = environment or {}
    found = topology_domains(
        environment.get("SLURM_TOPOLOGY_ADDR", ""), environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    )
    found |= _from_variables(environment)
    if file is not None:
        machine = environment.get(MACHINE) or hostname
        found |= _from_file(file, node, machine)
    return found


def topology_domains(address: str, pattern: str) -> dict[str, str]:
    """The switches above a node: ``spine.rack1.node1`` with ``switch.switch.node`` is switch1 rack1, switch2 spine."""
    kinds = pattern.split(".") if pattern else []
    names = address.split(".", max(len(kinds) - 1, 0))  # a node's own name may have dots, and comes last
    if len(names) != len(kinds):
        return {}
    above = [(kind, name) for kind, name in zip(kinds, names, strict=True) if kind != "node" and name]
    counts: dict[str, int] = {}
    found: dict[str, str] = {}
    for kind, name in reversed(above):
        counts[kind] = counts.get(kind, 0) + 1
        found[f"{kind}{counts[kind]}"] = name
    return found


def _from_variables(environment: Mapping[str, str]) -> dict[str, str]:
    # Empty is how a container sees a label that its pod does not have.
    return {
        name.removeprefix(VARIABLE).lower(): value
        for name, value in environment.items()
        if name.startswith(VARIABLE) and value
    }


def _from_file(file: DomainsFile, node: str, machine: str) -> dict[str, str]:
    if file.name.endswith(".json"):
        return _from_labels(file, machine)
    try:
        tree = tables_in(file.text, file.name)
    except TomlProblem as error:
        raise DomainsProblem(str(error)) from None
    _require_known(file.name, tree, ("levels", "node", "host"))
    levels = _own_levels(file.name, tree.get("levels", []))
    by_node = _entries(f"{file.name}: node", tree.get("node", {}), levels)
    by_host: dict[str, dict[str, str]] = {}
    for pattern, entry in _entries(f"{file.name}: host", tree.get("host", {}), levels).items():
        for host in _hosts(file.name, pattern):
            if host in by_host:
                raise DomainsProblem(f"{file.name}: host {host} is there twice, the second time in {pattern!r}")
            by_host[host] = entry
    return (by_host.get(machine) or by_host.get(machine.partition(".")[0]) or {}) | by_node.get(node, {})


def _hosts(name: str, pattern: str) -> tuple[str, ...]:
    try:
        return expand(pattern)
    except HostlistProblem as error:
        raise DomainsProblem(f"{name}: host: {error}") from None


def _own_levels(name: str, levels: object) -> tuple[str, ...]:
    if not isinstance(levels, list) or not all(isinstance(level, str) and level for level in levels):
        raise DomainsProblem(f"{name}: levels: expected a list of names, got {levels!r}")
    return (*LEVELS, *levels)


def _entries(where: str, table: object, levels: tuple[str, ...]) -> dict[str, dict[str, str]]:
    if not isinstance(table, dict):
        raise DomainsProblem(f"{where}: expected a table, got {table!r}")
    for key, entry in table.items():
        if not isinstance(entry, dict):
            raise DomainsProblem(f"{where}.{key}: expected level = name, got {entry!r}")
        _require_known(f"{where}.{key}", entry, levels)
        for level, value in entry.items():
            if not isinstance(value, str) or not 0 < len(value) <= _NAME_CHARS_MAX:
                raise DomainsProblem(f"{where}.{key}.{level}: expected a name, got {value!r}")
    return table


def _require_known(where: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise DomainsProblem(f"{where}: unknown key {key!r}; {nearest(key, list(known))}")


def _from_labels(file: DomainsFile, machine: str) -> dict[str, str]:
    """Nodes carry dozens of labels; those that say nothing of places are left out."""
    try:
        nodes = json.loads(file.text)
    except json.JSONDecodeError as error:
        raise DomainsProblem(f"{file.name}: not JSON: {error}") from None
    if not isinstance(nodes, dict) or not all(isinstance(labels, dict) for labels in nodes.values()):
        raise DomainsProblem(f'{file.name}: expected {{"node name": {{"label": "value"}}}}, got something else')
    if nodes and not any(label in LABELS for labels in nodes.values() for label in labels):
        raise DomainsProblem(f"{file.name}: no label of any node names a place; known are {', '.join(LABELS)}")
    labels = nodes.get(machine, {})
    for label, value in labels.items():
        if label in LABELS and not isinstance(value, str):
            raise DomainsProblem(f"{file.name}: {machine}: {label}: expected text, got {value!r}")
    return {level: labels[label] for label, level in LABELS.items() if labels.get(label)}
