"""The nodes of a virtual cluster: who is in the job, who is idle, who is being repaired."""

from __future__ import annotations

from typing import NamedTuple


class Taken(NamedTuple):
    """What a fault took: nodes of the job, and idle ones."""

    job: tuple[int, ...]
    idle: tuple[int, ...]


class Fleet:
    """``nodes`` in the job and ``spares`` idle ones, numbered 0.. in this order. No nodes: processes need none."""

    def __init__(self, nodes: int, spares: int) -> None:
        self.nodes = nodes
        self._idle = set(range(nodes, nodes + spares))
        self._out: dict[int, float] = {}  # when it comes back, by node
        self.missing = 0  # lost from the job and not yet replaced

    @property
    def idle(self) -> int:
        """Nodes that could join the job."""
        return len(self._idle)

    @property
    def whole(self) -> bool:
        """Whether every lost node of the job can be replaced by an idle one."""
        return self.missing <= len(self._idle)

    def fail(self, nodes: tuple[int, ...], back_s: float) -> Taken:
        """These nodes are out until then; of those that are out already, only the later return counts."""
        job, idle = [], []
        for node in nodes:
            if node in self._out:
                self._out[node] = max(self._out[node], back_s)
                continue
            self._out[node] = back_s
            if node in self._idle:
                self._idle.discard(node)
                idle.append(node)
            else:
                job.append(node)
        self.missing += len(job)
        return Taken(tuple(job), tuple(idle))

    def mend(self, now_s: float) -> bool:
        """Take back the nodes whose repair is over; whether there were any."""
        back = [node for node, at_s in self._out.items() if at_s <= now_s]
        for node in back:
            del self._out[node]
            self._idle.add(node)
        return bool(back)

    def fill(self) -> None:
        """Replace lost nodes of the job by idle ones, lowest numbers first, as far as they go."""
        taken = sorted(self._idle)[: self.missing] if self.missing else []
        self._idle.difference_update(taken)
        self.missing -= len(taken)
