"""What is remembered of nodes from earlier runs, as evidence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from closeranks.diagnose.evidence import Evidence, Place, Source, Standing, Unit
from closeranks.diagnose.labels import harmless
from closeranks.run.node_history import NodeHistory


def node_past(file: Path) -> tuple[Evidence, ...]:
    """One piece of evidence for each node and fault, with how often it struck.

    Raises:
        HistoryProblem: the file cannot be read.
    """
    times = Counter(
        (node, failure.fault) for node, past in NodeHistory(file).read().nodes.items() for failure in past.failures
    )
    return tuple(
        Evidence(
            source=Source.HISTORY,
            rule="node-history",
            text=harmless(f"{fault} struck {node} before, {count} times"),
            place=Place(file=harmless(str(file))),
            standing=Standing.CONTEXT,
            fault=fault,
            unit=Unit(node=harmless(node)),
            count=count,
        )
        for (node, fault), count in sorted(times.items())
    )
