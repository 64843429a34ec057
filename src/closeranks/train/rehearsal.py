"""Two steps before the first one, and the wiping of their traces."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import torch

from closeranks.log_file import opened_log
from closeranks.train import tree
from closeranks.train.randomness import Randomness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from closeranks.train.protected import Protected


class Rehearsal:
    """Copies the state of everything protected when made; ``wipe`` puts it back."""

    def __init__(self, protected: Protected, randomness: Randomness) -> None:
        self._protected = protected
        self._randomness = randomness
        named, self._structure = protected.capture()
        self._named = {name: tensor.detach().clone() for name, tensor in named}
        self._buffers = [[b.detach().clone() for b in own] for _, _, own in protected.buffers()]
        self._local = {name: tree.copied(value.state_dict()) for name, value in protected.local.items()}
        self._random = Randomness(0, managed=False).capture() if not randomness.managed else None

    def wipe(self) -> None:
        """Everything protected is as before the rehearsal; gradients are cleared."""
        self._protected.restore(self._named, self._structure)
        with torch.no_grad():
            for (_, _, own), copies in zip(self._protected.buffers(), self._buffers, strict=True):
                for buffer, copy in zip(own, copies, strict=True):
                    buffer.copy_(copy)
        for name, value in self._protected.local.items():
            value.load_state_dict(self._local[name])
        self._randomness.restore(self._random)
        self._protected.clear_gradients()

    @staticmethod
    @contextlib.contextmanager
    def output_to(path: Path | None) -> Iterator[None]:
        """Send what the script prints meanwhile to a log of its own."""
        if path is None:
            yield
            return
        with opened_log(path) as log:
            saved = []
            for number, stream in ((1, sys.stdout), (2, sys.stderr)):
                stream.flush()
                saved.append(os.dup(number))
                os.dup2(log, number)
            try:
                yield
            finally:
                for number, (stream, kept) in enumerate(zip((sys.stdout, sys.stderr), saved, strict=True), start=1):
                    with contextlib.suppress(OSError):  # what the log's disk does not take is shown after all
                        stream.flush()
                    os.dup2(kept, number)
                    os.close(kept)
