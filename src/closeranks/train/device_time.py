"""Own time on an accelerator: what its stream takes from the update to the last collective, measured by the device.

The host runs ahead of the device, so its clock does not see a device that is slow, and where it waits for the device
it waits for the others too. Two marks in the stream see both: work that is slow, and work that comes late because the
host is. A measure is read once the device has passed both marks, a step or two later, and never waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

_CUDA: Any = torch.cuda  # parts of it are untyped
_AWAITED = 4  # measures that the device has not come to


class DeviceTime:
    """Marks the current stream. Used from whichever thread launches; calls do not overlap."""

    def __init__(self, mark: Callable[[], Any] | None = None) -> None:
        self._mark = _mark if mark is None else mark
        self._began: Any = None
        self._launched: Any = None
        self._awaited: deque[tuple[Any, Any]] = deque(maxlen=_AWAITED)
        self._newest_ns = 0

    def begin(self) -> None:
        """The gradients of a step are there, as far as the stream is concerned."""
        if self._began is not None and self._launched is not None:
            self._awaited.append((self._began, self._launched))
        self._began, self._launched = self._mark(), None

    def launch(self) -> None:
        """A collective is launched behind what the stream holds; the last one of a step counts."""
        if self._began is not None:
            self._launched = self._mark()

    def forget(self) -> None:
        """What was marked belongs to no step."""
        self._began = self._launched = None

    def read_ns(self) -> int:
        """The newest measure that the device has completed; 0 before the first."""
        while self._awaited and self._awaited[0][1].query():
            began, launched = self._awaited.popleft()
            self._newest_ns = max(1, round(began.elapsed_time(launched) * 1e6))
        return self._newest_ns


def in_use() -> bool:
    """Whether this process works on an accelerator whose stream can be marked now. Asking begins nothing there."""
    return bool(_CUDA.is_initialized() and not _CUDA.is_current_stream_capturing())


def _mark() -> Any:
    mark = _CUDA.Event(enable_timing=True)
    mark.record()
    return mark
