"""The job's state on its way to memory that outlives the process, and back: the worker's half of saving."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from closeranks import messages
from closeranks.checkpoint.arena import Arena, ArenaStore
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.train import capture, restore
from closeranks.train.randomness import plain_random, random_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from closeranks.train.batches import Batches
    from closeranks.train.protected import Protected
    from closeranks.train.randomness import Randomness

_BUFFERS, _RANDOM = "buffers", "random"


class Keeping:
    """Fills the arenas of this process; loads what others filled, or a store keeps."""

    def __init__(self, arenas: tuple[int, int], protected: Protected, randomness: Randomness) -> None:
        self._arenas = tuple(Arena.of(fd) for fd in arenas)
        self._protected = protected
        self._randomness = randomness
        self._scratch: restore.Checked | None = None

    def snapshot(self, asked: messages.Snapshot, place: tuple[int, int], batches: Batches | None) -> messages.Snapped:
        """Copy this seat's part of the state, as it is now, into the arena that was asked for.

        ``place``: seat and size. What cannot be copied is told, not raised: training must go on.
        """
        seat, size = place
        began_s = time.monotonic()
        position = None if batches is None else batches.state_dict()
        try:
            captured = capture.capture(self._protected.everything(), self._local(), writer=seat, world=size)
            image_bytes = capture.copy_into(captured, self._arenas[asked.slot], asked.step)
            problem = ""
        except (CheckpointProblem, TypeError, ValueError, OSError, RuntimeError) as error:
            image_bytes, problem = 0, f"seat {seat}: {type(error).__name__}: {error}"
        pause_s = time.monotonic() - began_s
        return messages.Snapped(
            save=asked.save,
            step=asked.step,
            image_bytes=image_bytes,
            pause_s=pause_s,
            problem=problem,
            data_position=position,
        )

    def load(self, message: messages.Load, descriptors: Sequence[int], place: tuple[int, int]) -> messages.Loaded:
        """Read and check everything that this seat needs, beside the live state.

        A state that cannot be used is told with its reason; nothing live has changed then.
        """
        seat, size = place
        arenas = [Arena.of(fd) for fd in descriptors]
        for fd in descriptors:
            os.close(fd)
        try:
            homes = restore.homes(ArenaStore(arenas) if arenas else None, message.store)
            self._scratch = restore.load_checked(
                homes,
                restore.Wanted(self._protected.everything(), self._local(), reader=seat, readers=size),
                step=message.step,
                generation=message.generation,
            )
        except (CheckpointProblem, TypeError, ValueError, OSError) as error:
            return messages.Loaded(step=message.step, problem=f"seat {seat}: {error}")
        finally:
            for arena in arenas:
                arena.close()
        checked = self._scratch
        return messages.Loaded(
            step=message.step, source=checked.source, notes=tuple(checked.notes), refused=tuple(checked.refused)
        )

    def adopt(self) -> None:
        """Make the state that was loaded the live one."""
        checked, self._scratch = self._scratch, None
        if checked is None:
            raise AssertionError("nothing was loaded")
        local = checked.apply()
        self._adopt_local(local)

    # --- what belongs to the seat --------------------------------------------------------------------------------

    def _local(self) -> dict[str, Any]:
        """Buffers may differ by seat, although modules name them; random state does where we do not manage it."""
        buffers = {f"{name}/{i}": b for name, _, own in self._protected.buffers() for i, b in enumerate(own)}
        local: dict[str, Any] = {name: value.state_dict() for name, value in self._protected.local.items()}
        if buffers:
            local[_BUFFERS] = buffers
        random = self._randomness.capture()
        if random is not None:
            local[_RANDOM] = plain_random(random)
        return local

    def _adopt_local(self, local: dict[str, Any]) -> None:
        raise NotImplementedError
