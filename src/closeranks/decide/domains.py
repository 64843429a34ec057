"""Nodes that fail together: those of a rack, a power feed, a switch."""

from __future__ import annotations

from collections.abc import Iterable

from closeranks.decide.state import Node


def failed_domain(node: Node, lost: Iterable[Node], living: Iterable[Node]) -> str:
    """The domain whose failure explains the loss of this node and of others, such as ``"rack r7"``; empty: none does.

    ``lost`` are the other nodes lost in the same incident. A domain has failed when it lost two nodes or more, and
    more than it has left. Of several, the one with the fewest survivors, then with the most losses.
    """
    lost, living = tuple(lost), tuple(living)
    found = []
    for level, name in node.domains.items():
        gone = 1 + sum(other.domains.get(level) == name for other in lost)
        left = sum(other.domains.get(level) == name for other in living)
        if gone >= 2 and gone > left:  # noqa: PLR2004 - one node explains itself
            found.append((left, -gone, level, name))
    if not found:
        return ""
    _, _, level, name = min(found)
    return f"{level} {name}"
