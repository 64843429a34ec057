"""What a list of replicas cannot survive, said before anything fails. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from closeranks.serve.policies.router import Load


def warnings(loads: Sequence[Load], expected: float = 0.0) -> list[str]:
    """What to worry about, in words; ``expected`` is the work that is outstanding in a usual hour at once.

    Looks at one group of replicas that can stand in for each other, such as those of one tier.
    """
    if not loads:
        return []
    if len(loads) == 1:
        return [f"{loads[0].name} is the only replica: nothing can take its place"]
    told = [*_shared(loads), *_too_small(loads, expected)]
    if all(load.standby for load in loads):
        told.append("all replicas are standby: one of them will be asked all the same; make it active")
    return told


def _domains(loads: Sequence[Load]) -> dict[str, list[Load]]:
    """Replicas by what they fail with; one without a domain fails alone, as far as is known."""
    domains = defaultdict(list)
    for load in loads:
        domains[load.domain or f"replica {load.name}"].append(load)
    return domains


def _shared(loads: Sequence[Load]) -> list[str]:
    unnamed = [load.name for load in loads if not load.domain]
    told = []
    if unnamed:
        told.append(f"{_list(unnamed)}: no domain is given; whether they fail together cannot be judged")
    for domain, members in _domains(loads).items():
        if len(members) == len(loads):
            told.append(f"all replicas are in domain {domain!r}: one fault takes them all; spread them")
        elif len(members) > 1:
            told.append(f"{_list([load.name for load in members])} share domain {domain!r} and fail together")
    return told


def _too_small(loads: Sequence[Load], expected: float) -> list[str]:
    total = sum(load.capacity for load in loads)
    needed = expected or sum(load.capacity for load in loads if not load.standby)
    what = f"the expected {expected:g}" if expected else f"what the active ones serve at once ({needed:g})"
    told = []
    for domain, members in _domains(loads).items():
        rest = total - sum(load.capacity for load in members)
        if 0 < rest < needed:
            told.append(f"without {domain} the others have room for {rest:g} requests at once, less than {what}")
    return told


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
