"""The time that this process spends on its own in a step: what the others wait for, without its waits for them.

It runs from the first write of the last update, when the last gradients were there, to the launch of the last
collective of this backward pass. What DDP waits for at the end of the pass is seen by nobody, so what is launched
after it does not count; other waits, and labelled sections, are taken off.

On an accelerator the device measures it, see ``device_time.py``.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from closeranks.train import device_time
from closeranks.train.device_time import DeviceTime
from closeranks.vitals import Field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from closeranks.vitals import Vitals

_NO_PASS = -2  # torch's number outside of a backward pass is -1
_OWN = int(Field.OWN_NS)


class OwnTime:
    """Written by the training thread; the result is a word of its vitals page."""

    __slots__ = ("_device", "_pass", "_since_ns", "_waited_ns", "_words")

    def __init__(self, vitals: Vitals) -> None:
        self._words = vitals.words
        self._since_ns = 0
        self._waited_ns = 0
        self._device: DeviceTime | None = None
        self._pass = _NO_PASS  # the backward pass in which this step's gradients are reduced

    def begin(self, now_ns: int) -> None:
        """The process has all that it needs for the next step from others."""
        self._since_ns, self._waited_ns = now_ns, 0
        if device_time.in_use():
            self._device = self._device or DeviceTime()
            self._device.begin()

    def open(self, now_ns: int) -> None:
        """An attempt is opened."""
        self._pass = _NO_PASS
        self._words[_OWN] = 0
        if self._since_ns == 0:
            self.begin(now_ns)

    def launch(self, now_ns: int, backward_pass: int) -> None:
        """A collective is launched in an attempt that is open."""
        if self._pass == _NO_PASS and backward_pass != -1:
            self._pass = backward_pass
        if self._pass in (_NO_PASS, backward_pass):
            self._words[_OWN] = now_ns - self._since_ns - self._waited_ns
            if self._device is not None and device_time.in_use():
                self._device.launch()
                self._words[_OWN] = self._device.read_ns()

    def waited(self, since_ns: int) -> None:
        """The training thread waited for others until now."""
        self._waited_ns += time.monotonic_ns() - since_ns

    def forget(self) -> None:
        """A recovery: what went before it belongs to no step."""
        self._since_ns = 0
        if self._device is not None:
            self._device.forget()

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """What happens in the block, waits included, is no part of a step."""
        began_ns, waited_ns = time.monotonic_ns(), self._waited_ns
        try:
            yield
        finally:
            self._waited_ns = waited_ns
            self.waited(began_ns)
            if self._device is not None:
                self._device.forget()
