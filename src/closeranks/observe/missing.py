"""What a merged stream cannot tell, in words: journals, steps and decisions that are missing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from closeranks.events import NodeAccepted, NodeGone, NodeStarted, Record, TermBegan
from closeranks.observe.step_parts import Lack
from closeranks.observe.text import counted


def absent_nodes(records: Iterable[Record], at_hand: frozenset[str]) -> tuple[str, ...]:
    """Nodes that records speak of, without a journal at hand."""
    found: set[str] = set()
    for record in records:
        event = record.event
        if isinstance(event, TermBegan):
            found.update(event.nodes)
        elif isinstance(event, NodeAccepted | NodeGone):
            found.add(event.node)
        if record.stamp is not None:
            found.add(record.stamp.node)
    return tuple(sorted(found - at_hand - {""}))


def missing_journals(records: Sequence[Record], at_hand: frozenset[str], lacks: Sequence[Lack]) -> Iterator[str]:
    """A sentence if nodes took part whose journals are not there."""
    asked = max((r.event.nodes for r in records if isinstance(r.event, NodeStarted)), default=0)
    absent = absent_nodes(records, at_hand)
    unnamed = asked - len(at_hand) - len(absent)
    if unnamed <= 0 and not absent:
        return
    missing = [*absent, *([f"{unnamed} that no record names"] if unnamed > 0 else [])]
    steps = {step for lack in lacks if lack.node not in at_hand for step in lack.steps}
    all_nodes = max(asked, len(at_hand) + len(absent))
    shown = f"shown from the journals of {', '.join(sorted(at_hand))}, {len(at_hand)} of {counted(all_nodes, 'node')}"
    lacking = ""
    if steps:
        lacking = (
            f", and with them their part of {counted(len(steps), 'step')}; "
            "the seconds of their seats are taken from the steps of the others"
        )
    yield f"{shown}; missing: {', '.join(missing)}{lacking}"


def told_nothing(lack: Lack) -> str:
    """A sentence about a node whose journal is there."""
    first, last = min(lack.steps), max(lack.steps)
    return (
        f"{lack.node or 'a node'}: its journal tells nothing of {counted(len(lack.steps), 'step')} "
        f"({first} to {last}) that the others went on from"
    )


def unread_decisions(decided: Sequence[Record]) -> Iterator[str]:
    """Numbers that no journal at hand has, below the highest that one has."""
    stamps = [record.stamp for record in decided if record.stamp is not None]
    for epoch in sorted({stamp.epoch for stamp in stamps}):
        mine = [stamp for stamp in stamps if stamp.epoch == epoch]
        lost = max(stamp.seq for stamp in mine) + 1 - len(mine)
        if lost:
            yield (
                f"{counted(lost, 'decision')} of the coordinator on {mine[0].node} (epoch {epoch}) "
                f"{'is' if lost == 1 else 'are'} in no journal at hand"
            )


def placed_by_wall(nodes: Iterable[str]) -> Iterator[str]:
    """A sentence for each node whose times rest on its wall clock."""
    for node in nodes:
        yield (
            f"{node}: it shares no decision with the others, so its times are placed by wall time and are off by as "
            "much as its wall clock was"
        )
