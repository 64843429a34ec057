"""The job's state on its way to memory that outlives the process, and back: the worker's half of saving."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from closeranks import messages
from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.train import capture
from closeranks.train.randomness import UnmanagedRandomness

if TYPE_CHECKING:
    from closeranks.train.batches import Batches
    from closeranks.train.protected import Protected
    from closeranks.train.randomness import Randomness

_RANDOM: Final = "closeranks.random"


class Keeping:
    """Fills the arenas of this process; loads what others filled, or a store keeps."""

    def __init__(self, arenas: tuple[int, int], protected: Protected, randomness: Randomness) -> None:
        self._arenas = tuple(Arena.of(fd) for fd in arenas)
        self._protected = protected
        self._randomness = UnmanagedRandomness(randomness)

    def snapshot(self, asked: messages.Snapshot, place: tuple[int, int], batches: Batches | None) -> messages.Snapped:
        """Copy this seat's part of the state, as it is now, into the arena that was asked for.

        ``place``: seat and size. What cannot be copied is told, not raised: training goes on.
        """
        seat, size = place
        began_s = time.monotonic()
        image_bytes, problem = 0, ""
        try:
            captured = capture.capture(self._protected.everything(), self._local(), writer=seat, world=size)
            capture.copy_into(captured, self._arenas[asked.slot], asked.step)
            image_bytes = sum(tensor.numel() * tensor.element_size() for tensor in captured.tensors)
        except (CheckpointProblem, TypeError, ValueError, OSError, RuntimeError) as error:
            problem = f"seat {seat}: {type(error).__name__}: {error}"
        return messages.Snapped(
            save=asked.save,
            step=asked.step,
            image_bytes=image_bytes,
            pause_s=time.monotonic() - began_s,
            problem=problem,
            data_position=None if batches is None else batches.state_dict(),
        )

    def _local(self) -> dict[str, Any]:
        return {**self._protected.local, _RANDOM: self._randomness}
