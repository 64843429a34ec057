"""The regular look at the health of this node, from a thread that may hang without harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from closeranks.detect import telemetry
from closeranks.detect.telemetry import Sample
from closeranks.events import NodeUnwell, NodeWell
from closeranks.probe import nvml
from closeranks.probe.host import host_sample
from closeranks.run.beside import beside
from closeranks.run.context import Context

_WITHIN_S: Final = 30.0  # a look that takes longer is told as what it is: silence
_SILENT: Final = "telemetry"


class Telemetry:
    """Tells the journal what is wrong with the node, and whoever ``on_drain`` is why it should get no new work."""

    def __init__(self, context: Context, look: Callable[[], Sample] | None = None) -> None:
        self._context = context
        self._look = look or self._take
        self._watch = telemetry.Watch()
        self._draining: dict[str, str] = {}  # by sign: what was seen
        self.on_drain: Callable[[str], None] = lambda _: None  # why; "" when nothing speaks against the node any more

    async def run(self) -> None:
        """Look until the run ends."""
        while self._context.ending is None:
            await self.once()
            await asyncio.sleep(self._context.options.look_every_s)

    async def once(self) -> None:
        """One look."""
        try:
            sample = await beside(self._look, "telemetry", _WITHIN_S)
        except TimeoutError:
            self.hear(NodeUnwell(sign=_SILENT, detail=f"no answer within {_WITHIN_S:g} s", drain=True))
            return
        except OSError as error:
            self.hear(NodeUnwell(sign=_SILENT, detail=f"no look is possible: {error.strerror}", drain=True))
            return
        if _SILENT in self._draining:
            self.hear(NodeWell(sign=_SILENT))
        self._watch, news = telemetry.observe(self._watch, sample)
        for event in news:
            self.hear(event)

    def hear(self, event: NodeUnwell | NodeWell) -> None:
        """Write it down, and say why the node should get no new work if that changed."""
        if event.sign == _SILENT and isinstance(event, NodeUnwell) and _SILENT in self._draining:
            return
        self._context.note(event)
        before = dict(self._draining)
        if isinstance(event, NodeWell):
            self._draining.pop(event.sign, None)
        elif event.drain:
            self._draining[event.sign] = event.detail
        if self._draining != before:
            self.on_drain("; ".join(f"{sign}: {detail}" for sign, detail in self._draining.items()))

    def _take(self) -> Sample:
        devices = nvml.look()
        return Sample(
            at_s=time.monotonic(),
            host=host_sample(self._context.folder),
            devices=devices if isinstance(devices, tuple) else None,
        )
