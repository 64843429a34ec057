"""The time that this process spends on its own in a step: what the others wait for, without its waits for them.

It runs from the first write of the last update, when the last gradients were there, to the launch of the last
collective of this backward pass. What DDP waits for at the end of the pass is seen by nobody, so what is launched
after it does not count; other waits, and labelled sections, are taken off.

With an accelerator it is the time of the host, which launches work and does not wait for it: a host that is held up
(loading, Python, a queue that is full) shows, a device that is slow shows as far as its host has to wait for it.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from closeranks.vitals import Field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from closeranks.vitals import Vitals

_NO_PASS = -2  # torch's number outside of a backward pass is -1
_OWN = int(Field.OWN_NS)


class OwnTime:
    """Written by the training thread; the result is a word of its vitals page."""

    __slots__ = ("_pass", "_since_ns", "_vitals", "_waited_ns")

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._since_ns = 0
        self._waited_ns = 0
        self._pass = _NO_PASS  # the backward pass in which this step's gradients are reduced

    def begin(self, now_ns: int) -> None:
        """The process has all that it needs for the next step from others."""
        self._since_ns, self._waited_ns = now_ns, 0

    def open(self, now_ns: int) -> None:
        """An attempt is opened."""
        self._pass = _NO_PASS
        self._vitals.words[_OWN] = 0
        if self._since_ns == 0:
            self.begin(now_ns)

    def launch(self, now_ns: int, backward_pass: int) -> None:
        """A collective is launched in an attempt that is open."""
        if self._pass == _NO_PASS and backward_pass != -1:
            self._pass = backward_pass
        if self._pass in (_NO_PASS, backward_pass):
            self._vitals.words[_OWN] = now_ns - self._since_ns - self._waited_ns

    def waited(self, since_ns: int) -> None:
        """The training thread waited for others until now."""
        self._waited_ns += time.monotonic_ns() - since_ns

    def forget(self) -> None:
        """A recovery: what went before it belongs to no step."""
        self._since_ns = 0

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """What happens in the block, waits included, is no part of a step."""
        began_ns, waited_ns = time.monotonic_ns(), self._waited_ns
        try:
            yield
        finally:
            self._waited_ns = waited_ns
            self.waited(began_ns)
