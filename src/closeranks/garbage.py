"""The garbage collector of processes that handle thousands of small messages a second."""

from __future__ import annotations

import gc


def collect_seldom(allocations: int) -> None:
    """Between two looks of the collector, so many objects more are made than freed; 700 by default.

    Messages leave no cycles behind, so it finds nothing most of the time, and each full look walks through everything
    that the process keeps.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(allocations, 20, 20)
